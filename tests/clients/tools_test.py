"""tools_test.py ONCE: `@once.tool` of the Python package without a framework, and its words: those of `once mcp` and of the
Node package."""
import copy
import json
import pathlib
import pickle
import re
import subprocess
import sys
import threading
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("clients/python/src", "tests/apps")]

import harness  # noqa: E402
import once_idempotency as oi  # noqa: E402
from once_idempotency import _words  # noqa: E402


class Case(harness.Case):
    """With a server, and a tool that writes to a ledger."""

    def setUp(self):
        super().setUp()
        self.server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertIn(b"listening", self.server.stderr.readline())
        self.client = oi.Once(server=f"unix:{self.path('s')}", timeout=harness.DEADLINE_S)
        self.addCleanup(self.client.close)
        self.ledger = []

    def refund(self, **options):
        """A tool that is not yet one of a framework, and its function."""
        def refund(order_id: str, cents: int = 100) -> str:
            """Refund an order.

            Args:
                order_id: The order's number.
                cents: How much.
            """
            self.ledger.append((order_id, cents))
            return f"refunded {cents}"

        return self.client.tool(scope="refund", **{"key": "{order_id}", **options})(refund), refund


class Tools(Case):
    def told(self, tool, *arguments, **named):
        got = tool(*arguments, **named)
        self.assertIsInstance(got, oi.Told, got)
        return got.outcome, str(got)

    def word(self, name, why=""):
        return name if name != "failed" else "replayed", _words.Words("refund", "order_id").text(name, why)

    def test_a_told_is_a_text(self):
        told = oi.Told("unknown", "text")
        for copied in (copy.deepcopy(told), pickle.loads(pickle.dumps(told))):
            self.assertEqual((copied, copied.outcome, json.dumps(copied)), ("text", "unknown", '"text"'))

    def test_in_progress_and_unknown(self):
        begun, go = threading.Event(), threading.Event()

        @self.client.tool(key="{order_id}", scope="refund", wait=0)
        def refund(order_id: str) -> str:
            begun.set()
            go.wait(harness.DEADLINE_S)
            raise KeyboardInterrupt  # It says nothing of what was done.

        def run():
            with self.assertRaises(KeyboardInterrupt):
                refund("1")

        thread = threading.Thread(target=run)
        thread.start()
        begun.wait(harness.DEADLINE_S)
        self.assertEqual(self.told(refund, "1"), self.word("in-progress"))
        go.set()
        thread.join()
        self.server.kill()
        self.server.wait()
        self.lapse()
        self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertEqual(self.told(refund, "1"), self.word("unknown", _words.BEGAN))

    def test_no_store(self):
        client = oi.Once(server=f"unix:{self.path('none')}", timeout=0)
        refund = client.tool(key="{order_id}", scope="refund", wait=0)(lambda_named_refund)
        with self.assertLogs("once_idempotency", "ERROR"):
            self.assertEqual(self.told(refund, "1"), self.word("unavailable"))

    def test_no_key(self):
        refund, _ = self.refund()
        self.assertEqual(self.told(refund, ""), self.word("refused", _words.NO_KEY.format(key='"order_id"')))
        self.assertEqual(self.ledger, [])

    def test_a_result_that_is_not_kept(self):
        @self.client.tool(key="{order_id}", scope="refund")
        def refund(order_id: str) -> Any:
            return object()

        with self.assertLogs("once_idempotency", "WARNING"):
            refund("1")
        self.assertEqual(self.told(refund, "1"), self.word("not-kept"))

    def test_errors_by_type(self):
        @self.client.tool(key="{order_id}", scope="refund", on_error={ValueError: "release", TimeoutError: "hold"})
        def refund(order_id: str, error: str) -> str:
            self.ledger.append(order_id)
            raise {"value": ValueError, "time": TimeoutError, "other": RuntimeError}[error]("the  bank\nis closed")

        for order, error, told in (("1", ValueError, None), ("2", TimeoutError, ("unknown", _words.BEGAN)),
                                   ("3", RuntimeError, ("failed", "the bank is closed"))):
            name = {ValueError: "value", TimeoutError: "time", RuntimeError: "other"}[error]
            with self.assertRaises(error):
                refund(order, name)
            if told is None:
                with self.assertRaises(error):
                    refund(order, name)
            else:
                self.assertEqual(self.told(refund, order, name), self.word(*told))
        self.assertEqual(self.ledger, ["1", "1", "2", "3"])

    def test_a_claim_that_is_lost(self):
        @self.client.tool(key="{order_id}", scope="refund")
        def refund(order_id: str, raises: bool) -> str:
            self.expect(self.once("release", "--scope", "refund", "--key", order_id, "--force", "--reason", "by hand"), 0)
            if raises:
                raise oi.ClaimLost("as a check finds it")
            return "refunded"

        with self.assertLogs("once_idempotency", "ERROR"):
            self.assertEqual(self.told(refund, "1", False), ("lost", "refunded\n\n" + self.word("lost")[1]))
            self.assertEqual(self.told(refund, "2", True), self.word("unknown", "its claim was lost while it ran"))

    def test_what_is_no_tool_is_refused(self):
        protected, plain = self.refund()
        for wrong, kind, words in (
            (lambda: self.client.tool(scope="x")(plain), ValueError, "needs key="),
            (lambda: self.client.tool(key="{order_id}", run="r", scope="x")(plain), ValueError, "needs key="),
            (lambda: self.client.tool(run="r", payload=None, scope="x")(plain), ValueError, "payload=None"),
            (lambda: self.client.tool(key="{order}", scope="x")(plain), ValueError, "no parameter"),
            (lambda: self.client.tool(key="{order_id}", scope="refund")(lambda_named_refund), ValueError, "two functions"),
        ):
            with self.assertRaisesRegex(kind, words):
                wrong()


def lambda_named_refund(order_id: str) -> str:
    return "refunded"


lambda_named_refund.__name__ = "refund"


class Wording(harness.Case):
    """src/frontends/mcp/words.cpp has the same words."""

    def of_once_mcp(self):
        source = (ROOT / "src/frontends/mcp/words.cpp").read_text()
        source = re.sub(r"\(key_hash\.empty\(\).*?\"\)\"\)", '""', source, flags=re.S)  # The record, which a client does not know.
        names = {"text::quoted(tool)": "{tool}", "text::quoted(rule.name)": "{tool}", "key_words(rule)": "{key}", "std::string(why)": "{why}",
                 "text::printable(record.failure.message)": "{why}", "std::string(size)": "{size}", "not_called(tool)": "The tool {tool} was not called: ",
                 "not_called(rule.name)": "The tool {tool} was not called: "}
        why_now = "the store that prevents double calls does not answer"
        found = {}
        for name, body in re.findall(r"^Told told_(\w+)\([^)]*\) \{\n(.*?)^\}", source, re.S | re.M):
            if call := re.search(r'told_not_sent\(tool, "(.*?)"\)', body):
                found[name] = found["not_sent"].replace("{why}", call[1])
                self.assertEqual(call[1], why_now)
                continue
            found[name] = self.joined(re.search(r'return \{"[a-z-]+",\s*(.*)\};', body, re.S)[1], names)
        for name in ("replayed", "superseded", "with_loss"):
            body = re.search(rf"^std::string {name}\(.*?^\}}", source, re.S | re.M)[0]
            found[name] = self.joined(re.search(r'"\(once:.*?\.\)"', body, re.S)[0], {**names, "text::rfc3339(record.finished_at)": ""})
        return found

    def joined(self, expression, names):
        out = ""
        for literal, other in re.findall(r'"((?:[^"\\]|\\.)*)"|([\w:]+\([\w.]*\))', expression):
            out += literal if not other else names[other]
        return out

    def test_one_wording(self):
        there = self.of_once_mcp()
        here = _words.WORDS
        pairs = {"refused": "refused", "mismatch": "mismatch", "unavailable": "store_down", "in-progress": "in_progress", "not-kept": "not_kept",
                 "failed": "stored_failure", "unknown": "unknown", "superseded": "superseded", "lost": "with_loss"}
        self.assertEqual({name: there[other] for name, other in pairs.items()}, {name: here[name] for name in pairs})
        self.assertEqual(there["replayed"].replace(", from ", ""), here["replayed"])  # A client does not know when.
        self.assertEqual(here.keys() - pairs.keys(), {"replayed"})
        session = (ROOT / "src/frontends/mcp/session.cpp").read_text() + (ROOT / "src/frontends/mcp/rules.cpp").read_text()
        for text in (_words.BEGAN, _words.RUN_KEY, *_words.NO_KEY.split("{key}")):
            self.assertIn(text, session)
        node = subprocess.run(["node", "-p", "JSON.stringify(require('./words.cjs'))"], cwd=ROOT / "clients/node/lib", check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        self.assertEqual(json.loads(node), {"WORDS": here, "BEGAN": _words.BEGAN, "NO_KEY": _words.NO_KEY, "NO_RUN": _words.NO_RUN, "RUN_KEY": _words.RUN_KEY})


if __name__ == "__main__":
    harness.main()
