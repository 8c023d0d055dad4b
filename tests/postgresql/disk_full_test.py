"""disk_full_test.py POSTGRESQL_STORM: the disk of a PostgreSQL store's server fills up under load, and is emptied.

The disks are small tmpfs in a mount namespace of the test, so it needs root. It fails where it is not given that."""
import contextlib
import pathlib
import re
import shutil
import sys

import storming
from small_disk import SmallDisk
from storming import DEADLINE_S, StormCase, postgresql

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "apps"))
import namespaces  # noqa: E402


class DiskFull(StormCase):
    settings = {"log_line_prefix": "%e ", "max_wal_size": "1GB"}

    def disk(self, size_mb):
        disk = SmallDisk(size_mb)
        self.before.callback(disk.close)
        return disk

    def setUp(self):
        self.before = contextlib.ExitStack()  # What ends after the server.
        self.addCleanup(self.before.close)
        super().setUp()

    def test_no_room_for_records(self):
        """The server refuses what would make a file longer, and answers reads. Writes go on when there is room."""
        disk = self.disk(64)
        self.server.psql(f"CREATE TABLESPACE small LOCATION '{disk.used}'")
        self.server.psql("CREATE DATABASE small TABLESPACE small")
        storm = self.storm(self.server.url("small"))
        for _ in range(2):
            storm.goes_on()
            logged = len(self.server.log())
            disk.fill()
            # 53100 is disk_full (https://www.postgresql.org/docs/15/errcodes-appendix.html).
            postgresql.wait_for(lambda: re.search("^53100 STATEMENT: .*write_1", self.server.log()[logged:], re.M),
                                "a write met the full disk", limit_s=DEADLINE_S)
            disk.empty()
            storm.goes_on()
        counted = storm.verdict()
        self.assertGreater(counted["unavailable"], 0)
        self.assertNotIn("get unavailable", counted)

    def test_no_room_for_wal(self):
        """The server panics, and cannot be started before there is room."""
        disk = self.disk(128)
        self.server.stop()
        wal = self.server.folder / "pg_wal"
        shutil.copytree(wal, disk.used, dirs_exist_ok=True)
        postgresql.give_away(disk.used)
        shutil.rmtree(wal)
        wal.symlink_to(disk.used)
        self.server.start()
        storm = self.storm(self.url)
        storm.goes_on()
        disk.fill()
        postgresql.wait_for(lambda: re.search("^53100 PANIC: ", self.server.log(), re.M), "the server panicked",
                            limit_s=DEADLINE_S)
        self.assertTrue(self.server.process.wait(postgresql.STOP_LIMIT_S), "it runs on")
        with self.assertRaisesRegex(RuntimeError, "No space left on device"):
            self.server.start()
        disk.empty()
        self.server.restart()
        storm.goes_on(2)
        counted = storm.verdict()
        self.assertGreater(counted["in_doubt"], 0)


if __name__ == "__main__":
    namespaces.enter("mount", "mount -t tmpfs -o size=1m trial /mnt && setpriv --reuid=postgres --clear-groups true",
                     "small disks for a server that runs as another user")
    storming.main()
