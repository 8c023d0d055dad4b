"""Where the server is: named by the caller or the environment, or started on demand for a store."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple, Union

from ._wire import Response, Unreachable

if TYPE_CHECKING:
    import ssl

START_TIMEOUT_S = 60.0  # Of `once serve --on-demand`, which may create a store.


class Direct:
    """An address that can be connected."""

    token: Optional[Token] = None

    @property
    def authority(self) -> str:
        return "once"

    def shown(self) -> Optional[str]:
        """The token for a request."""
        return None if self.token is None else self.token.text()

    def is_refused(self, response: Response, shown: Optional[str]) -> bool:
        """Whether the server does not know this token, and the file has another one by now."""
        return response.status == 401 and self.token is not None and shown is not None and self.token.is_renewed(shown)

    def response(self, status: int, headers: Mapping[str, str], body: bytes) -> Response:
        return Response(status, headers, body, self._advice(status) if status in (401, 403) else "")

    def _advice(self, status: int) -> str:
        return ""

    def failed(self, error: Exception) -> Unreachable:
        return Unreachable(f"no server at {self}: {error}", fatal=isinstance(error, UnicodeError))  # No name of a host.

    def broken(self, error: Exception) -> Unreachable:
        return Unreachable(f"the connection broke: {error}")


@dataclass(frozen=True)
class Unix(Direct):
    path: str
    is_on_demand: bool = False

    def __str__(self) -> str:
        return self.path

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


class Token:
    """What a file has. It is read at the first request, and again when the server does not know the token any more."""

    def __init__(self, file: str):
        self.file = file
        self._text: Optional[str] = None

    def text(self) -> str:
        if self._text is None:
            self._text = self._read()
        return self._text

    def is_renewed(self, refused: str) -> bool:
        """Whether the file has another one than the server has refused."""
        try:
            self._text = self._read()
        except Unreachable:  # It is just being replaced, perhaps.
            return False
        return self._text != refused

    def _read(self) -> str:
        try:
            kind = os.stat(self.file)
            if not stat.S_ISREG(kind.st_mode):
                raise Unreachable(f"the token file {self.file} is not a regular file", fatal=True)
            if os.name == "posix" and kind.st_mode & (stat.S_IROTH | stat.S_IWOTH):  # As the server has it.
                raise Unreachable(
                    f"the token file {self.file} can be opened by every user of this host: chmod o-rwx it "
                    "(in Kubernetes: defaultMode: 0440)", fatal=True)
            with open(self.file, encoding="ascii") as file:
                token = file.read().strip()
        except ValueError:  # A decoder's error has the bytes.
            token = ""
        except OSError as error:
            raise Unreachable(f"cannot read the token file {self.file}: {error.strerror}", fatal=True) from error
        if not token or not token.isprintable() or " " in token:
            raise Unreachable(f"the token file {self.file} holds no token", fatal=True)
        return token


class Trust:
    """How TLS is spoken: whom the client believes, and what it shows. Files that were replaced count for the next
    connection."""

    def __init__(self, ca_file: Optional[str], cert_file: Optional[str], key_file: Optional[str]):
        self.ca_file, self.cert_file, self.key_file = ca_file, cert_file, key_file
        self._made: Optional[Tuple[List[Tuple[int, int, int]], ssl.SSLContext]] = None

    def context(self) -> ssl.SSLContext:
        named = [file for file in (self.ca_file, self.cert_file, self.key_file) if file is not None]
        try:
            state = [(each.st_ino, each.st_size, each.st_mtime_ns) for each in map(os.stat, named)]
            if self._made is None or self._made[0] != state:
                self._made = state, self._make()
            return self._made[1]
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError. None of them has a file's content.
            # Files that were good before are just being replaced, perhaps.
            raise Unreachable(f"cannot use {' and '.join(named) or 'TLS'}: {error}", fatal=self._made is None) from error

    def _make(self) -> ssl.SSLContext:
        import ssl  # Here and below: most clients speak no TLS, and are spared its import.

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # It verifies the certificate and the name.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if ssl.HAS_NEVER_CHECK_COMMON_NAME:
            context.hostname_checks_common_name = False  # A subject is any text that its authority let pass.
        if self.ca_file is not None:
            context.load_verify_locations(self.ca_file)
        else:
            context.load_default_certs()
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        return context


def _no_password() -> str:
    """Without it OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted: name one without a password")


@dataclass(frozen=True)
class Tcp(Direct):
    host: str
    port: int
    trust: Optional[Trust]  # None: plain HTTP, on a loopback address.
    token: Optional[Token] = None  # None: a client certificate is shown.

    def __str__(self) -> str:
        return f"http{'' if self.trust is None else 's'}://{self.authority}"

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def _advice(self, status: int) -> str:
        if status == 403:
            return "ask who runs the server to allow this client claims"
        if self.token is None:
            return "this server wants a token: name its file in token_file= or ONCE_TOKEN_FILE"
        return f"put a token that the server knows into {self.token.file}, which is read again then"

    def failed(self, error: Exception) -> Unreachable:
        """A certificate that is refused stays so: trying again soon is of no use."""
        import ssl

        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"the certificate of {self} is not accepted: {error.verify_message.rstrip('.')}"
            if error.verify_code in (18, 19, 20, 21):  # OpenSSL's numbers for an authority that is not known.
                why += "; name its authority's file in ca_file= or ONCE_CA_FILE"
            return Unreachable(why, fatal=True)
        return self._refusal(error) or super().failed(error)

    def broken(self, error: Exception) -> Unreachable:
        """With TLS 1.3 a server looks at the client's certificate after the client's first request."""
        return self._refusal(error) or super().broken(error)

    def _refusal(self, error: Exception) -> Optional[Unreachable]:
        import ssl

        reason = (error.reason if isinstance(error, ssl.SSLError) else None) or ""
        if "_ALERT_" not in reason or not ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
            return None
        if self.trust is None or self.trust.cert_file is None:
            return Unreachable(f"{self} wants a client certificate: name it in cert_file= and key_file=", fatal=True)
        return Unreachable(f"{self} does not accept the client certificate in {self.trust.cert_file}: {reason}", fatal=True)


@dataclass(frozen=True)
class OnDemand:
    """`once serve --on-demand` is asked for the socket of this store before each connection."""

    store: str = field(repr=False)  # Its URL may have a password.
    program: str
    directory: Optional[str]  # From which the store is seen, whatever the process changes to.

    def command(self) -> List[str]:
        return [self.program, "serve", "--on-demand"]

    def environment(self) -> Dict[str, str]:
        """With the store: its URL may have a password, and every user of the host sees a command line."""
        return {**os.environ, "ONCE_STORE": self.store}


Address = Union[Unix, Tcp, OnDemand]


@dataclass(frozen=True)
class Named:
    """What the caller has named."""

    server: Optional[str] = None
    store: Optional[str] = field(default=None, repr=False)
    token_file: Optional[str] = None
    ca_file: Optional[str] = None
    cert_file: Optional[str] = None
    key_file: Optional[str] = None
    program: Optional[str] = None

    def refuse(self, names: str, why: str) -> None:
        for name in names.split():
            if getattr(self, name) is not None:
                raise ValueError(f"{name}= is {why}")


class Where:
    """An address that is looked up when it is needed: the environment may be set after the import of a module."""

    def __init__(self, named: Named):
        self._named = named
        self._address: Optional[Address] = None
        if self._is_fixed():
            self._address = resolve(named)  # A mistake is reported where it is made.

    def _is_fixed(self) -> bool:
        return self._named.server is not None or self._named.store is not None

    def forget(self) -> None:
        if not self._is_fixed():
            self._address = None

    def address(self) -> Address:
        if self._address is None:
            try:
                self._address = resolve(self._named)
            except ValueError as error:
                raise Unreachable(str(error), fatal=True) from error
        return self._address


def resolve(named: Named) -> Address:
    """What the arguments say; else ONCE_SERVER, else ONCE_STORE."""
    server, store = named.server, named.store
    for name, value in vars(named).items():
        if value == "":
            raise ValueError(f"{name}= is empty: leave it out, or give it a value")
    if server is not None and store is not None:
        raise ValueError("give server= or store=, not both: a server has a store of its own")
    if server is None and store is None:
        server = _variable("ONCE_SERVER")
        if server is None:
            store = _variable("ONCE_STORE")
    if server is not None:
        return _server(server, named)
    if store is None:
        raise ValueError(
            "no server and no store is named: give server='unix:/run/once/serve.sock' or store='sqlite:once.db', "
            "or set ONCE_SERVER or ONCE_STORE"
        )
    named.refuse("token_file ca_file cert_file key_file", "for a server at an address")
    return OnDemand(store, _find(named.program), _working_directory())


def _variable(name: str) -> Optional[str]:
    """An empty one is a mistake, such as another variable that is missing. It must not choose another server, or trust
    more authorities."""
    text = os.environ.get(name)
    if text == "":
        raise ValueError(f"{name} is empty: unset it, or give it a value")
    return text


def _is_loopback(host: str) -> bool:
    try:
        import ipaddress  # Here and below: what few clients need is imported late. Imports are most of a first call's time.

        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _server(server: str, named: Named) -> Address:
    if server.startswith("unix:"):
        path = server[len("unix:"):]
        if not path:
            raise ValueError("the server 'unix:' names no socket")
        named.refuse("token_file ca_file cert_file key_file", "for a server at an address: who may use a socket, its mode says")
        return Unix(os.path.abspath(path))
    if "@" in server:  # Not repeated: it may be a secret.
        raise ValueError(
            "the server's URL has a user or a token in it, where logs would show it: name a file with the token in "
            "token_file= or ONCE_TOKEN_FILE"
        )
    try:
        from urllib.parse import urlsplit

        url = urlsplit(server)
        scheme, host, port = url.scheme, url.hostname or "", url.port
    except ValueError:
        scheme, host, port = "", "", None
    if scheme == "https" and port is None:
        port = 443
    is_plain = scheme in ("http", "https") and host.isascii() and not set("%\\") & set(host) and url.path in ("", "/")
    if not is_plain or not host or not port or url.query or url.fragment:
        shown = server.split("?")[0].split("#")[0]
        raise ValueError(f"the server '{shown}' is none of unix:PATH, https://HOST:PORT and http://127.0.0.1:PORT")
    if scheme == "http":
        host = "127.0.0.1" if host == "localhost" else host
        if not _is_loopback(host):
            raise ValueError(
                f"the server '{server}' would get the token and every result unencrypted, and anyone on the way could change "
                "them: use https://, or http:// to 127.0.0.1"
            )
        named.refuse("ca_file cert_file key_file", "for https://")
    if (named.cert_file is None) != (named.key_file is None):
        raise ValueError("a client certificate needs both cert_file= and key_file=")
    if named.cert_file is not None and named.token_file is not None:
        raise ValueError("give token_file=, or cert_file= with key_file=, not both: a server takes one of them")
    token: Optional[Token] = None
    if named.cert_file is None:
        token_file = named.token_file or _variable("ONCE_TOKEN_FILE")
        if token_file is None:
            raise ValueError(f"the server '{server}' needs a token: give token_file=, or set ONCE_TOKEN_FILE")
        token = Token(os.path.abspath(token_file))
    if scheme == "http":
        return Tcp(host, port, None, token)
    ca_file = named.ca_file or _variable("ONCE_CA_FILE")
    files = (None if file is None else os.path.abspath(file) for file in (ca_file, named.cert_file, named.key_file))
    return Tcp(host, port, Trust(*files), token)


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
    import shutil

    found = shutil.which("once")
    if found is None:
        raise ValueError(
            "store= needs the program `once`: install the package for this machine, which carries it, or have it on PATH, "
            "or name its path by program= or ONCE_PROGRAM"
        )
    return found


def _nameless_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("once"), "w+b")
    import tempfile

    return tempfile.TemporaryFile()


class Starting:
    """The program, started. Its output goes to files: the server that it leaves behind may keep pipes open."""

    def __init__(self, address: OnDemand):
        self.command = address.command()
        try:
            self.output = _nameless_file()
            self.errors = _nameless_file()
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
