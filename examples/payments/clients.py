"""The clients of the storm. Each wants one order charged, and asks until it has an answer or nobody can give one."""
import collections
import dataclasses
import http.client
import json
import threading

PATIENCE_S = 5.0   # For one answer.
DEADLINE_S = 60.0  # For the whole storm: something is wrong then.


@dataclasses.dataclass
class Order:
    name: str
    cents: int
    card: str = "plain"
    charge: int = 0  # The number that clients were told. 0: none yet.
    unknown: bool = False  # A client was told so, and nobody knows better yet.
    decided: threading.Event = dataclasses.field(default_factory=threading.Event)


@dataclasses.dataclass
class Answer:
    status: int
    json: dict
    replayed: bool

    @property
    def problem(self):
        return str(self.json.get("type", "")).removeprefix("urn:once:problem:")


def ask(port, order, cents, patience_s):
    """None: there was no answer, or none that was waited for. Zero patience: hangs up when the request is sent."""
    body = json.dumps({"order": order.name, "cents": cents, "card": order.card})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s or PATIENCE_S)
    try:
        connection.request("POST", "/charges", body, {"Idempotency-Key": order.name, "Content-Type": "application/json"})
        if not patience_s:
            return None
        answer = connection.getresponse()
        return Answer(answer.status, json.loads(answer.read()), answer.getheader("Idempotent-Replayed") == "true")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Books:
    """What clients saw, and what nobody should have seen."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.problems = []

    def complain(self, text):
        with self.lock:
            self.problems.append(text)

    def enter(self, order, answer, charge_before):
        """True: the order is decided. `charge_before`: what some client knew of it when this one asked. An answer to a
        question that was older than that may be older too."""
        with self.lock:
            self.counts["requests"] += 1
            if answer is None:
                self.counts["no answer"] += 1
                return False
            if answer.status in (200, 201):
                charge = answer.json.get("charge")
                if order.charge not in (0, charge):
                    self.problems.append(f"{order.name}: charge {order.charge} for one client, {charge} for another")
                order.charge = charge
                order.unknown = False
                self.counts["replays"] += answer.replayed
            elif answer.problem == "outcome-unknown":
                if charge_before:
                    self.problems.append(f"{order.name}: acknowledged as charge {charge_before}, and lost after that")
                order.unknown = bool(charge_before or not order.charge)
            else:
                self.counts["conflicts"] += answer.problem in ("in-progress", "claim-lost")
                if answer.status not in (409, 502, 503, 504):
                    self.problems.append(f"{order.name}: unexpected answer {answer.status} {answer.json}")
                return False
        order.decided.set()
        return True

    def enter_of_stranger(self, order, answer, _charge_before):
        """The key came with another amount. True: it was refused."""
        with self.lock:
            self.counts["requests"] += 1
            if answer is None:
                self.counts["no answer"] += 1
                return False
            if answer.status == 422:
                self.counts["mismatches"] += 1
                return True
            if answer.status < 300:
                self.problems.append(f"{order.name}: another amount was accepted under its key")
                return True
            return False


class Client(threading.Thread):
    """Asks at its time. `patience_s`: of its first requests, one each; after that it is patient."""

    def __init__(self, books, doors, order, rng, at_s=0.0, patience_s=(), stranger=False):
        super().__init__(daemon=True)
        self.books = books
        self.doors = doors  # Goes to the first one first, and to the next when there is no answer.
        self.order = order
        self.at_s = at_s
        self.patience_s = list(patience_s)
        self.stranger = stranger
        self.pauses_s = [rng.uniform(0.05, 0.25) for _ in range(8)]
        self.over = threading.Event()

    def run(self):
        self.over.wait(self.at_s)
        if self.stranger:
            self.order.decided.wait(DEADLINE_S)  # Whoever comes first decides what the key is for.
        enter = self.books.enter_of_stranger if self.stranger else self.books.enter
        cents = self.order.cents + 400 * self.stranger
        turn = 0
        while not self.over.is_set():
            door = self.doors[turn % len(self.doors)]
            charge_before = self.order.charge
            answer = ask(door.port, self.order, cents, self.patience_s.pop(0) if self.patience_s else PATIENCE_S)
            if enter(self.order, answer, charge_before):
                return
            turn += answer is None
            # In a storm nobody waits for Retry-After.
            self.pauses_s.append(self.pauses_s.pop(0))
            self.over.wait(self.pauses_s[0])
