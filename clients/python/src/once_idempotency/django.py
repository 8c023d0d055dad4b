"""Django: requests with an Idempotency-Key run once. In settings, behind the middleware that knows the user:

    MIDDLEWARE = [..., "django.contrib.auth.middleware.AuthenticationMiddleware", "once_idempotency.django.OnceMiddleware"]
    ONCE = {"store": "sqlite:shop.db", "principal": lambda request: request.user.pk}

`server`, `store`, `token_file`, `program`, `timeout` and `holder` in ONCE are those of `Once`, the others those of `Rules`.
`principal` is a header's name, a function of the request, or SHARED. For views under WSGI; under ASGI, Django runs this
middleware in a thread.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

from ._client import Claim, Once, Options, _is_disabled
from ._http import SHARED, Answer, Asked, Problem, Rules, begin, finish
from .wsgi import raised

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
            body = request.body
        except Problem as problem:
            return _response(problem.answer)
        transport = self.once._blocking
        got = transport.run(begin(self.once, self.rules, options, key, asked, body))
        if isinstance(got, Answer):
            return _response(got)
        claim = Claim(transport, options, got, self.once._timeout_s)
        request.once_claim = claim
        try:
            response = self.get_response(request)
            if getattr(response, "streaming", False):
                body = b"".join(response.streaming_content)
            else:
                body = response.content
        except BaseException as error:
            raised(self.rules, claim, error)
            raise
        answer = Answer(response.status_code, list(response.items()), body)
        told = transport.run(finish(self.rules, claim, answer))
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
