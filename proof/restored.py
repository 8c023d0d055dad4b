#!/usr/bin/env python3
"""A store that was restored from a backup has two histories, and each must be right by itself:

    before    all until the restore, as if nothing had come after
    after     what the backup may have, and all since the restore

    restored.py FOLDER      makes both as folders in this one, for check.py and proof_register

A restore forgets what came after the backup, and nothing else. So what was acknowledged before the backup began is in the
second history, as ever. What was under way until it ended is in doubt there: its caller's answer is no longer true. What
began later never was, and neither were its effects: its work may run again. All programs ended before the restore, and
others began after it, so each file is of one of the two.

One thing is older than the restore and must hold beyond it: services downstream remember tokens. A later claim of a key
has a higher one, because the time went on: "token = max(seen token + 1, now in ms)" in the protocol."""
import json
import pathlib
import sys

HISTORIES = ("before", "after")


def lines(file):
    return [json.loads(text) for text in file.read_text().splitlines()]


def write(file, found):
    file.write_text("".join(json.dumps(line) + "\n" for line in found))


def in_backup(file, began, ended):
    """The lines of a process that are true of a store with the backup in it."""
    found = lines(file)
    answers = {line["r"]: line for line in found if "a" in line and "r" in line}
    kept, calls = [], set()
    for line in found:
        if "c" in line:
            answer = answers.get(line["c"])
            # A read tells nothing without its answer. What was refused, then or later, had no effect, then or earlier.
            without = line["op"] == "get" or (answer and answer["a"] not in ("done", "in_doubt"))
            if line["t"] > ended or (without and (answer is None or answer["t"] >= began)):
                continue
            calls.add(line["c"])
        elif "a" in line and "r" in line:
            if line["r"] not in calls or line["t"] >= began:
                continue
        elif "hello" not in line and line.get("t", began) >= began:
            continue
        kept.append(line)
    return kept


def reads(records, keys, began, ended):
    """What an auditor found, as reads of all keys: those that have no record too."""
    for number, key in enumerate(sorted(keys), 1):
        yield {"t": began, "c": number, "op": "get", "k": key}
        yield {"t": ended, "r": number, "a": "done", "n": records.get(key)}


def claims(found):
    """Of a process: key, token, when it was asked for, when it was told, and the line that tells it."""
    asks = {line["ask"]: line for line in found if "ask" in line}
    for line in found:
        if line.get("how") == "claimed" and "told" in line:
            ask = asks[line["told"]]
            yield ask["k"], line["n"]["tk"], ask["t"], line["t"], line


def split(folder):
    """Writes both histories. Counts what the restore forgot, and finds the tokens that fell."""
    folder = pathlib.Path(folder)
    about = json.loads((folder / "restored.json").read_text())
    began, ended = about["backup"]
    early, late, finals, ledger = {}, {}, {}, []
    for file in sorted(folder.glob("*.jsonl")):
        found = lines(file)
        audit = file.stem.partition(".")[0]
        if file.stem == "ledger":
            ledger = found
        elif audit in ("before", "restored", "audit"):
            finals[audit] = found
        elif found:
            (early if found[0]["t"] < about["restored"] else late)[file] = found
    kept = {file: in_backup(file, began, ended) for file in early}
    known = {(file.stem, line["told"]) for file, found in kept.items() for line in found if "told" in line}
    for name in HISTORIES:
        (folder / name).mkdir(exist_ok=True)
    for file, found in early.items():
        write(folder / "before" / file.name, found)
        write(folder / "after" / file.name, kept[file])
    for file, found in late.items():
        write(folder / "after" / file.name, found)
    early_names, late_names = {file.stem for file in early}, {file.stem for file in late}
    write(folder / "before" / "ledger.jsonl", [effect for effect in ledger if effect["w"] in early_names])
    write(folder / "after" / "ledger.jsonl", [effect for effect in ledger if effect["w"] in late_names
                                              or (effect["w"], effect["id"]) in known])
    write(folder / "before" / "audit.1.jsonl", finals["before"])
    write(folder / "after" / "audit.1.jsonl", finals["audit"])
    keys = {line["k"] for found in [*kept.values(), *late.values()] for line in found if "c" in line and "k" in line}
    there = {line["final"]: line["n"] for line in finals["restored"] if "final" in line}
    told = next(line for line in finals["restored"] if "finals" in line)
    write(folder / "after" / "restored.1.jsonl", [
        {"t": told["finals"], "hello": "restored", "role": "restored", "lease": 0, "skew": 0},
        *reads(there, keys | set(there), told["finals"], told["t"])])
    nemesis = folder / "nemesis.log"
    for name in HISTORIES:
        (folder / name / "nemesis.log").write_text(nemesis.read_text() if nemesis.exists() else "")

    # What the restore forgot, and tokens.
    violations, highest, forgotten = [], {}, set()
    error = max([0, *(line.get("se", 0) for found in [*early.values(), *late.values()] for line in found if "a" in line)])
    for file, found in early.items():
        for key, token, _, _, line in claims(found):
            if key not in highest or token > highest[key][0]:
                highest[key] = token, line
            if (file.stem, line["told"]) not in known:
                forgotten.add((file.stem, line["told"]))
    for found in late.values():
        for key, token, _, _, line in claims(found):
            if key in highest and token + 2 * error <= highest[key][0]:
                violations.append({"rule": "a token fell with the restore", "key": key,
                                   "history": [highest[key][1], line]})
    done = {effect["op"] for effect in ledger if (effect["w"], effect["id"]) in forgotten and effect["what"] == "main"}
    again = {effect["op"] for effect in ledger if effect["w"] in late_names} & done
    return {"counts": {"forgotten": len(done), "again": len(again)}, "violations": violations}


if __name__ == "__main__":
    print(json.dumps(split(sys.argv[1])))
