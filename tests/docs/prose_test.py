#!/usr/bin/env python3
"""tools/check-prose must see what it is there for, and nothing in code."""
import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOADER = importlib.machinery.SourceFileLoader("check_prose", str(ROOT / "tools/check-prose"))
PROSE = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_prose", LOADER))
LOADER.exec_module(PROSE)
RULES = list(PROSE.rules(PROSE.RULES.read_text()))


def problems(text, name="docs/page.md"):
    return list(PROSE.problems_of(name, text, RULES))


class Prose(unittest.TestCase):
    def test_a_sentence_of_28_words(self):
        self.assertEqual(problems("word " * 27 + "word. Another\n[link of three](a/b/c.md) `code with words`.\n"), [])
        self.assertEqual(len(problems("A\nb.\n\n" + "word " * 28 + "word.\n")), 1)

    def test_words_of_each_kind(self):
        for text, found in [
            ("Then somebody\nasks.", "somebody"), ("It runs it never again.", "never again"), ("Send the fence token.", "fence token"),
            ("An expired claim.", "expired claim"), ("It steals it.", "steals"), ("It doesn't.", "doesn't"), ("Key, e.g. an id.", "e.g."),
            ("| a cell | whoever asks |", "whoever"), ("1. upstream\n2. upon it", "upon"), ("Work the queue off.", "Work the queue off"),
            ("The lease is renewed by the holder.", "is renewed by the holder"), ("A [link for anyone](x.md).", "anyone"),
            ("Nobody calls.", "Nobody"), ("The message comes again.", "comes again"),
            ("It dies before it is told.", "before it is told"), ("Tokens fall back by that.", "fall back by"),
            ("Of several, the most specific one.", "Of several, the most specific"), ("The word that counts.", "The word that counts"),
        ]:
            with self.subTest(text):
                said = problems(text + "\n")
                self.assertEqual(len(said), 1, said)
                self.assertIn(f'"{found}" -> ', said[0])

    def test_not_in_code_nor_in_other_words(self):
        self.assertEqual(problems("`somebody` says.\n\n```\nsomebody\n```\n\n[a](somebody.md) and `its`'s, thereafter, he-man.\n"), [])

    def test_decisions_by_a_looser_rule(self):
        passive = "It is renewed by the holder.\n"
        self.assertEqual((len(problems(passive)), problems(passive, "docs/decisions/page.md")), (1, []))
        self.assertEqual(len(problems("Somebody.\n", "docs/decisions/page.md")), 1)

    def test_an_exception_names_its_page(self):
        exceptions = [(name, pattern) for pattern, _, _, names in RULES for name in names]
        for name, pattern in exceptions:
            with self.subTest(name):
                self.assertRegex("\n".join(text for _, text in PROSE.paragraphs((ROOT / name).read_text())), pattern)


if __name__ == "__main__":
    unittest.main(verbosity=0)
