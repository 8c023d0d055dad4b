"""Hosts of a test: network namespaces on a bridge. The bridge is in a network namespace of the test (namespaces.py)."""
import shutil
import subprocess

TOOLS = {"ip": "iproute2", "bridge": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
# Does what hosts need, where nobody sees it: a trial for namespaces.enter().
TRIAL = "ip link add trial0 type bridge && ip link add trial1 type veth peer name trial2"


def lacking(tools=None):
    """The first tool that is not installed, and its package; nothing if all are."""
    return next((f"`{tool}`: install {package} (tools/setup does)"
                 for tool, package in (TOOLS | (tools or {})).items() if not shutil.which(tool)), "")


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def add_bridge(name):
    run("ip", "link", "add", name, "type", "bridge")
    run("ip", "link", "set", name, "up")


class Host:
    """A namespace on the bridge, which has one end of a veth pair. It ends when its holder's standard input does, at the
    latest with this process."""

    def __init__(self, name, address, bridge):
        self.name, self.address = name, address
        self.port = f"port-{name}"
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo there; exec cat"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "there\n":
            raise RuntimeError(f"there is no namespace for {name}")
        run("ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid))
        run("ip", "link", "set", self.port, "master", bridge, "up")
        self.inside("ip", "address", "add", f"{address}/24", "dev", "eth0")
        self.inside("ip", "link", "set", "lo", "up")
        self.inside("ip", "link", "set", "eth0", "up")

    def enter(self):
        return ["nsenter", "--target", str(self.holder.pid), "--net"]

    def inside(self, *words):
        run(*self.enter(), *words)

    def end(self):
        self.holder.stdin.close()
        self.holder.stdout.close()
        self.holder.wait()
