"""tools/selection on a project of its own: two libraries, tests of one, of both and of neither, and a script.

No test looks at the clock, and nothing is built: the tool reads what CMake knows after configuring.
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEITHER = 60  # Tests of nothing. With them a tenth of all is a few, and so is the limit.
FILES = {
    "CMakeLists.txt": """
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
enable_testing()
add_subdirectory(src/low)
add_subdirectory(src/high)
add_subdirectory(tests/low)
add_subdirectory(tests/high)
add_subdirectory(tests/none)
""",
    "src/low/CMakeLists.txt": "add_library(low STATIC low.cpp)\ntarget_include_directories(low PUBLIC ${CMAKE_SOURCE_DIR}/include)\n",
    "src/high/CMakeLists.txt": "add_library(high STATIC high.cpp)\ntarget_link_libraries(high PUBLIC low)\n",
    "include/low.hpp": "int low();\n",
    "include/high.hpp": "int high();\n",
    "src/low/low.cpp": "#include <low.hpp>\nint low() { return 1; }\n",
    "src/high/high.cpp": '#include "high.hpp"\n#include "low.hpp"\nint high() { return low(); }\n',
    "tests/low/CMakeLists.txt": "add_executable(low_test low_test.cpp)\ntarget_link_libraries(low_test PRIVATE low)\n"
                                "add_test(NAME low COMMAND low_test)\n",
    "tests/low/low_test.cpp": '#include "low.hpp"\nint main() { return low(); }\n',
    "tests/low/vectors.json": "{}\n",
    "tests/high/CMakeLists.txt": "add_executable(high_test high_test.cpp)\ntarget_link_libraries(high_test PRIVATE high)\n"
                                 "add_test(NAME high COMMAND high_test)\n"
                                 "add_test(NAME script COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/script_test.py)\n",
    "tests/high/high_test.cpp": '#include "high.hpp"\nint main() { return high(); }\n',
    "tests/high/script_test.py": "import helper\n",
    "tests/high/helper.py": "",
    "tests/none/CMakeLists.txt": f"foreach(number RANGE 1 {NEITHER})\n"
                                 "  add_test(NAME none_${number} COMMAND true)\nendforeach()\n",
    "README.md": "A page.\n",
}
PRESETS = {
    "version": 6,
    "configurePresets": [
        {"name": "asan", "generator": "Ninja", "binaryDir": "${sourceDir}/build/asan", "cacheVariables": {"ONCE_SANITIZE": "address"}},
        {"name": "tsan", "generator": "Ninja", "binaryDir": "${sourceDir}/build/tsan", "cacheVariables": {"ONCE_SANITIZE": "thread"}},
        {"name": "dev", "generator": "Ninja", "binaryDir": "${sourceDir}/build/dev"},
    ],
}
ALL = {"low", "high", "script", *(f"none_{number}" for number in range(1, NEITHER + 1))}


class Selection(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("GIT_", "ONCE_SELECTION", "CCACHE"))}
        for name, text in FILES.items():
            self.write(name, text)
        self.write("CMakePresets.json", json.dumps(PRESETS))
        self.write(".gitignore", "/build/\n")
        (self.root / "tools").mkdir()
        shutil.copy(ROOT / "tools/selection", self.root / "tools/selection")
        self.git("init", "--quiet", "--initial-branch=main")
        self.first = self.commit("the first")
        self.landed(self.first, 2)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def git(self, *words):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words], cwd=self.root,
                              env=self.environment, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def landed(self, base, turn):
        self.write(".ci/landed", f"{base} {turn}\n")

    def tool(self, *words, selection=None, code=0):
        environment = dict(self.environment, **({"ONCE_SELECTION": selection} if selection else {}))
        result = subprocess.run([self.root / "tools/selection", *words], env=environment, check=False,
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout, result.stderr

    def chosen(self, kind="tests", preset="asan", **more):
        stdout, self.reason = self.tool(preset, kind, **more)
        return {line.split()[0] for line in stdout.splitlines()}

    def shares(self):
        """What is chosen without a change."""
        return self.chosen(selection=f"{self.git('rev-parse', 'HEAD')} 2 {self.git('rev-parse', 'HEAD')}")

    def affected_by(self, name, text="// Changed.\n"):
        shares = self.shares()
        self.write(name, (self.root / name).read_text(encoding="utf-8") + text)
        found = self.chosen(selection=f"{self.git('rev-parse', 'HEAD')} 2 {self.git('rev-parse', 'HEAD')}")
        self.git("checkout", "--quiet", name)
        self.assertLessEqual(shares, found)
        # What both have cannot be told apart, so it is left to the caller's other changes.
        return found - shares, shares

    def test_a_change_selects_what_is_made_of_it(self):
        for name, wanted in {
                "include/low.hpp": {"low", "high"},
                "src/low/low.cpp": {"low", "high"},
                "src/high/high.cpp": {"high"},
                "tests/low/low_test.cpp": {"low"},
                "tests/low/vectors.json": {"low"},
                "src/high/CMakeLists.txt": {"high"},
        }.items():
            with self.subTest(name):
                found, shares = self.affected_by(name, "\n")
                self.assertEqual(found | (shares & wanted), wanted)

    def test_a_script_is_affected_by_what_it_imports(self):
        found, shares = self.affected_by("tests/high/helper.py", "# Changed.\n")
        self.assertEqual(found | (shares & {"script"}), {"script"})

    def test_a_page_affects_nothing(self):
        self.assertEqual(self.affected_by("README.md")[0], set())

    def test_ten_turns_select_everything_however_often_nothing_changes(self):
        seen = set()
        for turn in range(7, 17):
            found = self.chosen(selection=f"{self.first} {turn} {self.first}")
            self.assertLess(len(found), len(ALL) / 2)
            seen |= found
        self.assertEqual(seen, ALL)

    def test_a_file_that_can_affect_everything_selects_up_to_the_limit(self):
        self.write("CMakePresets.json", json.dumps(PRESETS) + "\n")
        found = self.chosen()
        self.assertIn("of the 63 that", self.reason)
        self.assertLess(len(found), len(ALL))
        self.assertGreaterEqual(len(found), len(ALL) / 10)

    def test_the_limit_counts_seconds(self):
        """A tenth of 63 tests of three seconds is 18 seconds. No affected test but the first may take more."""
        self.write("CMakePresets.json", json.dumps(PRESETS) + "\n")
        self.write("tests/none/CMakeLists.txt", FILES["tests/none/CMakeLists.txt"] +
                   f"foreach(number RANGE 1 {NEITHER})\n  set_tests_properties(none_${{number}} PROPERTIES COST 1000)\nendforeach()\n")
        self.chosen()
        self.assertRegex(self.reason, r": [678] of the 63 that")

    def test_without_a_sanitizer_only_rare_tests_are_subject_to_choice(self):
        rare = {f"none_{number}" for number in range(1, NEITHER + 1)}
        self.write("tests/none/CMakeLists.txt", FILES["tests/none/CMakeLists.txt"] +
                   f'foreach(number RANGE 1 {NEITHER})\n  set_tests_properties(none_${{number}} PROPERTIES LABELS "none;rare")\nendforeach()\n')
        seen = set()
        for turn in range(10):
            found = self.chosen(preset="dev", selection=f"{self.first} {turn} {self.first}")
            self.assertLessEqual(ALL - rare, found)
            self.assertLess(len(found & rare), len(rare) / 2)
            seen |= found
        self.assertEqual(seen, ALL)
        self.assertEqual(self.chosen(preset="dev", selection="all"), ALL)

    def test_what_mirrors_a_change_comes_first(self):
        self.write("CMakePresets.json", json.dumps(PRESETS) + "\n")
        self.write("src/low/low.cpp", FILES["src/low/low.cpp"] + "\n")
        for number in range(5):
            self.assertIn("low", self.chosen(selection=f"{self.first} 2 {number}"))

    def test_in_the_other_sanitizers_turn_only_few_affected_pieces_are_chosen(self):
        self.assertEqual(self.chosen(selection=f"{self.first} 1 {self.first}"), set())
        self.write("src/high/high.cpp", FILES["src/high/high.cpp"] + "\n")
        self.assertEqual(self.chosen(selection=f"{self.first} 1 {self.first}"), {"high"})
        self.assertEqual(self.chosen(preset="tsan", selection=f"{self.first} 2 {self.first}"), {"high"})
        self.assertLess({"high"}, self.chosen(preset="tsan", selection=f"{self.first} 1 {self.first}"))
        self.write("CMakePresets.json", json.dumps(PRESETS) + "\n")
        self.assertEqual(self.chosen(selection=f"{self.first} 1 {self.first}"), set())

    def test_a_missing_or_foreign_base_selects_everything(self):
        (self.root / ".ci/landed").unlink()
        self.assertEqual(self.chosen(), ALL)
        for text in ("", "1", "x y z", f"{self.first} one"):
            self.write(".ci/landed", text)
            self.assertEqual(self.chosen(), ALL, text)
        self.git("checkout", "--quiet", "-b", "other")
        foreign = self.commit("elsewhere")
        self.git("checkout", "--quiet", "main")
        self.landed(foreign, 1)
        self.assertEqual(self.chosen(), ALL)
        self.landed("0" * 40, 1)
        self.assertEqual(self.chosen(), ALL)
        self.assertEqual(self.chosen(selection="all"), ALL)

    def test_what_it_prints_repeats_a_choice(self):
        self.write("src/low/low.cpp", "int low() { return 2; }\n")
        self.commit("a change")
        found = self.chosen()
        again = self.reason.partition('ONCE_SELECTION="')[2].partition('"')[0]
        self.commit("another commit, another share")
        self.assertEqual(self.chosen(selection=again), found)

    def test_a_mistyped_choice_is_refused(self):
        for wrong in ("everything", f"{self.first} 1", f"{self.first} one {self.first}"):
            self.tool("asan", "tests", selection=wrong, code=1)
        self.tool("asan", "test", code=1)

    def test_targets_follow_a_test(self):
        stdout, _ = self.tool("asan", "tests", selection="all")
        self.assertIn("high high_test\n", stdout)
        self.assertIn("script\n", stdout)

    def test_the_base_moves_forward_only_to_an_ancestor(self):
        second = self.commit("the second")
        self.tool("--landed")
        self.assertEqual((self.root / ".ci/landed").read_text(encoding="utf-8"), f"{second} 3\n")
        self.tool("--landed", "0" * 40, code=1)
        self.assertEqual((self.root / ".ci/landed").read_text(encoding="utf-8"), f"{second} 3\n")

    def test_a_stage_is_selected_by_its_files_or_its_turn(self):
        of_turns = [self.chosen("simulation", selection=f"{self.first} {turn} {self.first}") for turn in range(10)]
        self.assertIn({"simulation"}, of_turns)
        self.write("src/core/decide.cpp", "")
        self.assertEqual(self.chosen("simulation"), {"simulation"})


if __name__ == "__main__":
    unittest.main()
