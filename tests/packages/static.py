"""static.py PROGRAM [EMULATOR]: the static program with a real PostgreSQL, in a folder that it takes for its root. There is
nothing else in it: no library, no user, no shell. Names are looked up by DNS and in /etc/hosts, the connection has TLS
and a password. Needs root. EMULATOR runs a program for another machine, and must be static too."""
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "apps"), str(TESTS / "real_servers")]

import namespaces  # noqa: E402
import postgresql  # noqa: E402
from bare import run  # noqa: E402

PROGRAM, *EMULATOR = [pathlib.Path(argument).resolve() for argument in sys.argv[1:]]
USER = 54321  # Of no /etc/passwd.


class Names:
    """A name server that knows one name, and says of each other one that there is none (RFC 1035)."""

    def __init__(self, name):
        self.asked, self._name = [], b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            request, client = self._socket.recvfrom(512)
            end = request.index(b"\0", 12) + 1
            question, kind = request[12:end], struct.unpack("!H", request[end:end + 2])[0]
            self.asked.append(question)
            known, address = question.lower() == self._name, b""
            if known and kind == 1:  # A; there is no AAAA.
                address = struct.pack("!HHHIH4s", 0xC00C, 1, 1, 0, 4, socket.inet_aton("127.0.0.1"))
            header = request[:2] + struct.pack("!HHHHH", 0x8580 if known else 0x8583, 1, bool(address), 0, 0)
            self._socket.sendto(header + request[12:end + 4] + address, client)


class Static(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="once-static-")
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        cls.root.chmod(0o755)
        for part in ("etc", "proc", "tmp"):
            (cls.root / part).mkdir()
        (cls.root / "tmp").chmod(0o777)
        shutil.copy(PROGRAM, cls.root / "once")
        if EMULATOR:
            shutil.copy(EMULATOR[0], cls.root / "emulator")
        # As on a machine whose users and hosts are elsewhere: the libraries for these words are not there.
        (cls.root / "etc/nsswitch.conf").write_text("passwd: sss systemd\nhosts: mymachines resolve sss dns\n")
        (cls.root / "etc/resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:5\n")
        (cls.root / "etc/hosts").write_text("127.0.0.1 hosts.once.test other.once.test\n")
        cls.names = Names("dns.once.test")
        cls.server = cls.enterClassContext(postgresql.running())
        cls.certify()
        cls.server.psql("CREATE ROLE pay LOGIN PASSWORD 'secret'; CREATE DATABASE pay OWNER pay")

    @classmethod
    def certify(cls):
        """A certificate for two of the names, by an authority of its own. The role comes in by TLS and a password only."""
        at = cls.server.folder
        for name in ("ca", "other-ca"):
            run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", f"/CN={name}", "-keyout", at / f"{name}.key", "-out", at / f"{name}.pem")
            shutil.copy(at / f"{name}.pem", cls.root / "etc")
        run("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=database",
            "-keyout", at / "server.key", "-out", at / "server.csr")
        (at / "names").write_text("subjectAltName = DNS:dns.once.test, DNS:hosts.once.test\n")
        run("openssl", "x509", "-req", "-days", "2", "-in", at / "server.csr", "-CA", at / "ca.pem", "-CAkey", at / "ca.key",
            "-CAcreateserial", "-extfile", at / "names", "-out", at / "server.pem")
        hba = at / "pg_hba.conf"
        hba.write_text("hostssl pay pay 127.0.0.1/32 scram-sha-256\nhost all pay 127.0.0.1/32 reject\n" + hba.read_text())
        cls.server.configure(ssl="on", ssl_cert_file="server.pem", ssl_key_file="server.key")
        postgresql.give_away(at)
        cls.server.restart()

    def store(self, host="dns.once.test", ca="ca", more="", user="pay@"):
        return (f"postgresql://{user}{host}:{self.server.port}/pay?sslmode=verify-full&sslrootcert=/etc/{ca}.pem"
                f"&channel_binding=require&allow_unsafe=1{more}")

    def once(self, *arguments, store=None):
        command = ["/emulator", "/once"] if EMULATOR else ["/once"]
        done = subprocess.run(
            [shutil.which("chroot"), f"--userspec={USER}:{USER}", self.root, *command, *arguments], check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=120,
            env={"ONCE_STORE": store or self.store(), "PGPASSWORD": "secret", "TMPDIR": "/tmp"})
        return done.returncode, done.stdout, done.stderr

    def refused(self, **store):
        code, _, problem = self.once("table", "check", store=self.store(**store))
        self.assertNotEqual(code, 0)
        return problem

    def test_1_it_is_one_file(self):
        headers = run("readelf", "--program-headers", "--dynamic", "--wide", PROGRAM)
        self.assertNotRegex(headers, "INTERP|NEEDED")

    def test_2_it_runs_and_replays_by_names(self):
        self.assertEqual(self.once("table", "create")[0], 0)
        replays = ["run", "--key", "a", "--", *(["/emulator"] if EMULATOR else []), "/once", "--version"]
        first = self.once(*replays)
        self.assertRegex(first[1], r"^once [0-9.]+\n$", first)
        self.assertEqual(self.once(*replays)[:2], (0, first[1]))
        self.assertIn(b"\3dns\4once\4test\0", self.names.asked)
        # The record that was written is found under the name in /etc/hosts.
        self.assertEqual(self.once(*replays, store=self.store("hosts.once.test"))[:2], (0, first[1]))
        code, shown, problem = self.once("show", "--key", "a", "--json", store=self.store("hosts.once.test"))
        self.assertEqual(code, 0, problem)
        self.assertRegex(shown, r'"attempt": ?1\b')
        self.assertEqual(self.server.psql("SELECT count(*) FROM once.records", "pay"), "1")

    def test_3_another_server_is_refused(self):
        self.assertIn('does not match host name "other.once.test"', self.refused(host="other.once.test"))
        self.assertIn("certificate verify failed", self.refused(ca="other-ca"))
        self.assertRegex(self.refused(host="none.once.test"), "none.once.test.*(resolved|translate host name)")

    def test_4_what_it_lacks_is_reported(self):
        self.assertIn("GSSAPI support is not compiled in", self.refused(more="&gssencmode=require"))
        self.assertRegex(self.refused(user=""), f"user ID {USER}")  # The URL names no user, and nobody has this number.


if __name__ == "__main__":
    namespaces.enter("net", "ip link set lo up", "a network of its own")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    program = unittest.main(argv=[sys.argv[0]], exit=False, verbosity=2)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun or bool(program.result.skipped))
