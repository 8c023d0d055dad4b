"""What the comparisons with others have in common: the machine, medians, and a page with tables and a picture in docs/."""
import json
import os
import pathlib
import platform
import statistics
import sys
import textwrap
from xml.sax.saxutils import escape

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"

INK, FAINT, RULE, PAPER = "#1f2933", "#616e7c", "#d9dee4", "#fbfcfd"
OURS = "#0b7a5b"
WIDTH, MARGIN, GAP = 960, 28, 36
PANEL = (WIDTH - 2 * MARGIN - GAP) // 2
LABELS, VALUES, BAR, STEP = 146, 66, 16, 22


def add_options(parser):
    parser.add_argument("--quick", action="store_true", help="short: to see that it works")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON rather than as tables")
    parser.add_argument("--write-docs", action="store_true", help="write figures, picture and tables into docs/ as well")


def parse(parser):
    options = parser.parse_args()
    if options.quick and options.write_docs:
        parser.error("--quick is too short for the documents")
    return options


def median(values):
    return round(statistics.median(values), 2)


def grouped(value):
    """12 345; three digits at least of what is smaller."""
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def machine():
    model = [line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processors": os.cpu_count(),
        "model": model[0].partition(":")[2].strip() if model else platform.machine(),
        "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        "load_before": round(os.getloadavg()[0], 1),
    }


def machine_words(figures, if_busy="so only the ratios mean something"):
    it = figures["machine"]
    busy = it["load_before"] > it["processors"] / 4
    return (f"{figures['date']}, {it['processors']} processors ({it['model']}), {it['system']}. Load before:"
            f" {it['load_before']:g}" + (f", {if_busy}" if busy else "") + ".")


def table(head, rows):
    """Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines) + "\n"


def paragraph(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


class Report:
    """NAME.json and NAME.svg in docs/images, and what stands between two lines of docs/benchmarks.md.

    `tables` and `picture` make Markdown and SVG of figures. script: the one that has them, as the lines name it."""

    def __init__(self, name, script, tables, picture):
        self.figures = DOCS / "images" / f"{name}.json"
        self.image = DOCS / "images" / f"{name}.svg"
        self.begin = f"<!-- Written by {script} from here -->\n"
        self.script = script
        self.tables = tables
        self.picture = picture

    def page(self, figures):
        end_line = "<!-- to here. -->\n"
        before, begin, rest = PAGE.read_text().partition(self.begin)
        _, end, after = rest.partition(end_line)
        if not (begin and end):
            raise SystemExit(f"{PAGE} has lost the lines between which the tables stand: {self.begin}{end_line}")
        return before + begin + "\n" + self.tables(figures) + "\n" + end + after

    def write(self, figures):
        self.figures.parent.mkdir(exist_ok=True)
        self.figures.write_text(json.dumps(figures, indent=1) + "\n")
        self.image.write_text(self.picture(figures))
        PAGE.write_text(self.page(figures))

    def main(self, usage):
        """Writes picture and page anew, or fails with --check if they are not what the figures say."""
        if sys.argv[1:] not in ([], ["--check"]):
            sys.exit(usage)
        figures = json.loads(self.figures.read_text())
        if not sys.argv[1:]:
            self.write(figures)
        elif self.image.read_text() != self.picture(figures) or PAGE.read_text() != self.page(figures):
            sys.exit(f"{PAGE} or {self.image} is not what {self.figures} says; run {self.script}")


class Drawing:
    """Panels of horizontal bars from 0, two beside each other. names, colours: of what is compared; ours: drawn in bold."""

    def __init__(self, names, colours, ours):
        self.names = names
        self.colours = colours
        self.ours = ours

    def panel(self, x, y, title, hint, groups):
        """A panel and its height. groups: name (may be empty) -> who -> (value, mark behind it)."""
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
            for who, (value, star) in values.items():
                length = max(1.5, value / most * (PANEL - LABELS - VALUES))
                middle = at + BAR - 4
                weight = ' font-weight="600"' if who in self.ours else ""
                out += [
                    f'<text x="{x + LABELS - 8}" y="{middle}" text-anchor="end"{weight}>{escape(self.names[who])}</text>',
                    f'<rect x="{x + LABELS}" y="{at}" width="{length:.1f}" height="{BAR}" fill="{self.colours[who]}"/>',
                    f'<text x="{x + LABELS + length + 6:.1f}" y="{middle}"{weight}>{grouped(value)}{star}</text>',
                ]
                at += STEP
            at += 6
        out.append(f'<line x1="{x + LABELS}" y1="{axis_top}" x2="{x + LABELS}" y2="{at - 8}" stroke="{INK}"/>')
        return out, at - y

    def svg(self, title, headline, hint, panels, notes):
        """panels: (title, hint, groups), see panel(). notes: gets what was drawn, gives lines of text below it."""
        body = []
        y = 84
        for i in range(0, len(panels), 2):
            heights = []
            for x, (name, what, groups) in zip((MARGIN, MARGIN + PANEL + GAP), panels[i : i + 2]):
                drawn, height = self.panel(x, y, name, what, groups)
                body += drawn
                heights.append(height)
            y += max(heights) + 10
            if i + 2 < len(panels):
                body.append(f'<line x1="{MARGIN}" y1="{y}" x2="{WIDTH - MARGIN}" y2="{y}" stroke="{RULE}"/>')
            y += 18
        for line in notes("".join(body)):
            body.append(f'<text x="{MARGIN}" y="{y}" class="hint">{escape(line)}</text>')
            y += 17
        height = y + 6
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
            ' font-family="Helvetica, Arial, \'DejaVu Sans\', sans-serif" font-size="13" role="img">\n'
            f"<title>{escape(title)}</title>\n"
            f"<style>text{{fill:{INK}}} .title{{font-size:15px;font-weight:600}} .hint{{fill:{FAINT};font-size:12px}}"
            f" .group{{fill:{FAINT}}}</style>\n"
            f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>\n'
            f'<text x="{MARGIN}" y="40" font-size="20" font-weight="600">{escape(headline)}</text>\n'
            f'<text x="{MARGIN}" y="60" class="hint">{escape(hint)}</text>\n'
            + "\n".join(body)
            + "\n</svg>\n"
        )
