#!/usr/bin/env python3
"""clock_test.py PARTITION_PROCESS ONCE: the clock of a PostgreSQL server is set back, and on, while workers hold claims.

libfaketime moves the server's clock only. Each write, each charge and what anybody was told is checked as in the
partition tests, see partition.check(): a claim is taken over only when its lease has passed by the server's clock."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "apps"), str(TESTS / "real_servers")]
import partition  # noqa: E402
import postgresql  # noqa: E402
import written  # noqa: E402

HOUR_S = 3600
LEASE_MS = 8_000  # No pause of a busy machine may take a claim away: what is done twice is exactly what the test makes so.


class Clock:
    """Of all processes with these variables."""

    def __init__(self, folder):
        self._file = folder / "offset"
        self.set(0)
        library, = pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
        self.variables = {"LD_PRELOAD": os.fspath(library), "FAKETIME_TIMESTAMP_FILE": os.fspath(self._file),
                          "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

    def set(self, offset_s):
        """So far from this machine's clock."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+d}\n")
        new.chmod(0o644)
        new.rename(self._file)


class Test:
    def __init__(self, folder, server, clock):
        self.server, self.clock = server, clock
        self.told = partition.Told()
        self.ledger = folder / "ledger"
        url = server.database()
        self.database = url.rsplit("/", 1)[1]
        self.url = url + "?allow_unsafe=1"
        subprocess.run([os.path.abspath(sys.argv[2]), "table", "create", "--store", self.url], check=True)
        server.psql(written.TRIGGER, self.database)
        self.workers = []

    def worker(self, name):
        worker = partition.Process(self.told, name, None, "work", name, self.url, os.fspath(self.ledger),
                                   str(LEASE_MS), str(partition.SKEW_MS))
        self.workers.append(worker)
        worker.wait("ready")
        return worker

    def writes(self, key):
        return [write for write in written.writes(self.server, self.database) if write.key == key]

    def left_s(self, key):
        """What is left of a claim's lease by the server's clock."""
        now_ms = self.server.psql("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)")
        return (self.writes(key)[-1].lease_until - int(now_ms)) / 1000

    def play(self):
        holder, other = self.worker("holder"), self.worker("other")
        assert holder.settle("before") == ["recorded"]

        # A holder that lives keeps its claim.
        assert holder.settle("lives", command="start") == ["charged"]
        other.command("run lives")
        before = len(self.writes("lives"))
        self.clock.set(-HOUR_S)
        postgresql.wait_for(lambda: len(self.writes("lives")) >= before + 3, "it was renewed three times")
        assert self.left_s("lives") > HOUR_S - 60, self.left_s("lives")  # A renewal shortens no lease.
        holder.command("finish lives")
        assert holder.wait("told", "lives")["how"] == "recorded"
        assert other.wait("told", "lives")["how"] == "replayed"

        # The claim of one that is dead is respected for as long as the clock was set back, as it may be alive.
        dead = self.worker("dead")
        assert dead.settle("dies", command="start") == ["charged"]
        dead.kill()
        self.workers.remove(dead)
        self.clock.set(-2 * HOUR_S)
        assert self.left_s("dies") > HOUR_S - 60, self.left_s("dies")
        other.command("run dies")
        assert holder.settle("meanwhile") == ["recorded"]
        assert other.settle("meanwhile") == ["replayed"]
        self.clock.set(-HOUR_S)
        assert other.wait("told", "dies")["how"] == "recorded"

        # Set on again, leases lapse early: work may be done twice, and the first is told.
        assert holder.settle("jumps", command="start") == ["charged"]
        holder.process.send_signal(signal.SIGSTOP)  # Else it renews, and keeps its claim.
        self.clock.set(0)
        assert other.settle("jumps") == ["recorded"]
        holder.process.send_signal(signal.SIGCONT)
        holder.wait("told to stop", "jumps")
        holder.command("finish jumps")
        assert holder.wait("told", "jumps")["how"] == "superseded"

        # The holder learns the time: with its old one, its next lease would be over for the other before it is written.
        assert holder.settle("knows") == ["recorded"]
        assert other.settle("knows") == ["replayed"]

        # Back and back, under many claims. A claim that a jump hits in its middle is tried again, at most six times: so
        # each claim meets two jumps, and not as many as this process can make.
        batches = [[f"many-{batch}-{number}" for number in range(25)] for batch in range(8)]
        for batch, keys in enumerate(batches):
            self.clock.set(-batch * 25 * 60)
            for key in keys:
                holder.command(f"run {key}")
                other.command(f"run {key}")
            if batch > 0:
                self.both_are_told(batches[batch - 1], holder, other)
        self.both_are_told(batches[-1], holder, other)

        for worker in self.workers:
            worker.end()
        self.check()

    @staticmethod
    def both_are_told(keys, holder, other):
        for key in keys:
            assert {holder.wait("told", key)["how"], other.wait("told", key)["how"]} == {"recorded", "replayed"}, key

    def check(self):
        writes = list(written.writes(self.server, self.database))
        # Nobody can tell who is dead.
        lines = [*self.told.lines, {"event": "told", "how": "lost", "key": "dies", "who": "dead"}]
        charges, _ = partition.check(writes, lines, self.ledger.read_text().splitlines())
        made = {key: [charge.split(" ")[1] for charge in of_key] for key, of_key in charges.items()}
        double = {key: of_key for key, of_key in made.items() if len(of_key) > 1}
        assert double == {"dies": ["dead", "other"], "jumps": ["holder", "other"]}, double
        print(f"clock: {len(made)} operations, {len(double)} double, {len(writes)} writes")


def main():
    partition.PROGRAM = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="once-clock-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        clock = Clock(folder)
        with postgresql.running(variables=clock.variables) as server:
            test = Test(folder, server, clock)
            try:
                test.play()
            except BaseException:
                for line in test.told.lines:
                    print(line, file=sys.stderr)
                for worker in test.workers:
                    worker.kill()
                raise
            finally:
                server.stop()  # In order: a server that is killed leaves libfaketime's shared memory.


if __name__ == "__main__":
    main()
