"""s3_real_test.py PROGRAM: the program with its large results in an S3 that is not ours (moto, started for this)."""
import json
import pathlib
import re
import sys
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "apps"), str(HERE.parent / "real_servers")]
import emulator  # noqa: E402
import harness  # noqa: E402

ENDPOINT = None


def s3(method, target, body=None):
    """The emulator wants to see a signature, and checks none."""
    request = urllib.request.Request(ENDPOINT + target, data=body, method=method)
    request.add_header("Content-Type", "application/octet-stream")
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, "
                       "SignedHeaders=host, Signature=0")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


class S3(harness.Case):
    buckets = 0

    def setUp(self):
        super().setUp()
        S3.buckets += 1
        self.bucket = f"once-results-{S3.buckets}"
        s3("PUT", f"/{self.bucket}")
        self.env = emulator.environment(ENDPOINT, self.env)
        self.env["ONCE_STORE"] = f"{self.store}?offload=s3://{self.bucket}/large"
        self.command = ["run", "--key", "a", "--output-limit", "1KiB", "--", "sh", "-c", "echo x >>ran; head -c 300000 big"]
        self.path("big").write_bytes(bytes((i * i * 31 + i // 7) % 251 for i in range(300000)))

    def objects(self):
        listing = s3("GET", f"/{self.bucket}?list-type=2").decode()
        return re.findall(r"<Key>([^<]*)</Key>", listing)

    def test_results_are_kept_replayed_and_swept(self):
        big = self.path("big").read_bytes()
        self.expect(self.once(*self.command), 0, big)
        self.expect(self.once(*self.command), 0, big)
        self.assertEqual(self.runs(), 1)
        (name,) = self.objects()
        self.assertRegex(name, r"^large/_a-[0-9a-f]{32}$")
        shown = self.show("a")["result"]
        self.assertEqual((shown["placement"], shown["location"]), ("offloaded", f"s3://{self.bucket}/{name}"))
        self.assertEqual(len(s3("GET", f"/{self.bucket}/{name}")), shown["size"])
        self.expect(self.once("extend", "--key", "a", "--by", "1h", "--reason", "test"), 0)
        self.expect(self.once("resolve", "--key", "a", "--as", "released", "--force", "--reason", "test"), 0)
        self.assertEqual(self.objects(), [], "who takes a result away removes its object")

    def test_dynamodb_and_s3_by_one_url(self):
        table = f"dynamodb://claims-{S3.buckets}"
        self.expect(self.once("table", "create", "--store", table), 0)
        self.env["ONCE_STORE"] = f"{table}?offload=s3://{self.bucket}/large"
        big = self.path("big").read_bytes() * 3  # Too much for an item, even compressed.
        self.path("big").write_bytes(bytes(b ^ (i * 40503 >> 7 & 255) for i, b in enumerate(big)))
        command = ["run", "--key", "a", "--", "sh", "-c", "echo x >>ran; cat big"]
        self.expect(self.once(*command), 0, self.path("big").read_bytes())
        self.expect(self.once(*command), 0, self.path("big").read_bytes())
        self.assertEqual((self.runs(), len(self.objects())), (1, 1))
        text = ["run", "--key", "b", "--", "seq", "1", "60000"]  # Fits when it is compressed.
        first = self.expect(self.once(*text), 0)
        self.expect(self.once(*text), 0, first.stdout)
        self.assertEqual(self.show("b")["result"]["placement"], "compressed")
        self.assertEqual(len(self.objects()), 1)

    def test_missing_and_altered_objects_are_clear(self):
        self.expect(self.once(*self.command), 0)
        (name,) = self.objects()
        s3("PUT", f"/{self.bucket}/{name}", b"something else")
        self.expect(self.once(*self.command), 244, b"", b"not the one that was kept")
        s3("DELETE", f"/{self.bucket}/{name}")
        done = self.expect(self.once(*self.command), 244, b"", b"is missing: was it removed, or did a lifecycle rule")
        self.assertIn(name.encode(), done.stderr)
        self.assertEqual(self.runs(), 1)

    def test_a_bucket_that_is_not_there(self):
        self.env["ONCE_STORE"] = f"{self.store}?offload=s3://no-such-bucket/large"
        self.expect(self.once(*self.command), 0)
        self.expect(self.once(*self.command), 246)
        self.assertEqual(self.show("a")["result"]["placement"], "dropped")
        self.expect(self.once("doctor", "--probe"), 1, None)
        self.assertIn(b"there is no bucket no-such-bucket", self.once("doctor", "--probe").stdout)

    def test_the_doctor_tries_it(self):
        self.expect(self.once("run", "--key", "b", "--", "true"), 0)
        findings = json.loads(self.once("doctor", "--probe", "--json").stdout)
        self.assertIn("a small result was written, read and removed", json.dumps(findings))
        self.assertEqual(self.objects(), [])

    def test_the_option_names_another_place_than_the_url(self):
        other = ["--offload", f"s3://{self.bucket}/elsewhere?endpoint={ENDPOINT}&region=us-west-2&path_style=1"]
        self.expect(self.once("run", *other, *self.command[1:]), 0)
        self.assertRegex(self.objects()[0], "^elsewhere/_a-")
        self.expect(self.once(*self.command), 64, b"", b"open the offload that holds it")


if __name__ == "__main__":
    with emulator.running() as ENDPOINT:
        harness.main()
