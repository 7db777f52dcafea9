"""Which requests reach the scores, and what the others get."""

import asyncio
import json

import pytest
from starlette.responses import Response

from tallystick.serving.http import application


class Scores:
    """Scores whose method for a request fails, or answers."""

    def __init__(self, error=None):
        self.error = error

    async def score(self, request):
        if self.error is not None:
            raise self.error
        return Response(f"scored {len(await request.body())} bytes", media_type="text/plain")

    async def other(self, request):  # noqa: ARG002
        return Response("other")

    runs = healthy = ready = metrics = document = page = other


def answered(app, method, path, body=b""):
    """Send a request to the application, and return the status and the body of its answer."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [(b"host", b"elsewhere")]}
    asyncio.run(app(scope, receive, send))
    start, *parts = sent
    return start["status"], b"".join(part["body"] for part in parts).decode(), dict(start["headers"])


def test_a_request_for_scores_is_answered():
    assert answered(application(Scores()), "POST", "/v1/score", b"12345")[:2] == (200, "scored 5 bytes")


@pytest.mark.parametrize("error", [ZeroDivisionError("a secret"), RecursionError(), OSError(28, "a secret")], ids=repr)
def test_a_request_whose_scoring_fails_gets_a_problem_without_the_reason(error):
    status, body, headers = answered(application(Scores(error)), "POST", "/v1/score")
    assert status == 500
    assert headers[b"content-type"] == b"application/problem+json"
    assert json.loads(body)["detail"] == f"this failed unexpectedly ({type(error).__name__}); tell the operator of this server"


@pytest.mark.parametrize("path", ["/v1/score/", "/v1//score", "/V1/score", "/v1/scores", "v1/score", "/v1/score?x", "/"])
def test_another_path_is_no_request_for_scores_and_redirects_nowhere(path):
    status, _, headers = answered(application(Scores(ZeroDivisionError())), "POST", path)
    assert status == (405 if path == "/" else 404)
    assert b"location" not in headers


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "post"])
def test_another_method_is_no_request_for_scores(method):
    assert answered(application(Scores(ZeroDivisionError())), method, "/v1/score")[0] == 405
