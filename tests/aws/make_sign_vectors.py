"""Writes data/sign_botocore.json: requests as botocore signs them, for sign_test.cpp.

    $(tools/python-tools) tests/aws/make_sign_vectors.py

The same seed writes the same file; the signatures are those of whatever botocore tests/requirements.txt brings.
"""
import base64
import datetime
import json
import pathlib
import random
import urllib.parse

import botocore
import botocore.auth
import botocore.awsrequest
import botocore.credentials

COUNT = 300
rng = random.Random(20260101)

# Letters that encodings get wrong, and those they should leave alone.
ALPHABET = list("abzAZ059-._~") + list(" !\"#$%&'()*+,/:;<=>?@[\\]^`{|}\t\n\r") + list("äß€中🙂\u0301\x7f\x00")


def text(most, alphabet=ALPHABET):
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(0, most)))


def encoded(raw):
    return urllib.parse.quote(raw, safe="-._~")


def path(service):
    if rng.random() < 0.3:
        return "/"
    segments = [rng.choice([".", "..", "", "a"]) if rng.random() < 0.3 else encoded(text(8)) for _ in range(rng.randint(1, 5))]
    return "/" + "/".join(segments)


def query():
    if rng.random() < 0.4:
        return ""
    names = ["a", "a-b", "A", "list-type", "prefix", "ä", "x y", "a/b"]
    pairs = []
    for _ in range(rng.randint(1, 6)):
        name = encoded(rng.choice(names) if rng.random() < 0.7 else text(5))
        pairs.append(name if rng.random() < 0.15 else name + "=" + encoded(text(6)))
    return "?" + "&".join(pairs)


def headers(service):
    out = []
    if service == "dynamodb":
        out.append(("X-Amz-Target", "DynamoDB_20120810." + rng.choice(["PutItem", "GetItem", "TransactWriteItems"])))
        out.append(("Content-Type", "application/x-amz-json-1.0"))
    elif service == "sts":
        out.append(("Content-Type", "application/x-www-form-urlencoded; charset=utf-8"))
    if rng.random() < 0.3:
        out.append(("User-Agent", "once/0.1"))
    for _ in range(rng.randint(0, 3)):
        name = rng.choice(["X-Amz-Meta-A", "x-amz-meta-b", "X-AMZ-META-A", "Cache-Control", "My-Header"])
        out.append((name, rng.choice(["", " ", "  "]) + text(8, list("ab,;=\"  \t")) + rng.choice(["x", "x ", "x\t"])))
    rng.shuffle(out)
    return out


class SignedPayload(botocore.auth.S3SigV4Auth):
    def _should_sha256_sign_payload(self, request):
        return True  # Over TLS as well, where botocore could do without.


def make():
    service = rng.choice(["dynamodb", "s3", "sts"])
    region = rng.choice(["us-east-1", "eu-central-1", "cn-north-1", "ap-southeast-2"])
    tls = rng.random() < 0.7
    host = rng.choice([f"{service}.{region}.amazonaws.com", "bucket.s3.amazonaws.com", "127.0.0.1", "[::1]", "localhost"])
    port = rng.choice([443 if tls else 80] * 3 + [8000, 80, 443])
    target = path(service) + query()
    body = text(40).encode() if rng.random() < 0.7 else rng.randbytes(rng.randint(0, 300))
    method = rng.choice(["POST"] * 3 + ["GET", "PUT", "DELETE", "HEAD"])
    plain = [chr(c) for c in range(0x21, 0x7F)]
    access = "TEST" + "".join(rng.choice("ABCDEFGH234567") for _ in range(16))
    secret = "".join(rng.choice(plain) for _ in range(rng.choice([40, 40, 40, 1, 70])))
    token = "".join(rng.choice(plain) for _ in range(rng.randint(1, 200))) if rng.random() < 0.5 else ""
    # Some of a day and credentials together, so that kept keys are used.
    if rng.random() < 0.5:
        access, secret = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    day = rng.choice([0, 59, 60, 365, 20_000, 11_016, 24_855, 30_000])
    seconds = day * 86_400 + rng.choice([0, 1, 86_399, rng.randrange(86_400)])
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)

    default = port == (443 if tls else 80)
    url = f"{'https' if tls else 'http'}://{host}{'' if default else f':{port}'}{target}"
    request = botocore.awsrequest.AWSRequest(method=method, url=url, data=body)
    sent = headers(service)
    for name, value in sent:
        request.headers.add_header(name, value)
    signer = (SignedPayload if service == "s3" else botocore.auth.SigV4Auth)(
        botocore.credentials.Credentials(access, secret, token or None), service, region
    )
    botocore.auth.get_current_datetime = lambda *_, **__: moment.replace(tzinfo=None)
    signer.add_auth(request)
    return {
        "service": service, "region": region, "method": method, "tls": tls, "host": host.strip("[]"), "port": port,
        "target": target, "headers": sent, "body": base64.b64encode(body).decode(),
        "access_key_id": access, "secret_access_key": secret, "session_token": token, "now_ms": seconds * 1000,
        "date": request.headers["X-Amz-Date"], "authorization": request.headers["Authorization"],
    }


lines = [json.dumps(make(), ensure_ascii=True, separators=(",", ":")) for _ in range(COUNT)]
out = pathlib.Path(__file__).parent / "data" / "sign_botocore.json"
out.write_text('{"botocore":"%s","requests":[\n%s\n]}\n' % (botocore.__version__, ",\n".join(lines)))
print(f"{out}: {COUNT} requests, botocore {botocore.__version__}")
