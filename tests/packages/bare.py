"""A bare Debian 12 in a folder, as debootstrap makes it from the mirror that apt has here. Needs root."""
import pathlib
import re
import shutil
import subprocess

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(str(word) for word in command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def mirror():
    """As apt has it here."""
    for file in [pathlib.Path("/etc/apt/sources.list"), *pathlib.Path("/etc/apt/sources.list.d").glob("*")]:
        found = file.is_file() and re.search(r"https?://[^\s\]]+/debian/?(?=\s)", file.read_text())
        if found:
            return found[0]
    raise RuntimeError("apt names no mirror of Debian")


def make(root, outside=()):
    """`outside` is what leads a command out of a network of one's own."""
    run(*outside, "debootstrap", "--variant=minbase", "bookworm", root, mirror())
    for file in pathlib.Path("/etc/apt/apt.conf.d").glob("*"):  # How this machine reaches the mirror.
        if "Proxy" in file.read_text(errors="replace"):
            shutil.copy(file, root / "etc/apt/apt.conf.d")
