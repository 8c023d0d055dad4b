"""A network for a run of the proof: each host is a network namespace on a bridge, and the kernel parts them.

Packets are lost where they arrive, by rules of netfilter for the address that they come from. So each direction can be
cut by itself: requests arrive, and their answers do not. They are doubled where they are sent (TEE), and delayed by a
link that is slow, before which they wait (tbf); not every kernel has netem. Connections, and all that TCP makes of this,
are the kernel's. All of it is in a network namespace of the proof (namespaces.py), and ends with it."""
import itertools

import hosts
import namespaces

NUMBERS = itertools.count(1)
# What is tried before the runs, where nobody sees it.
TRIAL = " && ".join((
    "ip link set lo up", hosts.TRIAL,
    "iptables -A INPUT -s 10.78.0.1 -m statistic --mode random --probability 0.5 -j DROP",
    "iptables -t mangle -A POSTROUTING -d 10.78.0.1 -j TEE --gateway 10.78.0.1",
    "tc qdisc add dev trial1 root tbf rate 64kbit burst 3000 latency 1s"))


def missing():
    """Why this machine cannot do it; nothing if it can."""
    if lack := hosts.lacking({"iptables": "iptables", "tc": "iproute2"}):
        return f"it needs {lack}"
    return namespaces.tried(["unshare", "--net"], TRIAL).replace("\n", "; ")


class Here:
    """Where the proof and the servers are: the bridge's own address."""

    def __init__(self, address):
        self.address = address

    def inside(self, *words):
        hosts.run(*words)


class Network:
    def __init__(self):
        number = next(NUMBERS)
        if number > 254:
            raise RuntimeError("a proof has at most 254 networks")
        self._prefix, self._bridge = f"10.78.{number}", f"net{number}"
        self._number, self._hosts, self._undo = number, [], []
        self.range = f"{self._prefix}.0/24"
        self.here = Here(f"{self._prefix}.1")
        hosts.add_bridge(self._bridge)
        hosts.run("ip", "address", "add", f"{self.here.address}/24", "dev", self._bridge)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.heal()
        for host in self._hosts:
            host.end()
        hosts.run("ip", "link", "delete", self._bridge)

    def host(self):
        number = len(self._hosts) + 2
        self._hosts.append(hosts.Host(f"{self._number}-{number}", f"{self._prefix}.{number}", self._bridge))
        return self._hosts[-1]

    def _until_healed(self, host, add, undo):
        host.inside(*add)
        self._undo.append((host, undo))

    def _rule(self, host, table, chain, *rule):
        words = ["iptables", "--wait", "--table", table]
        self._until_healed(host, [*words, "--append", chain, *rule], [*words, "--delete", chain, *rule])

    def lose(self, source, target, share=1):
        """What the source sends does not arrive: all of it, or that share of its packets."""
        drawn = [] if share == 1 else ["--match", "statistic", "--mode", "random", "--probability", str(share)]
        self._rule(target, "filter", "INPUT", "--source", source.address, *drawn, "--jump", "DROP")

    def part(self, one, other):
        self.lose(one, other)
        self.lose(other, one)

    def double(self, source, target, share):
        self._rule(source, "mangle", "POSTROUTING", "--destination", target.address, "--match", "statistic", "--mode",
                   "random", "--probability", str(share), "--jump", "TEE", "--gateway", target.address)

    def slow(self, host, kbit, most_ms):
        """What a host sends waits up to that long; what would wait for longer is lost."""
        words = ["dev", "eth0", "root", "tbf", "rate", f"{kbit}kbit", "burst", "3000", "latency", f"{most_ms}ms"]
        self._until_healed(host, ["tc", "qdisc", "add", *words], ["tc", "qdisc", "delete", "dev", "eth0", "root"])

    def unplug(self, host):
        """Its interface is down, and its kernel says so to those who ask."""
        self._until_healed(host, ["ip", "link", "set", "eth0", "down"], ["ip", "link", "set", "eth0", "up"])

    def heal(self):
        while self._undo:
            host, words = self._undo.pop()
            host.inside(*words)
