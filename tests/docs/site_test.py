#!/usr/bin/env python3
"""tools/site/check must see what it is there for, and tools/site/pages rewrite what Python-Markdown would not render."""
import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def script(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "tools/site" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


CHECK, PAGES = script("check"), script("pages")

SOUND = """<html><head><link rel="stylesheet" href="site.css"><script src="a.js"></script></head><body>
<article><h2 id="here">1. Here</h2><p>See <a href="#here">here</a>, <a href="sub/b.html#there">there</a>,
<a href="https://example.org/#x">elsewhere</a> and <code>`a` ** - b</code>.</p><img src="a.svg"></article></body></html>"""
OTHER = '<html><body><a href="../index.html">back</a><p id="there">x</p></body></html>'


class Site(unittest.TestCase):
    def problems(self, page=SOUND, style="p { color: red; background: url(a.svg) }", picture="<svg/>"):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "sub").mkdir()
            for file, text in {"index.html": page, "sub/b.html": OTHER, "site.css": style, "a.js": "", "a.svg": picture}.items():
                (folder / file).write_text(text)
            return list(CHECK.problems_of(folder))

    def test_a_sound_site(self):
        self.assertEqual(self.problems(), [])

    def test_an_empty_one(self):
        with tempfile.TemporaryDirectory() as name:
            self.assertIn("has no page", "".join(CHECK.problems_of(pathlib.Path(name))))

    def test_each_planted_fault(self):
        for planted, instead, said in [
            ("#here", "#gone", "links to #gone, an anchor that is not there"),
            ("#there", "#gone", "links to sub/b.html#gone, an anchor that is not there"),
            ("sub/b.html", "sub/c.html", "links to sub/c.html#there, which is not there"),
            ("sub/b.html", "../b.html", "links to ../b.html#there, which is not there"),
            ("a.js", "gone.js", "links to gone.js, which is not there"),
            ('src="a.svg"', 'src="gone.svg"', "links to gone.svg, which is not there"),
            ("a.js", "https://example.org/a.js", "loads https://example.org/a.js from another host"),
            ("site.css", "//example.org/site.css", "loads //example.org/site.css from another host"),
            ('src="a.svg"', 'srcset="a.svg 1x, http://example.org/a.svg 2x"', "loads http://example.org/a.svg from"),
            ("<p>", '<p style="background: url(\'https://example.org/a.png\')">', "loads https://example.org/a.png from"),
            ("</head>", "<style>@import 'https://example.org/a.css';</style></head>", "loads https://example.org/a.css from"),
            ("</head>", '<link rel="preconnect" href="https://example.org"></head>', "loads https://example.org from"),
            ("<p>", '<iframe src="https://example.org"></iframe><p>', "loads https://example.org from another host"),
            ("<p>", '<pre class="x mermaid"></pre><p>', 'class="x mermaid" makes the theme\'s script ask another host'),
            ("<p>", '<p>A list:\n- one\n', "Markdown that was not rendered"),
            ("<p>", "<p>[a](b)", "Markdown that was not rendered"),
        ]:
            with self.subTest(instead):
                self.assertIn(planted, SOUND)
                problems = self.problems(page=SOUND.replace(planted, instead, 1))
                self.assertEqual([problem for problem in problems if said in problem], problems)
                self.assertTrue(problems)

    def test_style_sheets_and_pictures(self):
        self.assertTrue(self.problems(style="@font-face { src: url(https://example.org/a.woff2) }"))
        self.assertTrue(self.problems(picture='<svg><image width="1" href="https://example.org/a.png"/></svg>'))


class Pages(unittest.TestCase):
    def test_items_of_more_than_one_paragraph(self):
        self.assertEqual("\n".join(PAGES.lists("1. a\n   b\n\n   ```\n    c\n   ```\n2. d\n\nText.\n  e")),
                         "1. a\n    b\n\n    ```\n     c\n    ```\n\n2. d\n\nText.\n  e")

    def test_links(self):
        pages = PAGES.Pages()
        with self.subTest("within docs"):
            self.assertEqual(pages.link("stores/sqlite.md", "docs/keys.md"), "../keys.md")
        with self.subTest("out of docs"):
            self.assertEqual(pages.link("keys.md", "README.md"), "index.md")
            self.assertEqual(pages.link("stores/sqlite.md", "include/once/store.hpp"), "../files/include/once/store.hpp.md")
            self.assertEqual(pages.link("contents.md", "examples"), "files/examples/index.md")
        self.assertIn("examples", pages.waiting)

    def test_only_links_are_rewritten(self):
        text = "[a](b) `[c](d)` [`e\nf`](g)\n\n```\n[h](i)\n```\n"
        self.assertEqual([match["target"] for match in PAGES.LINK.finditer(text) if match["target"]], ["b", "g"])

    def test_bars_in_the_code_of_a_table(self):
        row = r"| `a \|\| b` | `` c \|\| `d` `` | `e` |"
        self.assertEqual(PAGES.CELL.sub(PAGES.bars, row),
                         "| <code>a &#124;&#124; b</code> | <code>c &#124;&#124; &#96;d&#96;</code> | `e` |")

    def test_the_first_use_of_a_word_is_explained(self):
        meanings = {word: f"what {word} is" for word in PAGES.TERMS}

        def explained(text, page="page.md"):
            return PAGES.explained(text, page, meanings)

        claim = 'Its [Claims](glossary.md#word-claim "what claim is") lapse'.replace(
            "lapse", '[lapse](glossary.md#word-lapsed "what lapsed is")')
        self.assertEqual(explained("# A claim\n\nIts Claims lapse, and a `x` claim lapsed.\n"),
                         f"# A claim\n\n{claim}, and a `x` claim lapsed.\n")
        self.assertIn("](../glossary.md#word-lease ", explained("| a lease | x |", "stores/page.md"))
        self.assertIn('[`hold`](glossary.md#word-hold "what hold is")', explained("Under `hold` nothing runs."))
        self.assertIn("[fencing token](glossary.md#word-token ", explained("Its fencing token."))
        for text in ("## The lease\n", "`a lease`", "```\nlease\n```\n", "[the lease](x.md)", "![A lease](x.svg)", "<!-- lease -->",
                     "<a href='lease'></a>", "release leased", "`--on-lapse hold`", "hold", "a claim of a JWT", "<code>a lease</code>"):
            with self.subTest(text):
                self.assertEqual(explained(text), text)
        with self.subTest("a link that is there already"):
            text = "A claim. See [claims](glossary.md#the-record-and-its-claim)."
            self.assertEqual(explained(text), text)

    def test_each_word_is_in_the_glossary_with_an_anchor(self):
        glossary = (ROOT / PAGES.GLOSSARY).read_text()
        marked = PAGES.marked(glossary)
        meanings = dict(PAGES.defined(glossary))
        for word in PAGES.TERMS:
            with self.subTest(word):
                self.assertEqual(marked.count(f'<a id="{PAGES.anchor(word)}"></a>'), 1)
                self.assertRegex(meanings[word], r"^[^\"`\[]{10,}$")
        self.assertEqual(PAGES.re.sub("<a id=[^>]*></a>", "", marked), glossary)


if __name__ == "__main__":
    unittest.main(verbosity=0)
