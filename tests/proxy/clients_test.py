"""once proxy with clients as people have them: curl, Node.js's fetch, Stripe's client for Node.js, wrk.

    clients_test.py PROGRAM
"""
import json
import os
import pathlib
import socket
import subprocess
import urllib.parse

from service import ProxyCase, Service, harness, wait_until

CLIENTS = pathlib.Path(__file__).resolve().parent / "clients"
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"


def output_of(*command):
    done = subprocess.run([os.fspath(word) for word in command], stdout=subprocess.PIPE, check=True, timeout=120)
    return done.stdout.decode()


NODE_MODULES = output_of(TOOLS / "node-tools").strip() + "/node_modules"


def node(script, *arguments):
    return json.loads(output_of(f"{NODE_MODULES}/.bin/node", CLIENTS / script, *arguments))


class Slow(Service):
    """Whoever asks for "slow" is answered when the proxy has told another client that this is under way."""

    log = None

    def answer(self, key, body):
        status, charged = super().answer(key, body)
        if "slow" in f"{key}{body}":
            wait_until(lambda: '"outcome":"conflict"' in self.log.read_text(), "somebody else has asked")
        return status, charged


class Stripe(Slow):
    """What Stripe's client needs of Stripe."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def answer(self, key, body):
        what = urllib.parse.parse_qs(body)["description"][0]
        self.calls.append(what)
        if what == "busy" and self.calls.count(what) < 3:
            return 503, b'{"error":{"type":"api_error","message":"busy"}}'
        if what == "declined":
            return 402, b'{"error":{"type":"card_error","message":"declined"}}'
        status, charged = super().answer(key, body)
        if what == "lost":
            return None, b""
        return status, json.dumps({"object": "charge", "id": f"ch_{charged.split()[1].decode()}"}).encode()


class Clients(ProxyCase):
    def behind(self, service, *arguments):
        self.service = self.serve(service)
        service.log = self.path("access.log")
        self.proxy(*arguments)
        return f"http://127.0.0.1:{self.port}/charges"

    def outcomes(self):
        return [json.loads(line)["outcome"] for line in self.path("access.log").read_text().splitlines()]

    def check_one_effect_a_key(self):
        effects = dict(self.service.effects)  # What is under way adds to them.
        self.assertEqual({key: count for key, count in effects.items() if count != 1}, {})

    def test_curl_retries_by_itself(self):
        taken = socket.socket()  # A port of our own, on which nobody listens yet.
        self.addCleanup(taken.close)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        self.service.port = taken.getsockname()[1]
        self.proxy()
        url = f"http://127.0.0.1:{self.port}/charges"
        late = subprocess.Popen(
            ["curl", "-fsS", "--retry", "30", "--retry-max-time", "60", "-H", "Idempotency-Key: order-17", "-d",
             "cents=500", url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # Its first request was answered with 503 and Retry-After. Then the service comes up.
        wait_until(lambda: self.path("access.log").read_text(), "it was refused")
        self.service = self.serve(Service(port=self.service.port))
        self.assertEqual(late.communicate(timeout=90)[0], b"charge 1\n")
        # Forty at once.
        same = [word for _ in range(40) for word in (url, "-o", os.devnull)]
        codes = output_of("curl", "--no-progress-meter", "--parallel", "--parallel-max", "40", "-w", "%{http_code}\n",
                          "-d", "cents=500", "-H", "Idempotency-Key: order-18", *same).split()
        self.assertLessEqual(set(codes), {"201", "409"})
        self.assertEqual(self.service.ledger, ["cents=500"] * 2)
        self.check_one_effect_a_key()

    def test_fetch(self):
        url = self.behind(Slow(), "--wait", "30s")
        seen = node("fetch.mjs", url)
        once = {"status": 201, "replayed": None}
        again = {"status": 201, "replayed": "true"}
        self.assertEqual(seen["first"], once | {"body": "charge 1\n"})
        self.assertEqual(seen["again"], again | {"body": "charge 1\n"})
        self.assertEqual(sorted(answer["replayed"] or "" for answer in seen["together"]), ["", *["true"] * 19])
        self.assertEqual({answer["body"] for answer in seen["together"]}, {"charge 2\n"})
        self.assertEqual(seen["chunked"], once | {"body": "charge 3\n"})
        self.assertEqual(seen["repeated"], again | {"body": "charge 3\n"})
        self.assertEqual(seen["reused"], 422)
        self.check_one_effect_a_key()

    def test_fetch_that_is_given_up(self):
        seen = node("fetch_aborted.mjs", self.behind(Slow()))
        self.assertEqual((seen["left"], seen["replayed"], seen["body"]), ("AbortError", "true", "charge 1\n"))
        self.assertGreaterEqual(seen["conflicts"], 1)
        self.check_one_effect_a_key()

    def test_stripe(self):
        self.behind(Stripe(), "--fate", "503=release")  # Its 503 means that nothing was done.
        seen = node("stripe.mjs", str(self.port), NODE_MODULES)
        # With the key that it makes for itself, and with one of the program's.
        self.assertEqual(seen["plain"], {"id": "ch_1", "status": 201})
        self.assertEqual(seen["first"], {"id": "ch_2", "status": 201})
        self.assertEqual(seen["again"], seen["first"])
        # It tries again after its own timeout, 409 and 503, and never learns of it.
        self.assertEqual(seen["impatient"], {"id": "ch_3", "status": 201})
        self.assertEqual(seen["busy"], {"id": "ch_4", "status": 201})
        self.assertEqual(self.service.calls.count("busy"), 3)
        # Errors of the service are errors, also replayed.
        self.assertEqual(seen["declined"], {"error": "StripeCardError", "status": 402})
        self.assertEqual(seen["declined_again"], seen["declined"])
        self.assertEqual(self.service.calls.count("declined"), 1)
        # And so are ours, by their member `error`.
        self.assertEqual(seen["lost"], {"error": "StripeAPIError", "code": "outcome-unknown", "status": 409})
        self.assertEqual(seen["reused"], {"error": "StripeAPIError", "code": "key-reused", "status": 422})
        self.assertEqual(self.service.calls.count("lost"), 1)
        self.assertIn("conflict", self.outcomes())
        self.check_one_effect_a_key()

    def test_wrk(self):
        for kind in ("none", "unique", "repeated"):
            with self.subTest(kind=kind):
                url = self.behind(Service(), "--optional-key", "--wait", "30s", "--store",
                                  f"sqlite:{self.path(kind)}")
                effects = self.service.effects
                answers = 0

                def load():  # A slow machine may need more than one of it until keys are repeated.
                    nonlocal answers
                    said = output_of("wrk", "-t2", "-c32", "-d1s", "-s", CLIENTS / "wrk.lua", url, "--", "cents=500", kind,
                                     f"k-{answers}-" if kind == "unique" else "k-", "100")
                    seen = json.loads(said.splitlines()[-1])
                    self.assertEqual(seen["wrong"], 0)
                    answers += seen["answers"]
                    return answers > (len(effects) if kind == "repeated" else 0)

                wait_until(load, f"answers, with keys that are {kind}")
                if kind == "none":
                    self.assertGreaterEqual(effects[None], answers)
                    continue
                # What was under way when wrk left has an effect as well, and no key has two.
                self.check_one_effect_a_key()
                if kind == "unique":
                    self.assertGreaterEqual(len(effects), answers)
                else:
                    self.assertLessEqual(len(effects), 100)


if __name__ == "__main__":
    harness.main()
