"""What `make lambda` makes: the zips, and the function in a root that has nothing but it and what Lambda's has, which is
name servers and Amazon Linux's certificates. It finds DynamoDB by its name, over TLS.

Usage: static_test.py ONCE_PROGRAM FAKE_DYNAMODB. Builds the preset lambda.
"""
import json
import os
import pathlib
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/real_servers"), str(ROOT / "tests/apps")]
import emulator  # noqa: E402
import namespaces  # noqa: E402

EXAMPLES = ("payment", "order_batch", "event_consumer")
ENTER = """#!{python}
import os
os.chroot("{root}")
os.chdir("/")
os.execv("/bootstrap", ["/bootstrap"])
"""


def make(example, *options):
    return subprocess.run([ROOT / "tools/lambda", example, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False)


class NameServer:
    """Tells everybody that every name is 127.0.0.1, and remembers who was asked for."""

    def __init__(self):
        self.asked = set()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 53))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            query, peer = self.socket.recvfrom(2048)
            if not query:
                return
            end = query.index(b"\0", 12) + 5
            labels, at = [], 12
            while query[at]:
                labels.append(query[at + 1 : at + 1 + query[at]].decode())
                at += 1 + query[at]
            self.asked.add(".".join(labels))
            is_a = struct.unpack("!H", query[end - 4 : end - 2])[0] == 1
            answer = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton("127.0.0.1") if is_a else b""
            self.socket.sendto(query[:2] + struct.pack("!HHHHH", 0x8180, 1, int(is_a), 0, 0) + query[12:end] + answer, peer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.sendto(b"", self.socket.getsockname())
        self.thread.join()
        self.socket.close()


class Zips(unittest.TestCase):
    def test_each_is_small_static_and_always_the_same(self):
        for example in EXAMPLES:
            with self.subTest(example=example):
                done = make(example)
                self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
                file = ROOT / f"build/lambda/{example}.zip"
                self.assertIn(f"build/lambda/{example}.zip: {file.stat().st_size / 1e6:.2f} MB", done.stdout)
                self.assertLess(file.stat().st_size, 3_000_000)
                before = file.read_bytes()
                self.assertEqual(make(example).returncode, 0)
                self.assertEqual(file.read_bytes(), before)
                with zipfile.ZipFile(file) as archive:
                    (entry,) = archive.infolist()
                    self.assertEqual(entry.filename, "bootstrap")
                    self.assertEqual(stat.filemode(entry.external_attr >> 16), "-rwxr-xr-x")
                    program = ROOT / f"build/lambda/examples/lambda/{example}/bootstrap"
                    self.assertEqual(archive.read(entry), program.read_bytes())
                headers = subprocess.run(["readelf", "--program-headers", "--wide", program], stdout=subprocess.PIPE,
                                         text=True, check=True).stdout
                self.assertNotIn("INTERP", headers)

    def test_an_example_that_is_none_is_refused(self):
        done = make("papyrus")
        self.assertNotEqual(done.returncode, 0)
        for example in EXAMPLES:
            self.assertIn(example, done.stderr)


class InAnEmptyRoot(unittest.TestCase):
    def setUp(self):
        done = make("payment")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="once-root-"))
        self.addCleanup(shutil.rmtree, self.root)
        shutil.copy(ROOT / "build/lambda/examples/lambda/payment/bootstrap", self.root)
        etc = self.root / "etc"
        etc.joinpath("pki/tls/certs").mkdir(parents=True)
        etc.joinpath("ssl").mkdir()
        etc.joinpath("ssl/certs").symlink_to("../pki/tls/certs")  # As Amazon Linux 2023 has it.
        self.bundle = etc / "pki/tls/certs/ca-bundle.crt"
        etc.joinpath("resolv.conf").write_text("nameserver 127.0.0.1\noptions ndots:0\n")
        # What this names is to be loaded from a C library that is not there; the function must not try.
        etc.joinpath("nsswitch.conf").write_text("hosts: nonsense [!UNAVAIL=return] resolve [!UNAVAIL=return] files\n")
        self.enter = self.root.with_suffix(".enter")
        self.enter.write_text(ENTER.format(python=sys.executable, root=self.root))
        self.enter.chmod(0o755)
        self.addCleanup(self.enter.unlink)

    def invoke(self, environment, repeat):
        event = ROOT / "examples/lambda/payment/event.json"
        done = subprocess.run([PROGRAM, "lambda", "invoke", "--json", "--repeat", str(repeat), self.enter, event],
                              env=environment | {"ONCE_STORE": "dynamodb://orders"}, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def test_it_finds_dynamodb_by_name_and_trusts_its_certificate(self):
        fake = subprocess.Popen([FAKE, "--tls", "--until-eof", "--table", "orders"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        try:
            port = fake.stdout.readline().strip().rpartition(":")[2]
            authority = pathlib.Path(fake.stdout.readline().strip()).read_text()
            environment = emulator.environment(f"https://localhost:{port}", {"PATH": os.environ["PATH"]})
            with NameServer() as names:
                ((outcome,), said) = self.invoke(environment, 1)
                self.assertEqual(outcome["response"]["statusCode"], 503, said)  # It trusts nobody yet.

                self.bundle.write_text("# Amazon Linux has text between them.\n\n" + authority)
                outcomes, said = self.invoke(environment, 3)
                self.assertEqual([one["response"]["statusCode"] for one in outcomes], [201] * 3, said)
                self.assertEqual(said.count("charged order-17"), 1, said)
                self.assertEqual(names.asked, {"localhost"})
        finally:
            fake.communicate("")


if __name__ == "__main__":
    namespaces.enter("net", "ip link set lo up", "a network of its own")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    PROGRAM, FAKE = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    result = unittest.main(exit=False).result
    sys.exit(not result.wasSuccessful() or bool(result.skipped) or result.testsRun == 0)
