"""Compares a description in OpenAPI with what a server answers, both ways: for the tests of the APIs.

What the server answers is as described: status, headers, every member. And everything that is described is met: each
path, method, parameter with each of its values, status, header, and member of a body or an answer.
"""
import dataclasses
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = subprocess.run([ROOT / "tools/python-tools"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
if pathlib.Path(sys.prefix) != pathlib.Path(PYTHON).parent.parent:
    os.execv(PYTHON, [PYTHON, *sys.argv])

import jsonschema  # noqa: E402  from the virtual environment, like the next
import openapi_spec_validator  # noqa: E402

# Of every answer of HTTP.
COMMON_HEADERS = {"connection", "content-length", "content-type", "date"}
STREAM_HEADERS = {"transfer-encoding"}  # In place of a length.

CHECKER = jsonschema.FormatChecker(formats=())


@CHECKER.checks("date-time", raises=ValueError)
def is_time(value):
    return not isinstance(value, str) or bool(datetime.datetime.fromisoformat(value.replace("Z", "+00:00")))


def validator(schema):
    return jsonschema.Draft202012Validator(schema, format_checker=CHECKER)


@dataclasses.dataclass
class Exchange:
    method: str
    target: str
    sent: dict
    body: object
    status: int
    headers: dict  # Names in lower case.
    content: bytes


class Comparison:
    """Of a description and exchanges with a server; `found` has the differences."""

    def __init__(self, description, exchanges, not_met=frozenset()):
        """`not_met`: what is described, and tested elsewhere."""
        self.description = description
        self.not_met = not_met
        self.found = set()
        self.met = set()
        self.met_members = set()  # (where the schema is, member)
        for exchange in exchanges:
            self.compare(exchange)
        self.compare_coverage()

    # --- What was answered is described.

    def compare(self, exchange):
        url = urllib.parse.urlsplit(exchange.target)
        path = self.path_of(url.path)
        if path is None:
            if exchange.status not in (401, 403, 404):
                self.found.add(f"{url.path} is not described, and answers {exchange.status}")
            return
        methods = {name.upper() for name in self.description["paths"][path] if name != "parameters"}
        if "GET" in methods:
            methods.add("HEAD")
        if exchange.status == 405:
            allowed = set(exchange.headers["allow"].split(", "))
            if allowed != methods:
                self.found.add(f"{path} allows {sorted(allowed)}, and is described with {sorted(methods)}")
            return
        if exchange.method not in methods:
            self.found.add(f"{exchange.method} {path} is not described, and answers {exchange.status}")
            return
        method = "get" if exchange.method == "HEAD" else exchange.method.lower()
        operation = self.description["paths"][path][method]
        where = f"{method} {path}"
        self.met.add(where)
        self.compare_request(exchange, where, path, operation, url)
        self.compare_answer(exchange, where, operation)

    def path_of(self, path):
        for described in self.description["paths"]:
            pattern = re.sub(r"\{\w+\}", "[^/]+", described)
            if re.fullmatch(pattern, path):
                return described
        return None

    def parameters(self, path, operation):
        both = [*self.description["paths"][path].get("parameters", []), *operation.get("parameters", [])]
        return [self.resolved(one) for one in both]

    def compare_request(self, exchange, where, path, operation, url):
        described = {(one["in"], one["name"]): one for one in self.parameters(path, operation)}
        sent = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        problem = exchange.content and exchange.status == 400 and json.loads(exchange.content)["detail"]
        # What the server says it takes.
        taken = problem and re.search(r"unknown (parameter|member) '.*'; the \w+ (?:is|are) (.*)", problem)
        if taken:
            names = set(re.split(", | and ", taken.group(2)))
            if taken.group(1) == "parameter":
                ours = {name for place, name in described if place == "query"}
                self.met.add(f"the parameters of {where}")
            else:
                ours = self.members(operation, names)
                self.met.add(f"the members of {where}")
            if names != ours:
                self.found.add(f"{where} takes {sorted(names)}, and is described with {sorted(ours)}")
        if exchange.status not in (200, 201, 202):
            return
        values = {("query", name): value for name, value in sent.items()}
        values |= {("header", name): value for name, value in exchange.sent.items() if name in ("If-Match", "Sec-Fetch-Site", "Last-Event-ID", "Once-Claim-Session")}
        for place, value in values.items():
            if place not in described:
                self.found.add(f"{where} takes the parameter {place[1]}, which is not described")
                continue
            schema = self.resolved(described[place]["schema"])
            typed = int(value) if schema.get("type") == "integer" else value
            self.validate(schema, typed, f"parameter {place[1]} of {where}")
            self.met.add(f"parameter {place[1]} of {where}")
            self.met.add(f"value {value} of parameter {place[1]} of {where}")
        for (place, name), one in described.items():
            if one.get("required") and place != "path" and (place, name) not in values:
                self.found.add(f"{where} answers without the parameter {name}, which is described as required")
        if exchange.body is not None:
            if "requestBody" not in operation:
                self.found.add(f"{where} takes a body, which is not described")
            else:
                self.validate(self.body_schema(operation), exchange.body, f"body of {where}")
                self.mark(self.body_schema(operation), exchange.body, f"body of {where}")

    def members(self, operation, names):
        """Of its body; of several kinds, of the one that these names are most like."""
        body = self.resolved(self.body_schema(operation))
        kinds = [body] if "properties" in body else [self.resolved(one) for one in body["oneOf"]]
        return min((set(one["properties"]) for one in kinds), key=lambda ours: len(ours ^ names))

    @staticmethod
    def body_schema(operation):
        return operation["requestBody"]["content"]["application/json"]["schema"]

    def compare_answer(self, exchange, where, operation):
        status = str(exchange.status)
        if status not in operation["responses"]:
            self.found.add(f"{where} answers {status}, which is not described")
            return
        self.met.add(f"status {status} of {where}")
        answer = self.resolved(operation["responses"][status])
        headers = {name.lower(): self.resolved(one) for name, one in answer.get("headers", {}).items()}
        for name in set(exchange.headers) - COMMON_HEADERS - STREAM_HEADERS - set(headers):
            self.found.add(f"{where} answers {status} with the header {name}, which is not described")
        for name, one in headers.items():
            if name in exchange.headers:
                self.validate(one["schema"], exchange.headers[name], f"header {name} of {status} of {where}")
                self.met.add(f"header {name} of {status} of {where}")
            elif one.get("required"):
                self.found.add(f"{where} answers {status} without the header {name}")
        if "content" not in answer:
            if exchange.content or "content-type" in exchange.headers:
                self.found.add(f"{where} answers {status} with a content, which is not described")
            return
        kind = exchange.headers["content-type"]
        if kind not in answer["content"] and "*/*" in answer["content"]:
            kind = "*/*"
        if kind not in answer["content"]:
            self.found.add(f"{where} answers {status} as {kind}, which is not described")
            return
        self.met.add(f"content {kind} of {status} of {where}")
        schema = self.schema_for(exchange, answer["content"][kind].get("schema"))
        if schema is None or exchange.method == "HEAD":
            return
        content = json.loads(exchange.content)
        self.validate(schema, content, f"answer {status} of {where}")
        self.mark(schema, content, f"answer {status} of {where}")

    def schema_for(self, exchange, schema):
        """Of the answer's body, where the description has several."""
        return schema

    # --- Schemas.

    def resolved(self, schema):
        while "$ref" in schema:
            at = self.description
            for name in schema["$ref"].removeprefix("#/").split("/"):
                at = at[name]
            schema = at
        return schema

    def validator(self, schema):
        whole = {**schema, "components": self.description["components"]}
        return validator(whole)

    def validate(self, schema, value, what):
        for error in self.validator(schema).iter_errors(value):
            self.found.add(f"{what}: {error.json_path}: {error.message[:300]}")

    def mark(self, schema, value, where):
        """Notes which members a value has, by the place of the schema that describes them."""
        if "$ref" in schema:
            return self.mark(self.resolved(schema), value, schema["$ref"].removeprefix("#/"))
        for part in schema.get("allOf", []):
            self.mark(part, value, where)
        for number, part in enumerate(schema.get("oneOf", []) + schema.get("anyOf", [])):
            if self.validator(part).is_valid(value):
                self.mark(part, value, f"{where}/{number}")
        if isinstance(value, list):
            for item in value:
                self.mark(schema.get("items", {}), item, f"{where}[]")
        if isinstance(value, dict):
            for name, member in schema.get("properties", {}).items():
                if name in value:
                    self.met_members.add((where, name))
                    self.mark(member, value[name], f"{where}.{name}")
        return None

    def all_members(self, schema, where, found, seen):
        if "$ref" in schema:
            if schema["$ref"] not in seen:
                seen.add(schema["$ref"])
                self.all_members(self.resolved(schema), schema["$ref"].removeprefix("#/"), found, seen)
            return
        for part in schema.get("allOf", []):
            self.all_members(part, where, found, seen)
        for number, part in enumerate(schema.get("oneOf", []) + schema.get("anyOf", [])):
            self.all_members(part, f"{where}/{number}", found, seen)
        if "items" in schema:
            self.all_members(schema["items"], f"{where}[]", found, seen)
        for name, member in schema.get("properties", {}).items():
            found.add((where, name))
            self.all_members(member, f"{where}.{name}", found, seen)

    # --- What is described was answered.

    @staticmethod
    def is_rare(header, status):
        return header == "Retry-After" and status != "429"  # Of a server that is busy: tests/operators/operators_api_test.cpp.

    def compare_coverage(self):
        described, members, seen = set(), set(), set()
        for path, item in self.description["paths"].items():
            for method, operation in item.items():
                if method == "parameters":
                    continue
                where = f"{method} {path}"
                described.add(where)
                parameters = self.parameters(path, operation)
                if any(one["in"] == "query" for one in parameters):
                    described.add(f"the parameters of {where}")
                for one in parameters:
                    if one["in"] == "path":
                        continue
                    described.add(f"parameter {one['name']} of {where}")
                    for value in self.resolved(one["schema"]).get("enum", []):
                        described.add(f"value {value} of parameter {one['name']} of {where}")
                if "application/json" in operation.get("requestBody", {}).get("content", {}):
                    if self.members(operation, set()):
                        described.add(f"the members of {where}")
                    self.all_members(self.body_schema(operation), f"body of {where}", members, seen)
                for status, answer in operation["responses"].items():
                    described.add(f"status {status} of {where}")
                    answer = self.resolved(answer)
                    for name in answer.get("headers", {}):
                        if not self.is_rare(name, status):
                            described.add(f"header {name.lower()} of {status} of {where}")
                    for kind, content in answer.get("content", {}).items():
                        described.add(f"content {kind} of {status} of {where}")
                        self.all_members(content.get("schema", {}), f"answer {status} of {where}", members, seen)
        not_met = described - self.met | {f"member {name} of {where}" for where, name in members - self.met_members}
        self.found |= {f"{what} is described, and was not met" for what in not_met - self.not_met}
        self.found |= {f"{what} was met, and is on the list of what is not" for what in self.not_met - not_met}


def check_itself(description):
    """Raises what is wrong with it as OpenAPI."""
    openapi_spec_validator.validate(description)
