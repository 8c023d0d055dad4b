"""fallback_test.py ONCE: another program's table that is read before each new claim. With ONCE_TEST_POSTGRESQL, the URL of
a database: a table there (class Postgresql)."""
import concurrent.futures
import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.parse
import urllib.request

import harness
from harness import Case

FAKE = os.environ.get("ONCE_FAKE_DYNAMODB")
FAR_S = 4_000_000_000  # The year 2096.
MAPPING = {"mode": "read", "preset": "article", "key": "id", "scope": "pay", "expired": "skip", "key-prefix": ""}

# Claims keys in a table of its own, then does each one's work and finishes its row when it is told to.
OLD_PROGRAM = textwrap.dedent("""
    import sqlite3, sys
    file, ledger, *keys = sys.argv[1:]
    table = sqlite3.connect(file, timeout=60)
    for key in keys:
        table.execute("INSERT INTO keys (id, status, expiry) VALUES (?, 'IN_PROGRESS', 4000000000)", (key,))
    table.commit()
    print("claimed", flush=True)
    for line in sys.stdin:
        key = line.strip()
        with open(ledger, "a") as effects:
            effects.write(key + "\\n")
        table.execute("UPDATE keys SET status = 'COMPLETED', response = ? WHERE id = ?", ('{"by": "old"}', key))
        table.commit()
        print(key, flush=True)
""")


class Fallback(Case):
    relay = None  # Before the old table's server.

    def setUp(self):
        super().setUp()
        self.store = f"sqlite:{self.dir}/once.db"
        self.env["ONCE_STORE"] = f"{self.store}?fallback={self.path('old.toml')}"
        self.make_table()
        self.describe()

    def describe(self, **settings):
        """Writes the file; None leaves a setting out."""
        settings = {**MAPPING, **self.place(), **settings}
        self.path("old.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()
                                                 if value is not None))

    def run_key(self, key, *options):
        return self.once("run", "--scope", "pay", "--key", key, *options, "--", "sh", "-c", "echo ran >> ran; echo new",
                         text=True)

    def kept(self, key):
        return json.loads(self.once("show", "--scope", "pay", "--key", key, "--json").stdout or "null")

    def start_service(self):
        """A service behind a proxy, and the keys that it was asked for."""
        served = []

        class Service(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                served.append(self.headers["Idempotency-Key"])
                self.send_response(201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
        self.addCleanup(service.server_close)
        self.addCleanup(service.shutdown)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        return service, served

    def start_proxy(self, service, *options):
        proxy = self.start("proxy", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{service.server_address[1]}",
                           "--no-principal", "--admin", "127.0.0.1:0", "--log", "none", *options, text=True)
        said = ""
        ports = []
        while len(ports) < 2:
            line = proxy.stderr.readline()
            self.assertTrue(line, said)
            said += line
            ports += re.findall(r"(?:listening on|operators on) port (\d+)", line)
        if not options:
            self.assertIn("the old program must no longer claim", said)
        self.token = re.search(r"(/\S+)", proxy.stderr.readline())
        return proxy, int(ports[0]), int(ports[1])

    def scope_of_proxy(self, service):
        proxy, port, _ = self.start_proxy(service, "--store", self.store)
        self.assertEqual(self.post(port, "probe")[0], 201)
        proxy.terminate()
        proxy.wait()
        rows = json.loads(self.once("ls", "--json").stdout)
        return (rows["records"] if isinstance(rows, dict) else rows)[0]["scope"]

    def post(self, port, key):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/charges", data=b"{}", method="POST",
                                         headers={"Idempotency-Key": key})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def metrics(self, admin):
        token = pathlib.Path(self.token[1].rstrip(".,;")).read_text().strip()
        request = urllib.request.Request(f"http://127.0.0.1:{admin}/metrics", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()


class States(Fallback):
    """Every state of a row, in each kind of table."""

    def check_states(self):
        self.put("done", "COMPLETED", response='{"n": 1}')
        self.put("bare", "COMPLETED")
        self.put("bad", "FAILED")
        self.put("busy", "IN_PROGRESS")
        self.put("odd", "ARCHIVED", response="1")
        self.put("old", "COMPLETED", response="1", expiry=1_600_000_000)
        for _ in range(2):
            self.expect(self.run_key("done"), 0, stdout='{"n": 1}')
            self.expect(self.run_key("bare"), 246)
            self.expect(self.run_key("bad"), 1, stderr="imported")
            self.expect(self.run_key("busy"), 240, stderr="the old program")
            self.expect(self.run_key("odd"), 244, stderr='its state is "ARCHIVED"')
        self.assertEqual(self.runs(), 0)
        self.assertIsNone(self.kept("busy"))
        self.assertEqual([entry["what"] for entry in self.kept("done")["history"]], ["imported"])
        self.expect(self.run_key("new"), 0, stdout="new\n", stderr="the old program must no longer claim")
        self.expect(self.run_key("old"), 0, stdout="new\n")
        self.assertEqual(self.runs(), 2)
        self.put("busy", "COMPLETED", response="late")
        self.expect(self.run_key("busy"), 0, stdout='"late"')
        # What is kept needs the old table no more.
        self.drop()
        self.expect(self.run_key("done"), 0, stdout='{"n": 1}')
        self.expect(self.run_key("other"), 243, stderr="does not say whether it has this operation")
        self.assertEqual(self.runs(), 2)

    def check_doctor(self):
        self.put("done", "COMPLETED", response="1")
        self.put("odd", "ARCHIVED")
        done = self.once("doctor", text=True)  # Before the first claim makes the store.
        self.expect(done, 243)
        self.assertRegex(done.stdout, "fallback .*1 of its first 2 rows can be used")
        self.once("run", "--key", "make-a-store", "--scope", "pay", "--", "true")
        done = self.once("doctor", text=True)
        self.expect(done, 0)
        self.assertRegex(done.stdout, r"fallback .*1 of its first 2 rows can be used, as a key of 4 bytes that begins with 'done'")
        self.describe(**{"key-prefix": "mistyped#"})
        done = self.once("doctor", text=True)
        self.expect(done, 1)
        self.assertRegex(done.stdout, "fallback .*none of its first 2 rows can be used")
        self.expect(self.run_key("done"), 243, stderr="can be used")
        self.assertEqual(self.runs(), 0)

    def check_recovers(self, hang, mend):
        """A table that hangs costs each call its timeout, and no more: no thread waits for it for ever."""
        service, served = self.start_service()
        self.describe(scope=self.scope_of_proxy(service), timeout="1s")
        proxy, port, _ = self.start_proxy(service)
        self.assertEqual(self.post(port, "before")[0], 201)
        hang()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:  # More than there are threads that look.
            self.assertEqual({answer[0] for answer in pool.map(lambda key: self.post(port, key), "123456")}, {503})
        mend()
        harness.wait_until(lambda: self.post(port, "after")[0] == 201, "the table is read again")
        self.assertEqual(served, ["probe", "before", "after"])
        proxy.terminate()

    def hang_by(self, server):
        self.relay = Relay(server.hostname, server.port)
        self.addCleanup(self.relay.close)
        self.check_recovers(self.relay.hang, self.relay.mend)


class Relay:
    """A TCP server before another one. hang(): its connections stay open, and no byte passes. mend(): new ones pass."""

    def __init__(self, host, port):
        self.to = (host, port)
        self.is_hanging = False
        self.hanging = set()
        self.pairs = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                pair = self.listener.accept()[0], socket.create_connection(self.to)
            except OSError:
                return  # close()
            self.pairs.append(pair)
            if self.is_hanging:
                self.hanging.add(pair)
            for source, target in (pair, pair[::-1]):
                threading.Thread(target=self.pump, args=(pair, source, target), daemon=True).start()

    def pump(self, pair, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if pair not in self.hanging:
                    target.sendall(data)
            if pair not in self.hanging:
                target.shutdown(socket.SHUT_WR)

    def hang(self):
        self.is_hanging = True
        self.hanging.update(self.pairs)

    def mend(self):
        self.is_hanging = False

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for pair in self.pairs:
            for end in pair:
                end.close()


class SqliteTable(States):
    def make_table(self):
        self.sql("CREATE TABLE keys (id TEXT PRIMARY KEY, status TEXT, expiry INTEGER, response TEXT)")

    def place(self):
        return {"from": f"sqlite:{self.path('shop.db')}", "table": "keys"}

    def sql(self, text, *values):
        with contextlib.closing(sqlite3.connect(self.path("shop.db"), timeout=60)) as database:
            database.execute(text, values)
            database.commit()

    def put(self, key, status, response=None, expiry=FAR_S):
        self.sql("INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?)", key, status, expiry, response)

    def drop(self):
        self.path("shop.db").unlink()


class Sqlite(SqliteTable):
    def test_states(self):
        self.check_states()

    def test_doctor(self):
        self.check_doctor()

    def test_recovers(self):
        def put_in_place(name):
            os.replace(self.path(name), self.path("shop.db"))

        def hang():
            shutil.copy(self.path("shop.db"), self.path("good.db"))
            shutil.copy(self.path("shop.db"), self.path("slow.db"))
            with contextlib.closing(sqlite3.connect(self.path("slow.db"))) as database:
                database.executescript("""
                    DROP TABLE keys;
                    CREATE VIEW keys AS
                      WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n)
                      SELECT 'k' || i AS id, 'DONE' AS status, 4000000000 AS expiry, '1' AS response FROM n""")
            put_in_place("slow.db")

        self.check_recovers(hang, lambda: put_in_place("good.db"))

    def test_a_table_without_rows_is_said(self):
        self.expect(self.run_key("new"), 0, stderr="it has no rows, so every key is new")
        self.describe(key="kye")
        self.expect(self.run_key("other"), 243, stderr="no such column")
        self.assertEqual(self.runs(), 1)

    def test_a_prefix_that_is_not_taken_off_is_said(self):
        for key in ("create_order#1", "create_order#2"):
            self.put(key, "COMPLETED", response="1")
        advice = 'write key-prefix = "create_order#"'
        self.expect(self.run_key("new"), 0, stderr=advice)
        self.assertIn(advice, self.once("doctor", text=True).stdout)
        self.describe(**{"key-prefix": "create_order#"})
        self.expect(self.run_key("1"), 0, stdout='"1"')
        self.assertNotIn(advice, self.once("doctor", text=True).stdout)

    def test_a_column_that_is_mistyped_is_said(self):
        self.put("done", "COMPLETED", response="1")
        self.describe(result="respons")
        self.expect(self.run_key("new"), 0, stderr="none of its first rows has respons")
        self.expect(self.run_key("done"), 246)

    def test_a_check_of_settings_reads_the_file(self):
        check = ("proxy", "--check", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9", "--no-principal")
        self.expect(self.once(*check), 0)
        self.expect(self.once(*check, "--on-store-down", "run-unprotected", text=True), 64, stderr="run-unprotected")
        self.describe(table=None)
        self.expect(self.once(*check, text=True), 64, stderr="table is missing")
        self.describe(scop="pay")
        self.expect(self.once(*check, text=True), 64, stderr="did you mean 'scope'")
        self.expect(self.once(*check, "--no-files"), 0)

    def test_keys_that_the_table_keeps_in_another_way_are_refused(self):
        """As bytes, as numbers in a column without a type, in other letters: found, and not taken for absent."""
        self.sql("DROP TABLE keys")
        self.sql("CREATE TABLE keys (id COLLATE NOCASE, status TEXT, response TEXT)")
        for key in ("first", b"bytes", "Order-9", 17, 1.5):
            self.sql("INSERT INTO keys VALUES (?, 'DONE', '1')", key)
        self.expect(self.run_key("first"), 0, stdout='"1"')
        self.expect(self.run_key("17"), 0, stdout='"1"')
        self.expect(self.run_key("1.5"), 0, stdout='"1"')
        self.expect(self.run_key("bytes"), 244, stderr="is binary")
        self.expect(self.run_key("order-9"), 244, stderr="in another spelling")
        self.expect(self.run_key("017"), 244, stderr="in another spelling")
        self.assertEqual(self.runs(), 0)

    def test_what_is_mistyped_is_refused(self):
        self.put("done", "COMPLETED", response="1")
        for settings, code, text in (({"table": "kyes"}, 243, "no such table"), ({"key": "kye"}, 243, "it has no key"),
                                     ({"from": f"sqlite:{self.dir}/none.db"}, 243, "unable to open"),
                                     ({"from": "csv:old.csv", "table": None}, 64, "can be asked for one key"),
                                     ({"from": "host=db password=secret", "table": None}, 64, "from is no URL"),
                                     ({"from": "host=db password=secret:1", "table": None}, 64, "from is no URL"),
                                     ({"table": None}, 64, 'write table = "NAME"'), ({"mode": "claim"}, 64, "no mode in which both programs claim"),
                                     ({"mode": None}, 64, "mode is missing"), ({"scop": "pay"}, 64, "did you mean 'scope'"),
                                     ({"where": "status == 'x'"}, 64, "where is not for"), ({"hash": "sha256"}, 64, "leave it out"),
                                     ({"expired": None}, 64, "rows that have expired"),
                                     ({"key-prefix": None}, 64, "key-prefix is missing")):
            self.describe(**settings)
            done = self.run_key("done")
            self.expect(done, code, stderr=text)
            self.assertNotIn("secret", done.stderr)
        self.describe(scope="pya")
        self.expect(self.run_key("done"), 244, stderr="with another scope")
        self.path("old.toml").unlink()
        self.expect(self.run_key("done"), 64, stderr="cannot be read")
        for value, text in (("", "names no file"), ("claim", "the only mode"), ("postgresql://u:secret@h/d", "the only mode")):
            done = self.once("run", "--store", f"{self.store}?fallback={value}", "--key", "done", "--", "touch", "ran", text=True)
            self.expect(done, 64, stderr=text)
            self.assertNotIn("secret", done.stderr)
        self.assertEqual(self.runs(), 0)

    def test_a_column_that_tells_no_operations_apart_is_refused(self):
        """Its rows are found by its text, and a key of a caller never is."""
        for key in ("one", "two"):
            self.put(key, "COMPLETED", response="1")
        self.describe(key="response")
        self.expect(self.run_key("one"), 243, stderr="two of its first rows have one key in 'response'")
        self.assertEqual(self.runs(), 0)

    def test_programs_that_would_not_look_refuse_it(self):
        self.put("done", "COMPLETED", response="1")
        self.path("rows.csv").write_text("id\n")
        self.path("event.json").write_text("{}")
        for command in (("serve", "--listen", "127.0.0.1:0"), ("serve", "--on-demand"), ("console", "--listen", "127.0.0.1:0"),
                        ("import", "csv:rows.csv", self.env["ONCE_STORE"], "--key", "id", "--state", "'x'", "--completed", "x"),
                        ("copy", self.env["ONCE_STORE"], "sqlite:other.db"), ("lambda", "invoke", "/bin/true", "event.json")):
            self.expect(self.once(*command, text=True), 64, stderr="fallback=")
        self.expect(self.run_key("done", "--on-store-down", "run-unprotected"), 64, stderr="run-unprotected")
        self.expect(self.once("proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9", "--no-principal",
                              "--on-store-down", "run-unprotected", text=True), 64, stderr="run-unprotected")
        self.assertEqual(self.runs(), 0)
        self.expect(self.run_key("done"), 0, stdout='"1"')
        for command in ("ls", "stats"):
            self.expect(self.once(command, text=True), 0, stderr="does not read the old table")

    def test_beside_a_second_store(self):
        self.put("done", "COMPLETED", response="1")
        self.expect(self.once("run", "--key", "first", "--store", self.store, "--", "true"), 0)  # It has to exist.
        fallback = f"fallback={self.path('old.toml')}"
        for url in (f"{self.store}?moves_to=sqlite:{self.dir}/next.db&{fallback}",
                    f"{self.store}?{fallback}&moves_to=sqlite:{self.dir}/next.db"):
            self.env["ONCE_STORE"] = url
            self.expect(self.run_key("done", "--offload", "none"), 0, stdout='"1"')
        self.env["ONCE_STORE"] = f"{self.store}?moves_to=sqlite:{self.dir}/next.db?create=0%26{fallback}"
        self.expect(self.run_key("done", "--offload", "none"), 64, stderr="fallback= stands in the URL of the first store")
        self.assertEqual(self.runs(), 0)

    def test_metrics_of_a_run(self):
        self.put("done", "COMPLETED", response="1")
        self.expect(self.run_key("done", "--metrics-file", "run.prom"), 0)
        self.assertIn('once_fallback_looks_total{outcome="replayed"} 1', self.path("run.prom").read_text())
        self.expect(self.run_key("done", "--metrics-file", "run.prom"), 0)
        self.assertIn('once_fallback_looks_total{outcome="replayed"} 0', self.path("run.prom").read_text())

    def test_queues_need_keys_that_can_be_found(self):
        self.put("done", "COMPLETED", response="1")
        sqs = ("sqs", "--queue", "http://127.0.0.1:9/1/orders", "--region", "eu-central-1")
        self.expect(self.once(*sqs, "--key", "order", "--key-from", "payload", "--", "true", text=True), 64,
                    stderr='hash = "sha256"')
        self.expect(self.once("run", "--key", "make-a-store", "--store", self.store, "--", "true"), 0)
        self.describe(hash="sha256")
        done = self.once("doctor", text=True)
        self.assertRegex(done.stdout, "fallback .*1 of its first 1 rows can be used")
        self.expect(self.once(*sqs, "--key", "order", "--key-from", "payload", "--", "true", text=True), 64,
                    stderr="--label all is missing")
        self.describe()
        self.expect(self.once(*sqs, "--key-from", "deduplication-id", "--", "true", text=True), 64, stderr="joined from several")

    def test_a_proxy_replays_what_the_old_service_did(self):
        service, served = self.start_service()
        # The scope of a client that shares its keys, as `once ls` shows it.
        self.sql("DROP TABLE keys")
        self.sql("CREATE TABLE keys (id TEXT PRIMARY KEY, status TEXT, expiry INTEGER, response TEXT, code INTEGER)")
        self.sql("INSERT INTO keys VALUES ('k-1', 'COMPLETED', ?, 'old answer', 202)", FAR_S)
        self.sql("INSERT INTO keys VALUES ('k-2', 'IN_PROGRESS', ?, NULL, NULL)", FAR_S)
        scope = self.scope_of_proxy(service)
        self.describe(scope=scope, **{"result-as": "http", "http-status": "code"})
        proxy, port, admin = self.start_proxy(service)
        self.assertEqual(self.post(port, "k-1"), (202, b"old answer"))
        self.assertEqual(self.post(port, "k-1"), (202, b"old answer"))
        self.assertEqual(self.post(port, "k-2")[0], 409)
        self.assertEqual(self.post(port, "k-3")[0], 201)
        self.assertEqual(served, ["probe", "k-3"])
        metrics = self.metrics(admin)
        for outcome, count in (("replayed", 1), ("in_progress", 1), ("absent", 1)):
            self.assertIn(f'once_fallback_looks_total{{outcome="{outcome}"}} {count}', metrics)
        self.drop()
        self.assertEqual(self.post(port, "k-1"), (202, b"old answer"))
        self.assertEqual(self.post(port, "k-4")[0], 503)
        self.assertEqual(served, ["probe", "k-3"])
        proxy.terminate()


    def test_a_proxy_that_cannot_look_does_not_start(self):
        self.put("done", "COMPLETED", response="1")
        proxy = ("proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9", "--no-principal")
        for settings, code in (({"from": f"sqlite:{self.dir}/none.db"}, 243), ({"key-prefix": "mistyped#"}, 64)):
            self.describe(**settings)
            self.expect(self.once(*proxy, text=True), code, stderr="(fallback=) cannot be used")

    def test_a_reload_that_would_run_unprotected_is_refused(self):
        service, served = self.start_service()
        settings = (f'listen = "127.0.0.1:0"\nupstream = "http://127.0.0.1:{service.server_address[1]}"\nno-principal = true\n'
                    f'log = "none"\nstore = "{self.env["ONCE_STORE"]}"\n')
        self.path("proxy.toml").write_text(settings)
        proxy = self.start("proxy", "--config", "proxy.toml", text=True)

        def read_until(pattern):
            said = ""
            while not re.search(pattern, said):
                line = proxy.stderr.readline()
                self.assertTrue(line, said)
                said += line
            return re.search(pattern, said)

        port = int(read_until(r"listening on port (\d+)")[1])
        self.path("proxy.toml").write_text(settings + 'on-store-down = "run-unprotected"\n')
        proxy.send_signal(signal.SIGHUP)
        read_until("old rules stay in force: fallback= does not go with")
        self.drop()
        self.assertEqual(self.post(port, "k")[0], 503)
        self.assertEqual(served, [])
        proxy.terminate()


class TwoPrograms(SqliteTable):
    """The old program ends what it began while workers of the new one race for the same keys."""

    def test_each_effect_happens_once(self):
        old_keys = [f"old-{number}" for number in range(12)]
        dead = old_keys[-1]  # Its holder never finishes.
        new_keys = [f"new-{number}" for number in range(6)]
        ledger = self.path("ledger")
        ledger.touch()
        self.sql("PRAGMA journal_mode = WAL")
        old = subprocess.Popen([sys.executable, "-c", OLD_PROGRAM, self.path("shop.db"), ledger, *old_keys], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(old.communicate)
        self.assertEqual(old.stdout.readline(), "claimed\n")
        self.assertEqual(self.once("run", "--key", "warm", "--scope", "pay", "--", "true").returncode, 0)
        conflicts = set()
        finished = threading.Event()

        def worker(key):
            """Calls until the key has ended, as a client does. The dead one's: until all others have."""
            while True:
                last = key != dead or finished.is_set()
                done = self.once("run", "--scope", "pay", "--key", key, "--", "sh", "-c", f"echo {key} >> {ledger}; echo new",
                                 text=True)
                if done.returncode == 0 or (key == dead and last):
                    return done
                self.assertEqual(done.returncode, 240, done.stderr)
                conflicts.add(key)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = {key: [pool.submit(worker, key) for _ in range(2)] for key in [*old_keys[:6], *new_keys]}
            harness.wait_until(lambda: conflicts, "a worker meets a row in progress")
            for key in old_keys[:-1]:
                old.stdin.write(key + "\n")
                old.stdin.flush()
                self.assertEqual(old.stdout.readline(), key + "\n")
            finished.set()
            answers |= {key: [pool.submit(worker, key) for _ in range(2)] for key in old_keys[6:]}
            for key, all_of_it in answers.items():
                for answer in all_of_it:
                    done = answer.result()
                    if key == dead:
                        self.expect(done, 240, stderr="the old program")
                    else:
                        self.expect(done, 0, stdout='{"by": "old"}' if key.startswith("old") else "new\n")
        self.assertEqual(sorted(ledger.read_text().split()), sorted([*old_keys[:-1], *new_keys]))
        # What the dead one left is decided as after any import, and then no look is needed.
        done = self.once("import", f"sqlite:{self.path('shop.db')}", self.store, "--table", "keys", "--preset", "article", "--key",
                         "id", "--scope", "pay", "--expired", "skip", "--json", text=True)
        self.assertEqual(json.loads(done.stdout)["unknown"], 1, done.stderr)
        self.assertEqual(json.loads(done.stdout)["already"], len(old_keys) - 1)
        self.expect(self.run_key(dead), 242)
        self.expect(self.once("resolve", "--scope", "pay", "--key", dead, "--as", "completed", "--reason", "looked"), 0)
        self.expect(self.run_key(dead), 0)


    def test_an_old_program_that_still_claims_runs_the_key_again(self):
        """What docs/import.md warns of: the old program does not read our store, so nothing here can stop it."""
        ledger = self.path("ledger")
        go = self.fifo("go")
        call = ("run", "--scope", "pay", "--key", "k", "--", "sh", "-c", f"echo new >> {ledger}; cat {go}; echo new")
        new = self.start(*call, text=True)
        harness.wait_until(ledger.exists, "the new program works, after its look")
        old = subprocess.Popen([sys.executable, "-c", OLD_PROGRAM, self.path("shop.db"), ledger, "k"], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(old.communicate)
        self.assertEqual(old.stdout.readline(), "claimed\n")
        old.stdin.write("k\n")
        old.stdin.flush()
        self.assertEqual(old.stdout.readline(), "k\n")
        go.write_text("")
        self.assertEqual(new.communicate()[0], "new\n")
        self.assertEqual(new.returncode, 0)
        self.assertEqual(ledger.read_text().split(), ["new", "k"])
        self.expect(self.once(*call, text=True), 0, stdout="new\n")  # Our record counts; the old row is not read.


class Dynamodb(States):
    def make_table(self):
        for name in [name for name in self.env if name.startswith("AWS_")]:
            del self.env[name]
        fake = subprocess.Popen([FAKE, "--until-eof", "--table", "keys:id"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        self.addCleanup(fake.communicate)
        self.env |= {"AWS_ENDPOINT_URL": fake.stdout.readline().strip(), "AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "a",
                     "AWS_SECRET_ACCESS_KEY": "b", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                     "AWS_EC2_METADATA_DISABLED": "true"}

    def place(self):
        if not self.relay:
            return {"from": "dynamodb://keys"}
        return {"from": f"dynamodb://keys?endpoint=http://127.0.0.1:{self.relay.port}"}

    def put(self, key, status, response=None, expiry=FAR_S):
        item = {"id": {"S": key}, "status": {"S": status}, "expiry": {"N": str(expiry)}}
        self.call("PutItem", Item=item if response is None else {**item, "response": {"S": response}})

    def call(self, operation, **body):
        urllib.request.urlopen(urllib.request.Request(
            self.env["AWS_ENDPOINT_URL"], json.dumps({"TableName": "keys", **body}).encode(),
            {"X-Amz-Target": f"DynamoDB_20120810.{operation}", "Content-Type": "application/x-amz-json-1.0"})).close()

    def drop(self):
        self.call("DeleteTable")

    def test_states(self):
        self.check_states()

    def test_doctor(self):
        self.check_doctor()

    def test_recovers(self):
        self.hang_by(urllib.parse.urlsplit(self.env["AWS_ENDPOINT_URL"]))

    def test_commands_on_tables_ignore_it(self):
        self.env["ONCE_STORE"] = f"dynamodb://records?fallback={self.path('old.toml')}"
        for command in ("create", "check"):
            done = self.once("table", command, text=True)
            self.assertIn("fallback= is ignored", done.stderr)
            self.assertIn(done.returncode, (0, 1), done.stderr)  # 1: what the fake's table lacks.

    def test_another_attribute_than_the_partition_key_is_refused(self):
        self.put("done", "COMPLETED", response="1")
        self.describe(key="status")
        self.expect(self.run_key("done"), 243, stderr="key schema")
        self.assertEqual(self.runs(), 0)


if os.environ.get("ONCE_TEST_POSTGRESQL"):
    class Postgresql(States):
        def setUp(self):
            self.server = os.environ["ONCE_TEST_POSTGRESQL"]
            super().setUp()

        def sql(self, text):
            subprocess.run(["psql", "-Xqv", "ON_ERROR_STOP=1", "-d", self.server, "-c", text], check=True)

        def make_table(self):
            self.schema = self.dir.name.replace("-", "_") + "_old"
            self.sql(f"CREATE SCHEMA {self.schema}; CREATE TABLE {self.schema}.keys "
                     "(id text PRIMARY KEY, status text, expiry bigint, response text)")

        def place(self):
            server = urllib.parse.urlsplit(self.server)
            if self.relay:
                server = server._replace(netloc=server.netloc.replace(f":{server.port}", f":{self.relay.port}"))
            return {"from": server.geturl(), "table": f"{self.schema}.keys"}

        def put(self, key, status, response=None, expiry=FAR_S):
            text = "NULL" if response is None else f"'{response}'"
            self.sql(f"INSERT INTO {self.schema}.keys VALUES ('{key}', '{status}', {expiry}, {text}) "
                     "ON CONFLICT (id) DO UPDATE SET status = excluded.status, response = excluded.response")

        def drop(self):
            self.sql(f"DROP TABLE {self.schema}.keys")

        def test_states(self):
            self.check_states()

        def test_doctor(self):
            self.check_doctor()

        def test_recovers(self):
            self.hang_by(urllib.parse.urlsplit(self.server))

        def test_a_key_that_the_type_does_not_have_refuses_this_call_alone(self):
            one = "0b7c1f3e-8d5a-4a57-9f0e-3d1c5b2a7e90"
            self.sql(f"ALTER TABLE {self.schema}.keys ALTER id TYPE uuid USING id::uuid")
            self.put(one, "COMPLETED", response="1")
            self.expect(self.run_key("order-17"), 244, stderr="the column's type has no such value")
            self.expect(self.run_key(one.upper()), 244, stderr="in another spelling")
            self.expect(self.run_key(one), 0, stdout='"1"')
            self.assertEqual(self.runs(), 0)


if __name__ == "__main__":
    harness.main()
