import io
import os

from conan import ConanFile
from conan.errors import ConanException
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class Test(ConanFile):
    """The program of docs/start-cpp.md, started twice: the second call replays the first one's receipt."""

    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeToolchain"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if not can_run(self):
            return
        store = os.path.join(self.cpp.build.bindir, "payments.db")
        if os.path.exists(store):
            os.remove(store)
        for wanted in ("charging 500 cents\nreceipt for order-17\n", "receipt for order-17\n"):
            shown = io.StringIO()
            self.run("./charge order-17 500 2>&1", cwd=self.cpp.build.bindir, env="conanrun", stdout=shown)
            if shown.getvalue() != wanted:
                raise ConanException(f"charge printed {shown.getvalue()!r} instead of {wanted!r}")
