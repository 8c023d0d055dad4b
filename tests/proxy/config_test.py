"""once proxy with a file: what it reads, what it refuses, what it prints."""
import json

from service import ProxyCase, harness


class Config(ProxyCase):
    def write(self, *lines):
        self.path("proxy.toml").write_text("".join(line + "\n" for line in lines))
        return self.path("proxy.toml")

    def test_the_file_has_the_settings_and_flags_overrule_it(self):
        upstream = f"http://127.0.0.1:{self.service.port}"
        self.write('listen = "127.0.0.1:0"', f'upstream = "{upstream}"', "require-key = true", 'key-header = "X-Id"',
                   'methods = ["GET"]')
        _, self.port = self.start_alone("--config", "proxy.toml", "--methods", "POST", "--access-log", "access.log")
        self.assertIn("HTTP/1.1 400 ", self.curl("order-17"))
        self.assertIn("HTTP/1.1 201 ", self.curl("", "cents=500", "-H", "X-Id: order-17"))
        self.assertEqual([line["outcome"] for line in self.log(2)], ["refused", "executed"])

    def test_check_prints_what_the_settings_come_to(self):
        self.write('listen = "127.0.0.1:0"', 'upstream = "http://pay:9000"', 'lease = "5m"', 'operation = "charge"')
        done = self.expect(self.once("proxy", "--config", "proxy.toml", "--check", "--wait", "2s"), 0)
        for line in ('lease = "5m"', 'wait = "2s"', 'retention = "24h"', 'operation = "charge"', "require-key = false"):
            self.assertIn(f"\n{line}\n", done.stdout.decode())
        self.path("printed.toml").write_bytes(done.stdout)
        self.expect(self.once("proxy", "--config", "printed.toml", "--check"), 0, done.stdout)
        shown = json.loads(self.once("proxy", "--config", "proxy.toml", "--check", "--json").stdout)
        self.assertTrue(shown["valid"])
        self.assertEqual(shown["settings"]["lease"], "5m")
        self.assertEqual(shown["settings"]["methods"], ["POST", "PATCH"])
        self.assertIsNone(shown["settings"]["wait"])
        self.assertFalse(self.path("once.db").exists())

    def test_all_that_is_wrong_is_said_at_once(self):
        self.write('listen = "nowhere"', 'upstream = "http://pay:9000"', "leese = 5", 'lease = "5"')
        said = ("once: --wait is '1'; write a whole number and a unit, as in 500ms, 30s, 5m, 24h or 7d\n"
                "once: proxy.toml:1:10: listen must be HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080, and not 'nowhere'\n"
                "once: proxy.toml:3:1: there is no setting 'leese': did you mean 'lease'?\n"
                "once: proxy.toml:4:9: lease is '5'; write a whole number and a unit, as in 500ms, 30s, 5m, 24h or 7d\n")
        for check in (["--check"], []):
            done = self.expect(self.once("proxy", "--config", "proxy.toml", "--wait", "1", *check), 64, b"")
            self.assertEqual(done.stderr.decode(), said)
        done = self.expect(self.once("proxy", "--config", "proxy.toml", "--check", "--json"), 64, stderr=b"")
        shown = json.loads(done.stdout)
        self.assertFalse(shown["valid"])
        self.assertEqual([(each["file"], each["line"], each["column"]) for each in shown["complaints"]],
                         [("proxy.toml", 1, 10), ("proxy.toml", 3, 1), ("proxy.toml", 4, 9)])
        self.assertFalse(self.path("once.db").exists())

    def test_a_file_that_is_none(self):
        self.expect(self.once("proxy", "--config", "nowhere.toml"), 64, b"",
                    b"once: nowhere.toml: cannot be read: No such file or directory\n")
        self.expect(self.once("proxy", "--config", self.dir, "--check"), 64, b"", b"cannot be read: Is a directory\n")
        self.write("= 5")
        self.expect(self.once("proxy", "--config", "proxy.toml", "--check"), 64, b"", b"once: proxy.toml:1:1: ")


if __name__ == "__main__":
    harness.main()
