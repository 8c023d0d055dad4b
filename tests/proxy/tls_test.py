"""once proxy with TLS on both sides, as its flags say."""
import os
import pathlib
import signal
import ssl
import subprocess

from service import ProxyCase, harness


class Tls(ProxyCase):
    def make_certificate(self, name, days=2):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.pem"), "-days", str(days),
                        "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                       check=True, stderr=subprocess.DEVNULL, timeout=60)
        return self.path(f"{name}.pem"), self.path(f"{name}.key")

    def make_client(self, authority, name):
        """A certificate for /CN=name, signed by what make_certificate() made: curl's flags that show it."""
        request, key, signed = (self.path(f"{authority}-{name}.{end}") for end in ("csr", "key", "pem"))
        for command in (["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
                         "-subj", f"/CN={name}", "-out", request],
                        ["x509", "-req", "-in", request, "-CA", self.path(f"{authority}.pem"),
                         "-CAkey", self.path(f"{authority}.key"), "-CAcreateserial", "-days", "2", "-out", signed]):
            subprocess.run(["openssl", *command], check=True, stderr=subprocess.DEVNULL, timeout=60)
        return "--cert", signed, "--key", key

    def curl(self, port, certificate, *arguments):
        return subprocess.run(["curl", "-sS", "--max-time", "60", "--cacert", certificate, *arguments, "-d", "cents=500",
                               "-H", "Idempotency-Key: k", f"https://localhost:{port}/charges"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=90)

    def test_tls_from_the_client_to_the_service(self):
        inner, inner_key = self.make_certificate("inner")
        outer, outer_key = self.make_certificate("outer")
        _, inner_port = self.start_proxy("--access-log", "none", "--store", "memory:", "--unshared-store",
                                         "--tls-cert", inner, "--tls-key", inner_key)
        arguments = ["--listen", "127.0.0.1:0", "--upstream", f"https://localhost:{inner_port}/", "--store", "memory:", "--unshared-store",
                     "--no-principal", "--tls-cert", outer, "--tls-key", outer_key]
        process = self.start("proxy", *arguments, "--log", "none", "--access-log", self.path("log"), "--upstream-ca", inner)
        port = int(process.stderr.readline().decode().split("port ")[1].split(",")[0])
        for _ in range(2):
            done = self.curl(port, outer)
            self.assertEqual(done.stdout, b"charge 1\n", done.stderr)
        self.assertEqual(self.curl(port, inner).returncode, 60)  # curl does not believe it.
        # Without --upstream-ca the system does not believe the inner one, and says so.
        process = self.start("proxy", *arguments, "--log", "none", "--access-log", "none")
        port = int(process.stderr.readline().decode().split("port ")[1].split(",")[0])
        self.assertIn(b"upstream-unreachable", self.curl(port, outer).stdout)
        self.assertIn(b"name its authority's file in --upstream-ca", process.stderr.readline())

    def test_operators_speak_tls_and_sighup_takes_up_what_is_new(self):
        certificate, key = self.make_certificate("operators")
        self.path("token").write_text("0123456789abcdef0123456789abcdef\n")
        self.path("token").chmod(0o600)
        process = self.start("proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--store", "memory:", "--unshared-store",
                             "--no-principal", "--access-log", "none", "--admin", "0.0.0.0:0", "--admin-token-file", self.path("token"),
                             "--admin-tls-cert", certificate, "--admin-tls-key", key, "--log", "none", "--watch-interval", "off")
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
        self.assertEqual(process.stderr.readline(),
                         b"once: reloaded, with 0 routes; changed: certificates (admin-tls-cert, admin-tls-key)\n")
        self.assertEqual(ask("/healthz").stdout, b"alive\n")

    def test_a_key_may_come_through_a_pipe(self):
        """It can be read once: by nobody but the server."""
        certificate, key = self.make_certificate("piped")
        reader, writer = os.pipe()
        os.write(writer, pathlib.Path(key).read_bytes())
        os.close(writer)
        _, port = self.start_proxy("--access-log", "none", "--tls-cert", certificate, "--tls-key", f"/dev/fd/{reader}",
                                   pass_fds=[reader])
        os.close(reader)
        self.assertEqual(self.curl(port, certificate).stdout, b"charge 1\n")

    def test_files_that_change_are_read_again_without_a_signal(self):
        """A secret that is mounted in Kubernetes: its files are links into a folder, and a link to that folder changes."""
        def write(version, token):
            folder = self.path(f"..{version}")
            folder.mkdir()
            certificate, key = self.make_certificate("localhost", int(version))
            for name, source in (("tls.crt", certificate), ("tls.key", key)):
                (folder / name).write_bytes(pathlib.Path(source).read_bytes())
            (folder / "token").write_text(token + "\n")
            (folder / "token").chmod(0o600)
            self.path("..next").symlink_to(folder.name)
            self.path("..next").rename(self.path("..data"))
            return folder / "tls.crt"

        def ask(path, certificate, token):
            return subprocess.run(["curl", "-sS", "--max-time", "60", "--cacert", certificate, "-H",
                                   f"Authorization: Bearer {token}", f"https://localhost:{port}{path}"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=90)

        def expiry(certificate, token):
            return ask("/metrics", certificate, token).stdout.decode().split(
                'once_proxy_certificate_expiry_timestamp_seconds{certificate="admin-tls-cert"} ')[1].split("\n")[0]

        def end_of(certificate):
            shown = subprocess.run(["openssl", "x509", "-in", certificate, "-noout", "-enddate"], stdout=subprocess.PIPE,
                                   check=True, timeout=60).stdout.decode()
            return str(ssl.cert_time_to_seconds(shown.removeprefix("notAfter=").strip()))

        tokens = "0123456789abcdef", "fedcba9876543210"
        first = write("1", tokens[0])
        for name in ("tls.crt", "tls.key", "token"):
            self.path(name).symlink_to(f"..data/{name}")
        process, _ = self.start_proxy(
            "--store", "memory:", "--unshared-store", "--access-log", "none", "--admin", "localhost:0", "--admin-token-file",
            self.path("token"), "--admin-tls-cert", self.path("tls.crt"), "--admin-tls-key", self.path("tls.key"),
            "--watch-interval", "1s")
        port = int(process.stderr.readline().decode().removeprefix("once: operators on port "))
        self.assertEqual(expiry(first, tokens[0]), end_of(first))
        self.assertIn(b'"records":', ask("/v1/records", first, tokens[0]).stdout)
        second = write("2", tokens[1])
        self.assertEqual(process.stderr.readline(),
                         b"once: files read again, with 0 routes; changed: certificates (admin-tls-cert, admin-tls-key), "
                         b"tokens (admin-token-file)\n")
        self.assertIn(b'"records":', ask("/v1/records", second, tokens[1]).stdout)
        self.assertIn(b"unauthorized", ask("/v1/records", second, tokens[0]).stdout)
        self.assertEqual(expiry(second, tokens[1]), end_of(second))
        # What cannot be used is refused once, and the next contents are looked at again.
        self.path("..2/tls.key").write_bytes(self.path("..1/tls.key").read_bytes())
        self.assertIn(b"not reloaded, the old rules stay in force: the key in ", process.stderr.readline())
        self.assertIn(b'"records":', ask("/v1/records", second, tokens[1]).stdout)
        self.path("..2/tls.crt").write_bytes(self.path("..1/tls.crt").read_bytes())
        self.assertEqual(process.stderr.readline(), b"once: files read again, with 0 routes; changed: certificates "
                                                    b"(admin-tls-cert, admin-tls-key)\n")
        self.assertIn(b'"records":', ask("/v1/records", first, tokens[1]).stdout)
        page = ask("/metrics", first, tokens[1]).stdout.decode()
        self.assertIn('once_proxy_reloads_total{result="done"} 2\n', page)
        self.assertIn('once_proxy_reloads_total{result="failed"} 1\n', page)

    def test_clients_are_who_their_certificates_say(self):
        server, key = self.make_certificate("server")
        self.make_certificate("clients")
        alice, bob = (self.make_client("clients", name) for name in ("alice", "bob"))
        self.make_certificate("others")
        mallory = self.make_client("others", "alice")
        process, port = self.start_alone(
            "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{self.service.port}", "--store", "memory:", "--unshared-store",
            "--access-log", "none", "--tls-cert", server, "--tls-key", key, "--client-ca", self.path("clients.pem"),
            "--principal-certificate")
        for client, charge in ((alice, b"charge 1\n"), (bob, b"charge 2\n"), (alice, b"charge 1\n")):
            done = self.curl(port, server, *client)
            self.assertEqual(done.stdout, charge, done.stderr)
        self.assertIn(b"certificate required", self.curl(port, server).stderr)
        self.assertEqual(process.stderr.readline(),
                         b"once: no TLS with 127.0.0.1: the client showed no certificate, but must (client-ca) "
                         b"(peer did not return a certificate)\n")
        self.assertIn(b"unknown ca", self.curl(port, server, *mallory).stderr)
        self.path("clients.pem").write_bytes(self.path("others.pem").read_bytes())
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.stderr.readline(), b"once: reloaded, with 0 routes; changed: certificates (client-ca)\n")
        self.assertIn(b"unknown ca", self.curl(port, server, *alice).stderr)
        self.assertEqual(self.curl(port, server, *mallory).stdout, b"charge 1\n")  # Whoever signs says who it is.

    def test_a_reload_that_changes_who_clients_are_is_told(self):
        server, key = self.make_certificate("server")

        def write(*lines):
            self.path("proxy.toml").write_text("\n".join(
                ['listen = "127.0.0.1:0"', f'upstream = "http://127.0.0.1:{self.service.port}"', 'store = "memory:"', 'unshared-store = true',
                 'access-log = "none"', f'tls-cert = "{server}"', f'tls-key = "{key}"', *lines]))

        def reload(*lines):
            write(*lines)
            process.send_signal(signal.SIGHUP)
            return process.stderr.readline().decode()

        write('principal-header = "X-Api-Key"')
        process, _ = self.start_alone("--config", "proxy.toml")
        asking = f'client-ca = "{server}"'
        certificate = "principal-certificate = true"
        self.assertIn("name the authorities that sign them (client-ca)", reload(certificate))
        self.assertEqual(process.stderr.readline(), b"once: not reloaded: the settings are wrong. The old ones stay in force.\n")
        self.assertEqual(reload(asking, certificate),
                         "once: keys would change, paths without a route: who a client is was header x-api-key, and "
                         "would be the client certificate's subject\n")
        word = process.stderr.readline().decode().split('accept-key-change = ')[1].split('"')[1]
        # No client is asked for a certificate before a restart.
        self.assertIn("keys change, ", reload(asking, certificate, f'accept-key-change = "{word}"'))
        process.stderr.readline()
        self.assertIn(b"not reloaded, the old rules stay in force: principal-certificate needs client certificates",
                      process.stderr.readline())

    def test_wrong_files_are_said_at_the_start(self):
        certificate, key = self.make_certificate("own")
        common = ["proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--store", "memory:", "--unshared-store",
                  "--no-principal"]
        for arguments, text in [(["--tls-cert", certificate], b"go together"),
                                (["--tls-cert", certificate, "--tls-key", certificate], b"the key cannot be read from"),
                                (["--tls-cert", key, "--tls-key", key], b"the certificate cannot be read from")]:
            done = self.once(*common, *arguments)
            self.assertEqual(done.returncode, 64, done.stderr)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    harness.main()
