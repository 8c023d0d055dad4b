"""try.py DEB ...: the packages in a bare Debian, as somebody installs them: one operation is run and replayed; a proxy
goes on while its package is replaced; both units do their work under systemd; a program is built with the library; all
is removed, and the records stay. Needs root, mmdebstrap, systemd-nspawn, and Debian's mirror as apt has it here."""
import contextlib
import hashlib
import http.server
import json
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "real_servers"))
import bare  # noqa: E402
import emulator  # noqa: E402
from bare import run  # noqa: E402

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


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def post(port, key):
    """An answer, when somebody listens and lets the request pass."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/charges", b"{}", {"Idempotency-Key": key, "X-Api-Key": "k"})
    return urllib.request.urlopen(request, timeout=30).read()


def wait_for(happened, what, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if happened():
                return
        time.sleep(0.05)
    raise AssertionError(f"after {seconds} s: {what()}")


class Service(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.charges += 1
        body = b"charge %d" % self.server.charges
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
        cls.root.chmod(0o755)  # The units' users see it as "/".
        bare.make(cls.root)
        run("mount", "--bind", "/proc", str(cls.root / "proc"))  # The store asks there who else has its file open.
        cls.addClassCleanup(run, "umount", str(cls.root / "proc"))

    def inside(self, *command, **more):
        return run("chroot", self.root, *command, env=bare.ENVIRONMENT, **more)

    def install(self, name):
        shutil.copy(DEBS[name], self.root / "tmp")
        return self.inside("apt-get", "install", "-y", "-q", "--no-install-recommends", f"/tmp/{DEBS[name].name}")

    def serve(self):
        service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
        service.charges = 0
        threading.Thread(target=service.serve_forever, daemon=True).start()
        self.addCleanup(service.server_close)
        self.addCleanup(service.shutdown)
        return service

    def test_1_the_program(self):
        self.install("once")
        record = ["once", "run", "--store", "sqlite:/var/lib/once.db", "--key", "order-17", "--"]
        first = self.inside(*record, "sh", "-c", "date +%N; echo ran >> /tmp/ran")
        self.assertEqual(self.inside(*record, "sh", "-c", "date +%N; echo ran >> /tmp/ran"), first)
        self.assertEqual((self.root / "tmp/ran").read_text(), "ran\n")

    def test_2_it_is_replaced_while_a_proxy_uses_its_store(self):
        service = self.serve()
        port = free_port()

        def start():
            proxy = subprocess.Popen(["chroot", str(self.root), "/usr/bin/once", "proxy", "--listen", f"127.0.0.1:{port}",
                                      "--upstream", f"http://127.0.0.1:{service.server_port}", "--no-principal",
                                      "--store", "sqlite:/var/lib/proxy.db"], stderr=subprocess.DEVNULL)
            self.addCleanup(lambda: (proxy.kill(), proxy.wait()))
            wait_for(lambda: proxy.poll() is not None or socket.create_connection(("127.0.0.1", port)).close() is None,
                     lambda: "the proxy does not listen")
            self.assertIsNone(proxy.poll())
            return proxy

        proxy = start()
        first = post(port, "a")
        self.inside("dpkg", "-i", f"/tmp/{DEBS['once'].name}")
        self.assertEqual(post(port, "a"), first)  # The old program goes on …
        second = post(port, "b")
        proxy.send_signal(signal.SIGTERM)
        self.assertEqual(proxy.wait(60), 0)
        start()
        self.assertEqual([post(port, "a"), post(port, "b")], [first, second])  # … and the new one has its records.
        self.assertEqual(service.charges, 2)

    def test_3_the_units_work_shut_in_as_they_are(self):
        """Debian's systemd is started in the bare Debian, with the network of this machine, so that the proxy's service and
        the queue are here."""
        self.inside("apt-get", "install", "-y", "-q", "--no-install-recommends", "systemd-sysv")
        service, port, admin = self.serve(), free_port(), free_port()
        example = (self.root / "usr/share/doc/once/examples/proxy.toml").read_text()
        for setting, value in {"listen": f"127.0.0.1:{port}", "upstream": f"http://127.0.0.1:{service.server_port}",
                               "admin": str(admin)}.items():
            example, changed = re.subn(f'^{setting} = .*$', f'{setting} = "{value}"', example, flags=re.M)
            self.assertEqual(changed, 1, setting)
        settings = self.root / "etc/once"
        (settings / "sqs").mkdir(parents=True)
        # As docs/install.md passes a file that only root may read.
        tokens = settings / "admin-tokens"
        tokens.touch(0o600)
        tokens.write_text(f"alice operator {hashlib.sha256(b'a-secret-of-alice').hexdigest()}\n")
        example = 'admin-token-file = "/run/credentials/once-proxy.service/admin-tokens"\n' + example
        more = self.root / "etc/systemd/system/once-proxy.service.d/secrets.conf"
        more.parent.mkdir()
        more.write_text("[Service]\nLoadCredential=admin-tokens:/etc/once/admin-tokens\n")
        (settings / "proxy.toml").write_text(example)

        with emulator.running() as endpoint:
            aws = {name: value for name, value in emulator.environment(endpoint).items() if name.startswith("AWS_")}

            def sqs(operation, **body):
                request = urllib.request.Request(endpoint, json.dumps(body).encode(), {
                    "Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{operation}",
                    "Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/eu-central-1/sqs/aws4_request, Signature=0"})
                return json.loads(urllib.request.urlopen(request, timeout=30).read() or b"{}")

            queue = sqs("CreateQueue", QueueName="orders")["QueueUrl"]
            orders = [json.dumps({"order": number}) for number in (1, 2, 1)]  # One twice, as a sender that retries makes it.
            for order in orders:
                sqs("SendMessage", QueueUrl=queue, MessageBody=order)
            (settings / "sqs/orders.env").write_text("".join(f"{name}={value}\n" for name, value in aws.items()) + (
                f"ONCE_QUEUE={queue}\nONCE_OPTIONS=--key-from payload\nONCE_COMMAND=/usr/local/bin/work --really\n"))
            command = self.root / "usr/local/bin/work"
            command.write_text('#!/bin/sh\n{ cat; echo " $1"; } >> /var/lib/once-sqs/effects\n')
            command.chmod(0o755)
            self.inside("systemctl", "enable", "once-proxy", "once-sqs@orders")
            machine = subprocess.Popen(["systemd-nspawn", "-q", "--register=no", "--keep-unit", "-D", str(self.root), "--boot"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            logs = self.root / "var/log"

            def journal(unit):
                return run("journalctl", "--no-pager", "-D", str(logs / "journal"), "-u", unit, "-u", "init.scope", "-n", "40")

            try:
                wait_for(lambda: post(port, "a") == b"charge 1", lambda: "no proxy:\n" + journal("once-proxy"))
                self.assertEqual([post(port, "a"), post(port, "b")], [b"charge 1", b"charge 2"])
                self.assertEqual(service.charges, 2)
                # A request is in the log when it has been answered, which may be a moment later.
                access = logs / "once/access.log"
                wait_for(lambda: access.read_text().count("\n") >= 3, lambda: f"not in the log: {access.read_text()}")
                self.assertEqual(access.read_text().count("\n"), 3)
                metrics = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=30).read().decode()
                self.assertRegex(metrics, r"(?m)^process_start_time_seconds [1-9]")
                asked = urllib.request.Request(f"http://127.0.0.1:{admin}/v1/overview", headers={"Authorization": "Bearer a-secret-of-alice"})
                self.assertTrue(json.load(urllib.request.urlopen(asked, timeout=30))["stores"][0]["answers"])
                effects = self.root / "var/lib/once-sqs/effects"
                worked_on = [f"{order} --really" for order in orders[:2]]
                wait_for(lambda: sorted(effects.read_text().splitlines()) == worked_on,
                         lambda: "not worked on:\n" + journal("once-sqs@orders"))
            finally:
                machine.send_signal(signal.SIGRTMIN + 4)  # systemd.exec: power off.
                try:
                    machine.wait(60)
                except subprocess.TimeoutExpired:
                    machine.kill()
                    raise

    def test_4_the_library(self):
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

    def test_5_removed_it_leaves_the_records(self):
        files = [self.root / name.lstrip("/") for name in self.inside("dpkg", "-L", "once", "libonce-dev").split("\n") if name]
        files = [file for file in files if file.is_file()]
        self.assertGreater(len(files), 100)
        self.inside("apt-get", "purge", "-y", "-q", "once", "libonce-dev")
        self.assertEqual([file for file in files if file.exists()], [])
        self.assertTrue((self.root / "var/lib/once.db").exists())


if __name__ == "__main__":
    program = unittest.main(argv=[sys.argv[0]], exit=False, verbosity=2)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun or bool(program.result.skipped))
