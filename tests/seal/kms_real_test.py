"""kms_real_test.py PROGRAM: seal keys that a KMS encrypted, one that is not ours (moto, started for this)."""
import json
import pathlib
import sys
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "apps"), str(HERE.parent / "real_servers")]
import emulator  # noqa: E402
import harness  # noqa: E402

ENDPOINT = None


def kms(operation, **body):
    """The emulator wants to see a signature, and checks none."""
    request = urllib.request.Request(ENDPOINT + "/", data=json.dumps(body).encode())
    request.add_header("Content-Type", "application/x-amz-json-1.1")
    request.add_header("X-Amz-Target", f"TrentService.{operation}")
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=x/20260101/eu-central-1/kms/aws4_request, "
                       "SignedHeaders=host, Signature=0")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class Kms(harness.Case):
    def setUp(self):
        super().setUp()
        self.env = emulator.environment(ENDPOINT, self.env)
        self.arn = kms("CreateKey")["KeyMetadata"]["Arn"]
        self.keys = self.path("seal.keys")
        self.sealed = f"{self.store}?seal={self.keys}"

    def run_a(self, store, key="a"):
        return self.once("run", "--store", store, "--key", key, "--", "sh", "-c", "echo x >>ran; echo SECRET")

    def test_a_key_of_kms_seals_and_opens(self):
        done = self.expect(self.once("seal-key", "new", "--id", "2026-11", "--kms", self.arn, self.keys), 0)
        self.assertIn(b"2026-11", done.stdout)
        line = self.keys.read_text()
        self.assertRegex(line, rf"^2026-11 kms:[A-Za-z0-9+/=]+ {self.arn}\n$")
        self.assertEqual(self.keys.stat().st_mode & 0o777, 0o600)
        self.expect(self.run_a(self.sealed), 0, b"SECRET\n")
        self.expect(self.run_a(self.sealed), 0, b"SECRET\n")
        self.assertEqual(self.runs(), 1)
        for file in self.dir.glob("once.db*"):
            self.assertNotIn(b"SECRET", file.read_bytes())
        self.expect(self.run_a(self.store), 64, b"", b"is sealed with the key '2026-11'")
        # A second key, and the file from a command.
        self.expect(self.once("seal-key", "new", "--id", "2026-12", "--kms", self.arn, self.keys), 0)
        self.assertEqual(len(self.keys.read_text().splitlines()), 2)
        self.expect(self.run_a(f"{self.store}?seal_command=cat%20{self.keys}"), 0, b"SECRET\n")
        self.assertEqual(self.runs(), 1)

    def test_a_moved_key_does_not_open(self):
        self.expect(self.once("seal-key", "new", "--id", "one", "--kms", self.arn, self.keys), 0)
        line = self.keys.read_text()
        self.keys.write_text(line.replace("one ", "two "))
        self.expect(self.run_a(self.sealed), 244, b"", b"InvalidCiphertextException")
        other = kms("CreateKey")["KeyMetadata"]["Arn"]
        self.keys.write_text(line.replace(self.arn, other))
        done = self.run_a(self.sealed)
        self.assertIn(done.returncode, (64, 244), done.stderr)
        self.assertIn(b"KMS Decrypt", done.stderr)
        self.keys.write_text(line.replace(self.arn, self.arn[:-4] + "0000"))
        self.expect(self.run_a(self.sealed), 64, b"", b"NotFoundException")
        self.assertEqual(self.runs(), 0)
        self.assertFalse(self.path("once.db").exists(), "nothing was opened in the clear")
        self.keys.write_text(line)
        self.env["AWS_ENDPOINT_URL_KMS"] = "http://127.0.0.1:9"
        self.expect(self.run_a(self.sealed), 243, b"", b"KMS Decrypt")
        self.assertEqual(self.runs(), 0)

    def test_a_new_key_of_a_missing_kms_key(self):
        done = self.once("seal-key", "new", "--kms", "alias/nowhere", self.keys)
        self.expect(done, 64, b"", b"KMS GenerateDataKeyWithoutPlaintext: NotFoundException")
        self.assertFalse(self.keys.exists())


if __name__ == "__main__":
    with emulator.running() as ENDPOINT:
        harness.main()
