"""servers.py [--report] SUITE COMPILER PKGCONFIG WORK TESTS SOURCE ...: the adapters for HTTP servers with the libraries of
another Debian: cpp-httplib and Boost of SUITE (trixie, sid). TESTS is the program of the same tests with this Debian's
libraries: it says which cases there are. They are compiled from SOURCE, linked with the libraries that the modules in
PKGCONFIG name, and run. --report: whatever goes wrong is printed and does not fail, as nobody has released that suite.

The packages come from the mirror that apt has here, by an apt with lists of its own in WORK: this machine's stay as they
are. cpp-httplib is taken from its source package: Debian's header is only for the library that was compiled with it. Boost's
headers are the same for each compiler.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import traceback

from bare import mirror, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Apt:
    def __init__(self, suite, folder):
        self.folder = folder
        for part in ("archives", "lists"):
            (folder / part / "partial").mkdir(parents=True)
        (folder / "status").touch()
        source = f"[signed-by={KEYRING}] {mirror()} {suite} main\n"
        (folder / "sources.list").write_text(f"deb {source}deb-src {source}")
        options = {"Dir::Etc::SourceList": folder / "sources.list", "Dir::Etc::SourceParts": "/dev/null",
                   "Dir::State::Lists": folder / "lists", "Dir::State::Status": folder / "status",
                   "Dir::Cache": folder, "APT::Sandbox::User": "root", "Acquire::Languages": "none", "Acquire::Retries": 3,
                   "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
                   "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false"}
        self.options = [f"-o{name}={value}" for name, value in options.items()]
        self.get("update")

    def get(self, *words):
        return run("apt-get", "-q", *self.options, *words, cwd=self.folder)

    def cache(self, *words):
        return run("apt-cache", *self.options, *words, cwd=self.folder)


def fetch(suite, work):
    """The folders of both libraries' headers, and their versions."""
    apt = Apt(suite, work)
    boost = re.search(r"Depends: (libboost([0-9.]+)-dev)", apt.cache("depends", "libboost-dev"))
    apt.get("download", boost[1])
    run("dpkg-deb", "-x", *work.glob(f"{boost[1]}_*.deb"), work / "boost")
    apt.get("source", "--download-only", "cpp-httplib")
    (work / "httplib").mkdir()
    archive, = work.glob("cpp-httplib_*.orig.tar.*")
    run("tar", "-xf", archive, "-C", work / "httplib", "--strip-components=1")
    return work / "boost/usr/include", boost[2], work / "httplib", re.match(r"cpp-httplib_([0-9.]+)", archive.name)[1].rstrip(".")


def test(suite, compiler, modules, work, tests, sources):
    shutil.rmtree(work, ignore_errors=True)
    boost, boost_version, httplib, httplib_version = fetch(suite, work)
    names = "|".join(pathlib.Path(source).stem for source in sources)
    joined = work / "servers_test.cpp"
    joined.write_text("".join(f'#include "{pathlib.Path(source).resolve()}"\n' for source in sources) + f"""
#include <boost/version.hpp>

TEST(Servers, AreThoseOfTheOtherDebian) {{
  EXPECT_STREQ(BOOST_LIB_VERSION, "{boost_version.replace('.', '_')}");
  EXPECT_STREQ(CPPHTTPLIB_VERSION, "{httplib_version}");
}}
""")
    link = run("env", f"PKG_CONFIG_PATH={modules}", "pkg-config", "--cflags", "--libs", "once-http", "once-memory", "once-testing",
               "gmock", "gtest_main").split()
    run(compiler, "-std=c++20", "-isystem", boost, "-isystem", httplib, f"-I{ROOT}/src", joined, *link, "-pthread", "-o", work / "servers_test")
    # The cases of these files, in both programs.
    there, here = cases(run(tests, "--gtest_list_tests")), cases(run(work / "servers_test", "--gtest_list_tests"))
    suites = {case.split(".")[0] for case in here}
    wanted = {case for case in there if case.split(".")[0] in suites} | {"Servers.AreThoseOfTheOtherDebian"}
    if here != wanted or len(suites) < 3:
        raise RuntimeError(f"of {names}: other cases than here: {sorted(here ^ wanted)}")
    print(run(work / "servers_test", "--gtest_brief=1"), end="")
    print(f"{suite}: {len(here)} cases pass with cpp-httplib {httplib_version} and Boost {boost_version}")


def cases(listed):
    found, suite = set(), ""
    for line in listed.splitlines():
        if line.startswith("  "):
            found.add(suite + line.split("#")[0].strip())
        elif re.match(r"\S+\.", line):
            suite = line.split("#")[0].strip()
    return found


def main(arguments):
    report = arguments[:1] == ["--report"]
    suite, compiler, modules, work, tests, *sources = arguments[report:]
    try:
        test(suite, compiler, modules, pathlib.Path(work).resolve(), tests, sources)
    except (RuntimeError, OSError, subprocess.SubprocessError, TypeError, ValueError):
        if not report:
            raise
        traceback.print_exc(file=sys.stdout)
        print(f"REPORTED ONLY: the adapters do not pass with {suite}'s cpp-httplib and Boost")


if __name__ == "__main__":
    main(sys.argv[1:])
