#!/usr/bin/env python3
"""programs_test.py: what programs.judge() finds, by short histories written by hand. The good one passes; in each bad one,
what was changed is found, by the rule that is about it."""
import json
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / folder) for folder in ("real_servers", "clients")]
import programs  # noqa: E402

WANT = "a|0.1|0"


class Judge(unittest.TestCase):
    def judged(self, calls, effects):
        """`calls` are what each was told, and its output; `effects` the numbers of those that acted. A third member: under hold."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            lines = []
            for number, (told, out, *more) in enumerate(calls, 1):
                hold = bool(more)
                lines += [{"t": number, "run": number, "want": WANT, "hold": hold}, {"t": number, "ran": number, "told": told, "out": out}]
            (folder / "callers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (folder / "ledger.jsonl").write_text("".join(json.dumps({"op": WANT, "number": number}) + "\n" for number in effects))
            counts, wrong = programs.judge(folder)
            return counts, [found["rule"] for found in wrong]

    def test_good(self):
        counts, wrong = self.judged([("got", f"{WANT}|1"), ("got", f"{WANT}|1"), ("nothing", "")], [1])
        self.assertEqual(wrong, [])
        self.assertEqual((counts["calls"], counts["effects"], counts["doubles"], counts["in_doubt"]), (3, 1, 0, 0))

    def test_an_effect_may_come_again_after_an_end_that_nobody_knows(self):
        for first in (("unknown", ""), ("superseded", f"{WANT}|2")):
            counts, wrong = self.judged([first, ("got", f"{WANT}|2")], [1, 2])
            self.assertEqual((wrong, counts["doubles"]), ([], 1))

    def test_bad(self):
        for rule, calls, effects in (
                ("an effect came again though every attempt ended known", [("got", f"{WANT}|1"), ("nothing", "")], [1, 2]),
                ("an effect came again though every attempt ended known", [("nothing", ""), ("nothing", "")], [1]),
                ("an effect came again under hold", [("unknown", "", True), ("got", f"{WANT}|2", True)], [1, 2]),
                ("an output changed", [("got", f"{WANT}|1"), ("unknown", ""), ("got", f"{WANT}|2")], [1, 2]),
                ("an output changed", [("superseded", f"{WANT}|2"), ("got", f"{WANT}|1"), ("unknown", "")], [1, 2]),
                ("an output without an effect", [("got", f"{WANT}|1")], []),
                ("another operation's output was replayed", [("got", "b|0.1|0|1")], [1]),
                ("an answer that nobody expects", [("error refused", "")], [])):
            with self.subTest(rule=rule, calls=calls):
                self.assertIn(rule, self.judged(calls, effects)[1])


if __name__ == "__main__":
    unittest.main()
