"""charges_test.py CHARGES ONCE: kills the service before and after its commit, in the database of ONCE_TEST_POSTGRESQL.
CHARGES is the program of charges.cpp, or charges.py: then `once proxy` is in front of it, and is killed too. Each order
must be charged exactly once, and each retry must get the one response."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

CHARGES, ONCE = sys.argv[1:]
BANK = os.environ["ONCE_TEST_POSTGRESQL"]
STORE = BANK + "?allow_unsafe=1"  # The server of the tests does not sync its disk.
LIMIT_S = 120


class Session:
    """A connection of psql's, which keeps its locks."""

    def __init__(self):
        self.psql = subprocess.Popen(["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", BANK], text=True, bufsize=1,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, sql):
        self.psql.stdin.write(sql + ";\n\\echo done\n")
        lines = []
        for line in self.psql.stdout:
            if line == "done\n":
                return lines
            lines.append(line.rstrip("\n"))
        raise SystemExit("psql has ended: " + sql)

    def wait_for(self, sql, value):
        end = time.monotonic() + LIMIT_S
        while (got := self.run(sql)) != [value]:
            if time.monotonic() > end:
                raise SystemExit(f"{sql}: {got} instead of {value} after {LIMIT_S} s")
            time.sleep(0.02)


class Service:
    """The service, which speaks with the clients itself."""

    def __init__(self):
        self.start()

    def start(self):
        self.process = subprocess.Popen([CHARGES, STORE, BANK], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().split()[-1])

    def post(self, order):
        """The status, the body, and whether it is a replay. Raises OSError or HTTPException if the service dies."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.request("POST", "/charges", json.dumps({"order": order, "cents": 500}),
                           {"Idempotency-Key": order, "X-Api-Key": "alice", "Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode(), response.getheader("Idempotent-Replayed") == "true"

    def post_until_answered(self, order):
        end = time.monotonic() + LIMIT_S
        while (answer := self.post(order))[0] == 409:  # The killed attempt's lease has not ended.
            if time.monotonic() > end:
                raise SystemExit(f"{order}: still {answer} after {LIMIT_S} s")
            time.sleep(0.1)
        return answer

    def begin(self, order):
        """A client whose service is about to be killed."""
        def client():
            try:
                self.answered = self.post(order)
            except (OSError, http.client.HTTPException):
                pass
        self.answered = None
        self.client = threading.Thread(target=client)
        self.client.start()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def kill_under_request(self):
        if self.answered:
            raise SystemExit(f"it was answered before the kill: {self.answered}")
        self.kill()
        self.client.join()
        must("its client got", self.answered, self.when_killed)
        self.start()

    when_killed = None  # No answer.


class Proxied(Service):
    """The service behind `once proxy`."""

    when_killed = 502

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.own_port = free.getsockname()[1]
        self.start()
        self.start_proxy()

    def start(self):
        self.process = subprocess.Popen([sys.executable, CHARGES, BANK, str(self.own_port)], stdout=subprocess.PIPE)
        self.process.stdout.readline()

    def start_proxy(self):
        # All that the service does is in its transaction, so a retry may run when the killed attempt's lease has ended.
        self.proxy = subprocess.Popen(
            [ONCE, "proxy", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{self.own_port}", "--store",
             STORE, "--principal-header", "X-Api-Key", "--service-finish", "--on-ambiguous", "takeover", "--lease",
             "10s", "--answer-timeout", "2m", "--log", "none", "--access-log", "none"],
            stderr=subprocess.PIPE, text=True)
        self.port = int(re.search(r"on port (\d+)", self.proxy.stderr.readline())[1])

    def post(self, order):
        answer = super().post(order)
        return answer[0] if answer[0] == 502 else answer

    def kill_proxy(self):
        self.proxy.kill()
        self.proxy.wait()


def must(what, got, wanted):
    print(f"{what}: {got}", flush=True)
    if got != wanted:
        raise SystemExit(f"instead of {wanted}")


def rows(session, order):
    return session.run(f"SELECT count(*) FROM charges WHERE order_id = '{order}'")


subprocess.run([ONCE, "table", "create"], check=True, stdout=subprocess.DEVNULL, env={**os.environ, "ONCE_STORE": STORE})
session = Session()
session.run("CREATE TABLE charges (id serial PRIMARY KEY, order_id text, cents int)")
session.run("CREATE FUNCTION commits_late() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END$$")
session.run("CREATE CONSTRAINT TRIGGER late AFTER INSERT ON charges DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION commits_late()")

is_proxied = CHARGES.endswith(".py")
service = Proxied() if is_proxied else Service()
must("undisturbed", service.post("order-1"), (201, '{"charge":1}', False))
must("its retry", service.post("order-1"), (201, '{"charge":1}', True))
must("rows", rows(session, "order-1"), ["1"])

# Before the commit: it waits for the table.
holder = Session()
holder.run("BEGIN")
holder.run("LOCK TABLE charges IN EXCLUSIVE MODE")
service.begin("order-2")
session.wait_for("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'charges'::regclass", "1")
service.kill_under_request()
holder.run("ROLLBACK")
must("killed before its commit, the retry", service.post_until_answered("order-2")[0::2], (201, False))
must("rows", rows(session, "order-2"), ["1"])


def in_its_commit(order):
    """The commit waits, until it is allowed to go on."""
    holder.run("SELECT pg_advisory_lock(1)")
    service.begin(order)
    session.wait_for("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'", "1")


def let_it_commit(order):
    holder.run("SELECT pg_advisory_unlock(1)")
    session.wait_for(f"SELECT count(*) FROM charges WHERE order_id = '{order}'", "1")
    [charge] = session.run(f"SELECT id FROM charges WHERE order_id = '{order}'")
    return '{"charge":' + charge + "}"


# In the commit, which goes on without it.
in_its_commit("order-3")
service.kill_under_request()
charged = let_it_commit("order-3")
must("killed in its commit, the retry", service.post_until_answered("order-3"), (201, charged, True))
must("rows", rows(session, "order-3"), ["1"])

if is_proxied:
    # After the commit, before the response: the proxy finds it in the record.
    in_its_commit("order-5")
    service.process.send_signal(signal.SIGSTOP)
    charged = let_it_commit("order-5")
    service.when_killed = (201, charged, False)
    service.kill_under_request()
    must("its retry", service.post("order-5"), (201, charged, True))
    # The proxy dies, and the service commits all the same.
    in_its_commit("order-6")
    service.kill_proxy()
    service.client.join()
    charged = let_it_commit("order-6")
    service.start_proxy()
    must("after the proxy's death, the retry", service.post("order-6"), (201, charged, True))
    must("rows", rows(session, "order-5") + rows(session, "order-6"), ["1", "1"])

# A handler that fails rolls back and is released: the next request runs. Behind a proxy its connection ends, as if it
# had died.
session.run("ALTER TABLE charges RENAME TO gone")
must("without its table", service.post("order-4"), 502) if is_proxied else must(
    "without its table", service.post("order-4")[0], 500)
session.run("ALTER TABLE gone RENAME TO charges")
must("with it", service.post_until_answered("order-4")[0::2], (201, False))
must("rows", rows(session, "order-4"), ["1"])
service.kill()
if is_proxied:
    service.kill_proxy()
for each in (session, holder):
    each.psql.stdin.close()
    each.psql.wait()
