"""docs/commands.md against the program: flags, exit codes, JSON fields."""
import os
import pathlib
import re
import signal
import subprocess
import unittest

import harness
import namespaces
from harness import Case, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/commands.md").read_text()
COMMANDS = ["run", "sqs", "proxy", "ls", "find", "show", "resolve", "release", "extend", "rm", "sweep", "stats", "console", "copy", "doctor",
            "key", "seal-key", "lambda", "table"]
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
        header = (ROOT / "apps/once/process/exit_codes.hpp").read_text()
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


class Pages(Case):
    """Every console block of every page is run, in order, in one directory per page; what it shows is what comes out.

    Each line after "$ " is a command, up to the next. In what it shows, "..." is any text, and <a name> is one line's
    text that varies: the same wherever the page has the name again. A block that cannot be run here has its reason in
    the line before: <!-- not played: REASON -->. A block of any language after <!-- saved as NAME --> is a file that the
    reader saves.

    A command that ends with " &" is a server. The next one is typed as soon as it listens on a port, and it is stopped
    at the end of the page. It must print nothing, as that would stand anywhere on a reader's terminal. The ports are
    those that the page names, in a network of this test's own.
    """

    BLOCK = re.compile(r"(?P<left_out>^ *<!-- not played: [^\n]+ -->\n)?(?:^ *<!-- saved as (?P<file>[\w.-]+) -->\n)?"
                       r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```", re.S | re.M)
    VARIES = re.compile(r"(\.\.\.|<[a-z][a-z ]*>)")

    def pattern(self, shown, known):
        """Of what the command shows. Names that are known stand for their text."""
        parts, new = [], set()
        for part in self.VARIES.split(shown):
            group = re.sub(r"\W", "_", part.strip("<>"))
            if part == "...":
                parts.append(".*")
            elif not self.VARIES.fullmatch(part):
                parts.append(re.escape(part))
            elif group in known:
                parts.append(re.escape(known[group]))
            else:
                parts.append(f"(?P={group})" if group in new else f"(?P<{group}>[^\n]+)")
                new.add(group)
        return re.compile("".join(parts), re.S)

    def start_server(self, command):
        """Returns when it listens. What it prints is compared at the end, when it has been stopped."""
        printed = self.path(f"server-{len(list(self.dir.glob('server-*')))}")
        with open(printed, "wb") as file:
            server = subprocess.Popen(["bash", "-c", f"exec {command.removesuffix('&')}"], cwd=self.dir, env=self.env,
                                      stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)

        def listens():
            self.assertIsNone(server.poll(), f"$ {command}\nended, and printed {printed.read_text()!r}")
            try:
                return listening(server.pid)
            except OSError:  # It has just ended: poll() will say so.
                return False

        def stop():
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(harness.DEADLINE_S)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
                raise
            self.assertEqual(printed.read_text(), "", f"what $ {command} prints would stand among the page's commands")

        self.addCleanup(stop)
        wait_until(listens, f"$ {command}: listens on a port")

    def run_page(self, blocks):
        self.path("bin").mkdir(exist_ok=True)
        if not self.path("bin/once").exists():
            self.path("bin/once").symlink_to(harness.PROGRAM)
            self.env["PATH"] = f"{self.path('bin')}:{self.env['PATH']}"
        known = {}
        for block in blocks:
            text = re.sub(f"^{block['indent']}", "", block["text"], flags=re.M)
            if block["file"]:
                self.path(block["file"]).write_text(text)
                continue
            before, *steps = re.split(r"^\$ ", text, flags=re.M)
            self.assertEqual(before, "", "a console block begins with a command, after \"$ \"")
            for step in steps:
                command, _, shown = step.partition("\n")
                if command.endswith(" &"):
                    self.assertEqual(shown.strip(), "", f"$ {command}\nis a server, which prints nothing")
                    self.start_server(command)
                    continue
                done = subprocess.run(["bash", "-c", command], cwd=self.dir, env=self.env, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
                found = self.pattern(shown, known).fullmatch(done.stdout)
                self.assertTrue(found, f"$ {command}\n{done.stdout}--- the page shows\n{shown}")
                known.update(found.groupdict())


def listening(pid):
    """Whether this process listens on a port of TCP."""
    sockets = set()
    for version in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{version}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":  # TCP_LISTEN, in include/net/tcp_states.h of Linux.
                sockets.add(f"socket:[{words[9]}]")
    opened = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            opened.add(os.readlink(link))
        except FileNotFoundError:  # Closed meanwhile.
            pass
    return bool(sockets & opened)


def page_test(blocks):
    return lambda self: self.run_page(blocks)


# A test for each page with such a block: a new page needs no entry.
for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
    played = [block for block in Pages.BLOCK.finditer(page.read_text())
              if (block["file"] or block["language"] == "console") and not block["left_out"]]
    if any(not block["file"] for block in played):
        setattr(Pages, f"test_{re.sub(r'[^a-z]', '_', page.relative_to(ROOT).as_posix().lower())}", page_test(played))


if __name__ == "__main__":
    namespaces.enter("net", "ip link set lo up", "a network of its own")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    harness.main()
