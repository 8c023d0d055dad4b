"""docs/commands.md against the program: flags, exit codes, JSON fields."""
import pathlib
import re

import harness
import pages
from harness import Case

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/commands.md").read_text()
COMMANDS = ["run", "sqs", "proxy", "ls", "find", "show", "resolve", "release", "extend", "rm", "sweep", "stats", "console", "serve", "mcp", "copy", "import",
            "doctor", "key", "seal-key", "lambda", "table"]
OF_TABLE = ["create", "check", "upgrade", "delete"]
OF_LAMBDA = ["invoke"]
OF_SEAL_KEY = ["new"]


def section(title):
    return re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.S | re.M).group(1)


class Page(Case):
    def test_commands(self):
        self.assertEqual(re.findall(r"^## once ([\w-]+)$", PAGE, re.M), COMMANDS)
        listed = re.findall(r"^  ([\w-]+) ", self.once("--help").stdout.decode().split("Subcommands:")[1], re.M)
        self.assertEqual(listed, COMMANDS)
        self.assertEqual(re.findall(r"^### once table (\w+)$", PAGE, re.M), OF_TABLE)
        self.assertEqual(re.findall(r"^### once lambda (\w+)$", PAGE, re.M), OF_LAMBDA)
        self.assertEqual(re.findall(r"^### once seal-key (\w+)$", PAGE, re.M), OF_SEAL_KEY)

    def test_flags(self):
        below = {"table": OF_TABLE, "lambda": OF_LAMBDA, "seal-key": OF_SEAL_KEY}
        for command in COMMANDS + [f"{word} {name}" for word, names in below.items() for name in names]:
            with self.subTest(command=command):
                shown = self.once(*command.split(), "--help").stdout.decode().split("Examples:")[0]
                flags = set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", shown, re.M))
                self.assertEqual(set(re.findall(r"`(--[a-z-]+)", section(f"once {command}"))), flags)

    def test_defaults(self):
        for command in ("run", "proxy"):
            with self.subTest(command=command):
                shown = self.once(command, "--help").stdout.decode()
                table = dict(re.findall(r"^\| `(--[a-z-]+)` \| ([^| ]+) \|", section(f"once {command}"), re.M))
                defaults = dict(re.findall(r"^  (--[a-z-]+) \S+=(\S+)", shown, re.M))
                self.assertGreater(len(defaults), 10)
                self.assertEqual({flag: table.get(flag) for flag in defaults}, defaults)

    def test_exit_codes(self):
        header = (ROOT / "apps/once/output/exit_codes.hpp").read_text()
        codes = {int(code) for name, code in re.findall(r"exit_(\w+) = (\d+)", header) if name != "signal_base"}
        self.assertEqual({int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.M)}, codes)
        shown = self.once("run", "--help").stdout.decode().split("Exit codes")[1]
        own = {int(code) for code in re.findall(r"(?:^|  )\s*(\d+)  ", shown, re.M)}
        self.assertEqual(own, codes - {0, 1, 65, 237, 238, 239})  # Those are other commands'.

    def test_json_fields(self):
        command = ["run", "--key", "k", "--", "sh", "-c", "exit 3"]
        self.expect(self.once(*command), 3)
        record = self.show("k")
        fields = section("JSON fields")
        rows = re.findall(r"^\| (`.*?) \|", fields, re.M)
        self.assertEqual([name for row in rows for name in re.findall(r"`(\w+)`", row)], list(record))
        for name in record["result"]:
            self.assertIn(f"`{name}`", fields)
        run = fields.split("`result.run`")[1]
        self.assertEqual(re.findall(r"`(\w+)`", run), list(record["result"]["run"]))


class Mistakes(Case):
    """What people mistype is named, nothing is run, and what they may have meant is said."""

    def test_what_was_mistyped(self):
        for arguments, said in ((["rnu", "--key", "k", "--", "touch", "ran"], "no command `once rnu`. Did you mean run?"),
                                (["run", "--kye", "k", "--", "touch", "ran"], "no option --kye. Did you mean --key?"),
                                (["run", "--kye=k", "--", "touch", "ran"], "no option --kye. Did you mean --key?"),
                                (["run", "--key", "k", "touch", "ran"], "Put -- before the command"),
                                (["sqs", "--queue", "q", "./charge", "-x"], "Put -- before the command"),
                                (["run", "--xyzzy", "--key", "k", "--", "touch", "ran"], "no option --xyzzy."),
                                (["table", "crate"], "no command `once table crate`. Did you mean create?"),
                                (["ls", "--sate", "unknown"], "Did you mean --state?"),
                                (["ls", "unknown"], "does not take the argument 'unknown'"),
                                (["--store", "sqlite:x", "ls"], "'--store' stands before the command. Write options "
                                                                "after it, as in `once ls --store`."),
                                (["table", "--store", "x", "check"], "as in `once table check --store`"),
                                (["help", "rnu"], "no command `once rnu`. Did you mean run?"),
                                (["help", "table", "crate"], "no command `once table crate`. Did you mean create?"),
                                (["rnu", "--help"], "no command `once rnu`. Did you mean run?"),
                                (["run", "--key", "k", "touch", "--help"], "Put -- before the command"),
                                (["ls", "--limit", "-1"], "--limit"),
                                (["ls", "--limit", "0"], "--limit")):
            with self.subTest(arguments=arguments):
                done = self.once(*arguments)
                self.assertEqual((done.returncode, done.stdout), (64, b""))
                self.assertIn(said, done.stderr.decode())
                self.assertIn("Nothing was run", done.stderr.decode())
        self.assertFalse(self.path("ran").exists())

    def test_help_is_a_command_too(self):
        self.assertEqual(self.once("help").stdout, self.once("--help").stdout)
        self.assertEqual(self.once("help", "table", "create").stdout, self.once("table", "create", "--help").stdout)
        self.expect(self.once("help"), 0)


class Pages(pages.Player):
    """Those that need the program alone. start_test.py plays the others."""


pages.add_tests(Pages, ((page, blocks) for page, needs, blocks in pages.played() if not needs))


if __name__ == "__main__":
    pages.enter_network()
    harness.main()
