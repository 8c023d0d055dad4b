"""Linux namespaces for tests that change what a machine looks like: they end with the test."""
import os
import subprocess
import sys

ENTERED = "ONCE_TEST_NAMESPACE"


def enter(kind, trial, what):
    """Starts this script again in a namespace of that kind ("net", "mount") in which it may do everything; returns when it
    is that one already. `trial` is a shell command that only works there; `what` says what it is for."""
    link = f"/proc/self/ns/{'mnt' if kind == 'mount' else kind}"
    outside = os.environ.pop(ENTERED, None)
    if outside not in (None, os.readlink(link)):
        return
    problems = []
    for words in (["unshare", f"--{kind}"], ["unshare", "--user", "--map-root-user", f"--{kind}"]):
        done = subprocess.run([*words, "sh", "-c", trial], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            os.environ[ENTERED] = os.readlink(link)
            os.execvp(words[0], [*words, sys.executable, *sys.argv])
        problems.append(f"  {' '.join(words)}: {done.stderr.strip()}")
    sys.exit(f"this test cannot make {what}. Run it as root, or where users may make namespaces (containers: --cap-add "
             "SYS_ADMIN --cap-add NET_ADMIN, or no seccomp filter):\n" + "\n".join(problems))
