"""deploy/ against `once table`: the four templates, what the program would send, its policy, and the store's own calls. Then
the functions in examples/lambda: the same table, the least policy, and what their events need. Then the alarms, the
alerts and the dashboard.

Each source is brought into one form, properties of CloudFormation with every reference resolved, and compared.
Usage: templates_test.py ONCE_PROGRAM
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = subprocess.run([ROOT / "tools/python-tools"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
if pathlib.Path(sys.prefix) != pathlib.Path(PYTHON).parent.parent:
    os.execv(PYTHON, [PYTHON, *sys.argv])

sys.path[:0] = [str(ROOT / "tests/real_servers"), str(ROOT / "tests/apps")]
import boto3  # noqa: E402  from the virtual environment, like hcl2 and yaml
import emulator  # noqa: E402
import hcl2  # noqa: E402
import metrics_page  # noqa: E402
import yaml  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
DEPLOY = ROOT / "deploy"
FUNCTIONS = sorted((ROOT / "examples/lambda").glob("*/template.yaml"))
REGION, ACCOUNT = "eu-central-1", "123456789012"
TABLE_ARN = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/once"
BUCKET_ARN = "arn:aws:s3:::large"
TOPIC_ARN = f"arn:aws:sns:{REGION}:{ACCOUNT}:ops"
NOTHING = object()  # AWS::NoValue


def once(*arguments):
    done = subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                          check=False, env={"PATH": os.environ["PATH"]})
    if done.returncode or done.stderr:
        raise AssertionError(f"once {arguments}: {done.returncode} {done.stderr}")
    return json.loads(done.stdout)


# --- The form that all are brought into.


def table_form(properties):
    """Properties of AWS::DynamoDB::Table, in an order that does not matter."""
    form = {name: value for name, value in properties.items() if name not in ("TableName", "Tags")}
    form["AttributeDefinitions"] = sorted(form["AttributeDefinitions"], key=lambda one: one["AttributeName"])
    return form


def policy_form(*documents):
    """Statement id -> what it allows on what. Fails if two documents disagree on one."""
    form = {}
    for document in documents:
        for statement in document["Statement"]:
            assert statement["Effect"] == "Allow" and set(statement) <= {"Sid", "Effect", "Action", "Resource"}, statement
            actions = statement["Action"]
            allowed = (sorted([actions] if isinstance(actions, str) else actions), statement["Resource"])
            assert form.setdefault(statement["Sid"], allowed) == allowed, statement
    return form


def alarm_form(properties):
    """Properties of AWS::CloudWatch::Alarm: {id of a metric: all that says which it is}, its expression, and the rest but
    its name. A metric alone has the id ""."""
    form = {name: properties[name] for name in ("AlarmDescription", "ComparisonOperator", "Threshold", "EvaluationPeriods",
                                                "TreatMissingData")}
    form["AlarmActions"] = properties.get("AlarmActions", [])

    def metric(stat, unit, period, metric):
        (dimension,) = metric["Dimensions"]
        return (metric["Namespace"], metric["MetricName"], dimension["Name"], dimension["Value"], unit, stat, period)

    known = set(form) | {"AlarmName", "Tags", "Metrics", "Namespace", "MetricName", "Dimensions", "Unit", "Statistic", "Period"}
    assert set(properties) <= known, set(properties) - known
    if "Metrics" not in properties:
        return form | {"Expression": "", "Metrics": {
            "": metric(properties["Statistic"], properties["Unit"], properties["Period"], properties)}}
    metrics = {one["Id"]: one["MetricStat"] for one in properties["Metrics"] if "MetricStat" in one}
    (expression,) = [one for one in properties["Metrics"] if "MetricStat" not in one]
    assert expression.get("ReturnData", True) is True
    assert all(one["ReturnData"] is False for one in properties["Metrics"] if "MetricStat" in one)
    return form | {"Expression": " ".join(expression["Expression"].split()),
                   "Metrics": {name: metric(one["Stat"], one["Unit"], one["Period"], one["Metric"]) for name, one in metrics.items()}}


def alarms_form(all_properties):
    """Section of the handbook -> the alarm."""
    forms = {re.search(r"#([\w-]+)$", one["AlarmDescription"])[1]: alarm_form(one) for one in all_properties}
    assert len(forms) == len(all_properties)
    return forms


def counter_form(code, runtime, memory, timeout, variables, schedule, policy):
    """The scheduled function that counts open records."""
    return {"code": code, "runtime": runtime, "memory": memory, "timeout": timeout, "variables": variables,
            "schedule": schedule, "policy": policy}


# --- CloudFormation


class Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms, as the long ones."""


def short_form(loader, suffix, node):
    name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
        return {name: value.split(".", 1) if suffix == "GetAtt" else value}
    return {name: loader.construct_sequence(node, deep=True)}


Loader.add_multi_constructor("!", short_form)


class Template:
    """A template with these parameters; what it says with all references resolved."""

    def __init__(self, template, **parameters):
        self.template = template
        self.values = {name: parameters.pop(name, one.get("Default")) for name, one in
                       template.get("Parameters", {}).items() if name != "BootstrapVersion"}
        assert not parameters, parameters
        self.values |= {"AWS::Region": REGION, "AWS::AccountId": ACCOUNT, "AWS::Partition": "aws"}

    def resources(self, kind):
        found = []
        for one in self.template["Resources"].values():
            if one["Type"] == kind and ("Condition" not in one or self.condition(one["Condition"])):
                found.append(self.resolve(one.get("Properties", {})))
        return found

    def condition(self, name):
        return self.resolve(self.template["Conditions"][name])

    def resolve(self, node):
        if isinstance(node, list):
            return [value for value in map(self.resolve, node) if value is not NOTHING]
        if isinstance(node, str) and node in ("true", "false"):
            return node == "true"
        if not isinstance(node, dict):
            return node
        if len(node) != 1 or not re.match(r"Ref$|Fn::|Condition$", name := next(iter(node))):
            resolved = {key: self.resolve(value) for key, value in node.items()}
            return {key: value for key, value in resolved.items() if value is not NOTHING}
        argument = node[name]
        if name == "Ref":
            return self.reference(argument)
        if name == "Fn::GetAtt":
            return self.attribute(*argument)
        if name == "Fn::Sub":
            return re.sub(r"\$\{([\w:]+)(?:\.(\w+))?\}",
                          lambda m: self.attribute(m[1], m[2]) if m[2] else str(self.reference(m[1])), argument)
        if name == "Fn::Join":
            return argument[0].join(map(self.resolve, argument[1]))
        if name == "Fn::If":
            return self.resolve(argument[1 if self.condition(argument[0]) else 2])
        if name == "Fn::Equals":
            return self.resolve(argument[0]) == self.resolve(argument[1])
        if name == "Fn::Not":
            return not self.resolve(argument[0])
        if name == "Fn::And":
            return all(map(self.resolve, argument))
        if name == "Condition":
            return self.condition(argument)
        raise AssertionError(f"{name} is not known here")

    def reference(self, name):
        if name == "AWS::NoValue":
            return NOTHING
        if name in self.values:
            return self.resolve(self.values[name])
        return {"AWS::DynamoDB::Table": "once", "AWS::S3::Bucket": "large", "AWS::IAM::ManagedPolicy": name,
                "AWS::IAM::Role": name, "AWS::Serverless::HttpApi": name, "AWS::SQS::Queue": name,
                "AWS::Serverless::Function": "pay", "AWS::Lambda::Function": "pay"}[
                    self.template["Resources"][name]["Type"]]

    def attribute(self, resource, name):
        kind = self.template["Resources"][resource]["Type"]
        return {("AWS::DynamoDB::Table", "Arn"): TABLE_ARN, ("AWS::S3::Bucket", "Arn"): BUCKET_ARN,
                ("AWS::IAM::Role", "Arn"): resource, ("AWS::SQS::Queue", "Arn"): resource,
                ("AWS::Lambda::Function", "Arn"): resource, ("AWS::Events::Rule", "Arn"): resource}[kind, name]

    def table(self):
        (table,) = self.resources("AWS::DynamoDB::Table")
        return table_form(table)

    def bucket(self):
        buckets = self.resources("AWS::S3::Bucket")
        assert len(buckets) <= 1
        return buckets[0] if buckets else None

    def policy(self):
        documents = [one["PolicyDocument"] for kind in ("AWS::IAM::ManagedPolicy", "AWS::IAM::Policy")
                     for one in self.resources(kind)]
        for function in self.resources("AWS::Serverless::Function"):
            documents += function["Policies"]
        return policy_form(*documents)

    def alarms(self):
        return alarms_form(self.resources("AWS::CloudWatch::Alarm"))

    def counter(self):
        """The scheduled function that counts open records, or nothing."""
        functions = [one for one in self.resources("AWS::Lambda::Function") if one["Runtime"].startswith("python")]
        if functions:
            (function,) = functions
            code = function["Code"]["ZipFile"]
            (rule,) = self.resources("AWS::Events::Rule")
            (invoker,) = self.resources("AWS::Lambda::Permission")
            assert (invoker["Action"], invoker["Principal"]) == ("lambda:InvokeFunction", "events.amazonaws.com")
            schedule = rule["ScheduleExpression"]
            documents = [one["PolicyDocument"] for role in self.resources("AWS::IAM::Role") for one in role.get("Policies", [])]
            documents += [one["PolicyDocument"] for one in self.resources("AWS::IAM::Policy")
                          if "Counter" in str(one["PolicyName"])]
        else:
            functions = [one for one in self.resources("AWS::Serverless::Function") if "InlineCode" in one]
            if not functions:
                return None
            (function,) = functions
            code = function["InlineCode"]
            schedule = function["Events"]["Schedule"]["Properties"]["Schedule"]
            documents = function["Policies"]
        return counter_form(code, function["Runtime"], function["MemorySize"], function["Timeout"],
                            function["Environment"]["Variables"], schedule, policy_form(*documents))

    def outputs(self):
        return {name: self.resolve(one["Value"]) for name, one in self.template["Outputs"].items()}


def read_template(name):
    return yaml.load((DEPLOY / name).read_text(), Loader)


def program_table():
    """What the program would make. The templates protect the table; the program does if it is asked to."""
    requests = once("table", "create", "--store", "dynamodb://once", "--deletion-protection", "--dry-run")
    return table_form(requests["CreateTable"] |
                      {"TimeToLiveSpecification": requests["UpdateTimeToLive"]["TimeToLiveSpecification"],
                       "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": False}})


def program_policy(whom, large):
    store = f"dynamodb://once?region={REGION}" + ("&offload=s3://large/results" if large else "")
    return policy_form(once("table", "check", "--store", store, "--account", ACCOUNT, "--policy", whom))


def load(name, **parameters):
    return Template(read_template(name), **parameters)


# --- Terraform


class Module:
    """deploy/terraform with these variables, as the form of CloudFormation."""

    def __init__(self, folder=DEPLOY / "terraform", **variables):
        self.blocks = {}
        for path in sorted(folder.glob("*.tf")):
            for kind, blocks in hcl2.loads(path.read_text()).items():
                if kind != "__comments__":
                    self.blocks.setdefault(kind, []).extend(blocks)
        self.variables = {name: variables.pop(name, self.plain(body["default"])) for (name,), body in self.all("variable")}
        assert not variables, variables

    def all(self, kind):
        """(labels, body) of each block of a kind."""
        depth = {"variable": 1, "output": 1, "terraform": 0, "resource": 2, "data": 2}[kind]

        def descend(node, labels):
            if len(labels) == depth:
                yield labels, node
                return
            for label, inner in node.items():
                if not label.startswith("__"):
                    yield from descend(inner, (*labels, label.strip('"')))

        for block in self.blocks[kind]:
            yield from descend(block, ())

    def one(self, kind, *labels):
        (body,) = [body for found, body in self.all(kind) if found == labels]
        return body

    def local(self, name):
        (value,) = [body[name] for body in self.blocks["locals"] if name in body]
        return value

    @staticmethod
    def plain(value):
        return value[1:-1] if isinstance(value, str) and value.startswith('"') else value

    def value(self, node):
        """Of an argument: quoted text and ${references}."""
        if isinstance(node, list):
            return [self.value(one) for one in node]
        if not isinstance(node, str):
            return node
        if whole := re.fullmatch(r"\$\{([^{}]*)\}", node):
            return self.expression(whole[1])
        return re.sub(r"\$\{([^{}]*)\}", lambda m: str(self.expression(m[1])), self.plain(node))

    def expression(self, text):
        if text.startswith("var."):
            name, _, rest = text[4:].partition(" ")
            if not rest:
                return self.variables[name]
            if rest == f"== null ? [] : [var.{name}]":
                return [] if self.variables[name] is None else [self.variables[name]]
            raise AssertionError(text)
        if text.startswith("each.value."):
            return self.value(self.each[text.removeprefix("each.value.")])
        if text == "local.alarm_actions":
            return self.value(self.local("alarm_actions"))
        if text.startswith("join("):
            separator, *parts = re.findall(r'"([^"]*)"', text)
            return separator.join(parts)
        return {"aws_dynamodb_table.this.arn": TABLE_ARN, "aws_dynamodb_table.this.name": self.variables["table_name"],
                "statement.value.arn": BUCKET_ARN, "local.store": "the store"}.get(text, "${" + text + "}")

    def table(self):
        body = self.one("resource", "aws_dynamodb_table", "this")
        (ttl,), (recovery,) = body["ttl"], body["point_in_time_recovery"]

        def keys(block):
            named = [(block["hash_key"], "HASH")] + [(block[name], "RANGE") for name in ("range_key",) if name in block]
            return [{"AttributeName": self.value(name), "KeyType": kind} for name, kind in named]

        return table_form({
            "BillingMode": self.value(body["billing_mode"]),
            "KeySchema": keys(body),
            "AttributeDefinitions": [{"AttributeName": self.value(one["name"]), "AttributeType": self.value(one["type"])}
                                     for one in body["attribute"]],
            "GlobalSecondaryIndexes": [{"IndexName": self.value(one["name"]), "KeySchema": keys(one),
                                        "Projection": {"ProjectionType": self.value(one["projection_type"])}}
                                       for one in body["global_secondary_index"]],
            "TimeToLiveSpecification": {"AttributeName": self.value(ttl["attribute_name"]),
                                        "Enabled": self.value(ttl["enabled"])},
            "DeletionProtectionEnabled": self.value(body["deletion_protection_enabled"]),
            "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": self.value(recovery["enabled"])},
        })

    def bucket(self):
        kinds = ("aws_s3_bucket", "aws_s3_bucket_lifecycle_configuration", "aws_s3_bucket_ownership_controls",
                 "aws_s3_bucket_public_access_block")
        for kind in kinds:
            assert self.one("resource", kind, "results")["count"] == "${var.results_bucket == null ? 0 : 1}", kind
        if self.variables["results_bucket"] is None:
            return None
        (rule,) = self.one("resource", kinds[1], "results")["rule"]
        assert rule["filter"] == [{"__is_block__": True}], "the rule is for the whole bucket"
        (expiration,), (abort,) = rule["expiration"], rule["abort_incomplete_multipart_upload"]
        (owner,) = self.one("resource", kinds[2], "results")["rule"]
        block = self.one("resource", kinds[3], "results")
        return {
            "LifecycleConfiguration": {"Rules": [{
                "Id": self.value(rule["id"]), "Status": self.value(rule["status"]),
                "ExpirationInDays": self.value(expiration["days"]),
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": self.value(abort["days_after_initiation"])}}]},
            "OwnershipControls": {"Rules": [{"ObjectOwnership": self.value(owner["object_ownership"])}]},
            "PublicAccessBlockConfiguration": {
                "".join(word.capitalize() for word in name.split("_")): block[name]
                for name in ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")},
        }

    def alarms(self):
        def metric(names):
            return {"".join(word.capitalize() for word in name.split("_")): self.value(value) for name, value in names.items()
                    if name != "__is_block__"}

        found = []
        for label, unless in (("metric", " && alarm.periods != 0"), ("expression", "")):
            body = self.one("resource", "aws_cloudwatch_metric_alarm", label)
            assert body["for_each"] == ("${{for name, alarm in local." + label + "_alarms : name => alarm if "
                                        "var.alarm_function != null" + unless + "}}")
            assert body["alarm_name"] == '"${var.alarm_function}-once-${replace(each.key, \"_\", \"-\")}"'
            for each in self.local(f"{label}_alarms").values():
                if self.variables["alarm_function"] is None or (unless and self.value(each["periods"]) == 0):
                    continue
                self.each = each
                properties = metric({name: value for name, value in body.items() if name not in (
                    "for_each", "alarm_name", "metric_query", "dynamic", "tags", "dimensions")})
                if label == "expression":
                    (query,) = body["metric_query"]
                    (dynamic,) = body["dynamic"]
                    block = dynamic['"metric_query"']
                    (content,) = block["content"]
                    (one,) = content["metric"]
                    assert content["id"] == "${metric_query.key}" and one["metric_name"] == "${metric_query.value}"
                    assert block["for_each"] == "${each.value.metrics}"
                    properties["Metrics"] = [{"Id": self.value(query["id"]), "Expression": self.value(query["expression"]),
                                              "ReturnData": query["return_data"]}]
                    for name, metric_name in each["metrics"].items():
                        stat = metric(one | {"metric_name": metric_name})
                        properties["Metrics"].append({
                            "Id": name, "ReturnData": False,
                            "MetricStat": {"Stat": stat["Stat"], "Unit": stat["Unit"], "Period": stat["Period"],
                                           "Metric": stat | {"Dimensions": self.dimensions(one)}}})
                else:
                    properties["Dimensions"] = self.dimensions(body)
                found.append(properties)
        return alarms_form(found)

    def counter(self):
        counted = "${var.count_open_records ? 1 : 0}"
        kinds = ("aws_iam_role", "aws_iam_role_policy", "aws_lambda_function", "aws_cloudwatch_event_rule",
                 "aws_cloudwatch_event_target", "aws_lambda_permission")
        role, policy, function, rule, target, invoker = (self.one("resource", kind, "counter") for kind in kinds)
        log = self.one("resource", "aws_iam_role_policy_attachment", "counter_log")
        for body in (role, policy, function, rule, target, invoker, log):
            assert body["count"] == counted, body
        if not self.variables["count_open_records"]:
            return None
        source = self.one("data", "archive_file", "counter")["source_file"]
        assert source == '"${path.module}/open_records.py"' and self.plain(function["handler"]) == "open_records.handler"
        assert policy["policy"] == "${data.aws_iam_policy_document.counter.json}"
        assert policy["role"] == "${aws_iam_role.counter[0].id}" and function["role"] == "${aws_iam_role.counter[0].arn}"
        assert role["assume_role_policy"] == "${local.lambda_trust}" and log["policy_arn"] == "${local.lambda_log_policy}"
        assert target["arn"] == "${aws_lambda_function.counter[0].arn}"
        assert (self.plain(invoker["action"]), self.plain(invoker["principal"])) == ("lambda:InvokeFunction", "events.amazonaws.com")
        (environment,) = function["environment"]
        (document,) = self.one("data", "aws_iam_policy_document", "counter")["statement"]
        return counter_form(
            (DEPLOY / "terraform/open_records.py").read_text(), self.value(function["runtime"]), function["memory_size"],
            function["timeout"], {name: self.value(value if value.startswith("${") else "${" + value + "}") for name, value in environment["variables"].items()
                                  if not name.startswith("__")},
            self.value(rule["schedule_expression"]),
            policy_form({"Statement": [{"Sid": self.value(document["sid"]), "Effect": "Allow", "Action": self.value(document["actions"]),
                                        "Resource": self.value(document["resources"])[0]}]}))

    def dimensions(self, body):
        return [{"Name": name, "Value": self.value("${" + value + "}" if value.startswith("var.") else value)}
                for name, value in body["dimensions"].items() if not name.startswith("__")]

    def policy(self):
        documents = []
        for (kind, _), body in self.all("data"):
            if kind != "aws_iam_policy_document":
                continue
            statements = list(body["statement"])
            for dynamic in body.get("dynamic", []):
                block = dynamic['"statement"']
                assert block["for_each"] == "${aws_s3_bucket.results}"
                if self.variables["results_bucket"] is not None:
                    statements += block["content"]
            documents.append({"Statement": [
                {"Sid": self.value(one["sid"]), "Effect": "Allow", "Action": self.value(one["actions"]),
                 "Resource": self.value(one["resources"])[0]} for one in statements]})
            assert all(len(one["resources"]) == 1 for one in statements)
        return policy_form(*documents)


def handbook_sections():
    headings = re.findall(r"^## (.*)$", (ROOT / "docs/handbook.md").read_text(), re.M)
    return {f"docs/handbook.md#{heading.lower().replace(' ', '-')}" for heading in headings}


# --- The construct


def synthesise(folder):
    """Compiles and runs the CDK application; the templates of its stacks by name."""
    tools = pathlib.Path(subprocess.run([ROOT / "tools/node-tools"], stdout=subprocess.PIPE, text=True,
                                        check=True).stdout.strip())
    folder.joinpath("node_modules").symlink_to(tools / "node_modules")
    for construct in (DEPLOY / "cdk").glob("*.ts"):
        shutil.copy(construct, folder)
    shutil.copy(ROOT / "tests/deploy/cdk_app.ts", folder)
    folder.joinpath("tsconfig.json").write_text(json.dumps({"compilerOptions": {
        "target": "es2022", "module": "commonjs", "strict": True, "noUnusedLocals": True, "noUnusedParameters": True,
        "skipLibCheck": True, "types": [], "outDir": "out"}}))
    programs = tools / "node_modules/.bin"
    out = folder / "cdk.out"
    environment = dict(os.environ, CDK_OUTDIR=str(out), PATH=f"{programs}:{os.environ['PATH']}")
    for command in (["tsc", "--project", "."], ["node", "out/cdk_app.js"]):
        done = subprocess.run(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300, check=False)
        if done.returncode:
            raise AssertionError(f"{command}: {done.stdout}")
    return {name: out / f"{name}.template.json" for name in ("Plain", "Large", "Alarms", "QuietAlarms", "Counter")}


class Templates(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="once-deploy-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.cdk = synthesise(cls.folder)
        cls.table = program_table()

    def all(self, large):
        flag = "true" if large else "false"
        return {
            "cloudformation.yaml": load("cloudformation.yaml", LargeResults=flag),
            "sam.yaml": load("sam.yaml", LargeResults=flag),
            "terraform": Module(results_bucket="large" if large else None),
            "cdk": Template(json.loads(self.cdk["Large" if large else "Plain"].read_text())),
        }

    def test_tables_are_what_the_program_makes(self):
        for large in (False, True):
            for name, template in self.all(large).items():
                with self.subTest(template=name, large=large):
                    self.assertEqual(template.table(), self.table)

    def test_policies_are_the_least(self):
        for large in (False, True):
            for name, template in self.all(large).items():
                with self.subTest(template=name, large=large):
                    # The function of sam.yaml only runs operations.
                    self.assertEqual(template.policy(), program_policy("worker" if name == "sam.yaml" else "all", large))

    def test_policy_is_for_the_calls_of_the_store(self):
        called = set()
        for path in sorted((ROOT / "src/stores/dynamodb").glob("*.cpp")):
            called |= set(re.findall(r'"((?:Get|Put|Update|Delete|Query|Scan|Describe|BatchGet|BatchWrite)'
                                     r'(?:Item|Table|TimeToLive|ContinuousBackups)?)"', path.read_text()))
        called -= {"DeleteTable", "UpdateTimeToLive"}  # once table create and delete: nobody's daily work.
        # Parts of TransactWriteItems: the record's own needs PutItem, the others are for the user's own tables.
        called -= {"Put", "Update", "Delete"}
        allowed = {action for actions, _ in program_policy("all", False).values() for action in actions}
        self.assertEqual({f"dynamodb:{name}" for name in called}, allowed)

    def test_buckets_are_alike(self):
        self.assertEqual({name: one.bucket() for name, one in self.all(False).items()},
                         dict.fromkeys(self.all(False)))
        buckets = {name: one.bucket() for name, one in self.all(True).items()}
        (rule,) = buckets["cloudformation.yaml"]["LifecycleConfiguration"]["Rules"]
        self.assertEqual((rule["ExpirationInDays"], rule["Status"]), (8, "Enabled"))
        for name, bucket in buckets.items():
            with self.subTest(template=name):
                self.assertEqual(bucket, buckets["cloudformation.yaml"])

    def test_parameters_reach_the_table(self):
        for name in ("cloudformation.yaml", "sam.yaml"):
            table = load(name, DeletionProtection="false", PointInTimeRecovery="true").table()
            self.assertIs(table["DeletionProtectionEnabled"], False)
            self.assertEqual(table["PointInTimeRecoverySpecification"], {"PointInTimeRecoveryEnabled": True})
        table = Module(deletion_protection=False, point_in_time_recovery=True).table()
        self.assertIs(table["DeletionProtectionEnabled"], False)
        self.assertEqual(table["PointInTimeRecoverySpecification"], {"PointInTimeRecoveryEnabled": True})
        self.assertEqual(load("cloudformation.yaml", LargeResults="true", LargeResultDays=31).bucket()
                         ["LifecycleConfiguration"]["Rules"][0]["ExpirationInDays"], 31)

    def alarms(self, hours=24, running=0, topic=TOPIC_ARN):
        """Each template's alarms, for what cdk_app.ts asks for."""
        parameters = {"NothingStartedHours": hours, "RunningAtOnce": running, "AlarmTopic": topic or ""}
        return {
            "cloudformation.yaml": load("cloudformation.yaml", AlarmFunction="pay", **parameters).alarms(),
            "sam.yaml": load("sam.yaml", Alarms="true", **parameters).alarms(),
            "terraform": Module(alarm_function="pay", alarm_topic_arn=topic, nothing_started_hours=hours,
                                running_at_once=running).alarms(),
            "cdk": Template(json.loads(self.cdk["Alarms" if topic else "QuietAlarms"].read_text())).alarms(),
        }

    def test_alarms_are_alike(self):
        for parameters in ({}, {"hours": 0, "running": 7, "topic": None}):
            alarms = self.alarms(**parameters)
            expected = alarms["cloudformation.yaml"]
            for name, one in alarms.items():
                with self.subTest(template=name, **parameters):
                    self.assertEqual(one, expected)
            self.assertEqual("nothing-started" in expected, not parameters)
            self.assertEqual(expected["started-but-not-ended"]["Threshold"], parameters.get("running", 0))
            for one in expected.values():
                self.assertEqual(one["AlarmActions"], [] if parameters else [TOPIC_ARN])

    def test_there_are_no_alarms_unless_they_are_asked_for(self):
        for name, template in self.all(False).items():
            self.assertEqual(template.alarms(), {}, name)

    def test_sam_lets_the_function_write_what_its_alarms_watch(self):
        for flag, value in (("true", "emf"), ("false", "off")):
            (function,) = load("sam.yaml", Alarms=flag).resources("AWS::Serverless::Function")
            self.assertEqual(function["Environment"]["Variables"]["ONCE_METRICS"], value)

    def test_alarms_watch_what_a_function_writes(self):
        """By the page, which tests/lambda/metrics_test.cpp compares with what is written, both ways."""
        metrics = metrics_page.embedded()
        alarms = self.alarms()["cloudformation.yaml"]
        watched = set()
        for section, alarm in alarms.items():
            ids = set(alarm["Metrics"])
            self.assertEqual(set(re.findall(r"\bFILL\((\w+), 0\)", alarm["Expression"])), ids - {""}, section)
            for namespace, name, dimension, value, unit, stat, period in alarm["Metrics"].values():
                self.assertEqual((namespace, dimension, value, stat), ("once", "FunctionName", "pay", "Sum"), section)
                self.assertEqual(unit, metrics[name], section)
                self.assertLessEqual(period * alarm["EvaluationPeriods"], 24 * 3600, section)  # CloudWatch's limit.
                watched.add(name)
            self.assertEqual(len({one[-1] for one in alarm["Metrics"].values()}), 1, section)  # Of one length.
        self.assertIn(f"({sum(len(one['Metrics']) for one in alarms.values())} in all)", (DEPLOY / "README.md").read_text())
        # What ends what has begun, and what is bad. Nobody is called for the others.
        self.assertEqual(set(metrics) - watched, {
            "once_operations_total_replayed", "once_operations_total_stored_failure", "once_operations_total_conflict",
            "once_operations_total_mismatch", "once_reconcile_total_reconciled", "once_reconcile_total_reconcile_later",
            "once_reconcile_total_reconcile_gave_up", "once_claims_lost_total", "once_declined_total", "once_renewals_total",
            "once_steps_total", "once_store_errors_total", "once_work_duration_seconds", "once_begin_duration_seconds"})
        self.assertEqual({section for section, one in alarms.items() if one["TreatMissingData"] == "breaching"},
                         {"nothing-started"})

    def test_alarms_are_raised_when_they_should_be(self):
        def raised(alarm, **values):
            (name, *_) = alarm["Metrics"]
            expression = re.sub(r"FILL\((\w+), 0\)", lambda m: str(values.get(m[1], 0)), alarm["Expression"]) or str(values.get(name, 0))
            self.assertRegex(expression, r"^[\d.+*\- ]+$")
            value = eval(expression)
            return value > alarm["Threshold"] if alarm["ComparisonOperator"] == "GreaterThanThreshold" else value < alarm["Threshold"]

        alarms = self.alarms(running=2)["cloudformation.yaml"] | {"idle": self.alarms()["cloudformation.yaml"]["started-but-not-ended"]}
        for name, expected, values in (
                ("nothing-started", True, {"": 0}), ("nothing-started", False, {"": 1}),
                ("idle", False, {}), ("idle", True, {"started": 1}), ("idle", False, {"started": 1, "released": 1}),
                ("idle", False, {"started": 100, "completed": 92}), ("idle", True, {"started": 100, "completed": 80, "failed": 9}),
                ("idle", False, {"completed": 1}),
                ("started-but-not-ended", False, {"started": 2}), ("started-but-not-ended", True, {"started": 3}),
                ("failures", False, {"failed": 5}), ("failures", True, {"failed": 6}), ("failures", False, {"failed": 6, "completed": 100}),
                ("unknown-outcome", False, {}), ("unknown-outcome", True, {"held": 1}), ("unknown-outcome", True, {"unknown": 1}),
                ("result-not-recorded", False, {"": 0}), ("result-not-recorded", True, {"": 1}),
                ("ran-unprotected", False, {"": 0}), ("ran-unprotected", True, {"": 1})):
            with self.subTest(alarm=name, values=values):
                self.assertEqual(raised(alarms[name], **values), expected)

    def test_alarms_lead_to_sections_of_the_handbook(self):
        alarms = self.alarms()["cloudformation.yaml"]
        self.assertEqual(set(alarms), {"nothing-started", "started-but-not-ended", "failures", "unknown-outcome",
                                       "result-not-recorded", "ran-unprotected"})
        for section, alarm in alarms.items():
            self.assertIn(f"docs/handbook.md#{section}", handbook_sections())
            self.assertTrue(alarm["AlarmDescription"].endswith(f"What to do: docs/handbook.md#{section}"))

    def counters(self):
        return {
            "cloudformation.yaml": load("cloudformation.yaml", CountOpenRecords="true").counter(),
            "sam.yaml": load("sam.yaml", CountOpenRecords="true").counter(),
            "terraform": Module(count_open_records=True).counter(),
            "cdk": Template(json.loads(self.cdk["Counter"].read_text())).counter(),
        }

    def test_counters_are_alike(self):
        counters = self.counters()
        expected = counters["terraform"]
        self.assertEqual(expected["variables"], {"TABLE": "once"})
        self.assertEqual(expected["schedule"], "rate(5 minutes)")
        self.assertEqual(expected["policy"], {"OnceIndex": program_policy("all", False)["OnceIndex"]})
        self.assertLessEqual(len(expected["code"]), 4096)  # CloudFormation's limit of a ZipFile.
        for name, one in counters.items():
            with self.subTest(template=name):
                self.assertEqual(one, expected)
        for name, template in self.all(False).items():
            self.assertIsNone(template.counter(), name)

    def test_terraform_has_a_function_and_its_role(self):
        module = Module(function_zip="payment.zip", function_metrics=True)
        names = (("aws_iam_role", "function"), ("aws_iam_role_policy_attachment", "function_worker"),
                 ("aws_iam_role_policy_attachment", "function_log"), ("aws_lambda_function", "this"))
        role, worker, log, function = (module.one("resource", *name) for name in names)
        for body in (role, worker, log, function):
            self.assertEqual(body["count"], "${var.function_zip == null ? 0 : 1}")
        self.assertEqual(worker["policy_arn"], "${aws_iam_policy.worker.arn}")
        self.assertEqual((worker["role"], log["role"]), ("${aws_iam_role.function[0].name}",) * 2)
        self.assertEqual(function["role"], "${aws_iam_role.function[0].arn}")
        self.assertEqual((module.value(function["runtime"]), module.value(function["handler"])), ("provided.al2023", "bootstrap"))
        self.assertEqual(function["filename"], "${var.function_zip}")
        (environment,) = function["environment"]
        variables = {name: value for name, value in environment["variables"].items() if not name.startswith("__")}
        self.assertEqual(set(variables), {"ONCE_STORE", "ONCE_METRICS"})
        self.assertIn("local.store", variables["ONCE_STORE"])
        self.assertEqual(module.one("output", "store")["value"], "${local.store}")

    def test_outputs_are_urls_that_the_program_takes(self):
        for name in ("cloudformation.yaml", "sam.yaml"):
            for flag, url in (("false", f"dynamodb://once?region={REGION}"),
                              ("true", f"dynamodb://once?region={REGION}&offload=s3://large/results?region={REGION}")):
                self.assertEqual(load(name, LargeResults=flag).outputs()["Store"], url)
                once("table", "create", "--store", url, "--dry-run")

    def test_a_drift_is_seen(self):
        """The comparison itself: one change in a template, and it differs."""
        text = (DEPLOY / "cloudformation.yaml").read_text()
        for old, new, look in (("AttributeName: expiration", "AttributeName: ttl", Template.table),
                               ("{AttributeName: open, AttributeType: S}", "{AttributeName: open, AttributeType: N}",
                                Template.table),
                               ("ProjectionType: ALL", "ProjectionType: KEYS_ONLY", Template.table),
                               ('"dynamodb:PutItem", ', "", Template.policy),
                               ("Resource: !GetAtt Table.Arn", 'Resource: "*"', Template.policy),
                               ("MetricName: once_unrecorded_total", "MetricName: once_unrecorded", Template.alarms),
                               ("MetricName: once_operations_total_held", "MetricName: once_held", Template.alarms),
                               ("- FILL(refused, 0)", "", Template.alarms),
                               ("TreatMissingData: breaching", "TreatMissingData: missing", Template.alarms),
                               ("Period: 600", "Period: 60", Template.alarms)):
            self.assertIn(old, text)
            self.assertNotEqual(look(Template(yaml.load(text.replace(old, new), Loader), AlarmFunction="pay")),
                                look(load("cloudformation.yaml", AlarmFunction="pay")), new)
        module = self.folder / "terraform"
        for old, new, look in (("expiration\"\n", "ttl\"\n", Module.table), ('projection_type = "ALL"', 'projection_type = "KEYS_ONLY"', Module.table),
                               ('"dynamodb:PutItem", ', "", Module.policy), ("/index/open", "/index/*", Module.policy),
                               ('"once_unrecorded_total"', '"once_unrecorded"', Module.alarms),
                               ('"once_operations_total_held"', '"once_held"', Module.alarms),
                               (', "FILL(held, 0)"', "", Module.alarms), ('"breaching"', '"missing"', Module.alarms),
                               ("period     = 600", "period     = 60", Module.alarms)):
            shutil.copytree(DEPLOY / "terraform", module)
            main = module / ("alarms.tf" if look == Module.alarms else "main.tf")
            self.assertIn(old, main.read_text())
            for file in module.glob("*.tf"):  # Its parts are compared with one another too.
                file.write_text(file.read_text().replace(old, new))
            self.assertNotEqual(look(Module(module, alarm_function="pay")), look(Module(alarm_function="pay")), new)
            shutil.rmtree(module)


class Functions(unittest.TestCase):
    """examples/lambda."""

    maxDiff = None

    def each(self, look):
        for path in FUNCTIONS:
            with self.subTest(function=path.parent.name):
                look(path, Template(yaml.load(path.read_text(), Loader)))

    def queue_behind(self, template, arn):
        """The queue for what failed: it is there, and keeps things as long as can be."""
        (name,) = [name for name in template.template["Resources"] if name == arn]
        properties = template.template["Resources"][name]["Properties"]
        self.assertEqual(properties["MessageRetentionPeriod"], 14 * 24 * 3600)

    def test_each_is_what_make_lambda_packs(self):
        def look(path, template):
            ((name, function),) = [(name, one) for name, one in template.template["Resources"].items()
                                   if one["Type"] == "AWS::Serverless::Function"]
            properties = function["Properties"]
            self.assertEqual(name, "Function")
            self.assertTrue(function["Metadata"]["SkipBuild"])
            self.assertEqual((properties["Runtime"], properties["Handler"]), ("provided.al2023", "bootstrap"))
            self.assertEqual((path.parent / properties["CodeUri"]).resolve(), ROOT / f"build/lambda/{path.parent.name}.zip")
            json.loads((path.parent / "event.json").read_text())
            self.assertIn(f"EXAMPLE={path.parent.name} ", path.read_text().splitlines()[0])

        self.assertEqual({path.parent.name for path in FUNCTIONS}, {"payment", "order_batch", "event_consumer"})
        self.each(look)

    def test_tables_are_what_the_program_makes_but_for_the_protection(self):
        def look(_, template):
            self.assertEqual(template.table(), table)
            self.assertEqual(template.template["Resources"]["Table"]["DeletionPolicy"], "Retain")
            self.assertEqual(template.resolve(template.template["Outputs"]["Store"]["Value"]),
                             f"dynamodb://once?region={REGION}")
            (function,) = template.resources("AWS::Serverless::Function")
            self.assertEqual(function["Environment"]["Variables"], {"ONCE_STORE": "dynamodb://once"})

        table = program_table()
        del table["DeletionProtectionEnabled"], table["PointInTimeRecoverySpecification"]
        self.each(look)

    def test_policies_are_the_least(self):
        self.each(lambda _, template: self.assertEqual(template.policy(), program_policy("worker", False)))

    def test_failed_messages_come_again_alone_and_end_in_a_queue(self):
        template = load("../examples/lambda/order_batch/template.yaml")
        (function,) = template.resources("AWS::Serverless::Function")
        (event,) = function["Events"].values()
        self.assertEqual((event["Type"], event["Properties"]["FunctionResponseTypes"]), ("SQS", ["ReportBatchItemFailures"]))
        queue = template.template["Resources"][event["Properties"]["Queue"]]["Properties"]
        self.assertGreaterEqual(queue["VisibilityTimeout"], 6 * function["Timeout"])
        redrive = template.resolve(queue["RedrivePolicy"])
        self.assertGreaterEqual(redrive["maxReceiveCount"], 2)
        self.queue_behind(template, redrive["deadLetterTargetArn"])

    def test_failed_events_end_in_a_queue(self):
        template = load("../examples/lambda/event_consumer/template.yaml")
        (function,) = template.resources("AWS::Serverless::Function")
        (event,) = function["Events"].values()
        self.queue_behind(template, event["Properties"]["DeadLetterConfig"]["Arn"])
        self.queue_behind(template, function["EventInvokeConfig"]["DestinationConfig"]["OnFailure"]["Destination"])

    def test_only_who_signs_may_pay(self):
        template = load("../examples/lambda/payment/template.yaml")
        (api,) = template.resources("AWS::Serverless::HttpApi")
        self.assertEqual(api["Auth"], {"EnableIamAuthorizer": True, "DefaultAuthorizer": "AWS_IAM"})


class Deployed(unittest.TestCase):
    """With moto, which carries out CloudFormation."""

    def test_a_stack_serves_the_program(self):
        with emulator.running() as endpoint:
            environment = emulator.environment(endpoint)
            aws = boto3.Session(environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"], region_name=REGION)
            stacks = aws.client("cloudformation", endpoint_url=endpoint)
            stacks.create_stack(StackName="once", TemplateBody=(DEPLOY / "cloudformation.yaml").read_text(),
                                Parameters=[{"ParameterKey": "LargeResults", "ParameterValue": "true"}])
            outputs = {one["OutputKey"]: one["OutputValue"]
                       for one in stacks.describe_stacks(StackName="once")["Stacks"][0]["Outputs"]}
            environment["ONCE_STORE"] = outputs["Store"]

            def run(*command, code=0):
                done = subprocess.run([PROGRAM, *command], env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, code, done.stderr + done.stdout)
                return done.stdout

            # moto leaves out the TTL that the template asks for (and its deletion protection).
            report = json.loads(run("table", "check", "--json", code=1))
            self.assertEqual([one["name"] for one in report["findings"] if one["grade"] == "lack"], ["ttl"])
            self.assertEqual(report["arn"], outputs["TableArn"])
            self.assertIn("already existed; its TTL was off and is now on", run("table", "create"))
            run("table", "check")
            with tempfile.TemporaryDirectory() as folder:
                output = os.urandom(800_000).hex()
                pathlib.Path(folder, "output").write_text(output)
                command = f"cd {folder}; echo ran >> runs; cat output"
                for _ in range(2):  # Too large for an item, and nothing to compress: by way of the bucket.
                    self.assertEqual(run("run", "--key", "large", "--", "sh", "-c", command), output)
                self.assertEqual(pathlib.Path(folder, "runs").read_text(), "ran\n")
            bucket = re.search(r"offload=s3://([^/]+)/results", outputs["Store"])[1]
            objects = aws.client("s3", endpoint_url=endpoint).list_objects_v2(Bucket=bucket)["Contents"]
            self.assertEqual([one["Key"].startswith("results/") for one in objects], [True])


    def test_the_counter_counts_what_the_program_counts(self):
        with emulator.running() as endpoint, tempfile.TemporaryDirectory() as folder:
            environment = emulator.environment(endpoint) | {
                "ONCE_STORE": "dynamodb://once", "TABLE": "once", "PYTHONPATH": str(DEPLOY / "terraform"),
                "PYTHONDONTWRITEBYTECODE": "1"}

            def run(*command, code=0):
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      timeout=300, check=False)
                self.assertEqual(done.returncode, code, done.stderr + done.stdout)
                return done.stdout

            def count():
                line = json.loads(run(PYTHON, "-c", "import open_records; open_records.handler({}, None)"))
                (about,) = line["_aws"]["CloudWatchMetrics"]
                self.assertEqual((about["Namespace"], about["Dimensions"], line["TableName"]), ("once", [["TableName"]], "once"))
                names = [one["Name"] for one in about["Metrics"]]
                self.assertEqual(names, ["once_records_overdue", "once_records_unknown"])
                return [line[name] for name in names]

            run(PROGRAM, "table", "create")
            self.assertEqual(count(), [0, 0])
            for number in range(12):  # In several partitions of the index.
                run(PROGRAM, "run", "--key", f"held-{number}", "--on-exit", "3=hold", "--", "sh", "-c", "exit 3", code=3)
                run(PROGRAM, "run", "--key", f"done-{number}", "--", "true")
            pipe = pathlib.Path(folder, "pipe")
            os.mkfifo(pipe)
            begun = [subprocess.Popen([PROGRAM, "run", "--key", key, *expect, "--", "cat", pipe], env=environment)
                     for key, expect in (("slow", ("--expect", "1ms")), ("patient", ("--expect", "1h")), ("plain", ()))]
            while len(json.loads(run(PROGRAM, "ls", "--state", "running", "--json"))) < len(begun):
                pass
            self.assertEqual(count(), [1, 12])
            for one in begun:
                one.kill()  # Its guard ends the command.
                one.wait()

    def test_cloudwatch_takes_the_alarms(self):
        """By its API, as moto's CloudFormation knows none: boto3 checks the names and types of all members."""
        wanted = load("cloudformation.yaml", AlarmFunction="pay", AlarmTopic=TOPIC_ARN).resources("AWS::CloudWatch::Alarm")
        with emulator.running() as endpoint:
            environment = emulator.environment(endpoint)
            alarms = boto3.client("cloudwatch", REGION, endpoint_url=endpoint,
                                  aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
                                  aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"])
            for one in wanted:
                alarms.put_metric_alarm(AlarmName=one["AlarmDescription"], **one)
            made = alarms.describe_alarms()["MetricAlarms"]
        self.assertEqual({(one["AlarmDescription"], *one["AlarmActions"]) for one in made},
                         {(one["AlarmDescription"], TOPIC_ARN) for one in wanted})
        self.assertEqual(len(made), 6)


class Linters(unittest.TestCase):
    def test_cfn_lint_finds_nothing_but_the_planted_fault(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as broken:
            broken.write((DEPLOY / "cloudformation.yaml").read_text().replace("KeyType: HASH", "KeyType: HUSH"))
            broken.flush()
            done = subprocess.run([pathlib.Path(PYTHON).parent / "cfn-lint", "--regions", REGION, "--format", "parseable",
                                   "--", DEPLOY / "cloudformation.yaml", DEPLOY / "sam.yaml", *FUNCTIONS, broken.name],
                                  check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
            found = done.stdout.splitlines()
            self.assertIn("HUSH", done.stdout)
            for line in found:
                self.assertTrue(line.startswith(broken.name), line)

    def test_terraform_refers_to_what_is_there_and_uses_what_it_declares(self):
        module = Module()
        text = "\n".join(re.sub(r"#.*", "", path.read_text()) for path in sorted((DEPLOY / "terraform").glob("*.tf")))
        declared = {f"var.{name}" for (name,), _ in module.all("variable")}
        declared |= {".".join(labels) for labels, _ in module.all("resource")}
        declared |= {"data." + ".".join(labels) for labels, _ in module.all("data")}
        used = set(re.findall(r"\bvar\.\w+|\bdata\.(?:aws|archive)_\w+\.\w+|(?<!data\.)\baws_\w+\.\w+", text))
        ends = {f"{kind}.{name}" for kind, name in (labels for labels, _ in module.all("resource"))
                if kind.startswith(("aws_s3_bucket_", "aws_cloudwatch_metric_alarm", "aws_cloudwatch_event_target",
                                    "aws_iam_role_policy", "aws_lambda_permission"))}  # Nothing refers to these.
        self.assertEqual(used, declared - ends)
        for (name,), body in module.all("variable"):
            self.assertLessEqual({"type", "default", "description"}, set(body), name)


# --- Prometheus


def promtool(*arguments):
    done = subprocess.run(["promtool", *arguments], cwd=ROOT / "tests/deploy", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout


class Alerts(unittest.TestCase):
    """They parse, fire when they should, ask for metrics that there are, and lead to a page."""
    rules = [rule for group in yaml.safe_load((DEPLOY / "prometheus/once.rules.yml").read_text())["groups"] for rule in group["rules"]]

    tests = ["once.rules.test.yml", "once.rules.week.test.yml"]

    def test_they_parse(self):
        promtool("check", "rules", DEPLOY / "prometheus/once.rules.yml")

    def test_they_fire_when_they_should(self):
        promtool("test", "rules", *self.tests)

    def test_each_is_seen_firing(self):
        fired = "".join((ROOT / "tests/deploy" / name).read_text() for name in self.tests)
        for rule in self.rules:
            self.assertIn(rule.get("alert", ""), fired)

    def test_there_are_such_metrics(self):
        metrics = set(re.findall(r"^\| `(once_\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.M))
        for rule in self.rules:
            self.assertLessEqual(set(re.findall(r"\bonce_\w+", rule["expr"])), metrics, rule)

    def test_each_leads_to_a_section_of_the_handbook(self):
        sections = handbook_sections()
        listed = {}
        for names, anchor in re.findall(r"^\| (`Once.+`) \| \[.+\]\((#.+)\) \|$", (ROOT / "docs/handbook.md").read_text(), re.M):
            listed |= {name: "docs/handbook.md" + anchor for name in re.findall(r"`(\w+)`", names)}
        led = {rule["alert"]: rule["annotations"]["handbook"] for rule in self.rules if "alert" in rule}
        self.assertEqual(listed, led)
        self.assertLessEqual(set(led.values()), set(sections))


class Dashboard(unittest.TestCase):
    """Grafana's: it asks for what docs/metrics.md names, for all of that, in expressions that Prometheus takes."""
    board = json.loads((DEPLOY / "grafana/once.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    sections = ("Operations", "Process", "Proxy", "Queues", "Shell", "Sweep", "Look at the store", "Store")
    known = {name: entry for section in sections for name, entry in metrics_page.documented(section).items()}

    @staticmethod
    def as_prometheus_sees_it(expression):
        for variable in re.findall(r"\$\w+", expression):
            expression = expression.replace(variable, {"$__rate_interval": "5m", "$__range": "6h"}.get(variable, ".*"))
        return expression

    def used(self, expression):
        """[(family, text of its matchers)]"""
        found = re.findall(r"\b((?:once|http|process)_\w+)(?:\{([^}]*)\})?", re.sub(r"\b(?:by|on) \([^)]*\)", "", expression))
        return [(re.sub("_(bucket|count|sum)$", "", name) if name not in self.known else name, matchers) for name, matchers in found]

    def test_prometheus_takes_each_expression(self):
        rules = [{"record": f"panel:{i}", "expr": self.as_prometheus_sees_it(one)} for i, one in enumerate(self.asked)]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)  # YAML too.
            file.flush()
            promtool("check", "rules", file.name)

    def test_there_are_such_metrics_labels_and_values(self):
        page = metrics_page.DOCS.read_text()
        for expression in self.asked:
            for name, matchers in self.used(expression):
                self.assertIn(name, self.known, expression)
                kind, labels = self.known[name]
                if kind == "counter":
                    self.assertRegex(expression, rf"(?:rate|increase)\({name}\b")
                for label, values in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
                    if label == "job":  # Prometheus' own.
                        continue
                    self.assertIn(label, labels, expression)
                    for value in () if values.startswith("$") else values.split("|"):
                        self.assertIn(f"`{value}`", page, expression)
            for label in {one for list_ in re.findall(r"by \(([^)]*)\)", expression) for one in list_.split(", ")} - {"le", "job"}:
                self.assertTrue(any(label in self.known[name][1] for name, _ in self.used(expression)), expression)

    def test_nothing_that_is_documented_is_left_out(self):
        shown = {name for expression in self.asked for name, _ in self.used(expression)}
        self.assertEqual(set(self.known) - shown, {"process_virtual_memory_bytes"})

    def test_each_panel_has_a_place_and_explains_itself(self):
        taken = set()
        for panel in self.board["panels"]:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells
        self.assertEqual(len({panel["id"] for panel in self.board["panels"]}), len(self.board["panels"]))
        headings = re.findall(r"^## (.*)$", (ROOT / "docs/handbook.md").read_text(), re.M)
        for panel in self.panels:
            self.assertTrue(panel["description"], panel["title"])
            for heading in re.findall(r"docs/handbook.md: ([^.]*)\.", panel["description"]):
                self.assertIn(heading, headings)

    def test_all_ask_the_source_that_was_chosen(self):
        sources = [one["datasource"] for panel in self.panels for one in (panel, *panel["targets"])]
        sources += [one["datasource"] for one in self.board["templating"]["list"] if one["type"] == "query"]
        self.assertEqual({json.dumps(one) for one in sources}, {'{"type": "prometheus", "uid": "${datasource}"}'})
        variables = self.board["templating"]["list"]
        defined = {one["name"] for one in variables}
        for expression in self.asked + [one["query"]["query"] for one in variables if one["type"] == "query"]:
            self.assertLessEqual(set(re.findall(r"\$(\w+)", expression)) - {"__rate_interval", "__range"}, defined)


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.exit(not result.wasSuccessful() or bool(result.skipped) or result.testsRun == 0)
