#!/usr/bin/env python3
"""check_test.py: short histories written by hand. The good ones pass both checkers of the proof; in each bad one, what was
changed is found, by the rule that is about it."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import check

ROOT = pathlib.Path(__file__).resolve().parent.parent
REGISTER = None
MS = 1_000_000
LEASE = 600


def record(owner, count, state="in_progress", at=1, token=1000, lease=0, expires=100_000, **more):
    made = {"o": 16 * owner, "v": (count << 20) + ord(owner[0]), "s": state, "tk": token, "at": at, "l": lease, "x": expires,
            "f": "p0", **more}
    return {name: value for name, value in made.items() if value is not None} | {"d": str(hash(json.dumps(made)))}


class Story:
    """Lines of processes, at times in milliseconds."""

    def __init__(self):
        self.lines = {}
        self.ledger = []
        self.last = 0
        for name in ("w1", "w2"):
            self.say(name, t=0, hello=name, role="work", lease=LEASE, skew=0)
        self.say("op", t=0, hello="op", role="operate", lease=LEASE, skew=0)

    def say(self, who, **line):
        if "t" in line:
            line["t"] = int(line["t"] * MS)
        self.lines.setdefault(who, []).append(line)

    def store(self, who, t, op, next=None, seen=None, answer="done", there=None, key="a#1", end=None, now=None):
        self.last += 1
        self.say(who, t=t, c=self.last, op=op, k=key, **({"s": [seen["o"], seen["v"]]} if seen else {}),
                 **({"n": next} if next else {}))
        if answer:
            self.say(who, t=end or t + 1, r=self.last, a=answer, n=there, st=now or t + 1, se=0)

    def ask(self, who, number, t, how, told, until=None, want="a|1|p0", f="p0"):
        self.say(who, t=t, ask=number, k="a#1", want=want, f=f, h=0)
        self.say(who, t=until or t + 3, told=number, how=how, n=told)

    def finish(self, who, number, t, op, how, result, until=None):
        self.say(who, t=t, finish=number, op=op, res="")
        self.say(who, t=until or t + 3, finished=number, how=how, n=result)

    def effect(self, who, number, t, what="main", owner="A"):
        self.ledger.append({"t": int(t * MS), "w": who, "id": number, "what": what, "op": "a|1|p0", "k": "a#1", "o": 16 * owner})

    def end(self, final, key="a#1"):
        if final:
            self.say("audit", final=key, n=final)
        self.say("audit", t=99_999, finals=99_000 * MS)

    def judge(self):
        with tempfile.TemporaryDirectory(prefix="once-check-") as name:
            folder = pathlib.Path(name)
            for who, lines in {**self.lines, "ledger": self.ledger}.items():
                (folder / f"{who}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            history = check.History(folder)
            rules = {found["rule"] for found in history.check()}
            done = subprocess.run([REGISTER, folder], stdout=subprocess.PIPE, text=True, check=False)
            if json.loads(done.stdout)["violations"]:
                rules.add("not linearizable")
            return rules


CLAIM = record("A", 1, lease=610)
DONE = record("A", 2, "completed", r="a|1|p0|w1|1")


def once(story, claim=CLAIM, done=DONE, effects=1):
    """w1 claims the key at 10 ms, acts, and completes it by 30 ms."""
    story.store("w1", 10, "insert", claim)
    story.ask("w1", 1, 9, "claimed", claim)
    for _ in range(effects):
        story.effect("w1", 1, 15)
    story.store("w1", 21, "replace", done, claim)
    story.finish("w1", 1, 20, "complete", "recorded", done)


def dies(story, claim=CLAIM, act=True):
    """w1 claims the key at 10 ms, acts, and is killed."""
    story.store("w1", 10, "insert", claim)
    story.ask("w1", 1, 9, "claimed", claim)
    if act:
        story.effect("w1", 1, 15)


def takes_over(story, t=700, over=CLAIM, **changes):
    """w2 takes the claim over, acts and completes."""
    given = {"at": 2, "token": 1700, "lease": t + LEASE, **changes}
    claim = record("B", 2, **given)
    done = record("B", 3, "completed", r="a|1|p0|w2|1", **{**given, "lease": 0})
    story.store("w2", t, "replace", claim, over)
    story.ask("w2", 1, t - 1, "claimed", claim)
    story.effect("w2", 1, t + 5, owner="B")
    story.store("w2", t + 11, "replace", done, claim)
    story.finish("w2", 1, t + 10, "complete", "recorded", done)
    return done


class Checkers(unittest.TestCase):
    def expect(self, story, *rules):
        found = story.judge()
        for rule in rules:
            self.assertIn(rule, found)
        if not rules:
            self.assertEqual(found, set())

    def test_once_and_replayed(self):
        story = Story()
        once(story)
        story.store("w2", 40, "insert", record("B", 1), answer="refused", there=DONE)
        story.ask("w2", 1, 39, "replayed", DONE)
        story.end(DONE)
        self.expect(story)

    def test_a_takeover_after_a_death(self):
        story = Story()
        dies(story)
        story.end(takes_over(story))
        self.expect(story)

    def test_a_write_in_doubt_takes_effect_late_or_never(self):
        other = record("A", 2, "completed", r="a|1|p0|w1|1")
        for happened in (True, False):
            story = Story()
            dies(story)
            story.store("w1", 21, "replace", other, CLAIM, answer="in_doubt")
            story.store("w2", 30, "get", there=CLAIM)
            story.end(other if happened else CLAIM)
            self.expect(story)

    def test_a_record_expires_and_is_swept(self):
        story = Story()
        brief = record("A", 2, "completed", r="a|1|p0|w1|1", expires=500)
        once(story, done=brief)
        story.say("op", t=600, c=900, op="sweep", now=550)
        story.say("op", t=601, r=900, a="done", removed=1)
        story.end(None)
        self.expect(story)

    def bad(self, change, *rules):
        story = Story()
        change(story)
        self.expect(story, *rules)

    def test_writes(self):
        def insert_over(story):
            once(story)
            story.store("w2", 40, "insert", record("B", 1, token=2000))
            story.end(record("B", 1, token=2000))
        self.bad(insert_over, "not linearizable", "an acknowledged write is gone")

        def forked(story):
            once(story)
            story.store("w2", 40, "replace", record("B", 2, at=2, token=2000, lease=1), CLAIM)
            story.end(DONE)
        self.bad(forked, "not linearizable", "two writes were carried out over one record")

        def lost(story):
            once(story)
            story.end(CLAIM)
        self.bad(lost, "not linearizable", "an acknowledged write is gone")

        def repeated(story):
            once(story, done=record("A", 1, "completed", r="a|1|p0|w1|1"))
            story.end(record("A", 1, "completed", r="a|1|p0|w1|1"))
        self.bad(repeated, "two different writes have one owner and revision")

        def not_counted(story):
            done = record("A", 3, "completed", r="a|1|p0|w1|1")
            once(story, done=done)
            story.end(done)
        self.bad(not_counted, "a revision does not count its writes")

        def made_up(story):
            once(story)
            story.store("w2", 40, "get", there=record("Z", 3, "completed"))
            story.end(DONE)
        self.bad(made_up, "a record was read that nobody wrote", "not linearizable")

        def over_nothing(story):
            once(story)
            story.store("w2", 40, "replace", record("B", 9, at=2, token=2000), record("Z", 8))
            story.end(DONE)
        self.bad(over_nothing, "a write was carried out over a record that nobody wrote")

        def broken(story):
            once(story)
            story.store("w2", 40, "get", answer="corrupt")
            story.end(DONE)
        self.bad(broken, "a store's answer says that something is broken")

        def other_form(story):
            once(story)
            story.store("w2", 40, "get", there=DONE | {"d": "other"})
            story.end(DONE)
        self.bad(other_form, "a record was read in another form than it was written in")

    def test_claims(self):
        def taken(rule, over=CLAIM, t=700, **changes):
            def change(story):
                dies(story, over)
                story.end(takes_over(story, t, over, **changes))
            self.bad(change, rule)

        taken("a live claim was taken over", t=500)
        taken("a token fell", token=1000)
        taken("a takeover does not count the attempt on", at=1)
        taken("a claim was written over by another payload", f="p1")
        taken("a finished step was lost", over=record("A", 1, lease=610, st=["first=x"]))
        taken("hold was forgotten", over=record("A", 1, lease=610, h=1))
        taken("a lapsed claim under hold was taken over", over=record("A", 1, lease=610, h=1), h=1)
        taken("a result was written over", over=record("A", 1, "completed", r="a|1|p0|w1|1"))
        taken("an outcome that is not known was written over by an engine", over=record("A", 1, "unknown"))

        def by_another(story):
            dies(story)
            done = record("B", 2, "completed", at=2, token=1700, r="a|1|p0|w2|1")
            story.store("w2", 700, "replace", done, CLAIM)
            story.end(done)
        self.bad(by_another, "a result was stored by one who did not hold the claim")

        def changed(story):
            done = record("A", 2, "completed", token=1001, r="a|1|p0|w1|1")
            once(story, done=done)
            story.end(done)
        self.bad(changed, "a holder changed its token or attempt")

        def after_release(story):
            released = record("A", 2, lease=0)
            done = record("A", 3, "completed", r="a|1|p0|w1|1")
            dies(story)
            story.store("w1", 20, "replace", released, CLAIM)
            story.store("w1", 30, "replace", done, released)
            story.end(done)
        self.bad(after_release, "a holder wrote on after its claim was released")

        def removed(story):
            once(story)
            story.store("w2", 40, "remove", None, DONE)
            story.end(None)
        self.bad(removed, "an engine removed what is no claim of its own without effects")

        def token_of_a_removed(story):
            dies(story, act=False)
            story.store("w1", 20, "remove", None, CLAIM)
            later = record("B", 1, token=900, lease=LEASE + 40)
            story.store("w2", 40, "insert", later)
            story.end(later)
        self.bad(token_of_a_removed, "a token fell")

    def test_answers(self):
        def told(rule, how="replayed", record=DONE, want="a|1|p0", f="p0", t=39):
            def change(story):
                once(story)
                story.ask("w2", 1, t, how, record, want=want, f=f)
                story.end(DONE)
            self.bad(change, rule)

        told("another operation's result was replayed", want="b|1|p0")
        told("another payload's answer was given", f="p1")
        told("a mismatch was told of the same payload", how="mismatch")
        told("told unknown, but the record does not say so", how="unknown")
        told("told stored_failure, but the record does not say so", how="stored_failure")
        told("an answer is older than its question", how="conflict", record=CLAIM)
        told("a result changed", record=DONE | {"r": "a|1|p0|w1|1!"})
        told("an answer tells of a record that nobody wrote", record=record("Z", 2, "completed", r="a|1|p0|x|1"))

        def finish_of_nobody(story):
            once(story)
            story.finish("w1", 1, 20, "complete", "superseded", record("Z", 5, "completed"))
            story.end(DONE)
        self.bad(finish_of_nobody, "a finish tells of a record that nobody wrote")

    def test_effects(self):
        def without_claim(story):
            once(story)
            story.effect("w2", 7, 40)
            story.end(DONE)
        self.bad(without_claim, "an effect without a claim")

        def of_nobody(story):
            once(story)
            story.ask("w2", 1, 40, "claimed", record("Z", 1))
            story.end(DONE)
        self.bad(of_nobody, "work began under a claim that nobody wrote")

        for effects in (0, 2):
            def recorded(story, effects=effects):
                once(story, effects=effects)
                story.end(DONE)
            self.bad(recorded, f"a result was recorded with {effects} effects")

        def too_late(story):
            dies(story, act=False)
            done = takes_over(story)
            story.effect("w1", 1, 750)
            story.end(done)
        self.bad(too_late, "one who had lost the claim acted")

        def again(story):
            released = record("A", 2, lease=0)
            dies(story)
            story.store("w1", 21, "replace", released, CLAIM)
            story.finish("w1", 1, 20, "release", "recorded", released)
            claim = record("B", 3, at=2, token=1700, lease=700)
            story.store("w2", 100, "replace", claim, released)
            story.ask("w2", 1, 99, "claimed", claim)
            story.effect("w2", 1, 105, owner="B")
            story.end(claim)
        self.bad(again, "an effect came again after an attempt that ended known")

    def test_every_rule_has_a_history(self):
        """Each rule of check.py is named in this file."""
        source = pathlib.Path(check.__file__).read_text()
        here = pathlib.Path(__file__).read_text()
        rules = set(part.split('"')[1] for text in ("wrong(", "return wrong(") for part in source.split(text)[1:]
                    if part.startswith('"'))
        self.assertGreater(len(rules), 20)
        self.assertEqual({rule for rule in rules if rule not in here}, set())


if __name__ == "__main__":
    REGISTER = pathlib.Path(subprocess.run([ROOT / "tools" / "go-tools"], check=True, stdout=subprocess.PIPE,
                                           text=True).stdout.strip()) / "proof_register"
    program = unittest.main(argv=sys.argv, exit=False, verbosity=2)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun)
