"""A disk whose power can be cut: an ext4 of its own on a loop device, for root in a mount namespace (namespaces.py).

The cut is the kernel's: FS_IOC_SHUTDOWN stops the file system where it stands, and drops what it has in memory. Mounted
again, it recovers from its journal, and has what was synced. Programs need to know nothing of it, and run at the speed of
memory. xfstests cuts the power of file systems in this way, too. What the kernel would have written by itself, such as
after 30 seconds, is drawn: parts of files go to the disk before the cut, without what was written beside them. A part is
what the kernel keeps together: a page of 4 KiB, or several that one call has written. What is not simulated is a disk
that loses what it said it has flushed."""
import contextlib
import ctypes
import fcntl
import os
import pathlib
import random
import struct
import subprocess
import tempfile

import postgresql

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN of fs/ext4/ext4.h, which other file systems know by the same number.
LOG_FLUSHED, LOG_NOT_FLUSHED = 1, 2  # EXT4_GOING_FLAGS_*, there too.
WRITE_AND_WAIT = 7  # SYNC_FILE_RANGE_*, linux/fs.h.
PAGE = 4096
LIBC = ctypes.CDLL(None, use_errno=True)


def write_back(file, offset, size):
    """This part of the file goes to the disk, but nothing says so in the file system's journal."""
    if LIBC.sync_file_range(file, ctypes.c_int64(offset), ctypes.c_int64(size), WRITE_AND_WAIT):
        raise OSError(ctypes.get_errno(), "sync_file_range")


class PowerDisk:
    def __init__(self, size_mb):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="once-power-"))
        self._device, self._mounted = self.folder / "device", self.folder / "disk"
        self._on = False
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb + 8}m", "once", self.folder], check=True)
        try:
            self._mounted.mkdir()
            with open(self._device, "wb") as device:
                device.truncate(size_mb << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", self._device], check=True)
            self.power_on()
            self.used = self._mounted / "used"
            self.used.mkdir(mode=0o700)
            postgresql.give_away(self.folder)
            self.sync()
        except BaseException:
            self.close()
            raise

    def power_on(self):
        # By itself the journal is written every 5 seconds; that is drawn as well.
        subprocess.run(["mount", "-t", "ext4", "-o", "loop,commit=300", self._device, self._mounted], check=True)
        self._on = True

    def power_off(self):
        """For what cut() has left. No program may run that uses the disk."""
        subprocess.run(["umount", self._mounted], check=True)
        self._on = False

    def sync(self):
        subprocess.run(["sync", "-f", self._mounted], check=True)

    def cut(self, chance, writes=True):
        """Whoever used the disk must be dead, or die without another word. Before power_on() comes power_off(). `writes`:
        the kernel may have written something by itself."""
        drawn = chance.choice((0, 0.02, 0.5)) if writes else 0  # Of the pages.
        for file in sorted(self.used.rglob("*")) if drawn else []:
            with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
                if not file.is_file():
                    continue
                opened = os.open(file, os.O_RDONLY)
                stack.callback(os.close, opened)
                pages = os.fstat(opened).st_size // PAGE + 1
                for _ in range(min(100, round(drawn * pages + chance.random()))):
                    write_back(opened, PAGE * chance.randrange(pages), PAGE * chance.choice((1, 1, 1, 4)))
        self._shut_down(LOG_FLUSHED if writes and chance.random() < 0.2 else LOG_NOT_FLUSHED)

    def _shut_down(self, how):
        opened = os.open(self._mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(opened, SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(opened)

    def close(self):
        if self._on:
            self.power_off()
        subprocess.run(["umount", self.folder], check=True)
        self.folder.rmdir()


def missing():
    """Why this machine cannot do it; nothing if it can. Tries a disk, which must forget what was not synced, and keep the
    rest."""
    try:
        disk = PowerDisk(16)
        try:
            for name, synced in (("kept", True), ("torn", False), ("lost", False)):
                with open(disk.used / name, "w+b", buffering=0) as file:
                    for offset in (0, PAGE):
                        os.pwrite(file.fileno(), PAGE * b"a", offset)
                    os.fsync(file.fileno())
                    os.pwrite(file.fileno(), 2 * PAGE * b"b", 0)
                    if synced:
                        os.fsync(file.fileno())
                    if name == "torn":
                        write_back(file.fileno(), PAGE, PAGE)
            (disk.used / "new").write_bytes(b"a")
            disk._shut_down(LOG_NOT_FLUSHED)
            disk.power_off()
            disk.power_on()
            found = {file.name: file.read_bytes() for file in disk.used.iterdir()}
        finally:
            disk.close()
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    wanted = {"kept": 2 * PAGE * b"b", "torn": PAGE * b"a" + PAGE * b"b", "lost": 2 * PAGE * b"a"}
    wrong = sorted(name for name in wanted.keys() | found.keys() if found.get(name) != wanted.get(name))
    return f"its ext4 keeps or loses what it should not: {', '.join(wrong)}" if wrong else ""
