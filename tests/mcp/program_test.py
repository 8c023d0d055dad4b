"""program_test.py ONCE: `once mcp` in front of a server without an SDK: deaths, ends, limits, two sessions on one store."""
import fcntl
import json
import os
import pathlib
import re
import signal
import struct
import sys
import termios

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "apps"))

import harness  # noqa: E402
from client import Client  # noqa: E402
from harness import DEADLINE_S, alive, wait_until  # noqa: E402

SHOP = HERE / "shop.py"


class McpCase(harness.Case):
    def setUp(self):
        super().setUp()
        self.server = [sys.executable, str(SHOP), str(self.path("ledger"))]
        self.write_rules('key = "order_id"')

    def suggested(self, **options):
        done = self.once("mcp", "--suggest", "--", *self.server, **options)
        self.expect(done, 0)
        return done.stdout.decode()

    def write_rules(self, rule, top="", **options):
        """The file that --suggest writes, with a choice for the tool that acts."""
        text = self.suggested(**options)
        text = re.sub(r"^scope = .*$", f'scope = "shop"\n{top}', text, flags=re.M)
        text = text.replace('name = "refund"\n', f'name = "refund"\n{rule}\n')
        self.path("shop.toml").write_text(text)

    def session(self, *flags, server=None, modern=False, env=None):
        command = [harness.PROGRAM, "mcp", "--config", str(self.path("shop.toml")), "--log", "none", *flags, "--", *(server or self.server)]
        client = Client(command, modern, cwd=self.dir, env=dict(self.env, **(env or {})))
        self.addCleanup(client.kill)
        return client

    def refunds(self):
        return self.runs("ledger")

    def server_pid(self, client):
        """Of the server below the guard of this session."""
        def found():
            for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
                try:
                    pid, parent = int(stat.parent.name), int(stat.read_text().rsplit(")", 1)[1].split()[1])
                except (FileNotFoundError, ProcessLookupError):
                    continue
                try:
                    grandparent = int(pathlib.Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()[1])
                except (FileNotFoundError, ProcessLookupError, ValueError):
                    continue
                if grandparent == client.process.pid:
                    return pid
            return None
        return wait_until(found, "the server runs")


class Calls(McpCase):
    def test_a_second_session_replays(self):
        for modern in (False, True):
            order = f"order-{modern}"
            first = self.session(modern=modern).open()
            self.assertEqual(first.call("refund", order_id=order), ([f"refunded {order}"], None))
            self.assertEqual(first.close(), 0)
            second = self.session(modern=modern).open()
            texts, outcome = second.call("refund", order_id=order)
            self.assertEqual((texts[0], outcome), (f"refunded {order}", "replayed"))
            self.assertIn("Nothing was done now", texts[1])
            texts, outcome = second.call("refund", order_id=order, cents=5)
            self.assertEqual(outcome, "mismatch")
        self.assertEqual(self.refunds(), 2)

    def test_equal_arguments_are_one_call_in_one_run(self):
        self.write_rules("key-run = true", 'run-meta = "example.com/run"')
        client = self.session().open()
        first, again = {"example.com/run": "a"}, {"example.com/run": "b"}
        self.assertIsNone(client.call("refund", first, order_id="1", cents=2)[1])
        self.assertEqual(client.call("refund", first, cents=2, order_id="1")[1], "replayed")
        self.assertIsNone(client.call("refund", again, order_id="1", cents=2)[1])
        self.assertEqual(client.call("refund", order_id="1", cents=2)[1], "refused")
        self.assertEqual(self.refunds(), 2)
        record = json.loads(self.once("ls", "--json").stdout)[0]
        self.assertIn("tool refund, run", record["holder"])

    def test_two_sessions_and_one_order(self):
        gate = self.fifo("gate")
        one, other = self.session().open(), self.session().open()
        running = one.begin_call("refund", order_id="7", at=str(gate))
        wait_until(self.refunds, "the first call runs")
        waiting = other.begin_call("refund", order_id="7", at=str(gate))
        self.open_gate("gate")
        self.assertEqual(one.told(one.answer(running))[1], None)
        self.assertEqual(other.told(other.answer(waiting))[1], "replayed")
        self.assertEqual(self.refunds(), 1)

    def test_a_call_that_runs_is_waited_for_and_then_told(self):
        self.write_rules('key = "order_id"\nwait = "10ms"')
        gate = self.fifo("gate")
        client = self.session().open()
        running = client.begin_call("refund", order_id="7", at=str(gate))
        wait_until(self.refunds, "the first call runs")
        texts, outcome = client.call("refund", order_id="7", at=str(gate))
        self.assertEqual(outcome, "in-progress")
        self.assertIn("call it again with exactly the same arguments", texts[0])
        self.open_gate("gate")
        client.answer(running)
        self.assertEqual(client.call("refund", order_id="7", at=str(gate))[1], "replayed")
        self.assertEqual(self.refunds(), 1)

    def test_errors_are_results_unless_the_rule_says_otherwise(self):
        for rule, calls in (("store", 1), ("release", 2), ("hold", 1)):
            self.path("ledger").unlink(missing_ok=True)
            self.write_rules(f'key = "order_id"\non-error = "{rule}"', f'principal = "{rule}"')
            client = self.session().open()
            outcomes = [client.call("refund", order_id="1", says="no such card")[1] for _ in range(2)]
            self.assertEqual(outcomes, {"store": [None, "replayed"], "release": [None, None], "hold": ["unknown", "unknown"]}[rule])
            self.assertEqual(self.refunds(), calls)

    def test_arguments_that_the_schema_refuses_can_be_corrected(self):
        client = self.session().open()
        texts, outcome = client.call("refund", order_id="1", cents="five")
        self.assertEqual(outcome, "refused")
        self.assertIn('"cents" must be of the type integer', texts[0])
        self.assertIsNone(client.call("refund", order_id="1", cents=5)[1])
        self.assertEqual(self.refunds(), 1)


class Deaths(McpCase):
    def test_the_server_dies_before_and_after_it_acts(self):
        for dies, code in (("before", 3), ("after", 4)):
            client = self.session().open()
            call = client.begin_call("refund", order_id=dies, dies=dies)
            texts, outcome = client.told(client.answer(call))
            self.assertEqual(outcome, "unknown")
            self.assertIn("Do not call it again", texts[0])
            self.assertEqual(client.process.wait(DEADLINE_S), code)
            self.assertEqual(self.session().open().call("refund", order_id=dies, dies=dies)[1], "unknown")
        self.assertEqual(self.refunds(), 1)
        self.assertEqual(len(json.loads(self.once("ls", "--state", "unknown", "--json").stdout)), 2)

    def test_an_operator_settles_it(self):
        client = self.session().open()
        client.answer(client.begin_call("refund", order_id="1", dies="before"))
        record = json.loads(self.once("ls", "--json").stdout)[0]["stored_key_hex"]
        self.expect(self.once("resolve", "--stored-key-hex", record, "--as", "released", "--any-payload", "--reason", "not there"), 0)
        self.assertIsNone(self.session().open().call("refund", order_id="1")[1])
        self.assertEqual(self.refunds(), 1)

    def test_once_is_killed_while_a_call_runs(self):
        gate = self.fifo("gate")
        client = self.session().open()
        client.begin_call("refund", order_id="1", at=str(gate))
        wait_until(self.refunds, "the call runs")
        server = self.server_pid(client)
        client.process.kill()
        client.process.wait()
        wait_until(lambda: not alive(server), "the server is killed with it")
        self.lapse()
        self.assertEqual(self.session().open().call("refund", order_id="1", at=str(gate))[1], "unknown")
        self.assertEqual(self.refunds(), 1)

    def test_the_client_goes_while_a_call_runs(self):
        for end in ("closes", "signals"):
            gate = self.fifo(f"gate-{end}")
            before = self.refunds()
            client = self.session().open()
            client.begin_call("refund", order_id=end, at=str(gate))
            wait_until(lambda: self.refunds() > before, "the call runs")
            if end == "closes":
                client.process.stdin.close()
            else:
                client.process.send_signal(signal.SIGTERM)
            self.open_gate(f"gate-{end}")
            self.assertEqual(client.process.wait(DEADLINE_S), 0)
            self.assertEqual(self.session().open().call("refund", order_id=end, at=str(gate))[1], "replayed")
        self.assertEqual(self.refunds(), 2)

    def test_a_second_signal_ends_at_once(self):
        gate = self.fifo("gate")
        client = self.session().open()
        client.begin_call("refund", order_id="1", at=str(gate))
        wait_until(self.refunds, "the call runs")
        server = self.server_pid(client)
        client.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not self.reads_input(client), "the first signal is taken")
        client.process.send_signal(signal.SIGTERM)
        self.assertEqual(client.process.wait(DEADLINE_S), 0)
        wait_until(lambda: not alive(server), "the server is ended")
        self.assertEqual(self.session().open().call("refund", order_id="1", at=str(gate))[1], "unknown")

    @staticmethod
    def reads_input(client):
        """Whether it still reads what the client sends: a pipe that is full is not read."""
        try:
            client.send({"method": "notifications/x", "params": {"x": "x" * 1000}})
            return pathlib.Path(f"/proc/{client.process.pid}").exists() and pending(client) == 0
        except BrokenPipeError:
            return False

    def test_a_call_that_is_cancelled_runs_on(self):
        gate = self.fifo("gate")
        client = self.session().open()
        call = client.begin_call("refund", order_id="1", at=str(gate))
        wait_until(self.refunds, "the call runs")
        client.send({"method": "notifications/cancelled", "params": {"requestId": call}})
        waiting = client.begin_call("refund", order_id="1", at=str(gate))
        self.open_gate("gate")
        self.assertEqual(client.told(client.answer(waiting))[1], "replayed")
        self.assertTrue(client.answers[call].empty())
        self.assertEqual(self.refunds(), 1)

    def test_the_server_does_not_answer(self):
        self.write_rules('key = "order_id"', 'answer-timeout = "10ms"')
        gate = self.fifo("gate")
        client = self.session().open()
        texts, outcome = client.call("refund", order_id="1", at=str(gate))
        self.assertEqual(outcome, "unknown")
        self.assertIn("did not answer in time", texts[0])


def pending(client):
    """Bytes in the client's pipe that once has not read."""
    return struct.unpack("i", fcntl.ioctl(client.process.stdin, termios.FIONREAD, b"\0" * 4))[0]


class Reader(Client):
    """Reads what it is told to read only."""

    def _read(self):
        pass


class Limits(McpCase):
    def memory(self, client):
        status = pathlib.Path(f"/proc/{client.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def test_messages_to_the_limit_pass(self):
        client = self.session().open()
        text = "x" * (9 * 1024 * 1024)
        self.assertEqual(client.call("refund", order_id="1", echo=text), ([f"refunded 1{text}"], None))
        texts, outcome = client.call("refund", order_id="1", echo=text)
        self.assertEqual((len(texts[0]), outcome), (len(text) + 10, "replayed"))
        number = client.begin_call("refund", order_id="2", echo="x" * (10 * 1024 * 1024))
        self.assertIn("too long", client.answer(number)["error"]["message"])
        self.assertEqual(self.refunds(), 1)

    def test_an_answer_over_the_limit_is_told_and_not_repeated(self):
        self.write_rules('key = "order_id"', 'message-limit = "100KiB"')
        client = self.session().open()
        # Escapes make the answer longer than the request.
        for outcome in ("not-kept", "not-kept"):
            self.assertEqual(client.call("refund", order_id="1", echo="\u20ac" * 15_000 + "x" * 40_000)[1], outcome)
        self.assertEqual(self.refunds(), 1)

    def test_a_thousand_tools(self):
        many = {"FAULTS": "many"}
        self.write_rules('key = "order_id"', env=dict(self.env, **many))
        client = self.session(env=many).open()
        self.assertIsNone(client.call("refund", order_id="1")[1])
        self.assertEqual(client.call("tool999")[1], "refused")
        done = self.once("mcp", "--check", "--config", "shop.toml", "--", *self.server, env=dict(self.env, **many))
        self.assertEqual(len(done.stdout.splitlines()), 1003)

    def test_a_client_that_does_not_read_stops_the_server(self):
        client = Reader([harness.PROGRAM, "mcp", "--config", str(self.path("shop.toml")), "--log", "none", "--", *self.server],
                        cwd=self.dir, env=dict(self.env, FAULTS="floods"))
        self.addCleanup(client.kill)
        client.send({"id": 0, "method": "initialize", "params": {}})
        client.process.stdout.readline()
        client.send({"method": "notifications/initialized"})
        client.send({"id": 1, "method": "resources/list"})
        count = self.path("ledger.sent")

        def stopped():
            """The server is blocked: it wrote nothing while it could have written much."""
            if not count.exists() or not count.read_text():
                return False
            before = count.read_text()
            stat = pathlib.Path(f"/proc/{self.server_pid(client)}/wchan").read_text()
            return "pipe" in stat and count.read_text() == before

        wait_until(stopped, "the server is not read any longer")
        self.assertLess(self.memory(client), 100)
        self.assertLess(int(count.read_text()), 20_000_000)

    def test_a_server_that_does_not_read_stops_the_client(self):
        client = self.session(env={"FAULTS": "deaf"}).open()
        os.set_blocking(client.process.stdin.fileno(), False)
        line = json.dumps({"jsonrpc": "2.0", "method": "notifications/x", "params": {"x": "x" * 10_000}}).encode() + b"\n"
        sent = 0

        def is_full():
            nonlocal sent
            try:
                while True:
                    count = client.process.stdin.raw.write(line[sent % len(line):])
                    if count is None:
                        return pending(client) > 0 and pathlib.Path(f"/proc/{client.process.pid}/wchan").read_text().find("poll") >= 0
                    sent += count
                    self.assertLess(sent, 50_000_000)
            except BlockingIOError:
                return True

        wait_until(is_full, "the client is not read any longer")
        self.assertLess(self.memory(client), 100)

    def test_lines_that_are_no_messages_are_dropped(self):
        client = self.session(env={"FAULTS": "greets"}).open()
        self.assertIsNone(client.call("refund", order_id="1")[1])


class Mistakes(McpCase):
    def refused(self, text, code=64, *flags, server=None):
        done = self.once("mcp", "--config", "shop.toml", *flags, "--", *(server or self.server), input=b"")
        self.assertEqual((done.returncode, text in done.stderr.decode()), (code, True), done.stderr)

    def test_mistakes_in_the_file(self):
        good = self.path("shop.toml").read_text()
        for wrong, told in (('retention = "10"', "shop.toml:"), ("keys = 1", "unknown setting 'keys': did you mean 'key'?"),
                            ('fingerprint = true', "fingerprint must be a string"), ('key-run = true', "key-run: the tool has another of"),
                            ('on-error = "retry"', "write one of store, release, hold"), ('wait = ["1s"]', "wait must be a string"),
                            ('buffer-limit = "1MiB"', "is a setting of the whole file"), ('key-meta = "a"', "has another of"),
                            ('fingerprint = "a["', 'tool "refund": ')):
            self.path("shop.toml").write_text(good.replace('key = "order_id"\n', f'key = "order_id"\n{wrong}\n'))
            self.refused(told)
        for wrong, told in (("scop = 1", "did you mean 'scope'?"), ('tool = "x"', "under [[tool]]"), ('max-requests = 0', "from 1 to 100000")):
            self.path("shop.toml").write_text(f"{wrong}\n{good}" if not wrong.startswith("tool") else wrong)
            self.refused(told)
        self.path("shop.toml").write_text(good.replace("pin = ", "# pin = "))
        self.refused("needs the pin")
        self.assertFalse(self.path("ledger").exists())

    def test_what_is_refused_before_a_server_starts(self):
        self.refused("exists only in this process", 64, "--store", "memory:")
        self.refused("cannot be executed", 127, server=["./no-such-server"])
        self.expect(self.once("mcp", "--", *self.server), 64, stderr=b"--config is missing")
        self.expect(self.once("mcp", "--config", "shop.toml"), 64, stderr=b"there is no server")
        self.expect(self.once("mcp", "--config", "shop.toml", "python3"), 64, stderr=b"Put -- before the command")
        self.expect(self.once("mcp", "--config", "none.toml", "--", *self.server), 64, stderr=b"cannot be read")

    def test_rules_that_do_not_fit_the_server(self):
        good = self.path("shop.toml").read_text()
        self.path("shop.toml").write_text(good.replace('"refund"', '"refnud"'))
        client = self.session()
        answer = client.ask("initialize", {})
        self.assertIn("no such tool", answer["error"]["message"])
        self.assertEqual(client.process.wait(DEADLINE_S), 64)
        self.path("shop.toml").write_text(good.replace('key = "order_id"', 'key = "orderid"'))
        done = self.once("mcp", "--check", "--config", "shop.toml", "--", *self.server)
        self.expect(done, 64, stderr=b'reads "orderid", which does not exist')

    def test_a_tool_that_has_changed(self):
        good = self.path("shop.toml").read_text()
        self.path("shop.toml").write_text(re.sub(r"sha256:\w", "sha256:z", good, count=1))
        done = self.once("mcp", "--check", "--config", "shop.toml", "--", *self.server)
        self.expect(done, 1, stderr=b"it has changed since its rule was written")
        client = self.session().open()
        outcomes = [client.call("refund", order_id="1")[1], client.call("orders")[1]]
        self.assertEqual(sorted(outcomes, key=str), [None, "refused"])  # The first in the file.
        # The message has the pin to write.
        pin = re.search(rb'pin = "(sha256:\w+)"', done.stderr)[1].decode()
        self.assertIn(pin, good)

    def test_nothing_that_acts_passes_by_suggestion(self):
        self.path("shop.toml").write_text(self.suggested())
        client = self.session().open()
        self.assertEqual(client.call("refund", order_id="1")[1], "refused")
        self.assertEqual(client.call("orders"), (["none"], None))
        self.assertEqual(self.refunds(), 0)


if __name__ == "__main__":
    harness.main()
