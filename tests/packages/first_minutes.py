"""first_minutes.py [--write] [--only NAME] ... DEB ...: plays the pages "Start: ..." of the documentation, each on a bare
Debian of its own: it installs what the page wants, types the page, and compares what it shows. Prints how long that took;
--write puts the times of these pages into docs/install.md. NAME is a page's, such as shell for docs/start-shell.md; the default is all.

Needs root, mmdebstrap, and a mount namespace of its own (tools/first-minutes gives it one). Packages come from Debian's
mirror as apt has it here, and those of PyPI from where pip finds them here.
"""
import argparse
import os
import pathlib
import re
import shutil
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
    "python": ["python3"],
    "proxy": ["python3", "curl"],
    "node": ["nodejs", "curl"],
    "go": ["golang-go", "curl"],
    "lambda": ["g++", LIBRARY],
    "sqs": ["python3-venv"],
    "postgresql": ["postgresql"],
}
PREPARED = {"postgresql": ["pg_ctlcluster 15 main start", "runuser -u postgres -- createuser --superuser root"]}
ENDED = {"postgresql": "pg_ctlcluster 15 main stop -m immediate"}
TABLE = ("<!-- The table is by tools/first-minutes --write -->\n", "<!-- to here. -->\n")
FOLDER = "/srv/page"
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
        bare.make(cls.base, outside=OUTSIDE)
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

    def shell(self, command):
        """Outside the network of the pages for what is left out elsewhere, as it is fetched."""
        network, given = [], ""
        if self.left_out:
            network = OUTSIDE
            given = "".join(f"export {name}='{value}'\n" for name, value in FOR_PIP.items())
        return [*network, "chroot", str(self.root), "bash", "-c", f"cd {FOLDER}\n{given}{command}"]

    def provide_program(self):
        """By apt, as docs/install.md has it."""
        files = ["once", *(name for name in WANTED[self.name] if name in DEBS)]
        for name in files:
            shutil.copy(DEBS[name], self.root / "srv")
        wanted = [f"/srv/{DEBS[name].name}" if name in DEBS else name for name in ["once", *WANTED[self.name]]]
        began = time.monotonic()
        for command in (["update"], ["install", "-y", *wanted]):
            bare.run(*OUTSIDE, "chroot", self.root, "apt-get", "-q", "-o", "Acquire::Retries=3", *command, env=self.env)
        if self.name in ENDED:
            self.addCleanup(bare.run, "chroot", self.root, "sh", "-c", ENDED[self.name], env=self.env)
        if self.name == "python":  # As pip installs the package; it wants nothing else.
            shutil.copytree(pages.ROOT / "clients/python/src", self.root / "srv/python")
            self.env["PYTHONPATH"] = "/srv/python"
        for command in PREPARED.get(self.name, []):
            bare.run("chroot", self.root, "sh", "-c", command, env=self.env)
        self.installed = time.monotonic()
        taken[self.name] = {"install": self.installed - began}

    def after(self, block):
        if block["replay"]:
            taken[self.name]["replay"] = time.monotonic() - self.installed
        taken[self.name]["page"] = time.monotonic() - self.installed


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
        wanted = ", ".join(f"`{package}`" for package in ["once", *WANTED[name]])
        times = [duration(max(1, taken[name][part])) for part in ("install", "replay", "page")]
        yield f"| [{title}](start-{name}.md) | {wanted}: {times[0]} | {times[1]} | {times[2]} |\n"


def write():
    file = pages.ROOT / "docs/install.md"
    before, rest = file.read_text().split(TABLE[0])
    table, after = rest.split(TABLE[1])
    file.write_text(before + TABLE[0] + "\n" + "".join(rows(table)) + "\n" + TABLE[1] + after)


def main():
    global DEBS, FILES, OUTSIDE
    parser = argparse.ArgumentParser(prog="first_minutes.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", action="append", metavar="NAME", choices=list(WANTED))
    parser.add_argument("debs", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    pages.enter_network()
    DEBS = {deb.name.split("_")[0]: deb.resolve() for deb in arguments.debs}
    OUTSIDE = ["nsenter", f"--net=/proc/{os.getppid()}/ns/net"]
    found = {pathlib.Path(page).stem.removeprefix("start-"): blocks
             for page, _, blocks in pages.played(reasons=["it needs PyPI"]) if page.startswith("docs/start-")}
    if set(found) != set(WANTED):
        sys.exit(f"WANTED names {', '.join(WANTED)}, and the pages are {', '.join(found)}")
    for name in arguments.only or WANTED:
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
