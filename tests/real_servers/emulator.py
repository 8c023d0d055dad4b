"""moto (an emulator of AWS services) on a free loopback port, for the length of a test.

    with emulator.running() as endpoint:          # "http://127.0.0.1:43127"
        subprocess.run(..., env=emulator.environment(endpoint))

The server is a process of its own. It ends with its starter, however that ends: it watches its standard input. A server
that does not come up is an error, never a reason to skip.
"""
import contextlib
import os
import pathlib
import select
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
TOOLS = FOLDER.parent.parent / "tools"


def python():
    """The Python that has tests/requirements.txt."""
    return subprocess.run([TOOLS / "python-tools"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def environment(endpoint, base=None):
    """What a program needs to find the server and nothing else of AWS: no profile, role or proxy of this machine."""
    kept = {
        name: value
        for name, value in (os.environ if base is None else base).items()
        if not name.startswith(("AWS_", "BOTO_")) and name.lower() not in ("http_proxy", "https_proxy", "all_proxy")
    }
    return kept | {
        "ONCE_TEST_MOTO_ENDPOINT": endpoint,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def running(start_limit_s=60, host=None):
    """Gives the endpoint. The server is on that host (tests/apps/hosts.py)."""
    server = subprocess.Popen(
        [*(host.enter() if host else []), python(), FOLDER / "serve_moto.py", host.address if host else "127.0.0.1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        ready, _, _ = select.select([server.stdout], [], [], start_limit_s)
        endpoint = server.stdout.readline().strip() if ready else ""
        if not endpoint:
            raise RuntimeError(f"moto did not start within {start_limit_s} s (exit code {server.poll()})")
        yield endpoint
    finally:
        server.stdin.close()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()


def main():
    """with-moto COMMAND [ARGUMENT ...]"""
    if len(sys.argv) < 2:
        sys.exit("usage: with-moto COMMAND [ARGUMENT ...]")
    with running() as endpoint:
        status = subprocess.run(sys.argv[1:], env=environment(endpoint), check=False).returncode
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
