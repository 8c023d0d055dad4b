#!/usr/bin/env python3
"""README.md, the site's front page, has a door for each page "Start: ...", and is read in two minutes."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FRONT = (ROOT / "README.md").read_text()
DOORS = {path.name for path in (ROOT / "docs").glob("start-*.md")}
TERMS = ("claim(?! the)", "fingerprint", "keys?\\b", "lease", "records?\\b", "released?\\b", "replay", "steps?\\b(?!\\])")
WORDS = 500  # Two minutes, at 250 words a minute; code is looked at, not read.
LINES = 125  # Of a page to start with: five minutes with what is to be typed.


class Front(unittest.TestCase):
    def test_doors(self):
        self.assertEqual(len(DOORS), 12)
        table = FRONT[FRONT.index("## Begin"):FRONT.index("## When not")]
        self.assertEqual(sorted(re.findall(r"\]\(docs/(start-\w+\.md)\)", table)), sorted(DOORS))

    def test_the_site_has_the_same(self):
        self.assertEqual(set(re.findall(r": (start-\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)), DOORS)

    def test_two_minutes(self):
        text = re.sub(r"^```.*?^```|<!--.*?-->|!\[[^\]]*\]\([^)]*\)", "", FRONT, flags=re.S | re.M)
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
        words = [word for word in re.split(r"[\s|]+", text) if re.search(r"\w", word)]
        self.assertLessEqual(len(words), WORDS)

    def test_five_minutes(self):
        for door in DOORS:
            with self.subTest(door):
                lines = (ROOT / "docs" / door).read_text().splitlines()
                self.assertLessEqual(sum(not line.startswith("<!--") for line in lines), LINES)  # Those are not seen.

    def test_no_undefined_word(self):
        """A term of the glossary in a page's text is linked there, once."""
        for door in DOORS:
            text = (ROOT / "docs" / door).read_text()
            text = re.sub(r"^```.*?^```|<!--.*?-->|`[^`\n]*`", "", text[:text.index("**Next:**")], flags=re.S | re.M)
            prose = re.sub(r"\]\([^)]*\)", "]", text)
            for term in TERMS:
                with self.subTest(page=door, term=term):
                    used = re.search(rf"\b{term}", prose, re.I)
                    self.assertTrue(not used or re.search(rf"\[[^\]]*\b{term}[^\]]*\]\(glossary\.md#", text, re.I),
                                    f"{door} says \"{term}\" and does not link to the glossary")

    def test_each_page_plays_its_commands(self):
        """tests/apps/pages.py types what is not left out: more than nothing."""
        for door in DOORS:
            with self.subTest(door):
                blocks = re.findall(r"(<!-- not played: [^\n]+ -->\n)?```console\n", (ROOT / "docs" / door).read_text())
                self.assertGreaterEqual(blocks.count(""), 3)


if __name__ == "__main__":
    unittest.main(verbosity=0)
