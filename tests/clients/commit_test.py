"""commit_test.py ONCE: results that the Python package commits with the work's own rows, in PostgreSQL, by psycopg and
psycopg2, in functions and coroutines."""
import asyncio
import concurrent.futures
import contextlib
import logging
import os
import pathlib
import subprocess
import sys
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENTS_PYTHON = subprocess.run([ROOT / "tools/python-tools", "clients"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
if sys.executable != CLIENTS_PYTHON:  # Which has the drivers.
    os.execv(CLIENTS_PYTHON, [CLIENTS_PYTHON, *sys.argv])
sys.path[:0] = [str(ROOT / folder) for folder in ("clients/python/src", "tests/apps", "tests/real_servers")]

import harness  # noqa: E402
import once_idempotency as oi  # noqa: E402
import postgresql  # noqa: E402
import psycopg  # noqa: E402
import psycopg2  # noqa: E402

SCHEMA = "pay%1"


class Broken:
    """A connection that loses the answer to COMMIT, or the request. Without an error it reports a COMMIT all the same."""

    def __init__(self, connection, is_done, error=psycopg.OperationalError("the connection is lost")):
        self.connection, self.is_done, self.error = connection, is_done, error
        self.cursor, self.rollback = connection.cursor, connection.rollback

    def commit(self):
        (self.connection.commit if self.is_done else self.connection.rollback)()
        if self.error is not None:
            raise self.error


def said(sqlstate):
    """An error as the database or a pooler sends it."""
    return psycopg.errors.lookup(sqlstate)(f"{sqlstate} is its word")


class Commit(harness.Case):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.server = cls.stack.enter_context(postgresql.running())
        cls.url = cls.server.database()
        cls.store_url = f"{cls.url}?allow_unsafe=1&schema={SCHEMA.replace('%', '%25')}"
        subprocess.run([harness.PROGRAM, "table", "create", "--store", cls.store_url], check=True, stdout=subprocess.DEVNULL)
        with psycopg.connect(cls.url) as connection:
            connection.execute("CREATE TABLE charges (id text, n int, UNIQUE (id, n) DEFERRABLE INITIALLY DEFERRED)")

    def setUp(self):
        super().setUp()
        self.env["ONCE_STORE"] = self.store_url
        self.scope = self._testMethodName
        server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertIn(b"listening", server.stderr.readline())
        self.client = oi.Once(server=f"unix:{self.path('s')}", timeout=harness.DEADLINE_S, schema=SCHEMA)
        self.addCleanup(self.client.close)
        self.query("DELETE FROM charges")

    def query(self, statement, *values):
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else None

    def rows(self, order):
        return self.query("SELECT count(*) FROM charges WHERE id = %s", order)[0][0]

    def begun(self, order, n=1, driver=psycopg):
        """A connection whose transaction has written a row."""
        connection = driver.connect(self.url)
        self.addCleanup(connection.close)
        connection.cursor().execute("INSERT INTO charges VALUES (%s, %s)", (order, n))
        return connection

    def charge(self, order, work, **options):
        return self.client.call(self.scope, order, lambda claim: work(claim, {"order": order, "attempt": claim.attempt}), **options)

    def commits(self, order, connection=None):
        return lambda claim, made: oi.commit(connection or self.begun(order), made)

    def test_rows_and_result_are_committed_together(self):
        for driver in (psycopg, psycopg2):
            order = driver.__name__
            for _ in range(3):
                got = self.charge(order, lambda claim, made: claim.commit(self.begun(order, driver=driver), made), retention="1h", on_lapse="hold")
                self.assertEqual((got, self.rows(order)), ({"order": order, "attempt": 1}, 1))
        # A claim under hold does not expire, and its record says nothing of the retention.
        ((hours,),) = self.query(f"""SELECT ((max(expires_at_ms) - extract(epoch FROM now()) * 1000) / 3600000)::float
                                 FROM "{SCHEMA.replace('%', '%%')}".records WHERE label = 'psycopg'""")
        self.assertAlmostEqual(hours, 1, delta=0.1)

    def test_a_connection_block_and_a_claim_block(self):
        def work(claim, made):
            with psycopg.connect(self.url) as connection:
                connection.execute("INSERT INTO charges VALUES ('block', 1)")
                return oi.commit(connection, made)

        self.assertEqual(self.charge("block", work), {"order": "block", "attempt": 1})
        self.assertEqual(self.charge("block", None), {"order": "block", "attempt": 1})
        self.assertEqual(self.rows("block"), 1)
        with self.client.claim("report", "day") as claim:
            self.assertEqual(claim.commit(self.begun("day"), 5), 5)
        with self.assertRaises(oi.Replayed) as replayed:
            with self.client.claim("report", "day"):
                self.fail("it was entered")
        self.assertEqual((replayed.exception.result, self.rows("day")), (5, 1))
        with self.assertRaises(oi.Replayed) as replayed:
            with self.client.claim("report", "doubt") as claim:
                claim.commit(Broken(self.begun("doubt"), True), 6)
        self.assertEqual((replayed.exception.result, self.rows("doubt")), (6, 1))

    def test_encoded_results(self):
        @self.client.idempotent(key="{order}", scope="encoded", encode=lambda made: [made], decode=lambda kept: kept[0])
        def charge(order):
            return oi.commit(self.begun(order), {"order": order})

        self.assertEqual([charge("a"), charge("a")], [{"order": "a"}] * 2)
        self.assertEqual(self.rows("a"), 1)

    def test_failed_work_commits_nothing(self):
        def fails(claim, made):
            with psycopg.connect(self.url) as connection:
                connection.execute("INSERT INTO charges VALUES ('a', 1)")
                raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            self.charge("a", fails)
        self.assertEqual(self.rows("a"), 0)
        self.assertEqual(self.charge("a", self.commits("a")), {"order": "a", "attempt": 1})

    def test_a_lost_claim_commits_nothing(self):
        def work(claim, made):
            connection = self.begun("b")
            self.expect(self.once("release", "--scope", self.scope, "--key", "b", "--force", "--reason", "by hand"), 0)
            return claim.commit(connection, made)

        with self.assertRaises(oi.ClaimLost):
            self.charge("b", work)
        self.assertEqual(self.rows("b"), 0)

    def test_a_transaction_is_repeated_in_one_claim(self):
        self.query("INSERT INTO charges VALUES ('c', 1)")
        tries = []

        def work(claim, made):
            for n in (1, 2, 3):  # The first one fails in COMMIT, the second one in the finish.
                tries.append(n)
                connection = self.begun("c", n)
                if n == 2:
                    connection.execute("SAVEPOINT one")
                try:
                    return claim.commit(connection, made)
                except psycopg.Error as error:
                    self.assertTrue(error.sqlstate, error)

        self.assertEqual(self.charge("c", work), {"order": "c", "attempt": 1})
        self.assertEqual((tries, self.rows("c")), ([1, 2, 3], 2))

    def test_a_doubtful_commit_is_found_out(self):
        for fate in ("release", "fail", "hold"):
            got = self.charge(fate, self.commits(fate, Broken(self.begun(fate), True)), on_error=fate)
            self.assertEqual((got, self.rows(fate)), ({"order": fate, "attempt": 1}, 1))
        with self.assertRaises(psycopg.OperationalError):
            self.charge("e", self.commits("e", Broken(self.begun("e"), False)))
        self.assertEqual(self.rows("e"), 0)

        def repeats(claim, made):  # Its first try was committed.
            with self.assertRaises(psycopg.OperationalError):
                claim.commit(Broken(self.begun("e"), True), made)
            return claim.commit(self.begun("e", 2), "other")

        self.assertEqual(self.charge("e", repeats), {"order": "e", "attempt": 1})
        self.assertEqual(self.rows("e"), 1)

        def is_late(claim, made):  # Its first try was not.
            with self.assertRaises(psycopg.OperationalError):
                claim.commit(Broken(self.begun("late"), False), made)
            return claim.commit(self.begun("late", 2), made)

        self.assertEqual(self.charge("late", is_late), {"order": "late", "attempt": 1})
        self.assertEqual(self.rows("late"), 1)

    def test_a_poolers_error_of_the_commit_is_a_doubt(self):
        for state in ("08P01", "57P01", "58000", "XX000", "40003"):
            self.assertEqual(self.charge(state, self.commits(state, Broken(self.begun(state), True, said(state)))),
                             {"order": state, "attempt": 1})
            self.assertEqual(self.rows(state), 1)

    def test_a_backend_that_is_killed_as_it_commits(self):
        """Its pooler reports that, and the transaction is rolled back."""
        self.query("""CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END';
                      CREATE TABLE waiting (); CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON waiting DEFERRABLE INITIALLY
                      DEFERRED FOR EACH ROW EXECUTE FUNCTION waits()""")
        waits = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'advisory'"
        with psycopg.connect(self.url) as holding, concurrent.futures.ThreadPoolExecutor() as threads:
            holding.execute("SELECT pg_advisory_xact_lock(7)")
            pooled = psycopg.connect(self.server.pgbouncer().url(self.url.rpartition("/")[2]))
            self.addCleanup(pooled.close)
            pooled.execute("INSERT INTO charges VALUES ('m', 1)")
            pooled.execute("INSERT INTO waiting DEFAULT VALUES")
            charging = threads.submit(self.charge, "m", self.commits("m", pooled))
            harness.wait_until(lambda: self.query(waits), "the backend waits in COMMIT")
            with self.assertRaises(psycopg.Error) as raised:
                charging.result()
        self.assertIn(raised.exception.sqlstate, (None, "08P01"))  # The driver may see first that the pooler hangs up.
        self.assertEqual(self.rows("m"), 0)
        self.assertEqual(self.charge("m", self.commits("m"), wait=0), {"order": "m", "attempt": 1})

    def test_a_commit_that_rolled_back_in_silence_is_found_out(self):
        with self.assertRaisesRegex(oi.OnceError, "reported a COMMIT that rolled back"):
            self.charge("i", self.commits("i", Broken(self.begun("i"), False, None)))
        self.assertEqual(self.charge("i", self.commits("i")), {"order": "i", "attempt": 1})
        self.assertEqual(self.rows("i"), 1)

    def test_work_that_goes_on_in_doubt_gets_the_result(self):
        """Whatever it meets then: its claim is finished."""
        def goes_on(meets):
            def work(claim, made):
                with self.assertRaises(psycopg.OperationalError):
                    claim.commit(Broken(self.begun("j"), True), made)
                meets(claim)
                self.fail("it went on")

            return work

        def fails(claim):
            raise oi.ClaimLost("as a renewal reports it")

        for meets in (lambda claim: claim.step("after", lambda: 1), fails):
            self.query("DELETE FROM charges")
            self.scope += "-again"
            self.assertEqual(self.charge("j", goes_on(meets)), {"order": "j", "attempt": 1})
            self.assertEqual(self.rows("j"), 1)

    def test_isolation(self):
        for level in (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE):
            order, tries = level.name, []

            def begun(n=1):
                connection = psycopg.connect(self.url)
                self.addCleanup(connection.close)
                connection.isolation_level = level
                connection.execute("INSERT INTO charges VALUES (%s, %s)", (order, n))  # Its snapshot is of now.
                return connection

            def work(claim, made):
                for number in (1, 2):
                    tries.append(number)
                    connection = begun()
                    if number == 1:
                        claim.step("written", lambda: 1)  # Since the snapshot, as a renewal is.
                    try:
                        return claim.commit(connection, made)
                    except psycopg.errors.SerializationFailure:
                        pass

            self.assertEqual(self.charge(order, work), {"order": order, "attempt": 1})
            self.assertEqual((tries, self.rows(order)), ([1, 2], 1))
            early = begun(2)  # Before the claim, which it does not see. The next call need not wait for a lease.
            with self.assertRaisesRegex(oi.ClaimLost, "repeatable read"):
                self.charge(f"{order}-early", self.commits("", early))
            self.assertEqual(self.charge(f"{order}-early", lambda claim, made: claim.commit(begun(3), made), wait=0), {"order": f"{order}-early", "attempt": 1})

    def test_what_the_connection_cannot_do_is_said(self):
        elsewhere = psycopg.connect(self.url, dbname="template1")
        self.addCleanup(elsewhere.close)
        with self.assertRaisesRegex(oi.OnceError, "must be the store's"):
            self.charge("k", self.commits("k", elsewhere))
        self.query("DO $$ BEGIN CREATE ROLE clerk; EXCEPTION WHEN duplicate_object THEN END $$")
        clerk = self.begun("k")
        clerk.execute("SET ROLE clerk")
        with self.assertRaisesRegex(oi.OnceError, "table create --role"):
            self.charge("k", self.commits("k", clerk))
        aborted = self.begun("k")
        with self.assertRaises(psycopg.errors.DivisionByZero):
            aborted.execute("SELECT 1 / 0")
        with self.assertRaises(psycopg.errors.InFailedSqlTransaction):
            self.charge("k", self.commits("k", aborted))
        with self.assertRaisesRegex(TypeError, "driver_connection"):
            self.charge("k", self.commits("k", self.client))

        async def asynchronous():
            async with await psycopg.AsyncConnection.connect(self.url) as connection:
                await connection.execute("INSERT INTO charges VALUES ('k', 1)")
                with self.assertRaisesRegex(TypeError, "commit_async"):
                    self.charge("k", self.commits("k", connection))
            with self.assertRaisesRegex(TypeError, "commit"):
                await self.client.call_async(self.scope, "k", lambda claim: claim.commit(self.begun("k-2"), 1))
            await self.client.aclose()

        asyncio.run(asynchronous())
        self.query("DELETE FROM charges WHERE id = 'k'")  # The block above has committed its row by itself.
        self.assertEqual(self.charge("k", self.commits("k")), {"order": "k", "attempt": 1})
        self.assertEqual(self.rows("k"), 1)

    def test_work_that_swallows_a_doubt_completes_nothing(self):
        def swallows(claim, made):
            with self.assertRaises(psycopg.OperationalError):
                claim.commit(Broken(self.begun("f"), claim.attempt == 0), made)
            return "swallowed"

        with self.assertRaisesRegex(oi.Unrecorded, "may not have been committed"):
            self.charge("f", swallows)
        self.assertEqual(self.charge("f", self.commits("f")), {"order": "f", "attempt": 1})
        self.assertEqual(self.rows("f"), 1)

    def test_what_cannot_commit_is_refused(self):
        for result, kind in ((object(), TypeError), ("x" * 2_100_000, oi.TooLarge)):
            with self.assertRaises(kind):
                self.charge("g", lambda claim, made: claim.commit(self.begun("g"), result))
        autocommit = psycopg.connect(self.url, autocommit=True)
        self.addCleanup(autocommit.close)
        with self.assertRaisesRegex(oi.OnceError, "autocommit"):
            self.charge("g", self.commits("g", autocommit))

        def in_a_block(claim, made):
            with psycopg.connect(self.url) as connection, connection.transaction():
                connection.execute("INSERT INTO charges VALUES ('g', 1)")
                return oi.commit(connection, made)

        with self.assertRaisesRegex(psycopg.ProgrammingError, "Transaction"):
            self.charge("g", in_a_block)
        with self.assertRaisesRegex(oi.OnceError, "no claim here"):
            oi.commit(self.begun("g"), 1)
        self.assertEqual(self.rows("g"), 0)
        disabled = self.client.idempotent(key="{order}", scope="disabled")(lambda order: oi.commit(self.begun(order), order))
        with unittest.mock.patch.dict(os.environ, ONCE_DISABLED="1"):
            self.assertEqual(disabled("g"), "g")
        self.assertEqual(self.rows("g"), 1)

    def test_a_renewal_that_meets_the_commit_says_nothing(self):
        with self.assertNoLogs("once_idempotency", logging.WARNING):
            def work(claim, made):
                renewing = oi._protocol.renewal(claim._granted, 5.0)
                sent = next(renewing)  # It is on its way.
                claim.commit(self.begun("h"), made)
                with self.assertRaises(StopIteration) as ended:
                    renewing.send(self.client._blocking.send(sent))
                self.assertIsNone(ended.exception.value)
                return made

            self.assertEqual(self.charge("h", work), {"order": "h", "attempt": 1})

    def test_coroutines(self):
        async def begun(order, n=1):
            connection = await psycopg.AsyncConnection.connect(self.url)
            await connection.execute("INSERT INTO charges VALUES (%s, %s)", (order, n))
            return connection

        async def charge(order, work):
            async def run(claim):
                async with await begun(order) as connection:
                    return await work(claim, connection, {"order": order, "attempt": claim.attempt})

            return await self.client.call_async(self.scope, order, run)

        async def commits(claim, connection, made):
            return await oi.commit_async(connection, made)

        async def is_lost(claim, connection, made):
            released = await asyncio.to_thread(self.once, "release", "--scope", self.scope, "--key", "b", "--force", "--reason", "by hand")
            self.expect(released, 0)
            return await claim.commit(connection, made)

        async def doubts(claim, connection, made):
            committed, lost = connection.commit, psycopg.OperationalError("the connection is lost")

            async def commit():
                await committed()
                raise lost

            with unittest.mock.patch.object(connection, "commit", commit):
                return await claim.commit(connection, made)

        async def cancelled(claim, connection, made):
            """While it commits, and again as it rolls back. The work swallows both."""
            committed, reached = connection.commit, [asyncio.Event(), asyncio.Event()]

            async def waits(number):
                reached[number].set()
                await asyncio.Event().wait()

            async def commit():
                await committed()
                await waits(0)

            with unittest.mock.patch.multiple(connection, commit=commit, rollback=lambda: waits(1)):
                task = asyncio.ensure_future(claim.commit(connection, made))
                for one in reached:
                    await one.wait()
                    task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
            return "swallowed"

        async def main():
            self.assertEqual([await charge("e", cancelled) for _ in range(2)], [{"order": "e", "attempt": 1}] * 2)
            self.assertEqual([await charge("a", commits) for _ in range(2)], [{"order": "a", "attempt": 1}] * 2)
            with self.assertRaises(oi.ClaimLost):
                await charge("b", is_lost)
            self.assertEqual([await charge("c", doubts) for _ in range(2)], [{"order": "c", "attempt": 1}] * 2)
            with self.assertRaisesRegex(oi.OnceError, "no claim here"):
                async with await begun("d") as connection:
                    await oi.commit_async(connection, 1)
            await self.client.aclose()

        asyncio.run(main())
        self.assertEqual([self.rows(order) for order in "abcde"], [1, 0, 1, 0, 1])


if __name__ == "__main__":
    harness.main()
