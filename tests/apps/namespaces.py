"""Linux namespaces for tests that change what a machine looks like: they end with the test."""
import os
import subprocess
import sys

ENTERED = "ONCE_TEST_NAMESPACE"


def tried(words, trial):
    """Why the shell command `trial` fails in the namespace that `words` make; nothing if it does not."""
    done = subprocess.run([*words, "sh", "-c", trial], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def enter(kinds, trial, what):
    """Starts this script again in a namespace of that kind ("net", "mount"; or of several, as a list) in which it may do
    everything; returns when it is that one already. `trial` is a shell command that only works there; `what` says what it
    is for."""
    kinds = [kinds] if isinstance(kinds, str) else kinds
    link = f"/proc/self/ns/{'mnt' if kinds[0] == 'mount' else kinds[0]}"
    outside = os.environ.pop(ENTERED, None)
    if outside not in (None, os.readlink(link)):
        return
    flags = [f"--{kind}" for kind in kinds]
    problems = []
    for words in (["unshare", *flags], ["unshare", "--user", "--map-root-user", *flags]):
        problem = tried(words, trial)
        if not problem:
            os.environ[ENTERED] = os.readlink(link)
            os.execvp(words[0], [*words, sys.executable, *sys.argv])
        problems.append(f"  {' '.join(words)}: {problem}")
    sys.exit(f"this test cannot make {what}. Run it as root, or where users may make namespaces (containers: --cap-add "
             "SYS_ADMIN --cap-add NET_ADMIN, or no seccomp filter):\n" + "\n".join(problems))
