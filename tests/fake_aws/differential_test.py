"""differential_test.py FAKE: random programs of DynamoDB calls, run with boto3 against moto and against the fake (the
program FAKE, which checks every signature of boto3's), must get the same answers. Neither is the service; where they agree is likely to be what it does, and
where they do not, one of them is wrong: KNOWN_FAULTS_OF_MOTO lists where it is moto, and why.

ONCE_TEST_SEED repeats a run, ONCE_TEST_PROGRAMS sets their number.
"""
import copy
import decimal
import itertools
import os
import pathlib
import random
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "real_servers"))
import emulator  # noqa: E402

if os.environ.get("ONCE_TEST_PYTHON") != "1":  # Once more, with the Python that has boto3.
    os.environ["ONCE_TEST_PYTHON"] = "1"
    python = emulator.python()
    os.execv(python, [python, *sys.argv])

import boto3  # noqa: E402
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

STEPS = 7
REGION, ACCESS_KEY, SECRET = "eu-central-1", "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def client(endpoint):
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET,
        # What boto3 would refuse or send again by itself is for the servers to judge.
        config=Config(retries={"total_max_attempts": 1}, parameter_validation=False),
    )


TABLE = {
    "BillingMode": "PAY_PER_REQUEST",
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    "AttributeDefinitions": [
        {"AttributeName": "pk", "AttributeType": "S"},
        {"AttributeName": "sk", "AttributeType": "N"},
        {"AttributeName": "kind", "AttributeType": "S"},
    ],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "by-kind",
            "KeySchema": [{"AttributeName": "kind", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            "Projection": {"ProjectionType": "ALL"},
        }
    ],
}


class Program:
    """Draws one call after another. Everything comes from the seed."""

    def __init__(self, seed, table):
        self.random = random.Random(seed)
        self.table = table

    def pick(self, *choices):
        return self.random.choice(choices)

    def chance(self, percent):
        return self.random.randrange(100) < percent

    def number(self):
        return {"N": self.pick("0", "1", "2", "-3", "10", "2.5", "1e3", "007", "12345678901234567890", "-0.125")}

    def compared_number(self):
        """Neither 1 nor 0, which moto takes for true and false."""
        return {"N": self.pick("2", "-3", "10", "2.5", "1e3", "007", "12345678901234567890", "-0.125")}

    def text(self):
        return {"S": self.pick("a", "ab", "b", "", "zebra", "é")}

    def scalar(self):
        return self.pick(self.number(), self.text(), {"BOOL": self.chance(50)}, {"NULL": True}, {"B": self.pick(b"\0", b"\xff\1")})

    def value(self):
        return self.pick(
            self.scalar(),
            self.number(),
            self.text(),
            {"SS": self.random.sample(["a", "b", "c"], self.random.randint(1, 3))},
            {"NS": self.random.sample(["1", "2", "2.5"], self.random.randint(1, 3))},
            {"L": [self.scalar() for _ in range(self.random.randint(0, 3))]},
            {"M": {name: self.scalar() for name in self.random.sample(["x", "y"], self.random.randint(0, 2))}},
        )

    def key(self):
        return {"pk": {"S": self.pick("p", "q")}, "sk": {"N": self.pick("1", "2", "10", "-1")}}

    def item(self):
        item = self.key()
        for name, make in (
            ("n", self.number), ("t", self.text), ("v", self.value), ("l", lambda: {"L": [self.scalar(), self.scalar()]}),
            ("m", lambda: {"M": {"x": self.scalar(), "y": {"L": [self.number()]}}}),
            ("ss", lambda: {"SS": ["a", "b"]}), ("ns", lambda: {"NS": ["1", "2"]}), ("kind", lambda: {"S": self.pick("k", "j")}),
        ):
            if self.chance(75):
                item[name] = make()
        return item

    def path(self):
        return self.pick("n", "t", "v", "l", "m", "ss", "ns", "kind", "absent", "l[0]", "l[1]", "m.x", "m.y[0]", "#v", "sk")

    def placeholder(self, value):
        name = f":v{len(self.values)}"
        self.values[name] = value
        return name

    def start(self):
        self.values = {}

    def finish(self, request, *texts):
        """Adds the placeholders that the expressions need."""
        if self.values:
            request["ExpressionAttributeValues"] = self.values
        if any("#v" in text for text in texts if text):
            request["ExpressionAttributeNames"] = {"#v": "v"}
        return request

    def leaf(self, paths):
        path = paths()
        comparison = self.random.randrange(10)
        if comparison < 2:
            value = self.pick(self.compared_number(), self.text(), self.value())
            if "NULL" in value or "BOOL" in value:  # moto takes an absent attribute for a null, and 1 for true.
                value = self.text()
            return f"{path} {self.pick('=', '<>')} {self.placeholder(value)}"
        if comparison < 4:  # Order within one type only: moto answers 500 for two.
            path, value = self.pick(("n", self.number()), ("t", self.text()), ("absent", self.number()))
            return f"{path} {self.pick('<', '<=', '>', '>=')} {self.placeholder(value)}"
        if comparison == 4:
            return f"attribute_exists({path})"
        if comparison == 5:
            return f"attribute_not_exists({path})"
        if comparison == 6:
            return f"begins_with({path}, {self.placeholder({'S': self.pick('a', 'z')})})"
        if comparison == 7:
            return f"contains({path}, {self.placeholder(self.pick({'S': 'a'}, {'N': '2'}))})"
        if comparison == 8:
            low, high = self.pick(("1", "5"), ("0", "0"), ("-10", "2"))
            return f"n BETWEEN {self.placeholder({'N': low})} AND {self.placeholder({'N': high})}"
        return f"{path} IN ({self.placeholder(self.compared_number())}, {self.placeholder(self.text())})"

    def condition(self, depth=0, paths=None):
        paths = paths or self.path
        if depth < 2 and self.chance(35):
            kind = self.pick("AND", "OR", "NOT")
            if kind == "NOT":
                return f"NOT ({self.condition(2, paths)})"
            return f"({self.condition(2, paths)}) {kind} {self.condition(depth + 1, paths)}"
        return self.leaf(paths)

    def operand(self, path):
        if path == "kind" and self.chance(80):  # The index takes nothing else.
            return self.placeholder({"S": "k"})
        return self.pick(
            lambda: self.placeholder(self.value()),
            lambda: self.path(),
            lambda: f"if_not_exists({path}, {self.placeholder(self.number())})",
            lambda: f"n {self.pick('+', '-')} {self.placeholder(self.number())}",
            lambda: f"if_not_exists(n, {self.placeholder({'N': '5'})}) + {self.placeholder(self.number())}",
            lambda: f"list_append(l, {self.placeholder({'L': [self.scalar()]})})",
            lambda: f"list_append({self.placeholder({'L': [self.scalar()]})}, l)",
        )()

    def update(self):
        targets = self.random.sample(["n", "t", "#v", "l[0]", "l[5]", "m.x", "m.z", "absent", "kind"], 3)
        parts = []
        if self.chance(75):
            chosen = targets[: self.random.randint(1, 2)]
            parts.append("SET " + ", ".join(f"{path} = {self.operand(path)}" for path in chosen))
        if self.chance(30):
            parts.append("REMOVE " + self.pick("t2", "ss", "m.y", "l[1]", targets[2]))
        if self.chance(25):
            parts.append("ADD " + self.pick(f"ns {self.placeholder({'NS': ['2', '7']})}", f"count1 {self.placeholder(self.number())}"))
        if self.chance(25):
            parts.append("DELETE s2 " + self.placeholder({"SS": ["a", "q"]}))
        return " ".join(parts) or "REMOVE t2"

    def fill(self):
        """Something to begin with, so that most of what follows finds an item."""
        items = [self.item() | {"pk": {"S": pk}, "sk": {"N": sk}} for pk in "pq" for sk in ("1", "2", "10")]
        puts = [{"Put": {"TableName": self.table, "Item": item}} for item in items]
        return "transact_write_items", {"TransactItems": puts}

    def next(self):
        self.start()
        kind = self.random.randrange(100)
        base = {"TableName": self.table}
        on_failure = {"ReturnValuesOnConditionCheckFailure": self.pick("ALL_OLD", "NONE")}
        condition = self.condition() if self.chance(45) else None
        if kind < 30:
            request = base | {"Item": self.item(), "ReturnValues": self.pick("NONE", "ALL_OLD")}
            if condition:
                request |= {"ConditionExpression": condition} | on_failure
            return "put_item", self.finish(request, condition)
        if kind < 55:
            update = self.update()
            request = base | {
                "Key": self.key(),
                "UpdateExpression": update,
                "ReturnValues": self.pick("NONE", "ALL_OLD", "ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"),
            }
            if condition:
                request |= {"ConditionExpression": condition} | on_failure
            return "update_item", self.finish(request, condition, update)
        if kind < 63:
            request = base | {"Key": self.key(), "ReturnValues": self.pick("NONE", "ALL_OLD")}
            if condition:
                request |= {"ConditionExpression": condition} | on_failure
            return "delete_item", self.finish(request, condition)
        self.start()  # The condition is not used below.
        if kind < 72:
            request = base | {"Key": self.key(), "ConsistentRead": True}
            projection = None
            if self.chance(50):
                projection = ", ".join(self.random.sample(["n", "t", "#v", "l[0]", "m.x", "absent", "ss"], 2))
                request["ProjectionExpression"] = projection
            return "get_item", self.finish(request, projection)
        if kind < 85:
            indexed = self.chance(40)
            hash_key, value = ("kind", self.pick("k", "j")) if indexed else ("pk", self.pick("p", "q"))
            text = f"{hash_key} = {self.placeholder({'S': value})}"
            if self.chance(50):
                low, high = self.pick(("1", "5"), ("0", "10"))
                text += " AND " + self.pick(
                    lambda: f"sk {self.pick('=', '<', '<=', '>', '>=')} {self.placeholder({'N': low})}",
                    lambda: f"sk BETWEEN {self.placeholder({'N': low})} AND {self.placeholder({'N': high})}",
                )()
            request = base | {"KeyConditionExpression": text, "ScanIndexForward": self.chance(50)}
            if indexed:
                request["IndexName"] = "by-kind"
            filter_text = None
            if self.chance(40):
                filter_text = self.condition(paths=lambda: self.pick("n", "t", "#v", "l[0]", "m.x", "absent", "ss"))
                request["FilterExpression"] = filter_text
            return "query", self.finish(request, text, filter_text)
        if kind < 91:
            request = dict(base)
            filter_text = None
            if self.chance(60):
                filter_text = self.condition()
                request["FilterExpression"] = filter_text
            return "scan", self.finish(request, filter_text)
        items = []
        for pk, sk in self.random.sample([(p, s) for p in "pq" for s in ("1", "2", "10", "-1")], self.random.randint(1, 3)):
            self.start()
            key = {"pk": {"S": pk}, "sk": {"N": sk}}
            action = self.pick("Put", "Update", "Delete", "ConditionCheck")
            part = dict(base) | on_failure
            part |= {"Item": self.item() | key} if action == "Put" else {"Key": key}
            texts = []
            if action == "Update":
                part["UpdateExpression"] = f"SET n = {self.placeholder(self.number())}"
            if action == "ConditionCheck" or self.chance(50):
                part["ConditionExpression"] = self.condition()
                texts.append(part["ConditionExpression"])
            items.append({action: self.finish(part, *texts)})
        return "transact_write_items", {"TransactItems": items}


def canonical(value):
    """Sets have no order; moto keeps numbers as they were written, where the service normalises them."""
    if isinstance(value, dict):
        if len(value) == 1:
            (kind, held), = value.items()
            if kind == "N":
                return {"N": decimal.Decimal(held)}
            if kind == "NS":
                return {"NS": sorted(map(decimal.Decimal, held))}
            if kind in ("SS", "BS"):
                return {kind: sorted(held)}
        return {name: canonical(part) for name, part in value.items()}
    if isinstance(value, list):
        return [canonical(part) for part in value]
    return value


def ask(service, operation, request):
    try:
        answer = getattr(service, operation)(**request)
    except ClientError as error:
        answer = error.response
    answer = {name: part for name, part in answer.items() if name in KEPT and (name, part) != ("Attributes", {})}
    if "Error" in answer:
        answer["Error"] = answer["Error"]["Code"]
    if operation == "scan" and "Items" in answer:
        answer["Items"].sort(key=lambda item: (item["pk"]["S"], float(item["sk"]["N"])))
    for reason in answer.get("CancellationReasons", []):
        reason.pop("Message", None)
    return canonical(answer)


KEPT = ("Error", "Item", "Items", "Attributes", "Count", "ScannedCount", "LastEvaluatedKey", "CancellationReasons")


def is_difference(operation, request, moto, fake):
    return (
        operation == "update_item"
        and request["ReturnValues"].startswith("UPDATED_")
        and {**moto, "Attributes": None} == {**fake, "Attributes": None}
    )


# What it is; whether it applies to this call and these answers; whether both hold the same items afterwards.
KNOWN_FAULTS_OF_MOTO = [
    (
        "UPDATED_OLD and UPDATED_NEW compare the items: the key of a new one is in, unchanged attributes are not, and of a "
        "list or map the whole is shown although a part was updated",
        is_difference,
        True,
    ),
    (
        "fails: with 500, or with the name of a Python exception in a transaction",
        lambda operation, request, moto, fake: moto.get("Error") == "500"
        or any(reason["Code"] == "TypeError" for reason in moto.get("CancellationReasons", [])),
        False,
    ),
    (
        "refuses to read a key attribute in an update",
        lambda operation, request, moto, fake: operation == "update_item"
        and "= sk" in request["UpdateExpression"]
        and moto == {"Error": "ValidationException"},
        False,
    ),
]


def explained(operation, request, moto, fake):
    return next(((what, same) for what, applies, same in KNOWN_FAULTS_OF_MOTO if applies(operation, request, moto, fake)), None)


def run(seed, moto, fake, seen):
    table = f"program-{seed}"
    for service in (moto, fake):
        service.create_table(TableName=table, **TABLE)
    program = Program(seed, table)
    calls = itertools.chain([program.fill()], (program.next() for _ in range(STEPS)))
    for step, (operation, request) in enumerate(calls):
        from_moto, from_fake = (ask(service, operation, copy.deepcopy(request)) for service in (moto, fake))
        if from_moto == from_fake:
            seen[operation, from_fake.get("Error", "good")] = seen.get((operation, from_fake.get("Error", "good")), 0) + 1
            continue
        why = explained(operation, request, from_moto, from_fake)
        if why is None:
            return f"program {seed}, step {step}: {operation} {request}\n  moto: {from_moto}\n  fake: {from_fake}"
        what, same_items = why
        seen["moto", what] = seen.get(("moto", what), 0) + 1
        if not same_items:
            return None  # They go separate ways from here.
    return None


def main():
    first = int(os.environ.get("ONCE_TEST_SEED", "1"))
    programs = int(os.environ.get("ONCE_TEST_PROGRAMS", "200"))
    seen = {}
    differences = []
    with emulator.running() as endpoint:
        server = subprocess.Popen(
            [sys.argv[1], "--until-eof", "--access-key", ACCESS_KEY, "--secret", SECRET, "--region", REGION],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            services = client(endpoint), client(server.stdout.readline().strip())
            for seed in range(first, first + programs):
                difference = run(seed, *services, seen)
                if difference:
                    differences.append(difference)
        finally:
            server.stdin.close()
            ended = server.wait(timeout=10)
            server.stdout.close()
    for what, count in sorted(seen.items()):
        print(f"{count:6} {what[0]}: {what[1]}")
    for difference in differences[:20]:
        print(difference)
    print(f"{len(differences)} differences in {programs} programs")
    return bool(differences) or ended != 0


if __name__ == "__main__":
    sys.exit(main())
