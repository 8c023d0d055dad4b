"""vcpkg.py: the port in packaging/vcpkg without vcpkg, which is not packaged in Debian. The port's script is run by cmake
with stand-ins for vcpkg's functions: the one that configures does so, with what Debian has. So its features are real
options, the components are there, and its placeholders are what tools/release fills in."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PORT = ROOT / "packaging/vcpkg"
STAND_INS = """
cmake_minimum_required(VERSION 3.25)
function(say)
  file(APPEND "${OUT}/said" "${ARGV}\\n")
endfunction()
function(vcpkg_download_distfile out)
  say(download ${ARGN})
  set(${out} archive PARENT_SCOPE)
endfunction()
function(vcpkg_extract_source_archive out)
  set(${out} "${ONCE}" PARENT_SCOPE)
endfunction()
function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_FEATURE_OPTIONS" "FEATURES")
  set(options "")
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature option)
    say(feature ${feature})
    set(value OFF)
    if(feature IN_LIST FEATURES)
      set(value ON)
    endif()
    list(APPEND options -D${option}=${value})
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS} ${options} PARENT_SCOPE)
endfunction()
function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  execute_process(COMMAND "${CMAKE_COMMAND}" -G Ninja -S "${arg_SOURCE_PATH}" -B "${OUT}/build" ${arg_OPTIONS}
    --warn-uninitialized
    OUTPUT_FILE "${OUT}/configured" ERROR_FILE "${OUT}/warned" COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_cmake_install)
  say(install ${ARGN})
endfunction()
function(vcpkg_cmake_config_fixup)
  say(fixup ${ARGN})
endfunction()
function(vcpkg_fixup_pkgconfig)
  say(pkgconfig ${ARGN})
endfunction()
function(vcpkg_install_copyright)
  say(copyright ${ARGN})
endfunction()
include("${PORT_FILE}")
"""


class Port(unittest.TestCase):
    def setUp(self):
        self.manifest = json.loads((PORT / "vcpkg.json").read_text())

    def play(self, *features):
        """The components that this choice of features builds, and what the port said."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "play.cmake").write_text(STAND_INS)
            done = subprocess.run(
                ["cmake", f"-DOUT={folder}", f"-DONCE={ROOT}", f"-DFEATURES={';'.join(features)}", "-DVERSION=1.2.3", "-DPORT=once",
                 f"-DCURRENT_PACKAGES_DIR={folder}/packages", f"-DPORT_FILE={PORT}/portfile.cmake", "-P", folder / "play.cmake"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
            warned = (folder / "warned").read_text()
            self.assertNotIn("Manually-specified variables were not used", warned)
            self.assertTrue((folder / "packages/share/once/usage").exists())
            said = (folder / "said").read_text()
            return {file.name[5:-12] for file in (folder / "build/package").glob("once-*-needs.cmake")}, said

    def test_its_features_choose_the_stores(self):
        default, said = self.play(*self.manifest["default-features"])
        self.assertTrue({"engine", "idempotent", "json", "stores", "sqlite", "proxy"} <= default, default)
        self.assertFalse({"postgresql", "dynamodb", "jwt", "cli", "testing"} & default, default)
        every, _ = self.play(*self.manifest["features"])
        self.assertTrue({"sqlite", "postgresql", "dynamodb", "s3", "sqs"} <= every, every)
        self.assertEqual(set(re.findall(r"^feature;(.*)$", said, re.M)), set(self.manifest["features"]))
        self.assertIn("\nfixup;PACKAGE_NAME;once;CONFIG_PATH;lib/cmake/once\n", said)
        self.assertIn("\npkgconfig\n", said)
        self.assertIn(f"\ncopyright;FILE_LIST;{ROOT}/LICENSE\n", said)

    def test_the_release_fills_its_placeholders(self):
        held = {name for file in ("vcpkg.json", "portfile.cmake") for name in re.findall(r"@(\w+)@", (PORT / file).read_text())}
        filled = re.search(r"^PORT_VALUES = \((.*)\)$", (ROOT / "tools/release").read_text(), re.M)[1]
        self.assertEqual(held, set(re.findall(r'"(\w+)"', filled)))

    def test_its_manifest_names_what_it_needs(self):
        names = [part if isinstance(part, str) else part["name"] for part in self.manifest["dependencies"]]
        self.assertEqual(names, sorted(names))
        for helper in ("vcpkg-cmake", "vcpkg-cmake-config"):
            self.assertIn({"name": helper, "host": True}, self.manifest["dependencies"])
        self.assertLess(set(self.manifest["default-features"]), set(self.manifest["features"]))


if __name__ == "__main__":
    program = unittest.main(argv=[sys.argv[0]], exit=False)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun or bool(program.result.skipped))
