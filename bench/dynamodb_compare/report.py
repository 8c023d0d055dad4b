#!/usr/bin/env python3
"""The figures of compare.py as tables and as a picture, in docs/benchmarks.md and docs/images.

    report.py            writes both from docs/images/dynamodb_compare.json
    report.py --check    fails if they are not what that file says
"""
import json
import pathlib
import sys
import textwrap
from xml.sax.saxutils import escape

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs"
FIGURES = DOCS / "images" / "dynamodb_compare.json"
PICTURE = DOCS / "images" / "dynamodb_compare.svg"
PAGE = DOCS / "benchmarks.md"
BEGIN = "<!-- Written by bench/dynamodb_compare/report.py from here -->\n"
END = "<!-- to here. -->\n"

CLIENTS = {
    "once": "once",
    "once_dialect": "once, TypeScript's records",
    "typescript": "Powertools TypeScript",
    "python": "Powertools Python",
}
TRANSPORTS = {"tls": "Over TLS", "plain": "Over plain HTTP"}
SERVER_IS_FULL = 0.9  # Of one processor: it has one thread.


def grouped(value):
    """12 345; three digits at least of what is smaller."""
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


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
    lines = [
        f"| {TRANSPORTS[transport]} | " + " | ".join(CLIENTS.values()) + " |",
        "|---" * (len(CLIENTS) + 1) + "|",
    ]
    for text, value, more_is_better, rate in rows(figures):
        ours = value(measured["once"])
        cells = []
        for client in CLIENTS:
            theirs = value(measured[client])
            cell = grouped(theirs)
            if rate:
                cell += mark(measured[client][rate[0]][rate[1]])
            if not client.startswith("once"):
                cell += f" (**{grouped(ours / theirs if more_is_better else theirs / ours)}**)"
            cells.append(cell)
        lines.append(f"| {text} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def tables(figures):
    machine = figures["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    asked = {kind: {figures[t][c][m][kind]["requests"] for t in TRANSPORTS for c in CLIENTS for m in ("one", "many")}
             for kind in ("new", "replay")}
    requests = {kind: " to ".join(f"{number:g}" for number in sorted(numbers)) for kind, numbers in asked.items()}
    busy = machine["load_before"] > machine["processors"] / 4
    paragraphs = [
        "(**n**): that of once is n times better. *: the server had no more to give (one thread, at least"
        f" {SERVER_IS_FULL:.0%} of a processor), so the client could do more. Requests that the server counted, for every"
        f" client: {requests['new']} for a new call, {requests['replay']} for a replay.",
        f"{figures['date']}, {machine['processors']} processors ({machine['model']}), {machine['system']}. Load before:"
        f" {machine['load_before']:g}" + (", so only the ratios mean something" if busy else "") + f". Versions: {versions}."
        f" Calls in a round, of {figures['rounds']}: "
        + ", ".join(f"{count} ({CLIENTS[name]})" for name, count in figures["calls_a_round"].items())
        + ".",
    ]
    wrapped = [textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n" for text in paragraphs]
    return "\n".join([table(figures, transport) for transport in TRANSPORTS] + wrapped)


INK, FAINT, RULE, PAPER = "#1f2933", "#616e7c", "#d9dee4", "#fbfcfd"
COLOURS = {"once": "#0b7a5b", "typescript": "#7c9cc4", "python": "#d3b04c"}
WIDTH, MARGIN, GAP = 960, 28, 36
PANEL = (WIDTH - 2 * MARGIN - GAP) // 2
LABELS, VALUES, BAR, STEP = 146, 66, 16, 22


def panel(x, y, title, hint, groups):
    """A panel of horizontal bars from 0, and its height. groups: name (may be empty) -> client -> (value, mark)."""
    out = [
        f'<text x="{x}" y="{y + 14}" class="title">{escape(title)}</text>',
        f'<text x="{x + PANEL}" y="{y + 14}" class="hint" text-anchor="end">{escape(hint)}</text>',
    ]
    most = max(value for values in groups.values() for value, _ in values.values())
    at = y + 28
    axis_top = at
    for name, values in groups.items():
        if name:
            out.append(f'<text x="{x}" y="{at + 12}" class="group">{escape(name)}</text>')
            at += 20
        for client, (value, star) in values.items():
            length = max(1.5, value / most * (PANEL - LABELS - VALUES))
            middle = at + BAR - 4
            weight = ' font-weight="600"' if client == "once" else ""
            out += [
                f'<text x="{x + LABELS - 8}" y="{middle}" text-anchor="end"{weight}>{escape(CLIENTS[client])}</text>',
                f'<rect x="{x + LABELS}" y="{at}" width="{length:.1f}" height="{BAR}" fill="{COLOURS[client]}"/>',
                f'<text x="{x + LABELS + length + 6:.1f}" y="{middle}"{weight}>{grouped(value)}{star}</text>',
            ]
            at += STEP
        at += 6
    out.append(f'<line x1="{x + LABELS}" y1="{axis_top}" x2="{x + LABELS}" y2="{at - 8}" stroke="{INK}"/>')
    return out, at - y


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
    body = []
    y = 84
    for i in range(0, len(panels), 2):
        heights = []
        for x, (title, hint, groups) in zip((MARGIN, MARGIN + PANEL + GAP), panels[i : i + 2]):
            drawn, height = panel(x, y, title, hint, groups)
            body += drawn
            heights.append(height)
        y += max(heights) + 10
        if i + 2 < len(panels):
            body.append(f'<line x1="{MARGIN}" y1="{y}" x2="{WIDTH - MARGIN}" y2="{y}" stroke="{RULE}"/>')
        y += 18
    machine = figures["machine"]
    notes = [
        f"One process of a client, one DynamoDB server (a fake in memory, one thread) on the same machine, over TLS; a payload"
        f" of {figures['event_bytes']} bytes.",
        f"once {versions['once']}; Powertools TypeScript {versions['@aws-lambda-powertools/idempotency']}, node"
        f" {versions['node']}; Powertools {versions['aws-lambda-powertools']}, Python {versions['Python']}."
        f" {machine['processors']} processors, {machine['system']}, {figures['date']}.",
    ]
    if "*</text>" in "".join(body):
        notes.insert(0, "*: all that the server could give; the client could do more.")
    for line in notes:
        body.append(f'<text x="{MARGIN}" y="{y}" class="hint">{escape(line)}</text>')
        y += 17
    height = y + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="Helvetica, Arial, \'DejaVu Sans\', sans-serif" font-size="13" role="img">\n'
        "<title>once and Powertools for AWS Lambda on one DynamoDB server</title>\n"
        f"<style>text{{fill:{INK}}} .title{{font-size:15px;font-weight:600}} .hint{{fill:{FAINT};font-size:12px}}"
        f" .group{{fill:{FAINT}}}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>\n'
        f'<text x="{MARGIN}" y="40" font-size="20" font-weight="600">An idempotent call on DynamoDB: once and Powertools'
        " for AWS Lambda</text>\n"
        f'<text x="{MARGIN}" y="60" class="hint">New call: claim, handler, finish (2 requests).'
        " Replay: the stored result (1 request). Scales are linear, from 0.</text>\n"
        + "\n".join(body)
        + "\n</svg>\n"
    )


def page(figures):
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE} has lost the lines between which the tables stand: {BEGIN}{END}")
    return before + begin + "\n" + tables(figures) + "\n" + end + after


def write(figures):
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    PICTURE.write_text(picture(figures))
    PAGE.write_text(page(figures))


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    figures = json.loads(FIGURES.read_text())
    if not sys.argv[1:]:
        write(figures)
    elif PICTURE.read_text() != picture(figures) or PAGE.read_text() != page(figures):
        sys.exit(f"{PAGE} or {PICTURE} is not what {FIGURES} says; run bench/dynamodb_compare/report.py")


if __name__ == "__main__":
    main()
