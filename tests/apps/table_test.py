"""once table, and the other commands on a store in DynamoDB, against the fake that checks signatures."""
import json
import os
import re
import subprocess
import unittest
import urllib.request

import harness
from harness import Case

FAKE = os.environ["ONCE_FAKE_DYNAMODB"]
KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


class Table(Case):
    def setUp(self):
        super().setUp()
        for name in [name for name in self.env if name.startswith("AWS_")]:
            del self.env[name]
        self.env |= {"ONCE_STORE": "dynamodb://jobs", "AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": KEY,
                     "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_CONFIG_FILE": "/dev/null",
                     "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true"}

    def serve(self, *options, key=KEY):
        """A fake of this test's own, which ends with it. Without a key it does not look at signatures."""
        keys = ["--access-key", key, "--secret", SECRET] if key else []
        fake = subprocess.Popen([FAKE, "--until-eof", *keys, *options],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(fake.communicate)
        self.env["AWS_ENDPOINT_URL"] = fake.stdout.readline().strip()
        self.assertTrue(self.env["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:"))
        return fake

    def table(self, *arguments, code=0, **options):
        done = self.once("table", *arguments, text=True, **options)
        self.assertEqual(done.returncode, code, f"stdout: {done.stdout}\nstderr: {done.stderr}")
        return done

    def findings(self, code=0):
        report = json.loads(self.table("check", "--json", code=code).stdout)
        return report, {finding["name"]: finding["grade"] for finding in report["findings"]}


class Create(Table):
    def test_makes_a_table_that_fits(self):
        self.serve()
        self.assertRegex(self.table("create", "--tags", "team=pay", "env=test").stdout, "^created table 'jobs' at http")
        report, findings = self.findings()
        self.assertTrue(report["fits"] and report["exists"])
        self.assertEqual(report["status"], "ACTIVE")
        self.assertEqual({name for name, grade in findings.items() if grade != "fine"}, {"protection", "recovery"})

    def test_is_done_once(self):
        self.serve()
        self.table("create")
        self.assertIn("already exists and fits", self.table("create").stdout)
        self.assertEqual(json.loads(self.table("create", "--json").stdout)["outcome"], "was_there")

    def test_refuses_another_table(self):
        self.serve("--table", "jobs:pk:sk")
        done = self.table("create", code=1)
        self.assertIn("exists but does not fit. Nothing was changed:", done.stderr)
        self.assertRegex(done.stdout, r"lack +key +the primary key is pk, sk, not id")
        self.assertEqual(json.loads(self.table("create", "--json", code=1).stdout)["outcome"], "does_not_fit")
        # For a store that is told of its names it fits, and only what can be added is missing.
        self.env["ONCE_STORE"] = "dynamodb://jobs?partition_key=pk&sort_key=sk&use_index=never"
        self.assertIn("already existed; its TTL was off and is now on", self.table("create").stdout)
        self.findings()

    def test_says_what_it_waits_for(self):
        self.serve("--creation-steps", "6")
        self.assertIn("once: the table is CREATING ...", self.table("create").stderr)

    def test_gives_up_when_told_to(self):
        self.serve("--creation-steps", "1000")
        done = self.table("create", "--timeout", "1ms", code=243)
        self.assertIn("is CREATING still", done.stderr)

    def test_dry_run_asks_nobody(self):
        self.env["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
        done = self.table("create", "--dry-run", "--tags", "a=b=c")
        requests = json.loads(done.stdout)
        self.assertEqual(requests["CreateTable"]["Tags"], [{"Key": "a", "Value": "b=c"}])
        self.assertEqual(list(requests), ["CreateTable", "UpdateTimeToLive"])

    def test_bad_use(self):
        self.assertIn("'nonsense' is not KEY=VALUE", self.table("create", "--tags", "nonsense", code=64).stderr)
        self.assertIn("A subcommand is required. Nothing was run. See `once table --help`", self.table(code=64).stderr)
        self.assertIn("See `once table create --help`", self.table("create", "--no", code=64).stderr)


class Missing(Table):
    def test_a_table_ends_the_commands_as_a_file_does(self):
        self.serve()
        for command in (["ls"], ["stats"], ["sweep"], ["doctor"], ["find", "k"], ["show", "--key", "k"]):
            with self.subTest(command=command):
                self.expect(self.once(*command), 243)
                self.expect(self.once(*command, "--store", f"sqlite:{self.dir}/none.db"), 243)
        self.expect(self.once("run", "--key", "k", "--", "touch", "ran"), 243, b"", b"Nothing was run")
        file = f"sqlite:{self.dir}/none.db?create=0"
        self.expect(self.once("run", "--store", file, "--key", "k", "--", "touch", "ran"), 243, b"", b"Nothing was run")
        self.assertFalse(self.path("ran").exists())


class Check(Table):
    def test_says_that_there_is_none(self):
        self.serve()
        done = self.table("check", code=1)
        self.assertRegex(done.stdout, "^lack +table +there is no table 'jobs' at http.*once table create")
        report, findings = self.findings(code=1)
        self.assertEqual((report["exists"], report["fits"], findings), (False, False, {"table": "lack"}))

    def test_says_each_thing_that_is_missing(self):
        self.serve("--table", "jobs")
        _, findings = self.findings(code=1)
        self.assertEqual({name for name, grade in findings.items() if grade == "lack"}, {"ttl", "index"})

    def test_policy_is_made_without_asking(self):
        self.env["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
        policy = json.loads(self.table("check", "--policy").stdout)
        self.assertEqual([one["Sid"] for one in policy["Statement"]], ["OnceRecords", "OnceTable", "OnceIndex"])
        self.assertEqual(policy["Statement"][0]["Resource"], "arn:aws:dynamodb:eu-central-1:*:table/jobs")
        store = "dynamodb://jobs?region=us-east-1&offload=s3://bucket/some/where/?region=us-east-1"
        policy = json.loads(self.table("check", "--policy", "worker", "--account", "123456789012", "--store", store).stdout)
        self.assertEqual([one["Resource"] for one in policy["Statement"]],
                         ["arn:aws:dynamodb:us-east-1:123456789012:table/jobs", "arn:aws:s3:::bucket/some/where/*"])

    def test_policy_of_a_url_that_is_escaped(self):
        for offload in ("s3://bucket/some%2Fwhere/", "s3%3A%2F%2Fbucket%2Fsome%2Fwhere"):
            policy = json.loads(self.table("check", "--policy", "--store", f"dynamodb://jobs?offload={offload}").stdout)
            self.assertIn("arn:aws:s3:::bucket/some/where/*", [one["Resource"] for one in policy["Statement"]], offload)

    def test_policy_keeps_to_the_functions_partition(self):
        composite = "dynamodb://jobs?partition_key=pk&sort_key=sk&use_index=never"

        def partitions(store, said):
            done = self.table("check", "--policy", "worker", "--store", store)
            self.assertEqual("all partitions" in done.stderr, said)
            condition = json.loads(done.stdout)["Statement"][0].get("Condition", {})
            return condition.get("ForAllValues:StringEquals", {}).get("dynamodb:LeadingKeys")

        self.assertEqual(partitions(composite + "&partition_value=mine", False), ["mine"])
        self.assertIsNone(partitions(composite, True))
        self.env["AWS_LAMBDA_FUNCTION_NAME"] = "pay"
        self.assertEqual(partitions(composite, False), ["idempotency#pay"])

    def test_policy_names_the_table_that_is_there(self):
        self.serve()
        self.table("create")
        report, _ = self.findings()
        self.assertEqual(report["policy"]["Statement"][0]["Resource"], report["arn"])
        self.assertIn(report["arn"], self.table("check").stdout)

    def test_says_what_is_in_the_way(self):
        self.assertIn("dynamodb://TABLE?region=REGION", self.table("check", "--store", self.store, code=64).stderr)
        self.env["ONCE_STORE"] = ""
        self.assertIn("ONCE_STORE", self.table("check", code=64).stderr)
        self.env["ONCE_STORE"] = "dynamodb://jobs"
        self.serve()
        right = dict(self.env)
        self.env["AWS_SECRET_ACCESS_KEY"] = "wrong"
        done = self.table("check", code=64)
        self.assertIn("environment", done.stderr)
        self.assertNotIn("wrong\n", done.stderr)
        del self.env["AWS_ACCESS_KEY_ID"], self.env["AWS_SECRET_ACCESS_KEY"]
        self.assertIn("no AWS credentials found", self.table("check", code=64).stderr)
        self.env = dict(right)
        del self.env["AWS_REGION"], self.env["AWS_ENDPOINT_URL"]
        self.assertIn("region", self.table("check", code=64).stderr)
        self.env = dict(right, AWS_ENDPOINT_URL="http://127.0.0.1:1")
        self.assertIn("cannot connect", self.table("check", code=243).stderr)


class Delete(Table):
    def setUp(self):
        super().setUp()
        self.serve()
        self.table("create")

    def test_wants_the_name(self):
        for typed in ("", "\n", "x\n", "jobsjobs\n"):
            done = self.table("delete", code=64, input=typed)
            self.assertIn("this deletes table 'jobs'", done.stderr)
            self.assertIn("nothing was deleted", done.stderr)
        self.findings()
        self.assertIn("deleted table 'jobs'", self.table("delete", input="jobs\n").stdout)
        self.assertIn("there is no table 'jobs'", self.table("delete", "--yes", code=64).stderr)

    def test_yes_is_enough(self):
        self.table("delete", "--yes")
        self.findings(code=1)

    def test_dry_run_deletes_nothing(self):
        self.assertRegex(self.table("delete", "--dry-run").stdout, "^would delete table 'jobs' at .* with about 0 records")
        self.findings()

    def test_protected_tables_stay(self):
        self.env["ONCE_STORE"] = "dynamodb://held"
        self.table("create", "--deletion-protection")
        self.assertIn("deletion protection is on", self.table("delete", "--yes", code=240).stderr)
        self.findings()


class Commands(Table):
    """The rest of the program on such a store."""

    def test_open_records_are_listed(self):
        self.serve()
        self.table("create")
        self.expect(self.once("run", "--key", "done", "--", "true"), 0)
        self.expect(self.once("run", "--key", "bad", "--", "false"), 1)
        self.expect(self.once("run", "--key", "held", "--on-failure", "hold", "--", "false"), 1)
        for state, keys in (("completed", ["done"]), ("failed", ["bad"]), ("unknown", ["held"]), ("in_progress", [])):
            listed = json.loads(self.expect(self.once("ls", "--state", state, "--json"), 0).stdout)
            self.assertEqual([record["key"] for record in listed], keys, state)
        self.expect(self.once("resolve", "--key", "held", "--as", "completed", "--reason", "seen"), 0)
        self.assertEqual(json.loads(self.once("ls", "--state", "unknown", "--json").stdout), [])

    def test_records_are_found_over_all_pages(self):
        self.serve()
        self.table("create")
        for scope in ("pay", "refund"):
            for key in ("order-17", "order-18"):
                self.expect(self.once("run", "--scope", scope, "--key", key, "--", "true"), 0)
        found = json.loads(self.expect(self.once("find", "order-17", "--json"), 0).stdout)
        self.assertEqual(sorted((record["scope"], record["match"]) for record in found),
                         [("pay", "key"), ("refund", "key")])
        self.expect(self.once("find", "order-19"), 239, b"")

    def test_the_stores_clock_says_what_has_expired(self):
        self.serve("--clock", "-7200")
        self.table("create")
        self.fifo("gate")
        self.expect(self.once("run", "--key", "done", "--retention", "1h", "--", "true"), 0)
        running = self.start("run", "--key", "live", "--retention", "1h", "--", "sh", "-c", "echo $$ > pid; cat gate")
        self.pid_in("pid")
        standings = {record["key"]: record["standing"] for record in
                     json.loads(self.expect(self.once("ls", "--json"), 0).stdout)}
        self.assertEqual(standings, {"done": "completed", "live": "running"})
        self.assertEqual(json.loads(self.expect(self.once("stats", "--json"), 0).stdout)["expired"], 0)
        self.assertEqual(json.loads(self.expect(self.once("doctor", "--json"), 0).stdout)["counts"]["expired"], 0)
        for options in ((), ("--dry-run",)):
            swept = self.expect(self.once("sweep", "--json", *options), 0)
            self.assertEqual(json.loads(swept.stdout)["removed"], 0, options)
        self.open_gate("gate")
        self.assertEqual(running.communicate(timeout=harness.DEADLINE_S)[0], b"go\n")

        self.serve("--clock", "7200")
        self.table("create")
        self.expect(self.once("run", "--key", "done", "--retention", "1ms", "--", "true"), 0)
        harness.wait_until(lambda: json.loads(self.once("sweep", "--json").stdout)["removed"] == 1,
                           "what has expired by the store's clock was removed")

    def put(self, item):
        """Puts an item into a fake that does not look at signatures."""
        urllib.request.urlopen(urllib.request.Request(
            self.env["AWS_ENDPOINT_URL"], json.dumps({"TableName": "jobs", "Item": item}).encode(),
            {"X-Amz-Target": "DynamoDB_20120810.PutItem", "Content-Type": "application/x-amz-json-1.0"})).close()

    def test_scopes_of_powertools_stand_as_they_are(self):
        self.serve("--table", "jobs", key=None)
        self.env["ONCE_STORE"] = "dynamodb://jobs?dialect=powertools-python"
        for scope in ("pay#v2", "a%b", "plain"):
            self.put({"id": {"S": scope + "#abc"}, "status": {"S": "COMPLETED"}, "expiration": {"N": "9999999999"},
                      "data": {"S": "{}"}})
            stored = (scope + "#abc").encode().hex()
            for named in (("--scope", scope, "--key", "abc"), ("--stored-key-hex", stored)):
                shown = json.loads(self.expect(self.once("show", *named, "--json"), 0).stdout)
                self.assertEqual(shown["stored_key_hex"], stored)
            listed = json.loads(self.expect(self.once("ls", "--scope", scope, "--json"), 0).stdout)
            self.assertEqual([record["stored_key_hex"] for record in listed], [stored])
            self.expect(self.once("release", "--stored-key-hex", stored, "--force", "--reason", "because"), 0)
        self.expect(self.once("show", "--stored-key-hex", stored, "--scope", "plain"), 64, stderr=b"leave out --scope")

    def test_an_item_that_is_no_record_disturbs_no_other(self):
        self.serve(key=None)
        self.table("create")
        for key in "abc":
            self.expect(self.once("run", "--key", key, "--retention", "1ms", "--", "true"), 0)
        self.put({"id": {"S": "customer#7"}, "expires_at": {"N": "1"}})

        def told(*arguments):
            return self.expect(self.once(*arguments), 244, stderr=b"customer#7").stdout

        self.assertEqual([record["key"] for record in json.loads(told("ls", "--json"))], ["a", "b", "c"])
        self.assertEqual(len(told("ls").splitlines()), 4)
        self.assertEqual(json.loads(told("stats", "--json"))["records"], 3)
        report = json.loads(self.expect(self.once("doctor", "--json"), 244).stdout)
        self.assertEqual(report["counts"]["records"], 3)
        self.assertIn("customer#7", [one["text"] for one in report["findings"] if one["name"] == "records"][0])
        harness.wait_until(lambda: json.loads(self.once("stats", "--json").stdout)["expired"] == 3, "all have expired")
        removed = []

        def swept():  # Each command learns the store's time for itself: a sweep may take it for earlier than stats did.
            done = self.expect(self.once("sweep", "--offload", self.dir), 244, stderr=b"customer#7")
            removed.extend(int(count) for count in re.findall(rb"(\d+) records were removed before this failure:", done.stderr))
            return sum(removed) == 3

        harness.wait_until(swept, "all are removed")
        self.assertEqual(json.loads(told("stats", "--json"))["records"], 0)

    def test_a_partition_that_nobody_named_is_not_looked_into(self):
        self.serve("--table", "jobs:pk:sk")
        self.env["ONCE_STORE"] = "dynamodb://jobs?partition_key=pk&sort_key=sk&use_index=never"
        function = dict(self.env, AWS_LAMBDA_FUNCTION_NAME="pay")
        self.expect(self.once("run", "--key", "k", "--", "true", env=function), 0)
        release = ("release", "--key", "k", "--force", "--reason", "because")
        for command in (("ls",), ("stats",), ("sweep",), ("doctor",), ("show", "--key", "k"), release):
            done = self.once(*command)
            self.assertEqual(done.returncode, 64, command)
            self.assertIn(b"partition_value=idempotency%23FUNCTION", done.stderr + done.stdout)
        self.assertEqual(len(json.loads(self.once("ls", "--json", env=function).stdout)), 1)
        self.env["ONCE_STORE"] += "&partition_value=idempotency%23pay"
        self.assertEqual(len(json.loads(self.once("ls", "--json").stdout)), 1)

    def test_doctor_looks_at_everything(self):
        self.serve()
        self.table("create")
        done = self.expect(self.once("doctor", "--probe", "--json"), 0)
        findings = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
        for name in ("open", "credentials", "table", "status", "key", "ttl", "index", "billing", "clock", "probe", "records"):
            self.assertEqual(findings[name]["grade"], "fine", findings[name])
        self.assertEqual(findings["credentials"]["text"], "environment")
        self.assertIn("give or take 500ms", findings["clock"]["text"])
        self.assertNotIn(SECRET, done.stdout.decode())

    def test_doctor_finds_a_service_whose_settings_lack_the_seal_key(self):
        """This store has no mark that would refuse its claims: docs/decisions/sealing.md."""
        self.serve()
        self.table("create")
        self.expect(self.once("seal-key", "new", "--id", "a", self.path("keys")), 0)
        sealed = ("--store", f"{self.env['ONCE_STORE']}?seal={self.path('keys')}")
        self.expect(self.once("run", *sealed, "--scope", "pay", "--key", "k", "--", "true"), 0)
        self.expect(self.once("doctor", *sealed), 0)
        self.expect(self.once("run", "--scope", "ship", "--key", "k", "--", "true"), 0)
        for options, name, text in ((sealed, "seals", "1 sealed (1 with the key 'a'), 1 in the clear"),
                                    ((), "keys", "1 sealed records cannot be opened")):
            report = json.loads(self.expect(self.once("doctor", "--json", *options), 1).stdout)
            found = {one["name"]: (one["grade"], one["text"]) for one in report["findings"]}
            self.assertEqual(found[name][0], "problem")
            self.assertIn(text, found[name][1])

    def test_a_quick_doctor_does_not_read_the_table(self):
        fake = self.serve()
        self.table("create")
        self.expect(self.once("run", "--key", "done", "--", "true"), 0)
        self.expect(self.once("run", "--key", "held", "--on-failure", "hold", "--", "false"), 1)

        def scans():
            fake.stdin.write("\n")
            fake.stdin.flush()
            return json.loads(fake.stdout.readline()).get("Scan", 0)

        def doctor(code):
            report = json.loads(self.expect(self.once("doctor", "--quick", "--json"), code).stdout)
            return report["counts"], {one["name"]: one["grade"] for one in report["findings"]}

        counts, findings = doctor(1)
        self.assertEqual((counts["unknown"], counts["completed"], findings["unknown"]), (1, 0, "problem"))
        self.env["ONCE_STORE"] += "?use_index=never"
        counts, findings = doctor(0)
        self.assertEqual((counts["records"], findings["waiting"]), (0, "note"))
        self.assertEqual(scans(), 0)

    def test_doctor_says_what_is_wrong(self):
        self.serve("--table", "jobs")
        report = json.loads(self.expect(self.once("doctor", "--json"), 1).stdout)
        self.assertEqual({one["name"] for one in report["findings"] if one["grade"] == "problem"}, {"ttl", "index"})
        del self.env["AWS_ACCESS_KEY_ID"]
        self.expect(self.once("doctor"), 243)
        self.env["AWS_ACCESS_KEY_ID"] = KEY
        self.env["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
        done = self.expect(self.once("doctor"), 243)
        self.assertIn(b"cannot connect", done.stdout)
        self.assertNotIn(b"does not report its time", done.stdout)


if __name__ == "__main__":
    harness.main()
