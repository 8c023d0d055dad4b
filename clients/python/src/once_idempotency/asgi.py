"""ASGI middleware, for FastAPI, Starlette, Django under ASGI, and any other: requests with an Idempotency-Key run once.

    app.add_middleware(OnceMiddleware, once=Once("sqlite:shop.db"), principal="X-Api-Key")

`principal` is a header's name, a function of the ASGI scope, or SHARED. See `Rules` for the other options.
"""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Dict, List, MutableMapping, Optional

from ._client import AsyncClaim, Once, Options, _is_disabled
from ._http import SHARED, Answer, Asked, Headers, Problem, Rules, begin, finish, give_up

__all__ = ["SHARED", "OnceMiddleware"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class OnceMiddleware:
    def __init__(self, app: App, *, once: Once, **rules: Any):
        self.app = app
        self.once = once
        self.rules = Rules(**rules)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            asked = Asked(
                scope["method"], scope["path"], scope["query_string"].decode("latin-1"),
                [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]],
            )
            key = self.rules.key(asked)
            if key is None or _is_disabled(asked.path):
                return await self.app(scope, receive, send)
            options = Options(self.rules.scope(asked, scope), **self.rules.policy)
            body = await self._body(receive)
            if body is None:  # The client hung up before its request was here.
                return
        except Problem as problem:
            return await _respond(send, problem.answer)
        transport = self.once._aio
        got = await transport.run(begin(self.once, self.rules, options, key, asked, body))
        if isinstance(got, Answer):
            return await _respond(send, got)
        await self._run(AsyncClaim(transport, options, got, self.once._timeout_s), scope, receive, send, body)

    async def _body(self, receive: Receive) -> Optional[bytes]:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.rules.max_request_bytes:
                break
        return body

    async def _run(self, claim: AsyncClaim, scope: MutableMapping[str, Any], receive: Receive, send: Send, body: bytes) -> None:
        given = False
        started: Dict[str, Any] = {}
        parts: List[bytes] = []
        ended = False

        async def receive_body() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def keep(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start":
                started.update(message)
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))
                ended = not message.get("more_body", False)

        try:
            await self.app({**scope, "extensions": _extensions(scope), "once_claim": claim}, receive_body, keep)
        except BaseException as error:
            if isinstance(error, Exception):
                reason = f"the handler raised {type(error).__name__}: {error}"
                await claim._transport.run_to_its_end(give_up(self.rules, claim, reason))
            else:
                claim._lapse()
            raise
        if not ended:  # As a server sees it: 500, and nothing says what was done.
            await claim._transport.run_to_its_end(give_up(self.rules, claim, "the application sent no whole response"))
            return
        headers: Headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in started.get("headers", [])]
        answer = Answer(int(started["status"]), headers, b"".join(parts))
        await _respond(send, await claim._transport.run_to_its_end(finish(self.rules, claim, answer)))


def _extensions(scope: MutableMapping[str, Any]) -> Dict[str, Any]:
    """Without those that answer by other messages, such as the path of a file: their content could not be stored."""
    return {name: value for name, value in (scope.get("extensions") or {}).items() if not name.startswith("http.response.")}


async def _respond(send: Send, answer: Answer) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    names = {name.lower() for name, _ in headers}
    if b"content-length" not in names and answer.status >= 200 and answer.status not in (204, 304):
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
