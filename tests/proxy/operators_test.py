"""The operators' API of `once proxy`, with curl: what the commands do, by HTTP, to a proxy that is at work."""
import hashlib
import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import unittest

import service
from harness import wait_until
from service import ProxyCase

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs/operators-api.md").read_text()


class Operators(ProxyCase):
    def admin_proxy(self, *arguments):
        process = self.proxy("--admin", "127.0.0.1:0", *arguments)
        self.admin = int(process.stderr.readline().decode().removeprefix("once: operators on port "))
        self.bearer = []
        if "--admin-token-file" not in arguments:
            note = process.stderr.readline().decode()
            self.token_file = pathlib.Path(note.removeprefix("once: the token of the operators' API is in ").rstrip())
            self.bearer = ["-H", f"Authorization: Bearer {self.token_file.read_text().strip()}"]
        return process

    def api(self, path, *arguments, body=None):
        """(status, headers, JSON)"""
        if body is not None:
            arguments = [*arguments, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
        command = ["curl", "-sS", "-i", "--max-time", "60", *self.bearer, *arguments, f"http://127.0.0.1:{self.admin}{path}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=90)
        head, _, text = done.stdout.decode().replace("\r\n", "\n").partition("\n\n")
        headers = dict(line.split(": ", 1) for line in head.splitlines()[1:])
        return int(head.split()[1]), headers, json.loads(text)

    def post(self, key, body):
        return subprocess.run(["curl", "-sS", "-i", "--max-time", "60", "-H", f"Idempotency-Key: {key}", "-d", body,
                               f"http://127.0.0.1:{self.port}/charges"], stdout=subprocess.PIPE, check=True, timeout=90
                              ).stdout.decode().replace("\r\n", "\n")

    def leave_unknown(self, key, *arguments):
        """A proxy is killed while the service charges; another one finds the claim, and that it lapsed: returns that."""
        process = self.admin_proxy(*arguments)
        self.service.hold = True
        client = subprocess.Popen(["curl", "-sS", "--max-time", "60", "-H", f"Idempotency-Key: {key}", "-d", "cents=500",
                                   f"http://127.0.0.1:{self.port}/charges"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        self.addCleanup(client.wait)
        wait_until(lambda: self.service.ledger, "the service was asked")
        process.kill()
        process.wait()
        client.wait(60)
        self.service.hold = False
        self.service.go.set()
        self.lapse()
        process = self.admin_proxy(*arguments)
        self.assertIn("problem:outcome-unknown", self.post(key, "cents=500"))
        return process

    def test_what_is_unknown_is_found_and_decided(self):
        self.leave_unknown("order-17")
        status, _, listed = self.api("/v1/records?state=unknown")
        self.assertEqual((status, len(listed["records"]), listed["next"]), (200, 1, None))
        path = f"/v1/records/{listed['records'][0]['stored_key_hex']}"
        status, headers, record = self.api(path)
        self.assertEqual((status, record["key"], record["state"]), (200, "order-17", "unknown"))
        # It is the very record that the commands show.
        shown = json.loads(self.expect(self.once("show", "--key", "order-17", "--scope", record["scope"], "--json"), 0).stdout)
        self.assertEqual(record.pop("service"), {"asks": False, "says": None})
        self.assertEqual(record, shown)
        decision = {"as": "completed", "reason": "charge 1 in the ledger", "who": "alice",
                    "result": {"text": '{"charge":1}\n', "content_type": "application/json"}}
        status, _, problem = self.api(f"{path}/resolve", body=decision)
        self.assertEqual((status, problem["type"]), (428, "urn:once:problem:precondition-required"))
        status, _, problem = self.api(f"{path}/resolve", "-H", f'If-Match: "{"0" * 32}-1"', body=decision)
        self.assertEqual((status, problem["record"]["revision"]), (412, record["revision"]))
        status, after, answer = self.api(f"{path}/resolve", "-H", f"If-Match: {headers['ETag']}", body=decision)
        self.assertEqual((status, answer["changed"]), (200, True))
        self.assertEqual(answer["record"]["note"], "resolved as completed by alice: charge 1 in the ledger")
        self.assertNotEqual(after["ETag"], headers["ETag"])
        replay = self.post("order-17", "cents=500")
        self.assertIn("\nIdempotent-Replayed: true\n", replay)
        self.assertTrue(replay.endswith('\n\n{"charge":1}\n'), replay)
        self.assertEqual(self.service.ledger, ["cents=500"])
        # What was seen before is gone now.
        status, _, _ = self.api(f"{path}/release", "-H", f"If-Match: {headers['ETag']}", body={"reason": "r"})
        self.assertEqual(status, 412)

    def test_what_is_released_runs_again(self):
        self.leave_unknown("order-18")
        record = self.api("/v1/records?state=unknown")[2]["records"][0]
        path = f"/v1/records/{record['stored_key_hex']}"
        tag = f'If-Match: "{record["owner"]}-{record["revision"]}"'
        status, _, _ = self.api(f"{path}/release", "-H", tag, body={"reason": "not charged", "dry_run": True})
        self.assertEqual(status, 200)
        status, _, answer = self.api(f"{path}/release", "-H", tag, body={"reason": "not charged"})
        self.assertEqual((status, answer["record"]["standing"]), (200, "released"))
        self.assertIn("charge 2", self.post("order-18", "cents=500"))

    def test_a_token_is_asked_for(self):
        path = self.path("token")
        path.write_text("0123456789abcdef\n")
        path.chmod(0o600)
        process = self.admin_proxy("--admin-token-file", path)
        status, headers, problem = self.api("/v1/records")
        self.assertEqual((status, problem["type"]), (401, "urn:once:problem:unauthorized"))
        self.assertEqual(headers["WWW-Authenticate"], 'Bearer realm="once"')
        self.assertEqual(self.api("/v1/records", "-H", "Authorization: Bearer 0123456789abcdeg")[0], 401)
        self.assertEqual(self.api("/v1/records", "-H", "Authorization: Bearer 0123456789abcdef")[0], 200)
        done = subprocess.run(["curl", "-sS", f"http://127.0.0.1:{self.admin}/healthz"], stdout=subprocess.PIPE, check=True,
                              timeout=90)
        self.assertEqual(done.stdout, b"alive\n")  # For probes.

        path.write_text("short")
        process.send_signal(signal.SIGHUP)
        self.assertIn(b"not reloaded, the old rules stay in force: ", process.stderr.readline())
        self.assertEqual(self.api("/v1/records", "-H", "Authorization: Bearer 0123456789abcdef")[0], 200)
        path.write_text("fedcba9876543210")
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.stderr.readline(),
                         b"once: reloaded, with 0 routes; changed: tokens (admin-token-file)\n")
        self.assertEqual(self.api("/v1/records", "-H", "Authorization: Bearer 0123456789abcdef")[0], 401)
        self.assertEqual(self.api("/v1/records", "-H", "Authorization: Bearer fedcba9876543210")[0], 200)

    def test_the_audit_log_has_what_programs_do_and_is_opened_again(self):
        audit, tokens, token = self.path("audit"), self.path("tokens"), "0123456789abcdef"
        tokens.write_text(f"alice operator {hashlib.sha256(token.encode()).hexdigest()}\n")
        tokens.chmod(0o600)
        process = self.leave_unknown("order-17", "--admin-token-file", tokens, "--audit-log", audit)
        bearer = ["-H", f"Authorization: Bearer {token}"]
        record = self.api("/v1/records?state=unknown", *bearer)[2]["records"][0]
        path = f"/v1/records/{record['stored_key_hex']}"
        tag = f'If-Match: "{record["owner"]}-{record["revision"]}"'
        self.assertEqual(self.api(f"{path}/release", "-H", tag, *bearer, body={"reason": "not charged"})[0], 200)

        def told(file):
            return [(line["event"], line["who"], line.get("stored_key_hex"), line.get("reason"), line.get("outcome"))
                    for line in map(json.loads, file.read_text().splitlines())]
        acts = [("act", "alice", record["stored_key_hex"], "not charged", None),
                ("acted", "alice", record["stored_key_hex"], "not charged", "done")]
        self.assertEqual(told(audit), acts)
        self.assertEqual(self.api("/v1/acts", *bearer)[2]["source"], "audit log")
        kept = audit.rename(self.path("audit.1"))
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.stderr.readline(), b"once: reloaded, with 0 routes; nothing changed\n")
        self.assertEqual(self.api(f"{path}?include=input", *bearer)[0], 200)
        self.assertEqual(told(audit), [("show", "alice", record["stored_key_hex"], None, None)])
        self.assertEqual(told(kept), acts)
        self.expect(self.once("proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--no-principal",
                              "--audit-log", self.path("none/audit")), 243, stderr=b"cannot open the audit log")

    def test_a_token_of_this_user_is_made_where_none_is_named(self):
        process = self.admin_proxy()
        self.assertEqual(self.token_file.stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.api("/v1/records")[0], 200)
        self.bearer = []  # As another user of this host, who cannot read the file.
        self.assertEqual(self.api("/v1/records")[0], 401)
        self.assertEqual(self.api("/v1/records", "-H", "Authorization: Bearer " + "0" * 64)[0], 401)

        def page(name, host):
            done = subprocess.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", f"Host: {host}",
                                   f"http://127.0.0.1:{self.admin}/{name}"], stdout=subprocess.PIPE, check=True, timeout=90)
            return done.stdout.decode()
        for name in ("healthz", "readyz", "metrics"):
            self.assertEqual(page(name, f"localhost:{self.admin}"), "200", name)
        self.assertEqual(page("metrics", "evil.example"), "403")  # DNS rebinding.
        self.assertEqual(page("healthz", "evil.example"), "200")
        process.terminate()
        self.assertEqual(process.wait(60), 0)
        self.assertFalse(self.token_file.exists())

    def test_a_token_file_is_readable_whatever_the_umask(self):
        """mkostemp() makes it with 0600, less what the umask takes, also from its owner."""
        old = os.umask(0o777)
        try:
            self.admin_proxy()
        finally:
            os.umask(old)
        self.assertEqual(stat.S_IMODE(self.token_file.stat().st_mode), 0o600)

    def test_two_members_of_one_name_are_refused(self):
        self.admin_proxy()
        body = '{"act":"release","filter":{"standing":"unknown","standing":"failed"},"reason":"r"}'
        status, _, problem = self.api("/v1/bulk", "-H", "Content-Type: application/json", "-d", body)
        self.assertEqual((status, problem["type"]), (400, "urn:once:problem:bad-request"))
        self.assertIn("'standing' twice", problem["detail"])

    def test_another_host_needs_a_token(self):
        common = ["proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--no-principal"]
        for host in ("0.0.0.0", "[::]", "example.org"):
            self.expect(self.once(*common, "--admin", f"{host}:0"), 64, stderr=b"admin-token-file")
        path = self.path("token")
        path.write_text("0123456789abcdef")
        path.chmod(0o644)
        self.expect(self.once(*common, "--admin-token-file", path), 64, stderr=b"every user of this host")
        self.expect(self.once(*common, "--admin-token-file", self.path("none")), 64, stderr=b"cannot be read")
        for more, told in ((["--console-origin", "http://ops.example.com"], b"console-origin must be https://HOST[:PORT]"),
                           (["--console-origin", "https://ops.example.com"], b"console-origin: nobody could sign in")):
            self.expect(self.once(*common, *more), 64, stderr=told)

    def example(self, number):
        """One of the page's, for this proxy."""
        blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.S | re.M)
        self.assertEqual(len(blocks), 5)  # Each is played below.
        return re.sub(r"/run/user/1000/once-admin-token-\w+", str(self.token_file) if number == 0 else "none",
                      blocks[number].replace(":9100/", f":{self.admin}/"))

    def variables(self):
        """What the page's first example has set, for the others."""
        return f'api=http://127.0.0.1:{self.admin}/v1\nauth="{self.bearer[1]}"\n'

    @staticmethod
    def play(script):
        return subprocess.run(["bash", "-ec", script], stdout=subprocess.PIPE, check=True, timeout=90).stdout.decode()

    def hold(self, key):
        self.expect(self.once("run", "--scope", "pay", "--key", key, "--on-failure", "hold", "--", "false"), 1)

    def test_the_example_of_events_tells_what_changes(self):
        self.admin_proxy()
        self.hold("order-17")
        script = f"{self.variables()}exec {self.example(1)}"
        stream = subprocess.Popen(["bash", "-ec", script], stdout=subprocess.PIPE)
        self.addCleanup(stream.stdout.close)
        self.addCleanup(stream.wait)
        self.addCleanup(stream.kill)
        seen = set()
        while seen != {b"event: overview\n", b"event: changed\n"}:
            line = stream.stdout.readline()
            self.assertTrue(line, seen)
            seen |= {line} if line.startswith(b"event: ") else set()

    def test_the_example_of_many_records_releases_them(self):
        self.admin_proxy()
        for key in ("order-17", "order-18"):
            self.hold(key)
        api = self.variables()
        plan, show, start = re.split(r"\n(?=curl)", self.example(3))
        bulk = json.loads(self.play(api + plan))["id"]

        def now():
            return json.loads(self.play(api + show.replace("ID", bulk)))
        self.assertEqual(wait_until(lambda: now()["state"] == "planned" and now(), "it is planned")["count"], 2)
        self.play(api + start.replace("21", "2").replace("ID", bulk))  # An identifier may have a 21 of its own.
        self.assertEqual(wait_until(lambda: now()["state"] == "done" and now(), "it is done")["written"], 2)
        for key in ("order-17", "order-18"):
            self.assertEqual(self.show(key, "--scope", "pay")["history"][-1]["why"], "bank outage, INC-88")

    def test_an_act_on_many_records_does_not_begin_while_the_proxy_ends(self):
        process = self.admin_proxy("--stop-within", "60s")
        self.hold("order-17")
        bulk = self.api("/v1/bulk", body={"act": "release", "filter": {"standing": "unknown"}, "reason": "r"})[2]["id"]
        wait_until(lambda: self.api(f"/v1/bulk/{bulk}")[2]["state"] == "planned", "it is planned")
        self.service.hold = True
        client = subprocess.Popen(["curl", "-sS", "--max-time", "60", "-H", "Idempotency-Key: order-18", "-d", "cents=500",
                                   f"http://127.0.0.1:{self.port}/charges"], stdout=subprocess.DEVNULL)
        self.addCleanup(client.wait)
        wait_until(lambda: self.service.ledger, "the service was asked")
        process.terminate()
        self.assertIn(b"once: ending: ", process.stderr.readline())
        status, _, problem = self.api(f"/v1/bulk/{bulk}/start", body={"count": 1})
        self.assertEqual((status, problem["type"]), (503, "urn:once:problem:stopping"))
        self.service.hold = False
        self.service.go.set()
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(self.show("order-17", "--scope", "pay")["state"], "unknown")

    def test_the_example_of_a_token_lets_it_in(self):
        tokens = self.path("tokens")
        self.admin = 0
        token = self.play(self.example(4).replace("/etc/once/admin-tokens", str(tokens)) + 'printf %s "$token"')
        self.admin_proxy("--admin-token-file", tokens)
        self.assertEqual(self.api("/v1/records")[0], 401)
        self.assertEqual(self.api("/v1/records", "-H", f"Authorization: Bearer {token}")[0], 200)

    def test_the_examples_of_the_page_do_what_it_says(self):
        self.admin_proxy()
        self.hold("order-17")
        done = self.play(self.example(0) + "echo\n" + self.example(2))
        text, answers = done, []
        while text.strip():
            answer, end = json.JSONDecoder().raw_decode(text.lstrip())
            text = text.lstrip()[end:]
            answers.append(answer)
        overview, unknown, found, resolved, extended = answers
        self.assertEqual(sorted(overview["gauges"]), ["failed", "in_progress", "lapsed", "overdue", "released", "running", "unknown"])
        self.assertEqual([one["key"] for one in unknown["records"]], ["order-17"])
        self.assertEqual([one["match"] for one in found["records"]], ["key"])
        self.assertEqual([resolved["changed"], extended["changed"]], [True, True])
        acts = [(act["what"].split(" to ")[0], act["who"], act["why"]) for act in extended["record"]["history"] if not act["attempt"]]
        self.assertEqual(acts, [("resolved as completed", "alice", "charge 1 in the ledger"),
                                ("retention extended", "alice", "the client retries next week")])

    def test_rates_are_of_this_process_and_gauges_of_the_store(self):
        self.admin_proxy("--stats-interval", "1s")
        self.expect(self.once("run", "--scope", "pay", "--key", "order-1", "--on-failure", "hold", "--", "false"), 1)
        self.post("order-2", "cents=500")
        self.post("order-2", "cents=500")

        def overview():
            found = self.api("/v1/overview")[2]
            return found if found["gauges"]["unknown"] and found["gauges"]["unknown"]["count"] else None
        found = wait_until(overview, "the look saw it")
        self.assertEqual(found["gauges"]["unknown"]["count"], 1)
        self.assertEqual({name: found["rates"][name] for name in ("ran", "replayed", "unprotected")},
                         {"ran": 1, "replayed": 1, "unprotected": 0})
        self.assertTrue(found["stores"][0]["answers"])
        self.assertGreater(found["stores"][0]["latency_ms"], 0)
        self.assertLess(abs(found["stores"][0]["clock_ahead_ms"]), 60_000)

    def test_pages_of_a_store_have_every_record_once(self):
        self.admin_proxy()
        for number in range(60):
            self.post(f"order-{number}", "cents=500")
        for query in ("limit=7", "standing=completed&limit=7", "q=order-&limit=7", "label=order-5&limit=2",
                      "label=ORDER-5&limit=500"):
            keys, after = [], ""
            while after is not None:
                status, _, page = self.api(f"/v1/records?{query}{after and '&after=' + after}")
                self.assertEqual(status, 200)
                keys += [one["key"] for one in page["records"]]
                after = page["next"]
            expected = 11 if "label" in query else 60
            self.assertEqual((len(keys), len(set(keys))), (expected, expected), query)

    def test_the_page_names_every_problem(self):
        source = (pathlib.Path(__file__).resolve().parents[2] / "src/operators").glob("*.cpp")
        text = "".join(path.read_text() for path in source)
        names = set(re.findall(r'(?:operators_problem|refusal)\(\s*"([a-z-]+)"', text))
        self.assertGreater(len(names), 10)
        listed = set(re.findall(r"`([a-z-]+)`", PAGE.split("\n## Problems")[1].split("\n## ")[0]))
        self.assertEqual(names - listed, set())


if __name__ == "__main__":
    service.harness.main()
