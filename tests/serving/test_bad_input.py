"""A client that sends a wrong request gets a status and one line that says what to do, without any of its own values."""

import contextlib
import json
import socket

import httpx
import pytest
from serving_job import TOKEN

from tallystick.serving.http import BODY_S

SECRET = "Mallory-1234"
AUTH = {"Authorization": f"Bearer {TOKEN}"}
ROW = {"id": SECRET, "x": 1.0, "noise": 0.5, "kind": "red"}

BODIES = {
    "no JSON": (400, b"{"),
    "not a number": (400, b'{"rows": [{"id": "Mallory-1234", "x": NaN}]}'),
    "deep": (400, b'{"rows": ' + b"[" * 20_000),
    "another key of the body": (400, json.dumps({"rows": [ROW], "secret": SECRET}).encode()),
    "no rows": (422, b'{"rows": []}'),
    "rows that are none": (400, b'{"rows": [1]}'),
    "no key": (422, json.dumps({"rows": [{"x": 1.0}]}).encode()),
    "an empty key": (422, json.dumps({"rows": [{"id": ""}]}).encode()),
    "a key that is a list": (422, json.dumps({"rows": [{"id": [SECRET]}]}).encode()),
    "a long key": (422, json.dumps({"rows": [{"id": "x" * 2000}]}).encode()),
    "a key with a NUL": (422, json.dumps({"rows": [{"id": f"{SECRET}\0"}]}).encode()),
    "an unknown column": (422, json.dumps({"rows": [{**ROW, SECRET: 1}]}).encode()),
    "a missing column": (422, json.dumps({"rows": [{"id": SECRET, "x": 1.0}]}).encode()),
    "text for a number": (422, json.dumps({"rows": [{**ROW, "x": SECRET}]}).encode()),
    "a number for text": (422, json.dumps({"rows": [{**ROW, "kind": [1]}]}).encode()),
    "beyond all numbers": (422, json.dumps({"rows": [{**ROW, "x": 10**400}]}).encode()),
    "rows of two kinds": (422, json.dumps({"rows": [ROW, {"id": SECRET}]}).encode()),
    "too many rows": (413, json.dumps({"rows": [{"id": SECRET}] * 51}).encode()),
    "too large": (413, b'{"rows": [' + b" " * (65 << 10)),
    "another run": (404, json.dumps({"rows": [{"id": SECRET}], "run_id": SECRET}).encode()),
    "an unknown key": (404, json.dumps({"rows": [{"id": SECRET}]}).encode()),
}


def said(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert SECRET not in response.text
    problem = response.json()
    assert problem["status"] == status
    assert len(problem["detail"]) > 20
    assert "\n" not in problem["detail"]


@pytest.mark.parametrize("what", BODIES)
def test_a_body_that_cannot_be_scored(served, what):
    status, body = BODIES[what]
    said(served.client.post("/v1/score", content=body, headers={"content-type": "application/json"}), status)
    assert served.ask({"id": "nobody"}).status_code == 404  # the server goes on
    assert not any(SECRET in str(line) for process in served.running.values() for line in (*process.said, *process.events))


@pytest.mark.parametrize("token", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
def test_without_the_token_there_is_no_score(served, token):
    headers = {"Authorization": token} if token is not None else {}
    url = f"http://127.0.0.1:{served.port}"
    said(httpx.post(f"{url}/v1/score", json={"rows": [{"id": SECRET}]}, headers=headers), 401)
    said(httpx.get(f"{url}/metrics", headers=headers), 401)


def test_what_is_no_score_is_a_problem_too(served):
    said(served.client.get("/v2"), 404)
    said(served.client.get("/v1/score"), 405)
    said(served.client.post("/v1/score", content=b"x", headers={"content-type": "text/plain"}), 415)
    said(served.client.post("/v1/score", json={"rows": []}, headers={"x-deadline-ms": "-1"}), 400)
    said(served.client.post("/v1/score", json={"rows": []}, headers={"x-deadline-ms": "9" * 5000}), 400)
    said(served.client.post("/v1/score", content=b"x", headers={"content-type": "application/vnd.apache.arrow.stream"}), 400)


def test_a_body_without_a_length_is_cut_off_where_it_is_too_large(served):
    head = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as link:
        link.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):  # 10 MB
                link.sendall(b"2710\r\n" + b" " * 10_000 + b"\r\n")
            raise AssertionError("all of it was read")


@pytest.mark.long
def test_a_client_that_is_slow_to_send_its_body_is_told_so(served):
    head = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=BODY_S + 10) as link:
        link.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in link.recv(4096)


def test_requests_that_are_none_write_no_line_and_no_client_is_sent_to_another_host(served):
    before = {name: (len(process.said), len(process.events)) for name, process in served.running.items()}
    for sent in (b"\x00\xff" * 20, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/score HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as link, contextlib.suppress(ConnectionError):
            link.sendall(sent)
            link.recv(1000)
    response = served.client.post("/v1/score/", json={"rows": []}, headers={"host": "elsewhere.example"})
    assert response.status_code == 404
    assert "location" not in response.headers
    assert not any("Invalid HTTP" in line for process in served.running.values() for line in process.said)
    assert {name: len(process.said) for name, process in served.running.items()} == {name: b[0] for name, b in before.items()}
