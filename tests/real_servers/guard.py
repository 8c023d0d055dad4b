"""Starts the servers of a test, and ends them when the test does, however that ends.

    with guard.Guard("once-postgresql-") as servers:
        server = servers.start(["pgbouncer", "pgbouncer.ini"], log=servers.folder / "pgbouncer.log")

The guard is a process of its own, in a session of its own: Ctrl-C and a signal to the test's process group do not reach
it. It holds one end of a socket. When the other end is closed (the test has ended, was interrupted or killed), it ends
all that it started and what those started, and removes the folder. If the guard itself is killed, the kernel sends
SIGQUIT to each server that it started; then the folder stays.

Servers run unprivileged: as the user `postgres` or `nobody` when the test runs as root.
"""
import ctypes
import json
import os
import pathlib
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

STOP_LIMIT_S = 10
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def unprivileged():
    """The user that servers run as, when it is not the user of the test."""
    if os.geteuid():
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def unprivileged_command(command):
    """The command as that user. It gets SIGQUIT when the process that starts it ends: PostgreSQL's immediate stop."""
    user = unprivileged()
    identity = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"] if user else []
    return ["setpriv", *identity, "--pdeathsig=QUIT", "--", *map(os.fspath, command)]


class Process:
    """A server's process. It is the guard's child, so it is watched by a pidfd."""

    def __init__(self, pid, pidfd):
        self.pid = pid
        self._pidfd = pidfd

    def running(self):
        return not select.select([self._pidfd], [], [], 0)[0]

    def send(self, number):
        """Nothing if it has ended."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            pass

    def wait(self, limit_s):
        """Whether it has ended within that time."""
        return bool(select.select([self._pidfd], [], [], limit_s)[0])

    def kill_with_children(self, limit_s=STOP_LIMIT_S):
        """SIGKILL for it and all its children at once, as when a machine dies. Returns when none is left."""
        self.send(signal.SIGSTOP)  # It starts no other child meanwhile.
        doomed = [process for process in map(open_process, children(self.pid)) if process] + [self]
        for process in doomed:
            process.send(signal.SIGKILL)
        for process in doomed:
            if not process.wait(limit_s):
                raise RuntimeError(f"process {process.pid} did not end within {limit_s} s of SIGKILL")

    def __del__(self):
        os.close(self._pidfd)


def open_process(pid):
    """None if there is no such process any more."""
    try:
        return Process(pid, os.pidfd_open(pid))
    except ProcessLookupError:
        return None


def children(pid):
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


class Guard:
    """A folder below the temporary one, and the process that looks after it."""

    def __init__(self, prefix):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
        user = unprivileged()
        if user:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), self.folder],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True, cwd="/",
            )

    def start(self, command, log, environment=None, enter=()):
        """Starts it unprivileged, in the folder of its log, to which its output is added. `enter` is what comes before the
        command, privileged: such as nsenter."""
        request = {"command": [*enter, *unprivileged_command(command)], "log": os.fspath(log),
                   "environment": environment}
        self._socket.send(json.dumps(request).encode())
        answer, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 16, 1)
        if not answer:
            raise RuntimeError("the guard of the test's servers has ended")
        told = json.loads(answer)
        if "error" in told:
            raise RuntimeError(f"{command[0]} did not start: {told['error']}")
        return Process(told["pid"], descriptors[0])

    def close(self):
        """Ends all servers, and removes the folder."""
        self._socket.close()
        try:
            status = self._process.wait(4 * STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        if status:
            raise RuntimeError(f"the guard of the test's servers ended with {status}; its folder was {self.folder}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def end_all(number, limit_s):
    """Sends the signal to all that this process has started. What they leave behind becomes its child in turn."""
    end = time.monotonic() + limit_s
    told = set()
    while left := children(os.getpid()):
        for pid in set(left) - told:
            os.kill(pid, number)  # Not reaped yet, so the number is still its own.
        told.update(left)
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
        reap()
    return True


def remove_shared_memory(folder):
    """A PostgreSQL that was killed leaves a small segment behind, whose number is in its postmaster.pid."""
    for file in folder.glob("*/postmaster.pid"):
        lines = file.read_text().splitlines()
        if len(lines) > 6 and len(lines[6].split()) == 2:
            subprocess.run(["ipcrm", "-m", lines[6].split()[1]], check=False, stderr=subprocess.DEVNULL)


def main(descriptor, folder):
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asked = socket.socket(fileno=descriptor)
    while request := asked.recv(1 << 16):
        reap()
        told = json.loads(request)
        log = pathlib.Path(told["log"])
        try:
            with open(log, "ab") as output:
                process = subprocess.Popen(
                    told["command"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=log.parent,
                    env=told["environment"], start_new_session=True,
                )
            pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            asked.send(json.dumps({"error": str(error)}).encode())
            continue
        process.returncode = 0  # reap() collects it, not subprocess.
        socket.send_fds(asked, [json.dumps({"pid": process.pid}).encode()], [pidfd])
        os.close(pidfd)
    end_all(signal.SIGQUIT, STOP_LIMIT_S)
    end_all(signal.SIGKILL, STOP_LIMIT_S)
    remove_shared_memory(folder)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), pathlib.Path(sys.argv[2]))
