"""once lambda invoke with a function as a process: events, faults, kills, freezes, and a replay on a laptop."""
import json
import os
import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
import harness  # noqa: E402
from harness import Case, alive, wait_until  # noqa: E402

FUNCTION = os.path.abspath(sys.argv.pop(2))
PATIENT = {"--timeout": "100s", "--init-timeout": "100s"}  # Sanitizers are slow; nothing is to come of it.


def state_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


class Invoke(Case):
    def setUp(self):
        super().setUp()
        self.env["NOTES"] = str(self.path("notes"))
        self.env["ASAN_OPTIONS"] = self.env.get("ASAN_OPTIONS", "") + ":handle_abort=0"

    def event(self, name, **fields):
        self.path(name).write_text(json.dumps(fields))
        return name

    def arguments(self, *words):
        """Flags, then the function, then the events, which are dicts or names of files."""
        flags = [word for word in words if isinstance(word, str)]
        events = []
        for number, word in enumerate(word for word in words if isinstance(word, dict)):
            events.append(self.event(f"event-{number}.json", **word))
        patient = [word for name, limit in PATIENT.items() if name not in flags for word in (name, limit)]
        return ["lambda", "invoke", *patient, *flags, FUNCTION, *events]

    def invoke(self, *words, code=0):
        return self.expect(self.once(*self.arguments(*words), text=True), code)

    def invoke_json(self, *words, code=0):
        return [json.loads(line) for line in self.invoke("--json", *words, code=code).stdout.splitlines()]

    def notes(self):
        return self.path("notes").read_text().splitlines() if self.path("notes").exists() else []


class Answers(Invoke):
    def test_a_response_goes_to_standard_output(self):
        done = self.invoke({"do": "echo", "n": 1})
        self.assertEqual(done.stdout, '{"do": "echo", "n": 1}\n')
        self.assertEqual(done.stderr, "")

    def test_an_event_comes_from_standard_input(self):
        done = self.once("lambda", "invoke", FUNCTION, "-", input=b'{"do":"echo"}')
        self.expect(done, 0, b'{"do":"echo"}\n')

    def test_what_the_function_writes_goes_to_standard_error(self):
        done = self.invoke({"do": "log"})
        self.assertEqual(done.stdout, "{}\n")
        self.assertEqual(done.stderr, "to standard output\nto standard error\n")

    def test_one_process_handles_one_event_after_the_other(self):
        rows = self.invoke_json("--repeat", "3", {"do": "note"}, {"do": "note"})
        self.assertEqual([row["response"]["handled"] for row in rows], [1, 2, 3, 4, 5, 6])
        self.assertEqual(len({row["response"]["pid"] for row in rows}), 1)
        self.assertEqual([row["cold"] for row in rows], [True] + 5 * [False])
        self.assertEqual([row["event"] for row in rows], 3 * ["event-0.json", "event-1.json"])
        self.assertEqual(self.notes(), ["note " + row["request_id"] for row in rows])
        self.assertTrue(all(row["took_ms"] > 0 and row["outcome"] == "response" for row in rows))

    def test_several_processes(self):
        rows = self.invoke_json("--repeat", "40", "--concurrency", "4", {"do": "note"})
        self.assertEqual(len(rows), 40)
        self.assertEqual({row["environment"] for row in rows}, {1, 2, 3, 4})
        self.assertEqual(len({row["response"]["pid"] for row in rows}), 4)
        self.assertEqual(sum(row["cold"] for row in rows), 4)

    def test_several_invocations_in_one_process(self):
        rows = self.invoke_json("--repeat", "40", "--threads", "4", {"do": "note"})
        self.assertEqual(len({row["response"]["pid"] for row in rows}), 1)
        self.assertEqual(sorted(row["response"]["handled"] for row in rows), list(range(1, 41)))

    def test_the_environment_is_lambdas(self):
        flags = ["--name", "pay", "--handler", "pay.handle", "--memory", "512", "--env", "EXTRA=a=b", "--threads", "2"]
        (row,) = self.invoke_json(*flags, {"do": "environment"})
        self.assertEqual(
            row["response"],
            {
                "AWS_LAMBDA_FUNCTION_NAME": "pay",
                "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
                "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/pay",
                "AWS_LAMBDA_MAX_CONCURRENCY": "2",
                "LAMBDA_TASK_ROOT": os.path.dirname(FUNCTION),
                "_HANDLER": "pay.handle",
                "EXTRA": "a=b",
                "arn": "arn:aws:lambda:eu-central-1:000000000000:function:pay",
            },
        )

    def test_tenant_id_reaches_the_function(self):
        (row,) = self.invoke_json("--tenant-id", "acme/blue", {"do": "tenant"})
        self.assertEqual(row["response"], {"tenant": "acme/blue"})
        (row,) = self.invoke_json({"do": "tenant"})
        self.assertEqual(row["response"], {"tenant": ""})
        for wrong in ("", "a#b", "x" * 257):
            done = self.invoke("--tenant-id", wrong, {"do": "tenant"}, code=64)
            self.assertIn("--tenant-id must have 1 to 256", done.stderr)

    def test_a_summary_of_several(self):
        done = self.invoke("--repeat", "2", {"do": "echo"}, {"do": "fail"}, code=237)
        self.assertRegex(done.stderr, r"once: 2 responses, 2 errors; 1 start of the function, \S+ in all\n$")


class Metrics(Invoke):
    """What the function writes for CloudWatch, told apart from all else on its standard streams."""

    def lines(self, done):
        documents = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"_aws":')]
        for one in documents:
            self.assertEqual(one["FunctionName"], "pay")
        return [{name: value for name, value in one.items() if name.endswith(("_total", "_completed", "_replayed", "_unknown"))}
                for one in documents]

    def charge(self, *flags, code=0, events=1, metrics="emf", **event):
        environment = ["--name", "pay", "--env", f"ONCE_METRICS={metrics}", "--env", f"ONCE_STORE=sqlite:{self.path('once.db')}"]
        return self.invoke(*environment, *flags, *events * [{"do": "charge", "id": "x"} | event], code=code)

    def test_a_line_for_the_claim_one_for_its_end_and_one_for_each_replay(self):
        done = self.charge("--repeat", "2")
        self.assertIn("from the environment: ONCE_METRICS=emf\n", done.stderr)
        self.assertEqual(self.lines(done), [{"once_claims_total": 1}, {"once_operations_total_completed": 1},
                                            {"once_operations_total_replayed": 1}])

    def test_nothing_happens_and_nothing_is_written(self):
        done = self.invoke("--env", "ONCE_METRICS=emf", {"do": "echo"}, {"do": "note"})
        self.assertEqual(self.lines(done), [])

    def test_without_the_variable_nothing_is_written(self):
        for value in ("", "off"):
            self.assertEqual(self.charge(metrics=value).stderr, "")

    def test_a_mistyped_value_is_an_error_of_the_init(self):
        self.assertIn("ONCE_METRICS=emf1 is not known: emf writes metrics for CloudWatch", self.charge(metrics="emf1", code=237).stderr)

    def test_what_is_killed_at_its_timeout_has_begun_and_not_ended(self):
        gate = self.path("gate")
        os.mkfifo(gate)
        done = self.charge("--timeout", "9s", "--env", f"GATE={gate}", gate=True, hold=True, code=238)
        self.assertIn("timed out after 9s", done.stderr)
        self.assertEqual(self.lines(done), [{"once_claims_total": 1}])


class Errors(Invoke):
    def test_of_the_handler(self):
        done = self.invoke({"do": "fail"}, {"do": "echo"}, code=237)
        self.assertIn("once: handler_failed: the handler threw Declined; its caller gets an error answer", done.stderr)
        self.assertIn("once: event-0.json: error Declined: the card was declined\n", done.stderr)
        self.assertEqual(done.stdout, '{"do": "echo"}\n')
        row = self.invoke_json({"do": "fail"}, code=237)[0]
        self.assertEqual((row["outcome"], row["error_type"]), ("error", "Declined"))
        self.assertEqual(row["error_message"], "the card was declined")

    def test_of_the_init(self):
        done = self.invoke("--env", "INIT=fail", {"do": "echo"}, {"do": "echo"}, code=237)
        self.assertEqual(done.stderr.count("error std::runtime_error: no configuration (during its init)"), 2)

    def test_a_function_that_ends_is_started_again_for_what_is_left(self):
        done = self.invoke({"do": "exit"}, {"do": "note"}, code=238)
        self.assertIn("once: event-0.json: no answer: the function ended with exit code 3\n", done.stderr)
        self.assertIn('"handled":1', done.stdout)

    def test_a_function_that_takes_no_event_is_not_started_for_ever(self):
        done = self.invoke("--env", "INIT=exit", {"do": "echo"}, {"do": "echo"}, code=238)
        self.assertEqual(done.stderr.count("no answer: the function ended with exit code 7, and it had not received the event"), 2)
        self.assertIn("2 starts of the function", done.stderr)

    def test_a_function_that_never_asks(self):
        done = self.invoke("--env", "INIT=hang", "--init-timeout", "100ms", {"do": "echo"}, code=238)
        self.assertIn("no answer: it did not ask for an event within 100ms (--init-timeout), and was killed", done.stderr)

    def test_at_its_timeout_it_is_killed_and_started_again(self):
        done = self.invoke("--timeout", "6s", {"do": "hang"}, {"do": "note"}, code=238)
        self.assertIn("once: event-0.json: timed out after 6s; the function was killed\n", done.stderr)
        self.assertEqual(json.loads(done.stdout)["handled"], 1)
        self.assertEqual(self.notes()[0], "hang")

    def test_programs_that_cannot_be(self):
        event = self.event("e.json", do="echo")
        done = self.once("lambda", "invoke", "./nothing", event)
        self.expect(done, 127, b"", b"once: cannot execute './nothing': No such file or directory. Nothing was run.\n")
        self.path("bootstrap").write_text("no program")
        self.expect(self.once("lambda", "invoke", "./bootstrap", event), 126, b"", b"Permission denied")
        self.expect(self.once("lambda", "invoke", "bootstrap", event), 127, b"", b"For a program in this folder, write ./bootstrap")

    def test_usage(self):
        event = self.event("e.json", do="echo")
        for flags, said in (
            (["--kill-at", "soon"], b"--kill-at must be given, answering, answered or a duration, not 'soon'"),
            (["--kill-at", "given@0"], b"what follows @"),
            (["--kill-at", "given@2"], b"--kill-at names invocation 2 of 1"),
            (["--repeat", "0"], b"--repeat must be from 1"),
            (["--concurrency", "257"], b"--concurrency must be from 1 to 256"),
            (["--threads", "1601"], b"--threads must be from 1 to 1600"),
            (["--freeze", "1s", "--threads", "2"], b"--freeze needs one invocation at a time"),
            (["--timeout", "3"], b"--timeout"),
            (["--env", "X"], b"--env must be NAME=VALUE, not 'X'"),
        ):
            with self.subTest(flags=flags):
                self.expect(self.once("lambda", "invoke", *flags, FUNCTION, event), 64, b"", said)
        self.expect(self.once("lambda", "invoke", FUNCTION, "missing.json"), 64, b"", b"cannot read 'missing.json'")
        self.expect(self.once("lambda", "invoke", FUNCTION, "-", "-"), 64, b"", b"only one event can come from standard input")
        self.expect(self.once("lambda", "invoke", FUNCTION), 64)
        self.expect(self.once("lambda"), 64)
        self.path("large.json").write_bytes(b" " * (6 * 1024 * 1024 + 1))
        self.expect(self.once("lambda", "invoke", FUNCTION, "large.json"), 64, b"", b"larger than 6 MiB")


class Replay(Invoke):
    """What a newcomer is to see: killed after the charge, and the retry gives the same answer and charges nothing."""

    CHARGE = {"do": "charge", "id": "order-17"}

    def test_a_retry_replays(self):
        done = self.invoke("--repeat", "2", self.CHARGE)
        self.assertEqual(done.stdout, '{"attempt":1,"charged":true}\n{"attempt":1,"charged":true,"replayed":true}\n')
        self.assertEqual(self.notes(), ["charge order-17"])

    def test_killed_before_its_answer_was_taken(self):
        done = self.invoke("--repeat", "2", "--kill-at", "answering", self.CHARGE)
        self.assertEqual(done.stdout, '{"attempt":1,"charged":true,"replayed":true}\n')
        self.assertIn("once: event-0.json: the function was killed, because of --kill-at\n", done.stderr)
        self.assertIn("1 response, 1 killed as planned; 2 starts of the function", done.stderr)
        self.assertEqual(self.notes(), ["charge order-17"])

    def test_a_store_that_is_killed_with_the_function_is_told(self):
        told = "once: ONCE_STORE=memory: ends with the function"
        done = self.invoke("--kill-at", "given", "--env", "ONCE_STORE=memory:", {"do": "echo"})
        self.assertIn(told, done.stderr)
        done = self.invoke("--kill-at", "given", "--env", "ONCE_STORE=sqlite:x.db", {"do": "echo"})
        self.assertNotIn(told, done.stderr)
        self.assertNotIn(told, self.invoke("--env", "ONCE_STORE=memory:", {"do": "echo"}).stderr)

    def test_frozen_in_the_middle_until_another_has_finished(self):
        self.env["GATE"] = str(self.fifo("gate"))
        frozen = self.start(*self.arguments({"do": "note"}, dict(self.CHARGE, gate=True)), text=True)
        pid = json.loads(frozen.stdout.readline())["pid"]
        wait_until(lambda: "charge order-17" in self.notes(), "it has charged")
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(lambda: alive(pid) and os.kill(pid, signal.SIGKILL))
        other = self.arguments(self.CHARGE)  # Conflicts until the lease has lapsed, which a frozen process cannot renew.
        done = wait_until(lambda: (done := self.once(*other, text=True)).returncode != 237 and done, "it took over")
        self.expect(done, 0, '{"attempt":2,"charged":true}\n')
        os.kill(pid, signal.SIGCONT)
        self.open_gate("gate")
        out, err = frozen.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(out, '{"attempt":2,"charged":true,"superseded":true}\n', err)
        self.assertEqual(frozen.returncode, 0)
        self.assertEqual(json.loads(self.once(*other, text=True).stdout),
                         {"attempt": 2, "charged": True, "replayed": True})

    def test_killed_between_two_invocations(self):
        rows = self.invoke_json("--repeat", "3", "--kill-at", "answered@2", {"do": "note"})
        self.assertEqual([row["outcome"] for row in rows], 3 * ["response"])
        self.assertEqual(len({row["response"]["pid"] for row in rows}), 2)

    def test_killed_when_it_was_given_the_event(self):
        rows = self.invoke_json("--repeat", "3", "--kill-at", "given@2", {"do": "echo"})
        self.assertEqual([row["outcome"] for row in rows], ["response", "killed", "response"])
        self.assertEqual([row["cold"] for row in rows], [True, False, True])

    def test_killed_after_a_while(self):
        done = self.invoke("--kill-at", "50ms", {"do": "hang"})
        self.assertIn("the function was killed, because of --kill-at", done.stderr)
        done = self.invoke("--kill-at", "100s", {"do": "echo"})
        self.assertIn("once: nothing was killed: invocation 1 ended before the time of --kill-at\n", done.stderr)


class Processes(Invoke):
    def test_it_is_frozen_between_invocations(self):
        process = self.start(*self.arguments("--json", "--repeat", "2", "--freeze", "100s", {"do": "note"}), text=True)
        first = json.loads(process.stdout.readline())
        pid = first["response"]["pid"]
        wait_until(lambda: state_of(pid) == "T", "it is stopped")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(harness.DEADLINE_S), -signal.SIGTERM)
        wait_until(lambda: not alive(pid), "it is gone")

    def test_it_thaws(self):
        rows = self.invoke_json("--repeat", "3", "--freeze", "50ms", {"do": "note"})
        self.assertEqual([row["response"]["handled"] for row in rows], [1, 2, 3])

    def test_a_freeze_within_an_invocation_is_a_timeout_and_no_more(self):
        process = self.start(*self.arguments("--timeout", "6s", "--json", {"do": "note"}, {"do": "hang"}, {"do": "note"}),
                             text=True)
        pid = json.loads(process.stdout.readline())["response"]["pid"]
        wait_until(lambda: "hang" in self.notes(), "it hangs")
        os.kill(pid, signal.SIGSTOP)  # SIGKILL ends it all the same.
        rows = [json.loads(line) for line in process.communicate(timeout=harness.DEADLINE_S)[0].splitlines()]
        self.assertEqual([row["outcome"] for row in rows], ["timed_out", "response"])
        self.assertNotEqual(rows[1]["response"]["pid"], pid)

    def test_kill_9_from_outside(self):
        process = self.start(*self.arguments("--json", {"do": "note"}, {"do": "hang"}, {"do": "note"}), text=True)
        pid = json.loads(process.stdout.readline())["response"]["pid"]
        wait_until(lambda: "hang" in self.notes(), "it hangs")
        os.kill(pid, signal.SIGKILL)
        rows = [json.loads(line) for line in process.communicate(timeout=harness.DEADLINE_S)[0].splitlines()]
        self.assertEqual([row["outcome"] for row in rows], ["died", "response"])
        self.assertEqual(rows[0]["error_message"], "the function died of signal 9")
        self.assertEqual(process.returncode, 238)

    def test_whoever_kills_once_takes_the_function_along(self):
        for number in (signal.SIGKILL, signal.SIGINT):
            with self.subTest(signal=number):
                process = self.start(*self.arguments("--json", {"do": "note"}, {"do": "hang"}), text=True)
                pid = json.loads(process.stdout.readline())["response"]["pid"]
                process.send_signal(number)
                self.assertEqual(process.wait(harness.DEADLINE_S), -number)
                wait_until(lambda pid=pid: not alive(pid), "it is gone")

    def test_a_reader_that_goes_away(self):
        process = self.start(*self.arguments("--repeat", "1000", {"do": "echo", "text": "x" * 10000}), text=True)
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(harness.DEADLINE_S), 0)


if __name__ == "__main__":
    harness.main()
