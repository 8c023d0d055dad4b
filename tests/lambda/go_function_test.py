"""The outside check of the local Runtime API: a function on AWS's own library (aws-lambda-go), run by once lambda invoke."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/apps"))
import harness  # noqa: E402
from harness import Case  # noqa: E402

TOOLS = subprocess.run([ROOT / "tools/go-tools"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
FUNCTION = os.path.join(TOOLS, "lambda_function")


class GoFunction(Case):
    def invoke(self, *words, code=0):
        """The rows and what the function wrote. Words that are dicts are events."""
        flags = [word for word in words if isinstance(word, str)]
        events = []
        for number, word in enumerate(word for word in words if isinstance(word, dict)):
            events.append(f"event-{number}.json")
            self.path(events[-1]).write_text(json.dumps(word))
        done = self.once("lambda", "invoke", "--json", *flags, FUNCTION, *events, text=True)
        self.expect(done, code)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def test_answers(self):
        rows, _ = self.invoke("--repeat", "50", "--concurrency", "2", {"do": "echo", "text": "\u00e4\u0000x"})
        self.assertEqual([row["response"] for row in rows], 50 * [{"do": "echo", "text": "\u00e4\u0000x"}])

    def test_knows_its_invocation(self):
        ((row,), _) = self.invoke("--name", "pay", "--memory", "256", "--timeout", "60s", {"do": "context"})
        response = row["response"]
        self.assertTrue(0 < response.pop("left_ms") <= 60000)
        self.assertEqual(
            response,
            {
                "request_id": row["request_id"],
                "arn": "arn:aws:lambda:eu-central-1:000000000000:function:pay",
                "name": "pay",
                "version": "$LATEST",
                "memory": 256,
            },
        )

    def test_errors(self):
        ((row, after), _) = self.invoke({"do": "fail"}, {"do": "echo"}, code=237)
        self.assertEqual((row["outcome"], row["error_type"]), ("error", "errorString"))
        self.assertEqual(row["error_message"], "the card was declined")
        self.assertEqual((after["outcome"], after["cold"]), ("response", False))

    def test_a_panic_is_an_answer_and_the_end_of_the_process(self):
        ((row, after), _) = self.invoke({"do": "panic"}, {"do": "echo"}, code=237)
        self.assertEqual((row["outcome"], row["error_message"]), ("error", "all is lost"))
        self.assertEqual((after["outcome"], after["cold"]), ("response", True))

    def test_the_end_of_the_process_is_no_answer(self):
        ((row, after), _) = self.invoke({"do": "exit"}, {"do": "echo"}, code=238)
        self.assertEqual((row["outcome"], row["error_message"]), ("died", "the function ended with exit code 3"))
        self.assertEqual(after["outcome"], "response")

    def test_streams(self):
        text = "x" * 3_000_000
        ((row, broken), _) = self.invoke({"do": "stream", "text": text}, {"do": "break", "text": "a part"}, code=237)
        self.assertEqual(row["response_text"], text)
        self.assertEqual((broken["outcome"], broken["response_text"]), ("error", "a part"))
        self.assertEqual((broken["error_type"], broken["error_message"]), ("errorString", "broken off"))

    def test_a_response_that_is_too_large(self):
        ((row, after), _) = self.invoke({"do": "double", "text": "x" * 4_000_000}, {"do": "echo"}, code=237)
        self.assertEqual((row["outcome"], row["error_type"]), ("error", "Function.ResponseSizeTooLarge"))
        self.assertEqual(after["outcome"], "response")

    def test_timeouts_and_kills(self):
        ((row, after), _) = self.invoke("--timeout", "6s", {"do": "hang"}, {"do": "echo"}, code=238)
        self.assertEqual((row["outcome"], after["outcome"], after["cold"]), ("timed_out", "response", True))
        rows, _ = self.invoke("--repeat", "2", "--kill-at", "answering", {"do": "echo"})
        self.assertEqual([row["outcome"] for row in rows], ["killed", "response"])


if __name__ == "__main__":
    harness.main()
