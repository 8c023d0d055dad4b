"""The processes of the storm: the payments service, and the proxies that stand in front of it."""
import pathlib
import shutil
import signal
import subprocess
import time

DEADLINE_S = 60.0
LEASE_S = 1.0
SETTLE_S = 3.0  # Longer than the lease, and than the service may take for a charge.
# A storm that is killed takes its processes with it.
WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


class Process:
    """A program that listens on a port, and keeps that port when it is killed and started again."""

    def __init__(self, name, command, port, log):
        self.name = name
        self.command = command  # Of a port: the arguments.
        self.port = port        # The next one that is free, after the first start.
        self.log = pathlib.Path(log)
        self.popen = None
        self.frozen = False

    def start(self):
        """Returns when it listens. A port that is taken is the next one's turn, unless it was ours."""
        end = time.monotonic() + DEADLINE_S
        first = self.popen is None
        while not self._try_to_start():
            if time.monotonic() > end or self.popen.returncode == 64:
                raise RuntimeError(f"{self.name} does not start; {self.log} says why")
            if first:
                self.port += 1
            else:
                time.sleep(0.05)

    def _try_to_start(self):
        with open(self.log, "ab") as log:
            before = log.tell()
            self.popen = subprocess.Popen([*WITH_US, *map(str, self.command(self.port))], stdin=subprocess.DEVNULL,
                                          stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if b"listening on port" in self.log.read_bytes()[before:]:
                return True
            if self.popen.poll() is not None:
                return False
            time.sleep(0.005)
        raise RuntimeError(f"{self.name} does not listen; {self.log} may say why")

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def freeze(self):
        self.popen.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self):
        self.popen.send_signal(signal.SIGCONT)
        self.frozen = False


class Ledger:
    """What the service has written down, line by line: it is the truth about what was charged."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def lines(self, what):
        """(order, number of the charge) of each line that says so."""
        text = self.path.read_text() if self.path.exists() else ""
        for line in text.splitlines():
            said, order, _, number = line.split(",")
            if said == what:
                yield order, int(number or 0)

    def has(self, what, order):
        return any(line[0] == order for line in self.lines(what))

    def charges(self, order):
        return [number for of, number in self.lines("charged") if of == order]


class Stack:
    """One service; two proxies on one store, or none for what happens without."""

    def __init__(self, options):
        self.directory = pathlib.Path(options.directory)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.once = options.once
        self.store = f"sqlite:{self.directory}/once.db"
        self.ledger = Ledger(self.directory / "ledger.csv")
        # Below it are the proxies' ports, which people type.
        self.service = Process("the service", lambda port: [options.service, port, self.ledger.path],
                               options.port + 10, self.directory / "service.log")
        self.proxies = []
        self.console = None
        try:
            self.service.start()
            for name in () if options.without_once else ("a", "b"):
                proxy = Process(f"proxy {name}", self._proxy_command(name), options.port, self.directory / f"proxy-{name}.log")
                self.proxies.append(proxy)
                proxy.start()
        except BaseException:
            self.stop()
            raise

    def _proxy_command(self, name):
        return lambda port: [
            self.once, "proxy", "--listen", f"127.0.0.1:{port}", "--upstream", f"http://127.0.0.1:{self.service.port}",
            "--store", self.store, "--no-principal", "--lease", f"{LEASE_S * 1000:.0f}ms", "--on-unrecorded", "fail",
            "--fate", "503=release",  # The service says so when it has charged nothing.
            # For what is unknown it is asked. It knows, but for orders abroad.
            "--reconcile", "GET /charges?order={key}", "--reconcile-not-done", "404",
            "--reconcile-settle", f"{SETTLE_S * 1000:.0f}ms", "--reconcile-interval", "500ms",
            "--access-log", self.directory / f"access-{name}.log"]

    def open_console(self):
        """A link to `once console` on the store, for one use within a minute."""
        with open(self.directory / "console.log", "ab") as log:
            self.console = subprocess.Popen([*WITH_US, self.once, *self.console_command], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        link = self.console.stdout.readline().strip()
        if not link:
            raise RuntimeError(f"once console does not start; {self.directory}/console.log says why")
        return link

    @property
    def console_command(self):
        return ["console", "--store", self.store, "--stats-interval", "1s"]

    @property
    def doors(self):
        """Where clients can go."""
        return self.proxies or [self.service]

    def run_once(self, *arguments):
        """The program itself, as an operator calls it."""
        command = [self.once, *arguments, "--store", self.store]
        done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              timeout=DEADLINE_S)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def stop(self):
        if self.console is not None:
            self.console.kill()
            self.console.wait()
        for process in [*self.proxies, self.service]:
            if process.popen is not None:
                process.kill()
