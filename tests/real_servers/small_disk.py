"""A disk of some megabytes that can be filled: a tmpfs, for root in a mount namespace (tests/apps/namespaces.py)."""
import contextlib
import pathlib
import shutil
import subprocess
import tempfile

import postgresql


class SmallDisk:
    def __init__(self, size_mb):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="once-disk-"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=700", "once", self.folder], check=True)
        self.used = self.folder / "used"
        self.used.mkdir(mode=0o700)
        postgresql.give_away(self.folder)
        self._ballast = self.folder / "ballast"

    def fill(self):
        """To the last page."""
        with open(self._ballast, "wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while file.write(bytes(4096)) == 4096:
                    pass
        if shutil.disk_usage(self.folder).free >= 4096:
            raise RuntimeError(f"{self.folder} is not full")

    def empty(self):
        self._ballast.unlink()

    def close(self):
        subprocess.run(["umount", self.folder], check=True)
        self.folder.rmdir()
