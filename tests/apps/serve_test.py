"""serve_test.py ONCE: `once serve` from outside: claims over HTTP, by clients that retry, vanish and outlive the server."""
import base64
import concurrent.futures
import http.client
import json
import os
import pathlib
import resource
import signal
import socket
import threading
import urllib.parse
import uuid

import harness
from harness import Case, wait_until

LEASE_MS = 60_000  # Longer than any test.


class Client(http.client.HTTPConnection):
    """Speaks to a Unix socket."""

    def __init__(self, path):
        super().__init__("once", timeout=harness.DEADLINE_S)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self.path)
        except OSError:
            self.close()
            raise


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()
        self.answer = response.headers["Once-Answer"]

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def problem(self):
        return self.status, self.json["type"].removeprefix("urn:once:problem:")


class ServeCase(Case):
    def setUp(self):
        super().setUp()
        self.socket = self.path("s")
        self.serve()

    def serve(self, *arguments):
        self.process = self.start("serve", "--listen", f"unix:{self.socket}", "--log", "none", *arguments)
        line = self.process.stderr.readline().decode()
        self.assertEqual(line, f"once: listening on unix:{self.socket}\n")

    def restart(self):
        self.process.kill()
        self.process.wait()
        self.serve()

    def ask(self, method, path, body=None, content_type="application/json", client=None):
        own = client or Client(self.socket)
        if isinstance(body, dict):
            body = json.dumps(body)
        try:
            own.request(method, path, body, {"Content-Type": content_type} if body is not None else {})
            return Answer(own.getresponse())
        finally:
            if client is None:
                own.close()

    def begin(self, key, **members):
        return self.ask("POST", "/v1/claims", {"scope": "orders", "key": key, "lease_ms": LEASE_MS, **members})

    def claim(self, key, **members):
        got = self.begin(key, **members)
        self.assertEqual((got.status, got.answer), (201, "claimed"), got.body)
        return got.json

    def use(self, claim, word, body=None, content_type="application/json"):
        method = "PUT" if word.startswith("steps/") else "POST"
        return self.ask(method, f"/v1/claims/{claim['claim']}/{word}", body, content_type)

    def expect(self, got, answer):
        self.assertEqual((got.status, got.answer), (200, answer), got.body)
        return got

    def look(self, key, **more):
        return self.ask("GET", "/v1/claims?" + urllib.parse.urlencode({"scope": "orders", "key": key, **more}))

    def record(self, key):
        return self.show(key, "--scope", "orders")


class Claims(ServeCase):
    def test_a_result_is_replayed_byte_by_byte(self):
        claim = self.claim("a", derive=["stripe"])
        self.assertEqual((claim["attempt"], claim["verdict"], claim["steps"]), (1, "execute", {}))
        self.assertGreater(claim["valid_for_ms"], 0)
        self.assertRegex(claim["derived_keys"]["stripe"], "^[0-9a-f]{64}$")
        self.expect(self.use(claim, "complete", b"\0\xff<b>", "image/png"), "recorded")
        replay = self.expect(self.begin("a"), "replayed")
        self.assertEqual((replay.body, replay.headers["Content-Type"], replay.headers["Once-Attempt"]), (b"\0\xff<b>", "image/png", "1"))

    def test_a_large_result_is_replayed(self):
        large = os.urandom(1_500_000)
        self.expect(self.use(self.claim("a"), "complete", large, "application/zip"), "recorded")
        self.assertEqual(self.expect(self.begin("a"), "replayed").body, large)
        encoded = base64.b64encode(large[:1_000_000]).decode()
        self.expect(self.use(self.claim("b"), "fail", {"code": "x", "result": encoded}), "recorded")
        self.assertEqual(self.expect(self.begin("b"), "failed").json["result"], encoded)

    def test_a_second_call_conflicts_or_waits_for_the_result(self):
        claim = self.claim("a")
        conflict = self.begin("a")
        self.assertEqual(conflict.problem, (409, "in-progress"))
        self.assertGreaterEqual(int(conflict.headers["Retry-After"]), 1)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(self.begin, "a", wait_ms=LEASE_MS)
            self.expect(self.use(claim, "complete", b"done", "text/plain"), "recorded")
            self.assertEqual(waiting.result().body, b"done")

    def test_another_payload_is_told(self):
        self.claim("a", payload_json='{"cents": 100, "to": "bob"}')
        self.assertEqual(self.begin("a", payload_json='{"to":"bob","cents":1e2}').problem, (409, "in-progress"))
        self.assertEqual(self.begin("a", payload_json='{"to":"bob","cents":101}').problem, (422, "key-reused"))
        self.claim("b", fingerprint="x")
        self.assertEqual(self.begin("b", fingerprint="y").problem, (422, "key-reused"))

    def test_what_people_want_to_know_is_told(self):
        claim = self.claim("a", request_id="r" * 16, holder="worker é 100%", expected_ms=1)
        wait_until(lambda: self.begin("a").json["expected_in_ms"] < 0, "it is overdue")
        for problem in (self.begin("a"), self.begin("a", fingerprint="x", holder="other")):
            self.assertEqual(problem.json["holder"], "worker é 100%")
        self.expect(self.use(claim, "complete", b"x"), "recorded")
        done = self.expect(self.begin("a"), "replayed")
        self.assertEqual(urllib.parse.unquote(done.headers["Once-Holder"]), "worker é 100%")
        self.assertTrue(done.headers["Once-Finished-At"].endswith("Z"))
        self.expect(self.use(self.claim("b"), "hold", {"reason": "no answer"}), "recorded")
        self.assertEqual(self.begin("b").json["reason"], "no answer")
        Case.expect(self, self.once("run", "--key", "c", "--scope", "orders", "--", "true"), 0)
        reused = self.begin("c", fingerprint="x").json
        self.assertIn("once run true", reused["holder"])
        self.assertEqual(reused["standing"], "completed")

    def test_a_finish_says_what_is_stored(self):
        for word, body, state in (("complete", b"x", "completed"), ("fail", {"code": "x"}, "failed"), ("hold", {"reason": "r"}, "unknown"),
                                  ("release", None, "none")):
            claim = self.claim(word)
            for _ in range(2):
                self.assertEqual(self.expect(self.use(claim, word, body), "recorded").json, {"answer": "recorded", "state": state})
        held = self.claim("held", on_lapse="hold")
        self.assertEqual(held["on_lapse"], "hold")
        self.assertEqual(self.expect(self.use(held, "release"), "recorded").json["state"], "in_progress")
        self.assertEqual(self.claim("held")["on_lapse"], "hold", "it belongs to the record")
        step = self.expect(self.use(self.claim("step"), "steps/one", b"1"), "recorded").json
        self.assertTrue(0 < step["valid_for_ms"] <= LEASE_MS)

    def test_a_result_may_be_kept_as_failures_are(self):
        claim = self.claim("a", retention_ms=LEASE_MS, failure_retention_ms="never")
        self.expect(self.use(claim, "complete?kept_as=failure", b"declined", "text/plain"), "recorded")
        self.assertIsNone(self.record("a").get("expires_at"))
        self.assertEqual(self.expect(self.begin("a"), "replayed").body, b"declined")
        for path in ("complete?kept_as=success", "hold?kept_as=failure", "steps/complete?kept_as=failure"):
            self.assertEqual(self.use(self.claim(path), path, {"reason": "r"}).problem, (400, "bad-request"))

    def test_a_fingerprint_may_be_given_as_bytes(self):
        Case.expect(self, self.once("run", "--key", "a", "--scope", "orders", "--", "true"), 0)
        stored = self.record("a")["fingerprint"]
        self.expect(self.begin("a", fingerprint_hex=stored), "replayed")
        self.expect(self.look("a", fingerprint_hex=stored), "replayed")
        self.assertEqual(self.begin("a", fingerprint_hex="00").problem, (422, "key-reused"))
        for members in ({"fingerprint_hex": ""}, {"fingerprint_hex": "0"}, {"fingerprint_hex": "zz"}, {"fingerprint_hex": "00" * 65},
                        {"fingerprint_hex": "00", "fingerprint": "x"}):
            self.assertEqual(self.begin("b", **members).problem, (400, "bad-request"), members)

    def test_a_failure_is_replayed_unless_it_is_to_be_tried_again(self):
        claim = self.claim("a")
        self.expect(self.use(claim, "fail", {"code": "declined", "message": "no money", "result": "aGk=", "content_type": "text/plain"}), "recorded")
        told = self.expect(self.begin("a"), "failed").json
        self.assertEqual((told["code"], told["message"], base64.b64decode(told["result"])), ("declined", "no money", b"hi"))
        self.assertEqual(self.claim("a", retry_failures=True)["verdict"], "retry")

    def test_a_released_claim_is_free_and_a_held_one_waits_for_an_operator(self):
        self.expect(self.use(self.claim("a"), "release", {"reason": "not today"}), "recorded")
        self.claim("a")
        held = self.claim("b")
        self.expect(self.use(held, "hold", {"reason": "who knows"}), "recorded")
        self.assertEqual(self.begin("b").problem, (409, "outcome-unknown"))
        self.expect(self.use(held, "hold", {"reason": "who knows"}), "recorded")
        self.assertEqual(self.use(held, "hold", {"reason": "I know"}).problem, (409, "already-finished"))

    def test_once_run_and_this_server_share_keys(self):
        done = self.once("run", "--scope", "orders", "--key", "a", "--", "echo", "ran")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.begin("a").status, 200)

    def test_a_renewal_says_for_how_long_the_claim_is_valid(self):
        claim = self.claim("a")
        got = self.expect(self.use(claim, "renew", {"note": "half done"}), "renewed")
        self.assertGreater(got.json["valid_for_ms"], 0)
        harness.wait_until(lambda: self.record("a")["note"] == "half done", "the note is written")

    def test_a_connection_serves_many_requests(self):
        client = Client(self.socket)
        for i in range(20):
            got = self.ask("POST", "/v1/claims", {"key": f"k{i}"}, client=client)
            self.assertEqual(got.status, 201)
        self.assertIsNotNone(client.sock)
        client.close()


class Looks(ServeCase):
    def test_a_look_shows_the_state_and_claims_nothing(self):
        self.assertEqual(self.look("a").problem, (404, "no-record"))
        self.assertEqual(json.loads(self.once("ls", "--json").stdout), [])
        claim = self.claim("a")
        self.expect(self.use(claim, "renew", {"note": "half done"}), "renewed")
        harness.wait_until(lambda: self.record("a")["note"] == "half done", "the note is written")
        writes = self.writes("a", "--scope", "orders")
        seen = self.expect(self.look("a"), "seen").json
        self.assertTrue(0 < seen.pop("retry_after_ms") <= LEASE_MS)
        self.assertEqual(seen, {"answer": "seen", "standing": "running", "attempt": 1, "holder": "a client of once serve", "note": "half done"})
        self.assertEqual(self.writes("a", "--scope", "orders"), writes)
        self.expect(self.use(claim, "complete", b"\0\xff", "image/png"), "recorded")
        done = self.expect(self.look("a"), "replayed")
        self.assertEqual((done.body, done.headers["Content-Type"], done.headers["Once-Attempt"]), (b"\0\xff", "image/png", "1"))

    def test_a_look_shows_how_a_claim_was_given_up(self):
        released = self.claim("released")
        self.expect(self.use(released, "steps/one", b"1"), "recorded")  # Otherwise nothing would be left.
        self.expect(self.use(released, "release"), "recorded")
        self.expect(self.use(self.claim("held"), "hold", {"reason": "r"}), "recorded")
        self.expect(self.use(self.claim("failed"), "fail", {"code": "x", "result": "aGk="}), "recorded")
        self.claim("lapsed")
        self.process.kill()
        self.process.wait()
        self.edit("UPDATE records SET lease_until_ms = 1 WHERE key LIKE '%lapsed'")
        self.serve()
        for key, standing in (("released", "released"), ("held", "unknown"), ("lapsed", "lapsed")):
            seen = self.expect(self.look(key), "seen").json
            self.assertEqual((seen["standing"], seen["attempt"], seen.get("reason")), (standing, 1, "r" if key == "held" else None))
        self.assertEqual(self.expect(self.look("failed"), "failed").json["result"], "aGk=")
        self.assertEqual(self.record("lapsed")["attempt"], 1)

    def test_a_look_finds_large_results(self):
        for key, large in (("offloaded", os.urandom(1_500_000)), ("compressed", b"x" * 1_500_000)):
            self.expect(self.use(self.claim(key), "complete", large, "text/plain"), "recorded")
            self.assertEqual(self.expect(self.look(key), "replayed").body, large)
        self.path("once.db.results").rename(self.path("away"))
        self.assertEqual(self.look("offloaded").problem, (500, "record-unreadable"))

    def test_a_look_does_not_return_what_belongs_to_another_payload(self):
        self.expect(self.use(self.claim("a", payload_json='{"cents": 1}'), "complete", b"x"), "recorded")
        self.assertEqual(self.look("a", payload_json='{"cents": 2}').problem, (422, "key-reused"))
        self.expect(self.look("a", payload_json='{"cents":1.0}'), "replayed")
        self.claim("b", fingerprint="one")
        self.assertEqual(self.look("b", fingerprint="two").problem, (422, "key-reused"))

    def test_a_look_that_says_nothing_is_refused(self):
        for query, word in (("", "key"), ("key=", "key"), ("key=null", "key"), ("key=a&kez=1", "kez"), ("key=a&fingerprint=", "fingerprint"),
                            ("key=a&key=b", "key"), (f"key={'a' * 1025}", "key")):
            got = self.ask("GET", f"/v1/claims?{query}")
            self.assertEqual(got.problem, (400, "bad-request"))
            self.assertIn(word, got.json["detail"])
        self.assertEqual(self.ask("HEAD", "/v1/claims?key=a").status, 404)


class Session:
    """A stream that says that its client lives."""

    def __init__(self, path):
        self.client = Client(path)
        self.client.request("POST", "/v1/sessions")
        self.answer = self.client.getresponse()
        self.name = self.next("open")["session"]

    def next(self, word):
        """The next event that is news."""
        while True:
            event = json.loads(self.answer.readline())
            if event["event"] != "alive":
                break
        if event["event"] != word:
            raise AssertionError(f"{event} in place of {word}")
        return event

    def close(self):
        self.answer.close()
        self.client.close()


class Sessions(ServeCase):
    def open_session(self):
        session = Session(self.socket)
        self.addCleanup(session.close)
        return session

    def ask(self, method, path, body=None, content_type="application/json", client=None, session=None):
        own = client or Client(self.socket)
        try:
            headers = {"Content-Type": content_type} if body is not None else {}
            own.request(method, path, json.dumps(body) if isinstance(body, dict) else body,
                        headers | ({"Once-Claim-Session": session.name} if session else {}))
            return Answer(own.getresponse())
        finally:
            if client is None:
                own.close()

    def claim_in(self, session, key, **members):
        got = self.ask("POST", "/v1/claims", {"scope": "orders", "key": key, "lease_ms": LEASE_MS, **members}, session=session)
        self.assertEqual(got.status, 201, got.body)
        return got.json

    def use_in(self, session, claim, word, body=None):
        return self.ask("POST", f"/v1/claims/{claim['claim']}/{word}", body, session=session)

    def metric(self, name):
        page = self.ask("GET", "/metrics").body.decode()
        return next(int(line.split()[1]) for line in page.splitlines() if line.startswith(f"{name} "))

    def test_a_session_speaks_for_its_claims(self):
        session = self.open_session()
        claim = self.claim_in(session, "a", lease_ms=500)
        self.claim("silent", lease_ms=500)
        wait_until(lambda: self.metric("once_serve_claims_dropped_total") == 1, "the other one was silent for longer")
        self.assertEqual((self.metric("once_serve_claims_open"), self.metric("once_serve_sessions_open")), (1, 1))
        self.expect(self.use_in(session, claim, "complete", b"x"), "recorded")
        session.close()
        wait_until(lambda: self.metric("once_serve_sessions_open") == 0, "its end is seen")

    def test_a_closed_sessions_claims_lapse_and_are_never_released(self):
        session = self.open_session()
        claim = self.claim_in(session, "a")
        session.close()
        wait_until(lambda: self.metric("once_serve_claims_dropped_total") == 1, "it is not renewed any more")
        self.assertEqual(self.begin("a").problem, (409, "in-progress"))
        self.assertEqual(self.use_in(session, claim, "renew").problem, (409, "no-session"))
        self.expect(self.use_in(self.open_session(), claim, "complete", b"x"), "recorded")
        self.assertEqual(self.record("a")["attempt"], 1)

    def test_a_session_ends_with_its_process_though_a_child_has_the_connection(self):
        child, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            session = Session(self.socket)
            if os.fork() == 0:
                signal.pause()
            os.write(told, session.name.encode())
            signal.pause()
        name = os.read(child, 100).decode()
        self.addCleanup(os.killpg, pid, signal.SIGKILL)
        self.assertEqual(self.metric("once_serve_sessions_open"), 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        wait_until(lambda: self.metric("once_serve_sessions_open") == 0, f"{name} has ended")

    def test_a_session_whose_process_cannot_be_watched_is_refused(self):
        if os.environ.get("ONCE_SANITIZE"):
            return  # The one for undefined behaviour wants a pipe to look at an object's type.
        client = Client(self.socket)
        self.addCleanup(client.close)
        self.assertEqual(self.ask("GET", "/v1/version", client=client).status, 200)  # It has its connection.
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (3, hard))
        got = self.ask("POST", "/v1/sessions", client=client)
        self.assertEqual((got.problem, got.headers["Retry-After"]), ((503, "too-many-sessions"), "1"))
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        self.open_session()

    def test_a_newer_session_takes_a_claim_away(self):
        old, new = self.open_session(), self.open_session()
        claim = self.claim_in(old, "a")
        self.expect(self.use_in(old, claim, "renew"), "renewed")
        self.assertEqual(self.use(claim, "complete", b"x").problem, (409, "claim-lost"))  # In none.
        self.expect(self.use_in(new, claim, "renew"), "renewed")
        self.assertEqual(old.next("lost")["claim"], claim["claim"])
        for word, body in (("renew", None), ("complete", b"x"), ("release", None)):
            self.assertEqual(self.use_in(old, claim, word, body).problem, (409, "claim-lost"))
        self.expect(self.use_in(new, claim, "complete", b"y"), "recorded")
        self.assertEqual(self.begin("a").body, b"y")

    def test_who_was_displaced_stays_so_when_the_newer_session_has_ended(self):
        old, new = self.open_session(), self.open_session()
        claim = self.claim_in(old, "a")
        self.expect(self.use_in(new, claim, "renew"), "renewed")
        new.close()
        wait_until(lambda: self.metric("once_serve_claims_dropped_total") == 1, "it is not renewed any more")
        self.assertEqual(self.use_in(old, claim, "complete", b"x").problem, (409, "claim-lost"))
        self.expect(self.use_in(self.open_session(), claim, "complete", b"y"), "recorded")

    def test_a_begin_that_is_repeated_in_a_newer_session_takes_the_claim_away(self):
        old, new = self.open_session(), self.open_session()
        claim = self.claim_in(old, "a", request_id="r" * 16)
        self.assertEqual(self.claim_in(new, "a", request_id="r" * 16)["claim"], claim["claim"])
        self.assertEqual(old.next("lost")["claim"], claim["claim"])
        body = {"scope": "orders", "key": "a", "lease_ms": LEASE_MS, "request_id": "r" * 16}
        self.assertEqual(self.ask("POST", "/v1/claims", body, session=old).problem, (409, "claim-lost"))
        self.expect(self.use_in(new, claim, "complete", b"x"), "recorded")

    def test_a_begin_that_waits_in_two_sessions_gives_the_claim_to_the_newer(self):
        holder = self.claim("a")
        old, new = self.open_session(), self.open_session()
        body = {"scope": "orders", "key": "a", "request_id": "r" * 16, "lease_ms": 500, "wait_ms": LEASE_MS}
        clients = [Client(self.socket), Client(self.socket)]
        for client, session in zip(clients, (old, new), strict=True):
            self.addCleanup(client.close)
            client.request("POST", "/v1/claims", json.dumps(body),
                           {"Content-Type": "application/json", "Once-Claim-Session": session.name})
            self.metric("once_serve_claims_open")  # A round trip: the server has the request.
        old.close()
        wait_until(lambda: self.metric("once_serve_sessions_open") == 1, "its end is seen")
        self.expect(self.use(holder, "release"), "recorded")
        claim = Answer(clients[1].getresponse()).json
        self.claim("silent", lease_ms=2000)
        wait_until(lambda: self.begin("silent").status == 201, "longer than the other lease")
        self.assertEqual(self.begin("a").problem, (409, "in-progress"))
        self.expect(self.use_in(new, claim, "complete", b"x"), "recorded")

    def test_a_session_is_told_what_an_operator_did(self):
        session = self.open_session()
        claim = self.claim_in(session, "a", lease_ms=3000)
        for arguments in (["release", "--force", "--reason", "by hand"], ["run", "--", "echo", "other"]):
            done = self.once(arguments[0], "--scope", "orders", "--key", "a", *arguments[1:])
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(session.next("lost")["claim"], claim["claim"])

    def test_a_claim_that_another_server_has_is_not_lost(self):
        session = self.open_session()
        claim = self.claim_in(session, "a", lease_ms=3000)
        other = self.path("t")
        second = self.start("serve", "--listen", f"unix:{other}", "--log", "none")
        second.stderr.readline()
        client = Client(other)
        self.expect(self.ask("POST", f"/v1/claims/{claim['claim']}/renew", client=client), "renewed")
        client.close()
        writes = self.writes("a", "--scope", "orders")
        # This server's next renewal is refused. It reads the record, and takes the claim up again.
        wait_until(lambda: self.writes("a", "--scope", "orders") > writes + 1, "it is renewed by either")
        self.expect(self.use_in(session, claim, "complete", b"x"), "recorded")
        self.assertEqual(self.record("a")["attempt"], 1)

    def test_sessions_end_with_the_server_and_claims_go_on(self):
        session = self.open_session()
        claim = self.claim_in(session, "a", request_id="r" * 16)
        self.restart()
        with self.assertRaises(http.client.IncompleteRead):
            session.answer.read()
        self.assertEqual(self.use_in(session, claim, "renew").problem, (409, "no-session"))
        again = self.open_session()
        self.assertEqual(self.claim_in(again, "a", request_id="r" * 16)["claim"], claim["claim"])
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(), 0)
        self.assertEqual(again.answer.read(), b"")
        self.serve()
        self.expect(self.use_in(self.open_session(), claim, "complete", b"x"), "recorded")


class Steps(ServeCase):
    def test_a_step_is_kept_once_and_found_by_the_next_attempt(self):
        claim = self.claim("a")
        for _ in range(2):
            self.expect(self.use(claim, "steps/pdf%20made", b"\0x", "application/octet-stream"), "recorded")
        self.assertEqual(self.use(claim, "steps/pdf%20made", b"other").problem, (409, "already-finished"))
        self.process.kill()
        self.process.wait()
        self.lapse()
        self.serve()
        again = self.claim("a")
        self.assertEqual((again["attempt"], again["verdict"]), (2, "take_over"))
        self.assertEqual(base64.b64decode(again["steps"]["pdf made"]), b"\0x")


class Retries(ServeCase):
    def test_a_finish_is_repeated_until_it_is_answered(self):
        claim = self.claim("a")
        for _ in range(3):
            self.expect(self.use(claim, "complete", b"one", "text/plain"), "recorded")
        self.assertEqual(self.use(claim, "complete", b"two", "text/plain").problem, (409, "already-finished"))
        self.assertEqual(self.use(claim, "fail", {"code": "x"}).problem, (409, "already-finished"))
        failed = self.claim("c")
        for _ in range(2):
            self.expect(self.use(failed, "fail", {"code": "x", "message": "one"}), "recorded")
        self.assertEqual(self.use(failed, "fail", {"code": "x", "message": "two"}).problem, (409, "already-finished"))
        self.assertEqual(self.begin("a").body, b"one")
        released = self.claim("b")
        for _ in range(2):
            self.expect(self.use(released, "release"), "recorded")

    def test_a_claim_survives_the_servers_death(self):
        claim = self.claim("a")
        self.restart()
        self.assertEqual(self.begin("a").problem, (409, "in-progress"))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:  # Which take the claim up together.
            for got in pool.map(lambda _: self.use(claim, "complete", b"x", "text/plain"), range(8)):
                self.expect(got, "recorded")
        self.assertEqual((self.record("a")["attempt"], self.begin("a").body), (1, b"x"))

    def test_a_begin_is_repeated_until_it_is_answered(self):
        first = self.claim("a", request_id="r" * 16, wait_ms=LEASE_MS)
        self.assertEqual(self.claim("a", request_id="r" * 16, wait_ms=LEASE_MS)["claim"], first["claim"])
        self.assertEqual(self.begin("a", request_id="s" * 16).problem, (409, "in-progress"))
        self.restart()
        again = self.claim("a", request_id="r" * 16, wait_ms=LEASE_MS)
        self.assertEqual((again["claim"], again["token"], again["verdict"]), (first["claim"], first["token"], "resume"))
        self.assertEqual(self.begin("a", request_id="s" * 16).problem, (409, "in-progress"))
        self.expect(self.use(again, "complete", b"x"), "recorded")
        self.expect(self.begin("a", request_id="r" * 16, wait_ms=LEASE_MS), "replayed")

    def test_the_holders_text_survives_the_servers_death(self):
        for key, more in (("a", {}), ("b", {"request_id": "r" * 16})):
            claim = self.claim(key, holder="worker 7 of pay", **more)
            self.restart()
            self.expect(self.use(claim, "renew"), "renewed")
            self.assertRegex(self.record(key)["holder"], f":{self.process.pid} once serve (request:[0-9a-f]{{32}} )?worker 7 of pay$")

    def test_a_begin_is_repeatable_however_often_the_server_dies(self):
        first = self.claim("a", request_id="r" * 16)
        for _ in range(2):
            self.restart()
            self.assertEqual(self.claim("a", request_id="r" * 16)["claim"], first["claim"])
            self.restart()
            self.expect(self.use(first, "renew"), "renewed")

    def test_a_type_without_a_result_is_refused(self):
        got = self.use(self.claim("a"), "fail", {"code": "x", "content_type": "text/plain"})
        self.assertEqual(got.problem, (400, "bad-request"))
        self.assertIn("'result', which is missing", got.json["detail"])

    def test_a_request_id_is_of_one_request(self):
        self.claim("a", request_id="r" * 16, fingerprint="one")
        self.assertEqual(self.begin("a", request_id="r" * 16, fingerprint="two").problem, (422, "key-reused"))
        self.assertEqual(self.begin("a", request_id="r" * 16, fingerprint="one", wait_ms=1).problem, (409, "in-progress"))

    def test_who_hangs_up_does_not_release_what_he_has(self):
        claim = self.claim("a", request_id="r" * 16)
        self.restart()
        client = Client(self.socket)
        wanted = {"scope": "orders", "key": "a", "lease_ms": LEASE_MS, "request_id": "r" * 16}
        client.request("POST", "/v1/claims", json.dumps(wanted), {"Content-Type": "application/json"})
        client.close()
        self.assertEqual(self.begin("a").problem, (409, "in-progress"))
        self.expect(self.use(claim, "complete", b"x"), "recorded")
        self.assertEqual(self.record("a")["attempt"], 1)

    def test_two_servers_share_a_claim(self):
        other = self.path("t")
        second = self.start("serve", "--listen", f"unix:{other}", "--log", "none")
        second.stderr.readline()
        claim = self.claim("a", request_id="r" * 16)

        def at(path, word, body=None):
            client = Client(path)
            try:
                return self.ask("POST", f"/v1/claims/{claim['claim']}/{word}", body, "text/plain", client)
            finally:
                client.close()

        for _ in range(4):
            for path in (self.socket, other):
                self.expect(at(path, "renew"), "renewed")
        self.expect(at(other, "renew"), "renewed")
        self.expect(at(self.socket, "complete", b"x"), "recorded")
        self.expect(at(other, "complete", b"x"), "recorded")

    def test_begins_of_one_name_together_are_one(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            ids = {got["claim"] for got in pool.map(lambda _: self.claim("a", request_id="r" * 16), range(8))}
        self.assertEqual(len(ids), 1)

    def test_who_hangs_up_while_he_waits_leaves_no_claim(self):
        holder = self.claim("a")
        self.wait_for("a").close()
        self.expect(self.use(holder, "release"), "recorded")
        claim = harness.wait_until(lambda: (got := self.begin("a")).status == 201 and got.json, "the key is free again")
        self.assertEqual(claim["attempt"], 1)

    def test_a_silent_clients_claim_lapses(self):
        claim = self.claim("a", lease_ms=300)
        other = harness.wait_until(lambda: (got := self.begin("a")).status == 201 and got.json, "it is taken over")
        self.assertEqual(other["attempt"], 2)
        self.assertEqual(self.use(claim, "complete", b"late").problem, (409, "claim-lost"))
        self.expect(self.use(other, "complete", b"second", "text/plain"), "recorded")
        late = self.expect(self.use(claim, "complete", b"late"), "superseded")
        self.assertEqual(late.body, b"second")

    def test_a_silent_clients_claim_lapses_though_its_connection_is_kept(self):
        client = Client(self.socket)
        wanted = {"scope": "orders", "key": "a", "lease_ms": 300}
        self.assertEqual(self.ask("POST", "/v1/claims", wanted, client=client).status, 201)
        other = harness.wait_until(lambda: (got := self.begin("a")).status == 201 and got.json, "it is taken over")
        self.assertEqual(other["attempt"], 2)
        client.close()

    def test_a_begin_that_is_repeated_after_its_end_looks_at_the_store(self):
        claim = self.claim("a", request_id="r" * 16)
        self.expect(self.use(claim, "renew"), "renewed")
        for arguments in (["release", "--force", "--reason", "by hand"], ["run", "--", "echo", "other"]):
            done = self.once(arguments[0], "--scope", "orders", "--key", "a", *arguments[1:])
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.begin("a", request_id="r" * 16).answer, "replayed")

    def test_the_end_answers_who_waits_and_keeps_claims(self):
        claim = self.claim("a")
        waiter = self.wait_for("a")
        self.process.send_signal(signal.SIGTERM)
        got = Answer(waiter.getresponse())
        waiter.close()
        self.assertEqual(got.problem, (503, "stopping"))
        self.assertEqual(self.process.wait(), 0)
        self.assertFalse(self.socket.exists())
        self.serve()
        self.expect(self.use(claim, "complete", b"x"), "recorded")

    def wait_for(self, key):
        """A client that waits for another one's claim, seen by the server."""
        client = Client(self.socket)
        wanted = {"scope": "orders", "key": key, "lease_ms": LEASE_MS, "wait_ms": LEASE_MS}
        client.request("POST", "/v1/claims", json.dumps(wanted), {"Content-Type": "application/json"})
        # Its request is read before this one is answered.
        self.assertEqual(self.begin(key).problem, (409, "in-progress"))
        return client


class Storm(ServeCase):
    """Clients that repeat each request until it is answered, and a server that is killed under them."""
    KEYS = 60
    CLIENTS = 6
    KILLS = 6

    def repeat(self, method, path, body, content_type="application/json"):
        while True:
            try:
                got = self.ask(method, path, body, content_type)
            except (OSError, http.client.HTTPException):
                continue
            if got.status != 503:
                return got

    def operate(self, key):
        """Returns the result, as one of the clients that all want it."""
        name = uuid.uuid4().hex
        wanted = {"key": key, "lease_ms": LEASE_MS, "wait_ms": LEASE_MS, "request_id": name}
        got = self.repeat("POST", "/v1/claims", wanted)
        if got.status != 201:
            self.expect(got, "replayed")
            return got.body
        with self.lock:
            self.ran.append(key)
        path = f"/v1/claims/{got.json['claim']}"
        self.expect(self.repeat("PUT", f"{path}/steps/half", name.encode()), "recorded")
        self.expect(self.repeat("POST", f"{path}/complete", name.encode(), "text/plain"), "recorded")
        with self.lock:
            self.completed += 1
        return name.encode()

    def test_each_operation_runs_once_and_has_one_result(self):
        self.lock, self.ran, self.completed = threading.Lock(), [], 0
        keys = [f"k{i}" for i in range(self.KEYS)]
        with concurrent.futures.ThreadPoolExecutor(self.CLIENTS) as pool:
            pending = [(key, pool.submit(self.operate, key)) for key in keys for _ in range(2)]
            for kill in range(self.KILLS):
                due = (kill + 1) * self.KEYS // (self.KILLS + 1)
                harness.wait_until(lambda due=due: self.completed >= due, f"{due} operations are complete")
                self.restart()
            results = {}
            for key, result in pending:
                results.setdefault(key, set()).add(result.result())
        self.assertEqual(sorted(self.ran), sorted(keys))
        self.assertEqual({len(told) for told in results.values()}, {1})


class Refusals(ServeCase):
    def test_a_mistake_is_told_and_claims_nothing(self):
        for body, word in [
            (b"", "JSON"), (b"[]", "JSON"), (b'{"key": "a", "kez": 1}', "kez"), (b'{"key": 1}', "key"), (b"{}", "key"),
            (b'{"key": ""}', "key"), (b'{"key": "a", "lease_ms": 1}', "lease"), (b'{"key": "a", "wait_ms": 600001}', "wait_ms"),
            (b'{"key": "a", "fingerprint": ""}', "fingerprint"), (b'{"key": "a", "payload_json": "{"}', "JSON"),
            (b'{"key": "a", "payload_json": "1", "fingerprint": "x"}', "fingerprint"),
            (b'{"key": "a", "on_lapse": "holds"}', "on_lapse"), (b'{"key": "a", "request_id": "short"}', "request_id"), (json.dumps({"key": "a", "holder": "x" * 256}).encode(), "holder"),
            (b'{"key": "a", "key": "b"}', "key"), (b'{"key": "undefined"}', "key"), (b'{"key": "a", "fingerprint": null}', "fingerprint"),
            (b'{"key": "a", "request_id": "00000000-0000-0000-0000-000000000000"}', "request_id"), (b'{"key": "a", "scope": null}', "scope"), (json.dumps({"key": "a" * 1025}).encode(), "key"),
        ]:
            with self.subTest(body=body[:40]):
                got = self.ask("POST", "/v1/claims", body)
                self.assertEqual(got.problem, (400, "bad-request"), got.body)
                self.assertIn(word, got.json["detail"])
        self.assertEqual(json.loads(self.once("ls", "--json").stdout), [])

    def test_a_result_that_is_too_large_is_refused_in_words(self):
        claim = self.claim("a")
        self.assertEqual(self.use(claim, "complete", b"x" * (2 * 1024 * 1024 + 1), "text/plain").status, 413)
        self.expect(self.use(claim, "complete", b"at s3://bucket/a", "text/plain"), "recorded")

    def test_a_client_that_sends_no_more_is_answered(self):
        client = Client(self.socket)
        client.connect()
        body = b'{"key": "a"}'
        client.sock.sendall(b"POST /v1/claims HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        client.sock.shutdown(socket.SHUT_WR)
        self.assertTrue(client.sock.recv(100).startswith(b"HTTP/1.1 201 "))
        client.close()

    def test_the_result_of_another_payload_is_not_told(self):
        claim = self.claim("a", lease_ms=300, fingerprint="one", retention_ms=1)
        harness.wait_until(lambda: (got := self.begin("a", fingerprint="two")).status == 201 and self.use(got.json, "complete", b"secret"),
                           "it has lapsed and expired")
        self.assertEqual(self.use(claim, "complete", b"late").problem, (409, "claim-lost"))

    def test_what_is_no_path_or_no_claim_is_told(self):
        claim = self.claim("a")["claim"]
        for method, path, status in [
            ("GET", "/v1/claims", 400), ("PUT", "/v1/claims", 405), ("POST", "/v1/claims/x", 404), ("POST", f"/v1/claims/{claim}/finish", 404),
            ("GET", f"/v1/claims/{claim}/renew", 405), ("POST", "/v1/claims/zz/renew", 400), ("POST", "/v1/claims/0199/renew", 400),
            ("POST", f"/v1/claims/{claim[:-2]}/steps/a", 405), ("PUT", f"/v1/claims/{claim}/steps/", 400),
            ("PUT", f"/v1/claims/{claim}/steps/%zz", 400), ("POST", "/v1/claims?key=a", 400), ("POST", "/v1/version", 405), ("GET", "/v1", 404),
        ]:
            with self.subTest(path=path[-20:]):
                self.assertEqual(self.ask(method, path, b"{}").status, status)
        self.assertEqual(self.ask("POST", "/v1/claims", b"{}", "text/plain").status, 415)
        self.assertEqual(self.ask("GET", "/v1/version").json["api"], 1)
        self.assertEqual(self.ask("POST", "/v1/sessions", b"{}").status, 400)

    def test_an_id_of_nobody_finds_nothing(self):
        claim = self.claim("a")
        forged = dict(claim, claim="01" + "00" * 16 + claim["claim"][34:])
        self.assertEqual(self.use(forged, "complete", b"x").problem, (409, "claim-lost"))
        self.assertEqual(self.record("a")["state"], "in_progress")

    def test_too_many_claims_are_refused_until_one_ends(self):
        self.process.kill()
        self.process.wait()
        self.serve("--max-claims", "1")
        claim = self.claim("a")
        got = self.begin("b")
        self.assertEqual((got.problem, got.headers["Retry-After"]), ((503, "too-many-claims"), "1"))
        self.assertEqual(self.begin("b", request_id="r" * 16).problem, (503, "too-many-claims"))
        self.expect(self.use(claim, "complete", b"x"), "recorded")
        self.claim("b", request_id="r" * 16)


class Addresses(Case):
    @staticmethod
    def ask(port, token, key="a"):
        """The status of the answer to a begin."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=harness.DEADLINE_S)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("POST", "/v1/claims", json.dumps({"key": key}), {"Content-Type": "application/json", **headers})
        status = Answer(connection.getresponse()).status
        connection.close()
        return status

    def test_a_loopback_address_needs_the_token(self):
        process = self.start("serve", "--listen", "0", "--log", "none")
        port = int(process.stderr.readline().split()[-1])
        token = pathlib.Path(process.stderr.readline().decode().rsplit(" ", 1)[1].strip()).read_text().strip()
        self.assertEqual(self.ask(port, None), 401)
        self.assertEqual(self.ask(port, "wrong-wrong-wrong"), 401)
        self.assertEqual(self.ask(port, token), 201)

    def test_a_token_is_replaced_without_a_restart(self):
        file = self.path("token")
        file.write_text("the-first-token-1\n")
        file.chmod(0o600)
        process = self.start("serve", "--listen", "0", "--log", "none", "--token-file", file)
        port = int(process.stderr.readline().split()[-1])
        self.assertEqual(self.ask(port, "the-first-token-1", "a"), 201)
        file.write_text("another-token-22\n")
        wait_until(lambda: self.ask(port, "another-token-22", "b") == 201, "the new token counts")
        self.assertEqual(self.ask(port, "the-first-token-1", "c"), 401)
        self.assertIn(b"read the token file again, as it has changed: ", process.stderr.readline())
        # What cannot be used leaves the last one.
        file.write_text("short\n")
        refused = concurrent.futures.ThreadPoolExecutor(1).submit(process.stderr.readline)
        wait_until(lambda: self.ask(port, "another-token-22", "b") != 401 and refused.done(), "the file is refused")
        self.assertIn(b"the tokens from before stay in force: the token file", refused.result())
        self.assertEqual(self.ask(port, "another-token-22", "d"), 201)

    def test_what_would_protect_nothing_is_refused(self):
        for arguments, word in [
            (["--listen", "0.0.0.0:80"], "loopback"), (["--store", "memory:", "--listen", f"unix:{self.dir}/s"], "memory"),
            (["--listen", f"unix:{self.dir}/s", "--listen-mode", "rw"], "octal"),
            (["--listen", f"unix:{self.dir}/s", "--token-file", "x"], "--token-file"),
            (["--listen", "0", "--listen-mode", "0660"], "--listen-mode"),
            (["--listen", f"unix:{self.dir}/s", "--listen-mode", "4755"], "--listen-mode"),
        ]:
            with self.subTest(arguments=arguments):
                self.expect(self.once("serve", *arguments), 64, stderr=word.encode())
        disabled = self.once("serve", "--listen", f"unix:{self.dir}/s", env=dict(self.env, ONCE_DISABLED="1"))
        self.expect(disabled, 64, stderr=b"ONCE_DISABLED")


if __name__ == "__main__":
    harness.main()
