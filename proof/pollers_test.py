#!/usr/bin/env python3
"""pollers_test.py: what pollers.judge() finds, by short histories written by hand. The good one passes; in each bad one,
what was changed is found, by the rule that is about it."""
import json
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "real_servers"))
import pollers  # noqa: E402

OPERATION = "a|0.1|0"


class Story:
    """One order, sent twice, that w0.1 does and w1.1 finds done. Times are seconds of a minute."""

    def __init__(self):
        self.queue = [{"sent": "m1", "want": OPERATION}, {"sent": "m2", "want": OPERATION}]
        self.ledger, self.told = [], {"w0.1": [], "w1.1": []}
        self.about = {"hold": False, "disturbed": [], "open": [], "records": [{"key": "k1", "state": "completed"}],
                      "last": [], "wrong": []}

    def work(self, second, life="w0.1", message="m1", token=1, acts=True, operation=OPERATION, key="k1"):
        for what in ("begun", "effect")[:1 + acts]:
            self.ledger.append({"what": what, "op": operation, "message": message, "life": life, "key": key,
                                "token": token, "at": second * 1000})

    def tell(self, second, end, life="w0.1", message="m1", deleted=True):
        self.told[life].append({"time": f"1970-01-01T00:00:{second:02}.000Z", "event": "ended", "message_id": message,
                                "end": end, "deleted": deleted})
        if deleted:
            self.queue.append({"deleted": message, "comes_again": False})

    def good(self):
        self.work(1)
        self.tell(2, "executed")
        self.tell(3, "replayed", "w1.1", "m2")
        return self

    def judge(self):
        with tempfile.TemporaryDirectory() as name:
            files = {"queue": self.queue, "ledger": self.ledger, "pollers": [self.about], **self.told}
            for file, lines in files.items():
                (pathlib.Path(name) / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            counts, found = pollers.judge(pathlib.Path(name))
        return counts, sorted(each["rule"] for each in found)


class Judge(unittest.TestCase):
    def expect(self, story, *rules):
        counts, found = story.judge()
        self.assertEqual(found, sorted(rules))
        return counts

    def killed(self):
        """w0.1 was killed after it acted; w1.1 did the work again."""
        story = Story()
        story.work(1)
        story.about["disturbed"] = ["w0.1"]
        story.work(2, "w1.1", token=2)
        story.tell(3, "executed", "w1.1")
        return story

    def test_a_good_history(self):
        counts = self.expect(Story().good())
        self.assertEqual((counts["effects"], counts["doubles"], counts["in_doubt"], counts["lost"]), (1, 0, 0, 0))

    def test_a_time_in_which_no_message_ended(self):
        story = self.killed()
        story.tell(5, "error", "w1.1", "m2", deleted=False)
        story.tell(9, "replayed", "w1.1", "m2")
        self.assertEqual(self.expect(story)["unavailable_s"], 6)
        story.about["last"] = ["w1.1"]
        self.assertEqual(self.expect(story)["unavailable_s"], 0)

    def test_the_line_that_a_killed_process_did_not_finish(self):
        story = self.killed()
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "w0.1.jsonl").write_text(json.dumps({"event": "ended", "end": "executed"}) + '\n{"event": "en')
            self.assertEqual(len(pollers.ends(folder, "w0.1")), 1)
        self.expect(story)

    def test_work_of_a_killed_process_may_be_done_again(self):
        counts = self.expect(self.killed())
        self.assertEqual((counts["effects"], counts["doubles"], counts["in_doubt"]), (2, 1, 1))

    def test_a_lost_claim_is_in_doubt_and_a_failure_is_not(self):
        story = Story()
        story.work(1)
        story.tell(2, "lost", deleted=False)
        story.work(2, "w1.1", token=2)
        story.tell(3, "executed", "w1.1")
        self.assertEqual(self.expect(story)["in_doubt"], 1)
        story.told["w0.1"][0]["end"] = "failed"
        self.expect(story, "an effect came again though every attempt ended known")

    def test_never_twice_under_hold(self):
        story = self.killed()
        story.about["hold"] = True
        self.expect(story, "work was done twice under hold")

    def test_done_twice(self):
        story = Story().good()
        story.work(2, "w1.1", "m2", token=2)
        story.told["w1.1"][0]["end"] = "executed"
        self.expect(story, "an operation was told done twice", "an effect came again though every attempt ended known")

    def test_begun_again_after_it_was_done(self):
        story = Story().good()
        story.about["disturbed"] = ["w1.1"]
        story.work(5, "w1.1", "m2", token=2, acts=False)
        self.expect(story, "work began again after it was told done")

    def test_told_done_and_deleted_but_not_done(self):
        story = Story().good()
        story.ledger.pop()
        self.expect(story, *2 * ["a message was told done, but its work was not done"],
                    *2 * ["a message is gone, and its work was not done"], "a result was stored, but its work was not done")

    def test_deleted_by_a_process_that_told_nothing(self):
        story = Story()
        story.about["records"] = []
        story.queue.append({"deleted": "m1", "comes_again": True})
        self.assertEqual(self.expect(story, "a message is gone, and its work was not done")["lost"], 1)

    def test_given_up_after_it_was_received_too_often(self):
        story = Story().good()
        story.queue += [{"sent": "m3", "want": "a|0.1|1"}, {"given_up": "m3"}]
        self.expect(story, "a message was given up, and nobody told why it stays")
        story.tell(4, "mismatch", message="m3", deleted=False)
        self.expect(story)

    def test_nobody_told_how_an_attempt_ended(self):
        story = self.killed()
        story.about["disturbed"] = []
        self.expect(story, "an attempt ended, and nobody told how")

    def test_one_token_twice(self):
        story = self.killed()
        for line in story.ledger:
            line["token"] = 1
        self.expect(story, "two attempts have one token")

    def test_two_payloads(self):
        story = Story().good()
        other = "a|0.1|1"
        story.queue.append({"sent": "m3", "want": other})
        story.work(4, "w1.1", "m3", token=2, operation=other)
        story.tell(5, "executed", "w1.1", "m3")
        self.expect(story, "two payloads of one key were run")

    def test_what_the_run_itself_has_seen(self):
        story = Story().good()
        story.about |= {"open": ["m2"], "wrong": ["w0.1 ended with 1"]}
        self.expect(story, "a message never came to an end", "a process did not end in order")


if __name__ == "__main__":
    unittest.main()
