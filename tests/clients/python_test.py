"""python_test.py ONCE: the Python package: what its decorator takes as a key, blocks, claims, forks, and its types."""
import asyncio
import contextlib
import dataclasses
import datetime
import decimal
import enum
import errno
import functools
import gc
import importlib
import inspect
import io
import json
import logging
import multiprocessing
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import threading
import unittest.mock
import uuid
import warnings
import wsgiref.util

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clients/python"
sys.path[:0] = [str(PACKAGE / "src"), str(ROOT / "tests/apps")]

import harness  # noqa: E402
import once_idempotency as oi  # noqa: E402
import stranger  # noqa: E402
from certificates import Authority  # noqa: E402
from once_idempotency import _address, _aio, _blocking, _keys, _protocol, _wire, asgi, wsgi  # noqa: E402


class ServeCase(harness.Case):
    def setUp(self):
        super().setUp()
        self.serve()
        self.once_client = oi.Once(server=f"unix:{self.path('s')}", timeout=harness.DEADLINE_S)
        self.addCleanup(self.once_client.close)

    def serve(self):
        self.server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertIn(b"listening", self.server.stderr.readline())

    def counted(self, **options):
        """A function that counts its runs, in the scope `charge` of a client of its own."""
        ran = []
        client = oi.Once(server=f"unix:{self.path('s')}", timeout=harness.DEADLINE_S)
        self.addCleanup(client.close)

        @client.idempotent(scope="charge", **{"key": "{order_id}", "wait": 0, **options})
        def charge(order_id, cents=100):
            ran.append(order_id)
            return {"receipt": len(ran)}

        return charge, ran


class Decorator(ServeCase):
    def test_arguments_are_bound_with_their_defaults(self):
        charge, ran = self.counted()
        self.assertEqual(charge(17), {"receipt": 1})
        for same in (lambda: charge(17, 100), lambda: charge(order_id=17), lambda: charge(cents=100, order_id=17)):
            self.assertEqual(same(), {"receipt": 1})
        with self.assertRaises(oi.KeyReused):
            charge(17, 101)
        self.assertEqual(ran, [17])

    def test_payload_names_what_is_compared(self):
        charge, ran = self.counted(payload="order_id")
        self.assertEqual([charge(17, 100), charge(17, 101)], [{"receipt": 1}] * 2)
        nothing, _ = self.counted(payload=None, key=lambda order_id, cents: ("a", order_id))
        self.assertEqual(nothing(1, object()), {"receipt": 1})
        alias, _ = self.counted(data_keyword_argument="cents", key="x{order_id}")
        alias(1, 5)
        with self.assertRaises(oi.KeyReused):
            alias(1, 6)
        self.assertEqual(ran, [17])

    def test_a_missing_key_runs_nothing(self):
        charge, ran = self.counted()
        for missing in (None, "", "undefined", "NULL", str(uuid.UUID(int=0))):
            with self.assertRaises(oi.KeyMissing, msg=repr(missing)):
                charge(missing)
        for unusable in (object(), 1.5, True, b"x", [17]):
            with self.assertRaises(TypeError, msg=repr(unusable)):
                charge(unusable)
        member, _ = self.counted(key="{order_id.id}")
        with self.assertRaises(oi.KeyMissing):
            member(17)
        parts, _ = self.counted(key=lambda order_id, cents=0: (order_id, None))
        with self.assertRaises(oi.KeyMissing):
            parts(17)
        self.assertEqual(ran, [])

    def test_an_argument_that_cannot_be_compared_is_told(self):
        charge, ran = self.counted()
        with self.assertRaisesRegex(TypeError, "payload="):
            charge(17, object())
        for unlike in (float("nan"), "\ud800"):
            with self.assertRaisesRegex(ValueError, "payload="):
                charge(17, unlike)
        self.assertEqual(ran, [])

    def test_a_mistake_is_told_when_it_is_made(self):
        once = self.once_client

        def charge(order_id):
            return order_id

        for options, kind in [({}, TypeError), ({"key": ""}, ValueError), ({"key": "{order}"}, ValueError), ({"key": "{}"}, ValueError),
                              ({"key": 5}, TypeError), ({"key": "{order_id}", "payload": ["x"]}, ValueError),
                              ({"key": "{order_id}", "lease": "3 days"}, ValueError), ({"key": "{order_id}", "leese": 3}, TypeError),
                              ({"key": "{order_id}", "on_lapse": "holds"}, ValueError), ({"key": "{order_id}", "on_error": {ValueError: "keep"}}, ValueError),
                              ({"key": "{order_id}", "payload": ["order_id"], "data_keyword_argument": "order_id"}, ValueError)]:
            with self.subTest(options=options), self.assertRaises(kind):
                once.idempotent(scope="x", **options)(charge)
        with self.assertRaises(ValueError):  # A nested function has no name that stays the same.
            once.idempotent(key="{order_id}")(charge)

        def each():
            yield 1

        with self.assertRaises(TypeError):
            once.idempotent(key="x", scope="each")(each)
        with self.assertRaisesRegex(ValueError, "scope="):  # Two functions in one scope.
            once.idempotent(key="{order_id}", scope="one")(charge)
            once.idempotent(key="x", scope="one")(lambda: 1)
        with self.assertRaises(ValueError):
            oi.Once(store="sqlite:x", server="unix:x")
        for server in ("unix:", "http://example.com:1", "http://127.0.0.1", "ftp://127.0.0.1:1"):
            with self.subTest(server=server), self.assertRaises(ValueError):
                oi.Once(server=server, token_file="x")

    def test_functions_of_two_modules_share_no_scope(self):
        self.path("one.py").write_text("import sys\n@sys.clients_of_test[__name__].idempotent(key='{n}')\ndef charge(n): return __name__\n")
        self.path("two.py").write_text(self.path("one.py").read_text())
        sys.path.insert(0, str(self.dir))
        sys.clients_of_test = {name: oi.Once(server=f"unix:{self.path('s')}") for name in ("one", "two")}
        self.addCleanup(sys.path.remove, str(self.dir))
        self.addCleanup(delattr, sys, "clients_of_test")
        for client in sys.clients_of_test.values():
            self.addCleanup(client.close)
        one, two = importlib.import_module("one"), importlib.import_module("two")
        self.addCleanup(lambda: [sys.modules.pop(name) for name in ("one", "two")])
        self.assertEqual([one.charge(1), two.charge(1)], ["one", "two"])
        self.assertEqual(self.show("1", "--scope", "one.charge")["state"], "completed")
        self.assertEqual(importlib.reload(one).charge(1), "one")  # The same function again.

    def test_a_module_may_be_executed_again(self):
        """Reloaded after an edit, or imported again, as by a test. Its functions may hold what is new each time."""
        head = "import functools\nfrom clients_of_test import once\n\ndef wrapped(function):\n    return functools.wraps(function)(lambda n: function(n))\n\n"
        tail = ("@once.idempotent(key='{n}', payload='n')\n@wrapped\ndef charge(n, session=object()): return %d\n"
                "once.idempotent(key='a', scope='lambda')(lambda n: n)\nclass Bank(dict):\n    @once.idempotent(key='{n}')\n    def pay(self, n): return super().get(n)\n")
        self.path("clients_of_test.py").write_text(f"import once_idempotency as oi\nonce = oi.Once(server='unix:{self.path('s')}')\n")
        self.path("shop.py").write_text(head + tail % 1)
        self.path("use.py").write_text("import importlib, pathlib, sys\nimport shop\nassert shop.charge(1) == 1\npath = pathlib.Path('shop.py')\n"
                                       "path.write_text(path.read_text().replace('return 1', 'pass; return 25') + '# new')\nimportlib.reload(shop)\n"
                                       "assert shop.charge(2) == 25\ndel sys.modules['shop']\nimport shop\nassert shop.charge(1) == 1\n"
                                       "try: shop.once.idempotent(key='a', scope='shop.charge')(shop.Bank.pay)\nexcept ValueError as error: print(error)\n")
        env = {**self.env, "PYTHONPATH": f"{PACKAGE / 'src'}:{self.dir}", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "use.py"], cwd=self.dir, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout[:13]), (0, "two functions"), done.stdout)

    def test_a_script_needs_a_scope_unless_its_module_has_a_name(self):
        self.path("shop.py").write_text("import once_idempotency as oi\nonce = oi.Once(server='unix:s')\n@once.idempotent(key='{n}')\ndef charge(n): return n\n"
                                        "print(next(iter(once._scopes)))\n")
        env = {**self.env, "PYTHONPATH": f"{PACKAGE / 'src'}:{self.dir}"}
        for words, printed in [(["shop.py"], "give its operation a name"), (["-m", "shop"], "shop.charge"), (["-c", "import shop"], "shop.charge"),
                               (["-m", "cProfile", "shop.py"], "give its operation a name")]:
            done = subprocess.run([sys.executable, *words], cwd=self.dir, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertIn(printed, done.stdout)

    def test_two_closures_in_one_scope_are_refused(self):
        def charge_at(bank):
            def charge(n):
                return f"{bank} {n}"

            return charge

        class Bank:
            def charge(self, n):
                return n

        class Shop(Bank):
            def charge(self, n):
                return n

        def with_bank(bank):
            return functools.wraps(charge_at)(lambda n: charge_at(bank)(n))

        twice = [charge_at("a"), charge_at("a")]  # The same function, made twice.
        made = [{"bank": bank, "__spec__": object()} for bank in "ab"]
        for bank in made:
            exec("def charge(n): return bank", bank)
        for different in ([Bank.charge, Shop.charge], [with_bank("a"), with_bank("b")], [bank["charge"] for bank in made],
                          [charge_at("a"), functools.wraps(charge_at("a"))(lambda *n: n)],
                          list(map(charge_at, "ab")), [lambda n: n, lambda n: [n]], [Bank().charge, Bank().charge],
                          [lambda n, bank=bank: bank for bank in "ab"], [functools.partial(charge_at("a"), 1), functools.partial(charge_at("a"), 2)]):
            scope = str(uuid.uuid4())
            first, second = (self.once_client.idempotent(key="a", scope=scope) for _ in range(2))
            first(different[0])
            with self.assertRaisesRegex(ValueError, "scope="):
                second(different[1])
        for function in twice:
            self.once_client.idempotent(key="a", scope="twice")(function)
        for unnamed in (lambda n: n, charge_at("a"), functools.partial(charge_at("a"))):
            with self.assertRaisesRegex(ValueError, "scope="):
                self.once_client.idempotent(key="a")(unnamed)
        for unnamed in (lambda: self.once_client.idempotent(key="a", scope="")(len), lambda: self.once_client.call("", "a", len),
                        lambda: self.once_client.claim("", "a")):
            with self.assertRaises(ValueError):
                unnamed()

    def test_a_function_that_returns_a_coroutine_has_not_run(self):
        async def later():
            return 1

        function = self.once_client.idempotent(key="a", scope="lambda")(lambda: later())
        with self.assertRaisesRegex(TypeError, "async def"):
            function()
        self.expect(self.once("show", "--scope", "lambda", "--key", "a"), 239, stderr=b"no record")  # It was released.

    def test_a_method_leaves_self_out(self):
        outer = self

        class Shop:
            @outer.once_client.idempotent(key="{order_id}", scope="shop")
            def charge(self, order_id):
                return [order_id]

        self.assertEqual([Shop().charge(1), Shop().charge(1)], [[1], [1]])

    def test_the_fate_of_an_exception_is_by_its_type(self):
        ran = []

        @self.once_client.idempotent(key="{key}", scope="fates", on_error={LookupError: "fail", ArithmeticError: "hold"}, wait=0)
        def work(key, kind):
            ran.append(key)
            raise {"K": KeyError, "Z": ZeroDivisionError, "V": ValueError}[kind]("no")

        for kind, first, second in [("K", KeyError, oi.StoredFailure), ("Z", ZeroDivisionError, oi.OutcomeUnknown), ("V", ValueError, ValueError)]:
            with self.assertRaises(first):
                work(kind, kind)
            with self.assertRaises(second):
                work(kind, kind)
        self.assertEqual(ran, ["K", "Z", "V", "V"])
        self.assertIn("ZeroDivisionError: no", json.dumps(self.show("Z", "--scope", "fates")))  # The record has the text: see the README.

    def test_an_interrupt_lets_the_claim_lapse(self):
        @self.once_client.idempotent(key="a", scope="interrupt", wait=0)
        def work():
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            work()
        with self.assertRaises(oi.InProgress):
            work()

    def test_codecs_make_replays_equal(self):
        @dataclasses.dataclass
        class Receipt:
            id: str

        @self.once_client.idempotent(key="{n}", scope="codec", encode=dataclasses.asdict, decode=lambda value: Receipt(**value))
        def charge(n):
            return Receipt(f"r-{n}")

        self.assertEqual([charge(1), charge(1)], [Receipt("r-1")] * 2)

    def test_a_coroutine_keeps_its_kind(self):
        ran = []

        @self.once_client.idempotent(key="{n}", scope="coroutine")
        async def charge(n):
            ran.append(oi.current_async_claim().attempt)
            return n

        self.assertTrue(inspect.iscoroutinefunction(charge))

        async def all_of(*numbers):
            got = await asyncio.gather(*map(charge, numbers))
            await self.once_client.aclose()
            return got

        self.assertEqual(asyncio.run(all_of(1, 1, 2)), [1, 1, 2])
        self.assertEqual(asyncio.run(all_of(2)), [2])  # Another loop has connections of its own.
        self.assertEqual(ran, [1, 1])

    def test_a_claim_is_at_hand_in_the_function(self):
        @self.once_client.idempotent(key="{n}", scope="claim", derive=["bank"])
        def charge(n):
            claim = oi.current_claim()
            with self.assertRaises(oi.OnceError):
                claim.complete(1)
            claim.note("half done")
            return [claim.key, claim.attempt, len(claim.derived_keys["bank"]), claim.token > 0, claim.valid_for_s > 0, claim.step("one", lambda: 5)]

        self.assertEqual(charge(7), ["7", 1, 64, True, True, 5])
        with self.assertRaises(oi.OnceError):
            oi.current_claim()

    def test_protection_is_switched_off_only_by_its_word(self):
        charge, ran = self.counted()
        with set_variable("ONCE_DISABLED", "1"), self.assertLogs("once_idempotency", logging.WARNING):
            self.assertEqual([charge(1), charge(1)], [{"receipt": 1}, {"receipt": 2}])
        with set_variable("ONCE_DISABLED", "2"), self.assertRaises(ValueError):
            charge(1)
        self.assertEqual(ran, [1, 1])


class Blocks(ServeCase):
    def test_a_block_is_entered_once(self):
        for _ in range(2):
            try:
                with self.once_client.claim("report", datetime.date(2026, 11, 29)) as claim:
                    made = claim.step("pdf", lambda: "pages")
                    self.assertEqual(claim.complete({"made": made}), {"made": "pages"})
                    entered = True
            except oi.Replayed as replayed:
                self.assertEqual(replayed.result, {"made": "pages"})
                entered = False
        self.assertFalse(entered)

    def test_a_block_without_an_end_is_an_error(self):
        with self.assertRaisesRegex(oi.OnceError, "without complete"):
            with self.once_client.claim("report", "a"):
                pass
        with self.assertRaises(oi.InProgress):
            with self.once_client.claim("report", "a", wait=0):
                self.fail("its claim was released, though the block may have acted")

    def test_the_ends_of_a_block(self):
        with self.once_client.claim("report", "a") as claim:
            claim.release("not today")
        with self.once_client.claim("report", "a") as claim:
            claim.fail("no-data", "nothing to report")
        with self.assertRaises(oi.StoredFailure) as caught, self.once_client.claim("report", "a"):
            self.fail("it failed before")
        self.assertEqual((caught.exception.code, caught.exception.message), ("no-data", "nothing to report"))
        with self.once_client.claim("report", "b") as claim:
            claim.hold("who knows")
            with self.assertRaises(oi.OnceError):
                claim.complete(1)

    def test_a_block_of_coroutines(self):
        async def run():
            async with self.once_client.claim("report", "a") as claim:
                await claim.check()
                await claim.step("one", asyncio.sleep, 0, "slept")
                return await claim.complete("done")

        async def twice():
            self.assertEqual(await run(), "done")
            with self.assertRaises(oi.Replayed):
                await run()
            await self.once_client.aclose()

        asyncio.run(twice())

    def test_a_step_has_one_result(self):
        with self.once_client.claim("report", "a") as claim:
            with self.assertRaisesRegex(TypeError, "ran"):
                claim.step("bad", object)
            self.assertEqual([claim.step("n", lambda: 1), claim.step("n", lambda: 2)], [1, 1])
            claim.complete(None)


SHARED = []


def call_shared(order_id):
    """In a process of a pool, which can be sent the names of functions only."""
    return SHARED[-1](order_id)


class Forks(ServeCase):
    def test_a_child_that_returns_into_the_work_records_nothing(self):
        @self.once_client.idempotent(key="a", scope="fork", wait=0)
        def work():
            return os.fork()

        parent = os.getpid()
        try:
            child = work()
        except oi.ClaimLost:
            os._exit(0 if os.getpid() != parent else 1)
        if os.getpid() != parent:
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(work(), child)

    def test_workers_forked_while_a_connection_is_in_use(self):
        charge, _ = self.counted(wait=60)
        SHARED.append(charge)
        charge(0)
        context = multiprocessing.get_context("fork")
        with self.once_client.claim("open", "a") as claim:  # Its renewals have a thread, which children do not have.
            with context.Pool(4) as pool:
                got = pool.map(call_shared, [1, 2, 1, 2, 1, 2, 0, 0])
            claim.complete(None)
        self.assertEqual(got, [charge(n) for n in (1, 2, 1, 2, 1, 2, 0, 0)])


class Descriptors(ServeCase):
    def test_a_finish_waits_for_free_descriptors(self):
        """A process that has too many files open for a moment does not lose the result of its work."""
        refused, real = [], socket.socket

        def exhausted(*arguments):
            if len(refused) < 3:
                refused.append(arguments)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real(*arguments)

        @self.once_client.idempotent(key="a", scope="descriptors")
        def work():
            self.once_client.close()
            patch.start()
            return 1

        patch = unittest.mock.patch("once_idempotency._blocking.socket.socket", exhausted)
        self.addCleanup(patch.stop)
        self.assertEqual(work(), 1)
        self.assertEqual((len(refused), self.show("a", "--scope", "descriptors")["state"]), (3, "completed"))


class Strangers(harness.Case):
    def test_whose_server_is_trusted(self):
        own, other, root, owner = 1000, 1001, 0, 2000
        for peer, is_on_demand, mode, is_trusted in [
            (own, True, 0o700, True), (other, True, 0o700, False), (root, True, 0o700, False), (other, False, 0o750, True), (other, False, 0o775, True),
            (other, False, 0o1777, False), (own, False, 0o1777, True), (root, False, 0o1777, True), (owner, False, 0o777, True),
        ]:
            why = _address.distrust(peer, own, is_on_demand, owner, mode)
            self.assertEqual(why == "", is_trusted, (peer, is_on_demand, oct(mode), why))

    def test_nothing_is_sent_to_another_users_server(self):
        address = stranger.start(self)
        for call in address and (self.call_blocking, self.call_async):
            with self.assertRaisesRegex(oi.Unavailable, "65534"):
                call(oi.Once(server=address, timeout=1))
        if address:
            stranger.check_nothing_was_sent(self)

    def test_a_server_on_demand_is_this_users(self):
        self.path("run").mkdir(0o700)
        server = self.start("serve", "--listen", f"unix:{self.path('run/s')}", "--log", "none")
        self.assertIn(b"listening", server.stderr.readline())
        self.path("program").write_text(f"#!/bin/sh\necho '{{\"socket\": \"{self.path('run/s')}\"}}'\n")
        self.path("program").chmod(0o755)
        for call in (self.call_blocking, self.call_async):
            client = oi.Once("sqlite:once.db", program=str(self.path("program")), timeout=harness.DEADLINE_S)
            self.assertEqual(call(client), 1)
            client.forget()
            with unittest.mock.patch("os.geteuid", lambda: 4711), self.assertRaisesRegex(oi.Unavailable, "belongs to user"):
                call(client)

    @staticmethod
    def call_blocking(client):
        return client.call("s", "k", lambda claim: 1)

    @staticmethod
    def call_async(client):
        async def one(claim):
            return 1

        async def run():
            try:
                return await client.call_async("s", "k", one)
            finally:
                await client.aclose()

        return asyncio.run(run())


class Addresses(harness.Case):
    TOKEN = "the-token-of-this-test-1"

    def serve(self, port=0):
        server = self.start("serve", "--listen", f"127.0.0.1:{port}", "--tls-cert", self.path("server.pem"), "--tls-key",
                            self.path("server.key"), "--token-file", self.path("token"), "--log", "none")
        line = server.stderr.readline().decode()
        self.assertIn("listening", line)
        return server, int(line.split()[-1])

    def write(self, name, text):
        self.path(name).write_text(text)
        self.path(name).chmod(0o600)

    def started(self):
        """A server, its port, and a client that knows it by its name."""
        self.authority = Authority(self.dir)
        self.authority.sign("server")
        for name in ("token", "mine"):
            self.write(name, self.TOKEN + "\n")
        server, port = self.serve()
        client = oi.Once(server=f"https://localhost:{port}", token_file=str(self.path("mine")), ca_file=str(self.authority.file),
                         timeout=harness.DEADLINE_S)
        self.addCleanup(client.close)
        return server, port, client

    def test_what_names_no_safe_server_is_refused(self):
        for server, more, word in (
                ("http://db.internal:7117", {"token_file": "x"}, "unencrypted"), ("http://0.0.0.0:7117", {"token_file": "x"}, "unencrypted"),
                ("http://127.0.0.1.example:7117", {"token_file": "x"}, "unencrypted"), ("https://db:7117", {}, "needs a token"),
                ("https://user:hush@db:7117", {"token_file": "x"}, "token_file= or ONCE_TOKEN_FILE"),
                ("https://hush@db", {"token_file": "x"}, "token_file= or ONCE_TOKEN_FILE"),
                ("https://db:7117?token=hush", {"token_file": "x"}, "none of"), ("https://db:7117/#hush", {"token_file": "x"}, "none of"),
                ("https://db:x/", {"token_file": "x"}, "none of"), ("https://", {"token_file": "x"}, "none of"),
                ("https://db/v1", {"token_file": "x"}, "none of"), ("ftp://db:1", {"token_file": "x"}, "none of"),
                ("http://127.0.0.1", {"token_file": "x"}, "none of"), ("https://db", {"cert_file": "x"}, "both cert_file= and key_file="),
                ("https://db", {"token_file": "x", "cert_file": "x", "key_file": "x"}, "not both"),
                ("http://127.0.0.1:1", {"token_file": "x", "ca_file": "x"}, "for https://"), ("unix:s", {"ca_file": "x"}, "at an address"),
                ("https://db:0", {"token_file": "x"}, "none of"), ("https://db:65536", {"token_file": "x"}, "none of"),
                ("https://b\u00fccher.example", {"token_file": "x"}, "none of"), ("https://[fe80::1%25eth0]:1", {"token_file": "x"}, "none of"),
                ("https://db\\evil", {"token_file": "x"}, "none of"), ("http://127.1:1", {"token_file": "x"}, "unencrypted"),
                ("", {}, "server= is empty"), ("https://db", {"token_file": ""}, "token_file= is empty"),
                ("https://db", {"token_file": "x", "ca_file": ""}, "ca_file= is empty"), ("https://db", {"cert_file": "", "key_file": ""}, "is empty")):
            with self.subTest(server=server, **more), self.assertRaises(ValueError) as caught:
                oi.Once(server=server, **more)
            self.assertIn(word, str(caught.exception))
            self.assertNotIn("hush", str(caught.exception))
        with self.assertRaises(ValueError):
            oi.Once("sqlite:x.db", token_file="x")
        for server, shown in (("https://db", "https://db:443"), ("https://[::1]:7117/", "https://[::1]:7117"),
                              ("http://localhost:7117", "http://127.0.0.1:7117"), ("http://127.0.0.2:1", "http://127.0.0.2:1")):
            self.assertEqual(str(oi.Once(server=server, token_file="x")._where.address()), shown)

    def test_an_empty_variable_is_refused(self):
        for empty in ("ONCE_SERVER", "ONCE_TOKEN_FILE", "ONCE_CA_FILE"):
            named = {"ONCE_SERVER": "https://db.invalid", "ONCE_TOKEN_FILE": "x", "ONCE_CA_FILE": "x", "ONCE_STORE": self.store, empty: ""}
            with unittest.mock.patch.dict(os.environ, named), self.assertRaisesRegex(oi.Unavailable, f"{empty} is empty"):
                oi.Once().call("variables", "a", lambda claim: 1)

    def test_a_password_of_a_store_is_in_no_repr(self):
        where = oi.Once("postgresql://user:hush@db/once", program="once")._where
        self.assertNotIn("hush", f"{where!r} {where._named!r} {where.address()!r} {vars(where)}")

    def test_what_is_no_name_of_a_host_is_unavailable(self):
        self.write("token", self.TOKEN)
        client = oi.Once(server="https://" + "a" * 70 + ".example", token_file=str(self.path("token")), timeout=harness.DEADLINE_S)
        for begin in (lambda: client.call("name", "a", None), lambda: asyncio.run(client.call_async("name", "a", None))):
            with self.assertRaisesRegex(oi.Unavailable, "nothing was run: no server at https://aaa"):
                begin()

    def test_a_dead_address_of_a_name_is_passed_over(self):
        _, port, client = self.started()
        with contextlib.ExitStack() as open_until_then:
            dead = open_until_then.enter_context(socket.socket())
            dead.bind(("127.0.0.1", 0))
            dead.listen(0)
            for _ in range(2):  # One waits to be accepted, one more may; the kernel ignores the next.
                filler = open_until_then.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(dead.getsockname())
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", where) for where in (dead.getsockname(), ("127.0.0.1", port))]
            open_until_then.enter_context(unittest.mock.patch("socket.getaddrinfo", lambda *_, **__: found))
            short = oi.Once(server=f"https://localhost:{port}", token_file=str(self.path("mine")), ca_file=str(self.authority.file), timeout=8)
            self.assertEqual(short.call("dead", "a", lambda claim: 1, wait=0), 1)

            async def in_a_loop():
                self.assertEqual(await short.call_async("dead", "b", self.coroutine, wait=0), "b")
                await short.aclose()

            asyncio.run(in_a_loop())
            short.close()

    def test_a_connection_that_breaks_before_it_is_used_is_opened_again(self):
        _, _, client = self.started()
        opened, broken = asyncio.open_connection, []

        async def broken_once(*arguments, **options):
            reader, writer = await opened(*arguments, **options)
            if not broken:
                broken.append(writer)
                writer.transport.abort()
                while writer.get_extra_info("socket") is not None:
                    await asyncio.sleep(0)
            return reader, writer

        async def in_a_loop():
            self.assertEqual(await client.call_async("broken", "a", self.coroutine), "a")
            await client.aclose()

        with unittest.mock.patch("asyncio.open_connection", broken_once):
            asyncio.run(in_a_loop())
        self.assertEqual(len(broken), 1)

    def test_a_connection_that_was_idle_for_long_is_not_used(self):
        _, _, client = self.started()

        async def in_a_loop():
            for key in "cd":
                await client.call_async("idle", key, self.coroutine)
            (connection,) = next(iter(client._aio.pools.values()))
            await client.aclose()
            return connection

        self.assertEqual(client.call("idle", "a", lambda claim: 1), 1)
        ((_, first),) = client._blocking.idle
        with unittest.mock.patch.multiple(_blocking, MAX_IDLE_S=-1), unittest.mock.patch.multiple(_aio, MAX_IDLE_S=-1):
            self.assertEqual(client.call("idle", "b", lambda claim: 1), 1)
            ((_, second),) = client._blocking.idle
            self.assertIsNot(second, first)
            self.assertEqual(first.socket.fileno(), -1)
            asyncio.run(in_a_loop())
        self.assertEqual(client.call("idle", "e", lambda claim: 1), 1)
        self.assertIs(client._blocking.idle[0][1], second)

    def test_a_name_is_verified_and_connections_are_kept(self):
        server, port, client = self.started()
        self.assertEqual([client.call("name", key, lambda claim: key) for key in "ab"], ["a", "b"])
        self.assertEqual(len(client._blocking.idle), 1)
        wrong = oi.Once(server=f"https://127.0.0.1:{port}", token_file=str(self.path("token")), ca_file=str(self.authority.file))
        self.authority.sign("server", sans="DNS:localhost")
        server.kill()
        server.wait()
        self.serve(port)
        self.assertEqual(client.call("name", "c", lambda claim: 3), 3)
        for begin in (lambda: wrong.call("name", "d", lambda claim: 1), lambda: asyncio.run(wrong.call_async("name", "d", None))):
            with self.assertRaisesRegex(oi.Unavailable, "nothing was run: the certificate of https://127.0.0.1:.* is not accepted: IP address mismatch"):
                begin()

        async def in_a_loop():
            gone = [await client.call_async("loop", key, self.coroutine) for key in "abab"]
            self.assertEqual(len(next(iter(client._aio.pools.values()))), 1)
            await client.aclose()
            return gone

        with warnings.catch_warnings(record=True) as left:
            warnings.simplefilter("always")
            self.assertEqual(asyncio.run(in_a_loop()), ["a", "b", "a", "b"])
            gc.collect()
        self.assertEqual([str(one.message) for one in left], [])

    @staticmethod
    async def coroutine(claim):
        return claim.key

    def test_files_that_were_replaced_count_for_the_next_connection(self):
        server, port, client = self.started()
        self.assertEqual(client.call("files", "a", lambda claim: 1), 1)
        server.kill()
        server.wait()
        Authority(self.dir).sign("server")  # Another one, with the same names.
        self.serve(port)
        self.assertEqual(client.call("files", "b", lambda claim: 2), 2)
        good = self.authority.file.read_text()
        self.write("authority.pem", "nothing")
        client.close()
        with self.assertRaisesRegex(oi.Unavailable, "nothing was run: cannot use .*authority.pem"):
            oi.Once(server=f"https://localhost:{port}", token_file=str(self.path("mine")), ca_file=str(self.authority.file),
                    timeout=harness.DEADLINE_S).call("files", "c", lambda claim: 3)
        pauses = _protocol.pauses

        def replaced():  # The call has met the half-written file.
            self.write("authority.pem", good)
            return pauses()

        with unittest.mock.patch.object(_protocol, "pauses", replaced):
            self.assertEqual(client.call("files", "d", lambda claim: 4), 4)

    def test_a_token_is_never_shown(self):
        _, port, client = self.started()
        with self.assertLogs("once_idempotency") as logs:
            self.assertEqual(client.call("shown", "a", lambda claim: 1), 1)
            self.write("mine", "another token")
            self.assertEqual(client.call("shown", "b", lambda claim: 1), 1)  # The known one, until the server refuses it.
            other = oi.Once(server=f"https://localhost:{port}", token_file=str(self.path("mine")), ca_file=str(self.authority.file))
            with self.assertRaisesRegex(oi.Unavailable, "mine holds no token") as caught:
                other.call("shown", "c", lambda claim: 1)
            self.write("mine", "another-ö")
            with self.assertRaisesRegex(oi.Unavailable, "mine holds no token"):
                other.call("shown", "c", lambda claim: 1)
            address = client._where.address()
            logging.getLogger("once_idempotency").warning("%r %r %s %r", client, address, address, address.token)
        for text in (*logs.output, str(caught.exception)):
            self.assertNotIn(self.TOKEN, text)
            self.assertNotIn("another token", text)


class OnDemand(harness.Case):
    def test_the_store_is_no_argument_and_seen_from_one_directory(self):
        program = self.path("program")
        program.write_text(f'#!/bin/sh\necho "$* $ONCE_STORE $(pwd -P)" >>{self.path("calls")}\nexit 243\n')
        program.chmod(0o755)
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.dir)
        client = oi.Once("sqlite:once.db", program="./program", timeout=1)
        os.chdir("/")
        with self.assertRaisesRegex(oi.Unavailable, "243"):
            client.call("s", "k", lambda claim: None)
        with self.assertRaisesRegex(oi.Unavailable, "243"):
            asyncio.run(client.call_async("s", "k", lambda claim: None))
        self.assertEqual(self.path("calls").read_text(), f"serve --on-demand sqlite:once.db {os.path.realpath(self.dir)}\n" * 2)


class Middleware(ServeCase):
    """What needs no framework."""

    RULES = {"principal": oi._http.SHARED, "lease": 1.5, "wait": harness.DEADLINE_S, "max_duration": 0.001}

    def setUp(self):
        super().setUp()
        self.leave = threading.Event()
        self.addCleanup(self.leave.set)

    def check_lapse(self, post):
        """`post()` returns the body of a request whose handler waits for `leave`."""
        first = threading.Thread(target=post, daemon=True)
        with self.assertLogs("once_idempotency", logging.WARNING) as logs:
            first.start()
            harness.wait_until(lambda: any("max_duration" in line for line in logs.output), "its renewals end")
        self.assertIn(b"outcome-unknown", post())
        self.leave.set()
        first.join(harness.DEADLINE_S)
        self.assertFalse(first.is_alive())

    def test_the_claim_of_a_wsgi_application_that_hangs_lapses(self):
        def hang(environ, start_response):
            self.leave.wait()
            start_response("200 OK", [])
            return [b"late"]

        app = wsgi.OnceMiddleware(hang, once=self.once_client, **self.RULES)

        def post():
            environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "order-1", "PATH_INFO": "/"}
            wsgiref.util.setup_testing_defaults(environ)
            return b"".join(app(environ, lambda *_: None))

        self.check_lapse(post)

    def test_numbers_that_no_double_holds_are_compared_as_bytes(self):
        def answer(environ, start_response):
            start_response("200 OK", [])
            return [environ["wsgi.input"].read()]

        app = wsgi.OnceMiddleware(answer, once=self.once_client, **self.RULES)
        got = []
        for number in (2**53 + 1, 2**53 + 1, 2**53):
            body = json.dumps({"order": number}).encode()
            environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "order-2", "PATH_INFO": "/", "CONTENT_TYPE": "application/json",
                       "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
            wsgiref.util.setup_testing_defaults(environ)
            app(environ, lambda status, *_: got.append(status))
        self.assertEqual([status[:3] for status in got], ["200", "200", "422"])

    async def asgi(self, app, extensions=None):
        """The messages of a POST."""
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [(b"idempotency-key", b"order-1")], "extensions": extensions}
        await asgi.OnceMiddleware(app, once=self.once_client, **self.RULES)(scope, receive, send)
        await self.once_client.aclose()
        return sent

    def test_the_claim_of_an_asgi_application_that_hangs_lapses(self):
        async def hang(scope, receive, send):
            await asyncio.get_running_loop().run_in_executor(None, self.leave.wait)
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body"})

        self.check_lapse(lambda: asyncio.run(self.asgi(hang))[-1]["body"])

    def test_extensions_that_bypass_the_record_are_not_offered(self):
        async def app(scope, receive, send):
            offered = scope["extensions"] or {}
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if "http.response.pathsend" in offered:
                return await send({"type": "http.response.pathsend", "path": "/dev/null"})
            await send({"type": "http.response.body", "body": ",".join(sorted(offered)).encode()})

        offered = dict.fromkeys(["tls", "http.response.pathsend", "http.response.trailers", "http.response.early_hint", "http.response.zerocopysend"], {})
        for _ in range(2):  # Run, and replayed.
            self.assertEqual(asyncio.run(self.asgi(app, offered))[-1]["body"], b"tls")


class Loops(ServeCase):
    def setUp(self):
        super().setUp()
        self.complaints = []
        handler = logging.Handler()
        handler.emit = self.complaints.append
        logging.getLogger("asyncio").addHandler(handler)
        self.addCleanup(logging.getLogger("asyncio").removeHandler, handler)

    async def begin(self):
        """A claim that nothing ends, once it has been renewed."""
        block = self.once_client.claim("loops", str(uuid.uuid4()), lease=1.5)
        claim = await block.__aenter__()
        before, end = claim.valid_for_s, claim._granted.valid_until
        while claim._granted.valid_until == end:
            await asyncio.sleep(0.01)
        self.assertGreater(before, 0)
        return block

    def test_a_loop_that_ends_leaves_no_task_over(self):
        for run in (asyncio.run, self.run_bare):
            self.assertIsNotNone(run(self.begin()))
            gc.collect()
        self.assertEqual(self.complaints, [])

    @staticmethod
    def run_bare(work):
        """Without what asyncio.run() does at its end."""
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(work)
        finally:
            loop.close()


class Renewals(ServeCase):
    def test_many_claims_are_renewed_by_one_thread(self):
        before = set(threading.enumerate())
        with contextlib.ExitStack() as stack:
            claims = [stack.enter_context(self.once_client.claim("many", str(n), lease=3)) for n in range(20)]
            self.assertEqual(set(threading.enumerate()) - before, {self.once_client._blocking.thread})
            first = [claim._granted.valid_until for claim in claims]
            harness.wait_until(lambda: all(claim._granted.valid_until > was for claim, was in zip(claims, first)), "all are renewed")
            for claim in claims:
                claim.complete(1)

    def test_a_lost_claim_is_told_to_the_work(self):
        with self.assertRaises(oi.ClaimLost), self.once_client.claim("lost", "a", lease=1.5) as claim:
            self.expect(self.once("release", "--scope", "lost", "--key", "a", "--force", "--reason", "by hand"), 0)
            harness.wait_until(lambda: claim._granted.lost, "the loss is seen")
            claim.check()


class Texts(harness.Case):
    def test_parts_of_a_key(self):
        class Color(enum.Enum):
            RED = "red"

        for value, text in [("a", "a"), (17, "17"), (decimal.Decimal("1.50"), "1.50"), (datetime.date(2026, 1, 2), "2026-01-02"),
                            (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"), (Color.RED, "red")]:
            self.assertEqual(_keys.whole_key(value), text)
        self.assertNotEqual(_keys.whole_key(["1-2", "3"]), _keys.whole_key(["1", "2-3"]))
        with self.assertRaises(oi.KeyMissing):
            _keys.whole_key([])

    def test_two_lists_of_values_are_never_one_key(self):
        def key_of(template, **values):
            def work(x, y=None):
                return None

            arguments = _keys.Arguments(work, template, None)
            return arguments.key_of((), values, arguments.bind((), values))

        self.assertEqual(key_of("a-{x}-{y}", x="1", y="2-3"), "a-1-2-3")
        self.assertEqual(key_of("a-{x}-{y}", x="1-2", y="3"), '["a-{x}-{y}", "1-2", "3"]')
        self.assertEqual(key_of("{{{x}}}-{y}", x="1", y="2"), "{1}-2")
        for template, one, other in [
            ("{x}{y}", ("1", "23"), ("12", "3")), ("{x}--{y}", ("a-", "b"), ("a", "-b")), ("{x:>2}{y:>2}", ("123", "4"), ("12", "34")),
            ("{x}-{y}", ('["{x}-{y}", "a', 'b", "c"]'), ("a-b", "c")),
        ]:
            self.assertNotEqual(*[key_of(template, x=x, y=y) for x, y in (one, other)], template)
        for value in ("", None, "None", True, float("nan")):
            with self.assertRaises((oi.KeyMissing, TypeError), msg=repr(value)):
                key_of("{x:>5}", x=value)

    def test_what_is_compared(self):
        @dataclasses.dataclass
        class Order:
            id: int

        self.assertEqual(_keys.compared({"b": Order(1), "a": (1, decimal.Decimal("2.0"))}), {"payload_json": '{"a":[1,"2.0"],"b":{"id":1}}'})
        large = _keys.compared("x" * 100_000)
        self.assertRegex(large["fingerprint"], "^sha256:[0-9a-f]{64}$")
        self.assertNotEqual(large, _keys.compared("x" * 100_001))

    def test_different_values_are_not_compared_as_one(self):
        @dataclasses.dataclass
        class Order:
            lines: object

        pairs = [({1: "a"}, {"1": "a"}), ({None: 1}, {"null": 1}), ([{True: 1}], [{"true": 1}]), (Order({1: 2}), Order({"1": 2})), (1, True),
                 (decimal.Decimal("NaN"), None), (b"a", b"b"), ({1, "1"}, {1, 2}), (datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc))]
        for one, other in pairs:
            self.assertNotEqual(_keys.compared(one), _keys.compared(other), f"{one} {other}")
        self.assertEqual(_keys.compared({frozenset({n, "x"}) for n in range(9)}), _keys.compared({frozenset({"x", n}) for n in reversed(range(9))}))
        self.assertEqual(_keys.compared({2: "b", 1: "a"}), _keys.compared({1: "a", 2: "b"}))
        around = []
        around.append(around)
        for refused in (around, object(), {"a": float("nan")}, {1: {float("inf")}}, Order(object()), Order, [lambda: 1], {"a": range(3)}, "\ud800"):
            with self.assertRaises((TypeError, ValueError), msg=repr(refused)):
                _keys.compared(refused)

    def test_request_ids_are_not_shared_by_copies(self):
        reader, writer = os.pipe()
        child = os.fork()
        drawn = _protocol.random_id()
        if child == 0:
            os.write(writer, drawn.encode())
            os._exit(0)
        os.waitpid(child, 0)
        self.assertNotEqual(os.read(reader, 100).decode(), drawn)
        os.close(reader)
        os.close(writer)

    def test_errors_pass_between_processes(self):
        for error in (oi.StoredFailure("declined", "no money", b"\0", "text/plain"), oi.InProgress("running", 3.5), oi.Refused("no", 400, "bad-request"),
                      oi.ResultUnreadable("what", b"x", "text/plain"), oi.Replayed({"a": 1}), oi.ClaimLost("lost")):
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), str(copy), copy.__dict__), (type(error), str(error), error.__dict__))
            self.assertEqual(str(type(error)(*error.args)), str(error))  # As Celery makes one of its arguments.

    def test_heads_that_are_not_of_once_serve(self):
        good = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nOnce-Answer: recorded\r\n\r\n"
        self.assertEqual(_wire.parse_head(good), (200, {"content-length": "5", "once-answer": "recorded"}, 5, True))
        for bad in (good.replace(b"1.1", b"1.0"), good.replace(b"200", b"2"), good.replace(b": 5", b": -5"), good.replace(b": 5", b": 5x"),
                    good.replace(b"Content-Length: 5\r\n", b""), b"SSH-2.0\r\n\r\n", good.replace(b"Once-Answer", b"Once-Answer "),
                    good.replace(b"Once-Answer: recorded", b"Transfer-Encoding: chunked")):
            with self.subTest(head=bad), self.assertRaises(_wire.Unreachable):
                _wire.parse_head(bad)


class Package(harness.Case):
    def test_types_are_strict(self):
        done = subprocess.run([TOOLS, "-m", "mypy", "--cache-dir", self.path("cache")], cwd=PACKAGE, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env=self.env, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_decorated_function_keeps_its_type(self):
        self.path("use.py").write_text(
            "from once_idempotency import Once\nonce = Once('sqlite:x')\n@once.idempotent(key='{n}')\ndef f(n: int) -> str:\n    return str(n)\n"
            "@once.idempotent(key='{n}')\nasync def g(n: int) -> str:\n    return str(n)\nreveal_type(f)\nreveal_type(g)\nf('x')\n"
            "@once.tool(key='{n}')\ndef t(n: int) -> str:\n    return str(n)\nreveal_type(t)\n")
        env = {**self.env, "MYPYPATH": str(PACKAGE / "src")}
        done = subprocess.run([TOOLS, "-m", "mypy", "--strict", "--cache-dir", self.path("cache"), self.path("use.py")], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env=env, cwd=self.dir, check=False)
        self.assertRegex(done.stdout, r'(?s)"def \(n: int\) -> str".*"def \(n: int\) -> .*Coroutine\[Any, Any, str\]".*incompatible type "str".*"def \(n: int\) -> str"')


@contextlib.contextmanager
def set_variable(name, value):
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


TOOLS = subprocess.run([ROOT / "tools/python-tools", "clients"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()

if __name__ == "__main__":
    harness.main()
