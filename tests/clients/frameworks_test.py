"""frameworks_test.py ONCE: the Python package in FastAPI, Starlette, Flask, Django, Celery and pytest, as PyPI has them."""
import json
import os
import pathlib
import subprocess
import sys
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = subprocess.run([ROOT / "tools/python-tools", "clients"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
if sys.executable != PYTHON:
    os.execv(PYTHON, [PYTHON, *sys.argv])
sys.path[:0] = [str(ROOT / "clients/python/src"), str(ROOT / "tests/apps")]

import django  # noqa: E402
import fastapi  # noqa: E402
import flask  # noqa: E402
import pydantic  # noqa: E402
import starlette.applications  # noqa: E402
import starlette.responses  # noqa: E402
import starlette.routing  # noqa: E402
from celery import Celery  # noqa: E402
from celery.contrib.testing.worker import start_worker  # noqa: E402
from django.conf import settings  # noqa: E402
from django.http import HttpResponse, QueryDict, StreamingHttpResponse  # noqa: E402
from django.test import Client as DjangoClient  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.urls import path as django_path  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402

import harness  # noqa: E402
from cutting_proxy import CuttingProxy  # noqa: E402
from once_idempotency import Once, _keys, asgi  # noqa: E402
from once_idempotency import flask as once_flask  # noqa: E402
from once_idempotency.celery import once_task  # noqa: E402

charged = []  # What the handlers did, in each test.


class ServeCase(harness.Case):
    def setUp(self):
        super().setUp()
        self.server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertIn(b"listening", self.server.stderr.readline())
        self.proxy = CuttingProxy(self.path("p"), self.path("s"))
        self.addCleanup(self.proxy.close)
        self.once_client = Once(server=f"unix:{self.proxy.path}", timeout=harness.DEADLINE_S)
        self.addCleanup(self.once_client.close)
        charged.clear()

    def check(self, post):
        """`post(path, key, body, client)` returns (status, headers, body); the handlers are those of each framework below."""
        problem = "application/problem+json"
        first = post("/charges", "order-17", {"cents": 500}, "alice")
        self.assertEqual((first[0], json.loads(first[2]), first[1].get("Location")), (201, {"charge": 1}, "/charges/1"))
        again = post("/charges", "order-17", {"cents": 5e2}, "alice")  # JSON by its meaning.
        self.assertEqual((again[0], again[2], again[1]["Location"], again[1]["Idempotent-Replayed"]), (201, first[2], "/charges/1", "true"))
        quoted = post("/charges", '"order-17"', {"cents": 500}, "alice")
        self.assertEqual((quoted[0], quoted[2]), (201, first[2]))
        self.assertEqual(charged, [500])
        for got, status, word in [(post("/charges", "order-17", {"cents": 900}, "alice"), 422, "key-reused"),
                                  (post("/charges", None, {"cents": 900}, "alice"), 400, "key-missing"),
                                  (post("/charges", "undefined", {"cents": 900}, "alice"), 400, "key-invalid"),
                                  (post("/charges", "a, b", {"cents": 900}, "alice"), 400, "keys-differ"),
                                  (post("/charges", "order-18", {"cents": 900}, None), 400, "principal-missing"),
                                  (post("/charges", "order-18", {"cents": 900}, "eyJhbGciOiJ9.eyJzdWIiOiJ9.sig"), 400, "principal-unstable"),
                                  (post("/charges", "order-18", {"note": "x" * 1_100_000}, "alice"), 413, "body-too-large")]:
            self.assertEqual((got[0], got[1]["Content-Type"], json.loads(got[2])["type"]), (status, problem, f"urn:once:problem:{word}"))
        self.assertEqual(charged, [500])
        other = post("/charges", "order-17", {"cents": 500}, "bob")  # A key belongs to its client.
        self.assertEqual(json.loads(other[2]), {"charge": 2})
        # A refusal did nothing: the retry runs. A bad gateway may have acted: an operator decides.
        for _ in range(2):
            self.assertEqual(post("/busy", "order-20", {}, "alice")[0], 429)
        self.assertEqual(post("/ambiguous", "order-21", {}, "alice")[0], 502)
        got = post("/ambiguous", "order-21", {}, "alice")
        self.assertEqual((got[0], json.loads(got[2])["type"]), (409, "urn:once:problem:outcome-unknown"))
        self.assertEqual(charged, [500, 500, "busy", "busy", "ambiguous"])
        # A failing handler: 500. Either that is its answer, or what it did is not known: it is not run again.
        self.assertEqual(post("/raises", "order-22", {}, "alice")[0], 500)
        self.assertIn(post("/raises", "order-22", {}, "alice")[0], (500, 409))
        # An answer that is too large goes to the first client only, and is not made again.
        large = post("/large", "order-23", {}, "alice")
        self.assertEqual((large[0], len(large[2])), (200, 1_100_000))
        gone = post("/large", "order-23", {}, "alice")
        self.assertEqual((gone[0], json.loads(gone[2])["type"]), (410, "urn:once:problem:answer-not-kept"))
        self.assertEqual(charged[5:], ["raises", "large"])
        self.check_running(post)
        self.proxy.refuses = "complete"
        lost = post("/charges", "order-31", {"cents": 7}, "alice")
        self.assertEqual((lost[0], json.loads(lost[2])["type"]), (503, "urn:once:problem:not-recorded"))
        self.assertIn("was carried out", json.loads(lost[2])["detail"])
        self.server.kill()
        self.server.wait()
        self.once_client._timeout_s = 0.1
        down = post("/charges", "order-24", {"cents": 1}, "alice")
        self.assertEqual((down[0], json.loads(down[2])["type"]), (503, "urn:once:problem:store-unavailable"))
        self.assertEqual(charged[7:], ["slow", 7])

    def check_running(self, post):
        """A retry while the first request runs is a conflict."""
        entered.clear()
        leave.clear()
        got = []
        first = threading.Thread(target=lambda: got.append(post("/slow", "order-30", {}, "alice")))
        first.start()
        self.assertTrue(entered.wait(harness.DEADLINE_S))
        conflict = post("/slow", "order-30", {}, "alice")
        leave.set()
        first.join()
        self.assertEqual((conflict[0], json.loads(conflict[2])["type"]), (409, "urn:once:problem:in-progress"))
        self.assertGreaterEqual(int(conflict[1]["Retry-After"]), 1)
        self.assertEqual(got[0][0], 200)


entered, leave = threading.Event(), threading.Event()


def charge(cents):
    charged.append(cents)
    return {"charge": len(charged)}


def slow():
    charged.append("slow")
    entered.set()
    leave.wait(harness.DEADLINE_S)
    return "done"


def act(what):
    """What the other handlers do: status and body."""
    charged.append(what)
    if what == "raises":
        raise LookupError("a bug")
    return {"busy": (429, b"later"), "ambiguous": (502, b"?"), "large": (200, b"x" * 1_100_000)}[what]


def request_headers(key, client):
    return {name: value for name, value in (("Idempotency-Key", key), ("X-Api-Key", client)) if value is not None}


class Asgi(ServeCase):
    def post_by(self, app):
        app.add_middleware(asgi.OnceMiddleware, once=self.once_client, principal="X-Api-Key", service="shop")
        client = TestClient(app, raise_server_exceptions=False)

        def post(path, key, body, who):
            got = client.post(path, json=body, headers=request_headers(key, who))
            return got.status_code, got.headers, got.content

        return post

    def test_fastapi(self):
        app = fastapi.FastAPI()

        @app.post("/charges", status_code=201)
        async def charges(order: dict, response: fastapi.Response):
            made = charge(order["cents"])
            response.headers["Location"] = f"/charges/{made['charge']}"
            return made

        @app.post("/slow")
        def slowly():
            return slow()

        @app.post("/{what}")
        async def others(what: str):
            status, body = act(what)
            return fastapi.Response(body, status)

        self.check(self.post_by(app))

    def test_starlette(self):
        async def charges(request):
            made = charge((await request.json())["cents"])
            return starlette.responses.JSONResponse(made, 201, {"Location": f"/charges/{made['charge']}"})

        def slowly(request):
            return starlette.responses.PlainTextResponse(slow())

        async def others(request):
            status, body = act(request.path_params["what"])

            async def parts():
                for at in range(0, len(body), 65536):
                    yield body[at:at + 65536]

            return starlette.responses.StreamingResponse(parts(), status)

        route = starlette.routing.Route
        self.check(self.post_by(starlette.applications.Starlette(routes=[
            route("/charges", charges, methods=["POST"]), route("/slow", slowly, methods=["POST"]), route("/{what}", others, methods=["POST"])])))


class Flask(ServeCase):
    def test_flask(self):
        app = flask.Flask("shop")

        @app.post("/charges")
        def charges():
            made = charge(flask.request.get_json()["cents"])
            return made, 201, {"Location": f"/charges/{made['charge']}"}

        @app.post("/slow")
        def slowly():
            return slow()

        @app.post("/<what>")
        def others(what):
            status, body = act(what)
            return body, status

        once_flask.init_app(app, self.once_client, principal=lambda request: request.headers.get("X-Api-Key"))

        def post(path, key, body, who):
            got = app.test_client().post(path, json=body, headers=request_headers(key, who))
            return got.status_code, got.headers, got.data

        self.check(post)


class Pydantic(unittest.TestCase):
    def test_models_that_its_json_makes_equal_are_not_compared(self):
        class Card(pydantic.BaseModel, extra="allow"):
            number: object
            hint: pydantic.SecretStr = pydantic.Field(pydantic.SecretStr("x"), exclude=True)
            site: pydantic.HttpUrl = pydantic.HttpUrl("http://shop/")

        self.assertNotEqual(_keys.compared(Card(number=1)), _keys.compared(Card(number=2)))
        for hidden in (pydantic.SecretStr("1"), [{"a": pydantic.SecretBytes(b"1")}], float("nan"), Card(number=float("inf")), pydantic.SecretStr):
            for model in (Card(number=hidden), [Card(number=1, more=hidden)]):
                with self.assertRaises((TypeError, ValueError), msg=repr(model)):
                    _keys.compared(model)


class Forms(unittest.TestCase):
    def test_all_values_of_a_name_are_compared(self):
        for form in (QueryDict, lambda text: flask.Request({"QUERY_STRING": text}).args):
            compared = [_keys.compared(form(text)) for text in ("a=1&a=2&a=3", "a=1&a=4&a=3", "a=1&a=2&a=3")]
            self.assertEqual((compared[0] != compared[1], compared[0]), (True, compared[2]))


def django_charges(request):
    made = charge(json.loads(request.body)["cents"])
    return HttpResponse(json.dumps(made), status=201, content_type="application/json", headers={"Location": f"/charges/{made['charge']}"})


def django_others(request, what):
    if what == "slow":
        return HttpResponse(slow())
    status, body = act(what)
    return StreamingHttpResponse((body[at:at + 65536] for at in range(0, len(body), 65536)), status=status)


urlpatterns = [django_path("charges", django_charges), django_path("<what>", django_others)]
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x", MIDDLEWARE=["once_idempotency.django.OnceMiddleware"],
                   DATA_UPLOAD_MAX_MEMORY_SIZE=2**22)
django.setup()


class Django(ServeCase):
    def test_django(self):
        def post(path, key, body, who):
            client = DjangoClient(raise_request_exception=False, headers=request_headers(key, who))
            client.handler = handler
            got = client.post(path, json.dumps(body), content_type="application/json")
            return got.status_code, got.headers, b"".join(got.streaming_content) if got.streaming else got.content

        with override_settings(ONCE={"server": f"unix:{self.proxy.path}", "timeout": 1, "principal": lambda request: request.headers.get("X-Api-Key")}):
            handler = DjangoClient(raise_request_exception=False).handler
            self.check(post)


class Tasks(ServeCase):
    def test_celery(self):
        app = Celery("shop", broker="memory://", backend="cache+memory://")
        app.conf.update(task_always_eager=False, worker_hijack_root_logger=False)
        ran = []
        started, gate = threading.Event(), threading.Event()

        @once_task(app, self.once_client, key="{order_id}", scope="charge", task={"name": "charge"})
        def charge_task(order_id, cents):
            ran.append(order_id)
            started.set()
            gate.wait(harness.DEADLINE_S)
            return {"receipt": f"r-{order_id}"}

        @once_task(app, self.once_client, key="{order_id}", scope="fails", task={"name": "fails"}, on_error="fail")
        def failing_task(order_id):
            ran.append(f"failing {order_id}")
            raise ValueError("declined")

        self.assertTrue(charge_task.acks_late)
        with self.assertRaises(ValueError):
            once_task(app, self.once_client, key="x", task={"acks_late": False})
        with start_worker(app, pool="threads", concurrency=3, perform_ping_check=False, loglevel="ERROR"):
            deliveries = [charge_task.delay(17, 500)]
            self.assertTrue(started.wait(harness.DEADLINE_S))
            deliveries += [charge_task.delay(17, 500), charge_task.delay(17, cents=500)]  # They meet the running one.
            harness.wait_until(lambda: deliveries[1].state == "RETRY", "a delivery waits for the running one")
            gate.set()
            self.assertEqual([got.get(timeout=harness.DEADLINE_S) for got in deliveries], [{"receipt": "r-17"}] * 3)
            for name in ("ValueError", "StoredFailure"):
                with self.assertRaises(Exception) as caught:
                    failing_task.delay(1).get(timeout=harness.DEADLINE_S)
                self.assertEqual(type(caught.exception).__name__, name)
        self.assertEqual(ran, [17, "failing 1"])


class Pytest(harness.Case):
    def test_fixtures(self):
        self.path("test_shop.py").write_text("""
import pytest
from once_idempotency import KeyReused, idempotent

charges = []

@idempotent(key="{order_id}", scope="shop")
def charge(order_id, cents):
    charges.append(order_id)
    return len(charges)

@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_an_empty_store(once_server, turn):
    assert [charge(17, 500), charge(17, 500)] == [turn, turn]
    with pytest.raises(KeyReused):
        charge(17, 900)

def test_a_client(once):
    with once.claim("report", "a") as claim:
        claim.complete(1)
""")
        env = {**self.env, "PYTHONPATH": str(ROOT / "clients/python/src"), "ONCE_PROGRAM": harness.PROGRAM}
        done = subprocess.run([PYTHON, "-m", "pytest", "-q", "-p", "once_idempotency.pytest_plugin", "-p", "no:cacheprovider"], cwd=self.dir,
                              env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("3 passed", done.stdout)


if __name__ == "__main__":
    harness.main()
