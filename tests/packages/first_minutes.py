"""first_minutes.py [--write] [--only NAME] ... [--debian SUITE] FILE ...: plays the pages "Start: ..." of the documentation,
each on a bare Debian of its own: it installs what the page wants, types the page, and compares what it shows. Prints how
long that took; --write puts the times of these pages into docs/install.md. NAME is a page's, such as shell for
docs/start-shell.md; the default is all whose packages are among the files: those of Debian, for Debian 12 only, and what
tools/client-packages makes, for each Debian.

Needs root, mmdebstrap, and a mount namespace of its own (tools/first-minutes gives it one). Packages come from Debian's
mirror as apt has it here, and those of PyPI from where pip finds them here.
"""
import argparse
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
import bare  # noqa: E402
import harness  # noqa: E402
import pages  # noqa: E402

LIBRARY = "libonce-dev"
# What each page wants beside the program, as its reader asks apt for it; and what a machine does by itself, or another
# page explains.
WANTED = {
    "cpp": ["g++", LIBRARY],
    "shell": [],
    "mcp": ["python3"],
    "python": ["python3-venv"],
    "node": ["nodejs", "npm"],
    "go": ["golang-go"],
    "proxy": ["python3", "curl"],
    "nodeservice": ["nodejs", "curl"],
    "goservice": ["golang-go", "curl"],
    "lambda": ["g++", LIBRARY],
    "sqs": ["python3-venv"],
    "postgresql": ["postgresql"],
}
CLIENTS = {"python": "once_idempotency-*", "node": "once-idempotency-*.tgz", "go": "once-go-*"}  # The packages that they install.
BACKPORTS = {("go", "bookworm")}  # Its Go is too old.
PREPARED = {"postgresql": ["pg_ctlcluster 15 main start", "runuser -u postgres -- createuser --superuser root"]}
ENDED = {"postgresql": "pg_ctlcluster 15 main stop -m immediate"}
TABLE = ("<!-- The table is by tools/first-minutes --write -->\n", "<!-- to here. -->\n")
FOLDER = "/srv/page"
FETCHED = "it needs PyPI"
# How pip gets at PyPI here.
FOR_PIP = {name: value for name, value in os.environ.items() if re.match(r"PIP_(?!FIND_LINKS)|(https?|no|all)_proxy$", name, re.I)}
taken = {}


class Bare(pages.Player):
    @classmethod
    def setUpClass(cls):
        cls.base = FILES / "base"
        cls.base.mkdir()
        bare.run("mount", "-t", "tmpfs", "tmpfs", cls.base)  # A quarter of a gigabyte; the pages' own changes go to the disk.
        cls.addClassCleanup(bare.run, "umount", "--lazy", cls.base)
        bare.make(cls.base, outside=OUTSIDE, suite=SUITE)
        # Nothing starts while it is installed: there is no init. PREPARED is what it would do.
        policy = cls.base / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        (cls.base / "etc/hosts").write_text("127.0.0.1 localhost\n")
        certificates = FOR_PIP.get("PIP_CERT")
        if certificates:
            shutil.copy(certificates, cls.base / "etc/pip.pem")
            FOR_PIP["PIP_CERT"] = "/etc/pip.pem"

    def setUp(self):
        """The bare Debian below, and this page's changes above it."""
        super().setUp()
        self.root = FILES / self.name
        for part in ("above", "work", "root"):
            (self.root / part).mkdir(parents=True)
        layers = f"lowerdir={self.base},upperdir={self.root}/above,workdir={self.root}/work"
        self.root = self.root / "root"
        bare.run("mount", "-t", "overlay", "-o", layers, "overlay", self.root)
        self.addCleanup(bare.run, "umount", "--recursive", "--lazy", self.root)
        bare.run("mount", "--bind", "/proc", self.root / "proc")
        (self.root / "dev/shm").mkdir(exist_ok=True)
        bare.run("mount", "-t", "tmpfs", "tmpfs", self.root / "dev/shm")
        self.dir = self.root / FOLDER.lstrip("/")
        self.dir.mkdir()
        self.env = dict(bare.ENVIRONMENT)
        self.addCleanup(self.end_all)

    def end_all(self):
        """A server that a page has started on demand outlives it."""
        for link in pathlib.Path("/proc").glob("[0-9]*/root"):
            with contextlib.suppress(OSError):
                if os.readlink(link) == str(self.root):
                    os.kill(int(link.parent.name), signal.SIGKILL)

    def shell(self, command):
        """Outside the network of the pages for what is fetched."""
        network, given = [], ""
        if self.left_out == FETCHED:
            network = OUTSIDE
            given = "".join(f"export {name}='{value}'\n" for name, value in FOR_PIP.items())
        return [*network, "chroot", str(self.root), "bash", "-c", f"cd {FOLDER}\n{given}{command}"]

    def provide_program(self):
        """By apt, as docs/install.md has it. Packages of the clients are put beside the reader."""
        wanted = []
        if self.name in CLIENTS:
            for file in FOR_CLIENTS:
                if file.match(CLIENTS[self.name]):
                    shutil.copy(file, self.dir)
        if (self.name, SUITE) in BACKPORTS:
            (self.root / "etc/apt/sources.list.d/backports.list").write_text(f"deb {bare.mirror()} {SUITE}-backports main\n")
            wanted += ["-t", f"{SUITE}-backports"]
        for name in names_wanted(self.name):
            wanted.append(f"/srv/{DEBS[name].name}" if name in DEBS else name)
            if name in DEBS:
                shutil.copy(DEBS[name], self.root / "srv")
        began = time.monotonic()
        for command in (["update"], ["install", "-y", *wanted]):
            bare.run(*OUTSIDE, "chroot", self.root, "apt-get", "-q", "-o", "Acquire::Retries=3", *command, env=self.env)
        if self.name in ENDED:
            self.addCleanup(bare.run, "chroot", self.root, "sh", "-c", ENDED[self.name], env=self.env)
        for command in PREPARED.get(self.name, []):
            bare.run("chroot", self.root, "sh", "-c", command, env=self.env)
        self.installed = time.monotonic()
        taken[self.name] = {"install": self.installed - began}

    def after(self, block):
        if block["replay"]:
            taken[self.name]["replay"] = time.monotonic() - self.installed
        taken[self.name]["page"] = time.monotonic() - self.installed


def names_wanted(name):
    return WANTED[name] if name in CLIENTS else ["once", *WANTED[name]]


def page_test(name, blocks):
    def play(self):
        self.run_page(blocks)
        self.assertIn("replay", taken[name], "the page has no <!-- replayed --> before a block")
        print(f"{name}: installed in {taken[name]['install']:.0f} s, replayed after {taken[name]['replay']:.1f} s more,"
              f" played after {taken[name]['page']:.1f} s", flush=True)
    return play


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 99.5 else f"{seconds / 60:.0f} min" if seconds >= 600 else f"{seconds / 60:.1f} min"


def rows(table):
    """Those of pages that were not played now stay as they are."""
    yield "| page | `apt install` | then to a replay | the whole page |\n|---|---|---|---|\n"
    for name in WANTED:
        old = re.search(rf"^.*\(start-{name}\.md\).*\n", table, re.M)
        if name not in taken:
            yield old[0] if old else ""
            continue
        title = re.search(r"^# Start: (?:an? )?(.*)$", (pages.ROOT / f"docs/start-{name}.md").read_text(), re.M)[1]
        wanted = ", ".join(f"`{package}`" for package in names_wanted(name))
        times = [duration(max(1, taken[name][part])) for part in ("install", "replay", "page")]
        yield f"| [{title}](start-{name}.md) | {wanted}: {times[0]} | {times[1]} | {times[2]} |\n"


def write():
    file = pages.ROOT / "docs/install.md"
    before, rest = file.read_text().split(TABLE[0])
    table, after = rest.split(TABLE[1])
    file.write_text(before + TABLE[0] + "\n" + "".join(rows(table)) + "\n" + TABLE[1] + after)


def main():
    global DEBS, FILES, FOR_CLIENTS, OUTSIDE, SUITE
    parser = argparse.ArgumentParser(prog="first_minutes.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", action="append", metavar="NAME", choices=list(WANTED))
    parser.add_argument("--debian", default="bookworm", metavar="SUITE")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    pages.enter_network()
    SUITE = arguments.debian
    DEBS = {file.name.split("_")[0]: file.resolve() for file in arguments.files if file.suffix == ".deb"}
    FOR_CLIENTS = [file.resolve() for file in arguments.files if file.suffix != ".deb"]
    OUTSIDE = ["nsenter", f"--net=/proc/{os.getppid()}/ns/net"]
    found = {pathlib.Path(page).stem.removeprefix("start-"): blocks
             for page, _, blocks in pages.played(reasons=[FETCHED, "it needs the packages"]) if page.startswith("docs/start-")}
    if set(found) != set(WANTED):
        sys.exit(f"WANTED names {', '.join(WANTED)}, and the pages are {', '.join(found)}")
    can = [name for name in WANTED if (FOR_CLIENTS if name in CLIENTS else DEBS and SUITE == "bookworm")]
    if missing := set(arguments.only or can or WANTED) - set(can):
        sys.exit(f"there are no packages for the pages {', '.join(sorted(missing))}, on {SUITE}")
    for name in arguments.only or can:
        setattr(Bare, f"test_{name}", page_test(name, found[name]))
    Bare.name = property(lambda self: self.id().rpartition("test_")[2])
    with tempfile.TemporaryDirectory(prefix="once-bare-") as folder:
        FILES = pathlib.Path(folder)
        FILES.chmod(0o755)  # Servers' users see it as "/".
        sys.argv = [sys.argv[0], "once"]
        try:
            harness.main()
        except SystemExit as ended:
            if ended.code:
                raise
    if arguments.write:
        write()


if __name__ == "__main__":
    main()
