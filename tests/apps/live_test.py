"""live_test.py ONCE: the stream of events, /v1/events, from outside: who gets it, what it tells, and what ends it."""
import hashlib
import http.client
import json
import signal
import socket
import ssl
import subprocess

import harness
from harness import Case

SAME = {"Sec-Fetch-Site": "same-origin"}
MOST_STREAMS = 12  # Of one session.
TOKEN = "0123456789abcdef"


class Stream:
    """A client, byte by byte, as no library sees to it."""

    def __init__(self, port, target, headers, method="GET", version="1.1", tls=None):
        plain = socket.create_connection(("127.0.0.1", port), timeout=harness.DEADLINE_S)
        self.socket = tls.wrap_socket(plain, server_hostname="localhost") if tls else plain
        lines = {"Host": f"127.0.0.1:{port}", **headers}
        self.socket.sendall("".join([f"{method} {target} HTTP/{version}\r\n",
                                     *(f"{name}: {value}\r\n" for name, value in lines.items()), "\r\n"]).encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        while line := self.file.readline().strip():
            name, value = line.decode().split(": ", 1)
            self.headers[name.lower()] = value
        self.in_chunks = self.headers.get("transfer-encoding") == "chunked"
        self.text = ""

    def more(self):
        """False: it has ended."""
        if not self.in_chunks:
            line = self.file.readline()
            self.text += line.decode()
            return bool(line)
        try:
            size = self.file.readline()
        except ConnectionResetError:
            return False
        if not size or int(size, 16) == 0:
            return False
        self.text += self.file.read(int(size, 16)).decode()
        self.file.readline()
        return True

    def event(self):
        """(name, data), or None at the end."""
        while True:
            while "\n\n" not in self.text:
                if not self.more():
                    return None
            one, _, self.text = self.text.partition("\n\n")
            fields = dict(line.split(": ", 1) for line in one.split("\n"))
            if "event" in fields:
                assert fields["id"]
                return fields["event"], json.loads(fields["data"])

    def ends(self):
        while self.event():
            pass
        return True

    def close(self):
        self.file.close()
        self.socket.close()


class Live(Case):
    def setUp(self):
        super().setUp()
        self.once("run", "--key", "held", "--on-failure", "hold", "--", "false")
        self.key = self.show("held")["stored_key_hex"]

    def start_console(self, *arguments):
        self.process = self.start("console", "--stats-interval", "off", *arguments)
        line = self.process.stdout.readline().decode()
        self.port = int(line.split(":")[2].split("/")[0])
        status, headers, body = self.ask("POST", "/v1/session", {"link": line.strip().split("=")[1]}, SAME)
        self.assertEqual(status, 200, body)
        return {"Cookie": headers["Set-Cookie"].split(";")[0], "Once-Session": json.loads(body)["half"]}

    def ask(self, method, target, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.DEADLINE_S)
        connection.request(method, target, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        got = answer.status, answer.headers, answer.read()
        connection.close()
        return got

    def open(self, session, watch=None, **options):
        stream = Stream(self.port, f"/v1/events?watch={watch or self.key}", session, **options)
        self.addCleanup(stream.close)
        return stream

    def expect_problem(self, stream, status, name):
        self.assertEqual((stream.status, json.loads(stream.file.read())["type"]), (status, f"urn:once:problem:{name}"))

    def tag(self):
        record = self.show("held")
        return f'"{record["owner"]}-{record["revision"]}"'

    def test_what_it_tells(self):
        session = self.start_console()
        stream = self.open(session, f"overview,{self.key}")
        self.assertEqual((stream.status, stream.headers["content-type"], stream.headers["cache-control"]),
                         (200, "text/event-stream", "no-store"))
        first = dict(stream.event() for _ in range(2))
        self.assertEqual(first["overview"]["stores"][0]["name"], self.store)
        self.assertEqual(first["changed"], {"key": self.key, "tag": self.tag(), "standing": "unknown", "overdue": False,
                                            "error": None, "service": {"asks": False, "says": None}})
        self.assertEqual(self.once("release", "--key", "held", "--reason", "r").returncode, 0)
        _, data = stream.event()
        self.assertEqual((data["tag"], data["standing"]), (self.tag(), "released"))
        # Who was here before is told that events were missed; HTTP/1.0 knows no chunks.
        back = self.open({**session, "Last-Event-ID": "0-7"}, version="1.0")
        self.assertNotIn("transfer-encoding", back.headers)
        self.assertEqual(back.event(), ("reset", {}))
        self.assertEqual(back.event(), ("changed", data))
        head = self.open(session, method="HEAD")
        self.assertEqual((head.status, head.headers["content-type"], head.file.read()), (200, "text/event-stream", b""))

    def test_who_gets_it(self):
        session = self.start_console()
        self.expect_problem(self.open({}), 401, "unauthorized")
        for name in session:
            self.expect_problem(self.open({name: session[name]}), 401, "unauthorized")
        self.expect_problem(self.open({**session, "Host": "evil.example"}), 403, "forbidden")
        self.expect_problem(self.open({**session, **SAME}, method="POST"), 405, "method-not-allowed")
        for watch in ("order-17", "overview,", ",".join(f"{number:02x}" for number in range(17))):
            self.expect_problem(self.open(session, watch), 400, "bad-request")

    def test_so_many_and_no_more(self):
        session = self.start_console()
        streams = [self.open(session) for _ in range(MOST_STREAMS)]
        for stream in streams:
            self.assertEqual(stream.event()[0], "changed")
        over = self.open(session)
        self.assertEqual(over.headers["retry-after"], "30")
        self.expect_problem(over, 503, "busy")
        # Others are in nobody's way, ...
        self.assertEqual(self.ask("GET", "/v1/records", headers=session)[0], 200)
        # ... and who leaves makes room: who hangs up, who only stops to speak, and who speaks on.
        streams[0].close()
        streams[1].socket.shutdown(socket.SHUT_WR)
        streams[2].socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        self.assertTrue(streams[1].ends())
        self.assertTrue(streams[2].ends())
        for _ in range(3):
            harness.wait_until(lambda: self.open(session).status == 200, "there is room")
        # Those that stayed are told as before.
        self.assertEqual(self.once("release", "--key", "held", "--reason", "r").returncode, 0)
        for stream in streams[3:]:
            self.assertEqual(stream.event()[1]["standing"], "released")

    def test_the_end_of_a_session_ends_its_streams(self):
        session = self.start_console()
        streams = [self.open(session), self.open(session, "overview")]
        for stream in streams:
            self.assertTrue(stream.event())
        self.assertEqual(self.ask("DELETE", "/v1/session", {}, {**session, **SAME})[0], 204)
        for stream in streams:
            self.assertTrue(stream.ends())

    def test_the_end_of_the_program_ends_them_all(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            session = self.start_console()
            streams = [self.open(session, f"overview,{self.key}") for _ in range(MOST_STREAMS)]
            for stream in streams[1:]:
                self.assertTrue(stream.event())
            self.process.send_signal(number)
            self.assertEqual(self.process.wait(harness.DEADLINE_S), 0)
            for stream in streams:
                self.assertTrue(stream.ends())

    def test_a_store_that_is_gone_is_told(self):
        session = self.start_console()
        stream = self.open(session)
        self.assertIsNone(stream.event()[1]["error"])
        for path in self.dir.glob("once.db*"):
            if path.is_file():
                path.rename(path.with_name(f"away-{path.name}"))
        self.path("once.db").write_bytes(b"")
        name, data = stream.event()
        self.assertEqual((name, data["tag"], data["standing"]), ("changed", None, None))
        self.assertTrue(data["error"])

    def test_a_program_with_the_token_over_tls(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", self.path("key.pem"), "-out",
                        self.path("cert.pem"), "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                       check=True, stderr=subprocess.DEVNULL)
        token = self.path("token")
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.process = self.start("proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9", "--no-principal",
                                  "--admin", "127.0.0.1:0", "--admin-token-file", token, "--admin-tls-cert",
                                  self.path("cert.pem"), "--admin-tls-key", self.path("key.pem"), "--log", "none")
        self.process.stderr.readline()
        self.port = int(self.process.stderr.readline().decode().split()[-1])
        trust = ssl.create_default_context(cafile=self.path("cert.pem"))
        self.expect_problem(self.open({"Authorization": "Bearer wrong-wrong-wrong"}, tls=trust), 401, "unauthorized")
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        stream = self.open(bearer, f"overview,{self.key}", tls=trust)
        self.assertEqual({stream.event()[0] for _ in range(2)}, {"overview", "changed"})
        # The same token again: nothing ends. Another one: the old one's streams do.
        for written in (TOKEN, TOKEN[::-1]):
            token.write_text(written)
            self.process.send_signal(signal.SIGHUP)
            while b"reloaded" not in self.process.stderr.readline():
                pass
            if written == TOKEN:
                self.assertEqual(stream.event()[0], "overview")
        self.assertTrue(stream.ends())
        other = self.open({"Authorization": f"Bearer {TOKEN[::-1]}"}, tls=trust)
        self.assertEqual(other.event()[0], "changed")
        self.process.send_signal(signal.SIGTERM)
        self.assertTrue(other.ends())
        self.assertEqual(self.process.wait(harness.DEADLINE_S), 0)

    def test_tokens_with_names_and_roles(self):
        tokens = {"alice": "token-of-alice-0123", "rita": "token-of-rita-01234"}
        line = {name: f"{name} {role} {hashlib.sha256(tokens[name].encode()).hexdigest()}\n"
                for name, role in (("alice", "operator"), ("rita", "reader"))}
        file = self.path("tokens")

        def write(*lines):
            file.write_text("".join(lines))
            file.chmod(0o600)

        def reload(told):
            self.process.send_signal(signal.SIGHUP)
            while True:
                said = self.process.stderr.readline().decode()
                self.assertTrue(said)
                if "reloaded" in said:
                    self.assertIn(told, said)
                    return

        arguments = ["proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9", "--no-principal", "--admin",
                     "127.0.0.1:0", "--admin-token-file", file, "--log", "none"]
        write(line["alice"], "rita admin 00\n")
        refused = self.once(*arguments)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(b"tokens, line 2: the role must be reader or operator", refused.stderr)
        write("# who may\n", *line.values())
        self.process = self.start(*arguments)
        self.process.stderr.readline()
        self.port = int(self.process.stderr.readline().decode().split()[-1])
        bearer = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}
        record = f"/v1/records/{self.key}"
        by_tag = {"If-Match": self.ask("GET", record, headers=bearer["rita"])[1]["ETag"]}

        # By the API, and in a browser's session.
        status, headers, body = self.ask("POST", "/v1/session", {"token": tokens["rita"]}, SAME)
        session = {"Cookie": headers["Set-Cookie"].split(";")[0], "Once-Session": json.loads(body)["half"]}
        self.assertEqual((status, json.loads(body)["name"], json.loads(body)["role"]), (200, "rita", "reader"))
        before = self.show("held")
        for reader in (bearer["rita"], {**session, **SAME}):
            for method, target in (("POST", f"{record}/release"), ("POST", f"{record}/resolve"), ("POST", f"{record}/extend"),
                                   ("DELETE", record), ("POST", "/v1/none")):
                status, _, body = self.ask(method, target, {"reason": "r", "force": True}, {**reader, **by_tag})
                self.assertEqual((status, json.loads(body)["type"]), (403, "urn:once:problem:role"))
        self.assertEqual(self.show("held"), before)
        streams = {name: self.open(bearer[name]) for name in tokens}
        streams["session"] = self.open(session)
        for stream in streams.values():
            self.assertEqual(stream.event()[0], "changed")

        self.assertEqual(self.ask("POST", f"{record}/release", {"reason": "r", "who": "bob"}, {**bearer["alice"], **by_tag})[0], 400)
        self.assertEqual(self.ask("POST", f"{record}/release", {"reason": "r"}, {**bearer["alice"], **by_tag})[0], 200)
        self.assertEqual(self.show("held")["history"][-1]["who"], "alice")
        for stream in streams.values():
            self.assertEqual(stream.event()[1]["standing"], "released")

        # A wrong file changes nothing. One without her does.
        write(line["alice"], "rita reader none\n")
        reload("line 2: the digest must be 64 hexadecimal digits")
        self.assertEqual(self.ask("GET", record, headers=session)[0], 200)
        write(line["alice"])
        reload("reloaded, with")
        self.assertEqual(self.ask("GET", record, headers=session)[0], 401)
        self.assertEqual(self.ask("GET", record, headers=bearer["rita"])[0], 401)
        self.assertTrue(streams["rita"].ends())
        self.assertTrue(streams["session"].ends())
        # And who goes on is told as before.
        self.assertEqual(self.once("rm", "--key", "held", "--force", "--reason", "r").returncode, 0)
        self.assertIsNone(streams["alice"].event()[1]["tag"])
        # The file's line is no token.
        self.assertEqual(self.ask("GET", record, headers={"Authorization": f"Bearer {line['alice'].split()[2]}"})[0], 401)


if __name__ == "__main__":
    harness.main()
