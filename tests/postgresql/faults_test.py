"""faults_test.py POSTGRESQL_STORM: a PostgreSQL store under load while its server is killed, cut off, failed over or
held up. postgresql_storm has the verdict: nothing that was acknowledged is lost, nothing that was refused is there."""
import contextlib
import random
import subprocess
import time

import storming
from storming import DEADLINE_S, StormCase, postgresql
from cutting_proxy import TO_CLIENT, TO_SERVER, CuttingProxy


class Faults(StormCase):
    @contextlib.contextmanager
    def write_under_way(self):
        """For certain, however slow the storm is: it waits for a lock, until this ends."""
        lock = "BEGIN; LOCK once.records IN EXCLUSIVE MODE; SELECT pg_sleep(600)"  # Reads go on.
        locked = subprocess.Popen(["psql", "-qX", "-d", self.url, "-c", lock], env=postgresql.environment(),
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        waiting = "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%write_1%' AND wait_event_type = 'Lock'"
        try:
            postgresql.wait_for(lambda: self.server.psql(waiting, self.name).strip() == "t", "a write waits for the lock",
                                limit_s=DEADLINE_S)
            yield
        finally:
            with contextlib.suppress(RuntimeError):  # The server was killed.
                self.server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                                 "AND query LIKE '%LOCK once.records IN EXCLUSIVE MODE; SELECT pg_sleep(600)'")
            locked.wait(DEADLINE_S)

    def test_server_killed_and_restarted(self):
        storm = self.storm(self.url)
        for _ in range(4):
            storm.goes_on()
            self.server.kill()
            self.server.restart()
        storm.goes_on()
        with self.write_under_way():
            self.server.kill()
        self.server.restart()
        storm.goes_on()
        counted = storm.verdict()
        self.assertGreater(counted["in_doubt"], 0)
        self.assertGreater(counted["acknowledged"], 1000)

    def test_server_stopped_and_restarted(self):
        storm = self.storm(self.url)
        for mode in ("fast", "immediate"):
            storm.goes_on()
            self.server.restart(mode)
        storm.goes_on()
        storm.verdict()

    def test_connection_cut_at_each_message(self):
        with CuttingProxy(self.server.port) as proxy:
            storm = self.storm(self.through(proxy.port))
            storm.goes_on()
            for messages in range(1, 60):
                for way in (TO_SERVER, TO_CLIENT):
                    proxy.cut(way, messages=messages, reset=messages % 2 == 0)
            proxy.cut_all()
            postgresql.wait_for(lambda: not proxy._cuts, "every cut was given to a connection", limit_s=DEADLINE_S)
            storm.goes_on(2)
            counted = storm.verdict()
            cut = [connection for connection in proxy.connections if connection.was_cut]
            self.assertGreater(len(cut), 50)
            # The commit that was cut off after it had happened: the one that nobody may take for "not written".
            after_sync = [c for c in cut if c.cut.direction == TO_SERVER and c.messages[TO_SERVER][-1:] == [b"S"]]
            self.assertGreater(len(after_sync), 0)
        self.assertGreater(counted["in_doubt"], 0)

    def test_partition(self):
        with CuttingProxy(self.server.port) as proxy:
            storm = self.storm(self.through(proxy.port), timeout_ms=1_000)
            for _ in range(3):
                storm.goes_on()
                proxy.hold()
                time.sleep(1.5)  # Longer than an operation may take: how long the partition lasts, no guess.
                proxy.let_go()
            storm.goes_on()
            with self.write_under_way():
                proxy.hold()
                storm.doubts()
            proxy.let_go()
            storm.goes_on()
            counted = storm.verdict()
        self.assertGreater(counted["in_doubt"], 0)

    def test_pooler_restarted(self):
        pooler = self.server.pgbouncer()
        storm = self.storm(pooler.url(self.name))
        for _ in range(3):
            storm.goes_on()
            pooler.restart()
        storm.goes_on()
        storm.verdict()

    def test_sessions_ended_cancelled_and_locked_out(self):
        """What an administrator does, at random: ends sessions, cancels statements, locks rows and the table."""
        self.server.psql(f"ALTER DATABASE {self.name} SET statement_timeout = '300ms'", self.name)
        storm = self.storm(self.url)
        storm.goes_on()
        chance = random.Random(18)
        # Neither that limit nor a deadlock ends what the administrator does: it is the store's that is to be cut short.
        patient = "SET statement_timeout = 0; SET deadlock_timeout = '1h'; BEGIN;"
        of_store = f"FROM pg_stat_activity WHERE application_name = 'once' AND datname = '{self.name}'"
        for _ in range(40):
            what = chance.randrange(4)
            if what == 0:
                self.server.psql(f"SELECT pg_terminate_backend(pid) {of_store}", self.name)
            elif what == 1:
                self.server.psql(f"SELECT pg_cancel_backend(pid) {of_store}", self.name)
            elif what == 2:
                self.server.psql(f"{patient} SELECT FROM once.records FOR UPDATE; SELECT pg_sleep(0.2); COMMIT", self.name)
            else:
                self.server.psql(f"{patient} LOCK once.records IN EXCLUSIVE MODE; SELECT pg_sleep(0.1); COMMIT", self.name)
        storm.goes_on()
        counted = storm.verdict()
        self.assertGreater(counted["acknowledged"], 400)

    def test_failover_to_a_synchronous_standby_loses_nothing(self):
        standby = self.server.standby(synchronous=True)
        url = standby.multi_host_url(self.name)
        storm = self.storm(url)
        storm.goes_on()
        self.server.kill()
        standby.promote()
        storm.goes_on(2)
        counted = storm.verdict()
        self.assertGreater(counted["acknowledged"], 400)

    def test_a_connection_that_is_left_at_the_old_server_is_not_used(self):
        """A virtual address moves to the promoted standby, and the old primary runs on. The connection for writes ended,
        so it goes to the new one; the connection for reads is still open, and leads to the old one."""
        with CuttingProxy(self.server.port) as address:
            standby = self.server.standby(synchronous=True)
            storm = self.storm(self.through(address.port))
            storm.goes_on()
            address.refuse()
            self.server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%write_1%' "
                             "AND pid <> pg_backend_pid()", self.name)
            standby.replicated()
            reads = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'once' AND query LIKE '%get_1%'"
            self.assertEqual(self.server.psql(reads, self.name), "1")
            standby.promote()
            address.lead_to(standby.port)
            address.refuse(False)
            storm.goes_on(2)
            # Before the storm ends, with which all connections do. That of one which was closed takes a moment to end.
            postgresql.wait_for(lambda: self.server.psql(reads, self.name) == "0", "nothing reads from the old server")
            counted = storm.verdict()
        self.assertGreater(counted["acknowledged"], 400)

    def test_goes_back_to_no_server_that_was_replaced(self):
        """Both hosts of the URL take writes, as nobody has stopped the old primary. It closes connections for a while,
        which makes libpq try no other host; then the new primary does so, and the old one may be asked."""
        standby = self.server.standby(synchronous=True)
        with CuttingProxy(self.server.port) as old, CuttingProxy(standby.port) as new:
            storm = self.storm(f"postgresql://postgres@127.0.0.1:{old.port},127.0.0.1:{new.port}/{self.name}")
            storm.goes_on()
            old.refuse()
            old.cut_all()
            standby.replicated()
            standby.promote()
            storm.goes_on()
            asked = len(old.connections)
            old.refuse(False)
            new.refuse()
            new.cut_all()
            postgresql.wait_for(lambda: len(old.connections) >= asked + 3, "the old primary was asked, and asked again")
            new.refuse(False)
            storm.goes_on()
            storm.verdict()

    def test_failover_to_an_asynchronous_standby_may_lose_and_goes_on(self):
        """docs/stores/postgresql.md says so. With a link that is held, it is certain."""
        with CuttingProxy(self.server.port) as link:
            standby = self.server.standby(synchronous=False, through=link.port)
            url = standby.multi_host_url(self.name)
            storm = self.storm(url)
            storm.goes_on()
            link.hold()
            storm.goes_on(2)  # 200 of them after that.
            self.server.kill()
            link.cut_all()
            link.let_go()
            standby.promote()
            storm.goes_on()
            with self.assertRaisesRegex(AssertionError, "was acknowledged, and is there 0 times"):
                storm.verdict()


if __name__ == "__main__":
    storming.main()
