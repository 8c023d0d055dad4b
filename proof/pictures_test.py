#!/usr/bin/env python3
"""pictures_test.py: the figures of a short history, and that the picture in docs/ is what its figures say."""
import json
import pathlib
import tempfile
import unittest

import pictures

MS = 1_000_000


class Figures(unittest.TestCase):
    def figures(self, callers, nemesis):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for file, lines in (("callers.jsonl", callers), ("nemesis.log", nemesis)):
                (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
            return pictures.figures_of(folder)

    def test_what_is_done_is_counted_and_faults_have_a_beginning_and_an_end(self):
        callers = [{"t": ms * MS, "told": told} for ms, told in (
            (1000, "got"), (1199, "got"), (1200, "got"), (1300, "unknown"), (2450, "got"))]
        nemesis = [{"t": 1500 * MS, "fault": "kill"}, {"t": 1700 * MS, "over": "kill"}, {"t": 2000 * MS, "fault": "kill"}]
        self.assertEqual(self.figures(callers, nemesis),
                         {"done": [2, 1, 0, 0, 0, 0, 0, 1], "faults_ms": [[500, 700], [1000, 1000]]})

    def test_a_fault_that_lasts_longer_than_the_picture_ends_with_it(self):
        callers = [{"t": ms * MS, "told": "got"} for ms in (1000, 90_000)]
        nemesis = [{"t": 2000 * MS, "fault": "cut"}, {"t": 80_000 * MS, "over": "cut"}, {"t": 81_000 * MS, "fault": "cut"}]
        found = self.figures(callers, nemesis)
        self.assertEqual((len(found["done"]), sum(found["done"]), found["faults_ms"]), (100, 1, [[1000, 20_000]]))

    def test_without_faults_there_is_no_picture(self):
        self.assertIsNone(self.figures([{"t": 1, "told": "got"}], []))

    def test_tables_stand_between_their_lines(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "results.json").write_text('{"seed": 17}')
            (folder / "tables.md").write_text("| runs |\n\n| bugs |\n")
            begins = [pictures.BEGIN.format(kind) for kind in ("Runs", "Bugs")]
            page = pictures.with_tables(f"a\n{begins[0]}old\n{pictures.END}b\n{begins[1]}{pictures.END}c\n", folder)
            self.assertEqual(page.count("Seed 17, "), 2)
            self.assertIn("| runs |\n\n" + pictures.END + "b\n" + begins[1] + "\nSeed", page)
            self.assertTrue(page.endswith("| bugs |\n\n" + pictures.END + "c\n"))
            self.assertNotIn("old", page)
            with self.assertRaises(SystemExit):
                pictures.with_tables("no such lines", folder)

    def test_the_picture_in_docs_is_what_its_figures_say(self):
        figures = json.loads((pictures.IMAGES / "availability.json").read_text())
        self.assertEqual((pictures.IMAGES / "availability.svg").read_text(), pictures.picture(figures))
        self.assertGreater(len(figures), 5)


if __name__ == "__main__":
    unittest.main()
