"""Processes of `once sqs` on a queue that delivers twice, loses requests and answers, and brings back what was deleted. What
they tell of each message, what the queue did, and the ledger are judged."""
import collections
import datetime
import json
import random
import signal
import subprocess
import threading
import time

import check
import emulator
import message_queue

# What the command does: it says that it began, waits a little, sometimes fails, and then acts. Its lines of the ledger say
# for which message, in which process of `once sqs`, and with which token.
COMMAND = r"""
say() {
  printf '{"what": "%s", "op": "%s", "message": "%s", "life": "%s", "key": "%s", "token": %s, "at": %s}\n' "$1" \
    "$ONCE_SQS_ATTRIBUTE_WANT" "$ONCE_SQS_MESSAGE_ID" "$life" "$ONCE_KEY" "$ONCE_TOKEN" "$(date +%s%3N)" >>"$0"
}
life=$1
say begun
sleep "$ONCE_SQS_ATTRIBUTE_LENGTH"
[ $(($$ % 20)) -ne 0 ] || exit 1
say effect
"""
PLANTED = {  # Settings that switch a part of the protection off.
    "sqs_without_tenant": {"--key": "name"},
    "sqs_without_fingerprint": {"--fingerprint": "type(@)"},
    "sqs_own_store": {"--store": "memory:", "--unshared-store": None},
    "sqs_forgets": {"--retention": "1ms"},
}
POLLERS = 3
END_LIMIT_S = 60
STAYS = ("mismatch", "unknown")  # Ends of a message that is left in the queue.
RAN = ("executed", "failed", "lost", "unrecorded", "unprotected")  # Ends of a message whose command was run.


class Pollers:
    """Three of them, and one who sends. Like those of programs.py, for a run of proof.py."""

    def __init__(self, run, once):
        self.run, self.once = run, once
        self.hold = "hold" in run.fault
        self.disturbed = set()  # Processes that were killed or stopped.
        self.wrong = []
        # Not of the run's own chance, which the nemesis draws from: so that each draws the same again.
        self.queue = message_queue.MessageQueue(run.folder, random.Random(f"{run.seed} queue"), run.act == "calm")
        (run.folder / "ledger.jsonl").touch()
        run.workers = {f"w{number}": self._start(f"w{number}") for number in range(POLLERS)}
        self.sender = threading.Thread(target=self._send)
        self.sender.start()

    def _start(self, name):
        self.run.lives[name] += 1
        life = f"{name}.{self.run.lives[name]}"
        settings = {"--queue": message_queue.NAME, "--endpoint": self.queue.url, "--store": self.run.store.url,
                    "--scope": message_queue.NAME, "--key-from": "payload", "--key": "join('|', [tenant, name])",
                    "--fingerprint": "payload", "--parallel": "3", "--lease": f"{self.run.kind.lease_ms}ms",
                    "--visibility": "3s", "--receive-wait": "1s", "--log": "json", "--on-lapse": "hold" if self.hold else "takeover"}
        settings |= PLANTED.get(self.run.bug, {})
        words = [word for pair in settings.items() for word in pair if word is not None]
        with open(self.run.folder / f"{life}.jsonl", "w") as log:
            poller = subprocess.Popen(
                [self.once, "sqs", *words, "--", "sh", "-c", COMMAND, self.run.folder / "ledger.jsonl", life],
                # The queue is named by --endpoint.
                env=emulator.environment(self.run.store.environment.get("AWS_ENDPOINT_URL", self.queue.url),
                                         self.run.store.environment), stderr=log)
        poller.life = life
        return poller

    def _send(self):
        chance = random.Random(f"{self.run.seed} sender")
        while not self.run.over.wait(chance.uniform(0.01, 0.06)):
            window = (time.monotonic_ns() - self.run.began_ns) // 2_000_000_000
            tenant, name = chance.choice("ab"), f"{window}.{chance.randrange(5)}"
            payload, length = "1" if chance.random() < 0.05 else "0", chance.choice(("0", "0.02", "0.02", "0.8"))
            self.queue.send({"tenant": tenant, "name": name, "payload": payload},
                            {"want": f"{tenant}|{name}|{payload}", "length": length})

    def kill(self):
        name = self.run.chance.choice(sorted(self.run.workers))
        self.disturbed.add(self.run.workers[name].life)
        self.run.workers[name].kill()
        self.run.workers[name].wait()
        self.run.pause(0, 0.2)
        self.run.workers[name] = self._start(name)

    def stop(self):
        """Its commands go on, and act when its lease is over."""
        poller = self.run.workers[self.run.chance.choice(sorted(self.run.workers))]
        self.disturbed.add(poller.life)
        poller.send_signal(signal.SIGSTOP)
        self.run.pause(0.3, 2.4)
        poller.send_signal(signal.SIGCONT)

    def end(self):
        """All end in order. Then new ones, on a queue that loses nothing, must come to an end with each message."""
        self.sender.join()
        self._end_pollers()
        self.queue.calm = True
        self.run.workers = {name: self._start(name) for name in self.run.workers}
        until = time.monotonic() + END_LIMIT_S
        while (open_messages := self._open()) and self._all_live() and time.monotonic() < until:
            time.sleep(0.1)
        self._end_pollers()
        self.queue.close()
        with open(self.run.folder / "pollers.jsonl", "w") as file:
            file.write(json.dumps({"hold": self.hold, "disturbed": sorted(self.disturbed), "open": open_messages,
                                   "last": [poller.life for poller in self.run.workers.values()],
                                   "records": self._records(), "wrong": self.wrong}) + "\n")

    def _records(self):
        if "--store" in PLANTED.get(self.run.bug, {}):
            return []  # Nobody has used the run's store.
        told = subprocess.run([self.once, "ls", "--store", self.run.store.url, "--json"], check=True, text=True,
                              stdout=subprocess.PIPE, env=self.run.store.environment).stdout
        return [{name: record[name] for name in ("key", "state")} for record in json.loads(told)]

    def _end_pollers(self):
        for poller in self.run.workers.values():
            poller.send_signal(signal.SIGTERM)
        for poller in self.run.workers.values():
            code = poller.wait(END_LIMIT_S)
            # The signal ends one that has only just been started.
            just_started = code == -signal.SIGTERM and not (self.run.folder / f"{poller.life}.jsonl").stat().st_size
            if code and not just_started:
                self.wrong.append(f"{poller.life} ended with {code}")

    def _all_live(self):
        return all(poller.poll() is None for poller in self.run.workers.values())

    def _open(self):
        """Messages that are left, and no answer of the last pollers says that they stay for a reason."""
        left = set(self.queue.left())
        for poller in self.run.workers.values():
            left -= {line["message_id"] for line in ends(self.run.folder, poller.life)
                     if line["end"] in STAYS}
        return sorted(left)


def ends(folder, life):
    """What this process told of messages. The last line of one that was killed may be cut."""
    text = (folder / f"{life}.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")]
    return [line for line in lines if line["event"] == "ended"]


def epoch_ms(time_text):
    """Of a time as the log has it, such as 2026-11-25T10:00:00.123Z."""
    return int(datetime.datetime.fromisoformat(time_text.replace("Z", "+00:00")).timestamp() * 1000)


def judge(folder):
    """The counts, and what is wrong."""
    wrong, counts = [], collections.Counter()
    about = json.loads((folder / "pollers.jsonl").read_text())
    want, deleted, given_up, stays = {}, set(), set(), set()
    for line in map(json.loads, (folder / "queue.jsonl").read_text().splitlines()):
        if "sent" in line:
            want[line["sent"]] = line["want"]
            counts["messages"] += 1
        elif "deleted" in line:
            deleted.add(line["deleted"])
        elif "given_up" in line:
            given_up.add(line["given_up"])
        counts["doubled"] += bool(line.get("doubled") or line.get("comes_again"))
        counts["lost on the way"] += "lost" in line
    begun, effects, executed, in_doubt = (collections.defaultdict(list) for _ in range(4))
    of_attempt = collections.Counter()  # By process and message: attempts that nobody has told of yet.
    tokens = collections.defaultdict(dict)
    for line in map(json.loads, (folder / "ledger.jsonl").read_text().splitlines()):
        (begun if line["what"] == "begun" else effects)[line["op"]].append(line)
        if line["what"] == "begun":
            of_attempt[line["life"], line["message"]] += 1
            key = line["op"].rsplit("|", 1)[0]
            other = tokens[key].setdefault(line["token"], line)
            if other is not line:
                wrong.append(("two attempts have one token", key, other, line))
    done_ns = []
    for file in sorted(folder.glob("w*.jsonl")):
        for line in ends(folder, file.stem):
            operation, counted = want[line["message_id"]], (file.stem, line["message_id"])
            counts["calls"] += 1
            counts[f"told {line['end']}"] += 1
            if line["end"] in STAYS:
                stays.add(line["message_id"])
            if line["end"] != "error" and file.stem not in about["last"]:
                done_ns.append(epoch_ms(line["time"]) * 1_000_000)
            if line["end"] in RAN:
                of_attempt[counted] -= of_attempt[counted] > 0
            if line["end"] == "executed":
                executed[operation].append(line)
            elif line["end"] in RAN and line["end"] != "failed":
                in_doubt[operation].append(line)
            if line["end"] in ("executed", "replayed") and operation not in effects:
                wrong.append(("a message was told done, but its work was not done", operation, line))
    for (life, message), left in of_attempt.items():
        if left:
            in_doubt[want[message]] += left * [{"life": life, "message": message, "told": "nothing"}]
        if left and life not in about["disturbed"]:
            wrong.append(("an attempt ended, and nobody told how", want[message], {"life": life, "message": message}))
    for operation, made in effects.items():
        counts["effects"] += len(made)
        counts["doubles"] += max(0, len(made) - 1)
        if about["hold"] and len(made) > 1:
            wrong.append(("work was done twice under hold", operation, *made))
        if len(made) - (operation in executed) > len(in_doubt.get(operation, ())):
            wrong.append(("an effect came again though every attempt ended known", operation, *made))
    for operation, told in executed.items():
        if len(told) > 1:
            wrong.append(("an operation was told done twice", operation, *told))
        for line in begun.get(operation, ()):
            if line["at"] > epoch_ms(told[0]["time"]):
                wrong.append(("work began again after it was told done", operation, told[0], line))
        other = operation[:-1] + "1"
        if other != operation and other in executed:
            wrong.append(("two payloads of one key were run", operation, told[0], executed[other][0]))
    for message in sorted(deleted):
        if want[message] not in effects:
            counts["lost"] += 1
            wrong.append(("a message is gone, and its work was not done", want[message], {"message": message}))
    done = {line["key"] for made in effects.values() for line in made}
    for record in about["records"]:
        if record["state"] == "completed" and record["key"] not in done:
            wrong.append(("a result was stored, but its work was not done", record["key"], record))
    wrong += [("a message never came to an end", want[message], {"message": message}) for message in about["open"]]
    wrong += [("a message was given up, and nobody told why it stays", want[message], {"message": message})
              for message in sorted(given_up - deleted - stays)]
    wrong += [("a process did not end in order", "", text) for text in about["wrong"]]
    counts["in_doubt"] = sum(map(len, in_doubt.values()))
    counts["unavailable_s"] = check.unavailable_s(done_ns)
    return counts, [{"rule": rule, "key": key, "history": list(lines)} for rule, key, *lines in wrong]
