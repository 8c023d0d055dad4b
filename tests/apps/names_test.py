#!/usr/bin/env python3
"""names_test.py ONCE: a store's file that has a second name (a mount, a hard link, a symbolic link), or is shared by
processes that see other clocks (time namespaces, made-up boot ids).

In a mount namespace of its own, which ends with it. Needs root, or a kernel that lets users make namespaces; fails
where it is given neither.
"""
import contextlib
import json
import os
import sqlite3
import subprocess
import time

import harness
import namespaces

WORK = ("--", "sh", "work")
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Shared(harness.Case):
    def claim(self):
        """A claim that lives until the test ends."""
        self.fifo("gate")
        self.path("work").write_text('echo ran >> ran; test -z "$FIRST" || cat gate\n')
        self.holder = self.start("run", "--key", "order-1", *WORK, env=dict(self.env, FIRST="1"))
        harness.wait_until(lambda: self.runs() == 1, "the first command runs")

    def bind(self, source, target):
        subprocess.run(["mount", "--bind", source, target], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", target], check=True)

    def doctor(self, path, parameters=""):
        done = self.once("doctor", "--json", "--store", f"sqlite:{path}{parameters}", text=True)
        return done.returncode, {found["name"]: found for found in json.loads(done.stdout)["findings"]}


class Names(Shared):
    def expect_refused(self, path, told):
        self.claim()
        done = self.once("run", "--key", "order-1", "--store", f"sqlite:{path}", *WORK, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(told, done.stderr)
        self.assertEqual(self.runs(), 1, "it ran beside a live claim")
        code, findings = self.doctor(path)
        self.assertNotEqual(code, 0)
        self.assertEqual(findings["open"]["grade"], "problem")
        self.assertIn(told, findings["open"]["text"])

    def expect_same_store(self, path):
        self.claim()
        done = self.once("run", "--key", "order-1", "--store", f"sqlite:{path}", *WORK, text=True)
        self.expect(done, 240)
        self.assertEqual(self.runs(), 1, "it ran beside a live claim")

    def test_a_file_that_is_mounted_by_itself_is_refused(self):
        self.expect(self.once("run", "--key", "first", "--", "true"), 0)
        self.path("inner").mkdir()
        self.path("inner/once.db").touch()
        self.bind(self.path("once.db"), self.path("inner/once.db"))
        self.expect_refused(self.path("inner/once.db"), "is mounted by itself")

    def test_a_directory_that_is_mounted_elsewhere_is_the_same_store(self):
        self.path("inner").mkdir()
        self.bind(self.dir, self.path("inner"))
        self.expect_same_store(self.path("inner/once.db"))

    def test_a_hard_link_is_refused_unless_that_is_allowed(self):
        self.expect(self.once("run", "--key", "first", "--", "true"), 0)
        self.path("inner").mkdir()
        self.claim()  # Opened before there is a second name.
        os.link(self.path("once.db"), self.path("inner/once.db"))
        for name in ("inner/once.db", "once.db"):
            done = self.once("run", "--key", "order-1", "--store", f"sqlite:{self.path(name)}", *WORK, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("has 2 names (hard links)", done.stderr)
            code, findings = self.doctor(self.path(name))
            self.assertNotEqual(code, 0)
            self.assertIn("has 2 names (hard links)", findings["open"]["text"])
        self.assertEqual(self.runs(), 1)
        code, findings = self.doctor(self.path("once.db"), "?allow_hard_links=1")
        self.assertEqual(code, 0, findings)
        self.assertEqual(findings["names"]["grade"], "note")
        self.assertIn("2 names", findings["names"]["text"])

    def test_a_symbolic_link_is_the_same_store(self):
        self.path("link.db").symlink_to("once.db")
        self.expect_same_store(self.path("link.db"))
        self.assertFalse(self.path("link.db-lock").exists())
        code, findings = self.doctor(self.path("link.db"))
        self.assertEqual(code, 0, findings)
        self.assertIn(f"{self.path('once.db')}", findings["names"]["text"])


class Clocks(Shared):
    """A claim on the host, and a second caller that sees another clock."""

    def far(self, ahead_s, *arguments):
        """Runs once where CLOCK_BOOTTIME is so far ahead of the host's."""
        words = ["unshare", "--time", "--boottime", str(ahead_s), "--monotonic", str(ahead_s), "--fork", harness.PROGRAM]
        return subprocess.run([*words, *arguments], env=self.env, cwd=self.dir, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=harness.DEADLINE_S, check=False)

    def hide(self, name, text):
        """A file of /proc shows this text to whoever starts from now on."""
        self.path("shown").write_text(text)
        self.bind(self.path("shown"), name)

    def test_a_time_namespace_sees_the_claims_of_the_host(self):
        self.claim()
        for ahead_s in (86400, -5):
            self.expect(self.far(ahead_s, "run", "--key", "order-1", *WORK), 240)
            done = self.far(ahead_s, "doctor", "--json")
            clock = {found["name"]: found for found in json.loads(done.stdout)["findings"]}["clock"]
            self.assertEqual(clock["grade"], "fine", clock)
            self.assertIn("is converted", clock["text"])
        self.assertEqual(self.runs(), 1, "it ran beside a live claim")

    def test_the_host_sees_the_claims_of_a_time_namespace(self):
        """Whoever opens the file first sets its clock."""
        for ahead_s in (86400, -5):
            store = f"sqlite:{self.path(f'ahead{ahead_s}.db')}"
            self.expect(self.far(ahead_s, "run", "--key", "order-1", "--store", store, "--", "true"), 0)
            _, findings = self.doctor(self.path(f"ahead{ahead_s}.db"))
            self.assertEqual(findings["clock"]["grade"], "fine", findings["clock"])

    def test_another_boot_id_is_refused_while_the_file_is_open(self):
        self.claim()
        # As if the wall clock had been an hour behind when the store first looked at it.
        with contextlib.closing(sqlite3.connect(self.path("once.db"))) as database:
            database.execute("INSERT OR REPLACE INTO once_meta VALUES ('time_seen_ms', ?)",
                             (int(time.time() * 1000) + 3_600_000,))
            database.commit()
        self.hide(BOOT_ID, "00000000-0000-4000-8000-000000000000\n")
        done = self.once("run", "--key", "order-1", *WORK, text=True)
        self.assertEqual(self.runs(), 1, "it ran beside a live claim")
        self.expect(done, 64, stderr="another process has the file open, under the boot id '")
        self.expect(self.once("run", "--key", "order-1", "--on-store-down", "run-unprotected", *WORK), 64)
        _, findings = self.doctor(self.path("once.db"))
        self.assertIn("boot id 00000000-0000-4000-8000-000000000000, and in the file '", findings["clock"]["text"])
        self.assertEqual(self.runs(), 1, "it ran beside a live claim")

    def test_a_reboot_kills_the_holder_and_lets_others_in(self):
        self.claim()
        self.holder.kill()
        self.holder.wait()
        self.hide(BOOT_ID, "00000000-0000-4000-8000-000000000000\n")
        self.expect(self.once("run", "--key", "order-1", *WORK), 240)  # By the wall clock the lease is not over.
        self.expect(self.once("run", "--key", "order-2", *WORK), 0)

    def test_a_clock_that_cannot_be_known_is_refused(self):
        self.expect(self.once("run", "--key", "first", "--", "true"), 0)
        subprocess.run(["mount", "-t", "tmpfs", "none", "/proc/sys"], check=True)
        done = self.once("run", "--key", "order-1", "--on-store-down", "run-unprotected", "--", "true", text=True)
        subprocess.run(["umount", "/proc/sys"], check=True)
        self.expect(done, 64, stderr="remove ProcSubset=pid")


if __name__ == "__main__":
    namespaces.enter("mount", "touch /tmp/$$.a /tmp/$$.b && mount --bind /tmp/$$.a /tmp/$$.b && umount /tmp/$$.b; "
                     "code=$?; rm -f /tmp/$$.a /tmp/$$.b; exit $code", "a mount namespace")
    harness.main()
