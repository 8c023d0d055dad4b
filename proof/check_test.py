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
import restored

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

    def sweep(self, t, now, until=None):
        self.last += 1
        self.say("op", t=t, c=self.last, op="sweep", now=now)
        self.say("op", t=until or t + 1, r=self.last, a="done", removed=1)

    def ask(self, who, number, t, how, told, until=None, want="a|1|p0", f="p0"):
        self.say(who, t=t, ask=number, k="a#1", want=want, f=f, h=0)
        self.say(who, t=until or t + 3, told=number, how=how, n=told)

    def finish(self, who, number, t, op, how, result, until=None):
        self.say(who, t=t, finish=number, op=op, res="")
        self.say(who, t=until or t + 3, finished=number, how=how, n=result)

    def effect(self, who, number, t, what="main", owner="A"):
        self.ledger.append({"t": int(t * MS), "w": who, "id": number, "what": what, "op": "a|1|p0", "k": "a#1", "o": 16 * owner})

    def end(self, final, key="a#1", audit="audit", t=99_000):
        if final:
            self.say(audit, final=key, n=final)
        self.say(audit, t=t + 1, finals=t * MS)

    def judge(self):
        with tempfile.TemporaryDirectory(prefix="once-check-") as name:
            folder = pathlib.Path(name)
            self.write(folder)
            return judge(folder)

    def write(self, folder):
        for who, lines in {**self.lines, "ledger": self.ledger}.items():
            (folder / f"{who}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def judge(folder):
    """By both checkers: the rules that do not hold."""
    rules = {found["rule"] for found in check.History(folder).check()}
    done = subprocess.run([REGISTER, folder], stdout=subprocess.PIPE, text=True, check=False)
    verdict = json.loads(done.stdout)
    if verdict["violations"]:
        rules.add("not linearizable")
    if verdict["undecided"]:
        rules.add("not decided")
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

    def test_a_claim_answered_late_is_confirmed_as_often_as_that_takes(self):
        second, third = record("A", 2, token=1700, lease=1400), record("A", 3, token=2500, lease=2200)
        done = record("A", 4, "completed", token=2500, r="a|1|p0|w1|1")
        for told in (True, False):
            story = Story()
            story.ask("w1", 1, 9, "claimed", third if told else second, until=2520 if told else 1720)
            story.store("w1", 10, "insert", CLAIM, end=700)
            story.store("w1", 701, "replace", second, CLAIM, end=1500)
            story.store("w1", 1800, "replace", third, second, end=2510)
            story.effect("w1", 1, 2525)
            story.store("w1", 2531, "replace", done, third)
            story.finish("w1", 1, 2530, "complete", "recorded", done)
            story.end(done)
            self.expect(story, *([] if told else ["a holder changed its token or attempt"]))

    def test_the_last_results_that_were_acknowledged(self):
        story = Story()
        once(story)
        other = record("B", 2, "completed", r="a|2|p0|w2|1")
        story.store("w2", 50, "insert", record("B", 1), key="a#2")
        story.store("w2", 60, "replace", other, record("B", 1), key="a#2")
        story.store("w2", 70, "insert", record("C", 1), key="a#3")
        story.store("w2", 80, "replace", record("C", 2, "completed"), record("C", 1), key="a#3", answer="in_doubt")
        with tempfile.TemporaryDirectory(prefix="once-check-") as name:
            story.write(pathlib.Path(name))
            found = check.last_results(name)
        self.assertEqual([(call["k"], answer["a"]) for call, answer in found], [("a#2", "done"), ("a#1", "done")])

    def test_a_record_expires_and_is_swept(self):
        story = Story()
        brief = record("A", 2, "completed", r="a|1|p0|w1|1", expires=500)
        once(story, done=brief)
        story.sweep(600, 550)
        story.end(None)
        self.expect(story)

    def test_many_sweeps_while_writes_take_long(self):
        story = Story()
        first, second = record("A", 1, lease=610, expires=700), record("B", 1, lease=620, expires=800)
        last = record("B", 2, lease=9000)
        story.store("w1", 10, "insert", first, end=3000)
        story.store("w2", 20, "insert", second, end=6000)
        story.store("w1", 3001, "replace", record("A", 2, lease=4000, expires=5000), first, answer="in_doubt", end=8000)
        story.store("w2", 6001, "replace", last, second, end=7000)
        story.store("w1", 8001, "insert", record("A", 1, lease=9000), answer="refused", there=last)
        for i in range(60):
            story.sweep(700 + 100 * i, 700 + 100 * i, until=750 + 100 * i)
        story.end(last)
        self.expect(story)

    def test_a_sweep_is_over_with_its_answer(self):
        story = Story()
        brief = record("A", 2, "completed", r="a|1|p0|w1|1", expires=500)
        once(story, done=brief)
        story.sweep(600, 550)
        story.store("w2", 700, "get", there=brief)
        story.end(None)
        self.expect(story, "not linearizable")

    def test_a_caller_whose_claim_was_refused_claims_anew(self):
        story = Story()
        story.store("w1", 10, "insert", CLAIM, end=1000)  # Answered late.
        done = takes_over(story, expires=800)
        story.store("w1", 1001, "replace", record("A", 2, token=2000, lease=1600), CLAIM, answer="refused", there=done)
        story.sweep(1010, 1005)
        anew = record("A", 1, token=2100, lease=1700) | {"v": (1 << 20) + 7}
        story.store("w1", 1100, "insert", anew)
        story.ask("w1", 1, 9, "claimed", anew, until=1102)
        story.effect("w1", 1, 1110)
        mine = record("A", 2, "completed", token=2100, r="a|1|p0|w1|1") | {"v": (2 << 20) + 7}
        story.store("w1", 1121, "replace", mine, anew)
        story.finish("w1", 1, 1120, "complete", "recorded", mine)
        story.end(mine)
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

        def denied(story):
            dies(story)
            story.store("w1", 21, "replace", DONE, CLAIM, answer="unavailable")
            story.end(DONE)
        self.bad(denied, "a write was there that was told not to be", "not linearizable")

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

        def answer_lost(story):
            story.store("w1", 10, "insert", CLAIM)
            story.ask("w1", 1, 9, "claimed", CLAIM)
            story.effect("w1", 1, 15)
            story.store("w1", 21, "replace", DONE, CLAIM, answer="in_doubt")
            story.finish("w1", 1, 20, "complete", "unrecorded", None)
            story.effect("w1", 1, 30)
            story.end(DONE)
        self.bad(answer_lost, "a result was recorded with 2 effects")

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


class Restored(unittest.TestCase):
    """Of a backup from 100 to 120 ms, that was restored at 500 ms."""

    def expect(self, begin, there, go_on, *rules, before=None, forgotten=0, again=0):
        """w1 begins, and w3 goes on with what the restored store has."""
        story = Story()
        del story.lines["w2"]
        begin(story)
        story.end(before, audit="before.1", t=450)
        story.end(there, audit="restored.1", t=490)
        story.say("w3", t=510, hello="w3", role="work", lease=LEASE, skew=0)
        story.end(go_on(story), audit="audit.1")
        with tempfile.TemporaryDirectory(prefix="once-check-") as name:
            folder = pathlib.Path(name)
            story.write(folder)
            (folder / "restored.json").write_text(json.dumps({"backup": [100 * MS, 120 * MS], "restored": 500 * MS}))
            found = restored.split(folder)
            rules_found = {wrong["rule"] for wrong in found["violations"]}
            rules_found |= {f"{history}: {rule}" for history in restored.HISTORIES for rule in judge(folder / history)}
        for rule in rules:
            self.assertIn(rule, rules_found)
        if not rules:
            self.assertEqual(rules_found, set())
            self.assertEqual((found["counts"]["forgotten"], found["counts"]["again"]), (forgotten, again))

    @staticmethod
    def is_told(story):
        story.store("w3", 520, "insert", record("C", 1), answer="refused", there=DONE)
        story.ask("w3", 1, 519, "replayed", DONE)
        return DONE

    @staticmethod
    def acts(story, token=1510):
        claim = record("C", 1, token=token, lease=520 + LEASE)
        done = record("C", 2, "completed", token=token, r="a|1|p0|w3|1")
        story.store("w3", 520, "insert", claim)
        story.ask("w3", 1, 519, "claimed", claim)
        story.effect("w3", 1, 525, owner="C")
        story.store("w3", 531, "replace", done, claim)
        story.finish("w3", 1, 530, "complete", "recorded", done)
        return done

    @staticmethod
    def takes_over(story):
        claim = record("C", 2, at=2, token=1700, lease=700 + LEASE)
        story.store("w3", 700, "replace", claim, CLAIM)
        story.ask("w3", 1, 699, "claimed", claim)
        story.effect("w3", 1, 705, owner="C")
        return claim

    @staticmethod
    def late(story, t=200):
        """Claimed at t, and done 10 ms later."""
        story.store("w1", t, "insert", CLAIM)
        story.ask("w1", 1, t - 1, "claimed", CLAIM)
        story.effect("w1", 1, t + 5)
        story.store("w1", t + 10, "replace", DONE, CLAIM)
        story.finish("w1", 1, t + 9, "complete", "recorded", DONE)

    @staticmethod
    def finishes_meanwhile(story):
        """Claimed before the backup, and done while it was taken."""
        story.store("w1", 10, "insert", CLAIM)
        story.ask("w1", 1, 9, "claimed", CLAIM)
        story.effect("w1", 1, 15)
        story.store("w1", 105, "replace", DONE, CLAIM)
        story.finish("w1", 1, 104, "complete", "recorded", DONE)

    def test_what_the_backup_has_is_answered_and_the_rest_may_be_done_again(self):
        self.expect(once, DONE, self.is_told, before=DONE)
        self.expect(self.late, None, self.acts, before=DONE, forgotten=1, again=1)
        self.expect(self.late, None, lambda story: None, before=DONE, forgotten=1)

    def test_what_was_under_way_may_be_in_the_backup(self):
        self.expect(self.finishes_meanwhile, DONE, self.is_told, before=DONE)
        self.expect(self.finishes_meanwhile, CLAIM, self.takes_over, before=DONE)
        # Claimed and done while the backup was taken: the claim that nobody saw was there before its result.
        self.expect(lambda story: self.late(story, 102), DONE, self.is_told, before=DONE, forgotten=1)

        def removed(story):
            self.finishes_meanwhile(story)
            story.store("op", 112, "remove", None, DONE)
        self.expect(removed, None, self.acts)

    def test_no_more_is_forgotten(self):
        self.expect(once, CLAIM, self.takes_over, "after: an acknowledged write is gone", "after: not linearizable",
                    before=DONE)
        self.expect(once, None, self.acts, "after: an acknowledged write is gone", "after: not linearizable", before=DONE)

        def acts_again(story):
            claim = record("C", 3, at=2, token=1700, lease=700 + LEASE)
            story.store("w3", 700, "replace", claim, DONE)
            story.ask("w3", 1, 699, "claimed", claim)
            story.effect("w3", 1, 705, owner="C")
            return claim
        self.expect(once, DONE, acts_again, "after: a result was written over",
                    "after: an effect came again after an attempt that ended known", before=DONE)

    def test_nothing_is_there_that_came_after_the_backup(self):
        self.expect(self.late, DONE, self.is_told, "after: a record was read that nobody wrote", before=DONE)

    def test_the_history_until_the_restore_is_judged_as_any_other(self):
        self.expect(self.late, None, self.acts, "before: an acknowledged write is gone", before=CLAIM)

    def test_tokens_grow_beyond_the_restore(self):
        self.expect(self.late, None, lambda story: self.acts(story, token=1000), "a token fell with the restore",
                    before=DONE)


if __name__ == "__main__":
    REGISTER = pathlib.Path(subprocess.run([ROOT / "tools" / "go-tools"], check=True, stdout=subprocess.PIPE,
                                           text=True).stdout.strip()) / "proof_register"
    program = unittest.main(argv=sys.argv, exit=False, verbosity=2)
    sys.exit(not program.result.wasSuccessful() or not program.result.testsRun)
