"""disk_full_test.py POSTGRESQL_STORM: the disk of a PostgreSQL store's server fills up under load, and is emptied.

The disks are small tmpfs in a mount namespace of the test, so it needs root. It fails where it is not given that."""
import contextlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import storming
from storming import DEADLINE_S, StormCase, postgresql

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "apps"))
import namespaces  # noqa: E402


class Disk:
    def __init__(self, size_mb):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="once-disk-"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=700", "once", self.folder], check=True)
        self.used = self.folder / "used"
        self.used.mkdir(mode=0o700)
        postgresql.give_away(self.folder)
        self._ballast = self.folder / "ballast"

    def fill(self):
        """To the last page."""
        with open(self._ballast, "wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while file.write(bytes(4096)) == 4096:
                    pass
        if shutil.disk_usage(self.folder).free >= 4096:
            raise RuntimeError(f"{self.folder} is not full")

    def empty(self):
        self._ballast.unlink()

    def close(self):
        subprocess.run(["umount", self.folder], check=True)
        self.folder.rmdir()


class DiskFull(StormCase):
    settings = {"log_line_prefix": "%e ", "max_wal_size": "1GB"}

    def disk(self, size_mb):
        disk = Disk(size_mb)
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
