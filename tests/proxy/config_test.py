"""once proxy with a file: what it reads, what it refuses, what it prints."""
import json
import pathlib
import re
import signal
import subprocess

from service import ProxyCase, Service, harness, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Config(ProxyCase):
    def write(self, *lines):
        self.path("proxy.toml").write_text("".join(line + "\n" for line in lines))
        return self.path("proxy.toml")

    def test_the_file_has_the_settings_and_flags_overrule_it(self):
        upstream = f"http://127.0.0.1:{self.service.port}"
        self.write('listen = "127.0.0.1:0"', f'upstream = "{upstream}"', "no-principal = true", 'key-header = "X-Id"',
                   'methods = ["GET"]')
        _, self.port = self.start_alone("--config", "proxy.toml", "--methods", "POST", "--access-log", "access.log")
        self.assertIn("HTTP/1.1 400 ", self.curl("order-17"))
        self.assertIn("HTTP/1.1 201 ", self.curl("", "cents=500", "-H", "X-Id: order-17"))
        self.assertEqual([line["outcome"] for line in self.log(2)], ["refused", "executed"])

    def test_check_prints_what_the_settings_come_to(self):
        self.write('listen = "127.0.0.1:0"', 'upstream = "http://pay:9000"', 'lease = "5m"', 'operation = "charge"',
                   'principal-header = ["X-Api-Key"]')
        done = self.expect(self.once("proxy", "--config", "proxy.toml", "--check", "--wait", "2s"), 0)
        for line in ('lease = "5m"', 'wait = "2s"', 'retention = "24h"', 'operation = "charge"', "optional-key = false"):
            self.assertIn(f"\n{line}\n", done.stdout.decode())
        self.path("printed.toml").write_bytes(done.stdout)
        self.expect(self.once("proxy", "--config", "printed.toml", "--check"), 0, done.stdout)
        shown = json.loads(self.once("proxy", "--config", "proxy.toml", "--check", "--json").stdout)
        self.assertTrue(shown["valid"])
        self.assertEqual(shown["settings"]["lease"], "5m")
        self.assertEqual(shown["settings"]["methods"], ["POST", "PATCH"])
        self.assertIsNone(shown["settings"]["wait"])
        self.assertFalse(self.path("once.db").exists())

    def test_what_is_left_out_of_a_body_stands_nowhere(self):
        self.write('listen = "127.0.0.1:0"', f'upstream = "http://127.0.0.1:{self.service.port}"', "no-principal = true",
                   'input-without = "card.number"', "[[route]]", 'path = "/charges"', "keep-input = true",
                   'input-without = "pin"')
        printed = self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 0).stdout
        self.path("printed.toml").write_bytes(printed)
        self.expect(self.once("proxy", "--config", "printed.toml", "--check"), 0, printed)
        process, self.port = self.start_alone("--config", "proxy.toml", "--access-log", "access.log", "--log", "none")
        body = '{"order": 17, "card": {"number": "4111-secret", "name": "Ann"}, "pin": "secret"}'
        self.assertIn("HTTP/1.1 201 ", self.curl("json", body, "-H", "Authorization: secret-token", "-H", "Cookie: a=secret"))
        self.assertIn("HTTP/1.1 201 ", self.curl("form", "card=4111-secret"))
        other = subprocess.run(["curl", "-sS", "-i", "-H", "Idempotency-Key: other", "-d", body,
                                f"http://127.0.0.1:{self.port}/refunds"], stdout=subprocess.PIPE, check=True, timeout=90)
        self.assertIn(b"HTTP/1.1 201 ", other.stdout)
        self.assertEqual(self.service.ledger, [body, "card=4111-secret", body], "the service gets all of it")
        files = {path.name: path.read_bytes() for path in self.dir.iterdir() if path.name != "proxy.toml"}
        self.assertIn("once.db", files)
        self.assertEqual([name for name, text in files.items() if b"secret" in text], [])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        records = json.loads(self.once("ls", "--json").stdout)
        inputs = {record["label"]: self.show(record["key"], "--scope", record["scope"])["input"] for record in records}
        self.assertEqual(inputs, {"json": '{"order":17,"card":{"number":"(left out)","name":"Ann"},"pin":"(left out)"}',
                                  "form": "", "other": ""})
        self.write('listen = "127.0.0.1:0"', 'upstream = "http://pay:9000"', "no-principal = true",
                   'input-without = "length(pin)"')
        self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 64, b"", b"proxy.toml:4:")

    def test_all_that_is_wrong_is_said_at_once(self):
        self.write('listen = "nowhere"', 'upstream = "http://pay:9000"', "leese = 5", 'lease = "5"',
                   "no-principal = true")
        said = ("once: --wait is '1'; write a whole number and a unit, as in 500ms, 30s, 5m, 24h or 7d\n"
                "once: proxy.toml:1:10: listen must be HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080, not 'nowhere'\n"
                "once: proxy.toml:3:1: unknown setting 'leese': did you mean 'lease'?\n"
                "once: proxy.toml:4:9: lease is '5'; write a whole number and a unit, as in 500ms, 30s, 5m, 24h or 7d\n")
        for check in (["--check"], []):
            done = self.expect(self.once("proxy", "--config", "proxy.toml", "--wait", "1", *check), 64, b"")
            told = done.stderr.decode()
            if not check:  # The log of a proxy is JSON, and so is what keeps it from starting.
                told = "".join(f"once: {line['why']}\n" for line in self.json_log(told) if line["level"] == "err")
            self.assertEqual(told, said)
        done = self.expect(self.once("proxy", "--config", "proxy.toml", "--check", "--json"), 64, stderr=b"")
        shown = json.loads(done.stdout)
        self.assertFalse(shown["valid"])
        self.assertEqual([(each["file"], each["line"], each["column"]) for each in shown["complaints"]],
                         [("proxy.toml", 1, 10), ("proxy.toml", 3, 1), ("proxy.toml", 4, 9)])
        self.assertFalse(self.path("once.db").exists())

    def test_a_file_that_is_none(self):
        self.expect(self.once("proxy", "--config", "nowhere.toml", "--log", "text"), 64, b"",
                    b"once: nowhere.toml: cannot be read: No such file or directory\n")
        self.expect(self.once("proxy", "--config", self.dir, "--check"), 64, b"", b"cannot be read: Is a directory\n")
        self.write("= 5")
        self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 64, b"", b"once: proxy.toml:1:1: ")

    def test_the_example_is_fine_and_the_page_shows_it(self):
        example = ROOT / "examples/proxy.toml"
        shown = json.loads(self.expect(self.once("proxy", "--config", example, "--check", "--no-files", "--json"), 0).stdout)
        self.assertEqual([(route["path"], route["optional-key"]) for route in shown["routes"]],
                         [("/health", False), ("/v1/*", True), ("/v1/charges", False), ("/v1/orders/{id}/pay", False)])
        page = (ROOT / "docs/proxy.md").read_text()
        for block in re.findall(r"^```toml\n(.*?)^```", page, re.S | re.M):
            who = [] if re.search("^(no-principal|principal-)", block, re.M) else ["no-principal = true"]
            self.write('listen = "127.0.0.1:0"', 'upstream = "http://pay:9000"', *who, *(
                line for line in block.splitlines() if not re.match("(listen|upstream) =", line)))
            self.expect(self.once("proxy", "--config", "proxy.toml", "--check", "--no-files"), 0)

    def test_check_looks_for_the_files(self):
        self.path("good.token").write_text("0123456789abcdef0123")
        self.path("good.token").chmod(0o600)
        self.path("open.token").write_text("0123456789abcdef0123")
        self.path("open.token").chmod(0o644)
        self.path("not.pem").write_text("none")
        settings = ('listen = "127.0.0.1:0"', 'upstream = "https://pay:9000"', "no-principal = true", 'admin = "127.0.0.1:0"')
        self.write(*settings, 'admin-token-file = "nowhere.token"', 'metrics-token-file = "open.token"', 'tls-cert = "not.pem"',
                   'tls-key = "gone.key"', 'client-ca = "gone.pem"', 'upstream-ca = "gone.pem"', 'access-log = "gone/access.log"',
                   'audit-log = "gone/audit.log"', 'store = "sqlite:gone/once.db?busy_timeout=1s"')
        done = self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 64, b"")
        lines = done.stderr.decode().splitlines()
        for line, said in zip(lines, ("5:.*admin-token-file: .*No such file", "6:.*metrics-token-file: .*every user", "7:.*tls-cert: ",
                                      "9:.*client-ca: gone.pem cannot be read: No such", "10:.*upstream-ca: ",
                                      "11:.*access-log: gone is no directory .*: No such", "12:.*audit-log: gone is no dir",
                                      "13:.*store: gone is no directory"), strict=True):
            self.assertRegex(line, f"^once: proxy.toml:{said}")
        shown = json.loads(self.expect(self.once("proxy", "--config", "proxy.toml", "--check", "--json"), 64).stdout)
        self.assertEqual((shown["valid"], len(shown["complaints"]), shown["complaints"][0]["line"]), (False, len(lines), 5))
        # Beside what is wrong without a look at them, too.
        self.write(*settings, 'admin-token-file = "nowhere.token"', 'wait = "1"')
        self.assertEqual([each["line"] for each in json.loads(
            self.expect(self.once("proxy", "--config", "proxy.toml", "--check", "--json"), 64).stdout)["complaints"]], [5, 6])
        self.path("kms.keys").write_text("2026-12 kms:AQIDAHh2 arn:aws:kms:eu-central-1:111122223333:key/1234\n")
        self.path("bad.keys").write_text("2026-12 short\n")
        for keys, said in (("gone.keys", b"store: the seal keys in gone.keys cannot be read: No such"), ("bad.keys", b"store: bad.keys")):
            self.write(*settings, 'store = "sqlite:once.db?seal=' + keys + '"')
            self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 64, b"", b"once: proxy.toml:5:9: " + said)
        self.write(*settings, 'store = "sqlite:once.db?seal=kms.keys"')
        self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 0)
        self.expect(self.once("proxy", "--config", "proxy.toml", "--check", "--no-files"), 0)
        own = ('upstream = "https://pay:9000"', "no-principal = true")
        self.write(f'listen = "unix:{self.dir}/gone/once.sock"', *own)
        self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 64, b"",
                    f"once: proxy.toml:1:10: listen: {self.dir}/gone is no directory".encode())
        self.write(f'listen = "unix:{self.dir}/once.sock"', *own, 'listen-mode = "0600"')
        self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 0)
        self.write('listen = "127.0.0.1:0"', *own, 'listen-mode = "0600"')
        self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 64, b"", b"once: listen_mode is of a Unix socket")
        # What the start refuses.
        for store in ('store = "sqlite:new.db"', 'store = "dynamodb:t"', ""):
            for lines in (("service-finish = true", store), (store, "[[route]]", 'path = "/charges"', "service-finish = true")):
                self.write('listen = "127.0.0.1:0"', *own, *lines)
                self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 64, b"", b"service-finish: only a service")
        self.write('listen = "127.0.0.1:0"', *own, "service-finish = true", 'store = "postgresql:///bank"')
        self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 0)
        self.write(*settings, 'admin-token-file = "good.token"', 'access-log = "access.log"', f'store = "sqlite:{self.dir}/new.db"')
        self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 0)
        self.assertEqual([name for name in ("access.log", "new.db") if self.path(name).exists()], [])

    def ask(self, path, *arguments):
        """The status, as curl sees it."""
        done = self.until_logged(lambda: subprocess.run(
            ["curl", "-sS", "--path-as-is", "-o", "-", "-w", "%{http_code}", "--max-time", "60", "-d", "cents=500",
             *arguments, f"http://127.0.0.1:{self.port}{path}"], stdout=subprocess.PIPE, check=True, timeout=90))
        return done.stdout.decode()[-3:]

    def start_with(self, *lines):
        self.write('listen = "127.0.0.1:0"', f'upstream = "http://127.0.0.1:{self.service.port}"',
                   'access-log = "access.log"', "no-principal = true", *lines)
        process, self.port = self.start_alone("--config", "proxy.toml")
        return process

    def test_routes_have_rules_of_their_own(self):
        self.start_with("optional-key = true", "[[route]]", 'path = "/charges"', "optional-key = false",
                        "[[route]]", 'path = "/public/*"', "protect = false",
                        "[[route]]", 'path = "/orders/{id}/pay"', 'key-header = "X-Id"')
        key = ["-H", "Idempotency-Key: k"]
        self.assertEqual(self.ask("/charges"), "400")
        self.assertEqual(self.ask("/Charges/"), "400")
        self.assertEqual(self.ask("/charges", *key), "201")
        self.assertEqual(self.ask("/public/x", *key), "201")
        self.assertEqual(self.ask("/public/x", *key), "201")
        self.assertEqual(self.ask("/orders/1/pay", "-H", "X-Id: 1"), "201")
        self.assertEqual(self.ask("/orders/1/pay", "-H", "X-Id: 1"), "201")
        self.assertEqual(self.ask("/else"), "201")
        for path in ("/public/../charges", "/public/..%2fcharges", "/public/..;/charges", "//charges", "/charges;a=b"):
            self.assertEqual(self.ask(path, *key), "400")
        self.assertEqual([line["outcome"] for line in self.log(13)],
                         ["refused", "refused", "executed", "passed", "passed", "executed", "replayed", "unprotected"] +
                         ["refused"] * 5)
        self.assertEqual(self.log(13)[-1]["cause"], "path-unclear")
        self.assertEqual([line.get("route") for line in self.log(13)][:9],
                         ["/charges"] * 3 + ["/public/*"] * 2 + ["/orders/{id}/pay"] * 2 + [None] * 2)
        self.assertEqual(self.log(13)[5]["path"], "/orders/1/pay")
        self.assertEqual(len(self.service.ledger), 5)

    def test_a_route_has_a_time_for_answers_of_its_own(self):
        self.service.hold = True
        process = self.start_with("optional-key = true", "aside-after-failures = 0",
                                  "[[route]]", 'path = "/charges"', 'answer-timeout = "50ms"')
        self.assertEqual(self.ask("/charges"), "504")
        client = subprocess.Popen(["curl", "-sS", "--max-time", "60", "-d", "x", f"http://127.0.0.1:{self.port}/else"],
                                  stdout=subprocess.PIPE)
        self.addCleanup(client.communicate)
        wait_until(lambda: "x" in self.service.ledger, "the service was asked")
        self.assertEqual(self.ask("/charges"), "504")
        # SIGHUP changes it.
        text = self.path("proxy.toml").read_text().replace('"50ms"', '"60s"')
        self.path("proxy.toml").write_text(text + '[[route]]\npath = "/else"\nanswer-timeout = "50ms"\n')
        self.assertEqual(self.hang_up(process), ["once: reloaded, with 2 routes; changed: routes\n"])
        self.assertEqual(self.ask("/else"), "504")
        self.service.go.set()
        self.assertTrue(client.communicate(timeout=60)[0].startswith(b"charge "))
        self.assertEqual(self.ask("/charges"), "201")

    def hang_up(self, process):
        process.send_signal(signal.SIGHUP)
        said = []
        while not said or "reloaded" not in said[-1]:
            said.append(process.stderr.readline().decode())
        return said

    def test_sighup_takes_up_new_rules_and_a_new_log(self):
        process = self.start_with('admin = "0"', "optional-key = true")
        admin = int(process.stderr.readline().decode().removeprefix("once: operators on port "))
        self.assertRegex(process.stderr.readline().decode(), "^once: the token of the operators' API is in /")
        self.assertEqual(self.ask("/charges"), "201")
        self.log(1)
        self.path("access.log").rename(self.path("access.log.1"))
        with self.path("proxy.toml").open("a") as file:
            file.write('threads = 3\n[[route]]\npath = "/charges"\noptional-key = false\n')
        self.assertEqual(self.hang_up(process), ["once: restart the proxy to change threads\n",
                                                  "once: reloaded, with 1 route; changed: routes\n"])
        self.assertEqual(self.ask("/charges"), "400")
        self.assertEqual([line["status"] for line in self.log(1)], [400])
        # A bad file changes nothing.
        with self.path("proxy.toml").open("a") as file:
            file.write("leese = 5\n")
        said = self.hang_up(process)
        self.assertRegex(said[0], r"^once: proxy\.toml:\d+:1: unknown setting 'leese'")
        self.assertEqual(said[-1], "once: not reloaded: the settings are wrong. The old ones stay in force.\n")
        self.assertEqual(self.ask("/charges"), "400")
        metrics = subprocess.run(["curl", "-sS", f"http://127.0.0.1:{admin}/metrics"], stdout=subprocess.PIPE, check=True,
                                 timeout=90).stdout.decode()
        self.assertIn('once_proxy_reloads_total{result="done"} 1\n', metrics)
        self.assertIn('once_proxy_reloads_total{result="failed"} 1\n', metrics)

    def test_a_reload_that_changes_what_a_key_is(self):
        process = self.start_with("# more")
        key = ["-H", "Idempotency-Key: k"]
        self.assertEqual(self.ask("/charges", *key), "201")
        text = self.path("proxy.toml").read_text()
        # Each of these made another key of it, and it ran again.
        for change in ('scope = "shop"', 'operation = "charge"', 'key-header = "X-Id"', 'methods = ["PUT"]', "protect = false",
                       '[[route]]\npath = "/charges"\nprincipal-header = "Host"'):
            self.path("proxy.toml").write_text(text.replace("# more", change))
            said = self.hang_up(process)
            self.assertRegex(said[0], "^once: keys would change, paths without a route: ")
            self.assertIn("once: not reloaded, the old settings stay in force: retries of operations that ran before would run again.", said[-1])
            self.assertEqual(self.ask("/charges", *key), "201")
        self.assertEqual(len(self.service.ledger), 1)
        # The word that it gave is for this change, and it is told all the same.
        word = re.search('accept-key-change = "([0-9a-f]{12})"', said[-1])[0]
        self.path("proxy.toml").write_text(text.replace("# more", word + '\nscope = "shop"'))
        self.assertIn("not reloaded", self.hang_up(process)[-1])
        self.path("proxy.toml").write_text(text.replace("# more", word + "\n" + change))
        self.assertEqual(self.hang_up(process)[1:], [
            "once: the file accepts this (accept-key-change): retries of operations that ran before the reload run again\n",
            "once: reloaded, with 1 route; changed: routes, settings (accept-key-change)\n"])
        self.assertEqual(self.ask("/charges", *key), "201")
        self.assertEqual(len(self.service.ledger), 2)
        # With the same word in it, nothing more changes.
        self.assertEqual(self.hang_up(process), ["once: reloaded, with 1 route; nothing changed\n"])

    def test_what_runs_keeps_its_rules(self):
        process = self.start_with("answer-limit = '1KiB'", "optional-key = true")
        self.service.hold = True
        client = subprocess.Popen(self.curl_command("k", "cents=500"), stdout=subprocess.PIPE)
        self.addCleanup(client.communicate)
        wait_until(lambda: self.service.ledger, "the service was asked")
        self.give_new_rules(process)
        self.service.go.set()
        self.assertTrue(client.communicate(timeout=60)[0].endswith(b"charge 1\n"))
        self.assertEqual(self.log(1)[0]["fate"], "store")
        self.assertIn("HTTP/1.1 400 ", self.curl(""))

    def test_upstreams_come_and_go(self):
        process = self.start_with("answer-limit = '1KiB'")
        self.service.hold = True
        client = subprocess.Popen(self.curl_command("k", "cents=500"), stdout=subprocess.PIPE)
        self.addCleanup(client.communicate)
        wait_until(lambda: self.service.ledger, "the service was asked")
        other = self.serve(Service())
        old, new = (f"http://127.0.0.1:{service.port}" for service in (self.service, other))
        file = self.path("proxy.toml")
        file.write_text(file.read_text().replace(f"'{old}'", f"['{new}']").replace(f'"{old}"', f'["{new}"]'))
        reloaded = "once: reloaded, with 0 routes; changed: settings (upstream)\n"
        self.assertEqual(self.hang_up(process), [f"once: upstreams: added {new}; removed {old}; 0 kept\n", reloaded])
        self.assertTrue(self.curl("l").endswith("\n\ncharge 1\n"))
        self.assertEqual(other.ledger, ["cents=500"])
        self.service.go.set()
        self.assertTrue(client.communicate(timeout=60)[0].endswith(b"charge 1\n"))
        self.assertEqual([line["upstream"] for line in self.log(2)],
                         [new.removeprefix("http://"), old.removeprefix("http://")])
        self.assertEqual(self.hang_up(process), ["once: reloaded, with 0 routes; nothing changed\n"])
        file.write_text(file.read_text().replace(f'"{new}"', f'"{new}", "{old}"'))
        self.assertEqual(self.hang_up(process), [f"once: upstreams: added {old}; 1 kept\n", reloaded])
        file.write_text(file.read_text().replace(f'"{new}", "{old}"', ""))
        self.assertIn("not reloaded", self.hang_up(process)[-1])

    def give_new_rules(self, process):
        text = self.path("proxy.toml").read_text()
        self.path("proxy.toml").write_text(text.replace("optional-key = true", "fate = ['201=release']"))
        self.hang_up(process)

    def test_without_a_file_sighup_opens_the_log_again(self):
        process = self.proxy()
        self.curl("k")
        self.log(1)
        self.path("access.log").rename(self.path("access.log.1"))
        self.assertEqual(self.hang_up(process), ["once: reloaded, with 0 routes; nothing changed\n"])
        self.curl("k")
        self.assertEqual([line["outcome"] for line in self.log(1)], ["replayed"])


if __name__ == "__main__":
    harness.main()
