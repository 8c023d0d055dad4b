"""once proxy as a program, with curl: signals, deaths, the access log, exit codes."""
import contextlib
import fcntl
import gzip
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading

from service import ProxyCase, UnixService, harness, metrics_page, wait_until


class UnixSockets(ProxyCase):
    def setUp(self):
        super().setUp()
        self.service = self.serve(UnixService(port=str(self.path("app.sock"))))
        self.socket = self.path("proxy.sock")

    def proxy(self, *arguments, upstream=None):
        process, _ = self.start_alone(
            "--listen", f"unix:{self.socket}", "--upstream", upstream or f"unix:{self.service.port}", "--no-principal",
            "--access-log", self.path("access.log"), *arguments)
        return process

    def ask(self, key, *arguments, target="/charges"):
        done = self.until_logged(lambda: subprocess.run(
            ["curl", "-sS", "-i", "--max-time", "60", "--path-as-is", "-H", f"Idempotency-Key: {key}", "-d", "cents=500",
             "--unix-socket", self.socket, *arguments, f"http://shop{target}"],
            stdout=subprocess.PIPE, check=True, timeout=90))
        return done.stdout.decode().replace("\r\n", "\n")

    def refused(self):
        done = self.once("proxy", "--listen", f"unix:{self.socket}", "--upstream", "http://127.0.0.1:9", "--no-principal")
        self.assertEqual(done.returncode, 243, done.stderr)
        return done.stderr.decode()

    def test_both_sides_may_be_unix_sockets(self):
        process = self.proxy("--max-connections-per-client", "1")
        self.assertEqual(stat.S_IMODE(self.socket.stat().st_mode), 0o660)
        self.assertTrue(self.ask("k").endswith("\n\ncharge 1\n"))
        self.assertIn("\nIdempotent-Replayed: true\n", self.ask("k"))
        [head] = self.service.heads
        self.assertEqual((head["X-Forwarded-For"], head["Host"]), ("127.0.0.1", "shop"))
        first = self.log(2)[0]
        self.assertEqual((first["client"], first["upstream"]), ("127.0.0.1", f"unix:{self.service.port}"))
        self.assertTrue(self.ask("l", "--http1.0", "-H", "Host:").endswith("charge 2\n"))
        self.assertEqual(self.service.heads[1]["Host"], "localhost")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        self.assertFalse(self.socket.exists())

    def test_a_service_that_is_gone_has_done_nothing(self):
        self.proxy("--aside-time", "1ms", "--aside-time-limit", "1ms")
        self.service.end()
        self.assertIn("upstream-unreachable", self.ask("k"))
        self.path("app.sock").unlink()
        self.assertIn("upstream-unreachable", self.ask("k"))
        self.service = self.serve(UnixService(port=str(self.path("app.sock"))))
        self.assertTrue(self.ask("k").endswith("charge 1\n"))

    def test_room_in_a_full_queue_is_waited_for(self):
        path = str(self.path("full.sock"))
        listening = socket.socket(socket.AF_UNIX)
        self.addCleanup(listening.close)
        listening.bind(path)
        listening.listen(0)
        waiting = []
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                self.addCleanup(waiting[-1].close)
                waiting[-1].setblocking(False)
                waiting[-1].connect(path)
        self.proxy("--connect-timeout", "100ms", "--aside-time", "1ms", "--aside-time-limit", "1ms", upstream=f"unix:{path}")
        self.assertIn("upstream-unreachable", self.ask("k"))
        self.assertEqual((self.log(1)[0]["cause"], self.log(1)[0]["fate"]), ("upstream-connect-timeout", "release"))

        def serve():
            while True:
                connection, _ = listening.accept()
                with connection:
                    if connection.recv(65536):
                        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok")
                        return
        for each in waiting:
            each.close()
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        wait_until(lambda: self.ask("k").endswith("\n\nok"), "there is room")
        serving.join(harness.DEADLINE_S)

    def test_a_killed_proxy_is_replaced_and_a_living_one_is_not(self):
        first = self.proxy("--listen-mode", "0600")
        self.assertEqual(stat.S_IMODE(self.socket.stat().st_mode), 0o600)
        self.assertIn("another process listens there", self.refused())
        self.assertIn("201", self.ask("k"))
        first.kill()
        first.wait(60)
        self.assertTrue(self.socket.is_socket())
        self.proxy()
        self.assertIn("\nIdempotent-Replayed: true\n", self.ask("k"))

    def test_what_others_have_there_stays(self):
        self.socket.write_text("mine")
        self.assertIn("not a socket", self.refused())
        self.assertEqual(self.socket.read_text(), "mine")
        self.socket.unlink()
        other = self.serve(UnixService(port=str(self.socket)))
        self.assertIn("another program listens there", self.refused())
        self.assertTrue(self.socket.is_socket())
        del other

    def test_requests_that_run_while_it_stops_leave_the_socket_to_the_next(self):
        self.service.hold = True
        first = self.proxy()
        running = subprocess.Popen(
            ["curl", "-sS", "--max-time", "60", "-H", "Idempotency-Key: k", "-d", "cents=500", "--unix-socket", self.socket,
             "http://shop/charges"], stdout=subprocess.PIPE)
        self.addCleanup(running.communicate)
        wait_until(lambda: self.service.ledger, "the service has the request")
        first.send_signal(signal.SIGTERM)
        wait_until(lambda: not self.socket.exists(), "it listens no more")
        self.proxy()
        self.service.go.set()
        self.assertEqual(running.communicate(timeout=60)[0], b"charge 1\n")
        self.assertEqual(first.wait(60), 0)
        self.assertIn("\nIdempotent-Replayed: true\n", self.ask("k"))

    def test_a_path_of_the_upstream_comes_before_the_target(self):
        self.path("proxy.toml").write_text(
            'health-path = "/healthz"\n[[route]]\npath = "/charges"\nmethods = ["POST"]\noperation = "charge"\n')
        first = self.proxy("--config", self.path("proxy.toml"), upstream=f"http://unix:{self.service.port}:/v1/pay/")
        self.assertIn("201", self.ask("k", target="/charges?a=1"))
        self.assertEqual(self.service.paths, ["/v1/pay/charges?a=1"])
        self.assertEqual(self.log(1)[0]["path"], "/charges")
        self.assertEqual(self.log(1)[0]["route"], "/charges")
        for out in ("/../admin", "/%2e%2e/admin", "/x/..%2f..%2fadmin", "/..;/admin", "/x/..\\..\\admin"):
            self.assertIn("path-unclear", self.ask("out", target=out))
        self.assertIn("201", self.ask("in", target="/x/y/../z"))
        self.assertEqual(self.service.paths[1:], ["/v1/pay/x/y/../z"])
        # No part of a key or a fingerprint.
        first.send_signal(signal.SIGTERM)
        self.assertEqual(first.wait(60), 0)
        self.proxy("--config", self.path("proxy.toml"))
        self.assertIn("\nIdempotent-Replayed: true\n", self.ask("k", target="/charges?a=1"))


class Program(ProxyCase):
    def test_switched_off_it_passes_everything_on_and_says_so(self):
        """Each time, whatever the log leaves out; and no command that it starts is switched off with it."""
        for number, log in enumerate((["--log", "none"], ["--log", "text", "--log-level", "err"], ["--log", "text"])):
            process = self.proxy(*log, env={**self.env, "ONCE_DISABLED": "1"})
            ran = [f"charge {2 * number + call}" for call in (1, 2)]
            for answer in ran:
                self.assertIn(answer, self.curl("order-17"))
            process.send_signal(signal.SIGTERM)
            told = process.communicate(timeout=60)[1].decode()
            self.assertEqual(sum("unprotected" in line for line in told.splitlines()), 2, told)
        self.proxy()
        self.assertIn("charge 7", self.curl("order-17"))
        done = self.once("proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9", "--no-principal",
                         env={**self.env, "ONCE_DISABLED": "ture"})
        self.expect(done, 64, stderr=b"ONCE_DISABLED is 'ture'")

    def test_curl_gets_what_the_page_says(self):
        process = self.proxy()
        first = self.curl("order-17")
        self.assertTrue(first.startswith("HTTP/1.1 201 Created\n"), first)
        self.assertTrue(first.endswith("\n\ncharge 1\n"), first)
        again = self.curl('"order-17"')
        self.assertIn("\nIdempotent-Replayed: true\n", again)
        self.assertTrue(again.endswith("\n\ncharge 1\n"), again)
        self.assertIn("HTTP/1.1 422 ", self.curl("order-17", "cents=900"))
        self.assertIn("HTTP/1.1 400 ", self.curl(""))
        self.path("big").write_text("x" * 2_000_000)
        self.assertIn("HTTP/1.1 413 ", self.curl("big", f"@{self.path('big')}"))  # curl asks for 100 Continue first.
        self.assertTrue(self.curl("chunks", "cents=500", "-H", "Transfer-Encoding: chunked").endswith("charge 2\n"))
        self.assertEqual(self.service.ledger, ["cents=500"] * 2)
        lines = self.log(6)
        self.assertEqual([line["outcome"] for line in lines],
                         ["executed", "replayed", "mismatch", "refused", "refused", "executed"])
        self.assertEqual([line["status"] for line in lines], [201, 201, 422, 400, 413, 201])
        self.assertEqual(lines[0]["fate"], "store")
        self.assertEqual(lines[0]["path"], "/charges")
        self.assertEqual(lines[0]["key_hash"], lines[1]["key_hash"])
        text = self.path("access.log").read_text()
        for secret in ("order-17", "cents", "secret"):
            self.assertNotIn(secret, text)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        # Another one on the same store knows it still.
        self.proxy()
        self.assertTrue(self.curl("order-17").endswith("\n\ncharge 1\n"))
        self.assertEqual(len(self.service.ledger), 2)

    def send(self, key, *arguments):
        """As curl(), with other bodies than -d."""
        done = self.until_logged(lambda: subprocess.run(
            ["curl", "-sS", "-i", "--max-time", "60", "-H", f"Idempotency-Key: {key}", *arguments,
             f"http://127.0.0.1:{self.port}/charges"], stdout=subprocess.PIPE, check=True, timeout=90))
        return done.stdout.decode().replace("\r\n", "\n")

    def test_forms_and_compressed_bodies_are_retried(self):
        # curl draws a boundary for each form, as other clients do.
        self.proxy()
        self.path("i.txt").write_bytes(b"invoice")
        form = ["-F", "order=17", "-F", f"file=@{self.path('i.txt')}"]
        self.assertNotIn("Idempotent-Replayed", self.send("form", *form))
        self.assertIn("\nIdempotent-Replayed: true\n", self.send("form", *form))
        boundaries = {line for body in self.service.ledger for line in body.splitlines() if line.startswith("--")}
        self.assertTrue(boundaries, self.service.ledger)
        self.path("i.txt").write_bytes(b"another")
        self.assertIn("HTTP/1.1 422 ", self.send("form", *form))
        for number, time in enumerate((1, 2, 3)):
            self.path("body.gz").write_bytes(gzip.compress(b'{"cents":%d}' % (number // 2), mtime=time))
            answer = self.send("gzip", "-H", "Content-Encoding: gzip", "--data-binary", f"@{self.path('body.gz')}")
            self.assertIn(["HTTP/1.1 201 ", "\nIdempotent-Replayed: true\n", "HTTP/1.1 422 "][number], answer)
        self.assertEqual(len(self.service.ledger), 2)

    def test_keys_that_are_bugs_are_refused(self):
        self.proxy()
        for key in ("undefined", "NULL", '"None"', "[object Object]", "00000000-0000-0000-0000-000000000000"):
            answer = self.curl(key)
            self.assertIn("HTTP/1.1 400 ", answer)
            self.assertIn("urn:once:problem:key-invalid", answer)
        self.assertEqual(self.service.ledger, [])

    def test_the_service_says_what_becomes_of_its_answer(self):
        self.proxy("--service-fate", "--send-claim")
        self.service.says = {"Once-Fate": "release"}
        for _ in range(2):
            answer = self.curl("k", "cents=1", "-H", "Once-Token: 1", "-H", "Once-Fate: hold")
            self.assertIn("HTTP/1.1 201 ", answer)
            self.assertNotIn("Once-Fate", answer)
        first, second = self.service.heads
        for head in (first, second):
            self.assertEqual(len(head.get_all("Once-Token")), 1)
            self.assertIsNone(head["Once-Fate"])
        self.assertGreater(int(second["Once-Token"]), int(first["Once-Token"]))
        self.assertGreater(int(first["Once-Token"]), 1)
        self.assertEqual(first["Once-Derived-Key"], second["Once-Derived-Key"])
        self.assertEqual(first["Once-Attempt"], "1")
        self.service.status, self.service.says = 502, {"Once-Fate": "complete"}
        self.assertIn("HTTP/1.1 502 ", self.curl("k", "cents=1"))
        replayed = self.curl("k", "cents=1")
        self.assertIn("\nIdempotent-Replayed: true\n", replayed)
        self.assertNotIn("Once-Fate", replayed)
        self.service.status, self.service.says = 201, {"Once-Fate": "completed"}  # Not one of the words.
        self.assertIn("HTTP/1.1 201 ", self.curl("l", "cents=1"))
        self.assertIn("outcome-unknown", self.curl("l", "cents=1"))
        self.assertEqual([line["fate"] for line in self.log(6) if "fate" in line and line["fate"]],
                         ["release", "release", "store", "hold"])

    def test_webhooks_are_delivered_until_they_are_processed(self):
        self.path("proxy.toml").write_text("\n".join(
            ['[[route]]', 'path = "/charges"', 'preset = "svix"', '']))
        self.proxy("--config", self.path("proxy.toml"))

        def deliver(attempt, event="done", name="webhook-id"):
            body = json.dumps({"event": event, "payload": {"id": 17}, "createdAt": attempt})
            return self.curl("", body, "-H", f"{name}: msg_2h", "-H", f"webhook-timestamp: {attempt}")
        for self.service.status in (500, 302, 410):  # No sender follows a redirect: it tries again.
            self.assertIn(f"HTTP/1.1 {self.service.status} ", deliver(1))
        self.service.status = 201
        self.assertIn("HTTP/1.1 201 ", deliver(2))
        self.assertIn("\nIdempotent-Replayed: true\n", deliver(3))
        self.assertIn("\nIdempotent-Replayed: true\n", deliver(4, name="svix-id"))
        self.assertIn("HTTP/1.1 422 ", deliver(5, event="deleted"))
        self.assertEqual(len(self.service.ledger), 4)

    def test_a_service_has_no_say_by_default(self):
        self.proxy()
        self.service.says = {"Once-Fate": "release"}
        first = self.curl("k", "cents=1", "-H", "Once-Token: 1")
        self.assertNotIn("Once-Fate", first)
        self.assertIn("\nIdempotent-Replayed: true\n", self.curl("k", "cents=1"))
        self.assertFalse([name for name in self.service.heads[0] if name.startswith("Once-")])

    def test_the_record_says_what_happened(self):
        self.proxy()
        self.service.status = None
        self.assertIn("HTTP/1.1 502 ", self.curl("k"))
        [record] = json.loads(self.once("ls", "--json").stdout)
        self.assertIn("the service closed the connection before the end of a response",
                      json.dumps(self.show(record["key"], "--scope", record["scope"])))

    def test_the_log_has_a_line_for_each_event(self):
        process = self.proxy("--log", "json")
        self.curl("order-17")
        self.curl("order-17")
        self.curl("order-17", "cents=900")
        shown = self.log(3)
        process.send_signal(signal.SIGTERM)
        *lines, ending = self.json_log(process.stderr.read().decode())
        self.assertEqual((ending["level"], ending["event"], ending["why"][:7]), ("notice", "note", "ending:"))
        self.assertEqual([(line["level"], line["event"]) for line in lines],
                         [("info", "claimed"), ("info", "work_done"), ("info", "completed"), ("info", "replayed"),
                          ("warning", "mismatch")])
        self.assertEqual({line["key"] for line in lines}, {"order-17"})
        self.assertEqual({line["key_hash"] for line in lines}, {line["key_hash"] for line in shown})
        for secret in ("cents", "secret"):
            self.assertNotIn(secret, str(lines))
        self.assertEqual(process.wait(60), 0)

    def test_all_lines_of_a_json_log_are_json(self):
        """Of the access log, of the events, and those about the process itself: from its start to what ends it."""
        process, self.port = self.start_proxy("--log", "json", "--access-log", "-", "--admin", "0")
        started = self.json_log("".join(process.stderr.readline().decode() for _ in range(2)))
        self.assertEqual([line["why"][:13] for line in started], ["operators on ", "the token of "])
        subprocess.run(self.curl_command("order-17", "cents=500"), stdout=subprocess.DEVNULL, check=True, timeout=90)
        process.send_signal(signal.SIGHUP)
        text = ""
        while '"reloaded, with' not in text:
            text += process.stderr.readline().decode()
        self.assertEqual(self.json_log(text)[-1]["why"], "reloaded, with 0 routes; nothing changed")
        process.send_signal(signal.SIGTERM)
        lines = self.json_log(text + process.stderr.read().decode())
        self.assertEqual(process.wait(60), 0)
        self.assertIn("executed", [line.get("outcome") for line in lines])
        # What ends it at once: a wrong flag, a wrong value, a certificate that is not there, a port that is taken.
        for arguments in (["--lsiten", "1"], ["--lease", "5"], ["--tls-cert", "none.pem", "--tls-key", "none.pem"],
                          ["--listen", f"127.0.0.1:{self.service.port}"], ["--config", "none.toml"]):
            least = ["--upstream", "http://127.0.0.1:1", "--no-principal"]
            if "--listen" not in arguments:
                least += ["--listen", "127.0.0.1:0"]
            for log in ([], ["--log", "json"], ["--log=json"]):
                with self.subTest(arguments=arguments, log=log):
                    done = self.once("proxy", *least, *arguments, *log)
                    self.assertIn(done.returncode, (64, 243))
                    self.assertEqual({line["level"] for line in self.json_log(done.stderr.decode())}, {"err"})
            self.assertTrue(self.once("proxy", *least, *arguments, "--log", "text").stderr.startswith(b"once: "))

    def test_a_log_that_nobody_reads_stops_no_request(self):
        process = self.proxy("--log", "json")
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        for number in range(20):
            self.assertIn("HTTP/1.1 201 ", self.curl(f"order-{number}"))
        os.set_blocking(process.stderr.fileno(), False)
        whole = process.stderr.read()
        self.assertTrue(whole.endswith(b"}\n"), whole)
        self.assertIn("HTTP/1.1 201 ", self.curl("after"))
        lost, *after = [json.loads(line) for line in process.stderr.read().splitlines()]
        self.assertEqual(lost["event"], "lines_lost")
        self.assertEqual(lost["lines"] + whole.count(b"\n"), 60)
        self.assertEqual([line["event"] for line in after], ["claimed", "work_done", "completed"])
        process.stderr.close()
        self.assertIn("HTTP/1.1 201 ", self.curl("without a reader"))

    def test_takes_all_the_files_that_it_may_and_says_if_they_are_few(self):
        def limit_to(soft, hard):
            return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        process = self.proxy("--max-connections", "200", preexec_fn=limit_to(64, 400))
        self.assertEqual(resource.prlimit(process.pid, resource.RLIMIT_NOFILE), (400, 400))
        self.assertIn("HTTP/1.1 201 ", self.curl("order-17"))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.stderr.readline()[:13], b"once: ending:")
        process = self.proxy("--max-connections", "201", preexec_fn=limit_to(64, 400))
        self.assertEqual(process.stderr.readline(),
                         b"once: --max-connections is 201, but this process may open only 400 files (ulimit -Hn), "
                         b"enough for 200 connections: raise the limit, or lower --max-connections\n")

    def test_operators_get_counts(self):
        process = self.proxy("--admin", "0")
        port = int(process.stderr.readline().decode().removeprefix("once: operators on port "))
        self.curl("order-17")
        self.log(1)

        def page(name):
            done = subprocess.run(["curl", "-sS", "--max-time", "60", f"http://127.0.0.1:{port}/{name}"],
                                  stdout=subprocess.PIPE, check=True, timeout=90)
            return done.stdout.decode()
        self.assertEqual(page("healthz"), "alive\n")
        self.assertEqual(page("readyz"), "ready\n")
        values = metrics_page.check(page("metrics"), "Operations", "Process", "Proxy", "Sweep", "Look at the store")
        for sample in ('once_requests_total{outcome="executed"}', 'once_claims_total{kind="claimed"}',
                       'once_operations_total{outcome="completed"}', "once_work_duration_seconds_count",
                       'once_begin_duration_seconds_count{outcome="claimed"}'):
            self.assertEqual(values[sample], 1, sample)

    def test_operators_get_counts_of_the_store(self):
        def lines(*arguments):
            process = self.proxy("--admin", "0", *arguments)
            port = int(process.stderr.readline().decode().removeprefix("once: operators on port "))
            return lambda: subprocess.run(["curl", "-sS", "--max-time", "60", f"http://127.0.0.1:{port}/metrics"],
                                          stdout=subprocess.PIPE, check=True, timeout=90).stdout.decode()
        page = lines("--stats-interval", "1s")
        self.service.hold = True
        client = subprocess.Popen(self.curl_command("k", "cents=500"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(client.communicate)
        wait_until(lambda: 'once_records{state="running"} 1\n' in page(), "the running request was counted")
        self.service.go.set()
        client.wait(60)
        wait_until(lambda: 'once_records{state="running"} 0\n' in page(), "it is over")
        self.assertIn("once_store_look_complete 1\n", page())
        off = lines("--stats-interval", "off")()
        self.assertNotIn("once_store_look", off)
        self.assertNotIn("once_records", off)

    def start_held(self, *arguments):
        """A proxy with a request under way at the service."""
        process = self.proxy(*arguments)
        self.service.hold = True
        client = subprocess.Popen(self.curl_command("k", "cents=500"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(client.communicate)
        wait_until(lambda: self.service.ledger, "the service was asked")
        return process, client

    def killed_while_held(self, *arguments):
        """What a retry is told by another proxy when the lease of the first, which was killed, is over."""
        process, client = self.start_held(*arguments)
        process.kill()
        process.wait()
        client.wait(60)
        self.service.hold = False
        self.service.go.set()
        self.proxy(*arguments)
        self.assertIn("urn:once:problem:in-progress", self.curl("k"))
        self.lapse()
        return self.curl("k")

    def test_a_page_of_another_origin_reads_the_errors(self):
        self.proxy("--cors-origin", "https://shop.example")
        page = ("-H", "Origin: https://shop.example")
        allowed = "\nAccess-Control-Allow-Origin: https://shop.example\n"
        exposed = "\nAccess-Control-Expose-Headers: Retry-After, Idempotent-Replayed\n"
        self.service.says = {"Access-Control-Allow-Origin": "https://shop.example"}
        first = self.curl("k", "cents=1", *page)
        self.assertEqual(first.count(allowed), 1, first)
        replayed = self.curl("k", "cents=1", *page)
        for header in (allowed, exposed, "\nIdempotent-Replayed: true\n"):
            self.assertEqual(replayed.count(header), 1, replayed)
        for status, arguments in ((422, ("k", "cents=2")), (400, ("undefined", "cents=2"))):
            answer = self.curl(*arguments, *page)
            for header in (f"HTTP/1.1 {status} ", allowed, exposed, "\nVary: Origin\n",
                           "\nAccess-Control-Allow-Credentials: true\n"):
                self.assertIn(header, answer)
            for other in ("https://shop.example.evil", "https://SHOP.example", "null"):
                self.assertNotIn("Access-Control-", self.curl(*arguments, "-H", f"Origin: {other}"))
            self.assertNotIn("Access-Control-", self.curl(*arguments))
        # What the service does not let pages read, they do not read.
        self.service.says = {}
        self.assertNotIn("Access-Control-", self.curl("l", "cents=1", *page))

    def test_work_goes_on_after_the_client_was_told_that_it_is_in_progress(self):
        self.proxy("--client-timeout", "200ms", "--answer-timeout", "10m")
        self.service.hold = True
        # In the access log it is when the work is done.
        answer = subprocess.run(self.curl_command("k", "cents=500"), stdout=subprocess.PIPE, check=True, timeout=90)
        answer = answer.stdout.decode().replace("\r\n", "\n")
        self.assertIn("HTTP/1.1 409 ", answer)
        self.assertIn("urn:once:problem:in-progress", answer)
        self.assertIn("\nRetry-After: 5\n", answer)
        self.assertIn("\nConnection: close\n", answer)
        self.assertIn("urn:once:problem:in-progress", self.curl("k", "cents=500"))
        self.service.hold = False
        self.service.go.set()
        retry, first = self.log(2)  # In the order of their ends.
        self.assertEqual(retry["outcome"], "conflict")
        self.assertEqual((first["status"], first["cause"], first["fate"]), (409, "client-waited", "store"))
        answer = self.curl("k", "cents=500")
        self.assertIn("HTTP/1.1 201 ", answer)
        self.assertIn("\nIdempotent-Replayed: true\n", answer)
        self.assertEqual(self.service.ledger, ["cents=500"])

    def test_killed_between_claim_and_finish_it_is_unknown(self):
        answer = self.killed_while_held()
        self.assertIn("HTTP/1.1 409 ", answer)
        self.assertIn("urn:once:problem:outcome-unknown", answer)
        self.assertEqual(self.service.ledger, ["cents=500"])
        # Somebody has looked into the service's books.
        record = json.loads(self.once("ls", "--json").stdout)[0]
        self.assertEqual(record["state"], "unknown")
        self.path("result").write_text("charge 1\n")
        self.expect(self.once("resolve", "--key", record["key"], "--scope", record["scope"], "--as", "completed",
                              "--reason", "it was charged", "--result", self.path("result"), "--content-type",
                              "text/plain"), 0)
        self.assertTrue(self.curl("k").endswith("\n\ncharge 1\n"))
        self.assertEqual(self.service.ledger, ["cents=500"])

    def test_killed_before_it_had_an_answer_with_takeover_it_is_run_again(self):
        answer = self.killed_while_held("--on-ambiguous", "takeover")
        self.assertTrue(answer.endswith("\n\ncharge 2\n"), answer)
        self.assertEqual(self.service.ledger, ["cents=500"] * 2)

    def test_a_service_that_is_killed_is_unknown(self):
        # Notes that it was asked, and dies of kill -9 with the answer half out.
        service = subprocess.Popen(
            [sys.executable, "-c", "import os, signal, socket, sys\n"
             "listener = socket.create_server(('127.0.0.1', 0))\n"
             "print(listener.getsockname()[1], flush=True)\n"
             "client = listener.accept()[0]\n"
             "client.recv(65536)\n"
             "print('charged', flush=True)\n"
             "client.sendall(b'HTTP/1.1 201 Created\\r\\nContent-Length: 9\\r\\n\\r\\nchar')\n"
             "os.kill(os.getpid(), signal.SIGKILL)"],
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(service.communicate)
        self.service.port = int(service.stdout.readline())
        self.proxy()
        self.assertIn("urn:once:problem:upstream-failed", self.curl("k"))
        self.assertIn("urn:once:problem:outcome-unknown", self.curl("k"))
        self.assertEqual(service.communicate(timeout=60)[0], "charged\n")
        self.assertEqual(service.returncode, -signal.SIGKILL)

    def test_sigterm_lets_what_runs_come_to_its_end(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                self.service.ledger.clear()
                self.service.go.clear()
                process, client = self.start_held("--store", f"sqlite:{self.path(str(int(number)))}")
                process.send_signal(number)
                self.assertIn(b"1 open connections have up to", process.stderr.readline())

                def refuses():
                    with socket.socket() as probe:
                        return probe.connect_ex(("127.0.0.1", self.port)) != 0
                wait_until(refuses, "it does not listen any more")
                self.assertIsNone(process.poll())
                self.service.go.set()
                self.assertTrue(client.communicate(timeout=60)[0].endswith(b"charge 1\n"))
                self.assertEqual(process.wait(60), 0)

    def test_after_the_deadline_what_runs_is_recorded_as_unknown(self):
        process, client = self.start_held("--stop-within", "50ms")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        client.wait(60)
        self.assertEqual(json.loads(self.once("ls", "--json").stdout)[0]["state"], "unknown")

    def test_what_cannot_be_is_refused(self):
        for arguments, code in ((["--listen", "nowhere", "--upstream", "http://a:1"], 64),
                                (["--listen", "127.0.0.1:0", "--upstream", "ftp://a:1"], 64),
                                (["--listen", "127.0.0.1:0", "--upstream", "http://a:1/path"], 64),
                                (["--listen", "127.0.0.1:0", "--upstream", "http://a:1", "--fate", "99=store"], 64),
                                (["--listen", "127.0.0.1:0", "--upstream", "http://a:1", "--lease", "1"], 64),
                                (["--listen", "127.0.0.1:0", "--upstream", "http://a:1", "--scope", "x" * 200], 64),
                                (["--upstream", "http://a:1"], 64),
                                (["--listen", "127.0.0.1:0", "--upstream", "http://a:1"], 64)):
            with self.subTest(arguments=arguments):
                self.expect(self.once("proxy", *arguments), code)
                self.assertFalse(self.path("once.db").exists())
        least = ["--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--no-principal"]
        done = self.once("proxy", *least, "--store", "memory:")  # After a restart it would run everything again.
        self.expect(done, 64)
        self.assertIn(b"exists only in this process", done.stderr)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            done = self.once("proxy", "--listen", listen, "--upstream", "http://127.0.0.1:1", "--no-principal")
            self.expect(done, 243)
            self.assertIn(b"cannot listen on 127.0.0.1 port", done.stderr)


if __name__ == "__main__":
    harness.main()
