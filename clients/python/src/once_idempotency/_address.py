"""Where the server is: named by the caller or the environment, or started on demand for a store."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Union
from urllib.parse import urlsplit

from ._wire import Unreachable

START_TIMEOUT_S = 60.0  # Of `once serve --on-demand`, which may create a store.


@dataclass(frozen=True)
class Unix:
    path: str
    is_on_demand: bool = False

    def require_trusted(self, connected: Any) -> None:
        """Of a socket that is connected. Another user's server would see every request, and could invent results."""
        if not hasattr(socket, "SO_PEERCRED"):
            return
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
        _, peer, _ = struct.unpack("iII", credentials)
        try:
            directory = os.stat(os.path.dirname(self.path))
        except OSError as error:
            raise Unreachable(f"no server at {self.path}: {error}") from error
        why = distrust(peer, os.geteuid(), self.is_on_demand, directory.st_uid, directory.st_mode)
        if why:
            raise Unreachable(f"the server at {self.path} {why}", fatal=True)


def distrust(peer: int, own: int, is_on_demand: bool, directory_owner: int, directory_mode: int) -> str:
    """Why a server of user `peer` is not used; empty if it is. A server on demand is this user's. One that the caller has
    named may be another user's, who shares it: but not where any user could have made its socket first."""
    if is_on_demand:
        return "" if peer == own else f"belongs to user {peer}"
    if peer in (own, 0, directory_owner) or not directory_mode & stat.S_IWOTH:
        return ""
    return f"belongs to user {peer}, and every user can write its directory: use one that only the server's user can write"


@dataclass(frozen=True)
class Tcp:
    host: str
    port: int
    token_file: str

    def token(self) -> str:
        """Read for each connection, so that a new token is used as soon as it is in the file."""
        try:
            with open(self.token_file, encoding="ascii") as file:
                token = file.read().strip()
        except (OSError, ValueError) as error:
            raise Unreachable(f"cannot read the token file {self.token_file}: {error}", fatal=True) from error
        if not token or not token.isprintable() or " " in token:
            raise Unreachable(f"the token file {self.token_file} holds no token", fatal=True)
        return token


@dataclass(frozen=True)
class OnDemand:
    """`once serve --on-demand` is asked for the socket of this store before each connection."""

    store: str
    program: str
    directory: Optional[str]  # From which the store is seen, whatever the process changes to.

    def command(self) -> List[str]:
        return [self.program, "serve", "--on-demand"]

    def environment(self) -> Dict[str, str]:
        """With the store: its URL may have a password, and every user of the host sees a command line."""
        return {**os.environ, "ONCE_STORE": self.store}


Address = Union[Unix, Tcp, OnDemand]


class Where:
    """An address that is looked up when it is needed: the environment may be set after the import of a module."""

    def __init__(self, server: Optional[str], store: Optional[str], token_file: Optional[str], program: Optional[str]):
        self._arguments = (server, store, token_file, program)
        self._address: Optional[Address] = None
        self._is_named = server is not None or store is not None
        if self._is_named:
            self._address = resolve(*self._arguments)  # A mistake is reported where it is made.

    def forget(self) -> None:
        if not self._is_named:
            self._address = None

    def address(self) -> Address:
        if self._address is None:
            try:
                self._address = resolve(*self._arguments)
            except ValueError as error:
                raise Unreachable(str(error), fatal=True) from error
        return self._address


def resolve(server: Optional[str], store: Optional[str], token_file: Optional[str], program: Optional[str]) -> Address:
    """What the arguments say; else ONCE_SERVER, else ONCE_STORE."""
    if server is not None and store is not None:
        raise ValueError("give server= or store=, not both: a server has a store of its own")
    if server is None and store is None:
        server = os.environ.get("ONCE_SERVER") or None
        if server is None:
            store = os.environ.get("ONCE_STORE") or None
    if server is not None:
        return _server(server, token_file)
    if store is None:
        raise ValueError(
            "no server and no store is named: give server='unix:/run/once/serve.sock' or store='sqlite:once.db', "
            "or set ONCE_SERVER or ONCE_STORE"
        )
    if token_file is not None:
        raise ValueError("token_file= is for a server on a loopback address")
    return OnDemand(store, _find(program), _working_directory())


def _server(server: str, token_file: Optional[str]) -> Address:
    if server.startswith("unix:"):
        path = server[len("unix:"):]
        if not path:
            raise ValueError("the server 'unix:' names no socket")
        if token_file is not None:
            raise ValueError("token_file= is for a server on a loopback address: who may use a socket, its mode says")
        return Unix(os.path.abspath(path))
    url = urlsplit(server)
    host = "127.0.0.1" if url.hostname == "localhost" else url.hostname
    if url.scheme != "http" or host not in ("127.0.0.1", "::1") or not url.port or url.path not in ("", "/") or url.query:
        raise ValueError(f"the server '{server}' is neither unix:PATH nor http://127.0.0.1:PORT")
    token_file = token_file or os.environ.get("ONCE_TOKEN_FILE") or None
    if token_file is None:
        raise ValueError(f"the server '{server}' needs a token: give token_file=, or set ONCE_TOKEN_FILE")
    return Tcp(host, url.port, token_file)


def _working_directory() -> Optional[str]:
    try:
        return os.getcwd()
    except OSError:  # It was removed. The program says so, if the store is seen from there.
        return None


def _find(program: Optional[str]) -> str:
    named = program or os.environ.get("ONCE_PROGRAM") or None
    if named is not None:
        return os.path.abspath(named) if os.sep in named else named
    carried = os.path.join(os.path.dirname(__file__), "bin", "once")
    if os.access(carried, os.X_OK):
        return carried
    beside = os.path.join(os.path.dirname(sys.executable), "once")
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("once")
    if found is None:
        raise ValueError("store= needs the program `once` on PATH, or its path in program= or ONCE_PROGRAM")
    return found


class Starting:
    """The program, started. Its output goes to files: the server that it leaves behind may keep pipes open."""

    def __init__(self, address: OnDemand):
        self.command = address.command()
        try:
            self.output = tempfile.TemporaryFile()
            self.errors = tempfile.TemporaryFile()
        except OSError as error:
            raise Unreachable(f"no file for what {self.command[0]} prints: {error}") from error
        try:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.errors,
                env=address.environment(), cwd=None if address.directory == _working_directory() else address.directory,
            )
        except OSError as error:
            self._close()
            raise Unreachable(f"cannot start {self.command[0]}: {error}", fatal=True) from error

    def __enter__(self) -> "Starting":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        self.output.close()
        self.errors.close()

    def late(self) -> Unreachable:
        return Unreachable(f"`{' '.join(self.command)}` did not end in time", fatal=True)

    def socket(self, code: int) -> Unix:
        """Of the server, once the program has ended with this code."""
        for file in (self.output, self.errors):
            file.seek(0)
        if code != 0:
            detail = self.errors.read().decode("utf-8", "replace").strip()[-1000:]
            raise Unreachable(f"`once serve --on-demand` ended with exit code {code}: {detail}", fatal=True)
        line = self.output.readline()
        try:
            path = json.loads(line)["socket"]
            if not isinstance(path, str) or not path.startswith("/"):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise Unreachable(f"`once serve --on-demand` printed {line[:200]!r}, not its socket", fatal=True) from None
        return Unix(path, is_on_demand=True)
