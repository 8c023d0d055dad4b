#!/usr/bin/env python3
"""pictures.py [--from FOLDER] [--write-docs]: a time line of what was done around each fault, of the histories that
the proof keeps (default: build/proof). Writes availability.json and availability.svg there; proof.py does so at its end.
--write-docs writes both into docs/images, the tables of that run into docs/proof.md, and what shows each planted bug into
proof/histories; so does `proof.py --page`."""
import argparse
import datetime
import json
import os
import pathlib
import sys
import tarfile
import tempfile
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "proof"), str(ROOT / "bench")]
import check  # noqa: E402
from figures import FAINT, INK, MARGIN, OURS, PAPER, RULE, WIDTH  # noqa: E402

IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "proof.md"
HISTORIES = ROOT / "proof" / "histories"
BEGIN, END = "<!-- {}, by proof/pictures.py -->\n", "<!-- to here. -->\n"
SHOWN = (
    "sqlite-kill", "sqlite-stop", "postgresql-server_kill", "postgresql-failover", "postgresql-partition",
    "postgresql-cut", "postgresql-pooler", "dynamodb-stop", "dynamodb-partition", "postgresql-proxy_server_kill",
    "postgresql-sqs_server_kill", "sqlite-power_cut", "postgresql-power_cut", "sqlite-full_disk", "postgresql-full_disk",
    "postgresql-restore", "postgresql-cut_off", "postgresql-lost_answers", "postgresql-bad_packets",
    "postgresql-standby_cut_off", "dynamodb-cut_off", "dynamodb-lost_answers", "dynamodb-bad_packets",
)
BUCKET_MS, MOST_S = 200, 20
FAULT, LABELS, STRIP, STEP = "#f3c5bd", 190, 34, 46


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def done_ns(folder):
    """When an operation of the store, a call or a message was done."""
    if (folder / "queue.jsonl").exists():
        return [line["t"] for line in lines(folder / "queue.jsonl") if "deleted" in line]
    if (folder / "callers.jsonl").exists():
        return [line["t"] for line in lines(folder / "callers.jsonl") if line.get("told") == "got"]
    return check.History(folder).done()


def faults_ns(folder):
    """Their beginnings and ends."""
    found, begun = [], None
    for line in lines(folder / "nemesis.log"):
        if "fault" in line:
            begun = line["t"]
        else:
            found.append((begun, line["t"]))
            begun = None
    return found + ([(begun, begun)] if begun else [])


def figures_of(folder):
    """From the first thing done to the last: what was done in each bucket, and when there were faults."""
    done, faults = sorted(done_ns(folder)), faults_ns(folder)
    if not done or not faults:
        return None
    first = done[0]
    buckets = min(MOST_S * 1000 // BUCKET_MS, (done[-1] - first) // (BUCKET_MS * 1_000_000) + 1)
    length_ms, counts = buckets * BUCKET_MS, [0] * buckets
    for at in done:
        if (bucket := (at - first) // (BUCKET_MS * 1_000_000)) < buckets:
            counts[bucket] += 1
    in_ms = [[(at - first) // 1_000_000 for at in fault] for fault in faults]
    return {"done": counts, "faults_ms": [[begin, min(end, length_ms)] for begin, end in in_ms if 0 <= begin < length_ms]}


def collect(source):
    figures = {}
    for name in SHOWN:
        archive = source / f"{name}.tar.xz"
        if archive.exists():
            with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as files:
                files.extractall(folder)
                found = figures_of(pathlib.Path(folder) / name)
            if found:
                figures[name] = found
    return figures


def picture(figures):
    width = WIDTH - 2 * MARGIN - LABELS

    def x(ms):
        return MARGIN + LABELS + ms / (MOST_S * 1000) * width

    body, top = [], 84
    for name, run in figures.items():
        store, fault = name.split("-")
        bottom, most = top + STRIP, max(run["done"])
        body += [f'<text x="{MARGIN}" y="{top + 14}" font-weight="600">{escape(store)}</text>',
                 f'<text x="{MARGIN}" y="{top + 30}" class="hint">{escape(fault.replace("_", " "))}</text>',
                 f'<text x="{MARGIN + LABELS - 8}" y="{top + 12}" class="hint" text-anchor="end">'
                 f'{most * 1000 // BUCKET_MS} a second</text>']
        for begin, end in run["faults_ms"]:
            body.append(f'<rect x="{x(begin):.1f}" y="{top}" width="{max(1.5, x(end) - x(begin)):.1f}" height="{STRIP}" '
                        f'fill="{FAULT}"/>')
        points = [f"M{x(0):.1f} {bottom}"]
        for bucket, count in enumerate(run["done"]):
            level = bottom - count / most * STRIP
            points.append(f"L{x(bucket * BUCKET_MS):.1f} {level:.1f}L{x((bucket + 1) * BUCKET_MS):.1f} {level:.1f}")
        points.append(f"L{x(len(run['done']) * BUCKET_MS):.1f} {bottom}Z")
        body += [f'<path d="{"".join(points)}" fill="{OURS}" fill-opacity="0.75"/>',
                 f'<line x1="{x(0):.1f}" y1="{bottom}" x2="{x(MOST_S * 1000):.1f}" y2="{bottom}" stroke="{RULE}"/>']
        top += STEP
    for second in range(0, MOST_S + 1, 5):
        body.append(f'<text x="{x(second * 1000):.1f}" y="{top + 10}" class="hint" text-anchor="middle">{second} s</text>')
    height = top + 26
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="Helvetica, Arial, \'DejaVu Sans\', sans-serif" font-size="13" role="img">\n'
        "<title>What was done around faults, by store and fault</title>\n"
        f"<style>text{{fill:{INK}}} .hint{{fill:{FAINT};font-size:12px}}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>\n'
        f'<text x="{MARGIN}" y="40" font-size="20" font-weight="600">What was done around faults</text>\n'
        f'<text x="{MARGIN}" y="60" class="hint">Finished operations of the store, calls of the proxy and deleted messages, '
        f'in {BUCKET_MS} ms each. Each strip has its own scale. Red: a fault lasts.</text>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def write(folder, figures):
    (folder / "availability.json").write_text(json.dumps(figures) + "\n")
    (folder / "availability.svg").write_text(picture(figures))


def said(source):
    """Which run it was."""
    seed = json.loads((source / "results.json").read_text())["seed"]
    day = datetime.date.fromtimestamp((source / "results.json").stat().st_mtime)
    return f"Seed {seed}, {day.day} {day:%B %Y}, {os.cpu_count()} processors, which others used too"


def with_tables(page, source):
    """The page, with the tables of the run in this folder."""
    runs, bugs = (source / "tables.md").read_text().strip().split("\n\n")
    for name, text in (("Runs", runs), ("Bugs", bugs)):
        text = f"{said(source)}:\n\n{text}"
        before, begin, rest = page.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise SystemExit(f"{PAGE} has lost the lines between which its tables stand: {BEGIN.format(name)}{END}")
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page


def write_docs(source, figures):
    PAGE.write_text(with_tables(PAGE.read_text(), source))
    write(IMAGES, figures)
    HISTORIES.mkdir(exist_ok=True)
    (HISTORIES / "planted.txt").write_text(f"{said(source)}.\n\n{(source / 'planted.txt').read_text()}")


def main():
    parser = argparse.ArgumentParser(prog="pictures.py", allow_abbrev=False)
    parser.add_argument("--from", dest="source", type=pathlib.Path, default=ROOT / "build" / "proof")
    parser.add_argument("--write-docs", action="store_true")
    asked = parser.parse_args()
    figures = collect(asked.source)
    if not figures:
        sys.exit(f"pictures.py: {asked.source} has no history that is drawn. Nothing was written.")
    if asked.write_docs:
        write_docs(asked.source, figures)
    write(asked.source, figures)


if __name__ == "__main__":
    main()
