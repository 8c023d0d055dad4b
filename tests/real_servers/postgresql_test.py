"""The PostgreSQL of the tests: it starts, answers, crashes, follows, and nothing of it is left when a test ends, however."""
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import unittest

import postgresql
from cutting_proxy import TO_CLIENT, TO_SERVER, CuttingProxy

WITH_POSTGRESQL = pathlib.Path(__file__).with_name("with-postgresql")
LIMIT_S = 60


def processes_in(folder):
    """Those that work there, and their guard, each with the words of its command. PostgreSQL's processes all have their
    data folder as their own."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if os.readlink(process / "cwd").startswith(str(folder)) or os.fsencode(folder) in words:
                found[int(process.name)] = words
    return found


def shared_memory():
    listed = subprocess.run(["ipcs", "-m"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return set(re.findall(r"^0x\w+\s+(\d+)", listed, re.MULTILINE))


class Case(unittest.TestCase):
    def assert_nothing_left(self, folder, of_memory=()):
        postgresql.wait_for(lambda: not processes_in(folder), f"no process of {folder}")
        postgresql.wait_for(lambda: not folder.exists(), f"no folder {folder}")
        self.assertFalse(shared_memory() & set(of_memory))

    def server(self, **options):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        return stack.enter_context(postgresql.running(**options))

    def proxy(self, port):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        return stack.enter_context(CuttingProxy(port))


class WithPostgreSQL(Case):
    def run_with(self, *arguments, script, **environment):
        return subprocess.run(
            [WITH_POSTGRESQL, *arguments, "bash", "-c", script], env=os.environ | environment, timeout=LIMIT_S,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
        )

    def test_runs_the_command_with_an_empty_database_and_exits_as_it_does(self):
        done = self.run_with(
            "--set", "max_connections=17",
            script='psql -XAt -d "$ONCE_TEST_POSTGRESQL" -c "SHOW data_directory" -c "SHOW max_connections" '
                   '-c "SELECT count(*) FROM pg_class WHERE relnamespace = \'public\'::regnamespace" '
                   '-c "SELECT current_database() = \'postgres\'"; exit 7',
            PGHOST="nowhere.invalid", PGDATABASE="another",
        )
        self.assertEqual(done.returncode, 7, done.stderr)
        data, connections, relations, is_default = done.stdout.split()
        self.assertEqual([connections, relations, is_default], ["17", "0", "f"])
        self.assertEqual(done.stderr, "")
        self.assert_nothing_left(pathlib.Path(data).parent)

    def test_says_what_a_server_that_does_not_start_said(self):
        done = self.run_with("--set", "max_connections=none", script="exit 0")
        self.assertEqual(done.returncode, 1)
        self.assertIn('invalid value for parameter "max_connections": "none"', done.stderr)

    def test_gives_a_bouncer_and_a_standby(self):
        done = self.run_with(
            "--pgbouncer", "--standby", "sync",
            script='psql -XAt -d "$ONCE_TEST_POSTGRESQL" -c "SELECT sync_state FROM pg_stat_replication" && '
                   'psql -XAt -d "${ONCE_TEST_POSTGRESQL%/*}/pgbouncer" -c "SHOW CONFIG" | grep "^pool_mode" && '
                   'psql -XAt -d "$ONCE_TEST_POSTGRESQL_STANDBY" -c "SELECT pg_is_in_recovery(), current_database()" && '
                   'psql -XAt -d "$ONCE_TEST_POSTGRESQL_SERVER" -c "SELECT pg_is_in_recovery(), current_database()"',
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        sync, mode, standby, primary = done.stdout.split("\n")[:4]
        self.assertEqual(sync, "sync")
        self.assertEqual(mode.split("|")[:2], ["pool_mode", "transaction"])
        self.assertEqual([standby, primary], ["t|once_1", "f|once_1"])

    def interrupted(self, end):
        """A run that is ended from outside while its database is in use."""
        run = subprocess.Popen(
            [WITH_POSTGRESQL, "--pgbouncer", "bash", "-c",
             'psql -XAt -d "$ONCE_TEST_POSTGRESQL_SERVER" -c "SHOW data_directory"; '
             'exec psql -XAt -d "$ONCE_TEST_POSTGRESQL" -c "SELECT pg_sleep(600)"'],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )
        with run, contextlib.ExitStack() as stack:
            stack.callback(run.kill)  # So that whatever fails below is told, instead of waited for.
            folder = pathlib.Path(run.stdout.readline().strip()).parent
            words = (folder / "primary/postmaster.pid").read_text().splitlines()[6].split()
            self.assertIn(words[1], shared_memory())
            end(run, folder)
            run.wait(LIMIT_S)
            postgresql.wait_for(lambda: not processes_in(folder), "no process")
            # The command held the other end of the pipe, unless it has ended too.
            self.assertEqual(run.stdout.read(), "")
            return folder, words[1]

    def test_nothing_is_left_after_an_interruption(self):
        ends = {
            "Ctrl-C": lambda run, _: os.killpg(run.pid, signal.SIGINT),
            "SIGTERM": lambda run, _: run.send_signal(signal.SIGTERM),
            "kill -9": lambda run, _: run.send_signal(signal.SIGKILL),
            "kill -9 of the group": lambda run, _: os.killpg(run.pid, signal.SIGKILL),
        }
        for name, end in ends.items():
            with self.subTest(name):
                folder, memory = self.interrupted(end)
                self.assert_nothing_left(folder, [memory])

    def test_no_process_is_left_when_the_guard_is_killed(self):
        def kill_guard(_, folder):
            [marked] = [pid for pid, words in processes_in(folder).items() if any(b"guard.py" in word for word in words)]
            os.kill(marked, signal.SIGKILL)

        folder, memory = self.interrupted(kill_guard)
        self.assertNotIn(memory, shared_memory())
        subprocess.run(["rm", "-r", folder], check=True)


class Server(Case):
    def test_is_unprivileged_and_its_sessions_need_no_password(self):
        server = self.server()
        owner = pathlib.Path(f"/proc/{server.process.pid}").stat().st_uid
        self.assertNotEqual(owner, 0)
        self.assertEqual(server.psql("SELECT usesuper FROM pg_user WHERE usename = current_user"), "t")
        server.psql("CREATE ROLE worker LOGIN")
        self.assertEqual(server.psql("SELECT current_user", user="worker"), "worker")
        self.assertEqual(server.pgbouncer().psql("SELECT current_user", user="worker"), "worker")
        with self.assertRaisesRegex(RuntimeError, 'relation "nothing" does not exist'):
            server.psql("SELECT * FROM nothing")

    def test_a_killed_one_keeps_what_it_acknowledged_and_its_port(self):
        server = self.server()
        server.psql("CREATE TABLE kept (number int)")
        acknowledged = []
        ended = threading.Event()

        def load():
            with contextlib.suppress(RuntimeError):
                for number in range(100_000):
                    server.psql(f"INSERT INTO kept VALUES ({number})")
                    acknowledged.append(number)
            ended.set()

        thread = threading.Thread(target=load)
        thread.start()
        postgresql.wait_for(lambda: len(acknowledged) > 5, "some rows")
        port = server.port
        server.kill()
        self.assertEqual(processes_in(server.folder), {})
        self.assertTrue(ended.wait(LIMIT_S))
        thread.join()
        server.restart()
        self.assertEqual(server.port, port)
        there = [int(line) for line in server.psql("SELECT number FROM kept ORDER BY number").split()]
        self.assertEqual(there[: len(acknowledged)], acknowledged)
        self.assertIn("database system was not properly shut down", server.log())

    def test_nothing_is_left_of_a_killed_one(self):
        with postgresql.running() as server:
            folder = server.folder.parent
            memory = (server.folder / "postmaster.pid").read_text().splitlines()[6].split()[1]
            self.assertIn(memory, shared_memory())
            server.kill()
            self.assertIn(memory, shared_memory())  # As after a crash; a restart would take it.
        self.assert_nothing_left(folder, [memory])

    def test_stops_and_restarts(self):
        server = self.server()
        database = server.database().rsplit("/", 1)[1]
        server.stop()
        with self.assertRaisesRegex(RuntimeError, "Connection refused"):
            server.psql("SELECT 1")
        server.configure(work_mem="5MB")
        server.restart()
        self.assertEqual(server.psql("SHOW work_mem", database), "5MB")

    def test_counts_what_happens_to_a_table(self):
        server = self.server()
        before = server.wal_position()
        server.psql("CREATE TABLE counted (number int primary key, word text) WITH (fillfactor = 50);"
                    "INSERT INTO counted SELECT number, 'a' FROM generate_series(1, 10) number;"
                    "UPDATE counted SET word = 'b'")
        found = postgresql.wait_for(
            lambda: (counts := server.table_statistics("postgres", "counted"))["n_tup_upd"] and counts, "counts")
        self.assertEqual([found["n_tup_ins"], found["n_tup_upd"], found["n_tup_hot_upd"]], [10, 10, 10])
        self.assertGreater(server.wal_position(), before + 1000)


class Standby(Case):
    def test_an_asynchronous_one_follows_and_is_promoted(self):
        server = self.server()
        server.psql("CREATE TABLE moved (number int)")
        standby = server.standby(synchronous=False)
        server.psql("INSERT INTO moved VALUES (1)")
        standby.replicated()
        self.assertEqual(standby.psql("SELECT number FROM moved"), "1")
        with self.assertRaisesRegex(RuntimeError, "read-only transaction"):
            standby.psql("INSERT INTO moved VALUES (2)")
        server.kill()
        standby.promote()
        done = subprocess.run(["psql", "-XAtq", "-d", standby.multi_host_url(), "-c", "INSERT INTO moved VALUES (3)",
                               "-c", "SELECT array_agg(number) FROM moved"],
                              check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
        self.assertEqual(done.stdout, "{1,3}\n")

    def test_a_commit_waits_for_a_synchronous_one(self):
        server = self.server()
        server.psql("CREATE TABLE moved (number int)")
        proxy = self.proxy(server.port)
        standby = server.standby(synchronous=True, through=proxy.port)
        proxy.hold()
        writer = subprocess.Popen(["psql", "-XAtq", "-d", server.url(), "-c", "INSERT INTO moved VALUES (1)"])
        with writer:
            postgresql.wait_for(
                lambda: server.psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1",
                "the commit waits")
            self.assertIsNone(writer.poll())
            self.assertEqual(server.psql("SELECT count(*) FROM moved"), "0")
            proxy.let_go()
            self.assertEqual(writer.wait(LIMIT_S), 0)
        standby.replicated()
        self.assertEqual(standby.psql("SELECT count(*) FROM moved"), "1")


class Bouncer(Case):
    def test_shares_one_session_between_transactions_and_restarts(self):
        server = self.server()
        bouncer = server.pgbouncer(default_pool_size=1)
        first = bouncer.psql("SELECT pg_backend_pid()")
        self.assertEqual(bouncer.psql("SELECT pg_backend_pid()"), first)
        bouncer.kill()
        with self.assertRaisesRegex(RuntimeError, "Connection refused"):
            bouncer.psql("SELECT 1")
        bouncer.restart()
        self.assertEqual(bouncer.psql("SELECT 1"), "1")
        bouncer.restart()
        self.assertEqual(bouncer.psql("SELECT 1"), "1")


class Proxy(Case):
    """The same call of psql through the proxy, cut at each place in turn."""

    def call(self, proxy):
        """psql's status. One statement, so one message to the server after the start."""
        done = subprocess.run(
            ["psql", "-XAtq", "-d", f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?connect_timeout=30",
             "-c", "INSERT INTO cut VALUES (1)"], env=postgresql.environment(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=LIMIT_S, check=False,
        )
        for connection in proxy.connections:
            connection.wait()
        return done.returncode

    def setUp(self):
        self.postgres = self.server()
        self.postgres.psql("CREATE TABLE cut (number int)")

    def rows(self):
        return int(self.postgres.psql("SELECT count(*) FROM cut"))

    def test_counts_messages_and_bytes(self):
        proxy = self.proxy(self.postgres.port)
        self.assertEqual(self.call(proxy), 0)
        counted = proxy.connections[0]
        # SSLRequest, start-up message, Query, Terminate; of the server: no TLS, authenticated, …, complete, ready.
        self.assertEqual(counted.messages[TO_SERVER], [b"", b"", b"Q", b"X"])
        answers = counted.messages[TO_CLIENT]
        self.assertEqual([answers[0], answers[1], answers[-2:]], [b"", b"R", [b"C", b"Z"]])
        self.assertGreater(counted.bytes[TO_CLIENT], 100)

    def test_cuts_after_each_message_of_the_server(self):
        proxy = self.proxy(self.postgres.port)
        self.call(proxy)
        answers = proxy.connections[0].messages[TO_CLIENT]
        written = 1
        for count in range(1, len(answers)):  # All but the last: then nothing is missing.
            proxy.cut(TO_CLIENT, messages=count, reset=count % 2 == 0)
            self.assertNotEqual(self.call(proxy), 0, count)
            self.assertEqual(len(proxy.connections[-1].messages[TO_CLIENT]), count)
            lost_answer = answers[count - 1] == b"C"  # Committed, and only the end of the answer is missing.
            written += lost_answer
            self.assertEqual(self.rows(), written, f"after {count} of {answers}")

    def test_cuts_before_and_after_the_statement(self):
        proxy = self.proxy(self.postgres.port)
        self.call(proxy)
        before = proxy.connections[0]
        statement_ends = before.bytes[TO_SERVER] - 5  # Terminate has five bytes.
        proxy.cut(TO_SERVER, bytes=statement_ends - 1)
        self.assertNotEqual(self.call(proxy), 0)
        self.assertEqual(self.rows(), 1)
        # The whole statement arrives; whether its answer gets out is not certain, that it was carried out is.
        proxy.cut(TO_SERVER, messages=1, kind=b"Q", hold=True)
        held = subprocess.Popen(
            ["psql", "-XAtq", "-d", f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", "-c",
             "INSERT INTO cut VALUES (1)"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with held:
            postgresql.wait_for(lambda: self.rows() == 2, "the statement was carried out")
            self.assertIsNone(held.poll())
            held.kill()

    def test_refuses_holds_and_resets(self):
        proxy = self.proxy(self.postgres.port)
        proxy.refuse()
        self.assertNotEqual(self.call(proxy), 0)
        proxy.refuse(False)
        proxy.delay_s = 0.001
        self.assertEqual(self.call(proxy), 0)
        proxy.hold()
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.sendall(bytes([0, 0, 0, 8]) + (80877103).to_bytes(4, "big"))
            client.settimeout(LIMIT_S)
            postgresql.wait_for(lambda: len(proxy.connections) == 2, "the proxy has the connection")
            proxy.let_go()
            self.assertEqual(client.recv(1), b"N")
            proxy.cut_all()
            with self.assertRaises(ConnectionResetError):
                client.recv(1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
