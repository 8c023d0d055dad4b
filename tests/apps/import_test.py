"""import_test.py ONCE: tables that other programs wrote, brought into a store by `once import`. With
ONCE_TEST_POSTGRESQL, the URL of a database: also from its tables (class Postgresql)."""
import base64
import contextlib
import http.server
import json
import os
import re
import sqlite3
import subprocess
import threading
import urllib.request

import harness
from harness import Case

FAKE = os.environ.get("ONCE_FAKE_DYNAMODB")
FAR_S = 4_000_000_000  # The year 2096.
PAST_S = 1_600_000_000  # 2020.
COUNTS = ("rows", "inserted", "decided", "already", "expired", "left_out", "may_run", "conflicts", "refused")


class Import(Case):
    def setUp(self):
        super().setUp()
        self.store = f"sqlite:{self.dir}/once.db"
        self.env["ONCE_STORE"] = self.store

    def bring(self, source, *options, code=0, to=None):
        done = self.once("import", source, to or self.store, *options, "--json", text=True)
        self.assertEqual(done.returncode, code, f"stdout: {done.stdout}\nstderr: {done.stderr}")
        return json.loads(done.stdout) if done.stdout else done.stderr

    def counted(self, report, **expected):
        """Every row is counted once, and these are the counts; all others are 0."""
        self.assertEqual({name: report[name] for name in COUNTS if report[name]}, expected)
        self.assertEqual(report["rows"], sum(report[name] for name in COUNTS[1:]))

    def run_again(self, key, *options):
        """The new program: it leaves a file if it ran."""
        return self.once("run", "--key", key, *options, "--", "sh", "-c", "echo ran >> ran; echo new result", text=True)

    def lines(self, *rows):
        self.path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return f"jsonl:{self.path('rows.jsonl')}"

    def refused(self, options, text, source=None):
        """A use that makes no sense."""
        done = self.once("import", source or self.lines(), self.store, *options, text=True)
        self.expect(done, 64, stderr=text)


def article(key, status, **more):
    return {"idempotencyKey": key, "status": status, "expiry": FAR_S, **more}


class Articles(Import):
    """The tables of articles: idempotencyKey, status, expiry, response, lockToken ..."""

    def test_done_there_does_not_run_again(self):
        source = self.lines(article("order-17", "COMPLETED", response={"charge": 5, "at": 1.50}))
        self.counted(self.bring(source, "--preset", "article"), rows=1, inserted=1)
        self.expect(self.run_again("order-17"), 0, stdout='{"charge":5,"at":1.5}')
        self.assertEqual(self.runs(), 0)
        record = self.show("order-17")
        self.assertEqual((record["state"], record["result"]["content_type"]), ("completed", "application/json"))
        self.assertEqual(record["expires_at"], "2096-10-02T07:06:40.000Z")
        self.assertEqual([entry["what"] for entry in record["history"]], ["imported"])

    def test_a_response_that_was_written_as_text_is_json_again(self):
        """JSON.stringify(response), as half of the articles keep it."""
        responses = ['{"charge": "ch_1"}', ' [1, 2]', "plain", "17", '{"not json', "null"]
        rows = [article(str(number), "COMPLETED", response=response) for number, response in enumerate(responses)]
        self.bring(self.lines(*rows), "--preset", "article")
        kept = ['{"charge": "ch_1"}', " [1, 2]", '"plain"', '"17"', r'"{\"not json"', '"null"']
        for number, text in enumerate(kept):
            self.expect(self.run_again(str(number)), 0, stdout=text)

    def test_in_progress_becomes_unknown(self):
        source = self.lines(article("order-1", "IN_PROGRESS", lockToken="t", lockedBy="worker-3", expectedCompletion=PAST_S),
                            article("order-2", "processing", expiry=PAST_S))  # Even one that has expired.
        report = self.bring(source, "--preset", "article")
        self.counted(report, rows=2, inserted=2)
        self.assertEqual(report["unknown"], 2)
        for key in ("order-1", "order-2"):
            self.expect(self.run_again(key), 242)
        self.assertEqual(self.runs(), 0)
        self.assertEqual(self.show("order-1")["holder"], "worker-3")
        self.assertIsNone(self.show("order-2")["expires_at"])

    def test_what_ended_meanwhile_gets_its_result(self):
        self.bring(self.lines(article("a", "IN_PROGRESS"), article("b", "IN_PROGRESS"), article("c", "IN_PROGRESS")),
                   "--preset", "article")
        self.expect(self.once("resolve", "--key", "b", "--as", "failed", "--reason", "looked"), 0)
        report = self.bring(self.lines(article("a", "COMPLETED", response="receipt"), article("b", "IN_PROGRESS"),
                                       article("c", "FAILED", error="card refused")), "--preset", "article")
        self.counted(report, rows=3, decided=2, already=1)
        self.expect(self.run_again("a"), 0, stdout='"receipt"')
        self.assertEqual(self.show("b")["state"], "failed")  # What an operator decided stays.
        self.assertIn("card refused", self.run_again("c").stderr)
        self.assertEqual(self.runs(), 0)
        self.assertEqual([entry["what"] for entry in self.show("a")["history"]], ["imported", "imported"])

    def test_again_changes_nothing(self):
        source = self.lines(article("a", "COMPLETED", response=[1, "x"]), article("b", "IN_PROGRESS"), article("c", "FAILED"))
        self.counted(self.bring(source, "--preset", "article"), rows=3, inserted=3)
        before = [self.show(key) for key in "abc"]
        self.counted(self.bring(source, "--preset", "article"), rows=3, already=3)
        self.assertEqual([self.show(key)["revision"] for key in "abc"], [record["revision"] for record in before])

    def test_a_claim_of_the_new_program_is_named_and_left(self):
        self.expect(self.run_again("a"), 0)
        report = self.bring(self.lines(article("a", "COMPLETED", response="old")), "--preset", "article", code=1)
        self.counted(report, rows=1, conflicts=1)
        self.assertRegex(report["problems"][0]["why"], "^the store has it completed, by .*, and the row says completed$")
        self.expect(self.run_again("a"), 0, stdout="new result\n")

    def test_an_expired_record_is_none(self):
        self.bring(self.lines({"id": "a", "status": "DONE"}), "--preset", "article", "--retention", "1ms")
        harness.wait_until(lambda: self.show("a")["standing"] == "expired", "the record expires")
        self.counted(self.bring(self.lines(article("a", "COMPLETED", response="old")), "--preset", "article"),
                     rows=1, inserted=1)
        self.expect(self.run_again("a"), 0, stdout='"old"')

    def test_what_cannot_be_mapped_is_named(self):
        rows = [article("good", "COMPLETED", response=1), article("odd", "ARCHIVED"), {"status": "COMPLETED"},
                article("", "COMPLETED"), article({"id": 1}, "COMPLETED"), article("late", "COMPLETED", expiry="soon"),
                article("x" * 2000, "COMPLETED"), article("zone", "COMPLETED", expiry="2030-01-01 10:00:00"),
                article("none", None), article("old", "COMPLETED", expiry=17)]
        report = self.bring(self.lines(*rows), "--preset", "article", code=1)
        self.counted(report, rows=10, inserted=1, refused=9)
        why = {problem["row"]: problem["why"] for problem in report["problems"]}
        for line, text in {2: 'its state is "ARCHIVED"', 3: "it has no key", 4: "it has no key", 5: "--hash sha256",
                           6: 'selects "soon": it is not a time', 7: "1024", 8: "add --utc", 9: "its state is null",
                           10: "it is before 2001"}.items():
            self.assertIn(text, why[f"line {line}"])
        done = self.once("import", self.lines(*rows), self.store, "--preset", "article", text=True)
        self.expect(done, 1, stderr="NOT imported, so their operations can run again:\n  line 2")

    def test_lines_that_are_no_rows_are_named(self):
        self.path("rows.jsonl").write_bytes(b'{"idempotencyKey": "a", "status": "DONE"}\n\n[1]\nnonsense\n'
                                            b'{"idempotencyKey":"x","idempotencyKey":"y","status":"DONE"}\n{"a":"\xff"}\n')
        report = self.bring(f"jsonl:{self.path('rows.jsonl')}", "--preset", "article", code=1)
        self.counted(report, rows=5, inserted=1, refused=4)
        self.assertEqual([problem["row"] for problem in report["problems"]], ["line 3", "line 4", "line 5", "line 6"])

    def test_a_result_that_is_missing_is_a_tombstone(self):
        report = self.bring(self.lines(article("a", "COMPLETED")), "--preset", "article")
        self.assertEqual((report["completed"], report["tombstones"]), (1, 1))
        self.expect(self.run_again("a"), 246)
        self.assertEqual(self.runs(), 0)
        self.bring(self.lines(article("b", "COMPLETED")), "--preset", "article", "--no-result", "null")
        self.expect(self.run_again("b"), 0, stdout="null")

    def test_a_result_that_is_too_large_is_a_tombstone(self):
        # The largest record of a file is beyond what a test should write: DynamoDB's test has this too.
        report = self.bring(self.lines(article("a", "COMPLETED", response="x" * (1 << 20))), "--preset", "article")
        self.assertEqual(report["tombstones"], 0)

    def test_expired_rows_are_counted_and_can_be_kept(self):
        source = self.lines(article("a", "COMPLETED", response=1, expiry=PAST_S))
        for options in ([], ["--dry-run"]):  # Whether the old program compares the expiry is not known.
            report = self.bring(source, "--preset", "article", *options, code=1)
            self.counted(report, rows=1, expired=1)
            self.assertIn("1 rows had expired, and their operations can run again", report["warnings"][0])
        self.expect(self.once("import", source, self.store, "--preset", "article", text=True), 1, stderr="add --expired skip")
        self.counted(self.bring(source, "--preset", "article", "--expired", "skip"), rows=1, expired=1)
        self.expect(self.once("show", "--key", "a"), 239)
        self.counted(self.bring(source, "--preset", "article", "--expired", "keep", "--retention", "1h"), rows=1, inserted=1)
        self.expect(self.run_again("a"), 0, stdout="1")

    def test_states_can_be_chosen(self):
        source = self.lines(article("a", "FAILED"), article("b", "Archived", response=2), article("c", "COMPLETED", response=3))
        report = self.bring(source, "--preset", "article", "--may-run", "failed", "--completed", "archived,COMPLETED")
        self.counted(report, rows=3, inserted=2, may_run=1)
        self.expect(self.run_again("b"), 0, stdout="2")
        self.expect(self.run_again("a"), 0, stdout="new result\n")

    def test_two_rows_of_one_key_are_named(self):
        rows = [article("k", "COMPLETED", response=1, user="alice"), article("k", "COMPLETED", response=1, user="bob")]
        for options in ([], ["--dry-run"]):
            report = self.bring(self.lines(*rows), "--preset", "article", *options, code=1)
            self.assertEqual(report["conflicts"], 1)
            self.assertIn("a row before it has the same key", report["problems"][0]["why"])
        self.counted(self.bring(self.lines(*rows), "--preset", "article", "--scope-from", "user"), rows=2, inserted=2)
        self.expect(self.run_again("k", "--scope", "bob"), 0, stdout="1")

    def test_of_several_expiries_the_latest_counts(self):
        """One of them may be the lock's."""
        rows = [{"id": "a", "status": "COMPLETED", "expiresAt": PAST_S, "ttl": FAR_S}, {"id": "b", "status": "COMPLETED", "ttl": FAR_S},
                {"id": "c", "status": "COMPLETED", "expiry": None, "ttl": PAST_S}, {"id": "d", "status": "COMPLETED", "expiry": "soon", "ttl": FAR_S}]
        self.counted(self.bring(self.lines(*rows), "--preset", "article", code=1), rows=4, inserted=3, refused=1)
        self.assertEqual(self.show("a")["expires_at"], "2096-10-02T07:06:40.000Z")
        self.assertIsNone(self.show("c")["expires_at"])  # One column says that there is none.
        for key in "abc":
            self.expect(self.run_again(key), 246)

    def test_a_preset_does_not_guess(self):
        rows = [{"pk": "order-17", "id": "7f3a", "status": "DONE"}, {"idempotencyKey": None, "id": "7f3a", "status": "DONE"},
                {"id": "a", "status": "DONE", "response": None, "data": {"request": 1}},
                {"id": "b", "status": None, "state": "DONE"}, {"id": "c", "status": "DONE", "data": 5}]
        report = self.bring(self.lines(*rows), "--preset", "article", code=1)
        self.counted(report, rows=5, inserted=1, refused=4)
        self.assertEqual([problem["why"].rpartition(": ")[2] for problem in report["problems"]],
                         ["say --key", "say --key", "say --result", "say --state"])
        self.expect(self.run_again("c"), 0, stdout="5")
        report = self.bring(self.lines(*rows[:3]), "--preset", "article", "--key", "one of idempotencyKey, pk", "--result", "response", code=1)
        self.counted(report, rows=3, inserted=1, refused=2)
        rows = [{"key": "a", "idempotency_key": "b", "response_code": 200}, {"key": "a", "response_code": 200, "status_code": 201}]
        report = self.bring(self.lines(*rows), "--preset", "rails", code=1)
        self.assertEqual([problem["why"].rpartition(": ")[2] for problem in report["problems"]], ["say --key", "say --http-status"])

    def test_times_that_decide_nothing_refuse_nothing(self):
        rows = [article("a", "IN_PROGRESS", expiry="soon", createdAt="yesterday"), article("b", "COMPLETED", completedAt="then", response=1)]
        self.counted(self.bring(self.lines(*rows), "--preset", "article"), rows=2, inserted=2)
        self.expect(self.run_again("a"), 242)
        self.expect(self.run_again("b"), 0, stdout="1")
        self.assertIn('--created selects "yesterday": it is not a time', self.show("a")["note"])

    def test_standard_input_decides_nothing(self):
        """Two streams cannot be told apart."""
        for status, code in (("IN_PROGRESS", 0), ("IN_PROGRESS", 0), ("COMPLETED", 1)):
            done = self.once("import", "jsonl:-", self.store, "--preset", "article", text=True, input=json.dumps(article("a", status)))
            self.expect(done, code)
        self.expect(self.run_again("a"), 242)

    def test_a_store_that_cannot_be_reached_ends_a_dry_run(self):
        source = self.lines(article("a", "COMPLETED"))
        done = self.once("import", "-n", source, "postgresql://bob:s3cr3t@127.0.0.1:1/x", "--preset", "article", text=True)
        self.expect(done, 243)
        self.assertNotIn("s3cr3t", done.stdout + done.stderr)

    def test_dry_run_changes_nothing_and_shows_samples(self):
        source = self.lines(*[article(f"order-{n}", "COMPLETED", response=n) for n in range(5)])
        report = self.bring(source, "--preset", "article", "--dry-run")
        self.counted(report, rows=5, inserted=5)
        self.assertEqual(report["outcome"], "would_import")
        self.assertEqual([sample["key"] for sample in report["samples"]], ["order-0", "order-1", "order-2"])
        self.assertIn("not_looked", report)  # There is no store yet, and there is none afterwards.
        self.assertFalse(self.path("once.db").exists())
        self.expect(self.run_again("order-1"), 0)
        report = self.bring(source, "--preset", "article", "--dry-run", "--samples", "1", code=1)
        self.counted(report, rows=5, inserted=4, conflicts=1)
        self.assertEqual(len(report["samples"]), 1)
        self.expect(self.once("show", "--key", "order-2"), 239)
        text = self.once("import", source, self.store, "--preset", "article", "--dry-run", text=True).stdout
        self.assertRegex(text, r"^would import 4 of 5 rows of '.*rows.jsonl' into sqlite:")
        self.assertIn("'order-0': completed, 1 B of application/json, expires 2096", text)


class Mapping(Import):
    def test_keys_are_those_of_a_key_recipe(self):
        event = {"order_id": "order-17", "cents": 500}
        self.path("event.json").write_text(json.dumps(event))
        row = {"event": json.dumps(event), "state": "done", "receipt": {"id": 9}}
        options = ("--key", "powertools_json(event).order_id", "--scope", "payments/charge", "--state", "state",
                   "--completed", "done", "--result", "receipt", "--fingerprint", "powertools_json(event).cents")
        for hash_name in ("sha256", "md5"):
            derived = json.loads(self.once("key", "--json", "--scope", "payments/charge", "--expression", "order_id",
                                           "--fingerprint", "cents", "--hash", hash_name, "event.json").stdout)
            self.counted(self.bring(self.lines(row), *options, "--hash", hash_name), rows=1, inserted=1)
            scope, _, name = derived["key"].partition("#")
            record = self.show(name, "--scope", scope)
            self.assertEqual((record["state"], record["fingerprint"]), ("completed", derived["fingerprint"]))

    def test_a_part_that_is_missing_makes_no_key(self):
        report = self.bring(self.lines({"id": 7, "s": "x"}, {"id": 8, "user": "u", "s": "x"}), "--key", "[user, id]", "--hash",
                            "sha256", "--state", "s", "--completed", "x", code=1)
        self.counted(report, rows=2, inserted=1, refused=1)

    def test_one_table_for_many_things(self):
        rows = [{"pk": "IDEMPOTENCY#order-1", "s": "x"}, {"pk": "CUSTOMER#5"}, {"pk": "IDEMPOTENCY#", "s": "x"}]
        options = ("--key", "pk", "--key-prefix", "IDEMPOTENCY#", "--state", "s", "--completed", "x")
        report = self.bring(self.lines(*rows), *options, "--where", "starts_with(pk, 'IDEMPOTENCY#')", code=1)
        self.counted(report, rows=3, inserted=1, left_out=1, refused=1)
        self.expect(self.run_again("order-1"), 246)
        self.assertEqual(self.bring(self.lines(rows[1]), *options, "--where", "pk", code=1)["refused"], 1)
        # A mistake in --where does not drop rows in silence.
        report = self.bring(self.lines(*rows[:1]), *options, "--where", "kind == 'order'", code=1)
        self.counted(report, rows=1, left_out=1)
        self.assertEqual(report["warnings"], ["--where names 'kind', which no row has", "--where leaves out every row"])
        report = self.bring(self.lines(rows[0]), *options, "--where", "pk > `5`", code=1)
        self.assertEqual(report["problems"][0]["why"], "--where selects nothing in it")

    def test_keys_that_a_database_takes_as_equal_are_refused(self):
        rows = [{"k": key, "s": "x"} for key in ("a ", " b", "c\t", 10, 1.5)]
        options = ("--key", "k", "--state", "s", "--completed", "x")
        self.path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) +
                                           "".join(f'{{"k": {number}, "s": "x"}}\n' for number in ("1.0", "1e2", "-0", "1.50")))
        for more in ([], ["--hash", "sha256"]):
            report = self.bring(f"jsonl:{self.path('rows.jsonl')}", *options, *more, code=1)
            self.assertEqual([problem["row"] for problem in report["problems"]][:3], ["line 1", "line 2", "line 3"])
            self.assertEqual(report["refused"], 3 if more else 7)
        self.assertIn("with a blank at its beginning or end", report["problems"][0]["why"])
        self.assertEqual(self.bring(self.lines({"k": "a", "u": "b ", "s": "x"}), *options, "--scope-from", "u", code=1)["refused"], 1)

    def test_times_in_every_form(self):
        in_2040 = "2040-01-01T00:00:00.000Z"
        times = [(2208988800, in_2040), ("2208988800", in_2040), (2208988800.9, "2040-01-01T00:00:00.900Z"),
                 (2208988800000, in_2040), (2208988800000000, in_2040), (2208988800000000000, in_2040),
                 ("2040-01-01T00:00:00Z", in_2040), ("2040-01-01 00:00:00+00", in_2040), ("2040-01-01 02:00:00.5+0200", "2040-01-01T00:00:00.500Z"),
                 ("2040-01-01 02:00:00 +02:00", in_2040), ("2040-01-01 00:00:00 UTC", in_2040),
                 # Fractions are rounded up.
                 (2208988800.0001, "2040-01-01T00:00:00.001Z"), ("2040-01-01T00:00:00.9990001Z", "2040-01-01T00:00:01.000Z"),
                 ("2040-01-01T00:00:00.123000Z", "2040-01-01T00:00:00.123Z"), ("infinity", "never"),
                 (0, "never"), (None, "never"), ("", "never"), (253402300799, "never"), (9999999999999999, "2286-11-20T17:46:40.000Z"),
                 (253402300799000, "never")]
        source = self.lines(*[{"k": str(number), "at": at} for number, (at, _) in enumerate(times)])
        options = ("--key", "k", "--state", "'x'", "--completed", "x", "--expires", "at", "--dry-run", "--samples", "99")
        samples = self.bring(source, *options)["samples"]
        self.assertEqual([sample["becomes"].rpartition(", ")[2] for sample in samples],
                         ["never expires" if until == "never" else f"expires {until}" for _, until in times])
        wrong = ["-infinity", 17, -5, True, "tomorrow", "2040-01-01", "2040-01-01T00:00:00", {"at": 1}, 1e300]
        source = self.lines(*[{"k": str(number), "at": at} for number, at in enumerate(wrong)])
        report = self.bring(source, *options, code=1)
        self.counted(report, rows=9, refused=8, inserted=1)  # The largest is later than any date.

    def test_results_as_they_are_wanted(self):
        rows = [{"k": "a", "r": '{"a": 1}'}]
        options = ("--key", "k", "--state", "'done'", "--completed", "done", "--result", "r")
        for form, kept in (("json", r'"{\"a\": 1}"'), ("json-text", '{"a": 1}'), ("text", '{"a": 1}')):
            self.bring(self.lines(*rows), *options, "--result-as", form, "--scope", form)
            self.expect(self.run_again("a", "--scope", form), 0, stdout=kept)
        bad = self.bring(self.lines({"k": "a", "r": "{"}), *options, "--result-as", "json-text", "--scope", "bad", code=1)
        self.assertIn("its result is not JSON", bad["problems"][0]["why"])

    def test_misuse_is_refused_before_anything_is_read(self):
        named = ("--key", "k", "--state", "s", "--completed", "x")
        self.refused((), "say which part of a row is its key")
        self.refused(("--key", "k"), "say what became of a row's operation")
        self.refused(("--key", "k", "--state", "s"), "--completed is missing")
        self.refused(("--preset", "artcle"), "there is no preset 'artcle': use one of article, rails, powertools-python")
        self.refused((*named, "--failed", "X"), "the state 'x' is named for two kinds of rows")
        self.refused((*named, "--result-as", "xml"), "--result-as is 'xml'; use one of json, json-text, json-any, text, http")
        self.refused((*named, "--hash", "sha1"), "sha1")
        self.refused((*named, "--table", "t"), "--table and --query are for postgresql: and sqlite:")
        self.refused(named, "say which rows to read", source="sqlite:old.db")
        self.refused(named, "use dynamodb://TABLE", source="mongodb://x")
        self.refused(("--key", "[", "--state", "s", "--completed", "x"), "--key")
        self.expect(self.once("import", self.lines(), "memory:", *named, text=True), 64, stderr="exists only in this process")
        self.assertFalse(self.path("once.db").exists())


class Csv(Import):
    def test_fields_are_read_as_rfc_4180_has_them(self):
        self.path("rows.csv").write_bytes(b'\xef\xbb\xbforder,receipt,at\r\na,"with ""quotes"", commas\nand lines",2090-01-01T00:00:00Z\r\n'
                                          b'b,,4000000000\r\nc,"",\r\n\r\nd,only two\r\n')
        options = ("--key", "order", "--state", "'done'", "--completed", "done", "--result", "receipt", "--result-as", "text",
                   "--expires", "at")
        report = self.bring(f"csv:{self.path('rows.csv')}", *options, code=1)
        self.counted(report, rows=4, inserted=3, refused=1)
        self.assertEqual(report["problems"][0], {"row": "line 7", "why": "it has 2 fields, and the first line names 3"})
        self.expect(self.run_again("a"), 0, stdout='with "quotes", commas\nand lines')
        self.expect(self.run_again("b"), 246)  # Nothing between the commas is null, and a tombstone;
        self.expect(self.run_again("c"), 0, stdout="")  # quotes make an empty text.
        self.assertEqual(self.show("b")["expires_at"], "2096-10-02T07:06:40.000Z")
        self.assertIsNone(self.show("c")["expires_at"])

    def test_from_standard_input(self):
        done = self.once("import", "csv:-", self.store, "--key", "k", "--state", "s", "--completed", "x", input="k,s\na,x\n",
                         text=True)
        self.expect(done, 0)
        self.expect(self.run_again("a"), 246)

    def test_what_was_read_before_a_fault_is_imported_and_reported(self):
        rows = [f"order-{n:04},done\n" for n in range(700)]
        self.path("rows.csv").write_text("k,s\n" + "".join(rows) + '"last-one,done\n')
        source = f"csv:{self.path('rows.csv')}"
        options = ("--key", "k", "--state", "s", "--completed", "done", "--no-result", "empty")
        report = self.bring(source, *options, code=64)
        self.counted(report, rows=700, inserted=700)
        self.assertEqual(report["outcome"], "stopped")
        done = self.once("import", source, self.store, *options, text=True)
        self.expect(done, 64, stderr="the quote at line 702 of")
        self.assertIn("stopped: imported 0 of 700 rows", done.stdout)
        self.expect(self.run_again("order-0699"), 0, stdout="")
        # From the start again, when the file is whole.
        self.path("rows.csv").write_text("k,s\n" + "".join(rows) + "last-one,done\n")
        self.counted(self.bring(source, *options), rows=701, already=700, inserted=1)

    def test_what_is_not_rfc_4180_is_refused(self):
        lines = [r'"a","{\"charge\": \"ch_1\"}"', r"b,\N", '"c" ,x', 'd,x"y"', r'e,"x\"', r'f,"\N"', 'g,"say ""x"""']
        self.path("rows.csv").write_text("k,r\n" + "\n".join(lines) + "\n")
        report = self.bring(f"csv:{self.path('rows.csv')}", "--key", "k", "--state", "'x'", "--completed", "x", "--result", "r",
                            "--result-as", "text", code=1)
        self.counted(report, rows=7, inserted=2, refused=5)
        self.assertEqual([problem["row"] for problem in report["problems"]], [f"line {n}" for n in range(2, 7)])
        self.assertIn("write nothing at all for NULL", report["problems"][1]["why"])
        self.expect(self.run_again("f"), 0, stdout=r"\N")
        self.expect(self.run_again("g"), 0, stdout='say "x"')
        self.path("head.csv").write_text('"k" ,r\na,b\n')
        self.refused(("--key", "k", "--state", "'x'", "--completed", "x"), "the first line of", source=f"csv:{self.path('head.csv')}")


class Sqlite(Import):
    def database(self, *statements):
        with contextlib.closing(sqlite3.connect(self.path("old.db"))) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()
        return f"sqlite:{self.path('old.db')}"

    def test_a_table_in_the_manner_of_rails(self):
        source = self.database(
            "CREATE TABLE idempotency_keys (id INTEGER PRIMARY KEY, idempotency_key TEXT, user_id INTEGER, request_path TEXT, "
            "locked_at TEXT, response_code INTEGER, response_body TEXT, recovery_point TEXT, created_at TEXT)",
            "INSERT INTO idempotency_keys VALUES (1, 'k-1', 7, '/charges', NULL, 201, '{\"id\":5}', 'finished', "
            "'2026-11-01 10:00:00.123')",
            "INSERT INTO idempotency_keys VALUES (2, 'k-2', 7, '/charges', '2026-11-01 10:00:00', NULL, NULL, 'charged', "
            "'2026-11-01 10:00:00')",
            "INSERT INTO idempotency_keys VALUES (3, 'k-3', 8, '/charges', NULL, NULL, NULL, 'finished', '2026-11-01 10:00:00')")
        report = self.bring(source, "--table", "idempotency_keys", "--preset", "rails", "--scope-from",
                            "join('/', ['shop', to_string(user_id)])")
        self.counted(report, rows=3, inserted=3)
        self.assertEqual((report["completed"], report["unknown"], report["tombstones"]), (2, 1, 1))
        record = self.show("k-1", "--scope", "shop/7")
        self.assertEqual(record["created_at"], "2026-11-01T10:00:00.123Z")
        self.assertEqual(record["result"]["content_type"], "application/vnd.once.http")
        self.assertEqual(record["result"]["text"],
                         'once-http/1 201 body 8\nContent-Type: application/json\n\n{"id":5}')
        self.expect(self.run_again("k-2", "--scope", "shop/7"), 242)
        self.expect(self.run_again("k-3", "--scope", "shop/8"), 246)
        self.assertEqual(self.runs(), 0)

    def test_rows_of_a_query_and_values_of_every_kind(self):
        source = self.database("CREATE TABLE t (k INTEGER, r, s TEXT)", "INSERT INTO t VALUES (9007199254740993, 1.5, 'x')",
                               "INSERT INTO t VALUES (2, x'ff00', 'x')", "INSERT INTO t VALUES (3, CAST(x'ff' AS TEXT), 'x')",
                               "INSERT INTO t VALUES (4, 'four', 'y')", "INSERT INTO t VALUES (x'35', 1, 'x')")
        options = ("--query", "SELECT k, r AS result, s FROM t WHERE s = 'x'; ", "--key", "k", "--state", "s", "--completed", "x",
                   "--result", "result")
        report = self.bring(source, *options, code=1)
        self.counted(report, rows=4, inserted=1, refused=3)
        self.assertEqual(report["problems"][1]["why"], "'result' is not UTF-8")
        # Bytes are no text: neither a result nor a key is Base64 in silence.
        self.assertIn("'result', which --result reads, is binary", report["problems"][0]["why"])
        self.assertIn("'k', which --key reads, is binary", report["problems"][2]["why"])
        self.expect(self.run_again("9007199254740993"), 0, stdout="1.5")
        report = self.bring(source, "--query", "SELECT k, s, hex(r) AS result FROM t WHERE k = 2", *options[2:])
        self.counted(report, rows=1, inserted=1)
        self.expect(self.run_again("2"), 0, stdout='"FF00"')

    def test_a_query_of_two_statements_is_refused(self):
        source = self.database("CREATE TABLE a (k TEXT)", "CREATE TABLE b (k TEXT)", "INSERT INTO a VALUES ('a')",
                               "INSERT INTO b VALUES ('b')")
        options = ("--key", "k", "--state", "'x'", "--completed", "x")
        for query in ("SELECT * FROM a; SELECT * FROM b", "SELECT * FROM a; -- more\n SELECT * FROM b", "SELECT * FROM a; nonsense"):
            self.refused(("--query", query, *options), "more than one statement", source=source)
        report = self.bring(source, "--query", "SELECT * FROM a; ; -- over; done\n /* SELECT */ ;", *options)
        self.counted(report, rows=1, inserted=1)

    def test_numbers_are_not_rounded_by_an_expression(self):
        """1801234567890123457 is 1801234567890123500 as a double, and so is another user's number."""
        users = (1801234567890123457, 1801234567890123458)
        source = self.database("CREATE TABLE t (k TEXT, user_id INTEGER, parent TEXT)",
                               *[f"INSERT INTO t VALUES ('k', {user}, '{{\"id\": {user}}}')" for user in users])
        options = ("--query", "SELECT * FROM t", "--state", "'x'", "--completed", "x", "--no-result", "null")
        for more in (("--key", "k", "--scope-from", "join('/', ['shop', to_string(user_id)])"),
                     ("--key", "to_string(user_id)"), ("--key", "to_string(powertools_json(parent).id)"),
                     ("--key", "k", "--where", "user_id == `1801234567890123457`"),
                     ("--key", "[user_id, k]", "--hash", "sha256"), ("--key", "k", "--fingerprint", "to_string(user_id)")):
            self.counted(self.bring(source, *options, *more, code=1), rows=2, refused=2)
        report = self.bring(source, *options, "--key", "user_id")  # The number itself keeps its text.
        self.counted(report, rows=2, inserted=2)
        for user in users:
            self.expect(self.run_again(str(user)), 0, stdout="null")
        report = self.bring(source, "--query", "SELECT k, CAST(user_id AS TEXT) AS user FROM t", *options[2:], "--key", "k",
                            "--scope-from", "join('/', ['shop', user])")
        self.counted(report, rows=2, inserted=2)
        self.expect(self.run_again("k", "--scope", f"shop/{users[0]}"), 0, stdout="null")
        self.assertEqual(self.runs(), 0)

    def test_sources_are_told_apart(self):
        source = self.database("CREATE TABLE e1 (id TEXT, status TEXT, response TEXT)", "CREATE TABLE e2 (id TEXT, status TEXT, response TEXT)",
                               "INSERT INTO e1 VALUES ('o1', 'IN_PROGRESS', NULL)", "INSERT INTO e2 VALUES ('o1', 'COMPLETED', 'other')")
        self.counted(self.bring(source, "--table", "e1", "--preset", "article"), rows=1, inserted=1)
        report = self.bring(source, "--table", "e2", "--preset", "article", code=1)
        self.counted(report, rows=1, conflicts=1)
        self.assertIn("imported from another source", report["problems"][0]["why"])
        self.expect(self.run_again("o1"), 242)
        self.database("UPDATE e2 SET status = 'IN_PROGRESS'")
        self.assertEqual(self.bring(source, "--query", "SELECT * FROM e2", "--preset", "article", code=1)["conflicts"], 1)
        self.database("UPDATE e1 SET status = 'COMPLETED', response = 'mine'")
        self.counted(self.bring(source, "--table", "e1", "--preset", "article"), rows=1, decided=1)
        self.expect(self.run_again("o1"), 0, stdout='"mine"')

    def test_it_is_only_read(self):
        source = self.database("CREATE TABLE t (k TEXT)")
        for query, text in (("DELETE FROM t", "selects no rows"), ("SELECT absent FROM t", "no such column"),
                            ("DELETE FROM t RETURNING k", "must only read")):
            self.refused(("--query", query, "--key", "k", "--state", "k", "--completed", "x"), text, source=source)
        self.expect(self.once("import", "sqlite:none.db", self.store, "--table", "t", "--key", "k", "--state", "k", "--completed",
                              "x", text=True), 243, stderr="unable to open database file")
        self.assertFalse(self.path("none.db").exists())

    def test_headers_and_statuses(self):
        source = self.database("CREATE TABLE i (key TEXT, response_status TEXT, response_headers TEXT, response_body TEXT)",
                               "INSERT INTO i VALUES ('a', '404', '[[\"Content-Type\",\"text/plain\"],[\"Link\",\"x\"]]', 'gone')",
                               "INSERT INTO i VALUES ('b', '999', NULL, NULL)", "INSERT INTO i VALUES ('d', '102', NULL, NULL)", "INSERT INTO i VALUES ('c', '200', 'x', NULL)")
        report = self.bring(source, "--table", "i", "--preset", "rails", code=1)
        self.counted(report, rows=4, inserted=1, refused=3)
        self.assertEqual(self.show("a")["result"]["text"],
                         "once-http/1 404 body 4\nContent-Type: text/plain\nLink: x\n\ngone")

    def test_the_proxy_replays_what_was_imported(self):
        """The scope is that of a first request, as the page says."""
        service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        self.addCleanup(service.server_close)
        self.addCleanup(service.shutdown)
        proxy = self.start("proxy", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{service.server_address[1]}",
                           "--no-principal", "--access-log", "none", "--log", "none", text=True)
        port = next(found[1] for found in (re.search(r"listening on port (\d+)", line) for line in proxy.stderr) if found)

        def charge(key):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/charges", b'{"cents": 5}', {"Idempotency-Key": key})
            with urllib.request.urlopen(request, timeout=harness.DEADLINE_S) as answer:
                return answer.status, answer.headers.get("Idempotent-Replayed"), answer.headers["Content-Type"], answer.read()

        self.assertEqual(charge("first"), (200, None, None, b"charged"))
        scope = json.loads(self.once("ls", "--json").stdout)[0]["scope"]
        source = self.database("CREATE TABLE i (idempotency_key TEXT, response_code INTEGER, response_body TEXT)",
                               "INSERT INTO i VALUES ('old', 201, '{\"id\": 5}')")
        self.counted(self.bring(source, "--table", "i", "--preset", "rails", "--scope", scope), rows=1, inserted=1)
        self.assertEqual(charge("old"), (201, "true", "application/json", b'{"id": 5}'))
        self.assertEqual(charge("new")[3], b"charged")


class Service(http.server.BaseHTTPRequestHandler):
    """Says of each request that it charged."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"charged")

    def log_message(self, *_):
        pass


class Powertools(Import):
    def test_ids_results_and_validation_stay(self):
        common = {"status": "COMPLETED", "expiration": FAR_S}
        rows = [{"id": "fn.app.handler#4f5f4713d180fb0cb1041f7caf4faaaa", "data": '{"paid": true}',
                 "validation": "0cc175b9c0f1b6a831c399e269772661", **common},
                {"id": "fn.app.handler#4f5f4713d180fb0cb1041f7caf4faaab", **common},
                {"id": "fn.app.handler#4f5f4713d180fb0cb1041f7caf4faaac", "status": "INPROGRESS", "expiration": FAR_S,
                 "in_progress_expiration": PAST_S * 1000},
                {"id": "a#b.handler#4f5f4713d180fb0cb1041f7caf4faaad", **common}, {"id": "idempotency#my-func", **common},
                {"id": "idempotency#abcd", **common}, {"id": "expired#4f", "status": "COMPLETED", "expiration": PAST_S},
                {"id": "idempotency#fn", **common, "data": "no JSON"}, {"id": "plain", **common}]
        report = self.bring(self.lines(*rows), "--preset", "powertools-python", code=1)
        self.counted(report, rows=9, inserted=4, expired=1, refused=4)
        self.assertIn("--key sort_key", report["problems"][0]["why"])
        self.assertEqual(self.show("b.handler#4f5f4713d180fb0cb1041f7caf4faaad", "--scope", "a")["state"], "completed")
        record = self.show("4f5f4713d180fb0cb1041f7caf4faaaa", "--scope", "fn.app.handler")
        self.assertEqual((record["result"]["text"], record["fingerprint"]),
                         ('{"paid": true}', "0cc175b9c0f1b6a831c399e269772661"))
        self.expect(self.run_again("4f5f4713d180fb0cb1041f7caf4faaab", "--scope", "fn.app.handler"), 0, stdout="null")
        self.expect(self.run_again("4f5f4713d180fb0cb1041f7caf4faaac", "--scope", "fn.app.handler"), 242)
        self.bring(self.lines(rows[3]), "--preset", "powertools-python", "--scope", "new")
        self.assertEqual(self.show("4f5f4713d180fb0cb1041f7caf4faaad", "--scope", "new")["state"], "completed")
        self.bring(self.lines({"id": "fn#YQ==", "data": {"n": 1}, **common, "validation": "YQ=="}), "--preset",
                   "powertools-typescript", "--scope", "other")
        record = self.show("YQ==", "--scope", "other")
        self.assertEqual((record["result"]["text"], record["fingerprint"]), ('{"n":1}', "61"))
        self.bring(self.lines({"id": "fn.run#aa", "data": "a text", **common}), "--preset", "powertools-java")
        self.assertEqual(self.show("aa", "--scope", "fn.run")["result"]["text"], '"a text"')

    def test_its_own_kind_of_store_is_refused(self):
        self.expect(self.once("import", self.lines(), "dynamodb://t?dialect=powertools-python&region=eu-central-1", "--preset",
                              "powertools-python", text=True, env=dict(self.env, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")),
                    64, stderr="no unknown outcomes")


class Pages(http.server.BaseHTTPRequestHandler):
    """A table whose second page cannot be read: the service is too busy."""

    starts = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        start = body.get("ExclusiveStartKey")
        Pages.starts.append((start, body["ConsistentRead"]))
        if start is not None:
            status, answer = 400, {"__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException", "message": "not now"}
        else:
            status, answer = 200, {"Items": [item("a")], "LastEvaluatedKey": {"id": {"S": "a"}, "n": {"N": "1.50"}}}
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def item(key):
    return {"idempotencyKey": {"S": key}, "status": {"S": "COMPLETED"}, "expiry": {"N": str(FAR_S)},
            "response": {"M": {"n": {"N": "12345678901234567890.5"}, "l": {"L": [{"BOOL": True}, {"NULL": True}, {"SS": ["x"]}]},
                               "b": {"B": base64.b64encode(b"\xff").decode()}}}}


RESPONSE = '{"n":12345678901234567890.5,"l":[true,null,["x"]],"b":"/w=="}'


class Dynamodb(Import):
    def setUp(self):
        super().setUp()
        for name in [name for name in self.env if name.startswith("AWS_")]:
            del self.env[name]
        self.env |= {"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
                     "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                     "AWS_EC2_METADATA_DISABLED": "true"}

    def fake(self, *tables):
        fake = subprocess.Popen([FAKE, "--until-eof", *(word for table in tables for word in ("--table", table))],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(fake.communicate)
        self.env["AWS_ENDPOINT_URL"] = fake.stdout.readline().strip()

    def put(self, table, **attributes):
        urllib.request.urlopen(urllib.request.Request(
            self.env["AWS_ENDPOINT_URL"], json.dumps({"TableName": table, "Item": attributes}).encode(),
            {"X-Amz-Target": "DynamoDB_20120810.PutItem", "Content-Type": "application/x-amz-json-1.0"})).close()

    def test_a_hand_made_table(self):
        self.fake("orders:idempotencyKey", "once")
        self.put("orders", **item("order-17"))
        self.put("orders", idempotencyKey={"S": "order-18"}, status={"S": "IN_PROGRESS"}, lockedBy={"S": "w"},
                 lockToken={"S": "t"}, expiry={"N": str(FAR_S)})
        self.put("orders", idempotencyKey={"S": "order-19"}, status={"S": "COMPLETED"},
                 response={"S": "x" * 390_000}, expiry={"N": str(FAR_S)})
        for store in (self.store, "dynamodb://once"):
            self.env["ONCE_STORE"] = store
            report = self.bring("dynamodb://orders", "--preset", "article", to=store)
            self.counted(report, rows=3, inserted=3)
            self.assertEqual(report["tombstones"], 0 if store == self.store else report["tombstones"])
            replayed = self.expect(self.run_again("order-17"), 0).stdout
            self.assertEqual(sorted(replayed), sorted(RESPONSE))  # The fake sorts an item's attributes.
            self.expect(self.run_again("order-18"), 242)
            self.assertIn(self.run_again("order-19").returncode, (0, 246))
            self.assertEqual(self.runs(), 0)
            self.counted(self.bring("dynamodb://orders", "--preset", "article", to=store), rows=3, already=3)

    def test_a_result_that_the_store_cannot_keep_is_a_tombstone(self):
        self.fake("once")
        self.env["ONCE_STORE"] = "dynamodb://once"
        source = self.lines(article("a", "COMPLETED", response="x" * 500_000))
        report = self.bring(source, "--preset", "article", to="dynamodb://once")
        self.assertEqual((report["inserted"], report["tombstones"]), (1, 1))
        self.expect(self.run_again("a"), 246, stderr="488.3 KiB")
        self.counted(self.bring(source, "--preset", "article", to="dynamodb://once"), rows=1, already=1)

    def test_a_table_that_is_not_there(self):
        self.fake("once")
        done = self.once("import", "dynamodb://nothing", self.store, "--preset", "article", text=True)
        self.expect(done, 64, stderr="Scan of table 'nothing' at http://127.0.0.1:")
        self.assertIn("ResourceNotFoundException", done.stderr)

    def test_a_page_that_cannot_be_read(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.env["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.server_address[1]}"
        report = self.bring("dynamodb://t", "--preset", "article", code=243)
        self.counted(report, rows=1, inserted=1)
        self.assertEqual(Pages.starts[:2], [(None, True), ({"id": {"S": "a"}, "n": {"N": "1.50"}}, True)])
        self.expect(self.run_again("a"), 0, stdout=RESPONSE)

    def test_binary_attributes_are_no_keys_and_no_results(self):
        self.fake("orders:idempotencyKey")
        binary = {"B": base64.b64encode(b"x").decode()}
        self.put("orders", **item("a") | {"response": binary})
        self.put("orders", **item("b") | {"idempotencyKey": {"S": "b"}, "lockToken": binary})
        report = self.bring("dynamodb://orders", "--preset", "article", code=1)
        self.counted(report, rows=2, inserted=1, refused=1)
        self.assertIn("'response', which --result reads, is binary", report["problems"][0]["why"])

    def test_lines_of_an_export(self):
        lines = [{"Item": item("a")}, item("b"), {"Item": {"idempotencyKey": {"Q": "x"}}}, {"Item": {"idempotencyKey": "x"}}]
        self.path("export.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        report = self.bring(f"dynamodb-export:{self.path('export.json')}", "--preset", "article", code=1)
        self.counted(report, rows=4, inserted=1, refused=3)
        self.expect(self.run_again("a"), 0, stdout=RESPONSE)
        self.assertIn("it has no \"Item\"", report["problems"][0]["why"])


if "ONCE_TEST_POSTGRESQL" in os.environ:
    class Postgresql(Import):
        def setUp(self):
            self.server = os.environ["ONCE_TEST_POSTGRESQL"]
            super().setUp()

        def sql(self, text):
            subprocess.run(["psql", "-Xqv", "ON_ERROR_STOP=1", "-d", self.server, "-c", text], check=True)

        def test_keys_as_stripe_s_imitators_keep_them(self):
            self.sql("CREATE SCHEMA \"my shop\"; CREATE TABLE \"my shop\".idempotency_keys (id bigserial PRIMARY KEY, "
                     "created_at timestamptz NOT NULL, idempotency_key text NOT NULL, last_run_at timestamp, locked_at timestamptz, "
                     "request_method text, request_params jsonb, request_path text, response_code int, response_body jsonb, "
                     "recovery_point text NOT NULL, user_id bigint NOT NULL); "
                     "INSERT INTO \"my shop\".idempotency_keys (created_at, idempotency_key, response_code, response_body, recovery_point, "
                     "user_id, request_path) SELECT '2026-11-01 12:00:00+02', 'k-' || n, 200, '{\"n\": 1}', 'finished', n, '/rides' "
                     "FROM generate_series(1, 1200) n; "
                     "INSERT INTO \"my shop\".idempotency_keys (created_at, idempotency_key, recovery_point, user_id, request_path) "
                     "VALUES (now(), 'k-0', 'ride_created', 5, '/rides')")
            options = ("--table", "my shop.idempotency_keys", "--preset", "rails", "--scope-from", "join(' ', ['POST', request_path])")
            self.counted(self.bring(self.server, *options, "--dry-run"), rows=1201, inserted=1201)
            self.counted(self.bring(self.server, *options), rows=1201, inserted=1201)
            record = self.show("k-1200", "--scope", "POST /rides")
            self.assertEqual(record["created_at"], "2026-11-01T10:00:00.000Z")
            self.assertEqual(record["result"]["text"], 'once-http/1 200 body 7\nContent-Type: application/json\n\n{"n":1}')
            self.expect(self.run_again("k-0", "--scope", "POST /rides"), 242)
            self.counted(self.bring(self.server, *options), rows=1201, already=1201)

        def test_into_a_store_in_the_same_database(self):
            store = f"{self.server}?allow_unsafe=1&schema={self.dir.name.replace('-', '_')}"
            self.env["ONCE_STORE"] = store
            self.expect(self.once("table", "create", "--store", store), 0)
            self.sql("CREATE TABLE done (id text, receipt text, until timestamp)")
            self.sql("INSERT INTO done VALUES ('a', 'r', '2040-01-01 00:00'), ('b', NULL, NULL)")
            options = ("--query", "SELECT * FROM done;", "--key", "id", "--state", "'done'", "--completed", "done", "--result",
                       "receipt", "--result-as", "text", "--expires", "until")
            report = self.bring(self.server, *options, to=store, code=1)
            self.counted(report, rows=2, inserted=1, refused=1)
            self.counted(self.bring(self.server, *options, "--utc", to=store), rows=2, inserted=1, already=1)
            self.expect(self.run_again("a"), 0, stdout="r")
            self.expect(self.run_again("b"), 246)

        def test_rows_that_a_policy_hides_are_not_left_out(self):
            self.sql("CREATE TABLE guarded (id text, body bytea); INSERT INTO guarded VALUES ('a', 'x'), ('b', 'x'); "
                     "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY; ALTER TABLE guarded FORCE ROW LEVEL SECURITY; "
                     "CREATE POLICY own ON guarded USING (id = 'a'); CREATE ROLE reader; GRANT SELECT ON guarded TO reader; "
                     "CREATE TABLE other (id text)")
            named = ("--key", "id", "--state", "'x'", "--completed", "x")
            self.refused((*named, "--table", "guarded"), "row-level security", source=f"{self.server}?options=-c%20role%3Dreader")
            self.refused((*named, "--query", "SELECT id FROM other) AS x; SELECT * FROM (SELECT id FROM guarded"),
                         "cannot insert multiple commands", source=self.server)
            report = self.bring(self.server, *named, "--query", "SELECT * FROM guarded", "--result", "body", code=1)
            self.counted(report, rows=2, refused=2)
            self.assertIn("'body', which --result reads, is binary", report["problems"][0]["why"])

        def test_it_is_only_read(self):
            self.sql("CREATE TABLE kept (id text); INSERT INTO kept VALUES ('a')")
            self.sql("CREATE FUNCTION cleans() RETURNS text LANGUAGE sql AS 'DELETE FROM kept RETURNING id'")
            named = ("--key", "id", "--state", "id", "--completed", "a")
            self.refused((*named, "--query", "SELECT cleans() AS id"), "read-only transaction", source=self.server)
            self.refused((*named, "--table", "nothing"), 'relation "nothing" does not exist', source=self.server)
            done = self.once("import", "postgresql://u:secret@127.0.0.1:1/x", self.store, *named, "--table", "t", text=True)
            self.expect(done, 243, stderr="cannot connect")
            self.assertNotIn("secret", done.stderr)
            done = self.once("import", "postgresql://u:secret@[x", self.store, *named, "--table", "t", text=True)
            self.expect(done, 64)
            self.assertNotIn("secret", done.stderr)


if __name__ == "__main__":
    harness.main()
