"""environment_test.py ONCE LIBRARY REFUSE [PATTERN]: a table of environments against a table of programs.

In each environment each program is called twice with one key, then once outside. Whatever the environment refuses:
- nothing acts twice, and what was acknowledged is replayed;
- an operation that was refused runs at the next call outside: no claim is left behind;
- a refusal is an exit code, not a signal, and its message says the cause.

What this machine cannot do is printed as NOT RUN, with the reason. A row that does not end is ended, and has failed.
"""
import collections
import concurrent.futures
import contextlib
import fcntl
import http.server
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "proxy"))
import service  # noqa: E402
from harness import wait_until  # noqa: E402

ONCE, LIBRARY, REFUSE = (os.path.abspath(path) for path in sys.argv[1:4])
PATTERN = sys.argv[4] if len(sys.argv) > 4 else "."
NOBODY = 65534
LIMIT_S = 60       # For one program …
ROW_LIMIT_S = 120  # … and for a row: no program waits for ever.


class Impossible(Exception):
    """This machine cannot make the environment."""


class Place:
    """A directory with a store, and how programs are started there."""

    def __init__(self, directory):
        self.dir = pathlib.Path(directory)
        self.store_dir = self.dir / "store"
        self.store_dir.mkdir()
        self.file = self.store_dir / "once.db"
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.dir), "TMPDIR": str(self.dir), "ONCE_STORE": self.store,
                    "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "eu-central-1"}
        self.outside = dict(self.env)
        self.prefix = []     # Words before the program.
        self.limits = []     # (resource, limit)
        self.prepare = None  # Called in the child, last.
        self.user = None
        self.owner = None  # Who must own the store in the end, if not its programs.
        self.library_url = True  # The library opens a path, and so without the URL's parameters.
        self.doctor_says = ""
        self.cleanup = contextlib.ExitStack()
        self.started = []

    @property
    def store(self):
        return f"sqlite:{self.file}"

    def in_child(self):
        if self.user is not None:
            os.setgroups([])
            os.setgid(self.user)
            os.setuid(self.user)
        for what, limit in self.limits:
            resource.setrlimit(what, (limit, limit))
        if self.prepare:
            self.prepare()

    def start(self, *words, inside=True, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
                   "cwd": self.dir, **options}
        if inside:
            options |= {"args": [*self.prefix, *words], "env": self.env, "preexec_fn": self.in_child}
        else:
            options |= {"args": list(words), "env": self.outside}
        self.started.append(subprocess.Popen(**options))
        return self.started[-1]

    def call(self, *words, inside=True, **options):
        process = self.start(*words, inside=inside, **options)
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{words} did not end within {LIMIT_S} s") from None
        return process.returncode, (out or b"").decode(), (err or b"").decode()

    def end(self):
        for process in self.started:
            if process.poll() is None:
                for pid in (*children(process.pid), process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self.cleanup.close()

    def effects(self, name):
        path = self.dir / name
        return len(path.read_text().splitlines()) if path.exists() else 0


def need_root():
    if os.geteuid() != 0:
        raise Impossible("needs root")


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Impossible(f"{' '.join(words)}: {done.stderr.strip()}")


# ---- environments: each changes a Place. Its options say what is expected.

def usual(place):
    pass


def fsize(kib):
    def make(place):
        place.limits.append((resource.RLIMIT_FSIZE, kib * 1024))
    return make


def give_to(place, user):
    """The programs inside are this user's, and so is the store."""
    for path in (place.store_dir, *place.store_dir.rglob("*")):
        os.chown(path, user, user)
    place.owner = user
    place.dir.chmod(0o777)
    place.user = user


def nproc(free):
    def make(place):
        need_root()
        # One user for each row: the kernel counts all processes of a user.
        give_to(place, 200_000 + os.getpid() * 10 + free)
        place.limits.append((resource.RLIMIT_NPROC, free))
    return make


def limit(what, value):
    def make(place):
        place.limits.append((what, value))
    return make


def pids_max(count):
    def make(place):
        need_root()
        for root, hybrid in (("/sys/fs/cgroup/pids", True), ("/sys/fs/cgroup", False)):
            group = pathlib.Path(root) / f"once-test-{os.getpid()}-{count}"
            try:
                group.mkdir()
                place.cleanup.callback(remove_group, group)
                (group / "pids.max").write_text(str(count))
            except OSError as error:
                reason = f"{root}: {error.strerror}"
                continue
            place.prepare = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
            return
        raise Impossible(f"no writable cgroup with pids: {reason}")
    return make


def remove_group(group):
    def gone():
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True
    wait_until(gone, "the group's processes have ended")


def small_disk(place):
    """A tmpfs that is filled after the first call."""
    need_root()
    command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place.store_dir))
    place.cleanup.callback(subprocess.run, ["umount", "--lazy", str(place.store_dir)], check=True)
    place.call(ONCE, "run", "--key", "seen", "--", "true", inside=False)
    filler = place.store_dir / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    place.leave = filler.unlink


def refused_writes(number):
    def make(place):
        place.env |= {"LD_PRELOAD": REFUSE, "ONCE_REFUSE_ERRNO": str(number), "ONCE_REFUSE_PATH": "once.db",
                      "ONCE_REFUSE_WHEN": "/"}
    return make


def shared(magic, name=""):
    """A file system that hosts share. With its name: one that the store's URL insists on."""
    def make(place):
        place.env |= {"LD_PRELOAD": REFUSE, "ONCE_REFUSE_MAGIC": magic}
        if name:
            place.env["ONCE_STORE"] += "?allow_shared_file_system=1"
            place.library_url = False
            place.doctor_says = f"{name}.*allow_shared_file_system=1"
    return make


def in_mounts(script):
    def make(place):
        need_root()
        words = ["unshare", "-m", "sh", "-c", script.format(dir=place.store_dir) + ' && exec "$@"', "sh"]
        command(*words, "true")
        place.prefix = words
    return make


def in_pids(place):
    """A pid namespace that still sees its host's /proc, as a container may."""
    need_root()
    words = ["unshare", "--pid", "--fork", "--kill-child"]
    command(*words, "true")
    place.prefix = words


def no_home(place):
    place.env.pop("ONCE_STORE")
    place.env.pop("HOME")


def empty_environment(place):
    place.env = {}


def root_home(place):
    """HOME=/, with a file system of its own at /.local. One row at a time: another would remove that directory."""
    need_root()
    turn = place.cleanup.enter_context(open(pathlib.Path(tempfile.gettempdir()) / "once-test-root-home.lock", "wb"))
    fcntl.flock(turn, fcntl.LOCK_EX)
    local = pathlib.Path("/.local")
    root = os.open("/", os.O_RDONLY)
    place.cleanup.callback(os.close, root)
    fcntl.flock(root, fcntl.LOCK_EX)  # Another run of this test may be about to remove it.
    if not local.exists():
        local.mkdir()
        place.cleanup.callback(local.rmdir)
    words = ["unshare", "-m", "sh", "-c", f"mount --bind {place.store_dir} /.local && exec \"$@\"", "sh"]
    command(*words, "true")
    place.prefix = words
    place.env.pop("ONCE_STORE")
    place.env["HOME"] = "/"
    place.file = place.store_dir / "state/once/once.db"
    place.outside["ONCE_STORE"] = place.store + "?create_directories=1"
    place.call(ONCE, "run", "--key", "seen", "--", "true", inside=False)


def unknown_user(place):
    need_root()
    give_to(place, 51_234)


def user_after_root(place):
    """Root was here first: in a directory of the user's."""
    need_root()
    give_to(place, NOBODY)
    place.call(ONCE, "run", "--key", "root was here", "--", "head", "-c", "3000000", "/dev/zero", inside=False)
    place.call(ONCE, "ls", inside=False)


def user_after_root_at_home(place):
    """Root was the first to run something in the user's home, and made all of its directories."""
    need_root()
    give_to(place, NOBODY)
    for env in (place.env, place.outside):
        env.pop("ONCE_STORE")
        env["HOME"] = str(place.store_dir)
    place.file = place.store_dir / ".local/state/once/once.db"
    place.call(ONCE, "run", "--key", "root was here", "--", "head", "-c", "3000000", "/dev/zero", inside=False)


def user_after_roots_look(place):
    """A store was restored without its side files, and root looked at it."""
    need_root()
    give_to(place, NOBODY)
    place.call(ONCE, "run", "--key", "user was here", "--", "true")
    for name in ("-wal", "-shm", "-lock"):
        pathlib.Path(f"{place.file}{name}").rename(place.dir / f"old{name}")
    place.call(ONCE, "doctor", inside=False)
    place.call(ONCE, "resolve", "--key", "none", "--as", "completed", "--reason", "r", inside=False)


def root_after_user(place):
    user_after_root(place)
    place.call(ONCE, "run", "--key", "user was here", "--", "true")
    place.user = None


def umask(value):
    def make(place):
        place.prepare = lambda: os.umask(value)
    return make


def user_with_umask(place):
    unknown_user(place)
    place.prepare = lambda: os.umask(0o777)


def closed(place):
    def close():
        for fd in (0, 1, 2):
            os.close(fd)
    place.prepare = close


def reader(place):
    """An auditor: may read the files, not write them, nor anything in the directory."""
    need_root()
    place.call(ONCE, "run", "--key", "seen", "--", "true", inside=False)
    place.store_dir.chmod(0o755)
    for file in place.store_dir.iterdir():
        file.chmod(0o644)
    place.user = NOBODY
    place.dir.chmod(0o777)


def reader_of_backup(place):
    """The same of a copy, which has no side files."""
    need_root()
    place.call(ONCE, "run", "--key", "seen", "--", "true", inside=False)
    subprocess.run(["sqlite3", str(place.file), f".backup {place.dir}/copy.db"], check=True)
    shutil.rmtree(place.store_dir)
    place.store_dir.mkdir()
    (place.dir / "copy.db").rename(place.file)
    place.file.chmod(0o644)
    place.store_dir.chmod(0o755)
    place.user = NOBODY
    place.dir.chmod(0o777)


def read_only_mount(place):
    place.call(ONCE, "run", "--key", "seen", "--", "true", inside=False)
    in_mounts("mount --bind {dir} {dir} && mount -o remount,bind,ro {dir}")(place)


WORKS = "works"    # All programs do what they do elsewhere.
REFUSED = "refused"  # Each refuses, or what does not need the resource works.
EITHER = "either"  # It depends on the machine's sizes: each of both is right.

# name, how it is made, what is expected of programs that write, what their refusal says, what operators' commands do.
ENVIRONMENTS = [
    ("as usual", usual, WORKS, "", WORKS),
    ("RLIMIT_FSIZE 20 KiB", fsize(20), REFUSED, "RLIMIT_FSIZE|File too large|room", EITHER),
    ("RLIMIT_FSIZE 64 KiB", fsize(64), REFUSED, "RLIMIT_FSIZE|File too large|room", WORKS),
    ("RLIMIT_FSIZE 100 KiB", fsize(100), WORKS, "", WORKS),  # Its log is copied, and begins anew.
    ("RLIMIT_FSIZE 400 KiB", fsize(400), WORKS, "", WORKS),
    *[(f"RLIMIT_NPROC {free}", nproc(free), EITHER, "limit of processes|limit of pids", EITHER) for free in range(1, 13)],
    ("RLIMIT_NOFILE 8", limit(resource.RLIMIT_NOFILE, 8), EITHER, "Too many open files|descriptor|open file|may open only", EITHER),
    ("RLIMIT_NOFILE 16", limit(resource.RLIMIT_NOFILE, 16), EITHER, "Too many open files|descriptor|open file|may open only", EITHER),
    *[(f"RLIMIT_AS {mib} MiB", limit(resource.RLIMIT_AS, mib << 20), EITHER, "memory|shared object|thread|RLIMIT_AS", EITHER)
      for mib in (64, 100, 160, 260)],
    ("RLIMIT_AS 512 MiB", limit(resource.RLIMIT_AS, 512 << 20), WORKS, "", WORKS),
    ("RLIMIT_STACK 256 KiB", limit(resource.RLIMIT_STACK, 256 << 10), WORKS, "", WORKS),
    *[(f"pids.max {count}", pids_max(count), EITHER, "limit of processes|limit of pids", EITHER) for count in (1, 2, 3, 4, 5, 6, 8)],
    ("a full disk", small_disk, EITHER, "no space left|No space left|input or output failed", EITHER),
    ("writes: ENOSPC", refused_writes(28), REFUSED, "no space left|No space left", EITHER),
    ("writes: EDQUOT", refused_writes(122), REFUSED, "no space left", EITHER),  # As of a full disk: nothing was written.
    ("a read-only mount", read_only_mount, REFUSED, "[Rr]ead-only|permission", WORKS),
    ("HOME=/", root_home, WORKS, "", WORKS),
    ("no HOME, no ONCE_STORE", no_home, REFUSED, "HOME is not set", REFUSED),
    ("an empty environment", empty_environment, REFUSED, "HOME is not set", REFUSED),
    ("an unknown user", unknown_user, WORKS, "", WORKS),
    ("a user after root", user_after_root, WORKS, "", WORKS),
    ("a user after root at home", user_after_root_at_home, WORKS, "", WORKS),
    ("a user after root's look", user_after_roots_look, WORKS, "", WORKS),
    ("root after a user", root_after_user, WORKS, "", WORKS),
    ("umask 0777, root", umask(0o777), WORKS, "", WORKS),
    ("umask 0777, a user", user_with_umask, WORKS, "", WORKS),
    ("closed 0, 1 and 2", closed, WORKS, "", WORKS),
    ("no /proc", in_mounts("mount -t tmpfs t /proc"), REFUSED, "mount /proc", WORKS),
    ("/proc with subset=pid", in_mounts("mount -t proc -o subset=pid proc /proc"), REFUSED, "ProcSubset=all", WORKS),
    ("/proc with hidepid=2", in_mounts("mount -t proc -o hidepid=2 proc /proc"), WORKS, "", WORKS),
    ("a pid namespace with the host's /proc", in_pids, WORKS, "", WORKS),
    ("a reader without permission to write", reader, REFUSED, "[Pp]ermission", WORKS),
    ("a reader of a copy", reader_of_backup, REFUSED, "[Pp]ermission", WORKS),
    *[(f"on {name}", shared(magic), REFUSED, "allow_shared_file_system=1", REFUSED)
      for name, magic in (("FUSE", "65735546"), ("NFS", "6969"), ("CIFS", "ff534d42"), ("SMB", "fe534d42"),
                          ("9p", "1021997"), ("Ceph", "c36400"))],
    ("on NFS, insisting", shared("6969", "NFS"), WORKS, "", WORKS),
    ("on overlay", shared("794c7630"), WORKS, "", WORKS),
]


# ---- programs. Each calls twice inside, then once outside, and returns the messages of refusals.

class Checks:
    def __init__(self, place, expected, says):
        self.place, self.expected, self.says = place, expected, says

    def end(self, code, message, what):
        """Of a process inside: True if it worked."""
        assert code >= 0, f"{what}: died of signal {-code}: {message}"
        assert code != 134 and "terminate called" not in message and "internal error" not in message, \
            f"{what}: exit {code}: {message}"
        if code == 0:
            return True
        quiet = self.place.prepare is not None and self.place.prepare.__name__ == "close"
        assert quiet or re.search(self.says, message) and self.says, f"{what}: exit {code}, does not say why: {message}"
        return False

    def outcome(self, worked, what):
        assert self.expected != WORKS or worked, f"{what}: was refused"
        assert self.expected != REFUSED or not worked, f"{what}: was not refused"

    def effects(self, name, least, what):
        count = self.place.effects(name)
        assert least <= count <= 1, f"{what}: acted {count} times"


def run_command(place, checks, flags=()):
    words = [ONCE, "run", "--key", f"k{''.join(flags)}", *flags, "--", "sh", "-c", f"echo ran >>{place.dir}/ran-run; echo out"]
    worked = False
    for call in ("first call", "second call"):
        code, out, err = place.call(*words)
        now = checks.end(code, err, f"run, {call}")
        assert now or not worked or checks.expected == EITHER, f"run, {call}: a result was acknowledged and is not replayed: {err}"
        worked = worked or now
        checks.effects("ran-run", 1 if worked else 0, f"run, {call}")
    checks.outcome(worked, "run")
    leave(place)
    code, out, err = place.call(*words, inside=False)
    assert code == 0, f"run, outside: exit {code}: {err}"
    assert out == "out\n", f"run, outside: {out}"
    checks.effects("ran-run", 1, "run, outside")


def run_under_hold(place, checks):
    run_command(place, checks, ("--on-lapse", "hold"))


def library(place, checks):
    words = [LIBRARY, str(place.file), "library", f"{place.dir}/ran-library"]
    if "ONCE_STORE" not in place.env:
        place.file.parent.mkdir(parents=True, exist_ok=True)
        return  # The library has no default store.
    if not place.library_url:
        return
    worked = False
    for call in ("first call", "second call"):
        code, _, err = place.call(*words)
        now = checks.end(code, err, f"library, {call}")
        worked = worked or now
        checks.effects("ran-library", 1 if worked else 0, f"library, {call}")
    checks.outcome(worked, "library")
    leave(place)
    code, _, err = place.call(*words, inside=False)
    assert code == 0, f"library, outside: exit {code}: {err}"
    checks.effects("ran-library", 1, "library, outside")


def leave(place):
    if hasattr(place, "leave"):
        place.leave()
        del place.leave


def operators(place, checks):
    """They read, and act on nothing. The record is made outside."""
    code, _, err = place.call(ONCE, "run", "--key", "seen", "--", "true", inside=False)
    changes_outside = place.store_dir.stat().st_mode & 0o222 or os.geteuid() == 0
    assert code in (0, 243) or not changes_outside, err
    for words in (("ls",), ("show", "--key", "seen"), ("stats",), ("doctor", "--quick")):
        code, _, err = place.call(ONCE, *words)
        if words[0] == "doctor":
            assert re.search(place.doctor_says, _), f"doctor does not say '{place.doctor_says}': {_}"
        if words[0] == "doctor" and code == 1:
            code = 0  # It found something, such as that all may read the file.
        checks.outcome(checks.end(code, err if words[0] != "doctor" else err + _, words[0]), words[0])


class Queue(http.server.ThreadingHTTPServer):
    """One message, again and again until it is deleted."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), QueueHandler)
        self.deleted = False
        self.receives = 0
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # It sees that of a program that ends.


class QueueHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):  # noqa: N802: the name is given
        self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.headers["X-Amz-Target"].removeprefix("AmazonSQS.")
        answer = {}
        if operation == "GetQueueUrl":
            answer = {"QueueUrl": self.server.url + "/queue"}
        elif operation == "GetQueueAttributes":
            answer = {"Attributes": {"QueueArn": "arn:aws:sqs:eu-central-1:000000000000:queue"} | dict.fromkeys(
                ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible",
                 "ApproximateNumberOfMessagesDelayed"), "0")}
        elif operation == "ReceiveMessage" and not self.server.deleted:
            self.server.receives += 1
            answer = {"Messages": [{"MessageId": "m-1", "ReceiptHandle": "r-1", "Body": "1",
                                    "MD5OfBody": "c4ca4238a0b923820dcc509a6f75849b",
                                    "Attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1"}}]}
        elif operation in ("DeleteMessage", "DeleteMessageBatch"):
            self.server.deleted = True
            answer = {"Successful": [{"Id": "0"}], "Failed": []}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def sqs(place, checks):
    queue = Queue()
    place.cleanup.callback(queue.server_close)
    place.cleanup.callback(queue.shutdown)
    words = [ONCE, "sqs", "--queue", "queue", "--endpoint", queue.url, "--drain", "--receive-wait", "1s", "--log", "json",
             "--", "sh", "-c", f"echo ran >>{place.dir}/ran-sqs"]
    # It may go on trying until the message is delivered to a program that can.
    code, _, err = end_of(place.start(*words), lambda: queue.receives > 3 and not queue.deleted)
    worked = queue.deleted
    if not worked or code not in (0, None):
        checks.end(code or 1, err, "sqs")
    checks.outcome(worked, f"sqs (exit {code}: {err[-400:]})")
    checks.effects("ran-sqs", 1 if worked else 0, "sqs")
    leave(place)
    queue.deleted = False  # It comes again.
    code, _, err = end_of(place.start(*words, inside=False))
    assert queue.deleted, f"sqs, outside: exit {code}: {err}"
    checks.effects("ran-sqs", 1, "sqs, outside")


def end_of(process, is_enough=lambda: False):
    """How it ended. As soon as `is_enough`, it is asked to end, and the exit code is None."""
    until = time.monotonic() + LIMIT_S
    asked = False
    while True:
        try:
            out, err = process.communicate(timeout=0.2)
            return None if asked else process.returncode, out.decode(), err.decode()
        except subprocess.TimeoutExpired:
            assert time.monotonic() < until, "did not end"
        if is_enough() and not asked:
            asked = True
            for pid in {process.pid, *children(process.pid)}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)


def children(pid):
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in done.stdout.split()]


def proxy(place, checks):
    upstream = service.Service()
    place.cleanup.callback(upstream.end)
    words = [ONCE, "proxy", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{upstream.port}", "--no-principal",
             "--threads", "1", "--log", "none"]
    if checks.place.prepare is not None and checks.place.prepare.__name__ == "close":
        return  # Its port is printed on standard error.
    for inside in (True, False):
        process = place.start(*words, inside=inside)
        line = process.stderr.readline().decode()  # Until the limit of the row.
        if "listening on port" not in line:
            _, rest = process.communicate(timeout=LIMIT_S)
            assert inside, f"proxy, outside: {line}"
            assert not checks.end(process.returncode, line + rest.decode(), "proxy")
            checks.outcome(False, "proxy")
            leave(place)
            continue
        port = int(line.split("port ")[1].split(",")[0])
        statuses = [post(port), post(port)]
        if inside:
            assert set(statuses) <= {201, 503}, f"proxy: {statuses}"
            assert statuses != [201, 503] or checks.expected == EITHER, "proxy: an answer was given and is not replayed"
            checks.outcome(201 in statuses, "proxy")
            leave(place)
        else:
            assert statuses == [201, 201], f"proxy, outside: {statuses}"
        end_proxy(process)
        assert process.returncode >= 0, f"proxy: died of signal {-process.returncode}"
    assert len(upstream.ledger) == 1, f"proxy: charged {len(upstream.ledger)} times"


def post(port):
    done = subprocess.run(["curl", "-sS", "--max-time", "30", "-o", "/dev/null", "-w", "%{http_code}", "-H",
                           "Idempotency-Key: order-17", "-d", "cents=500", f"http://127.0.0.1:{port}/charges"],
                          capture_output=True, text=True, check=False)
    return int(done.stdout or 0)


def end_proxy(process):
    if process.poll() is not None:
        return
    for pid in children(process.pid) or [process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)


def serve(place, checks):
    socket = place.dir / "serve.sock"
    words = [ONCE, "serve", "--listen", f"unix:{socket}", "--log", "none"]
    if checks.place.prepare is not None and checks.place.prepare.__name__ == "close":
        return  # That it listens is printed on standard error.
    worked = False
    for inside in (True, False):
        process = place.start(*words, inside=inside)
        line = process.stderr.readline().decode()
        if "listening on" not in line:
            _, rest = process.communicate(timeout=LIMIT_S)
            assert inside, f"serve, outside: {line}"
            assert not checks.end(process.returncode, line + rest.decode(), "serve")
            checks.outcome(False, "serve")
            leave(place)
            continue
        statuses = [claim(place, socket, f"request-of-{inside}-{call}") for call in (1, 2)]
        if inside:
            worked = 201 in statuses
            assert statuses == [201, 200] or not worked and set(statuses) == {503}, f"serve: {statuses}"
            checks.outcome(worked, "serve")
            leave(place)
        else:
            assert statuses == [200 if worked else 201, 200], f"serve, outside: {statuses}"
        end_proxy(process)
        assert process.returncode >= 0, f"serve: died of signal {-process.returncode}"
    checks.effects("ran-serve", 1, "serve")


def claim(place, socket, request_id):
    """The status of a request for a claim. A claim is carried out."""
    def ask(path, *words):
        done = subprocess.run(["curl", "-sS", "--max-time", "30", "--unix-socket", str(socket), "-w", "\n%{http_code}",
                               f"http://once/v1/claims{path}", *words], capture_output=True, text=True, check=False)
        body, _, status = done.stdout.rpartition("\n")
        return body, int(status or 0)
    body, status = ask("", "--json", json.dumps({"scope": "orders", "key": "17", "request_id": request_id}))
    if status == 201:
        with open(place.dir / "ran-serve", "a", encoding="ascii") as ran:
            ran.write("ran\n")
        _, recorded = ask(f"/{json.loads(body)['claim']}/complete", "-H", "Content-Type: text/plain", "-d", "charged")
        assert recorded == 200, f"serve: a claim was given, and its result is not recorded: {recorded}"
    return status


PROGRAMS = [("run", run_command), ("run under hold", run_under_hold), ("library", library), ("operators", operators),
            ("sqs", sqs), ("proxy", proxy), ("serve", serve)]


def on_row_limit(*_):
    raise AssertionError(f"the row did not end within {ROW_LIMIT_S} s")


def play_row(number, program_number):
    """In a process of its own: what became of the row, and why."""
    name, make, expected, says, for_operators = ENVIRONMENTS[number]
    program, play = PROGRAMS[program_number]
    with tempfile.TemporaryDirectory(prefix="once-test-") as directory:
        os.chmod(directory, 0o755)
        place = Place(directory)
        signal.signal(signal.SIGALRM, on_row_limit)
        signal.alarm(ROW_LIMIT_S)
        try:
            if program == "operators":
                place.call(ONCE, "run", "--key", "seen", "--", "true", inside=False)
            make(place)
            play(place, Checks(place, for_operators if program == "operators" else expected, says))
            if place.owner is not None:
                for path in place.store_dir.rglob("*"):
                    found = path.lstat()
                    assert (found.st_uid, found.st_mode & 0o77) == (place.owner, 0), f"{path}: {found}"
        except Impossible as reason:
            return "NOT RUN", str(reason)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            return "FAILED", str(error)
        finally:
            signal.alarm(0)
            place.end()
    return "held", ""


def main():
    rows = [(number, program) for number in range(len(ENVIRONMENTS)) for program in range(len(PROGRAMS))
            if re.search(PATTERN, f"{ENVIRONMENTS[number][0]}: {PROGRAMS[program][0]}")]
    counts = collections.Counter()
    begun = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(4) as pool:
        for (number, program), (end, why) in zip(rows, pool.map(play_row, *zip(*rows)) if rows else []):
            counts[end] += 1
            if end != "held":
                print(f"{end:8} {ENVIRONMENTS[number][0]}: {PROGRAMS[program][0]}: {why}", flush=True)
    print(f"{counts['held']} rows held, {counts['FAILED']} failed, {counts['NOT RUN']} not run, "
          f"in {time.monotonic() - begun:.0f} s")
    sys.exit(1 if counts["FAILED"] or not counts["held"] else 0)


if __name__ == "__main__":
    main()
