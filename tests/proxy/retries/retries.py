"""One client of PyPI, with its own retries: retries.py URL CLIENT json|upload KEY. It gives up its first try after a
second. Prints the status and the body that the program gets in the end, as JSON."""
import importlib
import json
import sys
import urllib.parse

URL, CLIENT, KIND, KEY = sys.argv[1:]
FIRST_TRY_S = 1
TRIES = 30
ORDER = {"cents": 500}
FILE = ("invoice.txt", b"an invoice", "text/plain")
HEADERS = {"Idempotency-Key": KEY}


def content():
    return {"json": ORDER} if KIND == "json" else {"files": {"file": FILE}, "data": {"purpose": "user_data"}}


def generated():
    sdk = importlib.import_module(CLIENT)
    base = sdk.OpenAI if CLIENT == "openai" else sdk.Anthropic
    parts = urllib.parse.urlsplit(URL)
    api = base(api_key="sk-test", base_url=f"{parts.scheme}://{parts.netloc}", timeout=FIRST_TRY_S, max_retries=TRIES)
    options = {"headers": HEADERS}
    if KIND == "json":
        what = {"body": ORDER}
    else:
        what = {"body": {"purpose": "user_data"}, "files": {"file": FILE}}
        options["headers"] = HEADERS | {"Content-Type": "multipart/form-data"}
    http = importlib.import_module(f"{CLIENT}._base_client").httpx2
    answer = api.post(parts.path, cast_to=http.Response, options=options, **what)
    return answer.status_code, answer.text


def with_requests():
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(
        total=TRIES, allowed_methods=["POST"], status_forcelist=[409], backoff_factor=0.1, backoff_max=1)))
    answer = session.post(URL, headers=HEADERS, timeout=FIRST_TRY_S, **content())
    return answer.status_code, answer.text


def with_httpx():
    import httpx
    import tenacity

    @tenacity.retry(stop=tenacity.stop_after_attempt(TRIES), wait=tenacity.wait_fixed(0.2),
                    retry=tenacity.retry_if_exception_type(httpx.TransportError)
                    | tenacity.retry_if_result(lambda answer: answer.status_code == 409))
    def post():
        return httpx.post(URL, headers=HEADERS, timeout=FIRST_TRY_S, **content())
    answer = post()
    return answer.status_code, answer.text


def with_stripe():
    import stripe
    parts = urllib.parse.urlsplit(URL)
    place = f"{parts.scheme}://{parts.netloc}"
    client = stripe.StripeClient("sk_test_1", max_network_retries=TRIES, base_addresses={"api": place, "files": place},
                                 http_client=stripe.RequestsClient(timeout=FIRST_TRY_S))
    stripe.HTTPClient.MAX_DELAY = 0.5  # It rests for up to 5 s.
    answer = client.raw_request("post", parts.path, amount=500, currency="eur", idempotency_key=KEY)
    return answer.code, answer.body


status, body = {"openai": generated, "anthropic": generated, "requests": with_requests, "httpx": with_httpx,
                "stripe": with_stripe}[CLIENT]()
print(json.dumps({"status": status, "body": body}))
