"""tools/setup says which installed packages change before it changes them. With stand-ins for apt-get and sudo."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
APT = """#!/bin/sh
echo "apt-get $*" >>"$LOG"
case "$*" in
*--simulate*) cat <<'END'
Inst libssl3 [3.0.11-1] (3.0.15-1 Debian:12/stable [amd64])
Inst libssl-dev (3.0.15-1 Debian:12/stable [amd64])
Remv libold-dev [1.0]
Conf libssl3 (3.0.15-1 Debian:12/stable [amd64])
END
esac
"""
STAND_INS = {
    "apt-get": APT,
    "dpkg-query": "#!/bin/sh\ncat \"$INSTALLED\"\n",
    # Only what apt-get stands in for is run. So nothing of this machine is written.
    "sudo": "#!/bin/sh\ncase \"$*\" in *apt-get*) exec \"$@\";; tee*) cat >/dev/null;; esac\n",
    "systemctl": "#!/bin/sh\n",
}


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "tools").mkdir()
        for file in ("setup", "dependencies.txt"):
            shutil.copy(ROOT / "tools" / file, folder / "tools" / file)
        bin_ = folder / "bin"
        bin_.mkdir()
        for tool, text in STAND_INS.items():
            (bin_ / tool).write_text(text)
            (bin_ / tool).chmod(0o755)
        needed = [line.split()[1] for line in (ROOT / "tools/dependencies.txt").read_text().splitlines()
                  if line.split()[:1] == ["build"]]
        installed = folder / "installed"
        installed.write_text("".join(f"installed {package}\n" for package in needed if package != "libssl-dev"))
        log = folder / "log"
        log.touch()
        for path in (folder, folder / "tools", bin_):
            path.chmod(0o755)
        log.chmod(0o666)
        environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "LOG": str(log), "INSTALLED": str(installed)}
        nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run([folder / "tools/setup", "build"], env=environment, capture_output=True, text=True, **nobody)
        said = done.stdout
        if done.returncode != 0:
            sys.exit(f"it ended with {done.returncode}: {said}{done.stderr}")
        for line in ("installing libssl-dev", "libssl3: 3.0.11-1 becomes 3.0.15-1", "libold-dev: removed"):
            if line not in said:
                sys.exit(f"it does not say '{line}':\n{said}")
        if "libssl-dev: " in said:
            sys.exit(f"a new package is none that changes:\n{said}")
        calls = [line for line in log.read_text().splitlines() if " install " in line]
        if len(calls) != 2 or "--simulate" not in calls[0] or "--simulate" in calls[1]:
            sys.exit(f"it does not look before it installs:\n{calls}")
        print(said, end="")


if __name__ == "__main__":
    main()
