"""serve_tenants_test.py ONCE: whose claims are whose in `once serve`, TLS, and the socket that systemd passes."""
import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys

import harness
from harness import Case
from serve_test import LEASE_MS, Answer, Client

TOKENS = {"blue": "the-token-of-blue-1", "red": "the-token-of-red-22"}


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)


class TenantCase(Case):
    """Clients who differ in what they show. One is {"headers": …, "tls": …}; `port` or `socket` is the server's."""
    port = None
    socket = None

    def serve(self, *arguments, **options):
        self.process = self.start("serve", "--log", "none", *arguments, **options)
        line = self.process.stderr.readline().decode()
        self.assertIn("listening on", line, self.process.stderr.peek()[:2000] if not line else line)
        if "port" in line:
            self.port = int(line.split()[-1])

    def connect(self, client):
        if self.socket is not None:
            return Client(self.socket)
        if "tls" in client:
            return http.client.HTTPSConnection("localhost", self.port, timeout=harness.DEADLINE_S, context=client["tls"])
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.DEADLINE_S)

    def ask(self, client, method, path, body=None, content_type="application/json", headers=None):
        with contextlib.closing(self.connect(client)) as connection:
            typed = {"Content-Type": content_type} if body is not None else {}
            data = json.dumps(body) if isinstance(body, dict) else body
            connection.request(method, path, data, {**typed, **client.get("headers", {}), **(headers or {})})
            return Answer(connection.getresponse())

    def begin(self, client, key, headers=None, **members):
        return self.ask(client, "POST", "/v1/claims", {"scope": "orders", "key": key, "lease_ms": LEASE_MS, **members}, headers=headers)

    def claim(self, client, key, **members):
        got = self.begin(client, key, **members)
        self.assertEqual(got.status, 201, got.body)
        return got.json["claim"]

    def use(self, client, claim, word, body=None, **more):
        return self.ask(client, "PUT" if word.startswith("steps/") else "POST", f"/v1/claims/{claim}/{word}", body, **more)

    def each_use(self, client, claim, **more):
        """What each request about the claim is answered."""
        bodies = {"renew": None, "steps/one": b"1", "complete": b"stolen", "fail": {"code": "x"}, "hold": {"reason": "r"}, "release": None}
        return {word: (got := self.use(client, claim, word, body, **more)).status and (got.status, got.answer, got.body)
                for word, body in bodies.items()}

    def token_file(self, text, name="tokens"):
        file = self.path(name)
        file.write_text(text)
        file.chmod(0o600)
        return file

    def named_tokens(self, tokens):
        return self.token_file("# tenants\n" + "".join(f"{name} {hashlib.sha256(token.encode()).hexdigest()}\n" for name, token in tokens.items()))

    def bearer(self, token):
        return {"headers": {"Authorization": f"Bearer {token}"}}

    def expect_apart(self, blue, red):
        """Two tenants with one key, one request_id, each other's claim IDs and sessions."""
        ours = self.claim(blue, "a", request_id="r" * 16)
        theirs = self.claim(red, "a", request_id="r" * 16)
        self.assertNotEqual(ours, theirs)
        # As an ID that does not exist: the owner is another one.
        other_owner = ours[:2] + "00" * 16 + ours[34:]
        self.assertEqual(self.each_use(red, ours), self.each_use(red, other_owner))
        self.assertEqual(self.use(red, ours, "renew").problem, (409, "claim-lost"))
        with contextlib.closing(self.connect(blue)) as stream:
            stream.request("POST", "/v1/sessions", headers=blue.get("headers", {}))
            lines = stream.getresponse()  # The session is open as long as this is there.
            session = json.loads(lines.readline())["session"]
            in_it = {"Once-Claim-Session": session}
            self.assertEqual(self.use(blue, ours, "renew", headers=in_it).answer, "renewed")
            for name in (session, "0" * 32):
                self.assertEqual(self.begin(red, "s", headers={"Once-Claim-Session": name}).problem, (409, "no-session"))
            self.assertEqual(self.use(red, ours, "complete", b"stolen", headers=in_it).problem, (409, "no-session"))
            self.assertEqual(self.use(blue, ours, "complete", b"blue's", headers=in_it).answer, "recorded")
            lines.close()
        self.assertEqual(self.use(red, theirs, "complete", b"red's").answer, "recorded")
        for client, result in ((blue, b"blue's"), (red, b"red's")):
            for got in (self.begin(client, "a"), self.ask(client, "GET", "/v1/claims?scope=orders&key=a")):
                self.assertEqual((got.answer, got.body), ("replayed", result))
        self.claim(blue, "only blue's")
        self.assertEqual(self.ask(red, "GET", "/v1/claims?scope=orders&key=only%20blue%27s").problem, (404, "no-record"))
        self.expect_scopes_refused(blue)
        self.assertEqual(self.ask(blue, "GET", "/metrics").problem, (403, "forbidden"))
        anyone = {"tls": blue["tls"]} if "tls" in blue else {}
        self.assertEqual(self.ask(anyone, "GET", "/healthz").status, 200)

    def expect_scopes_refused(self, client):
        """A client's own scope names no tenant, its own neither."""
        claim = self.claim(client, "plain")
        for scope in ("orders/@tenant=blue", "/@tenant=red", "a/@tenant=blue/@tenant=", "orders/@tenant=*00"):
            with self.subTest(scope):
                self.assertEqual(self.begin(client, "a", scope=scope).problem, (400, "bad-request"))
                target = f"/v1/claims?scope={scope.replace('*', '%2A')}&key=a"
                self.assertEqual(self.ask(client, "GET", target).problem, (400, "bad-request"))
                forged = claim[:-len(b"orders#plain".hex())] + f"{scope}#plain".encode().hex()
                self.assertEqual(self.use(client, forged, "renew").problem, (400, "bad-request"))
        for scope in ("orders/@tenant=a b", "@tenant=blue", "/@tenant=blue/x", "a%23b", "a#b", "a/../b"):
            self.assertEqual(self.begin(client, "odd", scope=scope).status, 201, scope)


class Tokens(TenantCase):
    def test_each_token_has_claims_of_its_own(self):
        self.serve("--listen", "0", "--token-file", self.named_tokens(TOKENS))
        blue, red = (self.bearer(token) for token in TOKENS.values())
        self.expect_apart(blue, red)
        listed = json.loads(self.once("ls", "--scope", "orders/@tenant=blue", "--json").stdout)
        self.assertIn("a", [record["label"] for record in listed])
        record = self.show("a", "--scope", "orders/@tenant=blue")
        self.assertEqual((record["scope"], record["state"]), ("orders/@tenant=blue", "completed"))
        self.use(blue, self.claim(blue, "held"), "hold", {"reason": "who knows"})
        self.expect(self.once("resolve", "--key", "held", "--scope", "orders/@tenant=blue", "--as", "released", "--reason", "r"), 0)
        self.claim(blue, "held")

    def test_a_wrong_token_is_refused(self):
        self.serve("--listen", "0", "--token-file", self.named_tokens(TOKENS))
        claim = self.claim(self.bearer(TOKENS["blue"]), "a")
        digest = hashlib.sha256(TOKENS["blue"].encode()).hexdigest()
        two = {"headers": {"Authorization": f"Bearer {TOKENS['blue']}, Bearer {TOKENS['red']}"}}
        for client in ({}, self.bearer("wrong-wrong-wrong"), self.bearer("blue"), self.bearer(digest), self.bearer(""),
                       self.bearer(TOKENS["blue"].upper()), self.bearer(TOKENS["blue"] + "\xe9"), two):
            for got in (self.begin(client, "a"), self.use(client, claim, "complete", b"x"), self.ask(client, "POST", "/v1/sessions"),
                        self.ask(client, "GET", "/v1/version"), self.ask(client, "GET", "/metrics")):
                self.assertEqual(got.status, 401)
        self.assertEqual(self.use(self.bearer(TOKENS["blue"]), claim, "complete", b"x").answer, "recorded")

    def test_tenants_survive_a_restart_and_a_second_token(self):
        file = self.named_tokens(TOKENS)
        self.serve("--listen", "0", "--token-file", file)
        claim = self.claim(self.bearer(TOKENS["blue"]), "a")
        self.process.kill()
        self.process.wait()
        second = "a-second-of-blue"
        file.write_text(file.read_text() + f"blue {hashlib.sha256(second.encode()).hexdigest()}\n")
        self.serve("--listen", "0", "--token-file", file)
        self.assertEqual(self.use(self.bearer(TOKENS["red"]), claim, "complete", b"x").problem, (409, "claim-lost"))
        self.assertEqual(self.use(self.bearer(second), claim, "complete", b"x").answer, "recorded")
        # A file that names no tenants any more would rename all keys.
        file.write_text("one-token-for-all\n")
        self.process.send_signal(signal.SIGHUP)
        self.assertIn(b"names no tenants any more", self.process.stderr.readline())
        self.assertEqual(self.begin(self.bearer("one-token-for-all"), "a").status, 401)
        self.assertEqual(self.begin(self.bearer(second), "a").answer, "replayed")

    def test_tokens_share_claims_only_if_that_is_said(self):
        self.serve("--listen", "0", "--token-file", self.named_tokens(TOKENS), "--tenants", "none")
        blue, red = (self.bearer(token) for token in TOKENS.values())
        self.assertEqual(self.use(red, self.claim(blue, "a"), "complete", b"x").answer, "recorded")
        self.expect_scopes_refused(blue)

    def test_a_key_has_room_for_its_tenant(self):
        self.serve("--listen", "0", "--token-file", self.named_tokens(TOKENS))
        blue = self.bearer(TOKENS["blue"])
        room = 1024 - len("orders/@tenant=blue#")
        self.assertEqual(self.use(blue, self.claim(blue, "k" * room), "complete", b"x").answer, "recorded")
        self.assertEqual(self.begin(blue, "k" * (room + 1)).problem, (400, "bad-request"))

    def test_a_file_that_is_not_clear_is_refused(self):
        digest = "0" * 64
        for text, word in ((f"blue operator {digest}\n", "line 1: must be a tenant's name and a digest"), (f"bl/ue {digest}\n", "tenant's name"),
                           (f"uid-0 {digest}\n", "uid-"), (f"UID-0 {digest}\n", "uid-"), (f"bl\u00fce {digest}\n", "tenant's name"),
                           ("n" * 65 + f" {digest}\n", "tenant's name"), (f"{digest}\n", None), (f" {digest}\n", "must be a tenant's name"),
                           (f"a {digest}\nb {digest}\n", "has the digest of line 1"), ("blue 00\n", "64 hexadecimal"), (f"a\0b {digest}\n", "tenant's name")):
            with self.subTest(text):
                file = self.token_file(text)
                if word is None:
                    self.expect(self.once("serve", "--listen", "0", "--token-file", file, "--tenants", "token"), 64, stderr=b"lines of a tenant's name")
                    continue
                self.expect(self.once("serve", "--listen", "0", "--token-file", file), 64, stderr=word.encode())


class Tls(TenantCase):
    def setUp(self):
        super().setUp()
        self.certificate("server", "/CN=server")
        self.certificate("authority", "/CN=authority")

    def certificate(self, name, subject):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.path(f"{name}.key"),
                "-out", self.path(f"{name}.pem"), "-days", "2", "-subj", subject, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")

    def client(self, name, subject, *, sans=None, utf8=True):
        """One with a certificate that the authority has signed."""
        request, key, signed = (self.path(f"{name}.{end}") for end in ("csr", "key", "pem"))
        config = self.path("client.cnf")
        config.write_text(f"[req]\ndistinguished_name=name\nstring_mask={'utf8only' if utf8 else 'pkix'}\n[name]\n[more]\n"
                          + (f"subjectAltName={sans}\n" if sans else "keyUsage=digitalSignature\n"))
        openssl("req", "-config", config, "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-subj", subject,
                "-out", request, *(["-utf8"] if utf8 else []))
        openssl("x509", "-req", "-in", request, "-CA", self.path("authority.pem"), "-CAkey", self.path("authority.key"), "-CAcreateserial", "-days", "2",
                "-extfile", config, "-extensions", "more", "-out", signed)
        return {"tls": self.trust(name)}

    def trust(self, shown=None):
        context = ssl.create_default_context(cafile=self.path("server.pem"))
        if shown:
            context.load_cert_chain(self.path(f"{shown}.pem"), self.path(f"{shown}.key"))
        return context

    def serve_tls(self, *arguments):
        self.serve("--listen", "0.0.0.0:0", "--tls-cert", self.path("server.pem"), "--tls-key", self.path("server.key"), *arguments)

    def test_an_address_has_tls_and_tokens(self):
        self.serve_tls("--token-file", self.named_tokens(TOKENS))
        blue, red = ({"tls": self.trust(), **self.bearer(token)} for token in TOKENS.values())
        self.assertEqual(self.begin({"tls": self.trust()}, "a").status, 401)
        self.use(blue, self.claim(blue, "a"), "complete", b"x")
        self.claim(red, "a")
        with self.assertRaises((ConnectionError, http.client.HTTPException)):
            self.begin(self.bearer(TOKENS["blue"]), "a")
        self.assertIn(b"the client sent HTTP without TLS: it must use https://", self.process.stderr.readline())

    def test_a_renewed_certificate_is_read(self):
        self.serve_tls("--token-file", self.named_tokens(TOKENS), "--watch-interval", "1s")
        old = {"tls": self.trust(), **self.bearer(TOKENS["blue"])}
        self.assertEqual(self.begin(old, "a").status, 201)
        self.certificate("server", "/CN=server")  # The same files.
        self.assertIn(b"files read again", self.process.stderr.readline())
        new = {"tls": self.trust(), **self.bearer(TOKENS["blue"])}
        self.assertEqual(self.begin(new, "b").status, 201)
        with self.assertRaises(ssl.SSLError):
            self.begin(old, "c")
        # One that cannot be used leaves the last one in force.
        self.path("server.pem").write_text("nothing\n")
        while b"the old contents stay in force" not in (line := self.process.stderr.readline()):
            self.assertIn(b"no TLS with", line)
        self.assertEqual(self.begin(new, "d").status, 201)

    def test_each_certificate_has_claims_of_its_own(self):
        self.serve_tls("--client-ca", self.path("authority.pem"))
        blue, red = self.client("blue", "/O=Shop/CN=blue"), self.client("red", "/O=Shop/CN=red")
        self.expect_apart(blue, red)
        self.assertEqual(self.show("a", "--scope", "orders/@tenant=CN%3Dblue%2CO%3DShop")["state"], "completed")
        # A renewed certificate of the same subject, also with strings of another kind, is the same tenant.
        for number, utf8 in enumerate((True, False)):
            self.assertEqual(self.begin(self.client(f"again{number}", "/O=Shop/CN=blue", utf8=utf8), "a").body, b"blue's")
        # Subjects whose plain texts look alike are others.
        for number, subject in enumerate(("/CN=blue/O=Shop", "/O=Shop/CN=Blue", "/CN=blue,O=Shop", "/O=Shop/CN=blue ", "/O=Shop+CN=blue", "/O=Shop/CN=bl\u00fce")):
            with self.subTest(subject):
                self.assertEqual(self.begin(self.client(f"other{number}", subject), "a").status, 201)

    def test_a_certificate_without_a_subject_is_named_by_its_uri(self):
        self.serve_tls("--client-ca", self.path("authority.pem"))
        blue = self.client("blue", "/", sans="critical,URI:spiffe://shop.example/blue")
        self.use(blue, self.claim(blue, "a"), "complete", b"x")
        self.assertEqual(self.show("a", "--scope", "orders/@tenant=URI%3Aspiffe%3A%2F%2Fshop.example%2Fblue")["state"], "completed")
        for number, sans in enumerate(("DNS:blue.example", "URI:a://b,URI:c://d")):
            nameless = self.client(f"nameless{number}", "/", sans="critical," + sans)
            for got in (self.begin(nameless, "a"), self.ask(nameless, "POST", "/v1/sessions"), self.ask(nameless, "GET", "/v1/version")):
                self.assertEqual(got.problem, (403, "no-tenant"))

    def test_clients_need_a_certificate_and_are_no_browsers(self):
        self.serve_tls("--client-ca", self.path("authority.pem"))
        self.certificate("foreign", "/O=Shop/CN=blue")  # Of no authority.
        for shown in (None, "foreign"):
            with self.assertRaises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                self.begin({"tls": self.trust(shown)}, "a")
        blue = self.client("blue", "/CN=blue")
        for header in ("Origin", "Sec-Fetch-Site"):
            self.assertEqual(self.ask(blue, "POST", "/v1/sessions", headers={header: "x"}).problem, (403, "forbidden"))

    def test_certificates_share_claims_only_if_that_is_said(self):
        self.serve_tls("--client-ca", self.path("authority.pem"), "--tenants", "none")
        blue, red = self.client("blue", "/CN=blue"), self.client("red", "/CN=red")
        self.assertEqual(self.use(red, self.claim(blue, "a"), "complete", b"x").answer, "recorded")

    def test_flags_that_leave_a_question_open_are_refused(self):
        pem, key, ca = self.path("server.pem"), self.path("server.key"), self.path("authority.pem")
        tls = ["--tls-cert", pem, "--tls-key", key]
        tokens, unix = self.named_tokens(TOKENS), f"unix:{self.dir}/s"
        for arguments, word in (
                (["0.0.0.0:0", "--token-file", tokens], "without TLS"), (["0.0.0.0:0", *tls], "--token-file or --client-ca"),
                (["0", "--tls-cert", pem], "go together"), (["0", "--client-ca", ca], "needs TLS"),
                (["0", *tls, "--client-ca", ca, "--token-file", tokens], "use one of them"), ([unix, *tls], "is for an address"),
                ([unix, "--listen-mode", "0660"], "--tenants uid"), ([unix, "--listen-mode", "0601"], "--tenants uid"),
                ([unix, "--listen-mode", "0640"], "--tenants uid"), ([unix, "--tenants", "token"], "--token-file"),
                (["0", "--tenants", "uid"], "Unix socket"), (["0", "--tenants", "token"], "lines of a tenant's name"),
                (["0", "--tenants", "certificate"], "--client-ca"), (["0", "--tenants", "group"], "--tenants"),
                (["0", *tls, "--client-ca", ca, "--tenants", "token"], "--token-file"), (["systemd"], "none was passed")):
            with self.subTest(arguments=arguments):
                self.expect(self.once("serve", "--listen", *arguments), 64, stderr=word.encode())


class Users(TenantCase):
    def setUp(self):
        super().setUp()
        self.socket = self.path("s")

    def test_a_user_is_a_tenant(self):
        self.serve("--listen", f"unix:{self.socket}", "--tenants", "uid")
        self.use({}, self.claim({}, "a"), "complete", b"x")
        self.assertEqual(self.show("a", "--scope", f"orders/@tenant=uid-{os.geteuid()}")["state"], "completed")
        self.expect_scopes_refused({})
        self.assertEqual(self.ask({}, "GET", "/metrics").problem, (403, "forbidden"))

    def test_a_socket_of_this_user_has_no_tenants(self):
        self.serve("--listen", f"unix:{self.socket}")
        self.claim({}, "a")
        self.assertEqual(self.show("a", "--scope", "orders")["state"], "in_progress")
        self.assertEqual(self.ask({}, "GET", "/metrics").status, 200)


AS_USER = """
import json, os, sys
from serve_test import Answer, Client
user = int(sys.argv.pop(1))
os.setgroups([])
os.setgid(user)
os.setuid(user)
client = Client(sys.argv[1])
client.request(sys.argv[2], sys.argv[3], sys.argv[4] or None, {"Content-Type": "application/json"})
got = Answer(client.getresponse())
print(json.dumps([got.status, got.answer, got.body.decode()]))
"""

if os.geteuid() == 0:  # Only root can be several users.

    class OtherUsers(TenantCase):
        USERS = (4_000_001, 4_000_002)

        def setUp(self):
            super().setUp()
            self.dir.chmod(0o711)
            self.socket = self.path("s")

        def ask_as(self, user, method, path, body=None):
            environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__)))
            done = subprocess.run([sys.executable, "-c", AS_USER, str(user), self.socket, method, path, json.dumps(body) if body else ""],
                                  env=environment, capture_output=True, timeout=harness.DEADLINE_S, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)

        def begin_as(self, user, key):
            return self.ask_as(user, "POST", "/v1/claims", {"scope": "orders", "key": key, "lease_ms": LEASE_MS})

        def test_users_have_claims_of_their_own(self):
            self.serve("--listen", f"unix:{self.socket}", "--listen-mode", "0666", "--tenants", "uid")
            blue, red = self.USERS
            claims = {}
            for user in (*self.USERS, 0):
                status, _, body = self.begin_as(user, "a")
                self.assertEqual(status, 201, body)
                claims[user] = json.loads(body)["claim"]
            for user in (red, 0):
                status, _, body = self.ask_as(user, "POST", f"/v1/claims/{claims[blue]}/renew")
                self.assertEqual(status, 409, body)
            for user in claims:
                self.assertEqual(self.ask_as(user, "POST", f"/v1/claims/{claims[user]}/complete", {"of": user})[:2], [200, "recorded"])
                self.assertEqual(json.loads(self.begin_as(user, "a")[2]), {"of": user})

        def test_users_share_claims_only_if_that_is_said(self):
            self.serve("--listen", f"unix:{self.socket}", "--listen-mode", "0666", "--tenants", "none")
            blue, red = self.USERS
            claim = json.loads(self.begin_as(blue, "a")[2])["claim"]
            self.assertEqual(self.ask_as(red, "POST", f"/v1/claims/{claim}/complete", {"x": 1})[:2], [200, "recorded"])

        def test_users_that_look_alike_are_refused(self):
            """In a user namespace with root alone all others are one to the kernel."""
            self.process = subprocess.Popen(["unshare", "--user", "--map-root-user", harness.PROGRAM, "serve", "--log", "none", "--listen",
                                             f"unix:{self.socket}", "--listen-mode", "0666", "--tenants", "uid"], env=self.env, stderr=subprocess.PIPE)
            self.addCleanup(self.process.communicate)
            self.addCleanup(self.process.kill)
            self.assertIn(b"listening on", self.process.stderr.readline())
            self.assertEqual(self.begin_as(0, "a")[0], 201)
            for user in self.USERS:
                status, _, body = self.begin_as(user, "a")
                self.assertEqual((status, json.loads(body)["type"]), (403, "urn:once:problem:no-tenant"))


class Systemd(TenantCase):
    """The sockets are passed as systemd passes them: as descriptor 3, with LISTEN_PID and LISTEN_FDS."""

    def pass_sockets(self, *sockets, arguments=(), fds=None, pid="$$"):
        moves = " ".join(f"{3 + i}<&{one.fileno()}" for i, one in enumerate(sockets))
        script = f'exec {moves}; export LISTEN_PID={pid} LISTEN_FDS={len(sockets) if fds is None else fds}; exec "$@"'
        process = subprocess.Popen(["bash", "-c", script, "bash", harness.PROGRAM, "serve", "--log", "none", "--listen", "systemd", *arguments],
                                   env=self.env, stderr=subprocess.PIPE, pass_fds=[one.fileno() for one in sockets])
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def listener(self, kind=socket.AF_UNIX):
        # Above those that the shell gives the program.
        first = socket.socket(kind, socket.SOCK_STREAM)
        high = os.dup(first.fileno())
        os.dup2(high, 50)
        os.close(high)
        first.close()
        listener = socket.socket(fileno=50)
        self.addCleanup(listener.close)
        listener.bind(str(self.path("passed")) if kind == socket.AF_UNIX else ("127.0.0.1", 0))
        return listener

    def test_it_serves_the_socket_that_is_passed(self):
        listener = self.listener()
        listener.listen()
        waiting = Client(self.path("passed"))
        waiting.request("GET", "/healthz")  # Before there is a server.
        self.process = self.pass_sockets(listener, arguments=("--tenants", "uid"))
        self.assertEqual(self.process.stderr.readline().decode(), f"once: listening on unix:{self.path('passed')}\n")
        self.assertEqual(waiting.getresponse().status, 200)
        waiting.close()
        self.socket = self.path("passed")
        self.use({}, self.claim({}, "a"), "complete", b"x")
        self.assertEqual(self.show("a", "--scope", f"orders/@tenant=uid-{os.geteuid()}")["state"], "completed")
        self.process.terminate()
        self.assertEqual(self.process.wait(), 0)
        self.assertTrue(self.path("passed").exists())  # It is systemd's.
        self.process = self.pass_sockets(listener, arguments=("--tenants", "uid"))
        self.assertEqual(self.begin({}, "a").answer, "replayed")

    def test_an_address_that_is_passed_has_the_same_rules(self):
        listener = self.listener(socket.AF_INET)
        listener.listen()
        self.process = self.pass_sockets(listener, arguments=("--token-file", self.named_tokens(TOKENS)))
        self.port = int(self.process.stderr.readline().split()[-1])
        self.assertEqual(self.port, listener.getsockname()[1])
        self.assertEqual(self.begin({}, "a").status, 401)
        self.assertEqual(self.begin(self.bearer(TOKENS["red"]), "a").status, 201)

    def test_what_is_not_clear_is_refused(self):
        listener = self.listener()
        for listens, more, word in ((False, {}, "no listening stream socket"), (True, {}, "--tenants uid"),
                                    (True, {"fds": 2}, "one socket, and 2 were passed"), (True, {"pid": "1"}, "none was passed"),
                                    (True, {"fds": "x"}, "none was passed"),
                                    (True, {"arguments": ("--tenants", "uid", "--listen-mode", "0660")}, "SocketMode=")):
            if listens:
                listener.listen()
            with self.subTest(word):
                process = self.pass_sockets(listener, **more)
                said = process.stderr.read().decode()
                self.assertEqual(process.wait(), 64, said)
                self.assertIn(word, said)

    def test_children_do_not_get_the_socket(self):
        listener = self.listener()
        listener.listen()
        self.process = self.pass_sockets(listener, arguments=("--tenants", "uid"))
        self.process.stderr.readline()
        status = f"/proc/{self.process.pid}/fdinfo/3"
        with open(status, encoding="ascii") as file:
            flags = next(line for line in file if line.startswith("flags:"))
        self.assertTrue(int(flags.split()[1], 8) & os.O_CLOEXEC)


if __name__ == "__main__":
    harness.main()
