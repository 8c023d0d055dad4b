"""Reads a page of metrics as strictly as the format is written, and compares it with docs/metrics.md.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs/metrics.md"
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?)")


def parse(text):
    """{family: (type, {(name, labels): value})}, where labels are a tuple of pairs. AssertionError: it is not a page."""
    families = {}
    family = None
    lines = text.split("\n")
    assert lines.pop() == "", "the last line has no end"
    for line in lines:
        if line.startswith("# HELP "):
            family = line.split()[2]
            assert family not in families and len(line.split()) > 3, line
            families[family] = (None, {})
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family and families[family] == (None, {}), line
            assert kind in ("counter", "gauge", "histogram"), line
            assert (kind == "counter") == name.endswith("_total"), line
            families[family] = (kind, {})
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            kind, samples = families[family]
            name, labels = match[1], tuple(re.findall(LABEL, match[2] or ""))
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert kind and name in [family + suffix for suffix in suffixes], line
            assert len({label for label, _ in labels}) == len(labels) and (name, labels) not in samples, line
            samples[name, labels] = float(match[7])
    for family, (kind, samples) in families.items():
        if kind == "histogram":
            check_histogram(family, samples)
    return families


def check_histogram(family, samples):
    below = {}
    for (name, labels), value in samples.items():
        rest = tuple(label for label in labels if label[0] != "le")
        if name == family + "_bucket":
            last_bound, last = below.get(rest, (float("-inf"), 0))
            bound = float(dict(labels)["le"])
            assert bound > last_bound and value >= last, (name, labels)
            below[rest] = (bound, value)
        elif name == family + "_count":
            assert below.pop(rest) == (float("inf"), value), (name, labels)
    assert not below, family


def documented(section):
    """{family: (type, labels)} of a section's table."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", DOCS.read_text(), re.M | re.S)[1]
    return {name: (kind, set(re.findall(r"`([a-z_]+)`", labels)) | {"otel_metric_overflow"})
            for name, kind, labels in re.findall(r"^\| `([a-z_]+)` \| ([a-z]+) \|([^|]*)\|", text, re.M)}


def embedded():
    """{metric: unit} of what a Lambda function writes for CloudWatch."""
    text = re.search(r"^## Embedded metric format\n(.*?)(?=^## )", DOCS.read_text(), re.M | re.S)[1]
    return {name: unit for names, unit in re.findall(r"^\| (`once_[^|]*) \| (\w+) \|", text, re.M)
            for name in re.findall(r"`(once_[a-z_]+)`", names)}


def check(text, *sections):
    """The page has exactly the metrics of these sections, as they are written there. Returns {sample's text: value}."""
    families = parse(text)
    known = {name: entry for section in sections for name, entry in documented(section).items()}
    assert set(families) == set(known), set(families) ^ set(known)
    values = {}
    for family, (kind, samples) in families.items():
        assert kind == known[family][0], family
        for (name, labels), value in samples.items():
            assert {label for label, _ in labels} <= known[family][1] | ({"le"} if kind == "histogram" else set()), labels
            values[name + ("{" + ",".join(f'{label}="{text}"' for label, text in labels) + "}" if labels else "")] = value
    return values
