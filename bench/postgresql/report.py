#!/usr/bin/env python3
"""The figures of compare.py as tables and as a picture, in docs/benchmarks.md and docs/images.

    report.py            writes both from docs/images/postgresql.json
    report.py --check    fails if they are not what that file says
"""
import pathlib
import sys

sys.dont_write_bytecode = True  # Beside the sources.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import figures as common  # noqa: E402
from figures import grouped  # noqa: E402

WHO = {"once": "once", "pgbench": "pgbench", "dbos": "DBOS Transact", "idemkit": "idemkit"}
COLOURS = {"once": common.OURS, "pgbench": "#616e7c", "dbos": "#7c9cc4", "idemkit": "#d3b04c"}
ROWS = {
    "per_second": "cycles/s",
    "client_us": "client CPU µs an operation",
    "server_us": "server CPU µs a cycle",
    "wal_bytes": "bytes of WAL a cycle",
    "transactions": "transactions a cycle",
}
BUSY = "so neither rates nor their ratios say much: see above. WAL, transactions and what is killed do"
KILLED = {
    "once": "once",
    "once_hold": "once, under hold",
    "dbos": "DBOS Transact",
    "dbos_restart": "DBOS Transact, the dead process started again",
    "idemkit": "idemkit",
}


def value(key, measured):
    if key == "transactions":
        return f"{measured[key]:.2f}"
    return grouped(measured[key])


def rates(figures, part, who):
    """Behind a rate: how many times that of another once has; the median of the ratios within the rounds."""
    for in_flight, measured in figures[part].items():
        if in_flight == "store":
            continue
        for key, text in ROWS.items():
            cells = [value(key, measured[name]) for name in who]
            if key == "per_second":
                cells = [cell + (f" (**{measured[name]['ratio']:.2f}**)" if "ratio" in measured[name] else "")
                         for name, cell in zip(who, cells)]
            yield [f"{in_flight} in flight: {text}" if key == "per_second" else f"... {text}", *cells]


def sizes(figures):
    for records, measured in figures["sizes"].items():
        yield [grouped(int(records)), grouped(measured["once"]["per_second"]), grouped(measured["pgbench"]["per_second"]),
               f"{measured['pgbench']['ratio']:.2f}", grouped(measured["once"]["wal_bytes"]),
               grouped(measured["pgbench"]["wal_bytes"])]


def targets(figures):
    def row(text, measured, target, more_is_better):
        met = measured >= target if more_is_better else measured <= target
        return [text, f"{measured:.2f}" if met else f"**{measured:.2f}**", f"{'at least' if more_is_better else 'at most'} {target}"]

    modes = figures["modes"]
    for in_flight, target in (("1", 0.95), ("16", 1.0), ("64", 1.25)):
        yield row(f"cycles/s to those of pgbench, {in_flight} in flight", modes[in_flight]["pgbench"]["ratio"], target, True)
    yield row("client CPU µs an operation, 64 in flight", modes["64"]["once"]["client_us"], 4, False)
    yield row("... by the store alone, without the engine", modes["store"]["client_us"], 4, False)
    yield row("WAL to that of pgbench, 64 in flight", modes["64"]["pgbench"]["wal_ratio"], 1.15, False)
    yield row("... one at a time", modes["1"]["pgbench"]["wal_ratio"], 1.15, False)
    ratios = [measured["pgbench"]["ratio"] for measured in figures["sizes"].values()]
    yield row("the best ratio of all sizes of the table to the worst", max(ratios) / min(ratios), 1.3, False)


def lanes(figures):
    for in_flight, measured in figures["lanes"].items():
        for count, its in measured.items():
            yield [f"{in_flight} in flight, {count}", grouped(its["per_second"]), f"{1 / its.get('ratio', 1):.2f}",
                   f"{its['client_us']:.1f}", grouped(its["server_us"]), f"{its['transactions']:.3f}"]


def killed(figures):
    for name, text in KILLED.items():
        it = figures["killed"][name]
        yield [text, str(it["keys"]), str(it["begun_before"]), str(it["twice"]), str(it["unanswered"]), grouped(it["seconds"])]


def tables(figures):
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    settings = ", ".join(f"`{name}={setting}`" for name, setting in figures["settings"].items())
    notes = [
        "(**n**): once makes n times as many cycles/s; the median of the ratios within the rounds. An operation is one of"
        f" the two of a cycle. Of all updates {figures['hot_updates']:.1%} were HOT.",
        f"{common.machine_words(figures, BUSY)} Load after: {figures['machine']['load_after']:g}. {figures['rounds']} rounds of"
        f" {figures['seconds']} s each. Server: {settings}. Versions: {versions}.",
    ]
    return "\n".join([
        common.table(["once and equal writes of pgbench", "once", "pgbench"], list(rates(figures, "modes", ("once", "pgbench")))),
        common.table(["records in the table, 64 in flight", "once, cycles/s", "pgbench, cycles/s", "ratio", "once, bytes of WAL",
                      "pgbench, bytes of WAL"], list(sizes(figures))),
        common.table(["once (**bold**: not met)", "measured", "target"], list(targets(figures))),
        *([common.table(["connections for writes", "cycles/s", "to one connection", "client CPU µs an operation",
                         "server CPU µs a cycle", "transactions a cycle"], list(lanes(figures)))] if "lanes" in figures else []),
        common.table(["the same cycles", *(WHO[name] for name in ("once", "dbos", "idemkit"))],
                     list(rates(figures, "libraries", ("once", "dbos", "idemkit")))),
        common.table(["a process with work in hand is killed", "keys", "begun by then", "ran twice", "without a result", "s"],
                     list(killed(figures))),
        *map(common.paragraph, notes),
    ])


def picture(figures):
    """SVG."""
    def modes(key):
        return {f"{mode} in flight": {name: (measured[name][key], "") for name in ("once", "pgbench")}
                for mode, measured in figures["modes"].items() if mode != "store"}

    def libraries(key):
        return {f"{mode} in flight": {name: (measured[name][key], "") for name in ("once", "dbos", "idemkit")}
                for mode, measured in figures["libraries"].items()}

    panels = [
        ("Cycles a second", "more is better", modes("per_second")),
        ("Server CPU of a cycle, µs", "less is better", modes("server_us")),
        ("64 in flight, by records in the table", "cycles a second",
         {grouped(int(records)): {name: (measured[name]["per_second"], "") for name in ("once", "pgbench")}
          for records, measured in figures["sizes"].items()}),
        ("WAL of a cycle, bytes", "less is better", modes("wal_bytes")),
        ("Cycles a second, other libraries", "more is better", libraries("per_second")),
        ("Client CPU of an operation, µs", "less is better", libraries("client_us")),
    ]
    versions, machine = figures["versions"], figures["machine"]

    def notes(_):
        yield ("Each cycle is a claim and its finish with a result of 100 bytes, both committed and synced. pgbench does the same"
               " INSERT and UPDATE, unconditionally.")
        yield (f"once {versions['once']}, PostgreSQL {versions['PostgreSQL']}, DBOS Transact {versions['@dbos-inc/dbos-sdk']} on"
               f" node {versions['node']}, idemkit {versions['idemkit']} on Python {versions['Python']}."
               f" {machine['processors']} processors for all, {machine['system']}, {figures['date']}.")

    return common.Drawing(WHO, COLOURS, ("once",)).svg(
        "once, pgbench and other libraries on one PostgreSQL server",
        "Claims and finishes on PostgreSQL: once, equal writes of pgbench, other libraries",
        "One server, fsync on. Rounds alternate. Scales are linear, from 0.", panels, notes)


REPORT = common.Report("postgresql", "bench/postgresql/report.py", tables, picture)

if __name__ == "__main__":
    REPORT.main(__doc__)
