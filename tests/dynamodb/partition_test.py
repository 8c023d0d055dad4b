#!/usr/bin/env python3
"""partition_test.py PARTITION_PROCESS: one client of several is cut off from DynamoDB, a fake one. See partition.py."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
import partition  # noqa: E402

STORE = "dynamodb://records?region=eu-central-1&request_timeout=400ms&operation_timeout=600ms&endpoint="


def value(attribute):
    return None if attribute is None else next(iter(attribute.values()))


def writes_of(lines):
    """What the service did with each write, worked out from the requests alone, in their order."""
    table = {}
    for line in lines:
        if line["event"] != "request" or line["operation"] not in ("PutItem", "DeleteItem"):
            continue
        body = line["body"]
        item = body.get("Item")
        key = value((item or body["Key"])["id"]).lstrip("#")
        before = table.get(key)
        values = body.get("ExpressionAttributeValues", {}).values()
        named = {next(iter(v)): value(v) for v in values}  # The owner is an S, the revision an N.
        if body["ConditionExpression"].startswith("attribute_not_exists"):
            landed = before is None
        else:
            landed = before is not None and (before["owner"], before["revision"]) == (named["S"], named["N"])
        record = {name: value(attribute) for name, attribute in (item or {}).items()}
        yield partition.Write(
            line["now"], line["operation"] == "DeleteItem", key, record.get("owner", named.get("S")),
            record.get("holder"), int(record.get("attempt", 0)), record.get("status"),
            int(record.get("lease_until", 0)), record.get("data"), landed, before)
        if landed:
            table[key] = record


class DynamoDb(partition.World):
    def serve(self):
        server = self.add_process("server", self.add_host("server", partition.SERVER), "serve", partition.SERVER)
        self.endpoint = server.wait("serving")["url"]
        return STORE + self.endpoint

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return dict(kept, AWS_ACCESS_KEY_ID="AKIAIOSFODNN7EXAMPLE", AWS_SECRET_ACCESS_KEY="secret")

    def arrived(self, key, status):
        self.told.wait(f"{status} {key}", lambda line: line["event"] == "request" and line["operation"] == "PutItem"
                       and key in value(line["body"]["Item"]["id"]) and value(line["body"]["Item"]["status"]) == status)

    def writes(self):
        return writes_of(self.told.lines)

    def play_more(self, victims):
        """No name server can be asked in here."""
        port = self.endpoint[self.endpoint.rindex(":"):]
        lost = self.add_worker("lost", self.hosts[1], f"{STORE}http://dynamodb.invalid{port}")
        lost.command("run nowhere")
        answer = lost.wait("told", "nowhere")
        assert (answer["how"], answer["kind"]) == ("error", "unavailable"), answer
        assert "cannot be resolved" in answer["error"], answer

    def check_more(self, victims, charges, late):
        assert "nowhere" not in charges
        for victim in victims:
            assert late[victim.work_key] >= 1, f"nobody was refused: {late}"
        print(f"{sum(late.values())} late writes refused")


if __name__ == "__main__":
    partition.enter_namespace()
    partition.main(DynamoDb)
