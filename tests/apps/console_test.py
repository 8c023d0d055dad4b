"""console_test.py ONCE: `once console` from outside: who gets in, what a session may do, and what is noted."""
import concurrent.futures
import datetime
import http.client
import json
import os
import pathlib
import re
import signal
import sqlite3

import harness
from harness import Case

LINK = re.compile(r"^http://127\.0\.0\.1:(\d+)/console/#link=([0-9a-f]{32})\n$")
SAME = {"Sec-Fetch-Site": "same-origin"}


class ConsoleCase(Case):
    def setUp(self):
        super().setUp()
        self.once("run", "--key", "page", "--", "echo", "<script>alert(1)</script>")
        self.once("run", "--key", "held", "--on-failure", "hold", "--", "false")

    def start_console(self, *arguments):
        self.process = self.start("console", "--stats-interval", "off", *arguments)
        found = LINK.match(self.process.stdout.readline().decode())
        self.assertTrue(found)
        self.port = int(found[1])
        return found[2]

    def ask(self, method, target, body=None, headers=None):
        """Status, headers with names in lower case, and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.DEADLINE_S)
        sent = dict(headers or {})
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
            body = json.dumps(body)
        connection.request(method, target, body, sent)
        answer = connection.getresponse()
        got = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return got

    def sign_in(self, link):
        """The headers of a session."""
        status, headers, body = self.ask("POST", "/v1/session", {"link": link}, SAME)
        self.assertEqual(status, 200, body)
        cookie, *attributes = headers["set-cookie"].split("; ")
        self.assertEqual(attributes, ["Path=/", "HttpOnly", "SameSite=Strict"])
        self.assertRegex(cookie, rf"^once-{self.port}=[0-9a-f]{{32}}$")
        return {"Cookie": cookie, "Once-Session": json.loads(body)["half"]}

    def expect_problem(self, got, status, name):
        self.assertEqual((got[0], json.loads(got[2])["type"]), (status, f"urn:once:problem:{name}"), got[2])

    def path_of(self, key):
        return "/v1/records/" + self.show(key)["stored_key_hex"]

    def lines(self):
        lines = [json.loads(line) for line in self.path("audit").read_text().splitlines()]
        for line in lines:
            self.assertRegex(line.pop("time"), r"^20\d\d-.*Z$")
        return lines

    def noted(self, event):
        return [line for line in self.lines() if line["event"] == event]

    def bulk(self, path, body=None):
        status, _, answer = self.ask("GET" if body is None else "POST", "/v1/bulk" + path, body, {**self.session, **SAME})
        self.assertEqual(status, 200 if body is None else 202, answer)
        return json.loads(answer)

    def plan(self, **members):
        made = self.bulk("", {"act": "release", "filter": {"standing": "unknown", "scope": "pay"}, "reason": "INC-88", **members})
        return harness.wait_until(lambda: self.ended(made, "counting"), "it is planned")

    def ended(self, made, state="running"):
        now = self.bulk("/" + made["id"])
        return now if now["state"] != state else None


class Console(ConsoleCase):
    def release(self, session, headers=None, **members):
        tag = self.tag or self.ask("GET", self.path_of("held") + "?include=", headers=session)[1]["etag"]
        return self.ask("POST", self.path_of("held") + "/release", {"reason": "the bank was down", **members},
                        {**session, "If-Match": tag, **(SAME if headers is None else headers)})

    tag = None

    def test_a_link_signs_in_once(self):
        link = self.start_console("--who", "alice")
        session = self.sign_in(link)
        self.expect_problem(self.ask("POST", "/v1/session", {"link": link}, SAME), 401, "unauthorized")
        self.expect_problem(self.ask("POST", "/v1/session", {"link": "0" * 32}, SAME), 401, "unauthorized")
        self.expect_problem(self.ask("POST", "/v1/session", {"token": "0" * 32}, SAME), 401, "unauthorized")
        self.expect_problem(self.ask("POST", "/v1/session", {}, SAME), 400, "bad-request")
        self.assertEqual(json.loads(self.ask("GET", "/v1/session", headers=session)[2]), {"name": "alice", "role": "operator"})

    def test_neither_half_is_worth_anything_alone(self):
        session = self.sign_in(self.start_console())
        for target in ("/v1/session", "/v1/records", "/v1/overview", "/v1/openapi.json", self.path_of("page"),
                       self.path_of("page") + "/raw?part=result"):
            self.assertEqual(self.ask("GET", target, headers=session)[0], 200)
            self.expect_problem(self.ask("GET", target), 401, "unauthorized")
            for name in session:
                self.expect_problem(self.ask("GET", target, headers={name: session[name]}), 401, "unauthorized")
                wrong = {**session, name: session[name][:-1] + ("1" if session[name][-1] == "0" else "0")}
                self.expect_problem(self.ask("GET", target, headers=wrong), 401, "unauthorized")
        # Another server of this host sets a cookie of the same name: it does not lock the page out.
        for cookies in (f"once-{self.port}=x; {session['Cookie']}", f"{session['Cookie']}; once-{self.port}=x"):
            self.assertEqual(self.ask("GET", "/v1/records", headers={**session, "Cookie": cookies})[0], 200)
        stranger = {**session, "Cookie": f"once-{self.port}=x; once-{self.port}={'0' * 32}"}
        self.expect_problem(self.ask("GET", "/v1/records", headers=stranger), 401, "unauthorized")

    def test_attempts_are_bounded(self):
        link = self.start_console()
        for _ in range(20):
            self.expect_problem(self.ask("POST", "/v1/session", {"link": "guess"}, SAME), 401, "unauthorized")
        got = self.ask("POST", "/v1/session", {"link": "guess"}, SAME)
        self.expect_problem(got, 429, "too-many-attempts")
        self.assertEqual(got[1]["retry-after"], "60")
        # Whoever guesses does not keep out who has a link, and nobody sends much to be read.
        self.expect_problem(self.ask("POST", "/v1/session", {"link": "0" * 5000}, SAME), 400, "bad-request")
        self.assertEqual(self.ask("POST", "/v1/session", {"link": link}, SAME)[0], 200)

    def test_a_name_behind_a_gateway(self):
        self.process = self.start("console", "--stats-interval", "off", "--console-origin", "https://ops.example.com:8443")
        link = re.match(r"https://ops\.example\.com:8443/console/#link=([0-9a-f]{32})\n$", self.process.stdout.readline().decode())
        said = self.process.stderr.readline().decode()
        self.port = int(re.search(r"pass its requests on to http://127\.0\.0\.1:(\d+), with their Host", said)[1])
        named = {"Host": "ops.example.com:8443"}
        self.assertEqual(self.ask("GET", "/console/", headers=named)[0], 200)
        self.expect_problem(self.ask("POST", "/v1/session", {"link": link[1]}, {**named, "Sec-Fetch-Site": "cross-site"}), 403, "forbidden")
        status, headers, body = self.ask("POST", "/v1/session", {"link": link[1]}, {**named, **SAME})
        self.assertEqual(status, 200, body)
        cookie, *attributes = headers["set-cookie"].split("; ")
        self.assertEqual(attributes, ["Path=/", "HttpOnly", "SameSite=Strict", "Secure"])
        self.assertTrue(cookie.startswith("__Host-once-8443="))
        session = {"Cookie": cookie, "Once-Session": json.loads(body)["half"], **named}
        self.assertEqual(self.ask("GET", "/v1/records", headers=session)[0], 200)
        # Another site's name that leads here (DNS rebinding), another port, and the gateway's own name for this host.
        for host in ("ops.example.com", "ops.example.com:443", "evil.example:8443", "ops.example.com.evil.example:8443"):
            self.expect_problem(self.ask("GET", "/v1/records", headers={**session, "Host": host}), 403, "forbidden")
        self.assertEqual(self.ask("GET", "/console/")[0], 200, "at localhost, as before")
        for origin in ("http://ops.example.com", "https://ops.example.com/console", "https://*.example.com", "https://a:0"):
            self.expect(self.once("console", "--console-origin", origin), 64, b"", b"console-origin must be https://HOST[:PORT]")

    def test_no_other_host_name(self):
        link = self.start_console()
        session = self.sign_in(link)
        for host in ("evil.example", f"evil.example:{self.port}", "127.0.0.1.evil.example"):
            for target in ("/console", "/console/", "/v1/session", "/v1/records"):
                self.expect_problem(self.ask("GET", target, headers={**session, "Host": host}), 403, "forbidden")
        # They name scopes, and have no session.
        self.assertEqual(self.ask("GET", "/metrics", headers=session)[0], 404)

    def test_another_origin_changes_nothing(self):
        link = self.start_console()
        for site in ("cross-site", "same-site", "none", None):
            headers = {"Sec-Fetch-Site": site} if site else {}
            self.expect_problem(self.ask("POST", "/v1/session", {"link": link}, headers), 403, "forbidden")
        session = self.sign_in(link)
        before = self.show("held")
        for site in ("cross-site", "same-site", "none", None):
            headers = {"Sec-Fetch-Site": site} if site else {}
            self.expect_problem(self.release(session, headers), 403, "forbidden")
            self.expect_problem(self.ask("DELETE", "/v1/session", headers={**session, **headers}), 403, "forbidden")
        self.expect_problem(self.release(session, {**SAME, "Content-Type": "text/plain"}), 415, "unsupported-media-type")
        self.assertEqual(self.show("held"), before)
        self.assertEqual(self.release(session)[0], 200)

    def test_who_is_the_name_of_the_session(self):
        session = self.sign_in(self.start_console("--who", "alice"))
        self.expect_problem(self.release(session, who="bob"), 400, "bad-request")
        self.assertEqual(self.release(session)[0], 200)
        change = self.show("held")["history"][-1]
        self.assertEqual((change["who"], change["why"]), ("alice", "the bank was down"))

    def files_for_writing(self):
        """Of the store, those that the console holds open to write them."""
        found = []
        process = pathlib.Path(f"/proc/{self.process.pid}")
        for fd in (process / "fd").iterdir():
            try:
                flags = re.search(r"flags:\s+(\d+)", (process / "fdinfo" / fd.name).read_text())
                name = os.readlink(fd)
            except FileNotFoundError:  # A connection that the console has just closed.
                continue
            if name.startswith(str(self.path("once.db"))) and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                found.append(name)
        return found

    def test_a_reader_opens_nothing_for_writing(self):
        self.sign_in(self.start_console("--read-only"))
        self.assertEqual(self.files_for_writing(), [])
        self.sign_in(self.start_console())
        self.assertIn(str(self.path("once.db")), self.files_for_writing())

    def test_a_reader_changes_nothing(self):
        session = self.sign_in(self.start_console("--read-only"))
        self.assertEqual(json.loads(self.ask("GET", "/v1/session", headers=session)[2])["role"], "reader")
        before = self.show("held")
        self.expect_problem(self.release(session), 403, "role")
        tag = self.ask("GET", self.path_of("page"), headers=session)[1]["etag"]
        for action, method in (("/resolve", "POST"), ("/extend", "POST"), ("", "DELETE")):
            self.expect_problem(self.ask(method, self.path_of("page") + action, {"reason": "r"},
                                         {**session, **SAME, "If-Match": tag}), 403, "role")
        self.assertEqual(self.show("held"), before)
        self.assertEqual(self.ask("DELETE", "/v1/session", {}, {**session, **SAME})[0], 204)

    def test_a_session_ends(self):
        session = self.sign_in(self.start_console())
        self.assertEqual(self.ask("DELETE", "/v1/session", {}, {**session, **SAME})[0], 204)
        self.expect_problem(self.ask("GET", "/v1/records", headers=session), 401, "unauthorized")
        self.expect_problem(self.ask("DELETE", "/v1/session", {}, {**session, **SAME}), 401, "unauthorized")

    def test_the_page(self):
        self.start_console()
        status, headers, _ = self.ask("GET", "/console")
        self.assertEqual((status, headers["location"]), (308, "console/"))
        status, headers, body = self.ask("GET", "/console/")
        self.assertEqual((status, headers["content-type"], headers["cache-control"]),
                         (200, "text/html; charset=utf-8", "no-store"))
        folder = harness.pathlib.Path(__file__).resolve().parents[2] / "web/console"
        self.assertEqual(body, (folder / "index.html").read_bytes())
        types = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
                 ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
        for file in (file for file in folder.rglob("*") if file.is_file()):
            name = file.relative_to(folder).as_posix()
            status, headers, body = self.ask("GET", f"/console/{name}?x=1")
            self.assertEqual((status, body), (200, file.read_bytes()), name)
            self.assertEqual(headers["content-type"], types.get(file.suffix, "text/plain; charset=utf-8"))
            self.assertEqual(self.ask("HEAD", f"/console/{name}")[2], b"")
            if name != "index.html":
                got = self.ask("GET", f"/console/{name}", headers={"If-None-Match": headers["etag"]})
                self.assertEqual((got[0], got[2]), (304, b""))
        for target in ("/console", "/console/", "/console/no.js", "/console/../operators/openapi.json"):
            headers = self.ask("GET", target)[1]
            self.assertIn("default-src 'none'; script-src 'self'", headers["content-security-policy"])
            self.assertIn("require-trusted-types-for 'script'", headers["content-security-policy"])
            self.assertEqual((headers["x-content-type-options"], headers["referrer-policy"],
                              headers["cross-origin-resource-policy"]), ("nosniff", "no-referrer", "same-origin"))
        for target in ("/console/no.js", "/console/../operators/openapi.json", "/console/%2e%2e/console.cpp"):
            self.assertEqual(self.ask("GET", target)[0], 404)
        self.assertEqual(self.ask("GET", "/consoles")[0], 404)
        self.expect_problem(self.ask("POST", "/console/", {}), 405, "method-not-allowed")

    def test_stored_html_is_no_page(self):
        session = self.sign_in(self.start_console())
        status, headers, body = self.ask("GET", self.path_of("page") + "/raw?part=result", headers=session)
        self.assertEqual(status, 200)
        self.assertIn(b"<script>", body)
        self.assertEqual(headers["content-type"], "application/octet-stream")
        self.assertRegex(headers["content-disposition"], "^attachment; ")
        self.assertEqual(headers["x-content-type-options"], "nosniff")
        self.assertEqual(self.ask("GET", self.path_of("page"), headers=session)[1]["content-type"], "application/json")

    def test_what_is_noted(self):
        link = self.start_console("--who", "alice", "--audit-log", self.path("audit"))
        self.assertEqual(self.path("audit").stat().st_mode & 0o777, 0o600)
        self.ask("POST", "/v1/session", {"link": "guess"}, SAME)
        session = self.sign_in(link)
        self.ask("GET", self.path_of("page") + "?include=", headers=session)
        self.ask("GET", "/v1/records", headers=session)
        self.ask("GET", self.path_of("page") + "?include=result", headers=session)
        self.ask("GET", self.path_of("page") + "/raw?part=result", headers=session)
        self.assertEqual(self.release(session, dry_run=True)[0], 200)
        self.assertEqual(self.release(session)[0], 200)
        self.ask("DELETE", "/v1/session", {}, {**session, **SAME})
        alice = {"who": "alice", "role": "operator"}
        page, held = (self.show(key)["stored_key_hex"] for key in ("page", "held"))
        lines = self.lines()
        for line in lines:
            line.pop("revision", None)
        act = {"act": "release", "stored_key_hex": held, "reason": "the bank was down"}
        self.assertEqual(lines, [
            {"event": "sign-in-refused", "by": "link", "who": "", "role": None},
            {"event": "sign-in", "by": "link", **alice},
            {"event": "show", "stored_key_hex": page, "parts": "result", **alice},
            {"event": "show", "stored_key_hex": page, "parts": "result", **alice},
            {"event": "act", **act, **alice},
            {"event": "acted", **act, "status": 200, "outcome": "done", **alice},
            {"event": "sign-out", **alice}])
        self.assertNotIn(link, self.path("audit").read_text())

    def test_what_cannot_be_noted_is_refused(self):
        link = self.start_console("--audit-log", "/dev/full")
        self.expect_problem(self.ask("POST", "/v1/session", {"link": link}, SAME), 503, "not-audited")
        done = self.once("console", "--audit-log", self.path("no/such/folder"))
        self.expect(done, 243, stderr=b"cannot open the audit log")

    def test_a_signal_ends_it(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            session = self.sign_in(self.start_console())
            self.assertEqual(self.ask("GET", "/v1/records", headers=session)[0], 200)
            self.process.send_signal(number)
            self.assertEqual(self.process.wait(harness.DEADLINE_S), 0)

    def test_what_waits_at_the_end_is_not_done(self):
        for number in range(4):
            self.once("run", "--key", f"held-{number}", "--on-failure", "hold", "--", "false")
        session = self.sign_in(self.start_console())
        paths = [self.path_of(f"held-{number}") for number in range(4)]
        tags = [self.ask("GET", path + "?include=", headers=session)[1]["etag"] for path in paths]

        def release(path, tag):
            try:
                return self.ask("POST", path + "/release", {"reason": "the bank was down"}, {**session, **SAME, "If-Match": tag})[0]
            except (OSError, http.client.HTTPException):
                return None  # Closed.

        database = sqlite3.connect(self.path("once.db"), isolation_level=None)
        self.addCleanup(database.close)
        database.execute("BEGIN EXCLUSIVE")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            # One waits for the file, the others for their turn.
            asked = [pool.submit(release, path, tag) for path, tag in zip(paths, tags)]
            harness.wait_until(lambda: self.connections() == 4, "all have arrived")
            self.process.send_signal(signal.SIGTERM)
            harness.wait_until(lambda: sum(one.done() for one in asked) >= 3, "those that wait are answered")
            database.execute("ROLLBACK")
        self.assertEqual(self.process.wait(harness.DEADLINE_S), 0)
        self.assertLessEqual({one.result() for one in asked}, {200, 503, None})
        self.assertLessEqual(sum(self.show(f"held-{number}")["standing"] == "released" for number in range(4)), 1)

    def connections(self):
        """That the program has accepted."""
        place = f"0100007F:{self.port:04X}"
        return sum(line.split()[1] == place and line.split()[3] == "01"
                   for line in harness.pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:])

    def test_a_name_is_not_empty(self):
        self.expect(self.once("console", "--who", " "), 64, stdout=b"", stderr=b"--who is empty")

    def test_where_it_listens(self):
        self.start_console()
        done = self.once("console", "--listen", str(self.port))
        self.expect(done, 243, stdout=b"", stderr=f"{self.port}".encode())
        for host in ("0.0.0.0", "[::]", "192.0.2.1", "example.com"):
            self.expect(self.once("console", "--listen", f"{host}:0"), 64, stdout=b"", stderr=b"--listen: the console is for")
        self.expect(self.once("console", "--store", f"sqlite:{self.path('none.db')}"), 243)

    def test_enter_at_a_terminal_makes_another_link(self):
        ours, its = harness.os.openpty()
        self.addCleanup(harness.os.close, ours)
        self.process = self.start("console", stdin=its)
        harness.os.close(its)
        first = LINK.match(self.process.stdout.readline().decode())
        harness.os.write(ours, b"\n")
        second = LINK.match(self.process.stdout.readline().decode())
        self.assertNotEqual(first[2], second[2])
        self.port = int(second[1])
        self.sign_in(second[2])
        self.sign_in(first[2])



class Reconcile(ConsoleCase):
    """--reconcile: what the page asks, and about which records."""

    def setUp(self):
        super().setUp()
        self.once("run", "--scope", "pay", "--key", "k", "--on-failure", "hold", "--", "false")
        self.in_pay = "/v1/records/" + self.show("k", "--scope", "pay")["stored_key_hex"]

    def start_asking(self, command, scope, *more):
        self.session = self.sign_in(self.start_console("--reconcile", command, "--reconcile-scope", scope, *more))

    def read(self, path):
        status, headers, body = self.ask("GET", path, headers=self.session)
        self.assertEqual(status, 200, body)
        return json.loads(body), {**self.session, **SAME, "If-Match": headers.get("etag", "")}

    def test_it_asks_about_one_scope(self):
        self.expect(self.once("console", "--reconcile", "true"), 64, b"", b"--reconcile needs --reconcile-scope: ")
        for scope, asked, other in (("pay", self.in_pay, self.path_of("held")), ("", self.path_of("held"), self.in_pay)):
            self.start_asking("touch asked; exit 1", scope)
            self.assertTrue(self.read(asked)[0]["service"]["asks"])
            shown, headers = self.read(other)
            self.assertFalse(shown["service"]["asks"])
            self.expect_problem(self.ask("POST", other + "/reconcile", {}, headers), 409, "refused")
            self.assertFalse(self.path("asked").exists())

    def test_it_asks_and_keeps_the_answer_as_the_work_does(self):
        self.start_asking('echo "$ONCE_DERIVED_KEY"', "pay", "--derive-name", "post", "--reconcile-retention", "14d")
        headers = self.read(self.in_pay)[1]
        status, _, told = self.ask("POST", self.in_pay + "/reconcile", {}, headers)
        self.assertEqual((status, json.loads(told)["says"]), (200, "done"))
        status, _, answer = self.ask("POST", self.in_pay + "/resolve",
                                     {"as": "completed", "reconciled": True, "reason": "INC-88"}, headers)
        self.assertEqual(status, 200, answer)
        replayed = self.once("run", "--scope", "pay", "--key", "k", "--fingerprint", "none", "--", "false")
        posted, = self.read(self.in_pay + "/related?name=post")[0]["downstream"]
        self.expect(replayed, 0, posted["key"].encode() + b"\n")
        record = self.show("k", "--scope", "pay")
        expires, finished = (datetime.datetime.fromisoformat(record[name][:-1]) for name in ("expires_at", "finished_at"))
        self.assertEqual(expires - finished, datetime.timedelta(days=14))

    def test_it_ends_while_it_asks(self):
        for end in range(1, 4):  # What a sanitizer sees depends on who is quicker.
            self.start_asking("echo $$ >asking; exec sleep 1000", "pay", "--audit-log", self.path("audit"))
            planned = self.plan(act="reconcile")
            self.bulk(f"/{planned['id']}/start", {"count": 1})
            asking = self.pid_in("asking")
            self.process.send_signal(signal.SIGTERM)
            self.assertEqual(self.process.wait(harness.DEADLINE_S), 0, self.process.stderr.read())
            self.assertFalse(harness.alive(asking))
            self.assertEqual(len(self.noted("bulk-end")), end)
            self.path("asking").unlink()


class Bulk(ConsoleCase):
    """Acts on many records. Also on a server's store: ONCE_TEST_POSTGRESQL."""
    COUNT = 12

    def setUp(self):
        super().setUp()
        for number in range(self.COUNT):
            self.once("run", "--scope", "pay", "--key", f"k{number}", "--on-failure", "hold", "--", "false")
        self.session = self.sign_in(self.start_console("--who", "alice", "--audit-log", self.path("audit")))

    def standings(self):
        shown = [self.show(f"k{number}", "--scope", "pay") for number in range(self.COUNT)]
        for one in shown:
            entries = [(entry["who"], entry["why"]) for entry in one["history"] if entry["why"] == "INC-88"]
            # Whole, or not at all.
            self.assertEqual(entries, [("alice", "INC-88")] if one["standing"] == "released" else [])
            self.assertIn(one["standing"], ("released", "unknown"))
        return {one["stored_key_hex"] for one in shown if one["standing"] == "released"}

    def test_all_of_them(self):
        planned = self.plan()
        self.assertEqual((planned["state"], planned["count"], planned["refused"]), ("planned", self.COUNT, 0))
        self.assertEqual(self.standings(), set())
        self.bulk(f"/{planned['id']}/start", {"count": self.COUNT})
        done = harness.wait_until(lambda: self.ended(planned), "it ends")
        self.assertEqual((done["state"], done["written"], done["left_alone"], done["failed"]), ("done", self.COUNT, 0, 0))
        self.assertEqual(len(self.standings()), self.COUNT)
        self.assertEqual(self.show("held")["standing"], "unknown")  # In another scope.
        acts = json.loads(self.ask("GET", "/v1/acts?who=alice&act=release", headers=self.session)[2])
        self.assertEqual((acts["source"], acts["next"]), ("audit log", None))
        self.assertEqual({act["stored_key_hex"] for act in acts["acts"]}, self.standings())
        self.assertEqual({(act["outcome"], act["bulk"], act["reason"]) for act in acts["acts"]}, {("done", planned["id"], "INC-88")})

    def test_what_changed_since_is_left_alone(self):
        planned = self.plan()
        self.expect(self.once("resolve", "--scope", "pay", "--key", "k3", "--as", "failed", "--reason", "by hand"), 0)
        self.once("rm", "--scope", "pay", "--key", "k4", "--reason", "by hand")  # The console may read the file's log.
        self.expect(self.once("show", "--scope", "pay", "--key", "k4"), 239)
        self.bulk(f"/{planned['id']}/start", {"count": self.COUNT})
        done = harness.wait_until(lambda: self.ended(planned), "it ends")
        self.assertEqual((done["state"], done["written"], done["left_alone"]), ("done", self.COUNT - 2, 2))
        self.assertEqual({(one["key"], one["kind"]) for one in done["leftovers"]}, {("k3", "changed"), ("k4", "gone")})
        self.assertEqual(self.show("k3", "--scope", "pay")["standing"], "failed")

    def end_in_the_midst(self, number):
        planned = self.plan()
        self.bulk(f"/{planned['id']}/start", {"count": self.COUNT})
        harness.wait_until(lambda: self.noted("act"), "one is being written")
        self.process.send_signal(number)
        code = self.process.wait(harness.DEADLINE_S)
        released = self.standings()
        # Nothing was written without its line. What became of the last one may not be noted.
        tried = {line["stored_key_hex"] for line in self.noted("act")}
        told = {line["stored_key_hex"] for line in self.noted("acted") if line["outcome"] == "done"}
        self.assertLessEqual(told, released)
        self.assertLessEqual(released, tried)
        self.assertLessEqual(len(tried - told), 1)
        self.assertEqual(len(self.noted("bulk-start")), 1)
        return code, released

    def test_killed_in_the_midst(self):
        self.end_in_the_midst(signal.SIGKILL)

    def test_ended_in_the_midst(self):
        code, released = self.end_in_the_midst(signal.SIGTERM)
        self.assertEqual(code, 0)
        end, = self.noted("bulk-end")
        self.assertIn(end["outcome"], ("stopped", "done"))
        self.assertEqual(end["written"], len(released))


if __name__ == "__main__":
    harness.main()
