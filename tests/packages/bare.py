"""A bare Debian in a folder, 12 if no other one is named, as mmdebstrap makes it from the mirror that apt has here. Needs root.

bare.py FOLDER [OPTION ...]: makes one, with these options of mmdebstrap.
"""
import pathlib
import re
import subprocess
import sys

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


def make(root, *options, outside=(), suite="bookworm"):
    """`outside` is what leads a command out of a network of one's own. dpkg does not wait for the disk
    there, as nothing of it is kept. Its lists of packages are up to date."""
    reach = [f"--aptopt={file}" for file in pathlib.Path("/etc/apt/apt.conf.d").glob("*") if "Proxy" in file.read_text(errors="replace")]
    run(*outside, "mmdebstrap", "--variant=minbase", "--dpkgopt=force-unsafe-io", "--skip=cleanup/apt/lists", *reach, *options,
        suite, root, mirror())


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]), *sys.argv[2:])
