#!/usr/bin/env python3
"""Each message that docs/troubleshoot.md quotes must still stand in the sources, and what once run says must be quoted."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs/troubleshoot.md").read_text()
STRING = r'"(?:[^"\\\n]|\\.)*"'
RAW = r'R"(?P<mark>\w*)\((?P<raw>.*?)\)(?P=mark)"'
COMMENT = r"//[^\n]*"
JOINED = re.compile(rf'{RAW}|(?P<strings>{STRING}(?:\s*{STRING})*)|{COMMENT}|\'(?:[^\'\\\n]|\\.)\'', re.S)
# What once run says that needs no advice: how it goes on, with --verbose or as part of another message.
PLAIN = {"from the environment: ", "attempt ", " for ", " begins", "replayed: ", " was run by ", " and ended at ", "it failed: ",
         " did not take place: ", ". Nothing was run.", "cannot write the replayed output: ",
         "the command finished the operation in a transaction of its own",
         " could not be kept. Later callers get an error that says so, and nothing is run for them. "}


def literals(text):
    """The texts of a source file: literals that stand beside each other are one. Those of PostgreSQL's functions too."""
    for found in JOINED.finditer(text):
        if found["raw"] is not None:
            yield found["raw"].replace("''", "'")
        elif found["strings"]:
            parts = re.findall(STRING, found["strings"])
            yield "".join(part[1:-1] for part in parts).replace('\\"', '"').replace("\\\\", "\\").replace("\\n", "\n")


def sources():
    return [path for folder in ("src", "apps", "include") for path in sorted((ROOT / folder).rglob("*.[ch]pp"))]


def fragments(message):
    """The parts between what varies, without the signs at their ends, which may be another literal's."""
    return [part.strip(" ;:.,()") for part in re.split(r"\.{3,}", message) if re.search(r"\w", part)]


def quoted():
    """(line, message) of each row: the code in its first cell."""
    for number, line in enumerate(PAGE.splitlines(), 1):
        if line.startswith("| `"):
            yield number, re.match(r"\| `([^`]+)` \|", line)[1]


class Troubleshoot(unittest.TestCase):
    def test_each_message_stands_in_one_file(self):
        said = {path: list(literals(path.read_text())) for path in sources()}
        rows = list(quoted())
        self.assertGreater(len(rows), 60)
        for number, message in rows:
            with self.subTest(line=number):
                parts = fragments(message)
                self.assertGreater(max(len(part.split()) for part in parts), 2, f"{message}: too little to find it by")
                self.assertTrue(any(all(any(part in text for text in texts) for part in parts) for texts in said.values()),
                                f"docs/troubleshoot.md:{number}: {message}\nstands in no source file")

    def test_no_message_twice(self):
        messages = [message for _, message in quoted()]
        self.assertEqual([message for message in messages if messages.count(message) > 1], [])

    def test_what_once_run_says_is_here(self):
        text = "".join((ROOT / "apps/once" / file).read_text() for file in ("commands/run.cpp", "process/run_command.cpp"))
        calls = re.findall(r"\bsay\((.*?)\);", text, re.S)
        self.assertGreater(len(calls), 20)
        parts = [part for _, message in quoted() for part in fragments(message)]
        for call in calls:
            texts = [text for text in literals(call) if text not in PLAIN and len(text.split()) > 1]
            with self.subTest(call=" ".join(call.split())):
                self.assertTrue(not texts or any(part in text for text in texts for part in parts if len(part.split()) > 1),
                                "not in docs/troubleshoot.md: say what to do")

    def test_what_is_read(self):
        self.assertEqual(list(literals('f("a " // "b"\n  + x + " c\\"d"\n  "e" \'"\');')), ["a ", ' c"de'])
        self.assertEqual(fragments("a ... is b: ..."), ["a", "is b"])


if __name__ == "__main__":
    unittest.main(verbosity=0)
