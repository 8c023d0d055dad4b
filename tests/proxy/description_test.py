"""The description of the operators' API (src/operators/openapi.json) against a server, both ways.

What the server answers is as described: status, headers, every member. And everything that is described is met: each
path, method, parameter with each of its values, status, header, and member of a body or an answer. To show that this
finds what it should, differences are planted in the description.

Usage: description_test.py ONCE_PROGRAM
"""
import copy
import http.client
import json
import os
import pathlib
import re
import sqlite3
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/apps"))
import openapi  # noqa: E402
import service  # noqa: E402
from openapi import Exchange  # noqa: E402
from service import ProxyCase  # noqa: E402

DESCRIPTION = json.loads((ROOT / "src/operators/openapi.json").read_text())
TOKEN = "0123456789abcdef"
ACT_ID = "01234567-89ab-cdef-0123-456789abcdef"
# What a store in SQLite has no way to, and a proxy neither.
NOT_MET_HERE = {"member unreadable of components/schemas/Page",
                # Of `once console`: tests/apps/console_test.py.
                "member link of components/schemas/SignIn",
                # Of a scope of more than 10 000 records: tests/operators/service_test.cpp.
                "parameter after of get /v1/records/{key}/related"}


class Description(ProxyCase):
    def start_admin(self, *arguments):
        process, self.port = self.start_proxy("--admin", "127.0.0.1:0", "--stats-interval", "1s", "--keep-input",
                                              *arguments)
        self.admin = int(process.stderr.readline().decode().removeprefix("once: operators on port "))
        self.usual = {}
        if "--admin-token-file" not in arguments:
            note = process.stderr.readline().decode()
            token = pathlib.Path(note.removeprefix("once: the token of the operators' API is in ").rstrip()).read_text()
            self.usual = {"Authorization": f"Bearer {token.strip()}"}
        return process

    def ask(self, target, method="GET", body=None, headers=None, kind="application/json"):
        sent = dict(headers or {})
        data = None
        if body is not None:
            sent.setdefault("Content-Type", kind)
            data = json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=60)
        connection.request(method, target, data, self.usual | sent)
        answer = connection.getresponse()
        exchange = Exchange(method, target, sent, body, answer.status,
                            {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        self.exchanges.append(exchange)
        return exchange

    def streams(self):
        """As many as there may be, and what each begins with; one more, and what else is refused."""
        key = self.path_of("unknown").rpartition("/")[2]
        target = f"/v1/events?watch=overview,{key}"
        answers = []  # Each holds its connection.
        while True:
            sent = {"Last-Event-ID": "0-1"} if answers else {}
            connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=60)
            connection.request("GET", target, headers=self.usual | sent)
            answer = connection.getresponse()
            answers.append(answer)
            headers = {name.lower(): value for name, value in answer.getheaders()}
            if answer.status != 200:
                break
            events = {}
            while {"overview", "changed", *(["reset"] if sent else [])} - set(events):
                fields = dict(line.decode().rstrip("\n").split(": ", 1) for line in iter(answer.readline, b"\n"))
                if "event" in fields:
                    events[fields["event"]] = json.loads(fields["data"])
            for name, described in (("overview", "Overview"), ("changed", "RecordEvent")):
                whole = {"$ref": f"#/components/schemas/{described}", "components": DESCRIPTION["components"]}
                openapi.validator(whole).validate(events[name])
            self.exchanges.append(Exchange("GET", target, sent, None, 200, headers, b""))
        self.exchanges.append(Exchange("GET", target, sent, None, answer.status, headers, answer.read()))
        for answer in answers:
            answer.close()
        self.ask(target, "HEAD")
        self.ask(f"{target}&nothing=1")

    def path_of(self, key, scope="pay"):
        done = self.expect(self.once("show", "--key", key, "--scope", scope, "--json"), 0)
        return f"/v1/records/{json.loads(done.stdout)['stored_key_hex']}"

    def act(self, path, action, body, tag=None, method="POST", **more):
        tag = tag or self.ask(f"{path}?include=").headers["etag"]
        return self.ask(path + action, method, body, {"If-Match": tag}, **more)

    def run_once(self, code, key, script, *flags):
        self.expect(self.once("run", "--scope", "pay", "--key", key, *flags, "--", "sh", "-c", script), code)

    def keep_records(self):
        self.run_once(0, "done", "echo out; echo err >&2", "--keep-input", "args")
        self.run_once(3, "failed", "exit 3")
        self.run_once(1, "unknown", "exit 1", "--on-failure", "hold")
        self.run_once(0, "large", "head -c 3000000 /dev/urandom")
        for name in ("a", "b", "c", "d", "e"):
            self.run_once(1, name, "exit 1", "--on-failure", "hold")
        # The library writes steps; here they are written into the file.
        with sqlite3.connect(self.dir / "once.db") as file:
            file.execute("UPDATE records SET steps = '6:charge,2:ok,' WHERE key LIKE '%done'")

    def lists(self):
        description = openapi.Comparison(DESCRIPTION, [], NOT_MET_HERE)
        for one in description.parameters("/v1/records", operation(DESCRIPTION, LIST)):
            for value in description.resolved(one["schema"]).get("enum", []):
                self.ask(f"/v1/records?{one['name']}={value}")
        for query in ("", "q=done", f"client={'5f' * 32}", "scope=pay&prefix=do", "label=d&holder=o", "older-than=1s", "newer-than=1h", "limit=0",
                      "nothing=1"):
            self.ask(f"/v1/records?{query}")
        first = json.loads(self.ask("/v1/records?limit=2").content)
        self.ask(f"/v1/records?limit=2&after={first['next']}")
        self.ask("/v1/records", "HEAD")

    def one_record(self):
        done, unknown, large = (self.path_of(key) for key in ("done", "unknown", "large"))
        for query in ("", "?include=", "?include=result,input,steps", "?include=none", "?nothing=1"):
            self.ask(done + query)
        self.ask(self.path_of("failed"))
        self.ask(done, "HEAD")
        self.ask("/v1/records/6b")
        for part in ("result", "input", "none"):
            self.ask(f"{done}/raw?part={part}")
        self.ask(f"{done}/raw?part=result", "HEAD")
        self.ask(f"{done}/raw?part=result&nothing=1")
        self.ask(f"{unknown}/raw?part=result")
        # Its result is beside the file, and is lost.
        results = [path for path in (self.dir / "once.db.results").rglob("*") if path.is_file()]
        self.assertEqual(len(results), 1)
        results[0].unlink()
        self.ask(large)
        self.ask(f"{large}/raw?part=result")

    def acts(self):
        full = {"reason": "r", "who": "alice", "dry_run": False, "force": True, "act": ACT_ID}
        settle = {**full, "retention": "never", "any_payload": False}
        self.act(self.path_of("a"), "/resolve",
                 {**settle, "as": "failed", "code": "c", "message": "m", "result": {"text_base64": "AA=="}})
        # It says that it is a result of once run, and is none.
        self.act(self.path_of("b"), "/resolve", {**settle, "as": "completed", "result": {
            "text": "nonsense", "content_type": "application/vnd.once.run"}})
        self.ask(self.path_of("b"))
        self.act(self.path_of("c"), "/release", settle)
        self.act(self.path_of("failed"), "/extend", {"reason": "r", "who": "alice", "dry_run": True, "by": "1h"})
        self.act(self.path_of("c"), "/extend", {"reason": "r", "on_lapse": "hold", "act": ACT_ID})
        self.act(self.path_of("c"), "/extend", {"reason": "r", "on_lapse": "takeover", "retention": "1h"})
        gone = self.path_of("e")
        self.act(gone, "", full, method="DELETE")
        # And how each refuses.
        good = {"/resolve": {"as": "completed", "reason": "r"}, "/release": {"reason": "r"},
                "/extend": {"by": "1h", "reason": "r"}, "": {"reason": "r"}}
        running = self.start("run", "--scope", "pay", "--key", "live", "--", "sleep", "600")
        service.wait_until(lambda: self.once("show", "--key", "live", "--scope", "pay").returncode == 0, "it runs")
        for action, body in good.items():
            method = "POST" if action else "DELETE"
            # A live claim is in the way of all but extend.
            refusing = self.path_of("unknown") if action == "/extend" else self.path_of("live")
            path = self.path_of("d")
            self.act(refusing, action, body, method=method)
            self.act(path, action, body, tag=f'"{"0" * 32}-1"', method=method)
            self.act(gone, action, body, tag=f'"{"0" * 32}-1"', method=method)
            self.act(path, action, {**body, "nothing": 1}, method=method)
            self.act(path, action, {**body, "reason": ""}, method=method)
            self.ask(path + action, method, body)
            self.ask(path + action, method, body, kind="text/plain")
            self.act(path, action, {**body, "dry_run": True}, method=method)
        running.terminate()
        running.wait(60)

    def service_says(self):
        """Of an operation of the proxy, whose service broke off."""
        answer, self.service.answer = self.service.answer, lambda *_: (None, b"")
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        client.request("POST", "/charges", b"cents=500", {"Idempotency-Key": "lost", "Content-Type": "text/plain"})
        client.getresponse().read()
        client.close()
        self.service.answer = answer
        lost = json.loads(self.ask("/v1/records?q=lost&standing=unknown").content)["records"][0]
        path = f"/v1/records/{lost['stored_key_hex']}"
        self.act(path, "/reconcile", {"nothing": 1})
        self.act(path, "/reconcile", {}, tag=f'"{"0" * 32}-1"')
        self.ask(path + "/reconcile", "POST", {})
        self.ask(path + "/reconcile", "POST", {}, kind="text/plain")
        self.act("/v1/records/6b", "/reconcile", {}, tag=f'"{"0" * 32}-1"')
        self.act(self.path_of("unknown"), "/reconcile", {})  # Of no route.
        told = self.act(path, "/reconcile", {"who": "alice"})
        self.assertEqual(json.loads(told.content)["says"], "done")
        for says in ("done", "failed", "not_done", "not_known"):
            self.ask(f"/v1/records?reconciled={says}")
        self.ask(path)
        self.act(path, "/resolve", {"as": "completed", "reason": "r", "reconciled": True, "dry_run": True})
        for query in ("", "?name=charge", "?nothing=1"):
            self.ask(f"{path}/related{query}")
        self.ask(f"{path}/related", "HEAD")
        self.ask("/v1/records/6b/related")
        self.act(path, "/resolve", {"as": "completed", "reason": "r", "reconciled": True})

    def rest(self):
        self.ask("/v1/openapi.json")
        for path in ("/v1/overview", "/v1/openapi.json"):
            self.ask(path, "HEAD")
            self.ask(f"{path}?nothing=1")
        service.wait_until(lambda: json.loads(self.ask("/v1/overview").content)["as_of"], "the store was looked at")
        for path in (*DESCRIPTION["paths"], "/v1/", "/v1/records/{key}/burn", "/v1/burn"):
            self.ask(self.filled(path, "6b"), "PUT")

    @staticmethod
    def filled(path, key):
        return path.replace("{key}", key).replace("{id}", "0" * 32)

    def bulk(self):
        done = self.path_of("done").rpartition("/")[2]
        record = json.loads(self.ask(f"/v1/records/{done}").content)
        tag = f'"{record["owner"]}-{record["revision"]}"'
        settle = {"reason": "r", "who": "alice", "retention": "never", "any_payload": False, "force": False}
        fields = {"standing": "unknown", "q": "d", "scope": "pay", "prefix": "d", "label": "d", "holder": "o", "older-than": "1s",
                  "newer-than": "1h", "overdue": "false", "reconciled": "done", "client": "5f" * 32}
        bodies = [
            {**settle, "act": "resolve", "as": "failed", "code": "c", "message": "m", "filter": fields,
             "result": {"text": "t", "content_type": "text/plain"}},
            {**settle, "act": "resolve", "as": "completed", "keys": [done], "tags": [tag], "result": {"text_base64": "AA=="}},
            {**settle, "act": "release", "filter": {"state": "unknown"}},
            {**settle, "act": "release", "keys": [done], "tags": [tag]},
            {"reason": "r", "act": "extend", "by": "1h", "keys": [done, "6b"], "tags": [tag, tag]},
            {"reason": "r", "who": "alice", "act": "extend", "on_lapse": "takeover", "retention": "1h", "filter": {"scope": "pay"}},
            {"reason": "r", "who": "alice", "act": "remove", "force": False, "filter": {"standing": "unknown"}},
            {"reason": "r", "act": "remove", "keys": [done], "tags": [tag]},
            {**settle, "act": "resolve", "as": "completed", "reconciled": True, "filter": {"reconciled": "done"}},
            {"who": "alice", "reason": "r", "act": "reconcile", "filter": {"standing": "unknown"}},
            {"act": "reconcile", "keys": [done], "tags": [tag]}]
        made = []
        for body in bodies:
            made.append(json.loads(self.ask("/v1/bulk", "POST", body).content)["id"])
            self.ask("/v1/bulk", "POST", {**body, "nothing": 1})
        self.ask("/v1/bulk", "POST", bodies[2], kind="text/plain")

        def state(number):
            return json.loads(self.ask(f"/v1/bulk/{made[number]}").content)["state"]

        for number in range(len(bodies)):
            service.wait_until(lambda number=number: state(number) == "planned", "it is planned")
        begin = f"/v1/bulk/{made[4]}/start"
        self.ask(begin, "POST", {"count": 2})
        self.ask(begin, "POST", {"nothing": 1})
        self.ask(begin, "POST", {"count": 1}, kind="text/plain")
        self.ask(begin, "POST", {"count": 1})
        service.wait_until(lambda: state(4) == "done", "it is done")
        end = f"/v1/bulk/{made[0]}/stop"
        self.ask(end, "POST", {"nothing": 1})
        self.ask(end, "POST", {}, kind="text/plain")
        self.ask(end, "POST", {})
        while self.ask("/v1/bulk", "POST", bodies[3]).status == 202:
            pass
        for target in ("/v1/bulk", f"/v1/bulk/{made[0]}"):
            self.ask(target)
            self.ask(target, "HEAD")
            self.ask(f"{target}?nothing=1")
        for word, body in (("start", {"count": 1}), ("stop", {})):
            self.ask(f"/v1/bulk/{'0' * 32}/{word}", "POST", body)
            self.ask(f"/v1/bulk/{'0' * 32}/{word}?nothing=1", "POST", body)
        for query in (f"id={ACT_ID}", "who=alice", f"key={done}", "act=extend", "limit=0", "nothing=1"):
            self.ask(f"/v1/acts?{query}")
        first = json.loads(self.ask("/v1/acts?limit=1").content)
        self.ask(f"/v1/acts?limit=1&after={first['next']}")
        self.ask("/v1/acts", "HEAD")

    def everywhere(self, **options):
        """Each operation once, and the same answer from each."""
        for path, item in DESCRIPTION["paths"].items():
            for method, operation in item.items():
                if method == "parameters":
                    continue
                target = self.filled(path, self.key) + ("?part=input" if path.endswith("raw") else "")
                headers = dict(options.get("headers", {}))
                body = None
                if "requestBody" in operation:
                    headers["If-Match"] = f'"{"0" * 32}-1"'
                    body = {"reason": "r", "as": "completed"} if path.endswith("resolve") else {"reason": "r"}
                    if path.endswith("extend"):
                        body["by"] = "1h"
                    if path.endswith("reconcile"):
                        body = {}
                self.ask(target, method.upper(), body, headers)

    def session(self):
        same = {"Sec-Fetch-Site": "same-origin"}
        signed_in = self.ask("/v1/session", "POST", {"token": TOKEN}, same)
        session = {"Cookie": signed_in.headers["set-cookie"].split(";")[0],
                   "Once-Session": json.loads(signed_in.content)["half"]}
        self.ask("/v1/session", headers=session)
        self.ask("/v1/session", "HEAD", headers=session)
        for method in ("GET", "DELETE"):
            self.ask("/v1/session?nothing=1", method, headers={**same, **session})
            self.ask("/v1/session", method, headers={"Host": "evil.example"})
        self.ask("/v1/session", "POST", {"token": TOKEN}, {"Sec-Fetch-Site": "cross-site"})
        self.ask("/v1/session", "POST", {"token": TOKEN}, same, kind="text/plain")
        self.ask("/v1/session", "POST", {"nothing": 1}, same)
        self.ask("/v1/session", "DELETE", headers={**same, **session})
        self.ask("/v1/session", "DELETE", headers={**same, **session})
        # The other member of a body, where it is right, is for `once console`: tests/apps/console_test.py.
        while self.ask("/v1/session", "POST", {"link": "guess"}, same).status == 401:
            pass

    def play(self):
        self.exchanges = []
        self.keep_records()
        process = self.start_admin("--reconcile", "GET /charges?key={key}", "--reconcile-interval", "1h")
        self.service_says()
        self.lists()
        self.one_record()
        self.acts()
        self.bulk()
        self.rest()
        self.streams()
        self.key = self.path_of("d").rpartition("/")[2]
        self.everywhere(headers={"Host": "evil.example", "Once-Session": "none"})
        self.assertEqual({one.status for one in self.exchanges[-12:]}, {403})
        # A record that somebody damaged.
        with sqlite3.connect(self.dir / "once.db") as file:
            file.execute("UPDATE records SET state = 77 WHERE key LIKE '%d'")
        self.everywhere()
        # The file is another one: this process must not go on with it.
        (self.dir / "once.db").rename(self.dir / "away.db")
        (self.dir / "once.db").write_bytes(b"")
        self.everywhere()
        # The look at the store says so too.
        service.wait_until(lambda: json.loads(self.ask("/v1/overview").content)["stores"][0]["error"], "it was told")
        process.kill()
        process.wait()
        for path in self.dir.glob("once.db*"):
            if path.is_file():
                path.unlink()
        (self.dir / "token").write_text(TOKEN)
        (self.dir / "token").chmod(0o600)
        self.start_admin("--admin-token-file", self.dir / "token")
        self.everywhere()
        self.ask("/v1/records/6b/reconcile", "POST", {}, {"Authorization": f"Bearer {TOKEN}", "If-Match": f'"{"0" * 32}-1"'})
        self.ask("/v1/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"})
        self.session()
        return self.exchanges

    def test_the_server_and_the_description_are_one(self):
        openapi.check_itself(DESCRIPTION)
        exchanges = self.play()
        served = [json.loads(one.content) for one in exchanges
                  if (one.target, one.method, one.status) == ("/v1/openapi.json", "GET", 200)]
        self.assertGreaterEqual(len(served), 2)
        for one in served:
            self.assertEqual(one, DESCRIPTION)
        self.assertEqual(sorted(openapi.Comparison(DESCRIPTION, exchanges, NOT_MET_HERE).found), [])
        self.assertGreater(len(exchanges), 150)

        for name, plant in PLANTED.items():
            with self.subTest(name):
                planted = copy.deepcopy(DESCRIPTION)
                plant(planted)
                self.assertNotEqual(planted, DESCRIPTION)
                self.assertTrue(openapi.Comparison(planted, exchanges, NOT_MET_HERE).found)
        # And in what the server answers.
        for name, plant in PLANTED_ANSWERS.items():
            with self.subTest(name):
                others = copy.deepcopy(exchanges)
                self.assertTrue(plant(others))
                self.assertTrue(openapi.Comparison(DESCRIPTION, others, NOT_MET_HERE).found)


def operation(description, where):
    method, path = where.split()
    return description["paths"][path][method]


def add_parameter(description, where, name):
    operation(description, where)["parameters"].append({"name": name, "in": "query", "schema": {"type": "string"}})


def drop_parameter(description, where, name):
    ours = operation(description, where)["parameters"]
    ours[:] = [one for one in ours if one["name"] != name]


def schema(description, name):
    return description["components"]["schemas"][name]


def parameter(description, where, name):
    return next(one for one in operation(description, where)["parameters"] if one["name"] == name)


LIST, SHOW, ACT = "get /v1/records", "get /v1/records/{key}", "post /v1/records/{key}/extend"
PLANTED = {
    "a path too many": lambda d: d["paths"].update({"/v1/burn": d["paths"]["/v1/overview"]}),
    "a path too few": lambda d: d["paths"].pop("/v1/overview"),
    "a method too many": lambda d: d["paths"]["/v1/records"].update(put=operation(d, LIST)),
    "a method too few": lambda d: d["paths"]["/v1/records/{key}"].pop("delete"),
    "a parameter too many": lambda d: add_parameter(d, LIST, "tenant"),
    "a parameter too few": lambda d: drop_parameter(d, LIST, "older-than"),
    "a parameter of another name": lambda d: parameter(d, SHOW, "include").update(name="with"),
    "a value too many": lambda d: schema(d, "Standing")["enum"].append("lost"),
    "a value too few": lambda d: schema(d, "Standing")["enum"].remove("overdue"),
    "a limit that is not the server's": lambda d: parameter(d, LIST, "limit")["schema"].update(minimum=5),
    "a status too many": lambda d: operation(d, SHOW)["responses"].update({"410": {"$ref": "#/components/responses/NoRecord"}}),
    "a status too few": lambda d: operation(d, ACT)["responses"].pop("428"),
    "a header too many": lambda d: operation(d, SHOW)["responses"]["200"]["headers"].update(
        {"Last-Modified": {"schema": {"type": "string"}}}),
    "a header too few": lambda d: operation(d, SHOW)["responses"]["200"]["headers"].pop("ETag"),
    "another media type": lambda d: operation(d, "get /v1/records/{key}/raw")["responses"]["200"].update(
        content={"text/plain": {}}),
    "a member too many in an answer": lambda d: schema(d, "Overview")["properties"].update(version={"type": "string"}),
    "a member too few in an answer": lambda d: schema(d, "Record")["properties"].pop("label"),
    "a member of another type": lambda d: schema(d, "Record")["properties"].update(token={"type": "string"}),
    "a member that is never null": lambda d: schema(d, "Page")["properties"].update(next={"type": "string"}),
    "a required member that is not": lambda d: schema(d, "Page")["required"].append("searched"),
    "a member too many in a body": lambda d: schema(d, "Extend")["properties"].update(until={"type": "string"}),
    "a member too few in a body": lambda d: schema(d, "Resolve")["properties"].pop("any_payload"),
    "a member too many in one of several bodies": lambda d: schema(d, "BulkRemove")["properties"].update(until={"type": "string"}),
    "a state too few": lambda d: schema(d, "BulkState")["properties"]["state"]["enum"].remove("planned"),
    "a member deep in a body": lambda d: schema(d, "Payload")["properties"].update(
        charset={"type": "string"}),
    "a problem without its record": lambda d: d["components"]["responses"]["Refused"]["content"][
        "application/problem+json"].update(schema={"$ref": "#/components/schemas/Problem"}),
}


def first(exchanges, status, target):
    return next(one for one in exchanges if one.status == status and re.search(target, one.target) and one.content)


def change(exchange, edit):
    content = json.loads(exchange.content)
    edit(content)
    exchange.content = json.dumps(content).encode()
    return True


PLANTED_ANSWERS = {
    "a gauge that is a text": lambda all: change(
        [one for one in all if one.target == "/v1/overview" and one.status == 200 and one.content][-1],
        lambda content: content["gauges"].update(unknown="120")),
    "a record with a member more": lambda all: change(first(all, 200, r"^/v1/records\?$"),
                                                      lambda content: content["records"][0].update(payload="secret")),
    "a time that is none": lambda all: change(first(all, 200, "include=$"),
                                              lambda content: content.update(created_at="yesterday")),
    "an answer that may be kept": lambda all: first(all, 200, "raw").headers.pop("cache-control"),
    "a result that a browser sniffs": lambda all: first(all, 200, "raw").headers.pop("x-content-type-options"),
}


if __name__ == "__main__":
    service.harness.main()
