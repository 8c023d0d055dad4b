"""check.py DEB ...: what the packages hold, without installing them."""
import gzip
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

DEBS = sys.argv[1:]


def run(*command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more).stdout


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        cls.files, cls.multi_arch = {}, {}
        for deb in DEBS:
            name = run("dpkg-deb", "-f", deb, "Package").strip()
            run("dpkg-deb", "-x", deb, str(cls.root / name))
            cls.multi_arch[name] = run("dpkg-deb", "-f", deb, "Multi-Arch").strip()
            cls.files[name] = {str(file.relative_to(cls.root / name)) for file in (cls.root / name).rglob("*") if not file.is_dir()}
        cls.once = cls.root / "once/usr/bin/once"

    def complete(self, *words):
        script = (f"source {self.root}/once/usr/share/bash-completion/completions/once; "
                  f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _once; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        return run("bash", "-c", script).split()

    def test_each_file_is_in_one_package(self):
        self.assertEqual(set(self.files), {"once", "libonce-dev"})
        self.assertEqual(self.files["once"] & self.files["libonce-dev"], set())
        self.assertIn("usr/bin/once", self.files["once"])
        library = self.files["libonce-dev"]
        self.assertTrue(any(file.endswith("/libonce_engine.a") for file in library))
        self.assertIn("usr/include/once/engine/engine.hpp", library)
        self.assertTrue(any(file.endswith("/cmake/once/once-config.cmake") for file in library))
        self.assertTrue(any(file.endswith("/pkgconfig/once-engine.pc") for file in library))
        self.assertEqual({file for file in library if file.startswith(("usr/bin", "lib/"))}, set())

    def test_architectures_can_stand_side_by_side(self):
        self.assertEqual(self.multi_arch, {"once": "foreign", "libonce-dev": "same"})
        triplet = run("gcc", "-print-multiarch").strip()
        shared = {file for file in self.files["libonce-dev"] if not file.startswith(f"usr/lib/{triplet}/")}
        self.assertEqual({file for file in shared if not file.startswith(("usr/include/once/", "usr/share/doc/"))}, set())

    def test_the_program_runs_and_says_its_version(self):
        version = re.search(r"once_([0-9.]+)_", " ".join(DEBS))[1]
        self.assertEqual(run(str(self.once), "--version"), f"once {version}\n")

    def test_each_command_has_a_manual_page_that_renders(self):
        pages = self.root / "once/usr/share/man/man1"
        names = {page.name for page in pages.iterdir()}
        commands = re.findall(r"^  ([a-z-]+)  ", run(str(self.once), "--help").split("Subcommands:")[1], re.M)
        self.assertGreater(len(commands), 15)
        for command in commands:
            self.assertIn(f"once-{command}.1.gz", names)
        for page in sorted(pages.iterdir()):
            text = gzip.decompress(page.read_bytes()).decode()
            self.assertEqual(run("groff", "-man", "-Tutf8", "-ww", "-k", "-z", input=text), "", page.name)
            self.assertNotIn("\\fI\\fR", text)

    def test_bash_completes_commands_options_and_choices(self):
        self.assertEqual(self.complete("once", "pro"), ["proxy"])
        self.assertEqual(sorted(self.complete("once", "table", "")), ["check", "create", "delete", "upgrade"])
        self.assertEqual(self.complete("once", "run", "--reten"), ["--retention"])
        self.assertEqual(self.complete("once", "run", "--key", "k", "--on-lapse", "h"), ["hold"])
        self.assertIn("true", self.complete("once", "run", "--key", "k", "--", "tru"))
        self.assertEqual(self.complete("once", "show", "--on-lapse", "h"), [])

    def test_zsh_and_fish_take_their_completions(self):
        share = self.root / "once/usr/share"
        zsh, fish = share / "zsh/vendor-completions/_once", share / "fish/vendor_completions.d/once.fish"
        run("zsh", "-n", str(zsh))
        run("fish", "--no-execute", str(fish))
        self.assertIn("__fish_seen_subcommand_from run' -d", fish.read_text())

    def test_the_documents_lead_to_what_is_there(self):
        docs = self.root / "once/usr/share/doc/once/docs"
        links = {link for page in docs.rglob("*.md") for link in re.findall(r"\]\(((?:\.\./)+deploy/[^)#]*)", page.read_text())
                 if not (page.parent / link).exists()}
        self.assertEqual(links, set())

    def test_the_units_are_shut_in(self):
        units = self.root / "once/usr/lib/systemd/system"
        starters = sorted([*units.glob("*.timer"), *units.glob("*.socket")])
        self.assertEqual([unit.name for unit in starters], ["once-serve.socket", "once-sweep@.timer"])
        for starter in starters:
            run("systemd-analyze", "verify", "--man=no", str(starter))
            self.assertTrue(starter.with_suffix(".service").exists())
        for unit in sorted(units.glob("*.service")):
            run("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit))
            command = shlex.split(re.search(r"^ExecStart=(.*)$", unit.read_text(), re.M)[1])
            self.assertEqual(command[0], "/usr/bin/once")
            known = run(str(self.once), command[1], "--help")
            for word in command[2:]:
                if word == "--":
                    break
                if word.startswith("--"):
                    self.assertIn(word, known, unit.name)


if __name__ == "__main__":
    program = unittest.main(argv=[sys.argv[0]], exit=False, verbosity=2)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun or bool(program.result.skipped))
