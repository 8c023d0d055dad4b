# Counts the open records of a once store, and writes the counts as metrics (CloudWatch's embedded metric format).
import json
import os
import time

import boto3

PARTITIONS = 8  # index_shards of the store's URL.
NAMES = {"#open": "open", "#status": "status"}  # Both are reserved words.


def number(item, name, otherwise):
    return int(item[name]["N"]) if name in item else otherwise


def handler(event, context):
    query = boto3.client("dynamodb").get_paginator("query")
    now = int(time.time() * 1000)
    counts = {"once_records_overdue": 0, "once_records_unknown": 0}
    for partition in range(PARTITIONS):
        for page in query.paginate(TableName=os.environ["TABLE"], IndexName="open", KeyConditionExpression="#open = :open",
                                   ProjectionExpression="#status, expected_until, expires_at", ExpressionAttributeNames=NAMES,
                                   ExpressionAttributeValues={":open": {"S": str(partition)}}):
            for item in page["Items"]:
                status = item["status"]["S"]
                counts["once_records_unknown"] += status == "unknown"
                counts["once_records_overdue"] += (status == "in_progress" and number(item, "expected_until", now + 1) <= now
                                                   and number(item, "expires_at", now + 1) > now)
    metrics = [{"Name": name, "Unit": "Count"} for name in counts]
    about = {"Namespace": "once", "Dimensions": [["TableName"]], "Metrics": metrics}
    print(json.dumps({"_aws": {"Timestamp": now, "CloudWatchMetrics": [about]}, "TableName": os.environ["TABLE"], **counts}))
    return counts
