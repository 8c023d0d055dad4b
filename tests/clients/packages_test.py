"""packages_test.py ONCE: the packages that tools/client-packages makes, with this program in them. They are installed as pip,
npm and go do it, and start the program that they carry on demand: there is no other one on PATH."""
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/apps"), str(ROOT / "tests/packages")]

import harness  # noqa: E402
import pages  # noqa: E402
import registry  # noqa: E402

ARCH, CPU, OTHER = {"x86_64": ("amd64", "x64", "arm64"), "aarch64": ("arm64", "arm64", "amd64")}[platform.machine()]
TWICE = {
    "pay.py": """
from once_idempotency import Once
once = Once("sqlite:pay.db")
@once.idempotent(key="{order}", scope="charge")
def charge(order):
    with open("charges", "a") as charges:
        charges.write(f"{order}\\n")
    return f"receipt {order}"
print(charge("17"), charge("17"))
""",
    "pay.mjs": """
import { appendFileSync } from 'node:fs';
import { Once } from 'once-idempotency';
const once = new Once('sqlite:pay.db');
const charge = once.makeIdempotent((order) => { appendFileSync('charges', `${order}\\n`); return `receipt ${order}`; },
  { key: (order) => order, scope: 'charge' });
console.log(await charge('17'), await charge('17'));
once.close();
""",
    "pay.go": """
package main

import (
	"context"
	"fmt"
	"os"

	"once.invalid/once"
	_ "once.invalid/once/carried"
)

func main() {
	client, err := once.New(once.Config{Store: "sqlite:pay.db"})
	if err != nil {
		panic(err)
	}
	charge := once.Func(client, "charge", func(order string) string { return order }, func(_ context.Context, order string) (string, error) {
		charges, err := os.OpenFile("charges", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return "", err
		}
		defer charges.Close()
		fmt.Fprintln(charges, order)
		return "receipt " + order, nil
	})
	for range []int{1, 2} {
		receipt, err := charge(context.Background(), "17")
		fmt.Print(receipt, " ", err, "\\n")
	}
}
""",
}


def text_of(command):
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


class Packages(harness.Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="once-packages-")))
        cls.program = cls.folder / "once"
        subprocess.run(["strip", "-o", cls.program, harness.PROGRAM], check=True)
        for name in ("made", "again"):
            subprocess.run([ROOT / "tools/client-packages", cls.folder / name, f"{ARCH}={cls.program}",
                            f"{OTHER}=/bin/true"], check=True, stdout=subprocess.DEVNULL,
                           env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, umask=0o027 if name == "again" else -1)
        cls.made = cls.folder / "made"
        cls.version = text_of([harness.PROGRAM, "--version"]).split()[1]

    def setUp(self):
        super().setUp()
        for name, text in TWICE.items():
            self.path(name).write_text(text)
        # A place of its own for the server's socket, and for what is carried.
        self.path("run").mkdir(mode=0o700)
        self.env |= {"XDG_RUNTIME_DIR": str(self.path("run")), "XDG_CACHE_HOME": str(self.path("cache")), "HOME": str(self.dir),
                     "PATH": "/usr/bin:/bin"}
        for name in ("ONCE_STORE", "ONCE_PROGRAM", "ONCE_SERVER"):
            self.env.pop(name, None)
        self.addCleanup(pages.end_servers, self.path("run"))

    def run_in(self, *command, **env):
        done = subprocess.run(list(map(str, command)), cwd=self.dir, env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False, timeout=harness.DEADLINE_S * 5)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def charges_once(self, *command, **env):
        """Two calls, one charge, by the program that is returned."""
        said = self.run_in(*command, **env)
        self.assertEqual(said.replace("<nil>", "").split(), ["receipt", "17"] * 2)
        self.assertEqual(self.path("charges").read_text(), "17\n")
        (program,) = pages.end_servers(self.path("run"))
        self.assertEqual(pathlib.Path(program).read_bytes(), self.program.read_bytes())
        return program

    def test_the_same_sources_make_the_same_files(self):
        names = sorted(file.name for file in self.made.iterdir())
        self.assertEqual(len(names), 8)
        self.assertEqual({name for name in names if self.version not in name}, set())
        self.assertEqual(sorted(file.name for file in (self.folder / "again").iterdir()), names)
        for name in names:
            self.assertEqual((self.made / name).read_bytes(), (self.folder / "again" / name).read_bytes(), name)

    def test_python(self):
        """pip takes the wheel for this machine, which has the command `once` too. The pure one has neither."""
        pip = [text_of([ROOT / "tools/python-tools", "clients"]), "-m", "pip", "--quiet", "--python"]
        for bare in ("with", "pure"):
            self.run_in(sys.executable, "-m", "venv", "--without-pip", bare)
        self.run_in(*pip, self.path("with"), "install", "--no-index", "--find-links", self.made, "once-idempotency", PIP_FIND_LINKS="")
        self.assertIn("/once_idempotency/bin/once", self.charges_once(self.path("with/bin/python"), "pay.py"))
        self.assertEqual(self.run_in(self.path("with/bin/once"), "--version"), f"once {self.version}\n")
        self.assertEqual(self.run_in(self.path("with/bin/python"), "-m", "once_idempotency", "--version"), f"once {self.version}\n")
        self.run_in(*pip, self.path("pure"), "install", "--no-index", self.made / f"once_idempotency-{self.version}-py3-none-any.whl")
        self.assertFalse(self.path("pure/bin/once").exists())
        refused = subprocess.run([self.path("pure/bin/python"), "pay.py"], cwd=self.dir, env=self.env, capture_output=True, text=True, check=False)
        self.assertIn("install the package for this machine", refused.stderr)
        self.assertTrue(next(self.path("with").rglob("once_idempotency/py.typed")).exists())
        # What is installed is what RECORD names.
        self.run_in(self.path("with/bin/python"), "-c", "import importlib.metadata as m, hashlib, base64; [exit(str(f)) for f in m.files('once-idempotency') "
                    "if f.hash and base64.urlsafe_b64encode(hashlib.sha256(f.read_binary()).digest()).rstrip(b'=').decode() != f.hash.value]")

    def test_the_wheels_are_as_setuptools_makes_them(self):
        """The pure one, from the packed sources."""
        with tarfile.open(self.made / f"once_idempotency-{self.version}.tar.gz") as archive:
            archive.extractall(self.dir, filter="data")
        self.run_in(text_of([ROOT / "tools/python-tools", "clients"]), "-m", "build", "--wheel", "--no-isolation", "--outdir", "built",
                    f"once_idempotency-{self.version}")
        name = f"once_idempotency-{self.version}-py3-none-any.whl"
        with zipfile.ZipFile(self.path("built") / name) as theirs, zipfile.ZipFile(self.made / name) as ours:
            record = f"once_idempotency-{self.version}.dist-info/RECORD"
            self.assertEqual(sorted(ours.namelist()), sorted(theirs.namelist()))
            for part in set(theirs.namelist()) - {record}:
                self.assertEqual(ours.read(part), theirs.read(part), part)
            self.assertEqual(sorted(ours.read(record).splitlines()), sorted(theirs.read(record).splitlines()))

    def test_node(self):
        """npm takes the package for this machine, and leaves out the other one."""
        self.path("package.json").write_text("{}")
        with registry.serving(self.made) as url:
            self.run_in("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--registry", url, "once-idempotency",
                        PATH=os.environ["PATH"])
        self.assertEqual(sorted(path.name for path in self.path("node_modules/@once-idempotency").iterdir()), [f"linux-{CPU}"])
        self.assertIn(f"/node_modules/@once-idempotency/linux-{CPU}/bin/once", self.charges_once(shutil.which("node"), "pay.mjs"))
        self.assertEqual(self.run_in(self.path("node_modules/.bin/once"), "--version"), f"once {self.version}\n")

    def test_go(self):
        """go takes both modules from the folder. The program is written to the cache, once."""
        with tarfile.open(self.made / f"once-go-{self.version}.tar.gz") as archive:
            archive.extractall(self.dir, filter="data")
        go = {"GOPROXY": f"file://{self.dir}/once-go-{self.version}", "GONOSUMDB": "once.invalid", "GOTOOLCHAIN": "local", "GOFLAGS": "-modcacherw",
              "GOPATH": f"{self.dir}/go", "TMPDIR": str(self.folder), "CGO_ENABLED": "0", "GOCACHE": text_of(["go", "env", "GOCACHE"]),
              "PATH": f"{text_of([ROOT / 'tools/go-for-clients'])}:{os.environ['PATH']}"}
        self.run_in("go", "mod", "init", "example.test/pay", **go)
        self.run_in("go", "get", f"once.invalid/once@v{self.version}", f"once.invalid/once/carried@v{self.version}", **go)
        self.run_in("go", "build", "-trimpath", "-o", "pay", "pay.go", **go)
        program = self.charges_once("./pay")
        self.assertEqual(pathlib.Path(program).parent, self.path("cache/once-program"))
        written = os.stat(program)
        self.path("charges").unlink()
        self.path("pay.db").unlink()
        self.charges_once("./pay")
        self.assertEqual(os.stat(program).st_ino, written.st_ino)
        # Without that module: one beside the executable, unless every user can write there.
        self.path("pay.go").write_text(TWICE["pay.go"].replace('\t_ "once.invalid/once/carried"\n', ""))
        self.path("bin").mkdir()
        self.run_in("go", "build", "-trimpath", "-o", "bin/plain", "pay.go", **go)
        shutil.copy(self.program, self.path("bin/once"))
        self.path("charges").unlink()
        self.path("pay.db").unlink()
        self.assertEqual(self.charges_once("bin/plain"), str(self.path("bin/once")))
        self.path("bin").chmod(0o777)
        refused = subprocess.run(["bin/plain"], cwd=self.dir, env=self.env, capture_output=True, text=True, check=False)
        self.assertIn("executable file not found", refused.stdout)
        # What is carried is not started where others may write.
        self.path("cache/once-program").chmod(0o777)
        refused = subprocess.run(["./pay"], cwd=self.dir, env=self.env, capture_output=True, text=True, check=False)
        self.assertIn("is not a directory that only this user can write", refused.stdout + refused.stderr)


if __name__ == "__main__":
    harness.main()
