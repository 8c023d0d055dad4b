"""Certificates for tests, made by openssl."""
import subprocess

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
HERE = "DNS:localhost,IP:127.0.0.1,IP:::1"


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)


class Authority:
    """One whose certificate is in `file`. Its name is in its certificate's subject."""

    def __init__(self, folder, name="authority"):
        self.folder, self.file, self.key = folder, folder / f"{name}.pem", folder / f"{name}.key"
        openssl("req", "-x509", *KEY, "-keyout", self.key, "-out", self.file, "-days", "2", "-subj", f"/CN={name}")

    def sign(self, name, subject="/CN=server", sans=HERE, days=2):
        """The files of a certificate and of its key. One of -1 days has expired, and without `sans` it has no other name."""
        file, key, request, extensions = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
        openssl("req", "-new", *KEY, "-keyout", key, "-out", request, "-subj", subject)
        extensions.write_text(f"subjectAltName={sans}\n" if sans else "basicConstraints=CA:FALSE\n")
        openssl("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.key, "-CAcreateserial", "-days", str(days),
                "-extfile", extensions, "-out", file)
        return file, key
