"""arm64.py DEB ...: the packages for arm64, beside those for this machine. Compares what they hold, installs them, runs the
program by an emulator, and builds a program with the library. Run by tools/packages arm64 as root in a Debian that may be
thrown away (tools/arm64), which has the cross compiler and knows arm64 as a foreign architecture."""
import json
import pathlib
import re
import sys
import tempfile
import unittest

from bare import run

EMULATOR = "qemu-aarch64-static"
DEBS = {tuple(pathlib.Path(deb).stem.split("_")[::2]): pathlib.Path(deb).resolve() for deb in sys.argv[1:]}
CONSUMER = pathlib.Path(__file__).resolve().parents[2] / "packaging/conan/test_package"


def field(deb, name):
    return run("dpkg-deb", "-f", deb, name).strip()


def names(relation):
    return {re.split(r"[ (|:]", part.strip())[0] for part in relation.split(",") if part.strip()}


class Arm64(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        for (package, arch), deb in DEBS.items():
            (cls.root / package).mkdir(exist_ok=True)
            run("dpkg-deb", "-x", deb, cls.root / package / arch)

    def files(self, package, arch):
        top = self.root / package / arch
        triplet = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
        return {str(file.relative_to(top)).replace(triplet, "TRIPLET"): file for file in top.rglob("*") if file.is_file()}

    def test_1_they_hold_what_those_of_this_machine_hold(self):
        self.assertEqual(set(DEBS), {(package, arch) for package in ("once", "libonce-dev") for arch in ("amd64", "arm64")})
        for package in ("once", "libonce-dev"):
            self.assertEqual(field(DEBS[package, "arm64"], "Architecture"), "arm64")
            for relation in ("Version", "Multi-Arch", "Depends", "Recommends", "Suggests", "Section", "Description"):
                ours, theirs = (field(DEBS[package, arch], relation) for arch in ("amd64", "arm64"))
                if relation == "Depends":
                    ours, theirs = names(ours), names(theirs)
                self.assertEqual(theirs, ours, f"{relation} of {package}")
            ours, theirs = self.files(package, "amd64"), self.files(package, "arm64")
            self.assertEqual(set(theirs), set(ours))
            # Manual, completions, documents, headers, units: the very same.
            same = [name for name in ours if not re.search(r"^usr/bin/|^usr/lib/TRIPLET/", name)]
            self.assertGreater(len(same), 50)
            for name in same:
                self.assertEqual(theirs[name].read_bytes(), ours[name].read_bytes(), name)

    def test_2_all_of_it_is_for_arm64(self):
        machines = {}
        for package in ("once", "libonce-dev"):
            for name, file in self.files(package, "arm64").items():
                if file.read_bytes()[:4] == b"\x7fELF" or name.endswith(".a"):
                    machines[name] = set(re.findall(r"Machine: +(.*)", run("aarch64-linux-gnu-readelf", "-h", file)))
        self.assertGreater(len(machines), 20)
        self.assertIn("usr/bin/once", machines)
        self.assertEqual({name: machine for name, machine in machines.items() if machine != {"AArch64"}}, {})

    def test_3_the_program_runs_and_replays(self):
        self.install("once")
        version = field(DEBS["once", "arm64"], "Version")
        self.assertEqual(run(EMULATOR, "/usr/bin/once", "--version"), f"once {version}\n")
        # The effect is counted: the second call must not add to it.
        effects = self.root / "effects"
        command = ["sh", "-c", f"echo ran >> {effects}; cat /proc/sys/kernel/random/uuid"]
        record = [EMULATOR, "/usr/bin/once", "run", "--store", f"sqlite:{self.root}/once.db", "--key", "order-17", "--", *command]
        first = run(*record)
        self.assertRegex(first, r"^[0-9a-f-]{36}\n$")
        self.assertEqual(run(*record), first)
        self.assertEqual(effects.read_text(), "ran\n")
        listed = json.loads(run(EMULATOR, "/usr/bin/once", "ls", "--store", f"sqlite:{self.root}/once.db", "--json"))
        self.assertEqual([(record["key"], record["state"], record["attempt"]) for record in listed], [("order-17", "completed", 1)])

    def test_4_the_library_works(self):
        self.install("libonce-dev")
        build = self.root / "build"
        run("cmake", "-G", "Ninja", f"-DCMAKE_TOOLCHAIN_FILE={pathlib.Path.cwd()}/cmake/arm64.cmake", "-S", CONSUMER, "-B", build)
        run("cmake", "--build", build)
        charge = [EMULATOR, build / "charge", "order-17", "500"]
        self.assertEqual(run(*charge, cwd=build), "charging 500 cents\nreceipt for order-17\n")
        self.assertEqual(run(*charge, cwd=build), "receipt for order-17\n")

    def test_5_removed_they_leave_nothing(self):
        packages = [f"{package}:arm64" for package in ("once", "libonce-dev")]
        files = [pathlib.Path(name) for name in run("dpkg", "-L", *packages).split("\n") if name]
        files = [file for file in files if file.is_file()]
        self.assertGreater(len(files), 100)
        run("apt-get", "purge", "-y", "-q", *packages)
        self.assertEqual([file for file in files if file.exists()], [])

    def install(self, package):
        run("apt-get", "install", "-y", "-q", "--no-install-recommends", DEBS[package, "arm64"])


if __name__ == "__main__":
    program = unittest.main(argv=[sys.argv[0]], exit=False, verbosity=2)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun or bool(program.result.skipped))
