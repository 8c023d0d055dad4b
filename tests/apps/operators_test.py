"""The operators' commands: what they show, what they change, what they refuse."""
import hashlib
import fcntl
import json
import os
import pathlib
import pty
import signal
import sqlite3
import struct
import subprocess
import termios

import harness
import metrics_page
from harness import Case, wait_until

FIELDS = ["key", "key_base64", "scope", "scope_base64", "stored_key_hex", "key_hash", "state", "standing", "attempt", "token",
          "owner", "revision", "holder", "note", "label", "trace_id", "span_id", "created_at", "lease_until", "finished_at", "expires_at",
          "expected_until", "overdue", "on_lapse", "fingerprint", "failure", "result", "steps", "history", "history_dropped",
          "input_bytes"]


class Operators(Case):
    def complete(self, key, *more):
        self.expect(self.once("run", "--key", key, *more, "--", "echo", key), 0)

    def hold(self, key, *more):
        self.expect(self.once("run", "--key", key, "--on-failure", "hold", *more, "--", "false"), 1)

    def running(self, key, *more):
        """A command that holds the claim until its gate is opened."""
        self.fifo(f"go-{key}")
        process = self.start("run", "--key", key, *more, "--", "sh", "-c", f"echo x >started-{key}; cat go-{key}")
        wait_until(lambda: self.runs(f"started-{key}") == 1, f"{key} runs")
        return process

    def crashed(self, key, *more):
        """A claim whose holder is dead and whose lease is over."""
        process = self.running(key, *more)
        process.kill()
        process.wait()
        self.lapse()
        wait_until(lambda: self.show(key)["standing"] == "lapsed", f"{key} lapsed")

    def ls(self, *arguments):
        done = self.expect(self.once("ls", "--json", *arguments), 0)
        return sorted(record["key"] for record in json.loads(done.stdout))

    def change(self, *arguments, code=0):
        done = self.once(*arguments, "--json")
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout)


    def database(self, statement):
        """Carried out on the table of records, behind the store's back."""
        database = sqlite3.connect(self.path("once.db"))
        table = next(name for (name,) in database.execute("select name from sqlite_master where type='table'")
                     if "key" in [row[1] for row in database.execute(f"pragma table_info({name})")])
        database.execute(statement.format(table))
        database.commit()
        database.close()


class Looking(Operators):
    def test_ls_filters(self):
        self.complete("done")
        self.complete("done2", "--scope", "pay")
        self.expect(self.once("run", "--key", "failed", "--", "false"), 1)
        self.hold("held")
        self.crashed("crashed")
        self.complete("gone", "--retention", "1ms", "--no-sweep")
        wait_until(lambda: self.show("gone")["standing"] == "expired", "expired")
        everything = ["crashed", "done", "done2", "failed", "gone", "held"]
        self.assertEqual(self.ls(), everything)
        self.assertEqual(self.ls("--state", "completed"), ["done", "done2"])
        self.assertEqual(self.ls("--state", "failed"), ["failed"])
        self.assertEqual(self.ls("--state", "unknown"), ["held"])
        self.assertEqual(self.ls("--state", "lapsed"), ["crashed"])
        self.assertEqual(self.ls("--state", "in_progress"), ["crashed"])
        self.assertEqual(self.ls("--state", "running"), [])
        self.assertEqual(self.ls("--expired"), ["gone"])
        self.assertEqual(self.ls("--scope", "pay"), ["done2"])
        self.assertEqual(self.ls("--scope", "pay", "--prefix", "x"), [])
        self.assertEqual(self.ls("--prefix", "done"), ["done"])
        self.assertEqual(self.ls("--older-than", "1h"), [])
        self.assertEqual(self.ls("--newer-than", "1h"), everything)
        self.assertEqual(len(self.ls("--limit", "2")), 2)
        text = self.expect(self.once("ls"), 0).stdout.decode()
        self.assertEqual(len(text.splitlines()), 7)
        self.assertTrue(text.startswith("STATE"))

    def column(self, name, *arguments):
        listed = self.expect(self.once("ls", "--columns", name, *arguments), 0).stdout.decode().splitlines()
        self.assertEqual(listed[0], name.upper())
        return listed[1:]

    def test_columns(self):
        self.complete("done")
        self.expect(self.once("run", "--key", "failed", "--", "sh", "-c", "exit 3"), 3)
        self.hold("held")
        head, *rows = self.expect(self.once("ls", "--columns", "key,exit,reason"), 0).stdout.decode().splitlines()
        self.assertEqual(head.split(), ["KEY", "EXIT", "REASON"])
        cells = {row.split()[0]: row.split(maxsplit=2)[1:] for row in rows}
        self.assertEqual(cells["done"], ["0", "-"])
        self.assertEqual(cells["failed"][0], "3")
        self.assertTrue(cells["failed"][1].startswith("exit 3"), cells)
        self.assertEqual(cells["held"][0], "-")
        self.assertIn("may have acted", cells["held"][1])
        self.change("release", "--key", "held", "--reason", "x" * 200)
        note, = self.column("reason", "--state", "released")
        self.assertTrue(note.startswith("released by ") and note.endswith("xxx...") and len(note) == 83, note)
        self.assertEqual(self.column("stored-key", "--state", "completed"), [b"#done".hex()])
        self.assertIn(b"EXIT  REASON\n", self.expect(self.once("ls"), 0).stdout)
        for wrong, said in (("kye", b"Did you mean key?"), ("key,", b"no column ''"), ("match", b"no column 'match'")):
            self.expect(self.once("ls", "--columns", wrong), 64, b"", said)
        self.expect(self.once("ls", "--columns", "key", "--json"), 64, b"", b"--columns")
        self.expect(self.once("ls", "--columns", "a\x1b"), 64, b"", b"a\\x1B")

    def test_sorting(self):
        for number in (3, 1, 2, 10):
            self.complete(f"k{number}", "--scope", "s")
        self.database("update {} set created_at_ms = created_at_ms - 1000000 * length(key), attempt = "
                      "cast(substr(cast(key as text), 4) as int)")
        self.assertEqual(self.column("key", "--sort", "key"), ["k1", "k10", "k2", "k3"])
        self.assertEqual(self.column("attempt", "--sort", "attempt"), ["1", "2", "3", "10"])
        self.assertEqual(self.column("attempt", "--sort", "attempt", "--reverse"), ["10", "3", "2", "1"])
        self.assertEqual(self.column("key", "--sort", "created")[0], "k10")
        self.assertEqual(self.column("key", "--sort", "created", "--reverse")[-1], "k10")
        # The first of all records, wherever the store has them; not the first records, sorted.
        self.assertEqual(self.column("attempt", "--sort", "attempt", "--limit", "2"), ["1", "2"])
        self.assertEqual(self.column("attempt", "--sort", "attempt", "--limit", "2", "--reverse"), ["10", "3"])
        self.expect(self.once("ls", "--sort", "attempt", "--limit", "2"), 0, stderr=b"these are 2 of 4 records")
        self.assertEqual(self.once("ls", "--sort", "attempt", "--limit", "4").stderr, b"")
        listed = json.loads(self.expect(self.once("ls", "--json", "--sort", "attempt", "--limit", "3"), 0).stdout)
        self.assertEqual([record["attempt"] for record in listed], [1, 2, 3])
        found = json.loads(self.expect(self.once("find", "k", "--json", "--sort", "attempt", "--reverse"), 0).stdout)
        self.assertEqual([record["attempt"] for record in found], [10, 3, 2, 1])
        self.assertEqual(json.loads(self.once("ls", "--json", "--sort", "key", "--state", "unknown").stdout), [])
        for wrong, said in ((["--sort", "atempt"], b"Did you mean attempt?"), (["--reverse"], b"--sort"),
                            (["--sort", "key", "--limit", "10001"], b"at most 10000")):
            self.expect(self.once("ls", *wrong), 64, b"", said)

    def test_more_records_than_are_sorted(self):
        self.complete("k")
        rows = "(with recursive n(i) as (select 1 union all select i + 1 from n where i < 2500) select i from n)"
        columns = "state, revision, attempt, token, created_at_ms, owner"
        self.database(f"insert into {{}} (hash, key, {columns}) select i, '#copy' || i, 3, 1048576, i, 1, 1, zeroblob(16) from {rows}")
        self.assertEqual(self.column("attempt", "--state", "unknown", "--sort", "attempt"), [str(i + 1) for i in range(1000)])
        self.assertEqual(self.column("attempt", "--state", "unknown", "--sort", "attempt", "--reverse", "--limit", "1200"),
                         [str(2500 - i) for i in range(1200)])
        self.expect(self.once("ls", "--sort", "attempt"), 0, stderr=b"these are 1000 of 2501 records")

    def test_ls_by_label_and_holder(self):
        self.complete("digest-1", "--label", "none")
        self.complete("digest-2", "--label", "none")
        self.database("update {} set label = 'Order-17', holder = 'web-1/4711' where key = '#digest-1'")
        self.database("update {} set holder = 'web-2/52' where key = '#digest-2'")
        self.assertEqual(self.ls("--label", "order-1"), ["digest-1"])
        self.assertEqual(self.ls("--label", "order-170"), [])
        self.assertEqual(self.ls("--holder", "WEB"), ["digest-1", "digest-2"])
        self.assertEqual(self.ls("--holder", "web-2/"), ["digest-2"])
        self.assertEqual(self.ls("--holder", "web-2", "--label", "order"), [])
        self.assertEqual(json.loads(self.once("stats", "--json", "--holder", "web-2").stdout)["records"], 1)
        self.expect(self.once("ls", "--label", "x"), 0, b"", b"no records match")

    def test_a_record_that_does_not_say_when_it_was_made(self):
        self.complete("ours")
        self.hold("theirs")
        self.database("update {} set created_at_ms = 0 where state = 3")
        self.assertEqual(self.ls(), ["ours", "theirs"])
        self.assertEqual(self.ls("--newer-than", "1h"), ["ours"])
        self.assertEqual(self.ls("--newer-than", "3653d"), ["ours"])
        self.assertEqual(self.ls("--older-than", "0s"), ["ours"])
        text = self.expect(self.once("ls", "--state", "unknown"), 0).stdout.decode()
        self.assertRegex(text.splitlines()[1], r"^unknown +- +theirs +1 +unknown +since ")
        self.assertRegex(self.expect(self.once("show", "--key", "theirs"), 0).stdout.decode(), r"\ncreated +unknown\n")
        self.assertIsNone(self.show("theirs")["created_at"])

    def test_ls_shows_what_it_read_before_it_failed(self):
        self.complete("k")
        rows = "(with recursive n(i) as (select 1 union all select i + 1 from n where i < 700) select i from n)"
        columns = "state, revision, attempt, token, created_at_ms, owner"
        self.database(f"insert into {{}} (hash, key, {columns}) select i, '#copy' || i, 1, 1048576, 1, 1, 1, zeroblob(16) from {rows}")
        self.database("update {} set owner = x'00' where key = '#copy700'")
        listed = self.expect(self.once("ls"), 244, stderr=b"malformed owner")
        lines = listed.stdout.decode().splitlines()
        self.assertEqual(len(lines), 1 + 500)  # A page, below one head.
        self.assertTrue(lines[0].startswith("STATE"))
        self.assertEqual(len({line.split()[2] for line in lines[1:]}), 500)

    def test_ls_of_nothing(self):
        self.complete("k")
        self.expect(self.once("ls", "--state", "unknown"), 0, b"", b"no records")
        self.expect(self.once("ls", "--state", "unknown", "--json"), 0, b"[]\n")

    def test_ls_does_not_make_a_store(self):
        for command in (["ls"], ["stats"], ["sweep"], ["doctor"], ["show", "--key", "k"]):
            self.assertEqual(self.once(*command).returncode, 243, command)
        self.assertEqual(os.listdir(self.dir), [])

    def test_fields(self):
        self.expect(self.once("run", "--key", "k", "--scope", "s", "--", "sh", "-c", "printf 'a\\377'; echo e >&2; exit 3"), 3)
        record = self.show("k", "--scope", "s")
        self.assertEqual(list(record), FIELDS + ["input", "input_base64"])
        self.assertEqual(list(json.loads(self.once("ls", "--json").stdout)[0]), FIELDS)
        self.assertEqual((record["key"], record["scope"], record["state"], record["attempt"]), ("k", "s", "failed", 1))
        self.assertEqual(record["failure"]["code"], "exit 3")
        run = record["result"]["run"]
        self.assertEqual((run["exit_code"], run["stdout"], run["stdout_base64"], run["stderr"]), (3, None, "Yf8=", "e\n"))
        for name in ("created_at", "finished_at", "expires_at"):
            self.assertRegex(record[name], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        text = self.expect(self.once("show", "--key", "k", "--scope", "s"), 0).stdout.decode()
        for word in ("failed", "exit code    3", "\\xFF", "fingerprint"):
            self.assertIn(word, text)

    def test_labels(self):
        self.complete("order-17")
        self.complete("order-18", "--label", "none")
        self.assertEqual([self.show(key)["label"] for key in ("order-17", "order-18")], ["order-17", ""])
        self.assertRegex(self.expect(self.once("show", "--key", "order-17"), 0).stdout.decode(), r"\nlabel +order-17\n")
        # The column has what the key does not say.
        self.database("update {} set label = 'order-19' where label is null")
        head, *rows = self.expect(self.once("ls"), 0).stdout.decode().splitlines()
        labels = {row.split()[2]: row[head.index("LABEL"):head.index("HOLDER")].strip() for row in rows}
        self.assertEqual(labels, {"order-17": "-", "order-18": "order-19"})
        self.expect(self.once("run", "--key", "k", "--label", "all", "--", "true"), 64, stderr=b"--label")

    def test_history(self):
        self.complete("done")
        self.assertEqual((self.show("done")["history"], self.show("done")["history_dropped"]), ([], 0))
        self.crashed("k", "--on-lapse", "hold")
        holder, lapsed_at, began_at = (self.show("k")[name] for name in ("holder", "lease_until", "created_at"))
        self.change("extend", "--key", "k", "--by", "1ms", "--reason", "it may still come", "--who", "bob@desk")
        extended = self.show("k")
        self.assertGreater(extended["lease_until"], lapsed_at)
        wait_until(lambda: self.show("k")["standing"] == "lapsed", "lapsed again")
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--", "true"), 242)
        self.change("release", "--key", "k", "--reason", "never reached the bank", "--who", "alice@desk")
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--", "true"), 0)
        record = self.show("k")
        self.assertEqual((record["attempt"], record["history_dropped"]), (2, 0))
        extension, lapse, release = record["history"]
        self.assertEqual({**extension, "at": None},
                         {"what": f"lease extended to {extended['lease_until']}", "who": "bob@desk",
                          "why": "it may still come", "attempt": 0, "began_at": None, "at": None,
                          "trace_id": None, "span_id": None, "revision": extended["revision"]})
        self.assertEqual(lapse, {"what": "lapsed", "who": holder, "why": "",
                                 "attempt": 1, "began_at": began_at, "at": extended["lease_until"],
                                 "trace_id": None, "span_id": None, "revision": None})
        self.assertEqual((release["what"], release["who"], release["why"], release["attempt"]),
                         ("released", "alice@desk", "never reached the bank", 0))
        text = self.expect(self.once("show", "--key", "k"), 0).stdout.decode()
        time = r"\nhistory      \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  \(.* ago\)  "
        self.assertRegex(text, time + r"attempt 1 of .+ lapsed after \S+\n")
        self.assertRegex(text, time + r"released by alice@desk: never reached the bank\n")

    def test_traces(self):
        trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        command = ["--", "sh", "-c", "echo $TRACEPARENT $TRACESTATE; test -e works"]
        self.env.update(TRACEPARENT=f"00-{trace}-{span}-01", TRACESTATE="a=1")
        done = self.once("run", "--key", "k", "--log", "json", *command)
        self.expect(done, 1, f"00-{trace}-{span}-01 a=1\n".encode())
        for line in done.stderr.decode().splitlines():
            self.assertEqual((json.loads(line)["trace_id"], json.loads(line)["span_id"]), (trace, span))
        other = "0af7651916cd43dd8448eb211c80319c"
        self.env.update(TRACEPARENT=f"00-{other}-{span}-00")
        self.path("works").touch()
        self.expect(self.once("run", "--key", "k", "--on-stored-failure", "execute", *command), 0)
        record = self.show("k")
        self.assertEqual((record["trace_id"], record["span_id"]), (other, span))
        self.assertEqual([(entry["what"], entry["trace_id"], entry["span_id"]) for entry in record["history"]],
                         [("failed", trace, span)])
        text = self.expect(self.once("show", "--key", "k"), 0).stdout.decode()
        self.assertIn(f"\ntrace        {other}  (span {span})\n", text)
        self.assertRegex(text, rf"\nhistory .* failed after .*  trace {trace}  \(span {span}\)\n")
        self.env.update(TRACEPARENT="nonsense")
        self.expect(self.once("run", "--key", "l", *command), 0, b"nonsense a=1\n")
        self.assertEqual(self.show("l")["trace_id"], None)

    def test_terminals_are_not_steered_by_keys(self):
        self.complete("a\x1b[31m\nb\u009b")
        for command in (["ls"], ["show", "--key", "a\x1b[31m\nb\u009b"]):
            text = self.expect(self.once(*command), 0).stdout
            self.assertNotIn(b"\x1b", text)
            self.assertNotIn("\u009b".encode(), text)
            self.assertIn(b"a\\x1B[31m\\nb", text)

    def test_readers_are_not_steered_by_keys(self):
        """U+202E turns the rest of a line around, U+2028 begins one, and nobody sees the others: in JSON neither."""
        hidden = "\u0085\u00ad\u200b\u2028\u202e\u2066\ufe0f\ufeff\U000e0041\U000e0100"
        key = f"pay{hidden}"
        self.complete(key, "--scope", f"shop{hidden}")
        for command in (["ls"], ["ls", "--json"], ["find", key], ["find", key, "--json"],
                        ["show", "--key", key, "--scope", f"shop{hidden}"],
                        ["show", "--key", key, "--scope", f"shop{hidden}", "--json"],
                        ["rm", "--key", key, "--scope", f"shop{hidden}", "--reason", hidden, "--dry-run", "--json"]):
            text = self.expect(self.once(*command), 0).stdout.decode()
            self.assertEqual([c for c in text if c in hidden], [], command)
            if "--json" in command and command[0] in ("ls", "show"):
                records = json.loads(text)
                self.assertEqual((records[0] if command[0] == "ls" else records)["key"], key)
        told = self.once("release", "--key", key, "--scope", hidden, "--reason", "r").stderr.decode()
        self.assertEqual([c for c in told if c in hidden], [])

    def test_show_of_nothing(self):
        self.complete("k")
        self.expect(self.once("show", "--key", "other"), 239, b"", b"no record")

    def test_stats(self):
        self.complete("a")
        self.complete("b", "--scope", "pay")
        self.hold("h")
        self.crashed("c")
        counts = json.loads(self.expect(self.once("stats", "--json"), 0).stdout)
        self.assertEqual([counts[name] for name in ("records", "completed", "unknown", "lapsed", "running")], [4, 2, 1, 1, 0])
        self.assertIsNotNone(counts["oldest_unknown_at"])
        self.assertEqual(json.loads(self.once("stats", "--json", "--scope", "pay").stdout)["records"], 1)
        self.assertIn(b"completed", self.expect(self.once("stats"), 0).stdout)

    def test_stats_for_prometheus(self):
        self.expect(self.once("run", "--scope", "pay", "--key", "k", "--", "true"), 0)
        self.expect(self.once("run", "--scope", "pay", "--key", "u", "--on-failure", "hold", "--", "false"), 1)
        values = metrics_page.check(self.expect(self.once("stats", "--prometheus"), 0).stdout.decode(), "Store")
        self.assertEqual(values['once_records{state="completed"}'], 1)
        self.assertEqual(values['once_records{state="unknown"}'], 1)
        self.assertEqual(values["once_records_overdue"], 0)
        self.assertLessEqual(values['once_oldest_timestamp_seconds{of="created"}'],
                             values['once_oldest_timestamp_seconds{of="unknown"}'])
        self.assertNotIn('once_oldest_timestamp_seconds{of="lapsed"}', values)
        values = metrics_page.check(self.expect(self.once("stats", "--prometheus", "--by-scope"), 0).stdout.decode(), "Store")
        self.assertEqual(values['once_records{scope="pay",state="unknown"}'], 1)
        self.assertNotIn('once_records{state="unknown"}', values)
        self.expect(self.once("stats", "--by-scope"), 64)
        flags = ("stats", "--prometheus", "--scope", "pay", "--metrics-file")
        self.expect(self.once(*flags, "once.prom"), 0, b"")
        values = metrics_page.check(self.path("once.prom").read_text(), "Store")
        self.assertEqual(values['once_records{scope="pay",state="completed"}'], 1)
        self.expect(self.once(*flags, "no/such/once.prom"), 74, b"", b"cannot write the metrics file")
        self.expect(self.once("stats", "--metrics-file", "once.prom"), 64)

    def test_a_reader_that_leaves(self):
        for key in range(3):
            self.complete(f"k{key}")
        process = self.start("ls")
        process.stdout.close()
        self.assertEqual(process.wait(), -13)  # SIGPIPE, as with any other program.
        with open("/dev/full", "wb") as full:
            self.assertEqual(self.once("ls", stdout=full).returncode, 74)


class Watching(Operators):
    def test_redraws_what_fits_until_ctrl_c(self):
        for number in range(8):
            self.complete(f"k{number}")
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
        process = self.start("ls", "--watch=1", "--sort", "key", "--reverse", "--columns", "key,state", stdout=slave,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        os.close(slave)
        drawn = b""

        def until(text):
            nonlocal drawn
            while text not in drawn:
                drawn += os.read(master, 4096)

        until(b"k2 ")
        screen = drawn.split(b"\x1b[H\x1b[2J")[1]
        self.assertEqual([line.split()[0] for line in screen.splitlines()[2:8]], [b"k%d" % n for n in (7, 6, 5, 4, 3, 2)])
        self.assertNotIn(b"k1 ", screen)
        self.complete("k9")
        until(b"k9 ")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(harness.DEADLINE_S), 0)
        self.assertGreaterEqual(drawn.count(b"\x1b[?7l"), 2)
        self.assertIn(b"these are 6 of 8 records", process.stderr.read())

    def test_only_on_a_terminal(self):
        self.complete("k")
        self.expect(self.once("ls", "--watch"), 64, b"", b"or a loop around once ls --json")
        for wrong in ("--watch=0", "--watch=3601", "--watch=soon", "--watch="):
            self.expect(self.once("ls", wrong), 64, b"", b"--watch")
        self.expect(self.once("ls", "--watch", "--json"), 64, b"", b"--json")


class Finding(Operators):
    """What a person knows of an operation at 3 a.m. is a name, not where it is stored."""

    def find(self, *arguments, code=0):
        """Why each key was found."""
        done = self.once("find", "--json", *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        return {(record["scope"] + "/" if record["scope"] else "") + record["key"]: record["match"]
                for record in json.loads(done.stdout)}

    def derived(self, text, *more):
        self.path("event").write_text(json.dumps({"id": text}))
        key = json.loads(self.expect(self.once("key", "--expression", "id", "--json", *more, "event"), 0).stdout)["key"]
        return key[key.rindex("#") + 1:]

    def test_in_all_scopes(self):
        self.complete("order-17")
        self.complete("order-170", "--scope", "pay")
        self.complete("reorder-17", "--scope", "pay")
        self.complete("Order-17", "--scope", "a#b%")
        self.complete("unrelated", "--scope", "order-17")
        self.complete("other", "--scope", "pay")
        self.assertEqual(self.find("order-17"), {
            "order-17": "key", "pay/order-170": "start of key", "pay/reorder-17": "part of label",
            "a#b%/Order-17": "start of key", "order-17/unrelated": "start of scope"})
        self.assertEqual(self.find("order-17", "--scope", "pay"),
                         {"pay/order-170": "start of key", "pay/reorder-17": "part of label"})
        for whole in ("pay/order-170", "pay#order-170", b"pay#order-170".hex()):
            self.assertEqual(self.find(whole), {"pay/order-170": "scope and key"}, whole)
        shown = json.loads(self.expect(self.once("show", "--key", "order-170", "--scope", "pay", "--json"), 0).stdout)
        self.assertEqual(shown["key_hash"], hashlib.sha256(b"pay#order-170").hexdigest()[:16])
        self.assertEqual(self.find(shown["key_hash"]), {"pay/order-170": "key hash"})
        self.find(shown["key_hash"][:15], code=239)
        self.assertEqual(self.find("a#b%/Order"), {"a#b%/Order-17": "start of scope"})
        self.assertEqual(self.find("a%23b%25#Order"), {"a#b%/Order-17": "start of scope"})

    def test_a_key_that_is_a_digest(self):
        """By the label if there is one, else by deriving what each rule makes of the text."""
        digest = self.derived("order-17")
        self.complete(digest, "--scope", "labelled")
        self.database("update {} set label = 'order-17'")
        self.complete(digest, "--scope", "pay", "--label", "none")
        for dialect in ("python", "typescript", "java", "dotnet"):
            self.complete(self.derived("order-17", "--dialect", f"powertools-{dialect}"), "--scope", dialect,
                          "--label", "none")
        self.complete(self.derived("order-17", "--hash", "md5"), "--scope", "md5", "--label", "none")
        self.complete(self.derived("order-18"), "--scope", "pay", "--label", "none")
        self.complete(self.derived(17), "--scope", "number", "--label", "none")
        found = {name.split("/")[0]: match for name, match in self.find("order-17").items()}
        self.assertEqual(found, {"labelled": "label", "pay": "digest", "python": "digest", "typescript": "digest",
                                 "java": "digest", "dotnet": "digest", "md5": "digest"})
        self.assertEqual([name.split("/")[0] for name in self.find("17")][:1], ["labelled"])
        self.assertIn(("number", "digest"), [(name.split("/")[0], match) for name, match in self.find("17").items()])

    def test_texts_that_are_no_text(self):
        self.complete("a\x1b[31m\nb")
        self.complete(b"\xff\xfe17")
        listed = self.expect(self.once("find", "a\x1b[31m\nb"), 0).stdout
        self.assertNotIn(b"\x1b", listed)
        self.assertIn(b"a\\x1B[31m\\nb", listed)
        # What `ls` prints can be pasted.
        self.assertEqual(self.find("a\\x1B[31m\\nb"), {"a\x1b[31m\nb": "key"})
        for text in (b"\xff\xfe17", b"\\xFF\\xFE17"):
            listed = self.expect(self.once("find", text), 0).stdout.decode()
            self.assertRegex(listed, r"\nkey +completed +- +.xFF.xFE17 ")
        self.expect(self.once("find", b"\xff\x1b"), 239, b"", b"'\\xFF\\x1B'")

    def test_nothing_found(self):
        self.expect(self.once("find", "order-17"), 243)
        self.complete("order-17")
        self.expect(self.once("find", "order-18"), 239, b"", b"no record has 'order-18' as its key or label")
        self.expect(self.once("find", "order-17", "--state", "unknown"), 239, b"", b"no record that these options select")
        self.expect(self.once("find", "order-18", "--json"), 239, b"[]\n")
        self.expect(self.once("find", ""), 64, b"", b"once ls")
        self.expect(self.once("find"), 64, b"", b"TEXT")

    def test_a_limit_says_that_there_is_more(self):
        for number in range(3):
            self.complete(f"order-{number}")
        self.assertEqual(len(self.find("order", "--limit", "2")), 2)
        self.expect(self.once("find", "order", "--limit", "2"), 0, stderr=b"there are more records than --limit 2")
        self.expect(self.once("find", "order", "--limit", "3"), 0)
        self.assertNotIn(b"more", self.once("find", "order", "--limit", "3").stderr)

    def test_records_that_cannot_be_read(self):
        """They may be the one that is looked for."""
        self.complete("order-17")
        self.complete("order-18")
        self.database("update {} set owner = x'00' where key = '#order-18'")
        for text in ("order-17", "order-18"):
            self.expect(self.once("find", text), 244, stderr=b"malformed owner")


class Labels(Operators):
    """A label works where a key does, and never means a record that was not meant."""

    def hold_as(self, label, key, *more):
        """An operation whose key tells nothing."""
        self.hold(key, "--label", "none", *more)
        self.database(f"update {{}} set label = {label} where key like '%#{key}'")

    def refused(self, *arguments, code=64):
        """Nothing is changed; what was said."""
        before = self.expect(self.once("ls", "--json"), 0).stdout
        said = [self.expect(self.once(*command, *arguments), code, b"").stderr.decode() for command in (
            ["show"], ["resolve", "--as", "completed", "--reason", "r"], ["release", "--reason", "r"],
            ["extend", "--by", "1h", "--reason", "r"])]
        self.assertEqual(self.expect(self.once("ls", "--json"), 0).stdout, before)
        return said[0]

    def test_all_commands_take_it(self):
        self.hold_as("'order-17'", "digest", "--scope", "pay")
        for more in ([], ["--scope", "pay"]):
            shown = self.expect(self.once("show", "--key", "order-17", "--json", *more), 0,
                                stderr=b"; this one has it as its label: 'digest' in scope 'pay'")
            self.assertEqual(json.loads(shown.stdout)["key"], "digest")
        self.refused("--key", "order-17", "--scope", "other", code=239)
        for command in (["release"], ["resolve", "--as", "completed"], ["extend", "--by", "1h"]):
            answer = self.change(*command, "--key", "order-17", "--reason", "r")
            self.assertEqual((answer["changed"], answer["record"]["key"]), (True, "digest"))

    def test_a_key_wins(self):
        self.hold_as("'order-17'", "other")
        self.hold("order-17", "--label", "none")
        shown = self.expect(self.once("show", "--key", "order-17", "--json"), 0, stderr=b"")
        self.assertEqual(shown.stderr, b"")
        self.assertEqual(json.loads(shown.stdout)["key"], "order-17")
        self.assertEqual(self.change("release", "--key", "order-17", "--reason", "r")["record"]["key"], "order-17")
        self.assertEqual(self.show("other")["standing"], "unknown")

    def test_several_may_be_meant(self):
        self.hold_as("'order-17'", "one", "--scope", "pay")
        self.hold_as("'order-17'", "two", "--scope", "refund")
        said = self.refused("--key", "order-17")
        self.assertIn("it may mean 2 records. Nothing was changed", said)
        for stored in (b"pay#one", b"refund#two"):
            self.assertIn(f"\n  {stored.hex()}  unknown  ", said)
        self.assertTrue(self.change("release", "--key", "order-17", "--scope", "refund", "--reason", "r")["changed"])
        self.assertEqual(self.change("release", "--stored-key-hex", b"pay#one".hex(), "--reason", "r")["record"]["key"],
                         "one")
        for number in range(10):
            self.hold_as("'order-17'", f"more{number}")
        self.assertIn("may mean 12 records", self.refused("--key", "order-17"))
        self.assertIn("\n  and 2 more", self.refused("--key", "order-17"))

    def test_a_strangers_label_does_not_hide_the_record_that_is_meant(self):
        """Another scope has the true key, or its digest; a client elsewhere chose the same text as its key."""
        self.path("event").write_text('"order-17"')
        digest = json.loads(self.once("key", "--json", "event").stdout)["key"].split("#")[1]
        for true_key in ("order-17", digest):
            with self.subTest(true_key=true_key):
                self.hold(true_key, "--label", "none", "--scope", "pay")
                self.hold_as("'order-17'", "hostile", "--scope", "http")
                self.assertIn("it may mean 2 records", self.refused("--key", "order-17"))
                self.database("delete from {}")

    def test_only_the_whole_label(self):
        self.hold_as("'Order-17'", "other-case")
        self.hold_as("'order-170'", "longer")
        self.hold_as("'order-1'", "shorter")
        self.refused("--key", "order-17", code=239)
        self.assertEqual(self.change("release", "--key", "order-170", "--reason", "r")["record"]["key"], "longer")

    def test_a_key_elsewhere_is_told_but_not_taken(self):
        self.hold("order-17", "--label", "none", "--scope", "pay")
        self.assertIn(f"give --stored-key-hex:\n  {b'pay#order-17'.hex()}  unknown",
                      self.refused("--key", "order-17", code=239))

    def test_labels_that_may_stand_for_several_keys(self):
        """Cut to its limit, or with characters in place of bytes that are no text: no other key has it yet."""
        cut = "x" * 1021
        self.hold_as(f"'{cut}'", "long")
        self.refused("--key", cut, code=239)
        self.hold_as("'a' || char(65533)", "bytes")
        self.refused("--key", "a\ufffd", code=239)
        self.hold_as("'a' || char(27) || 'b'", "steering")
        self.assertEqual(self.change("release", "--key", "a\x1bb", "--reason", "r")["record"]["key"], "steering")
        self.assertNotIn(b"\x1b", self.once("show", "--key", "a\x1bb").stderr)
        self.refused("--key", "a\\x1Bb", code=239)  # As it is listed; only `find` takes that.
        self.refused("--key", b"\xff", code=239)

    def test_only_a_text(self):
        self.hold_as("'order-17'", "digest")
        self.path("key").write_text("order-17")
        self.refused("--key-hex", b"order-17".hex(), code=239)
        self.refused("--key-file", "key", code=239)
        self.assertEqual(self.once("show", "--key-file", "-", input=b"digest").returncode, 0)

    def test_not_while_some_records_cannot_be_read(self):
        self.hold_as("'order-17'", "digest")
        self.complete("damaged")
        self.database("update {} set owner = x'00' where key = '#damaged'")
        for command in (["show"], ["release", "--reason", "r"]):
            done = self.expect(self.once(*command, "--key", "order-17"), 244, b"", b"malformed owner")
            self.assertIn(b"cannot be told", done.stderr)
        self.assertEqual(self.show("digest")["standing"], "unknown")

    def test_a_refusal_names_the_record(self):
        self.hold_as("'order-17'", "digest")
        revision = self.show("digest")["revision"]
        answer = self.change("release", "--key", "order-17", "--reason", "r", "--if-revision", str(revision + 1), code=240)
        self.assertEqual((answer["changed"], answer["record"]["key"]), (False, "digest"))


class Deciding(Operators):
    def test_resolve_as_completed_for_once_run(self):
        self.hold("k")
        before = self.show("k")
        self.path("out").write_bytes(b"receipt \xff\0")
        self.path("err").write_bytes(b"warning\n")
        answer = self.change("resolve", "--key", "k", "--as", "completed", "--exit-code", "3", "--result", "out",
                             "--stderr", "err", "--reason", "seen in the ledger", "--who", "alice@desk")
        self.assertTrue(answer["changed"])
        done = self.expect(self.once("run", "--key", "k", "--", "false"), 3, b"receipt \xff\0")
        self.assertEqual(done.stderr, b"warning\n")
        after = self.show("k")
        self.assertEqual(after["note"], "resolved as completed by alice@desk: seen in the ledger")
        self.assertEqual(after["revision"] >> 20, (before["revision"] >> 20) + 1)
        self.assertNotEqual(after["owner"], before["owner"])

    def test_resolve_as_failed(self):
        self.hold("k")
        self.change("resolve", "--key", "k", "--as", "failed", "--code", "declined", "--message", "no money", "--reason", "r")
        self.expect(self.once("run", "--key", "k", "--", "false"), 1, b"", b"declined: no money")
        self.assertIn("@", self.show("k")["note"])

    def test_resolve_as_released(self):
        self.hold("k")
        self.change("resolve", "--key", "k", "--as", "released", "--reason", "never reached the bank")
        self.assertEqual(self.show("k")["standing"], "released")
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--", "sh", "-c", "echo $ONCE_ATTEMPT"), 0, b"2\n")

    def test_resolve_checks_its_flags(self):
        self.hold("k")
        for more, said in ((["--as", "done"], b"--as"), (["--as", "completed", "--exit-code", "256"], b"--exit-code"),
                           (["--as", "released", "--exit-code", "1"], b"leave out"),
                           (["--as", "completed", "--stderr", "x"], b"--stderr needs"),
                           (["--as", "completed", "--code", "x"], b"--as failed"),
                           (["--as", "completed", "--result", "missing"], b"missing"),
                           (["--as", "completed", "--reason", " "], b"")):
            with self.subTest(more=more):
                reason = [] if "--reason" in more else ["--reason", "r"]
                done = self.once("resolve", "--key", "k", *more, *reason)
                self.assertIn(done.returncode, (64, 240))
                self.assertIn(said, done.stderr)
        self.assertEqual(self.show("k")["state"], "unknown")

    def test_a_decision_is_not_made_twice(self):
        self.hold("k")
        self.change("resolve", "--key", "k", "--as", "completed", "--reason", "r")
        answer = self.change("resolve", "--key", "k", "--as", "released", "--reason", "r", code=240)
        self.assertFalse(answer["changed"])
        self.assertEqual(answer["record"]["state"], "completed")
        self.change("resolve", "--key", "k", "--as", "released", "--reason", "r", "--force")
        self.assertEqual(self.show("k")["standing"], "released")

    def test_only_the_revision_that_was_seen(self):
        self.hold("k")
        revision = self.show("k")["revision"]
        resolve = ["resolve", "--key", "k", "--as", "completed", "--reason", "r", "--if-revision"]
        answer = self.change(*resolve, str(revision + 1), code=240)
        self.assertIn(f"has revision {revision}", answer["message"])
        self.assertEqual(self.show("k")["state"], "unknown")
        self.change(*resolve, str(revision))
        self.assertEqual(self.show("k")["state"], "completed")

    def test_dry_run_changes_nothing(self):
        self.hold("k")
        self.complete("old", "--retention", "1ms", "--no-sweep")
        before = self.show("k")
        for command in (["resolve", "--key", "k", "--as", "completed", "--reason", "r"],
                        ["release", "--key", "k", "--reason", "r"]):
            answer = self.change(*command, "--dry-run")
            self.assertEqual((answer["changed"], answer["dry_run"]), (False, True))
            self.assertNotEqual(answer["record"]["revision"], before["revision"])
            self.assertEqual(self.show("k"), before)

    def test_nothing_to_decide(self):
        self.complete("there")
        for command in (["resolve", "--as", "completed"], ["release"], ["extend", "--by", "1m"]):
            self.assertIsNone(self.change(*command, "--key", "missing", "--reason", "r", code=239)["record"])

    def test_release(self):
        process = self.running("k")
        self.assertIn("claim is live", self.change("release", "--key", "k", "--reason", "r", code=240)["message"])
        self.change("release", "--key", "k", "--reason", "stuck", "--force")
        self.assertEqual(process.wait(), 245)
        self.change("release", "--key", "k", "--reason", "again", code=240)  # It is released already.
        self.crashed("c")
        self.change("release", "--key", "c", "--reason", "host is gone")
        self.expect(self.once("run", "--key", "c", "--fingerprint", "none", "--on-lapse", "hold", "--", "echo", "again"), 0)

    def test_release_for_a_corrected_command(self):
        self.expect(self.once("run", "--key", "k", "--on-failure", "hold", "--", "sh", "-c", "exit 1"), 1)
        corrected = ["run", "--key", "k", "--", "echo", "corrected"]
        answer = self.change("release", "--key", "k", "--reason", "wrong script")
        self.assertIn("same payload", answer["message"])
        self.expect(self.once(*corrected), 241, stderr=b"--any-payload")
        self.change("release", "--key", "k", "--reason", "again", code=240)
        answer = self.change("release", "--key", "k", "--any-payload", "--reason", "the script is mended")
        self.assertIn("any payload", answer["message"])
        self.expect(self.once(*corrected), 0, b"corrected\n")

    def test_resolve_as_an_http_answer(self):
        self.hold("k")
        self.path("body").write_bytes(b'{"charge": 1}')
        resolve = ["resolve", "--key", "k", "--as", "completed", "--reason", "r"]
        for more, said in ((["--header", "A: b"], b"--status"), (["--status", "99"], b"--status"),
                           (["--status", "201", "--header", "no colon"], b"--header"),
                           (["--status", "201", "--exit-code", "0"], b"--exit-code"),
                           (["--status", "201", "--content-type", "text/plain"], b"--header")):
            with self.subTest(more=more):
                self.expect(self.once(*resolve, *more), 64, stderr=said)
        self.change(*resolve, "--status", "201", "--header", "Content-Type: application/json", "--header", "X-A:  b",
                    "--result", "body")
        result = self.show("k")["result"]
        self.assertEqual(result["content_type"], "application/vnd.once.http")
        self.assertEqual(result["text"], 'once-http/1 201 body 13\nContent-Type: application/json\nX-A: b\n\n{"charge": 1}')

    def test_extend(self):
        self.crashed("k")
        self.change("extend", "--key", "k", "--by", "1h", "--reason", "the host comes back")
        self.assertEqual(self.show("k")["standing"], "running")
        self.expect(self.once("run", "--key", "k", "--fingerprint", "none", "--", "true"), 240)
        self.complete("done", "--retention", "1h")
        before = self.show("done")["expires_at"]
        self.change("extend", "--key", "done", "--by", "1h", "--reason", "r")
        self.assertGreater(self.show("done")["expires_at"], before)
        self.hold("held")
        self.change("extend", "--key", "held", "--by", "1h", "--reason", "r", code=240)
        self.change("extend", "--key", "done", "--by", "0s", "--reason", "r", code=240)


class Many(Operators):
    """One act on all records that a filter selects: counted, confirmed, and each conditional on what was counted."""

    RELEASE = ["release", "--all", "--state", "unknown", "--reason", "the bank was down"]

    def asked(self, *arguments, store=None):
        """The program on a terminal, up to its question; the descriptor that answers it."""
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        env = dict(self.env, ONCE_STORE=store or self.store)
        # A shell that starts the tests in its background has it ignored.
        process = self.start(*arguments, stdin=slave, env=env,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        os.close(slave)
        told = b""
        while not told.endswith(b" to go on: "):
            byte = process.stderr.read(1)
            self.assertTrue(byte, told)
            told += byte
        return process, master, told

    def ended(self, process, code):
        out, err = process.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(process.returncode, code, (out, err))
        return out, err

    def standings(self):
        return {record["key"]: record["standing"] for record in json.loads(self.once("ls", "--json").stdout)}

    def test_each_command(self):
        for key in ("a", "b"):
            self.hold(key)
        self.complete("c")
        self.expect(self.once("resolve", "--all", "--state", "unknown", "--as", "failed", "--code", "declined",
                              "--reason", "not in the ledger", "--who", "alice@desk", "--confirm", "2"), 0,
                    b"2 records resolved\n")
        self.assertEqual(self.standings(), {"a": "failed", "b": "failed", "c": "completed"})
        for key in ("a", "b"):
            self.assertEqual(self.show(key)["note"], "resolved as failed by alice@desk: not in the ledger")
        before = self.show("c")["expires_at"]
        self.expect(self.once("extend", "--all", "--scope", "", "--by", "1h", "--reason", "r", "--confirm", "3"), 0,
                    b"3 records extended\n")
        self.assertGreater(self.show("c")["expires_at"], before)
        self.expect(self.once("release", "--all", "--prefix", "a", "--force", "--reason", "r", "--confirm", "1"), 0,
                    b"1 record released\n")
        self.assertEqual(self.standings(), {"a": "released", "b": "failed", "c": "completed"})

    def test_what_is_selected(self):
        self.hold("a", "--scope", "pay")
        self.hold("ab", "--scope", "pay")
        self.hold("a")
        for more, count in ((["--scope", "pay"], 2), (["--scope", "pay", "--prefix", "ab"], 1), (["--label", "AB"], 1),
                            (["--older-than", "1h"], 0), (["--state", "completed"], 0)):
            answer = self.change("release", "--all", *more, "--reason", "r", "--dry-run")
            self.assertEqual((len(answer["would_change"]), answer["matched"]), (count, count), more)

    def test_flags_that_contradict(self):
        self.hold("a")
        release = ["release", "--reason", "r"]
        for wrong, said in ((["--all"], b"--all needs a condition"), ([], b"the key is missing"),
                            (["--key", "a", "--state", "unknown"], b"go with --all"),
                            (["--key", "a", "--confirm", "1"], b"go with --all"),
                            (["--all", "--state", "unknown", "--key", "a"], b"not both"),
                            (["--all", "--state", "unknown", "--stored-key-hex", "23"], b"not both"),
                            (["--all", "--state", "unknown", "--if-revision", "1"], b"--if-revision"),
                            (["--all", "--state", "unkown"], b"--state")):
            with self.subTest(wrong=wrong):
                self.expect(self.once(*release, *wrong), 64, b"", said)
        self.assertEqual(self.standings(), {"a": "unknown"})

    def test_the_number_must_be_confirmed(self):
        for key in ("a", "b"):
            self.hold(key)
        self.expect(self.once(*self.RELEASE), 64, b"", b"give --confirm 2")
        self.expect(self.once(*self.RELEASE, "--confirm", "3"), 240, b"", b"but the number is 2. Nothing was changed")
        answer = self.change(*self.RELEASE, "--confirm", "1", code=240)
        self.assertEqual((answer["matched"], answer["changed"]), (2, 0))
        for typed in (b"3\n", b"\n", b"\x04"):
            process, terminal, told = self.asked(*self.RELEASE)
            self.assertIn(b"2 records match; the oldest was created ", told)
            os.write(terminal, typed)
            out, err = self.ended(process, 240)
            self.assertEqual(out, b"")
            self.assertIn(b"that is not 2. Nothing was changed", err)
        self.assertEqual(self.standings(), {"a": "unknown", "b": "unknown"})
        process, terminal, _ = self.asked(*self.RELEASE)
        os.write(terminal, b"2\n")
        self.assertEqual(self.ended(process, 0)[0], b"2 records released\n")
        self.assertEqual(self.standings(), {"a": "released", "b": "released"})

    def test_nothing_selected(self):
        self.complete("a")
        self.expect(self.once(*self.RELEASE), 0, b"0 records released\n", b"no records match")
        self.expect(self.once(*self.RELEASE, "--confirm", "1"), 240, b"", b"but the number is 0")

    def test_dry_run_lists_and_changes_nothing(self):
        self.hold("a")
        self.complete("done")
        before = self.once("ls", "--json").stdout
        act = ["release", "--all", "--newer-than", "1h", "--reason", "r", "--dry-run"]
        done = self.expect(self.once(*act), 240, stderr=b"1 refused: it has already ended (completed)")
        head, row = done.stdout.decode().splitlines()
        self.assertTrue(head.startswith("STATE"))
        self.assertEqual(row.split()[2], "a")
        answer = self.change(*act, code=240)
        self.assertEqual([one["key"] for one in answer["would_change"]], ["a"])
        self.assertEqual([(one["key"], one["stored_key_hex"]) for one in answer["left"]], [("done", b"#done".hex())])
        self.assertEqual(self.once("ls", "--json").stdout, before)
        self.expect(self.once(*self.RELEASE, "--dry-run"), 0)

    def test_refused_ones_are_told_by_reason_and_left(self):
        self.hold("a")
        self.complete("b")
        self.complete("c")
        done = self.once("release", "--all", "--newer-than", "1h", "--reason", "r", "--confirm", "1")
        self.expect(done, 240, b"1 record released\n", b"once: 2 refused: it has already ended (completed)")
        self.assertEqual(self.standings(), {"a": "released", "b": "completed", "c": "completed"})

    def test_what_changed_meanwhile_is_left_alone(self):
        """Also if it could be changed still: this was another attempt, which nobody has looked into."""
        def again(key):
            self.change("release", "--key", key, "--reason", "another's")
            self.expect(self.once("run", "--key", key, "--on-failure", "hold", "--", "false"), 1)

        for key in ("a", "b", "c", "d"):
            self.hold(key)
        process, terminal, _ = self.asked(*self.RELEASE)
        again("a")
        self.database("delete from {} where key = '#b'")
        os.write(terminal, b"4\n")
        out, err = self.ended(process, 240)
        self.assertEqual(out, b"2 records released\n")
        self.assertIn(b"once: changed meanwhile: 2, left alone; 'a', 'b'\n", err)
        self.assertEqual(self.standings(), {"a": "unknown", "c": "released", "d": "released"})
        process, terminal, _ = self.asked(*self.RELEASE, "--json")
        again("a")
        os.write(terminal, b"1\n")
        answer = json.loads(self.ended(process, 240)[0])
        self.assertEqual((answer["changed"], answer["changed_meanwhile"]), (0, 1))
        self.assertEqual([(one["key"], one["why"]) for one in answer["left"]], [("a", "changed meanwhile")])
        self.assertEqual((self.show("a")["standing"], self.show("a")["attempt"]), ("unknown", 3))

    def test_ctrl_c_stops_between_two_records(self):
        for key in ("a", "b", "c"):
            self.hold(key)
        process, terminal, _ = self.asked(*self.RELEASE, store=self.store + "?busy_timeout=5m")
        database = sqlite3.connect(self.path("once.db"), isolation_level=None)
        self.addCleanup(database.close)
        database.execute("begin immediate")
        os.write(terminal, b"3\n")

        def notes_interrupts():
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            caught = int(status.split("SigCgt:")[1].split()[0], 16)
            return caught >> (signal.SIGINT - 1) & 1

        wait_until(notes_interrupts, "the act has begun")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: not notes_interrupts(), "the signal was taken")
        database.execute("rollback")
        out, err = self.ended(process, 240)
        standings = self.standings()
        released = sorted(key for key in standings if standings[key] == "released")
        # The one that was being written, unless the signal came before it.
        self.assertIn(released, (["a"], []))
        self.assertEqual(out, f"{len(released)} record{'s' * (released == [])} released\n".encode())
        self.assertIn(b"once: not reached: %d; " % (3 - len(released)), err)

    def test_a_store_that_fails_stops_it(self):
        for key in ("a", "b"):
            self.hold(key)
        process, terminal, _ = self.asked(*self.RELEASE, "--json", store=self.store + "?busy_timeout=50ms")
        database = sqlite3.connect(self.path("once.db"), isolation_level=None)
        self.addCleanup(database.close)
        database.execute("begin immediate")
        os.write(terminal, b"2\n")
        answer = json.loads(self.ended(process, 243)[0])
        database.execute("rollback")
        self.assertEqual((answer["changed"], answer["failed"], answer["not_reached"]), (0, 1, 1))
        self.assertIn("another program", answer["error"])
        self.assertEqual(sorted(one["key"] for one in answer["left"]), ["a", "b"])
        self.assertEqual(self.standings(), {"a": "unknown", "b": "unknown"})


class Removing(Operators):
    def test_rm(self):
        for key in ("done", "old"):
            self.complete(key)
        self.hold("held")
        answer = self.change("rm", "--key", "done", "--reason", "asked for", "--dry-run")
        self.assertEqual((answer["changed"], answer["record"]["key"]), (False, "done"))
        self.assertEqual(self.ls(), ["done", "held", "old"])
        said = self.expect(self.once("rm", "--key", "done", "--reason", "asked for"), 0).stdout
        self.assertEqual(said, b"removed 'done': the operation can run again\n")
        answer = self.change("rm", "--key", "held", "--reason", "asked for")
        self.assertEqual((answer["changed"], answer["remark"], answer["record"]), (True, None, None))
        self.assertEqual(self.ls(), ["old"])
        self.expect(self.once("run", "--key", "done", "--", "sh", "-c", "echo $ONCE_ATTEMPT"), 0, b"1\n")
        self.change("rm", "--key", "held", "--reason", "r", code=239)
        self.expect(self.once("rm", "--key", "old"), 64, b"", b"--reason")
        self.change("rm", "--key", "old", "--reason", " ", code=240)
        self.change("rm", "--key", "old", "--reason", "r", "--if-revision", "1", code=240)
        self.assertEqual(self.ls(), ["done", "old"])

    def test_a_live_claim_needs_force(self):
        process = self.running("k")
        self.assertIn("claim is live", self.change("rm", "--key", "k", "--reason", "r", code=240)["message"])
        self.change("rm", "--key", "k", "--reason", "r", "--force")
        self.assertEqual(process.wait(), 245)
        self.assertEqual(self.ls(), [])

    def test_many(self):
        for key in ("a", "b"):
            self.complete(key, "--scope", "trial")
        self.complete("c")
        process = self.running("d", "--scope", "trial")
        remove = ["rm", "--all", "--scope", "trial", "--reason", "the trial is over"]
        self.expect(self.once(*remove), 64, b"", b"2 records can be removed, and their operations can run again then")
        self.expect(self.once(*remove, "--confirm", "2"), 240, b"2 records removed\n", b"1 refused: its claim is live")
        self.assertEqual(self.ls(), ["c", "d"])
        self.open_gate("go-d")
        self.assertEqual(process.wait(), 0)

    def traces(self, secrets):
        """Which of them are in the files of the store and of its results."""
        found = set()
        for path in self.dir.rglob("once.db*"):
            for file in [path] if path.is_file() else path.iterdir():
                # Not by this process: to close the file would end the locks of its connections.
                content = subprocess.run(["cat", file], stdout=subprocess.PIPE, check=True).stdout
                found |= {name for name, secret in secrets.items() if secret in content}
        return found

    def secret(self, key):
        """A record full of secrets, between others; each is in some file."""
        secrets = {name: os.urandom(24).hex().encode() for name in ("holder", "reason", "old reason")}
        secrets["key"] = key.encode()
        self.complete("before")
        program = self.path(secrets["holder"].decode())
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o700)
        # Its row is overwritten by longer ones, which do not fit where it was.
        self.expect(self.once("run", "--key", key, "--on-failure", "hold", "--", f"./{program.name}"), 1)
        for number in range(30):
            self.complete(f"after{number}")
        self.assertIn("holder", self.traces(secrets))
        result = os.urandom(9000)
        secrets.update({"result": result[:32], "end of result": result[-32:]})
        self.path("result").write_bytes(result)
        self.change("resolve", "--key", key, "--as", "completed", "--result", "result", "--reason",
                    secrets["old reason"].decode())
        self.change("extend", "--key", key, "--by", "1h", "--reason", secrets["reason"].decode())
        self.assertEqual(self.traces(secrets), set(secrets))
        return secrets

    def test_nothing_is_left_in_the_files(self):
        key = os.urandom(16).hex()
        secrets = self.secret(key)
        self.expect(self.once("rm", "--key", key, "--reason", "asked for"), 0)
        self.assertEqual(self.traces(secrets), set())
        self.assertEqual(len(self.ls()), 31)
        self.assertEqual(self.once("doctor").returncode, 0)

    def test_nor_while_another_program_has_the_file_open(self):
        key = os.urandom(16).hex()
        secrets = self.secret(key)
        process = self.running("other")
        self.expect(self.once("rm", "--key", key, "--reason", "asked for"), 0)
        self.assertEqual(self.traces(secrets), set())
        self.open_gate("go-other")
        self.assertEqual(process.wait(), 0)
        self.assertEqual(self.show("other")["state"], "completed")
        self.assertEqual(self.traces(secrets), set())

    def test_nor_in_the_folder_of_results(self):
        secret = os.urandom(5000)
        self.path("secret").write_bytes(secret)
        self.expect(self.once("run", "--key", "k", "--output-limit", "1KiB", "--", "cat", "secret"), 0, secret)
        secrets = {"result": secret[:32], "end": secret[-32:]}
        self.assertEqual(self.traces(secrets), set(secrets))
        self.expect(self.once("rm", "--key", "k", "--offload", "none", "--reason", "r", "--dry-run"), 0)
        self.expect(self.once("rm", "--key", "k", "--reason", "r"), 0)
        self.assertEqual(self.traces(secrets), set())
        self.assertEqual(list(self.path("once.db.results").iterdir()), [])

    def test_a_result_that_stays_is_told(self):
        self.expect(self.once("run", "--key", "k", "--output-limit", "1KiB", "--", "seq", "2000"), 0)
        answer = self.change("rm", "--key", "k", "--offload", "none", "--reason", "r", code=1)
        self.assertTrue(answer["changed"])
        self.assertIn("is left, as --offload is none", answer["remark"])

    def test_a_log_that_a_reader_needs_is_told(self):
        key = os.urandom(16).hex()
        secrets = self.secret(key)
        reader = sqlite3.connect(self.path("once.db"), isolation_level=None)
        self.addCleanup(reader.close)
        reader.execute("begin")
        reader.execute("select count(*) from records").fetchall()
        remove = ["rm", "--key", key, "--reason", "asked for"]
        self.expect(self.once(*remove), 1, b"removed '%s': the operation can run again\n" % key.encode(),
                    b"the file's log still has what was removed, until its readers end")
        self.assertNotEqual(self.traces(secrets), set())
        self.expect(self.once(*remove), 239, stderr=b"the file's log still has")
        self.expect(self.once("rm", "--all", "--prefix", key, "--reason", "r"), 1, stderr=b"the file's log still has")
        reader.execute("rollback")
        self.assertNotIn(b"log", self.expect(self.once(*remove), 239).stderr)
        self.assertEqual(self.traces(secrets), set())


class Sweeping(Operators):
    def test_sweep(self):
        self.complete("keep")
        self.hold("held", "--retention", "1ms", "--no-sweep")
        for number in range(3):
            self.complete(f"old{number}", "--retention", "1ms", "--no-sweep")
        wait_until(lambda: len(self.ls("--expired")) == 3, "expired")
        self.expect(self.once("sweep", "--dry-run"), 0, b"3 expired records would be removed\n")
        self.expect(self.once("sweep", "--expired-for", "1h"), 0, b"0 expired records removed\n")
        answer = json.loads(self.expect(self.once("sweep", "--json"), 0).stdout)
        self.assertEqual(answer, {"removed": 3, "results_removed": 0, "orphans_removed": 0, "dry_run": False})
        self.assertEqual(self.ls(), ["held", "keep"])


class Doctor(Operators):
    def test_a_sound_store(self):
        self.complete("k")
        done = self.expect(self.once("doctor", "--probe", "--json"), 0)
        report = json.loads(done.stdout)
        self.assertTrue(report["ok"])
        grades = {finding["name"]: finding["grade"] for finding in report["findings"]}
        for name in ("open", "file", "permissions", "integrity", "clock", "offload", "probe", "records"):
            self.assertEqual(grades[name], "fine", report)
        self.assertEqual(self.ls(), ["k"])  # The probe left nothing.
        self.expect(self.once("doctor"), 0)

    def test_what_waits_for_a_person(self):
        self.hold("k")
        self.crashed("c")
        self.complete("old", "--retention", "1ms", "--no-sweep")
        text = self.expect(self.once("doctor"), 1).stdout.decode()
        for line in ("problem  unknown", "problem  lapsed", "once ls --state unknown", "once sweep"):
            self.assertIn(line, text)

    def test_what_happens_to_lapsed_operations(self):
        self.crashed("c")
        self.crashed("held", "--on-lapse", "hold")
        said = self.once("doctor").stdout.decode()
        self.assertIn("the next caller makes 1 unknown, which are on hold, and takes each other one over", said)
        self.once("rm", "--key", "c", "--reason", "test")
        self.assertIn("the next caller makes each unknown, as they are on hold", self.once("doctor").stdout.decode())
        self.once("rm", "--key", "held", "--reason", "test")
        self.crashed("later")
        self.assertIn("the next caller takes each over", self.once("doctor").stdout.decode())

    def test_what_should_have_ended(self):
        self.running("late", "--expect", "1ms")
        self.running("early", "--expect", "1h")
        self.running("whenever")
        wait_until(lambda: self.ls("--overdue") == ["late"], "overdue")
        self.assertEqual([self.show(key)["overdue"] for key in ("late", "early", "whenever")], [True, False, False])
        self.assertIn(b", overdue since ", self.expect(self.once("ls", "--overdue"), 0).stdout)
        self.assertEqual(self.ls("--overdue", "--state", "lapsed"), [])
        self.assertEqual(json.loads(self.once("stats", "--json").stdout)["overdue"], 1)
        text = self.expect(self.once("doctor"), 1).stdout.decode()
        self.assertIn("problem  overdue", text)
        self.assertNotIn("lapsed", text)

    def test_permissions(self):
        self.complete("k")
        os.chmod(self.path("once.db"), 0o666)
        self.assertIn(b"chmod", self.expect(self.once("doctor"), 1).stdout)

    def test_root_is_told_whose_file_it_is(self):
        self.complete("k")
        os.chown(self.path("once.db"), 51_234, 51_234)
        self.assertIn(b"only root and its owner, uid 51234, can open it", self.once("doctor").stdout)

    def test_large_results_that_are_missing(self):
        places = ("--offload", f"file:{self.path('results')}")
        for key in ("a", "b"):
            self.expect(self.once("run", "--key", key, *places, "--", "head", "-c", "2000000", "/dev/urandom"), 0)
        self.assertIn(b"2 were looked at, and are whole", self.expect(self.once("doctor", *places), 0).stdout)
        files = [file for file in self.path("results").rglob("*") if file.is_file()]
        self.assertEqual(len(files), 2)
        files[0].unlink()
        self.assertIn(b"1 of 2 that were looked at cannot be read", self.expect(self.once("doctor", *places), 1).stdout)
        self.assertIn(b"nobody can get them", self.expect(self.once("doctor", "--offload", "none"), 1).stdout)

    def test_a_full_disk_on_which_no_store_opens(self):
        small = self.path("small")
        small.mkdir()
        self.complete("k", "--store", f"sqlite:{small}/once.db")
        command = (f"cp -r {small} {small}2 && mount -t tmpfs -o size=400k tmpfs {small} && cp {small}2/once.db {small} && "
                   f"(cat /dev/zero >{small}/filler || true) && exec \"$0\" doctor --store sqlite:{small}/once.db")
        done = subprocess.run(["unshare", "-m", "sh", "-c", command, harness.PROGRAM], capture_output=True, check=False)
        self.assertRegex(done.stdout.decode(), r"(?s)problem  open .*problem  space .*are free")

    def test_damage(self):
        self.complete("k")
        self.database("update {} set state = 99")
        done = self.once("doctor")
        self.assertIn(done.returncode, (1, 244), done)
        self.assertIn(b"problem", done.stdout)
        self.assertEqual(self.once("run", "--key", "k", "--", "touch", "ran").returncode, 244)
        self.assertFalse(self.path("ran").exists())


class Restoring(Case):
    """The commands of the handbook, by root and by the service's user: afterwards the service works, and only it can read."""
    SERVICE = 65534

    def restore(self, restorer):
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs/handbook.md").read_text()
        section = page.split("## Restore a backup")[1].split("\n## ")[0]
        commands = [line.strip()[2:] for line in section.splitlines() if line.strip().startswith("$ ")]
        self.assertEqual(len(commands), 4, commands)
        folder = self.path("service")
        folder.mkdir()
        os.chown(folder, self.SERVICE, self.SERVICE)
        os.chmod(self.dir, 0o711)
        env = dict(self.env, ONCE_STORE=f"sqlite:{folder}/once.db", PATH=f"{self.path('bin')}:{os.environ['PATH']}")
        self.path("bin").mkdir()
        self.path("bin/once").symlink_to(harness.PROGRAM)

        def as_user(user, *command):
            done = subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "sh", "-c", *command],
                                  cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual((done.returncode, done.stderr), (0, ""), command)
            return done.stdout

        work = "once run --key k -- sh -c 'echo x >>ran; echo done'"
        self.assertEqual(as_user(self.SERVICE, work), "done\n")
        backup, copy, move, look = commands
        for early in (copy, move):  # There is nothing to restore yet, and the store stays.
            with self.assertRaises(AssertionError):
                as_user(restorer, early)
        as_user(restorer, backup)
        as_user(self.SERVICE, "once run --key later -- true")
        as_user(restorer, copy)
        as_user(restorer, move)
        shown = as_user(restorer, look)
        self.assertIn("fine     integrity", shown)
        lost = sorted(file.name for file in (folder / "lost").iterdir())
        as_user(restorer, copy)  # Once more: what was lost is not lost again.
        with self.assertRaises(AssertionError):
            as_user(restorer, move)
        self.assertEqual(sorted(file.name for file in (folder / "lost").iterdir()), lost)
        owner = (folder / "once.db").stat()
        self.assertEqual((owner.st_uid, owner.st_gid, oct(owner.st_mode & 0o777)), (self.SERVICE, self.SERVICE, "0o600"))
        self.assertEqual(as_user(self.SERVICE, work), "done\n")  # A replay.
        self.assertEqual((folder / "ran").read_text(), "x\n")
        self.assertEqual(as_user(self.SERVICE, "once run --key later -- echo again"), "again\n")  # Forgotten.
        self.assertEqual([name for name in ("backup.db", "lost") if (folder / name).stat().st_mode & 0o077], [])

    def test_by_root(self):
        self.restore(0)

    def test_by_the_user_of_the_service(self):
        self.restore(self.SERVICE)


class Memory(Case):
    def test_a_store_of_its_own_process(self):
        self.expect(self.once("run", "--store", "memory:", "--key", "k", "--", "echo", "out"), 64, b"",
                    b"exists only in this process")
        self.expect(self.once("run", "--store", "memory:", "--unshared-store", "--key", "k", "--", "echo", "out"), 0,
                    b"out\n")
        self.expect(self.once("ls", "--store", "memory:"), 0, b"", b"no records")
        self.assertIn(b"not durable", self.expect(self.once("doctor", "--store", "memory:", "--probe"), 0).stdout)


class Seals(Case):
    """Keys for encryption at rest, and who notices a program that lacks them."""

    def setUp(self):
        super().setUp()
        self.keys = self.path("seal.keys")
        self.sealed = f"{self.store}?seal={self.keys}"

    def run_key(self, key, store):
        return self.once("run", "--store", store, "--key", key, "--", "sh", "-c", "echo x >>ran; echo SECRET")

    def test_new_keys(self):
        self.expect(self.once("seal-key", "new", "--id", "a", self.keys), 0)
        self.assertEqual(self.keys.stat().st_mode & 0o777, 0o600)
        self.assertRegex(self.keys.read_text(), r"^a [A-Za-z0-9+/]{43}=\n$")
        self.expect(self.once("seal-key", "new", "--id", "a", self.keys), 64, b"", b"has a key 'a' already")
        self.expect(self.once("seal-key", "new", "--id", "a b", self.keys), 64, b"", b"is not 1 to 64 letters")
        self.keys.write_text(self.keys.read_text().rstrip("\n"))  # As an editor leaves it.
        done = self.expect(self.once("seal-key", "new", self.keys), 0)
        lines = self.keys.read_text().splitlines()
        self.assertRegex(lines[1], r"^\d{4}-\d\d-\d\d ")
        self.assertNotIn(lines[1].split()[1].encode(), done.stdout + done.stderr)
        self.assertNotEqual(lines[0].split()[1], lines[1].split()[1])
        self.expect(self.run_key("k", self.sealed), 0, b"SECRET\n")
        self.expect(self.once("seal-key", "new", "/nowhere/keys"), 243, b"", b"cannot be opened")

    def test_doctor_counts_what_is_sealed(self):
        def finding(*options, code):
            done = self.expect(self.once("doctor", "--json", *options), code)
            return {f["name"]: (f["grade"], f["text"]) for f in json.loads(done.stdout)["findings"]}

        self.expect(self.run_key("before", self.store), 0)
        self.assertNotIn("seals", finding(code=0))
        self.expect(self.once("seal-key", "new", "--id", "a", self.keys), 0)
        self.expect(self.run_key("after", self.sealed), 0)
        self.expect(self.run_key("other", self.store), 64, b"", b"Nothing was run")
        self.assertEqual(self.runs(), 2)
        grade, text = finding("--store", self.sealed, code=1)["seals"]
        self.assertEqual(grade, "problem")
        self.assertIn("1 sealed (1 with the key 'a'), 1 in the clear", text)
        self.assertEqual(finding("--store", self.sealed, "--mixed", code=0)["seals"][0], "note")
        self.assertEqual(finding("--mixed", code=1)["keys"][0], "problem", "the key is not given")
        self.expect(self.once("rm", "--key", "before", "--reason", "test"), 0)
        self.assertEqual(finding("--store", self.sealed, code=0)["seals"], ("fine", "1 sealed (1 with the key 'a'), 0 in the clear"))


if __name__ == "__main__":
    harness.main()
