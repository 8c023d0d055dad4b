"""try.py DEB ...: the packages in a bare Debian, as somebody installs them: one operation is run and replayed; a proxy
goes on while its package is replaced; a program is built with the library; all is removed, and the records stay.
Needs root, debootstrap, and Debian's mirror as apt has it here."""
import http.server
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

DEBS = {pathlib.Path(deb).name.split("_")[0]: pathlib.Path(deb) for deb in sys.argv[1:]}
PROGRAM = """
#include <cstdio>
#include <string>
#include <once/engine/engine.hpp>
#include <once/stores/open.hpp>
int main() {
  once::Engine engine({.store = once::open_store("sqlite:/tmp/library.db"), .scope = "try"});
  std::puts(engine.run("k", {}, [](once::Context&) { return std::string("ran"); }).value().c_str());
}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(try CXX)
find_package(once REQUIRED COMPONENTS engine stores)
add_executable(try try.cpp)
target_link_libraries(try PRIVATE once::engine once::stores)
"""


def run(*command, **more):
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def mirror():
    """As apt has it here."""
    for file in [pathlib.Path("/etc/apt/sources.list"), *pathlib.Path("/etc/apt/sources.list.d").glob("*")]:
        found = file.is_file() and re.search(r"https?://[^\s\]]+/debian/?(?=\s)", file.read_text())
        if found:
            return found[0]
    raise RuntimeError("apt names no mirror of Debian")


class Service(http.server.BaseHTTPRequestHandler):
    charges = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Service.charges += 1
        body = b"charge %d" % Service.charges
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Bare(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="once-bare-"))
        cls.addClassCleanup(shutil.rmtree, cls.root)
        run("debootstrap", "--variant=minbase", "bookworm", str(cls.root), mirror())
        proxies = pathlib.Path("/etc/apt/apt.conf.d")
        for file in proxies.glob("*"):  # How this machine reaches the mirror.
            if "Proxy" in file.read_text(errors="replace"):
                shutil.copy(file, cls.root / "etc/apt/apt.conf.d")
        run("mount", "--bind", "/proc", str(cls.root / "proc"))  # The store asks there who else has its file open.
        cls.addClassCleanup(run, "umount", str(cls.root / "proc"))

    def inside(self, *command, **more):
        return run("chroot", str(self.root), "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8",
                   "DEBIAN_FRONTEND=noninteractive", *command, **more)

    def install(self, name):
        shutil.copy(DEBS[name], self.root / "tmp")
        return self.inside("apt-get", "install", "-y", "-q", "--no-install-recommends", f"/tmp/{DEBS[name].name}")

    def test_1_the_program(self):
        self.install("once")
        record = ["once", "run", "--store", "sqlite:/var/lib/once.db", "--key", "order-17", "--"]
        first = self.inside(*record, "sh", "-c", "date +%N; echo ran >> /tmp/ran")
        self.assertEqual(self.inside(*record, "sh", "-c", "date +%N; echo ran >> /tmp/ran"), first)
        self.assertEqual((self.root / "tmp/ran").read_text(), "ran\n")

    def test_2_it_is_replaced_while_a_proxy_uses_its_store(self):
        service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]

        def start():
            proxy = subprocess.Popen(["chroot", str(self.root), "/usr/bin/once", "proxy", "--listen", f"127.0.0.1:{port}",
                                      "--upstream", f"http://127.0.0.1:{service.server_port}", "--no-principal",
                                      "--store", "sqlite:/var/lib/proxy.db"], stderr=subprocess.DEVNULL)
            self.addCleanup(lambda: (proxy.kill(), proxy.wait()))
            deadline = time.monotonic() + 30
            while proxy.poll() is None and time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    return proxy
                except OSError:
                    time.sleep(0.05)
            self.fail("the proxy does not listen")

        def post(key):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/charges", b"{}", {"Idempotency-Key": key})
            return urllib.request.urlopen(request).read()

        proxy = start()
        first = post("a")
        self.inside("dpkg", "-i", f"/tmp/{DEBS['once'].name}")
        self.assertEqual(post("a"), first)  # The old program goes on …
        second = post("b")
        proxy.send_signal(signal.SIGTERM)
        self.assertEqual(proxy.wait(60), 0)
        start()
        self.assertEqual([post("a"), post("b")], [first, second])  # … and the new one has its records.
        self.assertEqual(Service.charges, 2)
        service.shutdown()
        service.server_close()

    def test_3_the_library(self):
        self.install("libonce-dev")
        self.inside("apt-get", "install", "-y", "-q", "--no-install-recommends", "g++", "cmake", "make", "nlohmann-json3-dev",
                    "libpq-dev", "libboost1.81-dev")
        folder = self.root / "tmp/try"
        folder.mkdir()
        (folder / "try.cpp").write_text(PROGRAM)
        (folder / "CMakeLists.txt").write_text(CMAKE)
        self.inside("cmake", "-S", "/tmp/try", "-B", "/tmp/try/build")
        self.inside("cmake", "--build", "/tmp/try/build")
        self.assertEqual(self.inside("/tmp/try/build/try"), "ran\n")

    def test_4_removed_it_leaves_the_records(self):
        files = [self.root / name.lstrip("/") for name in self.inside("dpkg", "-L", "once", "libonce-dev").split("\n") if name]
        files = [file for file in files if file.is_file()]
        self.assertGreater(len(files), 100)
        self.inside("apt-get", "purge", "-y", "-q", "once", "libonce-dev")
        self.assertEqual([file for file in files if file.exists()], [])
        self.assertTrue((self.root / "var/lib/once.db").exists())


if __name__ == "__main__":
    program = unittest.main(argv=[sys.argv[0]], exit=False, verbosity=2)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun or bool(program.result.skipped))
