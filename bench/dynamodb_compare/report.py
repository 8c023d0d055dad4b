#!/usr/bin/env python3
"""The figures of compare.py as tables and as a picture, in docs/benchmarks.md and docs/images.

    report.py            writes both from docs/images/dynamodb_compare.json
    report.py --check    fails if they are not what that file says
"""
import pathlib
import sys

sys.dont_write_bytecode = True  # Beside the sources.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import figures as common  # noqa: E402
from figures import grouped  # noqa: E402

CLIENTS = {
    "once": "once",
    "once_dialect": "once, TypeScript's records",
    "typescript": "Powertools TypeScript",
    "python": "Powertools Python",
}
TRANSPORTS = {"tls": "Over TLS", "plain": "Over plain HTTP"}
SERVER_IS_FULL = 0.9  # Of one processor: it has one thread.
COLOURS = {"once": common.OURS, "typescript": "#7c9cc4", "python": "#d3b04c"}


def mark(call):
    """What stands behind a rate that was the server's limit."""
    return "*" if call["server_busy"] >= SERVER_IS_FULL else ""


def rows(figures):
    """What is told: (text, value of a client's figures, whether more is better, mode and kind if it is a rate)."""
    modes = {"one": "one at a time", "many": f"{figures['in_flight']} in flight"}
    kinds = {"new": "new calls", "replay": "replays"}
    for mode, how in modes.items():
        for kind, what in kinds.items():
            yield f"{what}/s, {how}", lambda f, m=mode, k=kind: f[m][k]["per_second"], True, (mode, kind)
    for mode, how in modes.items():
        for kind, what in {"new": "new call", "replay": "replay"}.items():
            yield f"CPU µs a {what}, {how}", lambda f, m=mode, k=kind: f[m][k]["cpu_us"], False, None
    yield "ms from start to the first finished call", lambda f: f["start_ms"], False, None
    yield "MiB then", lambda f: f["start_mib"], False, None
    yield "MiB at the most, in the whole run", lambda f: f["peak_mib"], False, None


def table(figures, transport):
    """Markdown. Behind a peer's figure: how many times better that of once is."""
    measured = figures[transport]
    lines = []
    for text, value, more_is_better, rate in rows(figures):
        ours = value(measured["once"])
        cells = [text]
        for client in CLIENTS:
            theirs = value(measured[client])
            cell = grouped(theirs)
            if rate:
                cell += mark(measured[client][rate[0]][rate[1]])
            if not client.startswith("once"):
                cell += f" (**{grouped(ours / theirs if more_is_better else theirs / ours)}**)"
            cells.append(cell)
        lines.append(cells)
    return common.table([TRANSPORTS[transport], *CLIENTS.values()], lines)


def tables(figures):
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    asked = {kind: {figures[t][c][m][kind]["requests"] for t in TRANSPORTS for c in CLIENTS for m in ("one", "many")}
             for kind in ("new", "replay")}
    requests = {kind: " to ".join(f"{number:g}" for number in sorted(numbers)) for kind, numbers in asked.items()}
    paragraphs = [
        "(**n**): that of once is n times better. *: the server had no more to give (one thread, at least"
        f" {SERVER_IS_FULL:.0%} of a processor), so the client could do more. Requests that the server counted, for every"
        f" client: {requests['new']} for a new call, {requests['replay']} for a replay.",
        f"{common.machine_words(figures)} Versions: {versions}."
        f" Calls in a round, of {figures['rounds']}: "
        + ", ".join(f"{count} ({CLIENTS[name]})" for name, count in figures["calls_a_round"].items())
        + ".",
    ]
    return "\n".join([table(figures, transport) for transport in TRANSPORTS] + list(map(common.paragraph, paragraphs)))


def picture(figures):
    """SVG."""
    measured = figures["tls"]
    modes = {"one at a time": "one", f"{figures['in_flight']} in flight": "many"}

    def rate(kind):
        calls = {name: {c: measured[c][mode][kind] for c in COLOURS} for name, mode in modes.items()}
        return {name: {c: (f["per_second"], mark(f)) for c, f in clients.items()} for name, clients in calls.items()}

    def cpu(kind):
        return {name: {c: (measured[c][mode][kind]["cpu_us"], "") for c in COLOURS} for name, mode in modes.items()}

    def single(key):
        return {"": {c: (measured[c][key], "") for c in COLOURS}}

    panels = [
        ("New calls a second", "more is better", rate("new")),
        ("Replays a second", "more is better", rate("replay")),
        ("Processor time of a new call, µs", "less is better", cpu("new")),
        ("Processor time of a replay, µs", "less is better", cpu("replay")),
        ("From start to the first finished call, ms", "less is better", single("start_ms")),
        ("Memory at the most, MiB", "less is better", single("peak_mib")),
    ]
    versions = figures["versions"]
    machine = figures["machine"]

    def notes(drawn):
        if "*</text>" in drawn:
            yield "*: all that the server could give; the client could do more."
        yield (f"One process of a client, one DynamoDB server (a fake in memory, one thread) on the same machine, over TLS; a"
               f" payload of {figures['event_bytes']} bytes.")
        yield (f"once {versions['once']}; Powertools TypeScript {versions['@aws-lambda-powertools/idempotency']}, node"
               f" {versions['node']}; Powertools {versions['aws-lambda-powertools']}, Python {versions['Python']}."
               f" {machine['processors']} processors, {machine['system']}, {figures['date']}.")

    return common.Drawing(CLIENTS, COLOURS, ("once",)).svg(
        "once and Powertools for AWS Lambda on one DynamoDB server",
        "An idempotent call on DynamoDB: once and Powertools for AWS Lambda",
        "New call: claim, handler, finish (2 requests). Replay: the stored result (1 request). Scales are linear, from 0.",
        panels, notes)


REPORT = common.Report("dynamodb_compare", "bench/dynamodb_compare/report.py", tables, picture)

if __name__ == "__main__":
    REPORT.main(__doc__)
