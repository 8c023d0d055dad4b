#!/usr/bin/env python3
"""partition_test.py PARTITION_PROCESS ONCE: one client of several is cut off from a PostgreSQL server. See partition.py.

As root, as the server runs as another user."""
import contextlib
import os
import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "apps"), str(TESTS / "real_servers")]
import partition  # noqa: E402
import postgresql  # noqa: E402
import written  # noqa: E402

PARAMETERS = "allow_unsafe=1&operation_timeout=1s&connect_timeout=2"


class PostgreSql(partition.World):
    def __init__(self, folder):
        super().__init__(folder)
        partition.run("ip", "link", "set", "lo", "up")
        partition.run("ip", "address", "add", f"{partition.SERVER}/24", "dev", "bridge0")
        stack = contextlib.ExitStack()
        self.end = stack.close
        self.server = stack.enter_context(
            postgresql.running({"listen_addresses": f"127.0.0.1,{partition.SERVER}"}, clients="10.77.0.0/24"))

    def serve(self):
        url = self.server.database()
        self.database = url.rsplit("/", 1)[1]
        subprocess.run([os.path.abspath(sys.argv[2]), "table", "create", "--store", url + "?allow_unsafe=1"], check=True)
        self.server.psql(written.TRIGGER, self.database)
        return f"postgresql://postgres@{partition.SERVER}:{self.server.port}/{self.database}?{PARAMETERS}"

    def arrived(self, key, status):
        postgresql.wait_for(lambda: any(w.key == key and w.status == status for w in self.writes()), f"{status} {key}")

    def writes(self):
        return written.writes(self.server, self.database)


if __name__ == "__main__":
    partition.enter_namespace("setpriv --reuid=postgres --clear-groups true")
    partition.main(PostgreSql)
