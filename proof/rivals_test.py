#!/usr/bin/env python3
"""rivals_test.py: how a story is judged and put in words. rivals.py tells real ones, with the libraries."""
import types
import unittest

import rivals


def story(effects, *answers):
    """answers: of callers in their order, a result or an exit code."""
    lines = [{"told": answer} if isinstance(answer, str) else {"error": f"exit code {answer}"} for answer in answers]
    return types.SimpleNamespace(lines=lines, noted=lambda what: effects * [{"what": what}])


class Words(unittest.TestCase):
    def expect(self, words, *stories, took=0.2):
        self.assertEqual(rivals.in_words([rivals.facts(each, took) for each in stories]), words)

    def test_all_callers_get_one_result(self):
        self.expect("1", story(1, "a", "a", "a"))
        self.expect("1, after 3.2 s", story(1, 240, "a"), took=3.2)

    def test_a_result_is_lost_if_later_callers_get_another(self):
        self.expect("**2**, **result lost**", story(2, "b", "a", "a"))
        self.expect("**2**, **result lost**", story(2, "a", "b"))

    def test_the_stored_result_stands_but_a_late_caller_gets_its_own(self):
        self.expect("**2**, late caller told otherwise", story(2, "b", "a", "b"))

    def test_unknown_is_told(self):
        self.expect("1, told unknown", story(1, 242), took=4)
        self.expect("**0**, told unknown", story(0, 242, 245, 242))

    def test_nobody_is_told(self):
        self.expect("1, **nobody told**", story(1, 243))

    def test_several_tellings(self):
        self.expect("1 (2 of 3), **2** (1 of 3)", story(1, "a"), story(2, "a"), story(1, "a"))
        self.expect("**2**, **result lost** (1 of 2)", story(2, "a", "b"), story(2, "b", "b"))


class History(unittest.TestCase):
    def test_equal_refusals_one_after_another_are_one(self):
        with rivals.tempfile.TemporaryDirectory() as name:
            folder = rivals.pathlib.Path(name)
            with rivals.contextlib.ExitStack() as stack:
                told = rivals.Story(None, "", folder, stack)
            refused = {"answered": "b", "error": "busy"}
            told.lines = [{"t": ms * 1_000_000, **line} for ms, line in enumerate(
                [{"asks": "b"}, refused, {"asks": "b"}, refused, {"asks": "b"}, {"answered": "b", "told": "x"}], 5)]
            told.ledger.write_text('{"t": 9500000, "what": "begun", "by": "b"}\n')
            self.assertEqual(told.history(), [
                {"ms": 0, "asks": "b"}, {"ms": 1, **refused, "until_ms": 3}, {"ms": 4, "asks": "b"},
                {"ms": 4, "what": "begun", "by": "b"}, {"ms": 5, "answered": "b", "told": "x"}])


if __name__ == "__main__":
    unittest.main()
