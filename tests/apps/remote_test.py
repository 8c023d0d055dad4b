"""remote_test.py ONCE: `once run` where a server claims: restarts, deaths, addresses, and servers that are none."""
import contextlib
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading

import harness
import on_demand_test
import serve_test
from harness import Case, alive, wait_until

LONG = ["--lease", "60s"]  # Longer than any test.


class AtServer(serve_test.ServeCase):
    def setUp(self):
        super().setUp()
        self.url = f"once://{self.socket}"

    def expect(self, done, code, stdout=None, stderr=None):
        return Case.expect(self, done, code, stdout, stderr)

    def run_at(self, *arguments, url=None, **options):
        return self.once("run", "--store", url or self.url, *arguments, **options)

    def start_at(self, *arguments, url=None):
        return self.start("run", "--store", url or self.url, *arguments)

    def end(self, process, code, stdout=None, stderr=None):
        out, err = process.communicate(timeout=harness.DEADLINE_S)
        return self.expect(subprocess.CompletedProcess([], process.returncode, out, err), code, stdout, stderr)

    def kill_server(self):
        self.process.kill()
        self.process.wait()

    def at_gate(self, name="gate"):
        """A command that says its process id, and waits until the gate is opened."""
        self.fifo(name)
        return ["--", "sh", "-c", f"echo x >>ran; echo $$ >{name}.pid; read go <{name}; echo done"]

    def test_keys_are_those_of_the_store(self):
        command = ["--key", "k", "--", "sh", "-c", "echo x >>ran; echo out; echo err >&2; exit 3"]
        for done in (self.run_at(*command), self.once("run", *command), self.run_at(*command)):
            self.expect(done, 3, b"out\n")
            self.assertEqual(done.stderr, b"err\n")
        self.assertEqual(self.runs(), 1)
        self.expect(self.run_at("--key", "k", "--", "other"), 241, b"", b"was already used for something else")
        self.expect(self.once("run", "--key", "k", "--", "other"), 241, b"", b"was already used for something else")

    def test_a_claim_survives_the_death_of_the_server(self):
        held = self.start_at("--key", "k", *LONG, *self.at_gate())
        self.pid_in("gate.pid")
        self.restart()
        self.expect(self.run_at("--key", "k", "--fingerprint", "none", "--", "touch", "other"), 240)
        self.open_gate("gate")
        self.end(held, 0, b"done\n", b"")
        self.assertEqual(self.show("k")["attempt"], 1)
        self.assertEqual(self.runs(), 1)

    def test_a_finish_waits_for_the_server(self):
        held = self.start_at("--key", "k", *LONG, *self.at_gate())
        pid = self.pid_in("gate.pid")
        self.kill_server()
        self.open_gate("gate")
        wait_until(lambda: not alive(pid), "the command ends")
        self.serve()
        self.end(held, 0, b"done\n", b"")
        self.assertEqual(self.show("k")["state"], "completed")

    def test_without_a_server_a_command_ends_with_its_lease(self):
        held = self.start_at("--key", "k", "--lease", "1s", "--grace", "60s", *self.at_gate(), url=self.url + "?timeout=100ms")
        self.pid_in("gate.pid")
        self.kill_server()
        self.end(held, 245, b"", b"the claim could not be renewed, so once stopped the command")

    def test_a_result_that_no_server_takes_is_reported(self):
        for flags, code in (([], 0), (["--on-unrecorded", "fail"], 247)):
            with self.subTest(flags=flags):
                name = f"gate{code}"
                held = self.start_at("--key", name, "--lease", "3s", *flags, *self.at_gate(name), url=self.url + "?timeout=100ms")
                self.pid_in(f"{name}.pid")
                self.kill_server()
                self.open_gate(name)
                self.end(held, code, b"done\n", b"its result could not be stored")
                self.serve()

    def test_a_killed_client_lapses(self):
        held = self.start_at("--key", "k", *LONG, *self.at_gate())
        pid = self.pid_in("gate.pid")
        held.kill()
        wait_until(lambda: not alive(pid), "the guard ends the command")
        again = ["--key", "k", "--fingerprint", "none", "--", "sh", "-c", "echo $ONCE_ATTEMPT"]
        self.expect(self.run_at(*again), 240)
        self.kill_server()
        self.lapse()
        self.serve()
        self.expect(self.run_at(*again), 0, b"2\n")

    def test_a_killed_client_under_hold_is_unknown_after_its_lease(self):
        held = self.start_at("--key", "k", *LONG, "--on-lapse", "hold", *self.at_gate())
        pid = self.pid_in("gate.pid")
        held.kill()
        wait_until(lambda: not alive(pid), "the guard ends the command")
        again = ["--key", "k", "--fingerprint", "none", "--", "touch", "again"]
        self.expect(self.run_at(*again), 240)
        self.kill_server()
        self.lapse()
        self.serve()
        self.expect(self.run_at(*again), 242, b"", b"expired before it finished")
        self.assertFalse(self.path("again").exists())

    def test_who_waits_gets_the_result(self):
        held = self.start_at("--key", "k", *LONG, *self.at_gate())
        self.pid_in("gate.pid")
        command = self.start_at("--key", "k", "--wait", "60s", "--fingerprint", "none", "--", "touch", "other")
        wait_until(lambda: self.waiting() == 1, "it waits at the server")
        self.open_gate("gate")
        self.end(held, 0, b"done\n")
        self.end(command, 0, b"done\n")

    def test_an_interrupted_wait_leaves_no_claim(self):
        held = self.start_at("--key", "k", *LONG, "--on-failure", "release", "--fingerprint", "none", "--", "sh", "-c",
                             f"echo $$ >gate.pid; read go <{self.fifo('gate')}; exit 1")
        self.pid_in("gate.pid")
        waits = self.start_at("--key", "k", "--wait", "60s", "--fingerprint", "none", "--", "touch", "other")
        wait_until(lambda: self.waiting() == 1, "it waits at the server")
        waits.send_signal(signal.SIGINT)
        waits.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(waits.returncode, -signal.SIGINT)
        self.open_gate("gate")
        self.end(held, 1)
        self.expect(self.run_at("--key", "k", "--wait", "60s", "--fingerprint", "none", "--", "echo", "ran"), 0, b"ran\n")
        self.assertFalse(self.path("other").exists())

    def waiting(self):
        """How many connections the server has, besides that of the holder."""
        count = 0
        inodes = {os.readlink(each) for each in self.files_of(self.process.pid)}
        for line in pathlib.Path("/proc/net/unix").read_text().splitlines():
            fields = line.split()
            if len(fields) == 8 and fields[7] == str(self.socket) and f"socket:[{fields[6]}]" in inodes and fields[5] == "03":
                count += 1
        return count - 1

    @staticmethod
    def files_of(pid):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                yield f"/proc/{pid}/fd/{name}"

    def test_what_belongs_to_the_store_is_refused(self):
        for flags in (["--reconcile", "true"], ["--keep-input", "args"], ["--offload", "results"]):
            with self.subTest(flags=flags):
                self.expect(self.run_at("--key", "k", *flags, "--", "touch", "ran"), 64, b"", flags[0].encode())
        self.assertFalse(self.path("ran").exists())
        for command in (["ls"], ["show", "--key", "k"], ["doctor"], ["stats"], ["sweep"], ["serve", "--on-demand"],
                        ["proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--no-principal"],
                        ["serve", "--listen", f"unix:{self.dir}/other"]):
            with self.subTest(command=command):
                done = self.once(*command, "--store", self.url)
                self.assertIn(done.returncode, (64, 243))
                self.assertIn(b"names a server", done.stdout + done.stderr)
        # The store itself, beside its server.
        self.expect(self.run_at("--key", "k", "--", "true"), 0)
        self.assertIn(b"completed", self.expect(self.once("ls", "--store", f"once+{self.store}"), 0).stdout)


class Urls(Case):
    def test_what_would_protect_less_is_refused(self):
        for url, why in (("once:/run/s", "three"), ("once:run", "once:///run/once.sock"), ("once://run/once.sock", "third slash"),
                         ("once://host", "port"), ("once://host:", "port"), ("once://host:x", "port"), ("once://host:0", "port"),
                         ("once://host:65536", "port"), ("once://:7117", "host"), ("once://::1:7117", "host"),
                         ("once://host:7117/path", "third slash"), ("once://host:7117?token=x", "unknown parameter 'token'"),
                         ("once://secret@host:7117", "token_file="), ("once://host:7117", "needs a token"),
                         ("once://host:7117?tls=0&token_file=t", "without TLS"), ("once://host:7117?tls=no", "0 or 1"),
                         ("once://127.0.0.1:7117?tls=0&token_file=t&ca_file=c", "leave out tls=0"),
                         ("once://host:7117?cert_file=c", "key_file"), ("once://host:7117?token_file=", "names no file"),
                         ("once://host:7117?token_file=t&cert_file=c&key_file=k", "not both"),
                         ("once:///s?token_file=t", "for an address"), ("once:///s?tls=1", "for an address"),
                         ("once:///s?seal=k", "unknown parameter"), ("once:///" + "s" * 108, "bytes"),
                         ("once:///s?timeout=0ms", "timeout"), ("once+memory:", "one process"), ("once+once:///s", "names a server"),
                         ("once+sqlite", "scheme"), ("once+sqlite:x?fallback=f", "fallback="),
                         ("Once:///s", "scheme"), ("onec:///s", "once:")):
            with self.subTest(url=url):
                done = self.once("run", "--store", url, "--key", "k", "--", "touch", "ran")
                if why != "three":
                    self.assertIn(why.encode(), done.stderr)
                self.assertEqual(done.returncode, 64, done.stderr)
                self.assertNotIn(b"secret", done.stderr)
        self.assertFalse(self.path("ran").exists())

    def test_without_a_server_nothing_runs_unless_told_so(self):
        url = f"once://{self.dir}/none?timeout=100ms"
        self.expect(self.once("run", "--store", url, "--key", "k", "--", "touch", "ran"), 243, b"", b"Nothing was run")
        self.assertFalse(self.path("ran").exists())
        done = self.once("run", "--store", url, "--key", "k", "--on-store-down", "run-unprotected", "--", "echo", "ran")
        self.expect(done, 0, b"ran\n", b"without protection")


class Addresses(Case):
    def test_a_loopback_address_with_a_token(self):
        token = "x" * 40
        for name, text in (("token", token), ("wrong", "y" * 40), ("open", token)):
            self.path(name).write_text(text + "\n")
            self.path(name).chmod(0o644 if name == "open" else 0o600)
        server = self.start("serve", "--listen", "127.0.0.1:0", "--token-file", "token", "--log", "none")
        port = server.stderr.readline().decode().split()[-1]
        url = f"once://127.0.0.1:{port}?tls=0&timeout=60s"
        command = ["run", "--key", "k", "--", "echo", "ran"]
        for _ in range(2):
            self.expect(self.once(*command, env={**self.env, "ONCE_STORE": url, "ONCE_TOKEN_FILE": "token"}), 0, b"ran\n")
        for name, said in (("wrong", b"Put a token that it knows into wrong"), ("none", b"the token file none cannot be read"),
                           ("open", b"the token file open can be opened by every user")):
            done = self.once("run", "--store", f"{url}&token_file={name}", "--key", "other", "--", "touch", "other")
            self.expect(done, 243, b"", said)
        self.assertFalse(self.path("other").exists())
        self.assertNotIn(token.encode(), done.stderr)

    def test_tenants_share_no_results(self):
        tokens = {name: f"the-token-of-{name}-" + "x" * 20 for name in ("blue", "red")}
        lines = [f"{name} {hashlib.sha256(token.encode()).hexdigest()}\n" for name, token in tokens.items()]
        self.path("tokens").write_text("".join(lines))
        self.path("tokens").chmod(0o600)
        server = self.start("serve", "--listen", "127.0.0.1:0", "--token-file", "tokens", "--log", "none")
        port = server.stderr.readline().decode().split()[-1]
        derived = set()
        for name, token in tokens.items():
            self.path(name).write_text(token)
            self.path(name).chmod(0o600)
            url = f"once://127.0.0.1:{port}?tls=0&token_file={name}"
            command = ["run", "--store", url, "--scope", "pay", "--key", "k", "--", "sh", "-c", "echo $ONCE_SCOPE $ONCE_DERIVED_KEY"]
            done = self.expect(self.once(*command), 0)
            self.assertEqual(done.stdout, self.once(*command).stdout)
            scope, key = done.stdout.split()
            self.assertEqual(scope, b"pay")
            derived.add(key)
            self.assertEqual(self.show("k", "--scope", f"pay/@tenant={name}")["state"], "completed")
        self.assertEqual(len(derived), 2, "services downstream must not take one tenant's call for the other's")


class OnDemand(on_demand_test.OnDemandCase):
    def setUp(self):
        super().setUp()
        self.url = f"once+{self.store}"
        self.env.pop("ONCE_STORE")

    def held(self):
        gate = self.fifo("gate")
        process = self.start("run", "--store", self.url, "--key", "k", *LONG, "--", "sh", "-c",
                             f"echo x >>ran; echo $$ >gate.pid; read go <{gate}; echo done")
        self.pid_in("gate.pid")
        return process

    def end(self, process):
        out, err = process.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual((process.returncode, out, err), (0, b"done\n", b""))

    def test_the_first_call_starts_it_and_others_share_it(self):
        for _ in range(2):
            self.expect(self.once("run", "--store", self.url, "--key", "k", "--", "echo", "ran"), 0, b"ran\n", b"")
        path = self.place("--store", self.store)
        self.assertTrue(alive(self.pid_of(path)))
        self.assertEqual(self.up("--store", self.url), path, "other clients mean the same by the same variable")

    def test_an_open_claim_keeps_it_alive(self):
        path = self.up("--store", self.store, "--idle-timeout", "100ms")
        pid = self.pid_of(path)
        held = self.held()
        for _ in range(5):  # Idle times in which a server without a claim would have ended.
            harness.time.sleep(0.1)
        self.assertTrue(alive(pid))
        self.open_gate("gate")
        self.end(held)
        wait_until(lambda: not alive(pid), "it ends when nobody uses it")

    def test_one_that_was_killed_is_replaced_and_the_claim_goes_on(self):
        held = self.held()
        path = self.place("--store", self.store)
        first = self.pid_of(path)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not alive(first), "it is dead")
        self.open_gate("gate")
        self.end(held)
        self.assertNotEqual(self.pid_of(path), first)
        self.assertEqual(self.show("k", "--store", self.store)["attempt"], 1)

    def test_a_store_that_cannot_be_used_is_reported_once(self):
        done = self.once("run", "--store", "once+sqlite:/nowhere/once.db", "--key", "k", "--", "touch", "ran")
        self.expect(done, 243, b"", b"Nothing was run")
        self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)
        self.assertIn(b"sqlite store /nowhere/once.db", done.stderr)
        done = self.once("run", "--store", "once+nosuch:x", "--key", "k", "--", "touch", "ran")
        self.expect(done, 243, b"", b"unknown scheme 'nosuch'")
        self.assertFalse(self.path("ran").exists())


class Stranger:
    """Listens on a socket, and gives each request the next of these responses; the last one again and again."""

    def __init__(self, path, responses):
        self.responses, self.requests = list(responses), []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen(64)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection):
        with connection, contextlib.suppress(OSError):
            received = b""
            while True:
                while b"\r\n\r\n" not in received:
                    more = connection.recv(65536)
                    if not more:
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                length = int(next((line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b"0"))
                while len(received) < length:
                    received += connection.recv(65536)
                self.requests.append((head.split(b" ")[1].decode(), received[:length]))
                received = received[length:]
                response = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
                connection.sendall(response(self.requests[-1][1]) if callable(response) else response)
                if b"Connection: close" in response if isinstance(response, bytes) else False:
                    return

    def close(self):
        self.listener.close()


def response(status, headers, body):
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def problem(status, word, headers=None, **members):
    body = json.dumps({"type": f"urn:once:problem:{word}", "title": "t", "status": status, "detail": "the detail", **members})
    return response(status, {"Content-Type": "application/problem+json", **(headers or {})}, body.encode())


def claimed(**members):
    claim = {"claim": "01" + "ab" * 40, "stored_key_hex": "236b", "verdict": "execute", "attempt": 1, "token": 7, "lease_ms": 60000,
             "valid_for_ms": 60000, "steps": {}, "derived_keys": {}, **members}
    return response(201, {"Once-Answer": "claimed", "Content-Type": "application/json"}, json.dumps(claim).encode())


HTML = b"<html><body>It works!</body></html>"
RECORDED = response(200, {"Once-Answer": "recorded"}, b'{"answer": "recorded", "state": "completed"}')


class Strangers(Case):
    """What listens there is no server of ours, another version of it, or behind a gateway."""

    def call(self, *responses, key="k", timeout="300ms"):
        path = self.path("s")
        path.unlink(missing_ok=True)
        stranger = Stranger(path, responses)
        self.addCleanup(stranger.close)
        done = self.once("run", "--store", f"once://{path}?timeout={timeout}", "--key", key, "--", "sh", "-c", "echo x >>ran; echo ran")
        return done, stranger

    def test_nothing_runs_on_an_answer_that_is_not_ours(self):
        big = b"x" * (17 << 20)
        for name, answer in {
            "a page": response(200, {"Content-Type": "text/html"}, HTML),
            "a created page": response(201, {"Content-Type": "text/html"}, HTML),
            "an answer without its word": response(201, {"Content-Type": "application/json"}, b'{"claim": "01ab"}'),
            "a redirect": response(302, {"Location": "http://elsewhere/"}, b""),
            "not found": response(404, {"Content-Type": "text/html"}, HTML),
            "a problem of somebody else": response(409, {"Content-Type": "application/problem+json"}, b'{"type": "about:blank"}'),
            "a word of a later version": problem(409, "not-invented-yet"),
            "a later version's success": response(200, {"Once-Answer": "postponed"}, b"{}"),
            "a bad gateway": response(502, {"Content-Type": "text/html"}, HTML),
            "too many requests": response(429, {"Retry-After": "3600"}, HTML),
            "no claim": claimed(claim=None),
            "a claim with a path": claimed(claim="../../admin"),
            "no token": claimed(token="7"),
            "a negative lease": claimed(valid_for_ms=-1),
            "steps that are none": claimed(steps=[1]),
            "no JSON": response(201, {"Once-Answer": "claimed"}, HTML),
            "nested JSON": response(201, {"Once-Answer": "claimed"}, b"[" * 100_000),
            "a cut body": b"HTTP/1.1 201 X\r\nOnce-Answer: claimed\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n{",
            "a body without an end": b"HTTP/1.1 201 X\r\nOnce-Answer: claimed\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n{",
            "a huge body": response(200, {"Once-Answer": "replayed"}, big),
            "no HTTP": b"220 smtp.example ESMTP\r\n\r\n",
            "nothing": b"Connection: close",
            "an old server that does not know a member": problem(400, "bad-request"),
            "a token that is wanted": problem(401, "unauthorized"),
            "a client that is forbidden": problem(403, "no-tenant"),
        }.items():
            with self.subTest(name=name):
                done, _ = self.call(answer)
                self.assertIn(done.returncode, (64, 243, 244), done)
                self.assertEqual(done.stdout, b"")
                self.assertIn(b"Nothing was run", done.stderr)
                self.assertNotIn(b"<html>", done.stderr)
                self.assertEqual(self.runs(), 0)

    def test_what_passes_is_tried_again_with_the_same_bytes(self):
        done, stranger = self.call(response(502, {}, HTML), response(503, {"Retry-After": "0"}, HTML), problem(503, "stopping", {"Retry-After": "0"}),
                                   b"HTTP/1.1 201 X\r\nConnection: close\r\nContent-Length: 5\r\n\r\n", claimed(), RECORDED, timeout="60s")
        self.expect(done, 0, b"ran\n")
        self.assertEqual([path for path, _ in stranger.requests], ["/v1/claims"] * 5 + [f"/v1/claims/01{'ab' * 40}/complete"])
        self.assertEqual(len({body for _, body in stranger.requests[:5]}), 1)

    def test_a_finish_that_is_not_answered_as_such_is_not_recorded(self):
        for name, answer in {"a page": response(200, {"Content-Type": "text/html"}, HTML), "another word": response(200, {"Once-Answer": "renewed"}, b"{}"),
                             "a gateway": response(504, {}, HTML), "nobody": b"Connection: close"}.items():
            with self.subTest(name=name):
                lease = {"lease_ms": 1000, "valid_for_ms": 1000}
                path = self.path("s")
                path.unlink(missing_ok=True)
                stranger = Stranger(path, [claimed(**lease), answer])
                self.addCleanup(stranger.close)
                done = self.once("run", "--store", f"once://{path}?timeout=100ms", "--key", "k", "--lease", "1s", "--on-unrecorded", "fail", "--", "echo", "ran")
                self.expect(done, 247, b"ran\n", b"could not be stored")

    def test_a_server_of_a_later_version_may_say_more(self):
        more = {"a_new_member": [1, {"x": None}]}
        done, _ = self.call(claimed(claim="02" + "cd" * 600, **more), RECORDED)
        self.expect(done, 0, b"ran\n", b"")

    def test_a_clock_that_differs_changes_nothing(self):
        for date in ("Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"):
            head, _, body = claimed().partition(b"\r\n\r\n")
            done, _ = self.call(head + f"\r\nDate: {date}".encode() + b"\r\n\r\n" + body, RECORDED, key=date)
            self.expect(done, 0, b"ran\n", b"")


if __name__ == "__main__":
    harness.main()
