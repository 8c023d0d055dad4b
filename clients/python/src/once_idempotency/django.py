"""Django: requests with an Idempotency-Key run once. In settings, behind the middleware that knows the user:

    MIDDLEWARE = [..., "django.contrib.auth.middleware.AuthenticationMiddleware", "once_idempotency.django.OnceMiddleware"]
    ONCE = {"store": "sqlite:shop.db", "principal": lambda request: request.user.pk}

`server`, `store`, `token_file`, `program`, `timeout` and `holder` in ONCE are those of `Once`, the others those of `Rules`.
`principal` is a header's name, a function of the request, or SHARED. For views under WSGI; under ASGI, Django runs this
middleware in a thread.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

from ._client import Once, Options, _is_disabled
from ._http import SHARED, Answer, Asked, Problem, Rules
from ._protocol import Stored
from .errors import OnceError
from .wsgi import _settle, finish

__all__ = ["SHARED", "OnceMiddleware"]

_OF_ONCE = ("server", "store", "token_file", "program", "timeout", "holder")


class OnceMiddleware:
    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[Any], Any]):
        from django.conf import settings

        given: Dict[str, Any] = dict(settings.ONCE)
        self.get_response = get_response
        self.once = Once(**{name: given.pop(name) for name in _OF_ONCE if name in given})
        self.rules = Rules(**given)

    def __call__(self, request: Any) -> Any:
        try:
            asked = Asked(
                request.method, request.path, request.META.get("QUERY_STRING", ""),
                [(name.lower(), value) for name, value in request.headers.items()],
            )
            key = self.rules.key(asked)
            if key is None or _is_disabled(asked.path):
                return self.get_response(request)
            options = Options(self.rules.scope(asked, request), **self.rules.policy)
            members = self.once._members(options, key, self.rules.payload(asked, request.body))
        except Problem as problem:
            return _response(problem.answer)
        try:
            claim = self.once._begin(options, members)
        except OnceError as error:
            return _response(self.rules.problem(error).answer)
        try:
            if isinstance(claim, Stored):
                return _response(self.rules.replayed(claim))
        except Problem as problem:
            return _response(problem.answer)
        request.once_claim = claim
        try:
            response = self.get_response(request)
            if getattr(response, "streaming", False):
                body = b"".join(response.streaming_content)
            else:
                body = response.content
        except BaseException as error:
            if isinstance(error, Exception) and self.rules.on_ambiguous == "hold":
                _settle(claim.hold, f"the view raised {type(error).__name__}: {error}")
            else:
                claim._lapse()
            raise
        answer = Answer(response.status_code, list(response.items()), body)
        try:
            told = finish(self.rules, claim, answer)
        except Problem as problem:
            told = problem.answer
        if told is not answer:
            return _response(told)
        if getattr(response, "streaming", False):
            response.streaming_content = [body]
        return response


def _response(answer: Answer) -> Any:
    from django.http import HttpResponse

    response = HttpResponse(answer.body, status=answer.status)
    del response["Content-Type"]
    for name, value in answer.headers:
        response[name] = value
    return response
