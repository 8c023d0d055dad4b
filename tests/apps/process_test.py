"""once run as a process among others: signals, deaths, lost claims, terminals, large streams."""
import datetime
import fcntl
import json
import os
import pty
import resource
import signal
import subprocess
import time
import unittest

import harness
from harness import Case, alive, wait_until

# A command that writes its own number and the number of a child of its own, and then waits.
FAMILY = "echo out; echo $$ >pid; sh -c 'echo $$ >child; exec cat go' & wait; echo x >>finished"

# A command that writes down each signal it gets, in order, and ends with the code given when it gets TERM.
LISTENER = """
import os, signal, sys
signals = [getattr(signal, 'SIG' + name) for name in ('HUP', 'INT', 'QUIT', 'USR1', 'USR2', 'WINCH', 'TERM')]
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
open('pid', 'w').write('%d\\n' % os.getpid())
while True:
    got = signal.sigwait(signals)
    with open('got', 'a') as file: file.write(signal.Signals(got).name[3:] + '\\n')
    if got == signal.SIGTERM: sys.exit(int(sys.argv[1]))
"""


def stopped(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "T"


def children(pid):
    family = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [child for child, parent in (map(int, line.split()) for line in family.splitlines()) if parent == pid]


class Killed(Case):
    def start_family(self, *more):
        self.fifo("go")
        process = self.start("run", "--key", "k", *more, "--", "sh", "-c", FAMILY)
        return process, self.pid_in("pid"), self.pid_in("child")

    def test_kill_9_takes_the_command_and_all_it_started_and_the_claim_lapses(self):
        process, command, child = self.start_family("--lease", "1h")
        process.kill()
        wait_until(lambda: not alive(command) and not alive(child), "command and child are gone")
        again = ["run", "--key", "k", "--fingerprint", "none", "--", "sh", "-c", "echo $ONCE_ATTEMPT"]
        self.expect(self.once(*again), 240)  # Its lease still lives.
        self.assertEqual(self.show("k")["standing"], "running")
        self.lapse()
        self.expect(self.once(*again), 0, b"2\n")
        self.assertEqual(self.runs("finished"), 0)

    def test_kill_9_under_hold_becomes_unknown(self):
        process, command, child = self.start_family("--lease", "1s", "--on-lost", "continue", "--on-lapse", "hold")
        process.kill()
        wait_until(lambda: not alive(command) and not alive(child), "command and child are gone")
        again = ["run", "--key", "k", "--fingerprint", "none", "--on-lapse", "hold", "--", "touch", "again"]
        wait_until(lambda: self.once(*again).returncode == 242, "unknown")
        self.assertFalse(self.path("again").exists())

    def test_what_was_begun_under_hold_stays_so_for_a_caller_who_forgets_the_flag(self):
        process, command, child = self.start_family("--lease", "1s", "--on-lost", "continue", "--on-lapse", "hold")
        process.kill()
        wait_until(lambda: not alive(command) and not alive(child), "command and child are gone")
        self.assertEqual(self.show("k")["on_lapse"], "hold")
        again = ["run", "--key", "k", "--fingerprint", "none", "--", "touch", "again"]
        wait_until(lambda: self.once(*again).returncode == 242, "unknown")
        self.assertFalse(self.path("again").exists())

    def test_an_operator_takes_hold_back(self):
        process, command, child = self.start_family("--lease", "1s", "--on-lost", "continue", "--on-lapse", "hold")
        self.expect(self.once("extend", "--key", "k", "--reason", "r"), 64, stderr=b"--on-lapse")
        # Refused if a renewal comes between its read and its write.
        takeover = ["extend", "--key", "k", "--on-lapse", "takeover", "--reason", "may run twice"]
        wait_until(lambda: self.once(*takeover).returncode == 0, "no renewal comes in between")
        process.kill()
        wait_until(lambda: not alive(command) and not alive(child), "command and child are gone")
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--wait", "60s", "--", "echo", "again"), 0,
                    b"again\n")

    def test_kill_9_of_the_whole_group(self):
        self.fifo("go")
        process = self.start("run", "--key", "k", "--", "sh", "-c", FAMILY, start_new_session=True)
        command, child = self.pid_in("pid"), self.pid_in("child")
        os.killpg(process.pid, signal.SIGKILL)
        wait_until(lambda: not alive(command) and not alive(child), "command and child are gone")

    def test_kill_9_of_the_group_ends_descendants_in_sessions_of_their_own(self):
        self.fifo("go")
        process = self.start("run", "--key", "k", "--", "sh", "-c",
                             "setsid sh -c 'echo $$ >child; exec cat go' & echo $$ >pid; wait", start_new_session=True)
        command, child = self.pid_in("pid"), self.pid_in("child")
        os.killpg(process.pid, signal.SIGKILL)
        wait_until(lambda: not alive(command) and not alive(child), "command and child are gone")

    def test_command_killed_before_it_begins_runs_nothing(self):
        self.fifo("go")
        self.start("run", "--key", "k", "--", "sh", "-c", "echo $$ >pid; exec cat go")
        self.pid_in("pid")
        waiting = self.start("run", "--key", "k", "--fingerprint", "none", "--wait", "60s", "--", "sh", "-c", "echo x >>ran")

        guard = wait_until(lambda: children(waiting.pid), "its guard is there")[0]
        os.kill(wait_until(lambda: children(guard), "its process waits")[0], signal.SIGKILL)
        self.open_gate("go")
        self.assertEqual(waiting.wait(), 0)  # A replay.
        self.assertEqual(self.runs(), 0)

    def test_a_lease_that_ends_before_the_command_begins_is_claimed_again(self):
        self.fifo("go")
        self.start("run", "--key", "k", "--on-failure", "release", "--", "sh", "-c", "echo $$ >pid; cat go; exit 1")
        self.pid_in("pid")
        waiting = self.start("run", "--key", "k", "--fingerprint", "none", "--wait", "60s", "--lease", "1s", "--",
                             "sh", "-c", "echo x >>ran")
        guard = wait_until(lambda: children(waiting.pid), "its guard is there")[0]
        wait_until(lambda: children(guard), "its process waits")
        os.kill(guard, signal.SIGSTOP)
        self.open_gate("go")

        def claim():
            done = self.once("show", "--key", "k", "--json")
            shown = json.loads(done.stdout or "{}")
            return shown if f":{waiting.pid} " in shown.get("holder", "") else None
        until = datetime.datetime.fromisoformat(wait_until(claim, "it has the claim")["lease_until"])
        wait_until(lambda: datetime.datetime.now(datetime.timezone.utc) > until, "the first lease is over")
        os.kill(guard, signal.SIGCONT)
        _, err = waiting.communicate()
        self.assertEqual((waiting.returncode, self.runs()), (0, 1), err)

    def test_kill_9_of_the_guard_takes_the_command(self):
        process, command, child = self.start_family()
        with open(f"/proc/{command}/stat", encoding="ascii") as stat:
            guard = int(stat.read().rsplit(")", 1)[1].split()[1])
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: not alive(command), "the command is gone")
        self.assertTrue(alive(child))
        again = ["run", "--key", "k", "--fingerprint", "none", "--", "true"]
        self.expect(self.once(*again), 240)  # Nobody runs beside the child until the lease is over.
        self.open_gate("go")  # The child holds the output open.
        out, err = process.communicate()
        self.assertEqual((process.returncode, out[:4]), (137, b"out\n"), err)
        self.assertIn(b"the claim is not released", err)
        self.assertEqual(self.show("k")["state"], "in_progress")

    def test_neither_the_guard_nor_the_command_keeps_the_lock_of_the_store(self):
        """A flock() ends with the last who has its file open, or mapped: `once` may die in the midst of a write."""
        look = "cat /proc/self/maps /proc/$PPID/maps; ls -l /proc/self/fd /proc/$PPID/fd; cat /proc/$PPID/comm"
        done = self.expect(self.once("run", "--key", "a", "--", "sh", "-c", look, text=True), 0)
        self.assertIn("once-guard", done.stdout)
        self.assertNotIn("once.db-lock", done.stdout)
        self.assertNotRegex(done.stdout, r"-> .*once\.db")

    def test_a_killed_command_takes_its_children_with_it(self):
        process, command, child = self.start_family()
        os.kill(command, signal.SIGKILL)  # As when there is no memory left.
        self.assertEqual(process.wait(), 137)
        self.assertFalse(alive(child), "given up only when nothing of it is left")
        self.expect(self.once("show", "--key", "k"), 239)
        self.assertEqual(self.runs("finished"), 0)

    def test_children_that_ignore_sigterm_are_killed(self):
        script = "trap '' TERM; echo $$ >child; while :; do sleep 0.01; done"
        process = self.start("run", "--key", "k", "--grace", "100ms", "--", "sh", "-c",
                             f'echo $$ >pid; sh -c "$0" & wait', script)
        command, child = self.pid_in("pid"), self.pid_in("child")
        os.kill(command, signal.SIGKILL)
        self.assertEqual(process.wait(), 137)
        self.assertFalse(alive(child))

    def test_without_a_claim_a_killed_guard_is_no_success(self):
        self.fifo("go")
        process = self.start("run", "--key", "k", "--store", f"sqlite:{self.dir}/none/x.db", "--on-store-down",
                             "run-unprotected", "--",
                             "sh", "-c", "echo $$ >pid; exec cat go")
        with open(f"/proc/{self.pid_in('pid')}/stat", encoding="ascii") as stat:
            guard = int(stat.read().rsplit(")", 1)[1].split()[1])
        os.kill(guard, signal.SIGKILL)
        self.assertEqual(process.wait(), 137)

    def test_survivors(self):
        process, command, child = self.start_family("--survive")
        process.kill()
        process.wait()
        self.open_gate("go")
        wait_until(lambda: self.runs("finished") == 1, "the command came to its end")
        wait_until(lambda: not alive(command) and not alive(child), "they are gone")

    def test_what_is_left_running_on_purpose_lives_on(self):
        self.fifo("go")
        script = "sh -c 'echo $$ >child; cat go; echo x >>finished' >/dev/null 2>&1 </dev/null & echo started"
        command = ["run", "--key", "k", "--output-wait", "60s", "--", "sh", "-c", script]
        self.expect(self.once(*command), 0, b"started\n")
        child = self.pid_in("child")
        self.assertTrue(alive(child))
        self.open_gate("go")
        wait_until(lambda: self.runs("finished") == 1, "it went on")

    def test_output_held_open_by_others_is_not_waited_for(self):
        self.fifo("go")
        script = "sh -c 'echo $$ >child; exec cat go' & while ! test -s child; do :; done; echo started"
        done = self.once("run", "--key", "k", "--output-wait", "100ms", "--", "sh", "-c", script)
        self.expect(done, 0, b"started\n")
        self.assertTrue(alive(self.pid_in("child")))

    def test_output_written_for_ever_by_others_ends(self):
        script = "sh -c 'echo $$ >child; exec yes' & while ! test -s child; do :; done; exit 3"
        done = self.once("run", "--key", "k", "--output-wait", "100ms", "--output-limit", "1KiB", "--offload", "none", "--",
                         "sh", "-c", script, stdout=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 3)
        wait_until(lambda: not alive(self.pid_in("child")), "yes died of its closed pipe")

    def test_late_output_of_others_is_kept(self):
        self.fifo("go")
        script = "(read x <go; echo late) & echo $$ >pid; echo early"
        process = self.start("run", "--key", "k", "--output-wait", "60s", "--", "sh", "-c", script)
        command = self.pid_in("pid")
        wait_until(lambda: not alive(command), "the command has ended")
        self.open_gate("go")
        self.assertEqual(process.communicate()[0], b"early\nlate\n")


class Signals(Case):
    def test_a_cut_map_is_an_error_and_not_a_death(self):
        """SIGBUS comes when the store's -shm file is cut between two looks at it. The command ends, its claim lapses."""
        command = ["run", "--key", "k", "--fingerprint", "none", "--on-lapse", "hold", "--"]
        run = self.start(*command, "sh", "-c", "echo $$ >child; sleep 600")
        child = self.pid_in("child")
        run.send_signal(signal.SIGBUS)
        _, said = run.communicate()
        self.assertEqual(run.returncode, 249, said)
        self.assertIn(b"(SIGBUS)", said)
        self.assertIn(b"Stop all programs that use the store", said)
        wait_until(lambda: not alive(child), "the command has ended")
        self.lapse()
        self.expect(self.once(*command, "touch", "ran"), 242)
        self.assertFalse(self.path("ran").exists())

    def test_signals_reach_the_command(self):
        process = self.start("run", "--key", "k", "--", "python3", "-c", LISTENER, "5")
        self.pid_in("pid")
        names = ["HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "TERM"]
        for number, name in enumerate(names, 1):
            process.send_signal(getattr(signal, "SIG" + name))
            wait_until(lambda: self.runs("got") >= number, f"{name} arrived")
        self.assertEqual(process.wait(), 5)
        self.assertEqual(self.path("got").read_text().split(), names)
        # Somebody asked for the end: that is no result.
        self.expect(self.once("show", "--key", "k"), 239)

    def test_a_command_that_is_asked_to_end_and_ends_well_is_kept(self):
        process = self.start("run", "--key", "k", "--", "python3", "-c", LISTENER, "0")
        self.pid_in("pid")
        process.terminate()
        self.assertEqual(process.wait(), 0)
        self.assertEqual(self.show("k")["state"], "completed")

    def test_death_by_a_signal_that_was_passed_on(self):
        self.fifo("go")
        process = self.start("run", "--key", "k", "--", "sh", "-c", "echo $$ >pid; exec cat go")
        self.pid_in("pid")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(), 130)
        self.expect(self.once("show", "--key", "k"), 239)

    def test_what_is_asked_to_end_and_fails_leaves_nothing_at_work(self):
        for key, script in (("killed", "sh charge & wait"), ("failed", "trap 'exit 3' TERM; sh charge & wait")):
            with self.subTest(key=key):
                self.path("charge").write_text(f"echo $$ >{key}.child; exec cat {key}.go")
                self.fifo(f"{key}.go")
                process = self.start("run", "--key", key, "--", "sh", "-c", script)
                child = self.pid_in(f"{key}.child")
                process.terminate()
                self.assertEqual(process.wait(), 143 if key == "killed" else 3)
                self.assertFalse(alive(child))
                self.expect(self.once("show", "--key", key), 239)  # A retry may run.

    def test_what_is_ignored_stays_ignored(self):
        self.fifo("go")
        process = self.start("run", "--key", "k", "--", "sh", "-c", "echo $$ >pid; cat go",
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        command = self.pid_in("pid")
        process.send_signal(signal.SIGHUP)
        os.kill(command, signal.SIGHUP)
        self.open_gate("go")
        self.assertEqual(process.wait(), 0)

    def test_signal_settings_of_the_command_are_ours(self):
        script = ["sh", "-c", "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status"]

        def settings(text):  # Of the standard signals: 32 and 33 belong to the C library.
            return {name: int(mask, 16) & 0x7FFFFFFF for name, mask in (line.split(b":") for line in text.splitlines())}

        plain = subprocess.run(script, stdout=subprocess.PIPE, check=True, env=self.env)
        done = self.expect(self.once("run", "--key", "k", "--", *script), 0)
        self.assertEqual(settings(done.stdout), settings(plain.stdout))

    def test_stop_and_continue(self):
        self.fifo("go")
        # A process group of its own, as a shell gives each job: in one that nobody minds SIGTSTP stops nobody.
        process = self.start("run", "--key", "k", "--", "sh", "-c", "echo $$ >pid; exec cat go", process_group=0)
        command = self.pid_in("pid")
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: stopped(process.pid) and stopped(command), "both stand")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: not stopped(process.pid) and not stopped(command), "both go on")
        self.open_gate("go")
        self.assertEqual(process.communicate()[0], b"go\n")

    def test_where_nobody_could_continue_it_nothing_stops(self):
        self.fifo("go")
        process = self.start("run", "--key", "k", "--", "sh", "-c", "echo $$ >pid; exec cat go", start_new_session=True)
        self.pid_in("pid")
        process.send_signal(signal.SIGTSTP)
        self.open_gate("go")
        self.assertEqual(process.communicate()[0], b"go\n")
        self.assertEqual(process.returncode, 0)

    def on_terminal(self, *arguments):
        """Starts the program in the foreground of a terminal of its own."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.dir)
            os.execve(harness.PROGRAM, [harness.PROGRAM, *arguments], self.env)
        self.addCleanup(os.close, terminal)
        return pid, terminal

    def test_control_c_reaches_the_command_once(self):
        pid, terminal = self.on_terminal("run", "--key", "k", "--", "python3", "-c", LISTENER, "0")
        self.pid_in("pid")
        os.write(terminal, b"\x03")
        wait_until(lambda: self.runs("got") >= 1, "the terminal's signal arrived")
        # What was passed on before this one arrives before it.
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual(self.path("got").read_text().split(), ["INT", "TERM"])

    def test_terminal_stays_with_the_command(self):
        pid, terminal = self.on_terminal("run", "--key", "k", "--", "sh", "-c", "test -t 0 && read x && echo \"got $x\"")
        os.write(terminal, b"typed\n")
        text = b""
        while b"got typed" not in text:
            text += os.read(terminal, 1000)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)


class Stopping(Case):
    def stop(self, process, with_all=False):
        """Not in the midst of a write: all others would wait for the store's lock, and give up. With all of its process
        group: as if the host slept."""
        def send(number):
            if with_all:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

        def stopped_outside():
            send(signal.SIGSTOP)
            wait_until(lambda: stopped(process.pid), "it stands")
            with open(self.path("once.db-lock"), "rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except BlockingIOError:
                    send(signal.SIGCONT)
                    return False
        wait_until(stopped_outside, "it stands, and does not write")


class Lost(Stopping):
    """The claim is taken away while the command runs."""

    def start_slow(self, *more, script="echo $$ >pid; cat go", lease="9s"):
        self.fifo("go")
        process = self.start("run", "--key", "k", "--lease", lease, *more, "--", "sh", "-c", script)
        return process, self.pid_in("pid")

    def take_away(self, *more):
        self.expect(self.once("release", "--key", "k", "--force", "--reason", "test", *more), 0)

    def test_the_command_and_its_children_are_ended(self):
        process, command = self.start_slow(script=FAMILY)
        child = self.pid_in("child")
        self.take_away()
        _, err = process.communicate()
        self.assertEqual(process.returncode, 245, err)
        self.assertIn(b"was lost", err)
        self.assertFalse(alive(command) or alive(child))
        self.assertEqual(self.runs("finished"), 0)
        self.assertEqual(self.show("k")["standing"], "released")

    def test_a_command_that_will_not_end_is_killed(self):
        process, command = self.start_slow("--grace", "100ms", script="trap '' TERM; echo $$ >pid; while :; do cat go; done")
        self.take_away()
        self.assertEqual(process.wait(), 245)
        self.assertFalse(alive(command))

    def test_the_command_may_be_let_continue(self):
        process, _ = self.start_slow("--on-lost", "continue")
        self.take_away()
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--", "echo", "other"), 0)
        self.open_gate("go")
        out, err = process.communicate()
        self.assertEqual((process.returncode, out), (248, b"go\n"), err)
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--", "false"), 0, b"other\n")

    def test_a_superseded_command_that_wrote_nothing_gives_the_stored_result(self):
        process, _ = self.start_slow("--on-lost", "continue", script="echo $$ >pid; read x <go; exit 9")
        self.path("receipt").write_bytes(b"receipt\n")
        self.expect(self.once("resolve", "--key", "k", "--force", "--as", "completed", "--exit-code", "0", "--result",
                              "receipt", "--reason", "seen"), 0)
        self.open_gate("go")
        out, err = process.communicate()
        self.assertEqual((process.returncode, out), (0, b"receipt\n"), err)

    def test_the_same_result_stored_twice_is_the_same(self):
        process, _ = self.start_slow("--on-lost", "continue")
        self.path("receipt").write_bytes(b"go\n")
        self.expect(self.once("resolve", "--key", "k", "--force", "--as", "completed", "--exit-code", "0", "--result",
                              "receipt", "--reason", "seen"), 0)
        self.open_gate("go")
        self.assertEqual(process.communicate()[0], b"go\n")
        self.assertEqual(process.returncode, 0)

    def test_once_itself_is_stopped_beyond_its_lease(self):
        process, command = self.start_slow(script=FAMILY, lease="6s")
        child = self.pid_in("child")
        self.stop(process)
        # Nobody renews the lease: the guard pauses the command before anybody else may begin.
        wait_until(lambda: stopped(command) and stopped(child), "command and child are paused")
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--wait", "60s", "--", "echo", "other"), 0,
                    b"other\n")
        process.send_signal(signal.SIGCONT)
        process.communicate()
        self.assertEqual(process.returncode, 248)
        self.assertFalse(alive(command) or alive(child))

    def test_once_itself_is_stopped_between_its_claim_and_the_command(self):
        """It says that the command begins, and waits: nobody reads that. Meanwhile another one does the work."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
        script = ("sh", "-c", "echo $ONCE_ATTEMPT; echo >>ran")
        process = self.start("run", "--verbose", "--key", "k", "--lease", "1s", "--fingerprint", "none", "--", *script,
                             stderr=writer)
        os.close(writer)
        wait_until(lambda: self.once("show", "--key", "k").returncode == 0, "claimed")
        self.stop(process)
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--wait", "60s", "--", *script), 0, b"2\n")
        process.send_signal(signal.SIGCONT)
        with open(reader, "rb") as said:
            said.read()
        self.assertEqual((process.stdout.read(), process.wait()), (b"2\n", 0))
        self.assertEqual(self.runs("ran"), 1)

    def test_an_operator_may_prolong_it(self):
        process, _ = self.start_slow()
        self.expect(self.once("extend", "--key", "k", "--by", "1h", "--reason", "slow today"), 0)
        revision = self.show("k")["revision"]
        wait_until(lambda: self.show("k")["revision"] > revision, "renewed after that")
        self.assertGreater(self.show("k")["lease_until"], time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 3000)))
        self.open_gate("go")
        self.assertEqual(process.wait(), 0)

    def test_the_store_goes_away(self):
        process, command = self.start_slow(lease="2s")
        for name in os.listdir(self.dir):
            if name.startswith("once.db"):
                os.rename(self.path(name), self.path("gone-" + name))
        _, err = process.communicate()
        self.assertEqual(process.returncode, 245, err)
        self.assertFalse(alive(command))
        self.assertIn(b"could not be renewed", err)


class Asleep(Stopping):
    """The lease ends while nobody could renew it."""

    def start_family(self, lease="2s", *more):
        self.fifo("go")
        process = self.start("run", "--key", "k", "--lease", lease, *more, "--", "sh", "-c", FAMILY, start_new_session=True)
        return process, self.pid_in("pid"), self.pid_in("child")

    def sleep(self, process):
        """The whole tree, for longer than the lease."""
        self.stop(process, with_all=True)
        wait_until(lambda: self.show("k")["standing"] == "lapsed", "the lease is over")

    @staticmethod
    def wake(process):
        os.killpg(process.pid, signal.SIGCONT)

    def test_a_claim_that_nobody_took_goes_on(self):
        process, command, child = self.start_family()
        self.sleep(process)
        self.wake(process)
        wait_until(lambda: self.show("k")["standing"] == "running", "renewed")
        wait_until(lambda: not stopped(command) and not stopped(child), "both go on")
        self.open_gate("go")
        out, err = process.communicate()
        self.assertEqual((process.returncode, out), (0, b"out\ngo\n"), err)
        self.assertEqual((self.show("k")["attempt"], self.runs("finished")), (1, 1))

    def test_a_claim_that_another_took_is_lost(self):
        process, command, child = self.start_family()
        self.sleep(process)
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--", "echo", "other"), 0, b"other\n")
        self.wake(process)
        _, err = process.communicate()
        self.assertEqual(process.returncode, 248, err)
        self.assertFalse(alive(command) or alive(child))
        self.assertEqual(self.runs("finished"), 0)

    def test_the_command_is_paused_while_once_is_stopped(self):
        process, command, child = self.start_family(lease="10s")
        self.stop(process)
        wait_until(lambda: stopped(command) and stopped(child), "the guard pauses both")
        self.assertFalse(stopped(os.getpid()))
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: not stopped(command) and not stopped(child), "both go on")
        self.open_gate("go")
        self.assertEqual(process.communicate()[0], b"out\ngo\n")
        self.assertEqual((process.returncode, self.show("k")["attempt"]), (0, 1))

    def test_once_may_be_stopped_for_many_leases(self):
        process, command, child = self.start_family(lease="2s")
        self.stop(process)
        wait_until(lambda: stopped(command) and stopped(child), "the guard pauses both")
        paused = time.monotonic()
        wait_until(lambda: time.monotonic() > paused + 6, "three more leases are over")
        self.assertTrue(stopped(command) and stopped(child))
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: not stopped(command) and not stopped(child), "both go on")
        self.open_gate("go")
        self.assertEqual(process.communicate()[0], b"out\ngo\n")
        self.assertEqual((process.returncode, self.show("k")["attempt"], self.runs("finished")), (0, 1, 1))

    def test_what_was_stopped_before_stays_so(self):
        process, command, child = self.start_family(lease="10s")
        os.kill(child, signal.SIGSTOP)
        self.stop(process)
        wait_until(lambda: stopped(command), "the guard pauses the command")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: not stopped(command), "it goes on")
        self.assertTrue(stopped(child))
        os.kill(child, signal.SIGCONT)
        self.open_gate("go")
        self.assertEqual(process.communicate()[0], b"out\ngo\n")

    def test_a_paused_command_is_not_continued_by_a_signal(self):
        process, command, child = self.start_family(lease="10s")
        self.stop(process)
        wait_until(lambda: stopped(command) and stopped(child), "the guard pauses both")
        os.kill(child, signal.SIGCONT)
        wait_until(lambda: stopped(child), "paused again")
        process.kill()
        wait_until(lambda: not alive(command) and not alive(child), "once died, so the guard ends them")

    def test_a_store_that_is_away_for_one_more_lease_ends_it(self):
        process, command, child = self.start_family()
        self.sleep(process)
        for name in os.listdir(self.dir):
            if name.startswith("once.db"):
                os.rename(self.path(name), self.path("gone-" + name))
        self.wake(process)
        _, err = process.communicate()
        self.assertEqual(process.returncode, 245, err)
        self.assertFalse(alive(command) or alive(child))
        self.assertEqual(self.runs("finished"), 0)


class Large(Case):
    def in_little_memory(self, arguments, **options):
        """Runs to the end with at most 96 MiB of memory of its own (stacks included); gives the exit code."""
        def limit():
            if not os.environ.get("ONCE_SANITIZE"):  # Sanitizers need far more.
                resource.setrlimit(resource.RLIMIT_DATA, (96 << 20, 96 << 20))
        return subprocess.run([harness.PROGRAM, *arguments], env=self.env, cwd=self.dir, check=False, preexec_fn=limit,
                              **options).returncode

    def test_a_limit_of_file_sizes_is_an_error_and_not_a_death(self):
        """By SIGXFSZ `once` would end after the command ran, without a word and without a result."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (400 << 10, 400 << 10))
        command = ["run", "--key", "k", "--", "sh", "-c", "echo x >>ran; head -c 1000000 /dev/zero"]
        with open(self.path("out"), "wb") as out:
            self.expect(self.once(*command, stdout=out, preexec_fn=limit), 74, None, b"output: File too large")
        self.expect(self.once(*command), 0, bytes(1_000_000))
        self.assertEqual(self.runs(), 1)
        done = self.once("run", "--key", "input", "--fingerprint", "stdin", "--", "touch", "acted", input=bytes(1_000_000),
                         preexec_fn=limit)
        self.expect(done, 243, b"", b"cannot keep standard input")
        self.assertFalse(self.path("acted").exists())

    def test_100_mb_stream_through_in_little_memory(self):
        size = 100_000_000
        command = ["run", "--key", "k", "--offload", "none", "--", "head", "-c", str(size), "/dev/zero"]
        with open(self.path("out"), "wb") as out:
            code = self.in_little_memory(command, stdout=out, stderr=subprocess.DEVNULL)
        self.assertEqual(code, 0)
        self.assertEqual(os.stat(self.path("out")).st_size, size)
        # Too large to keep: told, and never run again.
        self.expect(self.once(*command), 246, b"", b"too large to keep")
        run = self.show("k")["result"]["run"]
        self.assertEqual((run["output_kept"], run["stdout_bytes"], run["exit_code"]), (False, size, 0))

    def test_through_pipes_of_any_kind(self):
        size = 20_000_000
        command = ["run", "--key", "k", "--offload", "none", "--", "head", "-c", str(size), "/dev/urandom"]
        process = self.start(*command)
        total = 0
        while chunk := process.stdout.read(100_000):
            total += len(chunk)
        self.assertEqual((process.wait(), total), (0, size))

    def test_large_results_lie_beside_the_store(self):
        command = ["run", "--key", "k", "--retention", "1h", "--", "sh", "-c",
                   "echo x >>ran; seq 1 900000; seq 1 1000 >&2; exit 3"]
        first = self.expect(self.once(*command), 3)
        again = self.expect(self.once(*command), 3, first.stdout)
        self.assertEqual((again.stderr, self.runs()), (first.stderr, 1))
        files = os.listdir(self.path("once.db.results"))
        self.assertEqual(len(files), 1)
        record = self.show("k")
        self.assertEqual((record["result"]["placement"], record["result"]["location"]), ("offloaded", f"file:{files[0]}"))
        self.assertEqual(record["result"]["run"]["stdout"], first.stdout.decode())
        kept = self.path("once.db.results") / files[0]
        kept.write_bytes(b"x" * kept.stat().st_size)  # Another operation's, for example.
        shown = self.expect(self.once("show", "--key", "k"), 0, stderr=b"is not the one that was kept there")
        self.assertNotIn(b"xxxx", shown.stdout)
        os.truncate(self.path("once.db.results") / files[0], 1000)
        self.expect(self.once(*command), 244, b"")
        os.unlink(self.path("once.db.results") / files[0])
        self.expect(self.once(*command), 244, b"")
        self.assertEqual(self.runs(), 1)

    def test_what_compresses_stays_in_the_store(self):
        command = ["run", "--key", "k", "--", "sh", "-c", "echo x >>ran; seq 1 300000"]
        first = self.expect(self.once(*command), 0)
        self.expect(self.once(*command), 0, first.stdout)
        self.assertEqual(self.runs(), 1)
        self.assertFalse(self.path("once.db.results").exists())
        result = self.show("k")["result"]
        self.assertEqual((result["placement"], result["run"]["stdout"]), ("compressed", first.stdout.decode()))
        self.assertGreater(result["size"], len(first.stdout))
        self.assertIn(b", kept compressed\n", self.once("show", "--key", "k").stdout)
        listed = json.loads(self.once("ls", "--json").stdout)
        self.assertEqual(listed[0]["result"]["placement"], "compressed")
        # Damaged: said, and not run again.
        shell = ["sqlite3", self.path("once.db"), "UPDATE records SET result = substr(result, 1, 1000)"]
        subprocess.run(shell, check=True)
        self.expect(self.once(*command), 244, b"", b"not the one that was kept")
        self.assertIn(b"not the one that was kept", self.once("show", "--key", "k").stderr)
        self.assertEqual(self.runs(), 1)

    def test_sweep_removes_large_results(self):
        for key in ("a", "b"):
            self.expect(self.once("run", "--key", key, "--retention", "1ms" if key == "a" else "1h", "--no-sweep", "--",
                                  "head", "-c", "2000000", "/dev/urandom", stdout=subprocess.DEVNULL), 0)
        self.assertEqual(len(os.listdir(self.path("once.db.results"))), 2)
        wait_until(lambda: b"results outside" in self.once("sweep", "--dry-run").stdout, "the first expired")
        self.expect(self.once("sweep"), 0, b"1 expired records removed, with 1 results outside the store\n")
        self.assertEqual(len(os.listdir(self.path("once.db.results"))), 1)

    def test_2_gb_of_input_pass_through(self):
        size = 2_000_000_000
        with subprocess.Popen(["head", "-c", str(size), "/dev/zero"], stdout=subprocess.PIPE) as source:
            process = self.start("run", "--key", "k", "--", "wc", "-c", stdin=source.stdout)
            source.stdout.close()
            self.assertEqual(int(process.communicate()[0]), size)
        self.assertEqual(process.returncode, 0)

    def test_a_large_file_of_input_needs_no_memory(self):
        size = 400_000_000
        self.path("in").touch()
        os.truncate(self.path("in"), size)
        command = ["run", "--key", "k", "--fingerprint", "stdin", "--", "wc", "-c"]
        for kind in ("file", "again"):
            with self.subTest(kind=kind), open(self.path("in"), "rb") as file, open(self.path("out"), "wb") as out:
                code = self.in_little_memory(command, stdin=file, stdout=out)
                self.assertEqual((code, int(self.path("out").read_text())), (0, size))
        os.truncate(self.path("in"), size - 1)
        with open(self.path("in"), "rb") as file:
            self.expect(self.once(*command, stdin=file), 241)

    def test_much_input_from_a_pipe_goes_to_a_file_and_not_to_memory(self):
        size = 400_000_000
        with subprocess.Popen(["head", "-c", str(size), "/dev/zero"], stdout=subprocess.PIPE) as source:
            with open(self.path("out"), "wb") as out:
                code = self.in_little_memory(["run", "--key", "k", "--fingerprint", "stdin", "--", "wc", "-c"],
                                             stdin=source.stdout, stdout=out)
        self.assertEqual((code, int(self.path("out").read_text())), (0, size))

    def test_sweep_removes_results_that_no_record_names(self):
        self.expect(self.once("run", "--key", "a", "--output-limit", "1KiB", "--", "head", "-c", "200000", "/dev/urandom"), 0)
        folder = self.path("once.db.results")
        (kept,) = os.listdir(folder)
        random = "00112233445566778899aabbccddee"
        orphans = [f"0123456789abcdef-{random}ff", f"0123456789abcdef-{random}fe.part"]
        young = f"0123456789abcdef-{random}fd"
        foreign = ["notes.txt", "2024-01-01", "deadbeef", f"0123456789abcde-{random}ff0", f"0123456789abcdef-{random}f-"]
        for name in [*orphans, young, *foreign]:
            (folder / name).write_text("x")
        for name in [*orphans, kept, *foreign]:
            os.utime(folder / name, (0, 0))
        self.expect(self.once("sweep", "--orphans", "2d", "--dry-run"), 0,
                    b"0 expired records would be removed, and 2 results that no record names\n")
        self.expect(self.once("sweep", "--orphans", "2d"), 0,
                    b"0 expired records removed, and 2 results that no record names\n")
        self.assertEqual(sorted(os.listdir(folder)), sorted([kept, young, *foreign]))
        self.expect(self.once("sweep", "--orphans", "1h"), 64, b"", b"24h or more")
        self.expect(self.once("sweep", "--orphans", "2d", "--offload", "none"), 64, b"", b"needs a directory")

    def test_no_room_for_large_results(self):
        # A directory that cannot be made: the result is given up, and never run again.
        self.path("blocked").touch()
        command = ["run", "--key", "k", "--offload", "blocked/x", "--", "sh", "-c",
                   "echo x >>ran; head -c 2000000 /dev/urandom"]
        self.expect(self.once(*command), 0, stderr=b"could not be kept")
        self.expect(self.once(*command), 246, b"", b"could not be written outside the store")
        self.assertEqual(self.runs(), 1)
        failing = ["run", "--key", "f", "--offload", "blocked/x", "--", "sh", "-c", "head -c 2000000 /dev/urandom; exit 3"]
        self.expect(self.once(*failing), 3)
        self.expect(self.once(*failing), 246, b"", b"ended with exit 3")


class Readers(Case):
    def test_a_reader_that_leaves_changes_nothing(self):
        script = "echo x >>ran; seq 1 100000; echo end >&2"
        process = self.start("run", "--key", "k", "--", "sh", "-c", script)
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(), 0)
        again = self.expect(self.once("run", "--key", "k", "--", "sh", "-c", script), 0)
        self.assertTrue(again.stdout.endswith(b"\n100000\n"))
        self.assertEqual(self.runs(), 1)

    def test_a_full_disk_behind_our_output(self):
        with open("/dev/full", "wb") as full:
            self.expect(self.once("run", "--key", "k", "--", "seq", "3", stdout=full), 74, None, b"No space left")
            self.expect(self.once("run", "--key", "k", "--", "seq", "3", stdout=full), 74)
        self.expect(self.once("run", "--key", "k", "--", "seq", "3"), 0, b"1\n2\n3\n")

    def test_a_reader_that_sleeps_does_not_lose_the_claim(self):
        process = self.start("run", "--key", "k", "--lease", "6s", "--", "sh", "-c", "seq 1 100000; echo x >>ran")
        process.stdout.readline()
        writes = self.writes("k")
        wait_until(lambda: self.writes("k") >= writes + 2, "renewed while nobody reads")
        self.assertEqual(self.runs(), 0)
        rest = process.stdout.read()
        self.assertEqual((process.wait(), rest[-7:], self.runs()), (0, b"100000\n", 1))

    def test_terminated_while_nobody_reads(self):
        process = self.start("run", "--key", "k", "--", "sh", "-c", "echo $$ >pid; seq 1 20000")
        command = self.pid_in("pid")
        # All of it fits into the pipe to us and ours to nobody: the command ends, we cannot.
        wait_until(lambda: not alive(command), "the command has ended")
        process.terminate()
        self.assertEqual(process.wait(), 0)
        record = self.show("k")
        self.assertEqual(record["result"]["run"]["stdout"], "".join(f"{n}\n" for n in range(1, 20001)))

    def test_sockets_as_standard_output(self):
        import socket
        ours, theirs = socket.socketpair()
        process = self.start("run", "--key", "k", "--", "seq", "1", "100000", stdout=theirs)
        theirs.close()
        data = b""
        while chunk := ours.recv(65536):
            data += chunk
        ours.close()
        self.assertEqual((process.wait(), data), (0, b"".join(b"%d\n" % n for n in range(1, 100001))))


if __name__ == "__main__":
    harness.main()
