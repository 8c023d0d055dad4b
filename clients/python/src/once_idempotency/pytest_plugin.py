"""Fixtures of pytest: a server of the test's own, and a client of it.

    def test_a_retry_is_charged_once(once): ...

They need the program `once`, on PATH or named by ONCE_PROGRAM. ONCE_SERVER names the server while the test runs, so that
functions decorated with the module's `idempotent` use it too.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from typing import Iterator

import pytest

from ._address import _find
from ._client import Once, default_once

__all__ = ["once", "once_server"]


@pytest.fixture
def once_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of `once serve` on an empty store, which ends with the test."""
    folder = tempfile.mkdtemp(prefix="once-")  # Not tmp_path: the path of a socket has at most 107 bytes.
    address = f"unix:{folder}/s"
    command = [_find(None), "serve", "--store", f"sqlite:{folder}/once.db", "--listen", address, "--log", "none"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        line = server.stderr.readline().decode("utf-8", "replace")
        if "listening" not in line:
            raise RuntimeError(f"{' '.join(command)}: {line}")
        monkeypatch.setenv("ONCE_SERVER", address)
        default_once().forget()
        yield address
    finally:
        default_once().forget()
        server.kill()
        server.communicate()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def once(once_server: str) -> Iterator[Once]:
    """A client of that server."""
    client = Once(server=once_server)
    yield client
    client.close()
