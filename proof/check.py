"""The linear pass over a history of the proof: claims, leases, tokens, steps, results, tenants, operators, effects.

    check.py FOLDER      prints what it counted and what is wrong, as JSON; exits with 1 if anything is

Written from the protocol (what once promises: record, decisions, what nothing may do), not from the code. docs/proof.md
lists the rules. The order of the writes of a key needs no clock: each names the owner and revision that it saw, so they
form chains. A write whose answer was lost happened if anybody saw its record or wrote over it, or over one that was."""
import collections
import json
import math
import pathlib
import sys

NEVER = math.inf
RANDOM_BITS = 20


class Wrong(list):
    """What is wrong: the rule, the key, and the lines that show it."""

    def __call__(self, rule, key, *lines):
        self.append({"rule": rule, "key": key, "history": [line for line in lines if line is not None]})


def identity(record):
    return record["o"], record["v"]


class Write:
    def __init__(self, call, answer, process):
        self.call, self.answer, self.process = call, answer, process
        self.kind, self.key, self.next = call["op"], call["k"], call.get("n")
        self.seen = tuple(call["s"]) if "s" in call else None
        self.began = call["t"]
        self.ended = answer["t"] if answer and answer["a"] in ("done", "refused") else NEVER
        self.done = answer is not None and answer["a"] == "done"
        self.in_doubt = answer is None or answer["a"] == "in_doubt"
        self.happened = self.done

    def operator(self):
        return self.process.role == "operate"


class Process:
    def __init__(self, file):
        self.name = file.stem
        self.calls, self.answers = {}, {}
        self.asks, self.tells, self.finishes, self.finished = {}, {}, {}, {}
        self.steps, self.acts, self.acted, self.finals = [], {}, {}, {}
        self.role, self.lease, self.skew, self.ended = None, 0, 0, False
        for text in file.read_text().splitlines():
            line = json.loads(text)
            for name, kept in (("c", self.calls), ("r", self.answers), ("ask", self.asks), ("told", self.tells),
                               ("finish", self.finishes), ("finished", self.finished), ("act", self.acts),
                               ("acted", self.acted), ("final", self.finals)):
                if name in line:
                    kept[line[name]] = line
            if "step" in line:
                self.steps.append(line)
            if "hello" in line:
                self.role, self.lease, self.skew = line["role"], line["lease"], line["skew"]
            self.ended = self.ended or "bye" in line


class Attempt:
    """One call that got a claim: its work, its effects, its end."""

    def __init__(self, process, ask, told, finish, finished):
        self.process, self.ask, self.told, self.finish, self.finished = process, ask, told, finish, finished
        self.key, self.owner = ask["k"], told["n"]["o"]
        self.effects = []

    def recorded(self, how="complete"):
        return bool(self.finish and self.finished and self.finish["op"] == how and self.finished["how"] == "recorded")


class Key:
    def __init__(self):
        self.writes, self.observed, self.reads = [], {}, []
        self.attempts, self.tells, self.acts = [], [], []


def unavailable_s(done_ns):
    """How long in all nothing was done, in stretches of more than a second."""
    done_ns = sorted(done_ns)
    gaps = (after - before for before, after in zip(done_ns, done_ns[1:]))
    return round(sum(gap for gap in gaps if gap > 1e9) / 1e9, 1)


class History:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.processes = [Process(file) for file in sorted(folder.glob("*.jsonl")) if file.stem != "ledger"]
        ledger = folder / "ledger.jsonl"
        self.ledger = [json.loads(text) for text in ledger.read_text().splitlines()] if ledger.exists() else []
        self.keys = collections.defaultdict(Key)
        self.sweeps, self.steps_of_clock = [], []
        self.clock_error = 0  # The greatest that the store told of its time, in milliseconds.
        self.wrong = Wrong()
        self.counts = collections.Counter()
        self.attempt, self.claimed_at = {}, {}
        for process in self.processes:
            self._read(process)
        nemesis = folder / "nemesis.log"
        for text in nemesis.read_text().splitlines() if nemesis.exists() else []:
            line = json.loads(text)
            self.counts["faults"] += "fault" in line
            if line.get("fault") == "server_clock":
                self.steps_of_clock.append(line["t"])
        for effect in self.ledger:
            self.counts["effects"] += 1
            attempt = self.attempt.get((effect["w"], effect["id"]))
            if attempt:
                attempt.effects.append(effect)
            else:
                self.wrong("an effect without a claim", effect["op"], effect)

    def _read(self, process):
        for number, call in process.calls.items():
            answer = process.answers.get(number)
            self.counts["store calls"] += 1
            self.clock_error = max(self.clock_error, answer.get("se", 0) if answer else 0)
            if answer is None or answer["a"] == "in_doubt":
                self.counts["in doubt"] += 1
            elif answer["a"] in ("corrupt", "misuse"):
                self.wrong("a store's answer says that something is broken", call.get("k", ""), call, answer)
            if call["op"] == "sweep":
                self.sweeps.append((call, answer))
                continue
            key = self.keys[call["k"]]
            if answer and answer.get("n"):
                key.observed.setdefault(identity(answer["n"]), []).append(answer["n"])
            if call["op"] != "get":
                key.writes.append(Write(call, answer, process))
        for stored, line in process.finals.items():
            self.keys[stored].observed.setdefault(identity(line["n"]), []).append(line["n"])
        for number, ask in process.asks.items():
            self.counts["calls"] += 1
            told = process.tells.get(number)
            if told is None:
                continue
            key = self.keys[ask["k"]]
            if told["how"] == "claimed":
                attempt = Attempt(process, ask, told, process.finishes.get(number), process.finished.get(number))
                key.attempts.append(attempt)
                self.attempt[process.name, number] = attempt
                self.claimed_at[attempt.owner] = told["t"]
                ended = attempt.finished["how"] if attempt.finished else "died" if attempt.finish is None else "given up"
                self.counts[f"claim {ended}"] += 1
            else:
                self.counts[f"told {told['how']}"] += 1
            key.tells.append((process, ask, told, process.finished.get(number)))
        for number, act in process.acts.items():
            acted = process.acted.get(number)
            if acted is None or acted["how"] != "changed":
                self.counts["acts of operators"] += 1
                self.keys[act["k"]].acts.append((act, acted))

    def done(self):
        """When a worker's write or read was done."""
        return [answer["t"] for process in self.processes if process.role == "work"
                for answer in process.answers.values() if answer["a"] in ("done", "refused")]

    def check(self):
        for stored, key in sorted(self.keys.items()):
            chains = self._chains(stored, key)
            if not stored.startswith("register#"):
                for chain in chains:
                    for before, write in zip(chain, chain[1:]):
                        self._step(stored, before, write)
                    self._end_of_chain(stored, key, chain)
                self._order_of_chains(stored, key, chains)
                self._answers(stored, key, chains)
                self._effects(stored, key, chains)
        return self.wrong

    # ---- What was written, in its order

    def _chains(self, stored, key):
        in_doubt = {identity(write.next): [] for write in key.writes if write.next and write.in_doubt}
        for write in key.writes:
            if write.next and write.in_doubt:
                in_doubt[identity(write.next)].append(write)
        happened = list(key.observed) + [write.seen for write in key.writes if write.done and write.seen]
        while happened:
            for write in in_doubt.pop(happened.pop(), ()):
                write.happened = True
                if write.seen:
                    happened.append(write.seen)
        made = {}
        for write in key.writes:
            if write.happened and write.next:
                other = made.setdefault(identity(write.next), write)
                if other is not write and other.next["d"] != write.next["d"]:
                    self.wrong("two different writes have one owner and revision", stored, other.call, write.call)
        denied = {identity(write.next): write for write in key.writes
                  if write.next and write.answer and write.answer["a"] == "unavailable"}
        for seen, records in key.observed.items():
            write = made.get(seen)
            for record in records:
                if write is None and seen in denied:
                    self.wrong("a write was there that was told not to be", stored, denied[seen].call, denied[seen].answer,
                               record)
                elif write is None:
                    self.wrong("a record was read that nobody wrote", stored, record)
                elif record["d"] != write.next["d"]:
                    self.wrong("a record was read in another form than it was written in", stored, write.call, record)
        after = {}
        for write in key.writes:
            if not write.happened or write.kind == "insert":
                continue
            if write.seen not in made:
                if write.seen in denied:
                    self.wrong("a write was there that was told not to be", stored, denied[write.seen].call,
                               denied[write.seen].answer, write.call)
                else:
                    self.wrong("a write was carried out over a record that nobody wrote", stored, write.call,
                               write.answer)
                continue
            other = after.setdefault(write.seen, write)
            if other is not write and (other.next is None or write.next is None
                                       or identity(other.next) != identity(write.next)):
                self.wrong("two writes were carried out over one record", stored, made[write.seen].call, other.call,
                           write.call)
        chains = []
        for write in sorted(made.values(), key=lambda write: write.began):
            if write.kind != "insert":
                continue
            chain, seen = [write], {identity(write.next)}
            while (following := after.get(identity(chain[-1].next))) is not None:
                chain.append(following)
                if following.next is None or identity(following.next) in seen:
                    break
                seen.add(identity(following.next))
            chains.append(chain)
        return chains

    def _step(self, stored, before, write):
        """One write over a record."""
        def wrong(rule):
            self.wrong(rule, stored, before.call, write.call, write.answer)

        old, new = before.next, write.next
        operator = write.operator()
        if new is None:
            if not operator and (old["s"] != "in_progress" or old.get("st")):
                wrong("an engine removed what is no claim of its own without effects")
            return
        if new["v"] >> RANDOM_BITS != (old["v"] >> RANDOM_BITS) + 1:
            wrong("a revision does not count its writes")
        if operator:
            return
        # By the store's own time in the answer: not before it, if its error is added.
        now = write.answer["st"] + write.answer["se"] if write.answer and "st" in write.answer else NEVER
        if old["x"] and old["x"] <= now and new["at"] == 1 and new["o"] != old["o"]:
            self.counts["fresh claims over expired records"] += 1
            if new["tk"] <= old["tk"]:
                wrong("a token fell")
            return
        if old["s"] in ("completed", "failed"):
            return wrong("a result was written over")
        if old["s"] == "unknown":
            return wrong("an outcome that is not known was written over by an engine")
        if old.get("f") and new.get("f") != old["f"]:
            wrong("a claim was written over by another payload")
        lost = [step for step in old.get("st", []) if step not in new.get("st", [])]
        if lost and new["s"] == "in_progress":
            wrong("a finished step was lost")
        if old.get("h") and not new.get("h"):
            wrong("hold was forgotten")
        if new["o"] == old["o"]:
            # A claim whose answer came late, or showed that the clock was wrong, is confirmed by another write before
            # anything runs, with the token of the right time: docs/guarantees.md. So may be that write in its turn.
            # Nobody has used the tokens before.
            working = self.claimed_at.get(new["o"], NEVER) < write.began
            if new["at"] != old["at"] or (new["tk"] != old["tk"] and working):
                wrong("a holder changed its token or attempt")
            if old["l"] == 0:
                wrong("a holder wrote on after its claim was released")
            return
        self.counts["takeovers"] += new["s"] == "in_progress"
        # Whoever decided just before the store's clock was set back could not know.
        stepped = any(write.began - 3e9 < at < write.ended for at in self.steps_of_clock)
        if old["l"] and now < old["l"] + write.process.skew and not stepped:
            wrong("a live claim was taken over")
        if new["s"] == "in_progress":
            if new["tk"] <= old["tk"]:
                wrong("a token fell")
            if new["at"] != old["at"] + 1:
                wrong("a takeover does not count the attempt on")
            if old.get("h") and old["l"]:
                wrong("a lapsed claim under hold was taken over")
        elif new["s"] != "unknown":
            wrong("a result was stored by one who did not hold the claim")

    def _end_of_chain(self, stored, key, chain):
        """The last record of a chain is there at the end, or went in a way that is allowed."""
        last = chain[-1].next
        if last is None:
            return
        there = next((p.finals[stored]["n"] for p in self.processes if stored in p.finals), None)
        if there and identity(there) == identity(last):
            return
        # What it may have become by writes in doubt may have been removed or swept.
        may_be, doubtful = [last], [write for write in key.writes if write.in_doubt and write.seen]
        for record in may_be:
            if record["x"] and any(call["now"] >= record["x"] and (answer is None or answer["t"] >= chain[-1].began)
                                   for call, answer in self.sweeps):
                return
            found = [write for write in doubtful if write.seen == identity(record)]
            if any(write.next is None for write in found):
                return
            may_be += [write.next for write in found]
            doubtful = [write for write in doubtful if write not in found]
        if not chain[-1].done and identity(last) not in key.observed:
            return
        self.counts["lost"] += 1
        self.wrong("an acknowledged write is gone", stored, chain[-1].call, chain[-1].answer)

    def _order_of_chains(self, stored, key, chains):
        highest = None
        sent = {}  # A write that is tried again has its first time in it.
        for write in key.writes:
            if write.next:
                sent[identity(write.next)] = min(write.began, sent.get(identity(write.next), NEVER))
        for chain in chains:
            first = chain[0]
            # Removed and claimed anew, the token is the time. It grows as far as the store's time is known, and if nobody
            # sets its clock back: docs/guarantees.md.
            fell = highest.next["tk"] - first.next["tk"] if highest else 0
            later = highest and sent[identity(first.next)] > highest.ended
            if later and fell > 2 * self.clock_error and not self.steps_of_clock:
                self.wrong("a token fell", stored, highest.call, first.call)
            top = max((write for write in chain if write.next), key=lambda write: write.next["tk"])
            if highest is None or top.next["tk"] > highest.next["tk"]:
                highest = top

    # ---- What callers were told

    def _answers(self, stored, key, chains):
        place = {identity(write.next): (chain, i) for chain in chains for i, write in enumerate(chain) if write.next}
        for process, ask, told, finished in key.tells:
            record = told.get("n")
            how = told["how"]
            if how == "error":
                continue
            found = place.get(identity(record))
            if found is None:
                self.wrong("an answer tells of a record that nobody wrote", stored, ask, told)
                continue
            chain, i = found
            # A process tells of its own live claims from memory: docs/guarantees.md.
            own = how in ("conflict", "mismatch") and any(
                attempt.owner == record["o"] and attempt.process is process for attempt in key.attempts)
            if how != "claimed" and not own and i + 1 < len(chain) and chain[i + 1].ended < ask["t"]:
                self.wrong("an answer is older than its question", stored, ask, told, chain[i + 1].call)
            if how == "replayed":
                if not record.get("r", "").startswith(ask["want"] + "|"):
                    self.wrong("another operation's result was replayed", stored, ask, told)
                if record["s"] != "completed" or record["r"] != chain[i].next.get("r"):
                    self.wrong("a result changed", stored, chain[i].call, told)
            if record.get("f", ask["f"]) != ask["f"]:
                if how not in ("mismatch",):
                    self.wrong("another payload's answer was given", stored, ask, told)
            elif how == "mismatch":
                self.wrong("a mismatch was told of the same payload", stored, ask, told)
            wanted = {"stored_failure": "failed", "unknown": "unknown", "conflict": "in_progress"}.get(how)
            if wanted and record["s"] != wanted:
                self.wrong(f"told {how}, but the record does not say so", stored, ask, told)
            if finished and finished["how"] in ("recorded", "superseded") and finished.get("n"):
                if identity(finished["n"]) not in place:
                    self.wrong("a finish tells of a record that nobody wrote", stored, told, finished)

    # ---- Effects

    def _effects(self, stored, key, chains):
        # By record, not by owner: a caller whose claim was refused may claim anew, once what stood there has expired.
        of_record = {}
        for number, chain in enumerate(chains):
            generation = (number, 0)
            for i, (before, write) in enumerate(zip([None, *chain], chain)):
                if write.next is None:
                    continue
                # Anew: a fresh claim over an expired record, or what an operator decided by a new owner.
                anew = before and before.next["o"] != write.next["o"] and (write.next["at"] == 1 or write.operator())
                generation = (number, generation[1] + bool(anew))
                of_record[identity(write.next)] = generation, chain[i:]
        by_generation = collections.defaultdict(list)
        for attempt in key.attempts:
            found = of_record.get(identity(attempt.told["n"]))
            if found is None:
                self.wrong("work began under a claim that nobody wrote", stored, attempt.ask, attempt.told)
                continue
            generation, since = found
            by_generation[generation].append(attempt)
            self._displaced(stored, attempt, since)
            made = sum(effect["what"] == "main" for effect in attempt.effects)
            # The answer to a finish may be lost, and its result be there all the same.
            stored_it = any(write.next and write.next["o"] == attempt.owner and write.next["s"] == "completed"
                            and not write.operator() for write in since)
            if (attempt.recorded() or stored_it) and made != 1:
                self.wrong(f"a result was recorded with {made} effects", stored, attempt.told, attempt.finish,
                           attempt.finished)
        for attempts in by_generation.values():
            self._doubles(stored, attempts)

    def _displaced(self, stored, attempt, since):
        """Whoever looked, and acted, held the claim then: nobody else's write had been acknowledged before. since: the
        writes from the claim on."""
        theirs = next((write for write in since if write.next is None or write.next["o"] != attempt.owner), None)
        if theirs is None or theirs.operator():
            return
        for effect in attempt.effects:
            if theirs.ended < effect["t"]:
                self.wrong("one who had lost the claim acted", stored, attempt.told, theirs.call, theirs.answer, effect)

    def _doubles(self, stored, attempts):
        """An effect may come again only if no attempt that made it has ended known."""
        for what in ("main", "first", "second"):
            made = [(effect, attempt) for attempt in attempts for effect in attempt.effects if effect["what"] == what]
            made.sort(key=lambda pair: pair[0]["t"])
            self.counts["doubles"] += max(0, len(made) - 1)
            for (first, attempt), (second, _) in zip(made, made[1:]):
                if what == "main":
                    known = attempt.finished and attempt.finished["how"] == "recorded" and attempt.finish["op"] != "hold"
                    at = attempt.finished["t"] if known else NEVER
                else:
                    kept = [step for step in attempt.process.steps
                            if step["step"] == attempt.told["told"] and step["name"] == what and step["how"] == "recorded"]
                    at = kept[0]["t"] if kept else NEVER
                if at < second["t"]:
                    self.wrong("an effect came again after an attempt that ended known", stored, first, attempt.finish,
                               attempt.finished, second)


def last_results(folder):
    """The engines' results that were acknowledged, the last one first: each write, and the answer to it."""
    keys = History(folder).keys.values()
    found = [write for key in keys for write in key.writes
             if write.done and write.next and write.next["s"] == "completed" and not write.key.startswith("register#")]
    return [(write.call, write.answer) for write in sorted(found, key=lambda write: -write.ended)]


def main():
    history = History(sys.argv[1])
    wrong = history.check()
    wrong.sort(key=lambda found: len(found["history"]))
    print(json.dumps({"counts": history.counts, "unavailable_s": unavailable_s(history.done()), "violations": wrong[:50]}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
