#!/usr/bin/env python3
"""names_test.py ONCE: a store's file that has a second name: a mount, a hard link, a symbolic link.

In a mount namespace of its own, which ends with it. Needs root, or a kernel that lets users make namespaces; fails
where it is given neither.
"""
import json
import os
import subprocess

import harness
import namespaces

WORK = ("--", "sh", "work")


class Names(harness.Case):
    def claim(self):
        """A claim that lives until the test ends."""
        self.fifo("gate")
        self.path("work").write_text('echo ran >> ran; test -z "$FIRST" || cat gate\n')
        self.start("run", "--key", "order-1", *WORK, env=dict(self.env, FIRST="1"))
        harness.wait_until(lambda: self.runs() == 1, "the first command runs")

    def bind(self, source, target):
        subprocess.run(["mount", "--bind", source, target], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", target], check=True)

    def doctor(self, path, parameters=""):
        done = self.once("doctor", "--json", "--store", f"sqlite:{path}{parameters}", text=True)
        return done.returncode, {found["name"]: found for found in json.loads(done.stdout)["findings"]}

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


if __name__ == "__main__":
    namespaces.enter("mount", "touch /tmp/$$.a /tmp/$$.b && mount --bind /tmp/$$.a /tmp/$$.b && umount /tmp/$$.b; "
                     "code=$?; rm -f /tmp/$$.a /tmp/$$.b; exit $code", "a mount namespace")
    harness.main()
