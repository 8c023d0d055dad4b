import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load
from conan.tools.system.package_manager import Apt

required_conan_version = ">=2.0"


class Once(ConanFile):
    """The libraries of once, for find_package(once). What they need comes from Debian's packages."""

    name = "once"
    description = "Runs an operation once and gives every caller its result"
    license = "Apache-2.0"
    topics = ("idempotency", "lambda", "sqs", "dynamodb", "postgresql", "sqlite")
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"aws": [True, False], "postgresql": [True, False], "sqlite": [True, False]}
    default_options = {"aws": True, "postgresql": True, "sqlite": True}

    @property
    def _top(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        self.version = re.search(r"^project\(once VERSION ([0-9.]+)", load(self, os.path.join(self._top, "CMakeLists.txt")), re.M)[1]

    def export_sources(self):
        for part in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*"):
            copy(self, part, src=self._top, dst=self.export_sources_folder)

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("once is for Linux")

    def system_requirements(self):
        """Checked; -c tools.system.package_manager:mode=install installs them."""
        packages = ["libssl-dev", "zlib1g-dev", "libzstd-dev", "nlohmann-json3-dev", "libboost1.81-dev", "libcjose-dev"]
        if self.options.postgresql:
            packages.append("libpq-dev")
        if self.options.sqlite:
            packages.append("libsqlite3-dev")
        Apt(self).install(packages, check=True)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for option, value in self.options.items():
            toolchain.cache_variables[f"ONCE_{option.upper()}"] = value.lower() in ("true", "1")
        toolchain.cache_variables["ONCE_PROGRAM"] = False
        toolchain.cache_variables["ONCE_UNITY"] = True
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build(target="once_libraries")

    def package(self):
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))
        CMake(self).install(component="development")

    def package_info(self):
        # once has a CMake package of its own, with a component for each library.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "once")]
