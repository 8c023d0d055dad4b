"""A server of another user, for tests that run as root: others cannot start one."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SERVER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listener.listen()
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    print(connection.recv(65536), flush=True)
    connection.close()
"""


def start(case):
    """Its address, in a directory that every user can write, or None. What it gets it prints: `case.stranger` is its process."""
    if os.geteuid() != 0:
        return None
    folder = tempfile.mkdtemp(prefix="once-stranger-", dir="/tmp")
    case.addCleanup(shutil.rmtree, folder, True)
    pathlib.Path(folder).chmod(0o1777)
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    case.stranger = subprocess.Popen([python, "-c", SERVER, f"{folder}/s"], stdout=subprocess.PIPE, user=65534, cwd="/")
    case.addCleanup(case.stranger.communicate)
    case.addCleanup(case.stranger.kill)
    case.assertEqual(case.stranger.stdout.readline(), b"listening\n")
    return f"unix:{folder}/s"


def check_nothing_was_sent(case):
    case.stranger.kill()
    case.assertEqual(case.stranger.stdout.read().replace(b"b''\n", b""), b"")
