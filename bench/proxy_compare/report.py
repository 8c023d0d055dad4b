#!/usr/bin/env python3
"""The figures of compare.py as tables and as a picture, in docs/benchmarks.md and docs/images.

    report.py            writes both from docs/images/proxy_compare.json
    report.py --check    fails if they are not what that file says
"""
import pathlib
import sys

sys.dont_write_bytecode = True  # Beside the sources.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import figures as common  # noqa: E402
from figures import grouped  # noqa: E402

PROXIES = {"nginx": "nginx", "haproxy": "haproxy", "once_memory": "once, in memory", "once_sqlite": "once, SQLite"}
COLOURS = {"nginx": "#7c9cc4", "haproxy": "#d3b04c", "once_memory": "#57b894", "once_sqlite": common.OURS}
CASES = {"none": "without a key", "new": "with a new key", "replay": "replayed"}
ROWS = {
    "per_second": ("requests/s", 1),
    "cpu_us": ("CPU µs a request", 1),
    "p50_us": ("ms, the median", 1000),
    "p99_us": ("ms, 99%", 1000),
}

# What is asked for: text, case, proxy, figure, target, whether more is better.
TARGETS = (
    ("requests without a key", "none", "once_memory", "per_second", 0.95, True),
    ("... their CPU", "none", "once_memory", "cpu_us", 1.1, False),
    ("requests with a new key, in memory", "new", "once_memory", "per_second", 0.85, True),
    ("requests with a new key, SQLite, durable", "new", "once_sqlite", "per_second", 0.45, True),
    ("... the time of 99% of them", "new", "once_sqlite", "p99_us", 4, False),
    ("replays, in memory", "replay", "once_memory", "per_second", 0.85, True),
    ("replays, SQLite", "replay", "once_sqlite", "per_second", 0.85, True),
)
LONE_TARGET_MS = 0.2


def rates(figures):
    """Behind a figure: its ratio to that of nginx in the same rounds."""
    for case, what in CASES.items():
        for key, (unit, scale) in ROWS.items():
            cells = []
            for proxy in PROXIES:
                measured = figures["cases"][case].get(proxy)
                if not measured:
                    cells.append("")
                elif proxy == "nginx":
                    cells.append(grouped(measured[key] / scale))
                else:
                    cells.append(f"{grouped(measured[key] / scale)} (**{measured['of_nginx'][key]:.2f}**)")
            yield [f"{what}: {unit}" if key == "per_second" else f"... {unit}", *cells]


def others(figures):
    yield ["a lone request with a new key, ms", *(f"{figures['lone_us'][p] / 1000:.2f}" for p in PROXIES)]
    memory = figures["memory"]
    yield ["KiB for an idle connection", *(grouped(memory[p]["idle_kib"]) for p in PROXIES)]
    yield ["KiB for a request with a key under way", *(grouped(memory[p]["in_flight_kib"]) for p in PROXIES)]


def targets(figures):
    for text, case, proxy, key, target, more_is_better in TARGETS:
        ratio = figures["cases"][case][proxy]["of_nginx"][key]
        met = ratio >= target if more_is_better else ratio <= target
        yield [text, f"{ratio:.2f}" if met else f"**{ratio:.2f}**", f"{'at least' if more_is_better else 'at most'} {target}"]
    beyond = figures["beyond_syncs_us"] / 1000
    text = f"{beyond:.2f}" if beyond <= LONE_TARGET_MS else f"**{beyond:.2f}**"
    if beyond < 0:  # Less than what it consists of.
        text = "the disk was too busy to tell"
    yield ["a lone request with a new key, SQLite: ms beyond no proxy and two durable syncs", text,
           f"at most {LONE_TARGET_MS}"]


def tables(figures):
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    notes = [
        "(**n**): the ratio to nginx, which passes the same requests on; the median of the ratios within the rounds.",
        f"A lone request takes {figures['lone_us']['direct'] / 1000:.2f} ms without a proxy, two durable syncs"
        f" (4 KiB appended and fdatasync, twice) {figures['two_syncs_us'] / 1000:.2f} ms.",
        f"{common.machine_words(figures)} Versions: {versions}. {figures['rounds']} rounds of {figures['seconds']} s for each"
        " proxy and kind of request.",
    ]
    return "\n".join([
        common.table([f"{figures['connections']} connections", *PROXIES.values()], list(rates(figures))),
        common.table(["one connection; memory", *PROXIES.values()], list(others(figures))),
        common.table(["ratio to nginx (**bold**: not met)", "measured", "target"], list(targets(figures))),
        *map(common.paragraph, notes),
    ])


def picture(figures):
    """SVG."""
    def groups(key, scale=1):
        return {what: {p: (figures["cases"][case][p][key] / scale, "") for p in PROXIES if p in figures["cases"][case]}
                for case, what in CASES.items()}

    panels = [
        ("Requests a second", "more is better", groups("per_second")),
        ("Processor time of a request, µs", "less is better", groups("cpu_us")),
        ("99% of answers within, ms", "less is better", groups("p99_us", 1000)),
        ("Memory of a request with a key under way, KiB", "less is better",
         {"": {p: (figures["memory"][p]["in_flight_kib"], "") for p in PROXIES}}),
    ]
    versions, machine = figures["versions"], figures["machine"]

    def notes(_):
        yield ("nginx and haproxy pass requests with keys on like all others. once claims, asks the service, stores the answer"
               " and gives it; SQLite syncs both to the disk.")
        yield (f"{figures['connections']} connections of wrk, POST of 200 bytes, on {machine['processors']} processors that wrk,"
               f" proxy and service share. once {versions['once']}, nginx {versions['nginx']},"
               f" haproxy {versions['haproxy']}. {figures['date']}.")

    return common.Drawing(PROXIES, COLOURS, ("once_memory", "once_sqlite")).svg(
        "once proxy, nginx and haproxy", "What idempotency costs: once proxy beside nginx and haproxy",
        "New key: claim, service, stored answer. Replayed: the stored answer. Scales are linear, from 0.", panels, notes)


REPORT = common.Report("proxy_compare", "bench/proxy_compare/report.py", tables, picture)

if __name__ == "__main__":
    REPORT.main(__doc__)
