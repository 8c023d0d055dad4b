"""Plays the pages of the documentation: types their commands, and compares what they show."""
import contextlib
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess

import harness
import namespaces
from harness import wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
HANGS_S = 400  # A command of a page that takes longer hangs; one that compiles takes a while on a busy machine.


class Player(harness.Case):
    """Every console block of every page is run, in order, in one directory per page; what it shows is what comes out.

    Each line after "$ " is a command, up to the next. In what it shows, "..." is any text, and <a name> is one line's
    text that varies: the same wherever the page has the name again. A block that cannot be run here has its reason in
    the line before: <!-- not played: REASON -->. A block of any language after <!-- saved as NAME --> is a file that the
    reader saves. What "$ export NAME=VALUE" sets is set for all commands after it. <!-- replayed --> is for
    tests/packages/first_minutes.py: the block after it is the first that shows a replay.

    A command that ends with " &" is a server. The next one is typed as soon as it listens, and it is stopped
    at the end of the page. It must print nothing, as that would stand anywhere on a reader's terminal. The ports are
    those that the page names, in a network of this test's own.
    """

    BLOCK = re.compile(r"(?:^ *<!-- not played: (?P<left_out>[^\n]+) -->\n)?(?P<replay>^<!-- replayed -->\n)?(?:^ *<!-- saved as (?P<file>[\w.-]+) -->\n)?"
                       r"(?:^<!-- quotes [^\n]+ -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```", re.S | re.M)
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
            server = subprocess.Popen(self.shell(f"exec {command.removesuffix('&')}"), cwd=self.dir, env=self.env,
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

    def shell(self, command):
        """How the page's machine is told to run it."""
        return ["bash", "-c", command]

    def provide_program(self):
        self.path("bin").mkdir(exist_ok=True)
        if not self.path("bin/once").exists():
            self.path("bin/once").symlink_to(harness.PROGRAM)
            self.env["PATH"] = f"{self.path('bin')}:{self.env['PATH']}"

    def after(self, block):
        """When it has been played."""

    def run_page(self, blocks):
        self.provide_program()
        known = {}
        for block in blocks:
            self.left_out = block["left_out"]
            text = re.sub(f"^{block['indent']}", "", block["text"], flags=re.M)
            if block["file"]:
                self.path(block["file"]).write_text(text)
                self.after(block)
                continue
            before, *steps = re.split(r"^\$ ", text, flags=re.M)
            self.assertEqual(before, "", "a console block begins with a command, after \"$ \"")
            for step in steps:
                command, _, shown = step.partition("\n")
                if command.startswith("export "):
                    self.assertEqual(shown.strip(), "", f"$ {command}\nprints nothing")
                    done = subprocess.run(self.shell(f"{command} && env -0"), cwd=self.dir, env=self.env,
                                          stdout=subprocess.PIPE, text=True, check=True)
                    self.env = dict(setting.split("=", 1) for setting in done.stdout.split("\0")[:-1])
                    continue
                if command.endswith(" &"):
                    self.assertEqual(shown.strip(), "", f"$ {command}\nis a server, which prints nothing")
                    self.start_server(command)
                    continue
                done = subprocess.run(self.shell(command), cwd=self.dir, env=self.env, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, timeout=HANGS_S, check=False)
                if self.left_out:  # What it shows varies.
                    self.assertEqual(done.returncode, 0, f"$ {command}\n{done.stdout}")
                    continue
                found = self.pattern(shown, known).fullmatch(done.stdout)
                self.assertTrue(found, f"$ {command}\n{done.stdout}--- the page shows\n{shown}")
                known.update(found.groupdict())
            self.after(block)


def listening(pid):
    """Whether this process listens on a port of TCP or on a Unix socket."""
    sockets = set()
    for version in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{version}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":  # TCP_LISTEN, in include/net/tcp_states.h of Linux.
                sockets.add(f"socket:[{words[9]}]")
    for line in pathlib.Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[3], 16) & 0x10000:  # __SO_ACCEPTCON, in include/uapi/linux/net.h.
            sockets.add(f"socket:[{words[6]}]")
    opened = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            opened.add(os.readlink(link))
        except FileNotFoundError:  # Closed meanwhile.
            pass
    return bool(sockets & opened)


def end_servers(place):
    """Those that were started on demand, by their sockets below this folder. Returns the program of each."""
    programs = []
    for path in place.rglob("*.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, contextlib.suppress(ConnectionError):
            client.connect(str(path))
            pid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            programs.append(os.readlink(f"/proc/{pid}/exe"))
            os.kill(pid, signal.SIGKILL)
    return programs


def played(reasons=()):
    """(page, what else it is played with, its blocks) of each page that has something to play. Blocks that are left out
    for one of these reasons are in it."""
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        text = page.read_text()
        blocks = [block for block in Player.BLOCK.finditer(text)
                  if (block["file"] or block["language"] == "console") and block["left_out"] in (None, *reasons)]
        if any(not block["file"] for block in blocks):
            needs = re.search(r"^<!-- played with: (.+) -->$", text, re.M)
            yield page.relative_to(ROOT).as_posix(), set(needs[1].split(", ")) if needs else set(), blocks


def add_tests(case, pages):
    """To a Player: a test for each page, so a new page needs no entry."""
    for page, blocks in pages:
        setattr(case, f"test_{re.sub(r'[^a-z]', '_', page.lower())}", lambda self, blocks=blocks: self.run_page(blocks))


def enter_network():
    """Of this test's own. Returns when this script runs there."""
    namespaces.enter("net", "ip link set lo up", "a network of its own")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
