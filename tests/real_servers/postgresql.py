"""PostgreSQL from Debian's packages, for the length of a test: unprivileged, on free loopback ports.

    with postgresql.running() as server:                # a server with an empty data folder
        url = server.database()                         # "postgresql://postgres@127.0.0.1:23817/once_1"
        server.kill()                                   # kill -9 of all its processes at once
        server.restart()                                # on the same port
        standby = server.standby(synchronous=True)
        standby.promote()
        pooled = server.pgbouncer().url("once_1")       # transaction mode

As a program (tests/real_servers/with-postgresql):

    with-postgresql [--pgbouncer] [--standby sync|async] [--set NAME=VALUE ...] COMMAND [ARGUMENT ...]

runs the command with the URL of a fresh database in ONCE_TEST_POSTGRESQL, and exits as it does.

    ONCE_TEST_POSTGRESQL          what a program uses: through PgBouncer with --pgbouncer
    ONCE_TEST_POSTGRESQL_SERVER   the same database, always without PgBouncer
    ONCE_TEST_POSTGRESQL_STANDBY  the same database on the standby; only with --standby

fsync is off unless a test asks for it (`--set fsync=on`): what is killed here are processes, and the kernel keeps what
they wrote. All else is as in a new installation. Every user may log in without a password from this machine.
"""
import argparse
import contextlib
import itertools
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import guard

START_LIMIT_S = 60
STOP_LIMIT_S = 30
BINARIES = pathlib.Path("/usr/lib/postgresql/15/bin")
BUILD = pathlib.Path(__file__).resolve().parent.parent.parent / "build"
# Files in place of /dev/shm, which a killed server would leave there.
SETTINGS = {"fsync": "off", "max_prepared_transactions": "10", "listen_addresses": "127.0.0.1",
            "dynamic_shared_memory_type": "mmap"}


def environment(base=None):
    """Without what libpq would add to a URL: PGHOST, PGSERVICE, PGPASSFILE and the like."""
    return {
        name: value
        for name, value in (os.environ if base is None else base).items()
        if not name.startswith(("PG", "ONCE_TEST_POSTGRESQL"))
    }


def free_port():
    """Below the ports that the kernel gives to clients, so that it stays free while a server is down."""
    for _ in range(1000):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no free port between 20000 and 32000")


def run(command, folder):
    """Runs it unprivileged to its end."""
    done = subprocess.run(
        guard.unprivileged_command(command), cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=START_LIMIT_S, check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{pathlib.Path(command[0]).name} failed with {done.returncode}: {done.stdout}")


def give_away(path):
    """To the user that servers run as."""
    user = guard.unprivileged()
    if user:
        subprocess.run(["chown", "-R", f"{user.pw_uid}:{user.pw_gid}", path], check=True)


def wait_for(condition, what, limit_s=START_LIMIT_S):
    end = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise RuntimeError(f"did not come true within {limit_s} s: {what}")
        time.sleep(0.01)
    return value


def template():
    """An empty data folder, made once and kept below build/ as initdb takes a second."""
    version = subprocess.run([BINARIES / "initdb", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    made = BUILD / f"postgresql-template-{version.split()[2]}"
    if not made.exists():
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="once-initdb-") as folder:
            give_away(folder)
            data = pathlib.Path(folder) / "data"
            run([BINARIES / "initdb", "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8",
                 "--locale=C", "--pgdata", data], folder)
            copy = pathlib.Path(tempfile.mkdtemp(prefix="postgresql-template-", dir=BUILD))
            shutil.copytree(data, copy, dirs_exist_ok=True)
            try:
                copy.rename(made)
            except OSError:  # Another test was first.
                shutil.rmtree(copy)
    return made


class Endpoint:
    """What has a port and a process: a server, or a PgBouncer before one."""

    def __init__(self, servers, name):
        self._servers = servers
        self.folder = servers.folder / name
        self.port = None
        self.process = None
        self.variables = {}  # Of its environment, not of that of what starts it.
        self.host = None  # In whose network it is (tests/apps/hosts.py); none: in this one.

    def log(self):
        file = self.folder.with_suffix(".log")
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def address(self):
        return self.host.address if self.host else "127.0.0.1"

    def url(self, database="postgres", user="postgres"):
        return f"postgresql://{user}@{self.address}:{self.port}/{database}"

    def psql(self, sql, database="postgres", user="postgres", limit_s=START_LIMIT_S):
        """What stock psql prints: a line for each row, `|` between columns. An error is a RuntimeError with its text."""
        done = subprocess.run(
            ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url(database, user), "-f", "-"], input=sql,
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit_s, check=False,
        )
        if done.returncode:
            raise RuntimeError(f"psql ended with {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def kill(self):
        """kill -9 of all its processes at once. What they had written to files stays: this is no power failure."""
        self.process.kill_with_children()

    def _stop(self, number):
        self.process.send(number)
        if not self.process.wait(STOP_LIMIT_S):
            raise RuntimeError(f"{self.folder.name} did not stop within {STOP_LIMIT_S} s:\n{self.log()[-2000:]}")

    def _start(self, command, ready):
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        self.process = self._servers.start(["env", *variables, *command], self.folder.with_suffix(".log"), environment(),
                                           self.host.enter() if self.host else ())

        def ready_or_ended():
            if not self.process.running():
                raise RuntimeError(f"{self.folder.name} did not start:\n{self.log()[-2000:]}")
            return ready()

        wait_for(ready_or_ended, f"{self.folder.name} is ready")

    def _start_on_free_port(self, start):
        for attempts_left in reversed(range(5)):
            self.port = free_port()
            try:
                return start()
            except RuntimeError:  # Another test may have taken the port since.
                if not attempts_left or "Address already in use" not in self.log():
                    raise


class PostgreSQL(Endpoint):
    """One server. Not for several threads at a time."""

    def __init__(self, servers, name, names, primary=None):
        super().__init__(servers, name)
        self._names = names  # Counts the folders and databases of the test.
        self.primary = primary

    def configure(self, **settings):
        """Lines at the end of postgresql.conf; for a server that runs, call reload() or restart()."""
        with open(self.folder / "postgresql.conf", "a") as file:
            for name, value in settings.items():
                quoted = str(value).replace("'", "''")
                file.write(f"{name} = '{quoted}'\n")

    def start(self):
        """Returns when it accepts connections."""
        pid_file = self.folder / "postmaster.pid"

        def ready():
            # As pg_ctl does: the first line is the process, the eighth its state. An older file may lie there still.
            try:
                lines = pid_file.read_text().splitlines()
            except FileNotFoundError:
                return False
            return len(lines) > 7 and int(lines[0]) == self.process.pid and lines[7].strip() in ("ready", "standby")

        self._start([BINARIES / "postgres", "-D", self.folder, "-p", str(self.port)], ready)

    def stop(self, mode="fast"):
        """smart waits for clients, fast ends their sessions, immediate is a crash that tells them."""
        self._stop({"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])

    def restart(self, mode="fast"):
        """On the same port; also after kill()."""
        if self.process.running():
            self.stop(mode)
        self.start()

    def reload(self):
        self.psql("SELECT pg_reload_conf()")

    def database(self):
        """Makes an empty database, and returns its URL."""
        name = f"once_{next(self._names)}"
        self.psql(f"CREATE DATABASE {name}")
        return self.url(name)

    def standby(self, synchronous, through=None, host=None):
        """A standby of this server. If synchronous, commits wait for it from then on. It connects by the port `through`,
        for which there may be a CuttingProxy; default: straight. It is on that host."""
        made = PostgreSQL(self._servers, f"standby{next(self._names)}", self._names, primary=self)
        name = made.folder.name
        run([BINARIES / "pg_basebackup", "-R", "-X", "stream", "--checkpoint=fast", "--no-sync", "-D", made.folder,
             "-d", f"host={self.address} port={through or self.port} user=postgres application_name={name}"],
            self._servers.folder)
        made.configure(synchronous_standby_names="")  # The primary may have one, whose settings were copied.
        made.host = host
        if host:
            made.configure(listen_addresses=host.address)
        made._start_on_free_port(made.start)
        if synchronous:
            self.configure(synchronous_standby_names=name)
            self.reload()
        state = "sync" if synchronous else "async"
        wait_for(
            lambda: self.psql(f"SELECT state, sync_state FROM pg_stat_replication WHERE application_name = '{name}'")
            == f"streaming|{state}", f"{name} replicates"
        )
        return made

    def promote(self):
        """Makes a standby a primary. The old one is not stopped: kill() it before, or keep clients away from it."""
        if self.psql("SELECT pg_promote(true, 30)") != "t":
            raise RuntimeError(f"{self.folder.name} was not promoted:\n{self.log()[-2000:]}")

    def replicated(self):
        """Waits until the standby has replayed all that its primary has committed so far."""
        position = self.primary.psql("SELECT pg_current_wal_lsn()")
        wait_for(lambda: self.psql(f"SELECT pg_last_wal_replay_lsn() >= '{position}'") == "t", "the standby follows")

    def multi_host_url(self, database="postgres"):
        """Of a standby: finds whichever of it and its primary takes writes."""
        hosts = f"{self.primary.address}:{self.primary.port},{self.address}:{self.port}"
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    def pgbouncer(self, **settings):
        """A PgBouncer before this server, in transaction mode; settings are lines of its [pgbouncer] section."""
        return PgBouncer(self._servers, f"pgbouncer{next(self._names)}", self, settings)

    def wal_position(self):
        """Bytes of WAL written since the beginning; a difference of two is what happened between them."""
        return int(self.psql("SELECT pg_current_wal_insert_lsn() - '0/0'"))

    def table_statistics(self, database, table):
        """pg_stat_user_tables for the table, as numbers. A session hands in its counts when it ends, and when it has
        been idle for up to ten seconds: so wait_for() what is to be seen there."""
        columns = "n_tup_ins n_tup_upd n_tup_hot_upd n_tup_del n_live_tup n_dead_tup seq_scan idx_scan".split()
        row = self.psql(f"SELECT {', '.join(columns)} FROM pg_stat_user_tables WHERE relid = '{table}'::regclass",
                        database)
        return dict(zip(columns, (int(value or 0) for value in row.split("|"))))


class PgBouncer(Endpoint):
    def __init__(self, servers, name, server, settings):
        super().__init__(servers, name)
        self._server = server
        self._settings = settings
        self.folder.mkdir()
        self._start_on_free_port(self._write_and_start)

    def _write_and_start(self):
        settings = {
            "listen_addr": "127.0.0.1", "listen_port": self.port, "unix_socket_dir": "", "pool_mode": "transaction",
            "auth_type": "trust", "auth_file": self.folder / "users", "auth_user": "postgres", "admin_users": "postgres",
            "auth_query": "SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1",
        } | self._settings
        (self.folder / "users").write_text('"postgres" ""\n')
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={self._server.port}\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in settings.items()))
        give_away(self.folder)
        self.start()

    def start(self):
        logged = len(self.log())
        self._start(["/usr/sbin/pgbouncer", self.folder / "pgbouncer.ini"],
                    lambda: f"listening on 127.0.0.1:{self.port}" in self.log()[logged:])

    def stop(self):
        """At once: SIGTERM; clients' connections are closed."""
        self._stop(signal.SIGTERM)

    def restart(self):
        if self.process.running():
            self.stop()
        self.start()


@contextlib.contextmanager
def running(settings=None, clients=None, variables=None, data=None, host=None):
    """Gives a server with an empty data folder; settings are lines of postgresql.conf, variables those of its environment.
    From the network `clients` too every user may log in without a password, and replicate. Its data lie in the empty folder `data`, if
    one is given. It is on that host, where `clients` find it."""
    made = template()
    with guard.Guard("once-postgresql-") as servers:
        server = PostgreSQL(servers, "primary", itertools.count(1))
        if data:
            server.folder.symlink_to(data)
        shutil.copytree(made, server.folder, dirs_exist_ok=bool(data))
        server.folder.chmod(0o700)
        server.variables = variables or {}
        server.host = host
        server.configure(unix_socket_directories=servers.folder, **(SETTINGS | (settings or {})))
        if host:
            server.configure(listen_addresses=host.address)
        if clients:
            with open(server.folder / "pg_hba.conf", "a") as file:
                file.write(f"host all,replication all {clients} trust\n")
        give_away(server.folder.resolve())
        server._start_on_free_port(server.start)
        yield server


def main():
    parser = argparse.ArgumentParser(prog="with-postgresql", allow_abbrev=False)
    parser.add_argument("--pgbouncer", action="store_true")
    parser.add_argument("--standby", choices=["sync", "async"])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a line of postgresql.conf")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if not asked.command:
        parser.error("no command")
    if wrong := [line for line in asked.set if "=" not in line]:
        parser.error(f"--set {wrong[0]}: no value")
    with running(dict(line.split("=", 1) for line in asked.set)) as server:
        url = server.database()
        name = url.rsplit("/", 1)[1]
        told = environment() | {"ONCE_TEST_POSTGRESQL": url, "ONCE_TEST_POSTGRESQL_SERVER": url}
        if asked.standby:
            told["ONCE_TEST_POSTGRESQL_STANDBY"] = server.standby(asked.standby == "sync").url(name)
        if asked.pgbouncer:
            told["ONCE_TEST_POSTGRESQL"] = server.pgbouncer().url(name)
        # The command ends when this process is killed: its database does.
        command = ["setpriv", "--pdeathsig=TERM", "--", *asked.command]
        status = subprocess.run(command, env=told, check=False).returncode
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
