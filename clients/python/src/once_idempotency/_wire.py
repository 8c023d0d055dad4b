"""One request and its response in HTTP/1.1, as bytes. No socket here: both transports use it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024  # More than any record holds.


class Unreachable(Exception):
    """The request had no answer; it may have been carried out. `fatal`: trying again soon is of no use."""

    def __init__(self, message: str, fatal: bool = False):
        super().__init__(message)
        self.fatal = fatal


@dataclass(frozen=True)
class Send:
    """A request that the protocol wants to be sent. `timeout_s` is for all of it."""

    method: str
    path: str
    body: Optional[bytes]
    content_type: str
    timeout_s: float

    def encode(self, host: str, token: Optional[str]) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: {host}\r\n"
        if token is not None:
            head += f"Authorization: Bearer {token}\r\n"
        if self.body is not None:
            head += f"Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n"
        elif self.method != "GET":
            head += "Content-Length: 0\r\n"
        return head.encode("ascii") + b"\r\n" + (self.body or b"")


@dataclass(frozen=True)
class Pause:
    """The protocol wants to wait."""

    seconds: float


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]  # Names in lower case.
    body: bytes
    advice: str = ""  # What a person can do about it.

    @property
    def answer(self) -> str:
        return self.headers.get("once-answer", "")

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def is_of_once(self) -> bool:
        """Else something in between has answered, such as a gateway whose server is away."""
        return bool(self.answer or self.problem()[0])

    def json(self) -> Any:
        try:
            value = json.loads(self.body)
        except ValueError:
            raise Unreachable("the server's answer is not JSON: is it `once serve`?", fatal=True) from None
        if not isinstance(value, dict):
            raise Unreachable("the server's answer is no JSON object: is it `once serve`?", fatal=True)
        return value

    def problem(self) -> Tuple[str, str]:
        """Its word and its detail; the word is empty if it is no problem of once."""
        try:
            value = json.loads(self.body)
            kind = str(value.get("type", ""))
            detail = str(value.get("detail") or value.get("title") or "")
        except (ValueError, AttributeError):
            return "", self.body[:200].decode("utf-8", "replace")
        prefix = "urn:once:problem:"
        return (kind[len(prefix):] if kind.startswith(prefix) else ""), detail

    @property
    def retry_after_s(self) -> float:
        text = self.headers.get("retry-after", "")
        return float(text) if text.isascii() and text.isdigit() else 1.0


def parse_head(head: bytes) -> Tuple[int, Mapping[str, str], int, bool]:
    """Status, headers, length of the body, and whether the connection can be used again. `head` ends with its empty line."""
    try:
        lines = head.decode("latin-1").split("\r\n")
        version, status, *_ = lines[0].split(" ", 2)
        if version != "HTTP/1.1" or len(status) != 3:
            raise ValueError
        headers = {}
        for line in lines[1:-2]:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise ValueError
            headers[name.lower()] = value.strip()
        if "transfer-encoding" in headers:
            raise ValueError
        text = headers["content-length"]
        if not (text.isascii() and text.isdigit()):
            raise ValueError
        length = int(text)
        if length > MAX_BODY_BYTES:
            raise ValueError
        return int(status), headers, length, headers.get("connection", "").lower() != "close"
    except (ValueError, KeyError, IndexError):
        raise Unreachable("the answer is no HTTP of `once serve`") from None
