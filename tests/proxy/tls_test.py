"""once proxy with TLS on both sides, as its flags say."""
import signal
import subprocess

from service import ProxyCase, harness


class Tls(ProxyCase):
    def make_certificate(self, name):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.pem"), "-days", "2",
                        "-subj", "/CN=test", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                       check=True, stderr=subprocess.DEVNULL, timeout=60)
        return self.path(f"{name}.pem"), self.path(f"{name}.key")

    def curl(self, port, certificate):
        return subprocess.run(["curl", "-sS", "--max-time", "60", "--cacert", certificate, "-d", "cents=500",
                               "-H", "Idempotency-Key: k", f"https://localhost:{port}/charges"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=90)

    def test_tls_from_the_client_to_the_service(self):
        inner, inner_key = self.make_certificate("inner")
        outer, outer_key = self.make_certificate("outer")
        _, inner_port = self.start_proxy("--access-log", "none", "--store", "memory:",
                                         "--tls-cert", inner, "--tls-key", inner_key)
        arguments = ["--listen", "127.0.0.1:0", "--upstream", f"https://localhost:{inner_port}/", "--store", "memory:",
                     "--no-principal", "--tls-cert", outer, "--tls-key", outer_key]
        process = self.start("proxy", *arguments, "--access-log", self.path("log"), "--upstream-ca", inner)
        port = int(process.stderr.readline().decode().split("port ")[1].split(",")[0])
        for _ in range(2):
            done = self.curl(port, outer)
            self.assertEqual(done.stdout, b"charge 1\n", done.stderr)
        self.assertEqual(self.curl(port, inner).returncode, 60)  # curl does not believe it.
        # Without --upstream-ca the system does not believe the inner one, and says so.
        process = self.start("proxy", *arguments, "--access-log", "none")
        port = int(process.stderr.readline().decode().split("port ")[1].split(",")[0])
        self.assertIn(b"upstream-unreachable", self.curl(port, outer).stdout)
        self.assertIn(b"name its authority's file in --upstream-ca", process.stderr.readline())

    def test_operators_speak_tls_and_sighup_takes_up_what_is_new(self):
        certificate, key = self.make_certificate("operators")
        self.path("token").write_text("0123456789abcdef0123456789abcdef\n")
        self.path("token").chmod(0o600)
        process = self.start("proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--store", "memory:",
                             "--no-principal", "--access-log", "none", "--admin", "0.0.0.0:0", "--admin-token-file", self.path("token"),
                             "--admin-tls-cert", certificate, "--admin-tls-key", key)
        process.stderr.readline()
        port = int(process.stderr.readline().decode().removeprefix("once: operators on port "))

        def ask(path, *arguments):
            return subprocess.run(["curl", "-sS", "--max-time", "60", "--cacert", certificate, *arguments,
                                   f"https://localhost:{port}{path}"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=90)
        token = ["-H", f"Authorization: Bearer {self.path('token').read_text().strip()}"]
        self.assertEqual(ask("/healthz").stdout, b"alive\n")
        self.assertIn(b"unauthorized", ask("/v1/records").stdout)
        self.assertIn(b'"records":', ask("/v1/records", *token).stdout)
        self.make_certificate("operators")  # The same files.
        self.assertEqual(ask("/healthz").returncode, 60)
        self.assertIn(b"no TLS with 127.0.0.1 on the operators' port: the client does not accept the certificate",
                      process.stderr.readline())
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.stderr.readline(), b"once: reloaded, with 0 routes\n")
        self.assertEqual(ask("/healthz").stdout, b"alive\n")

    def test_wrong_files_are_said_at_the_start(self):
        certificate, key = self.make_certificate("own")
        common = ["proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--store", "memory:",
                  "--no-principal"]
        for arguments, text in [(["--tls-cert", certificate], b"go together"),
                                (["--tls-cert", certificate, "--tls-key", certificate], b"the key cannot be read from"),
                                (["--tls-cert", key, "--tls-key", key], b"the certificate cannot be read from")]:
            done = self.once(*common, *arguments)
            self.assertEqual(done.returncode, 64, done.stderr)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    harness.main()
