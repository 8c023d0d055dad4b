#!/usr/bin/env python3
"""The figures of compare.py as tables and as a picture, in docs/benchmarks.md and docs/images.

    report.py            writes both from docs/images/lambda_compare.json
    report.py --check    fails if they are not what that file says
"""
import pathlib
import sys

sys.dont_write_bytecode = True  # Beside the sources.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import figures as common  # noqa: E402
from figures import grouped  # noqa: E402

FUNCTIONS = {"once": "once", "aws": "aws-lambda-cpp", "node": "Node, Powertools"}
COLOURS = {"once": common.OURS, "aws": "#d3b04c", "node": "#7c9cc4"}
STORES = {"memory": "the store in memory", "dynamodb": "DynamoDB over TLS"}


def times(ours, theirs):
    return f"{grouped(theirs)} (**{grouped(theirs / ours)}**)"


def tables(figures):
    rows = []

    def row(text, value):
        ours = value("once")
        rows.append([text, grouped(ours), *(times(ours, value(name)) for name in FUNCTIONS if name != "once")])

    for store, words in STORES.items():
        row(f"ms from start to the first response, {words}", lambda name, s=store: figures["start"][s][name]["start_ms"])
    for store, words in STORES.items():
        row(f"MiB then, {words}", lambda name, s=store: figures["start"][s][name]["rss_mib"])
    warm = figures["warm"]
    row("CPU µs of a warm invocation, the bare handler", lambda name: warm[name]["bare_cpu_us"])
    row("... a new call on DynamoDB over TLS", lambda name: warm[name]["idempotent_cpu_us"])
    compared = common.table(["", *FUNCTIONS.values()], rows)

    start = figures["start"]["dynamodb"]
    once = start["once"]
    batch = figures["batch_of_ten"]["round_trips"]
    largest = max(figures["zips_mb"].values())

    def target(text, value, unit, met, wanted):
        return [text, (value if met else f"**{value}**") + unit, wanted]

    ratio = start["node"]["start_ms"] / once["start_ms"]
    memory = max(figures["start"][store]["once"]["rss_mib"] for store in STORES)
    added = warm["once"]["added_cpu_us"]
    targets = common.table(["once (**bold**: not met)", "measured", "target"], [
        target("start to first response, DynamoDB over TLS", grouped(once["start_ms"]), " ms", once["start_ms"] <= 15,
               "at most 15 ms"),
        target("... beside Node", grouped(ratio), " times faster", ratio >= 12, "at least 12"),
        target("memory", grouped(memory), " MiB", memory <= 15, "at most 15 MiB"),
        target("CPU that being idempotent adds to a warm invocation", grouped(added), " µs", added <= 60, "at most 60 µs"),
        target(f"a batch of {figures['batch']} new messages", f"{batch:.2f}", " round trips", batch <= 2.5,
               "two round trips, not twenty"),
        target("the largest zip", f"{largest:.2f}", " MB", largest < 3, "under 3 MB"),
    ])
    zips = ", ".join(f"{name} {size:.2f} MB" for name, size in figures["zips_mb"].items())
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    paragraphs = [
        f"(**n**): that of once is n times less. Zips: {zips}. A round trip of the batch takes {figures['delay_ms']} ms.",
        f"{common.machine_words(figures)} Versions: {versions}. Medians of {figures['starts']} starts, and of"
        f" {figures['rounds']} rounds of {figures['invocations']} warm invocations.",
    ]
    return "\n".join([compared, targets, *map(common.paragraph, paragraphs)])


def picture(figures):
    """SVG."""
    start, warm = figures["start"], figures["warm"]

    def of(store, key):
        return {name: (start[store][name][key], "") for name in FUNCTIONS}

    panels = [
        ("From start to the first response, ms", "less is better",
         {words: of(store, "start_ms") for store, words in STORES.items()}),
        ("Memory then, MiB", "less is better", {words: of(store, "rss_mib") for store, words in STORES.items()}),
        ("Processor time of a warm invocation, µs", "less is better",
         {"the bare handler": {name: (warm[name]["bare_cpu_us"], "") for name in FUNCTIONS},
          "a new call on DynamoDB over TLS": {name: (warm[name]["idempotent_cpu_us"], "") for name in FUNCTIONS}}),
    ]
    versions, machine = figures["versions"], figures["machine"]

    def notes(_):
        yield ("One process of a function; a Runtime API and, where it says so, a DynamoDB server that always gives the same"
               " answer, on the same machine. aws-lambda-cpp has once's handler.")
        yield (f"once {versions['once']}; aws-lambda-cpp {versions['aws-lambda-cpp']}; Powertools TypeScript"
               f" {versions['@aws-lambda-powertools/idempotency']}, node {versions['node']}. {machine['processors']}"
               f" processors, {machine['system']}, {figures['date']}.")

    return common.Drawing(FUNCTIONS, COLOURS, ("once",)).svg(
        "An idempotent Lambda function: once, aws-lambda-cpp, and Node with Powertools",
        "An idempotent Lambda function: once, aws-lambda-cpp, and Node with Powertools",
        "Claim, handler, finish: two requests to DynamoDB. Scales are linear, from 0.", panels, notes)


REPORT = common.Report("lambda_compare", "bench/lambda_compare/report.py", tables, picture)

if __name__ == "__main__":
    REPORT.main(__doc__)
