"""The description of the claims API (apps/once/serve/openapi.json) against servers, both ways: see openapi.py.

Usage: serve_description_test.py ONCE_PROGRAM FAKE_DYNAMODB
"""
import copy
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import urllib.parse

import openapi  # Begins anew in the virtual environment.
import harness
import http.client
import serve_test
from harness import wait_until

DESCRIPTION = json.loads((openapi.ROOT / "apps/once/serve/openapi.json").read_text())
FAKE = None
MOST_BYTES = 2 * 1024 * 1024
BODIES = {"renew": {"note": "half done"}, "complete": b"done", "fail": {"code": "x"}, "release": {"reason": "r"},
          "hold": {"reason": "r"}, "steps/one": b"1"}
# An answer to a request that comes within the server's last moments.
NOT_MET_HERE = {f"{what} of get /v1/{page}" for page in ("version", "openapi.json")
                for what in ("status 503", "header retry-after of 503", "header cache-control of 503",
                             "content application/problem+json of 503", "member type of answer 503")}


class Comparison(openapi.Comparison):
    """Also of the problems' types: each one that is described is met somewhere, and each answer's is one of its own."""

    def schema_for(self, exchange, schema):
        if schema is None or "anyOf" not in schema:
            return schema
        told = exchange.headers.get("once-answer")
        if told in ("replayed", "superseded"):
            return schema["anyOf"][-1]
        return next(one for one in schema["anyOf"] if self.resolved(one)["properties"]["answer"]["const"] == told)

    @staticmethod
    def is_rare(header, status):
        return False

    def mark(self, schema, value, where):
        if schema.get("properties", {}).get("type") and isinstance(value, dict):
            self.met.add(f"type {value['type']}")
        return super().mark(schema, value, where)

    def compare_coverage(self):
        super().compare_coverage()
        types = set()

        def collect(part):
            if isinstance(part, dict):
                for value in [part.get("const"), *part.get("enum", [])]:
                    if str(value).startswith("urn:once:problem:"):
                        types.add(f"type {value}")
                for one in part.values():
                    collect(one)
            if isinstance(part, list):
                for one in part:
                    collect(one)

        collect(self.description)
        self.found |= {f"{what} is described, and was not met" for what in types - self.met}


class Description(serve_test.ServeCase):
    def setUp(self):
        super().setUp()
        self.exchanges = []

    def play(self, method, path, body=None, kind=None, client=None, headers=None):
        """One exchange. `body`: a dict for JSON, or bytes."""
        own = client or serve_test.Client(self.socket)
        data = json.dumps(body) if isinstance(body, dict) else body
        sent = dict(headers or {})
        if data is not None:
            sent["Content-Type"] = kind or ("application/json" if isinstance(body, dict) else "text/plain")
        own.request(method, path, data, sent)
        answer = own.getresponse()
        exchange = openapi.Exchange(method, path, sent, body if isinstance(body, dict) else None, answer.status,
                                    {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        if client is None:
            own.close()
        self.exchanges.append(exchange)
        return exchange

    def begin(self, key, **members):
        return self.play("POST", "/v1/claims", {"scope": "orders", "key": key, "lease_ms": serve_test.LEASE_MS, **members})

    def claim(self, key, **members):
        got = self.begin(key, **members)
        self.assertEqual(got.status, 201, got.content)
        return json.loads(got.content)["claim"]

    def use(self, claim, word, body=None, **more):
        return self.play("PUT" if word.startswith("steps/") else "POST", f"/v1/claims/{claim}/{word}",
                         BODIES[word] if body is None else body, **more)

    def look(self, key, **more):
        return self.play("GET", "/v1/claims?" + urllib.parse.urlencode({"scope": "orders", "key": key, **more}))

    def each(self, claim, status, bodies=BODIES, **more):
        for word in bodies:
            got = self.use(claim, word, bodies[word], **more)
            self.assertEqual(got.status, status, (word, got.content))

    def whole_begins(self):
        self.claim("all", fingerprint="f", request_id="r" * 16, wait_ms=0, retention_ms=100_000,
                   failure_retention_ms=1000, on_lapse="hold", retry_failures=True, expected_ms=1000, derive=["stripe"],
                   label="All", holder="worker 1")
        self.claim("json", payload_json="{}", on_lapse="takeover")
        self.claim("bytes", fingerprint_hex="00ff", retention_ms="never", failure_retention_ms="never")
        self.assertEqual(self.begin("bytes", fingerprint_hex="00fe").status, 422)
        self.assertEqual(self.look("bytes", fingerprint_hex="00FF").status, 200)
        self.assertEqual(self.begin("all", fingerprint="f").status, 409)
        self.assertEqual(self.begin("all", fingerprint="other").status, 422)
        self.assertEqual(self.begin("json", payload_json="{ }").status, 409)
        self.assertEqual(self.look("json", payload_json="{}").status, 200)
        self.assertEqual(self.look("all", fingerprint="f").status, 200)
        self.assertEqual(self.look("all", fingerprint="other").status, 422)
        self.assertEqual(self.look("nothing").status, 404)

    def finishes(self):
        for word in ("renew", "steps/one", "complete", "release", "hold"):
            self.use(self.claim(word), word)
        self.use(self.claim("fail"), "fail", {"code": "x", "message": "m", "result": "aGk=", "content_type": "text/plain"})
        for key in ("fail", "complete", "hold"):
            self.begin(key)
            self.look(key)
        self.look("release")
        wait_until(lambda: b"note" in self.look("renew").content, "the note is written")
        self.use(self.claim("of a failure"), "complete?kept_as=failure", b"declined")
        found = self.claim("json result")
        self.use(found, "complete", b'{"cents": 1}', kind="application/json")
        self.use(found, "complete", b"other")
        self.begin("json result")
        self.look("json result")

    def lost_ones(self):
        """Of claims whose keys another call has finished."""
        lost = self.claim("taken")
        self.process.kill()
        self.process.wait()
        self.lapse()
        self.serve()
        self.look("taken")
        self.use(self.claim("taken"), "complete", b"second")
        self.each(lost, 200)
        self.each("01" + "00" * 16 + self.claim("running")[34:], 409)

    def mistakes(self, claim):
        self.each("zz", 400)
        self.each(claim, 413, {word: b" " * (MOST_BYTES + 1) for word in BODIES})
        for path in ("claims", "sessions"):
            self.play("POST", f"/v1/{path}", b" " * (MOST_BYTES + 1))
        json_words = {word: body for word, body in BODIES.items() if isinstance(body, dict)}
        self.each(claim, 415, {word: json.dumps(body).encode() for word, body in json_words.items()})
        self.each(claim, 400, {word: {"nothing": 1, **body} for word, body in json_words.items()})
        self.play("POST", "/v1/claims", {"nothing": 1, "key": "a"})
        self.play("POST", "/v1/claims", b"{}")
        self.look("a", nothing=1)
        self.use(claim, "complete?nothing=1", b"")
        for path in DESCRIPTION["paths"]:
            self.play("PATCH", path.replace("{claim}", claim).replace("{name}", "one"))
        for page in ("version", "openapi.json"):
            for method in ("GET", "HEAD"):
                self.play(method, f"/v1/{page}")
            self.play("GET", f"/v1/{page}?nothing=1")

    def session(self, client=None, headers=None):
        """Its stream, and what it began with."""
        own = client or serve_test.Client(self.socket)
        own.request("POST", "/v1/sessions", headers=headers or {})
        answer = own.getresponse()
        line = answer.readline() if answer.status == 200 else answer.read()
        self.exchanges.append(openapi.Exchange("POST", "/v1/sessions", headers or {}, None, answer.status,
                                               {name.lower(): value for name, value in answer.getheaders()}, line))
        return answer, json.loads(line).get("session")

    def in_sessions(self):
        """Each request in one, and in one that is not open; and a claim that a newer one takes away."""
        old, name = self.session()
        new, newer = self.session()
        for word in BODIES:
            claim = self.claim(f"in session {word}")
            self.assertEqual(self.use(claim, word, headers={"Once-Claim-Session": "x"}).status, 409)
            self.assertEqual(self.use(claim, word, headers={"Once-Claim-Session": name}).status, 200)
        for session, status in ((name, 201), ("x", 409)):
            got = self.play("POST", "/v1/claims", {"key": "in session", "lease_ms": serve_test.LEASE_MS}, headers={"Once-Claim-Session": session})
            self.assertEqual(got.status, status)
        claim = json.loads(self.exchanges[-2].content)["claim"]
        self.use(claim, "renew", headers={"Once-Claim-Session": newer})
        event = next(line for line in old if b"lost" in line)
        self.exchanges.append(dataclasses.replace(next(one for one in self.exchanges if one.target == "/v1/sessions"), content=event))
        for stream in (old, new):
            stream.close()
        self.play("POST", "/v1/sessions", b"{}")

    def without_token(self, claim):
        process = self.start("serve", "--listen", "0", "--log", "none", "--max-claims", "1")
        port = int(process.stderr.readline().split()[-1])
        token = pathlib.Path(process.stderr.readline().decode().rsplit(" ", 1)[1].strip()).read_text().strip()

        def ask(method, path, body=None, **more):
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=harness.DEADLINE_S)
            got = self.play(method, path, body, client=client, **more)
            client.close()
            return got

        for word, body in BODIES.items():
            method = "PUT" if word.startswith("steps/") else "POST"
            self.assertEqual(ask(method, f"/v1/claims/{claim}/{word}", body).status, 401)
        for method, page, body in (("GET", "version", None), ("GET", "openapi.json", None), ("POST", "claims", {"key": "a"}),
                                   ("GET", "claims?key=a", None), ("POST", "sessions", None)):
            self.assertEqual(ask(method, f"/v1/{page}", body).status, 401)
        allowed = {"Authorization": f"Bearer {token}"}
        self.assertEqual(ask("POST", "/v1/claims", {"key": "one"}, headers=allowed).status, 201)
        first = http.client.HTTPConnection("127.0.0.1", port, timeout=harness.DEADLINE_S)
        held, _ = self.session(first, allowed)  # Open as long as this has it.
        self.assertEqual(ask("POST", "/v1/sessions", headers=allowed).status, 503)
        held.close()
        first.close()
        self.assertEqual(ask("POST", "/v1/claims", {"key": "two"}, headers=allowed).status, 503)

    def without_store(self):
        """A record that somebody damaged; a file that is another one, for claims of before the server's start."""
        self.use(self.claim("damaged"), "complete")
        claims = {word: self.claim(f"away {word}", request_id=f"away {word}".ljust(16)) for word in BODIES}
        self.restart()
        self.edit("UPDATE records SET state = 77 WHERE key LIKE '%damaged'")
        self.assertEqual(self.begin("damaged").status, 500)
        self.assertEqual(self.look("damaged").status, 500)
        self.path("once.db").rename(self.path("away.db"))
        self.path("once.db").write_bytes(b"")
        for word, claim in claims.items():
            self.assertEqual(self.use(claim, word).status, 503)
        self.assertEqual(self.begin("away").status, 503)
        self.assertEqual(self.look("away").status, 503)
        self.path("away.db").rename(self.path("once.db"))

    def at_the_end(self):
        holder = self.claim("last")
        client = serve_test.Client(self.socket)
        client.request("POST", "/v1/claims", json.dumps({"scope": "orders", "key": "last", "wait_ms": serve_test.LEASE_MS}),
                       {"Content-Type": "application/json"})
        self.begin("last")  # The other one is read before.
        self.process.terminate()
        answer = client.getresponse()
        self.exchanges.append(openapi.Exchange("POST", "/v1/claims", {}, None, answer.status,
                                               {name.lower(): value for name, value in answer.getheaders()}, answer.read()))
        client.close()
        self.assertEqual(self.process.wait(), 0)
        return holder

    def small_records(self):
        """A store whose records have 400 KB."""
        fake = subprocess.Popen([FAKE, "--until-eof"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(fake.communicate)
        self.env |= {"ONCE_STORE": "dynamodb://jobs", "AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "x",
                     "AWS_SECRET_ACCESS_KEY": "x", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                     "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": fake.stdout.readline().strip()}
        made = self.once("table", "create")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.serve()
        got = self.use(self.claim("small"), "steps/one", b"x" * 1_000_000)
        self.assertEqual((got.status, got.headers["content-type"]), (413, "application/problem+json"))
        lost = self.claim("large", lease_ms=300)  # Silent.
        wait_until(lambda: (begun := self.begin("large")).status == 201 and
                   self.use(json.loads(begun.content)["claim"], "complete", os.urandom(1_000_000)).status == 200, "it is lost")
        self.each(lost, 410)
        self.assertEqual(self.begin("large").status, 410)
        self.assertEqual(self.look("large").status, 410)

    def test_the_server_and_the_description_are_one(self):
        openapi.check_itself(DESCRIPTION)
        self.whole_begins()
        self.finishes()
        self.lost_ones()
        self.in_sessions()
        self.mistakes(self.claim("mistakes"))
        self.without_token(self.claim("no token"))
        self.without_store()
        self.restart()
        self.at_the_end()
        self.small_records()
        served = [json.loads(one.content) for one in self.exchanges
                  if (one.target, one.method, one.status) == ("/v1/openapi.json", "GET", 200)]
        self.assertEqual(served, [DESCRIPTION])
        self.assertEqual(sorted(Comparison(DESCRIPTION, self.exchanges, NOT_MET_HERE).found), [])
        for name, plant in PLANTED.items():
            with self.subTest(name):
                planted = copy.deepcopy(DESCRIPTION)
                plant(planted)
                self.assertNotEqual(planted, DESCRIPTION)
                self.assertTrue(Comparison(planted, self.exchanges, NOT_MET_HERE).found)


def schema(description, name):
    return description["components"]["schemas"][name]


def answers(description, path, method="post"):
    return description["paths"][path][method]["responses"]


PLANTED = {
    "a path too many": lambda d: d["paths"].update({"/v1/burn": d["paths"]["/v1/version"]}),
    "a path too few": lambda d: d["paths"].pop("/v1/claims/{claim}/hold"),
    "a method too many": lambda d: d["paths"]["/v1/claims"].update(put=d["paths"]["/v1/claims"]["post"]),
    "a status too many": lambda d: answers(d, "/v1/claims").update({"429": {"$ref": "#/components/responses/BadRequest"}}),
    "a status too few": lambda d: answers(d, "/v1/claims/{claim}/renew").pop("410"),
    "a header too few": lambda d: d["components"]["responses"]["Recorded"]["headers"].pop("Once-Attempt"),
    "a member too many in a body": lambda d: schema(d, "Begin")["properties"].update(tenant={"type": "string"}),
    "a member too few in a body": lambda d: schema(d, "Begin")["properties"].pop("derive"),
    "a member too many in an answer": lambda d: schema(d, "Claimed")["properties"].update(owner={"type": "string"}),
    "a member too few in an answer": lambda d: schema(d, "Failed")["properties"].pop("content_type"),
    "a verdict too few": lambda d: schema(d, "Claimed")["properties"]["verdict"]["enum"].remove("take_over"),
    "a problem too many": lambda d: schema(d, "Over")["properties"]["type"]["enum"].append("urn:once:problem:late"),
    "a problem too few": lambda d: schema(d, "Over")["properties"]["type"]["enum"].remove("urn:once:problem:claim-lost"),
}


if __name__ == "__main__":
    FAKE = sys.argv.pop(2)
    harness.main()
