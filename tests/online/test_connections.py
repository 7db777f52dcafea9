"""Connections whose heads are slow, large or never come are closed; others are answered as before, one request after another."""

import contextlib
import http.client
import socket
import threading
import time

import pytest
import uvicorn

from tallystick.network.addresses import free_port
from tallystick.online import connections
from tallystick.online.connections import bounded_protocol

MOST = 20
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def app(_scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "HEAD_S", 0.5)
        port = free_port()
        config = uvicorn.Config(app, host="127.0.0.1", port=port, http=bounded_protocol(MOST), log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield port
        server.should_exit = True
        thread.join(20)


def closed_after(link):
    """Seconds until the server closes."""
    began = time.monotonic()
    link.settimeout(20)
    with contextlib.suppress(ConnectionError):
        assert link.recv(1) == b""
    return time.monotonic() - began


@pytest.mark.parametrize("begun", [b"", b"G", REQUEST, REQUEST + b"X-A: "])
def test_a_head_that_does_not_come_closes_the_connection(port, begun):
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(begun)
        assert 0.2 < closed_after(link) < 15


def test_a_second_request_has_its_own_time_and_a_slow_one_is_closed(port):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for _ in range(3):  # longer in all than one head may take
        link.request("GET", "/")
        assert link.getresponse().read() == b"ok"
        first = link.sock
        time.sleep(0.3)
    assert link.sock is first
    first.sendall(REQUEST)
    assert closed_after(first) < 15
    link.close()


@pytest.mark.parametrize("line", [b"X-A: " + b"a" * 9_000_000, b"X: y\r\n" * 1_500_000])
def test_a_head_that_is_too_large_closes_the_connection_before_all_is_read(port, line):
    def sent_and_answered(link):
        link.sendall(REQUEST + line)
        link.recv(1)

    with socket.create_connection(("127.0.0.1", port)) as link, pytest.raises(ConnectionError):
        sent_and_answered(link)


def test_a_body_may_be_larger_and_slower_than_a_head(port):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for _ in range(2):
        link.putrequest("POST", "/")
        link.putheader("Content-Length", "1000000")
        link.endheaders()
        link.send(b"x" * 500_000)
        time.sleep(0.7)
        link.send(b"x" * 500_000)
        assert link.getresponse().read() == b"ok"
    link.close()


def test_who_has_said_nothing_for_longest_makes_room_where_connections_are_too_many(port):
    links = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * MOST)]
    try:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        link.request("GET", "/")
        assert link.getresponse().read() == b"ok"
        link.close()
        assert all(closed_after(each) < 15 for each in links)
    finally:
        for each in links:
            each.close()


def test_empty_lines_after_a_request_do_not_hold_a_connection(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        link.sendall(REQUEST + b"\r\n")
        assert link.recv(1000).endswith(b"ok")
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < began + 15:
                link.sendall(b"\r\n")
                time.sleep(0.02)
        assert time.monotonic() < began + 15
