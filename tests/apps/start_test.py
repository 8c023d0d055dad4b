"""start_test.py PROGRAM BUILD: plays the pages of the documentation that need more than the program.

Such a page has a line <!-- played with: ... -->, of the names in PROVIDED. Started by tests/real_servers/with-postgresql,
whose server the page "postgresql" has to itself: it is reached as one on the reader's own machine is, by its socket. The
rest is put in the page's folder or on its PATH.
"""
import os
import pathlib
import subprocess
import sys

import harness
import pages

TOOLS = pages.ROOT / "tools"
SERVER = "ONCE_TEST_POSTGRESQL"


class Start(pages.Player):
    def library(self):
        """once, installed below the page's folder, and found by CMake as below /usr."""
        prefix = self.path("installed")
        subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        self.env["CMAKE_PREFIX_PATH"] = str(prefix)
        self.env["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"

    def node(self):
        """As old machines have none, or one that is too old."""
        self.env["PATH"] = f"{tool('node-tools')}/node_modules/.bin:{self.env['PATH']}"

    def go(self):
        self.env |= {"GOTOOLCHAIN": "local", "GOFLAGS": ""}  # The machine's own, whatever its user has set.
        self.env["PATH"] = f"{tool('go-for-clients')}:{self.env['PATH']}"

    def python(self):
        pass  # It runs this.

    def packages(self):
        """Those of the sources, as pip, npm and go install them. The program is on PATH."""
        clients = pages.ROOT / "clients"
        self.env["PYTHONPATH"] = str(clients / "python/src")
        self.path("node_modules").mkdir()
        self.path("node_modules/once-idempotency").symlink_to(clients / "node")
        modules = {"once.invalid/once": clients / "go", "once.invalid/once/carried": clients / "go/carried"}
        self.path("go.mod").write_text("module example.com/shop\ngo 1.21\n" + "".join(
            f"require {name} v0.0.0\nreplace {name} => {folder}\n" for name, folder in modules.items()))
        self.env["TMPDIR"] = "/tmp"  # Go takes no module from what is below it.
        place = self.path("run")
        place.mkdir(mode=0o700)
        self.env["XDG_RUNTIME_DIR"] = str(place)
        self.addCleanup(pages.end_servers, place)

    def moto(self):
        """In the virtual environment that the page makes."""
        self.path("aws").symlink_to(tool("python-tools").parent.parent)

    def postgresql(self):
        pass  # The variables of libpq are set for all.

    def setUp(self):
        super().setUp()
        for name in list(self.env):  # A reader has none of these, and no proxy is reached from the pages' network.
            if name.startswith("AWS_") or name == "ONCE_STORE" or name.lower().endswith("_proxy"):
                del self.env[name]


PROVIDED = ["library", "python", "node", "go", "packages", "moto", "postgresql"]


def tool(script):
    """The program whose path a script of tools/ prints, once it is installed."""
    done = subprocess.run([TOOLS / script], check=True, stdout=subprocess.PIPE, text=True)
    return pathlib.Path(done.stdout.strip())


def install_tools():
    """What the pages need, where its registries are reached: the network of the pages has none."""
    scripts = {"node": "node-tools", "go": "go-for-clients", "moto": "python-tools"}
    for needs, _ in found.values():
        for name in needs & set(scripts):
            tool(scripts[name])


def page_test(needs, blocks):
    def play(self):
        for name in needs:
            getattr(self, name)()
        self.run_page(blocks)
    return play


found = {page: (needs, blocks) for page, needs, blocks in pages.played() if needs}
for page, (needs, blocks) in found.items():
    if not needs <= set(PROVIDED):
        sys.exit(f"{page}: played with {', '.join(needs - set(PROVIDED))}? There is {', '.join(PROVIDED)}")
    setattr(Start, f"test_{pathlib.Path(page).stem.replace('-', '_')}", page_test(sorted(needs), blocks))


def use_server():
    """The server's socket, as its port of TCP is out of reach in the network of the pages."""
    url = os.environ.pop(SERVER)
    for setting in ("unix_socket_directories", "port"):
        os.environ["PGHOST" if setting != "port" else "PGPORT"] = subprocess.run(
            ["psql", "-XAtqc", f"SHOW {setting}", url], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    os.environ["PGUSER"] = "postgres"


if __name__ == "__main__":
    if SERVER in os.environ:
        use_server()
    install_tools()
    pages.enter_network()
    BUILD = os.path.abspath(sys.argv.pop(2))
    harness.main()
