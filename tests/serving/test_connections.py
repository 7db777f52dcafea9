"""Connections with slow, large or missing heads are closed. Others are still answered, one request after another."""

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
import time

import pytest
import uvicorn
from tiny import within

from tallystick.network.addresses import free_port
from tallystick.network.certificates import write_test_certificates
from tallystick.serving import connections
from tallystick.serving.connections import ACCEPTED_AT_ONCE, MOST_HEADERS, PatientServer, Porter, bounded_protocol

MOST = 20
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n"


SLOW = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 64 << 20
_slow, _server = [], []


async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        _slow.append(scope)
        await asyncio.sleep(60)
    if scope["path"] == "/large":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
        for _ in range(64):
            await send({"type": "http.response.body", "body": bytes(LARGE // 64), "more_body": True})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "HEAD_S", 0.5)
        patch.setattr(connections, "UNREAD_S", 0.5)
        port = free_port()
        config = uvicorn.Config(app, host="127.0.0.1", port=port, http=bounded_protocol(MOST), log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        _server.append(server)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield port
        server.should_exit = server.force_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def secured(port, tmp_path_factory):
    """Return the port of a second server, which uses TLS, and a client's context."""
    folder = tmp_path_factory.mktemp("certificates")
    write_test_certificates(folder, ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "localhost.pem", folder / "localhost.key")
    secured_port = free_port()
    protocol = bounded_protocol(MOST, tls=context)
    options = {"http": protocol, "loop": "asyncio", "backlog": ACCEPTED_AT_ONCE, "log_config": None, "lifespan": "off"}
    server = PatientServer(uvicorn.Config(app, host="127.0.0.1", port=secured_port, **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    assert within(20, lambda: server.started)
    yield secured_port, ssl.create_default_context(cafile=folder / "ca.pem")
    server.should_exit = server.force_exit = True
    thread.join(20)


@pytest.fixture
def slow():
    """Return the slow requests that have arrived."""
    _slow.clear()
    return _slow


def is_open(link):
    """Tell whether a connection is still open while nothing comes."""
    link.settimeout(0.5)
    try:
        return link.recv(1, socket.MSG_PEEK) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def closed_after(link):
    """Return the seconds until the server closes."""
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


@pytest.mark.parametrize("more", [0, 1, 5000])
def test_a_head_of_more_headers_than_a_few_is_no_request(port, more):
    """Each of them costs some microseconds, and a head of 64 KiB holds ten thousand."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        link.sendall(REQUEST + b"X: y\r\n" * (MOST_HEADERS - 1 + more) + b"\r\n")
        assert link.recv(1000).startswith(b"HTTP/1.1 400" if more else b"HTTP/1.1 200")


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


def held(port, count, sent):
    """Open connections that send all this and read nothing."""
    links = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for link in links:
        link.settimeout(0.2)
        with contextlib.suppress(OSError):
            link.sendall(sent)
    return links


def test_requests_behind_one_another_are_few(port):
    """All requests in one piece of bytes are parsed before any is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        link.sendall((REQUEST + b"\r\n") * 8)
        came = b""
        while came.count(b"ok") < 8:
            came += link.recv(10_000)
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall((REQUEST + b"\r\n") * 500)
        assert closed_after(link) < 15


@pytest.mark.long
def test_connections_that_are_being_answered_count_and_make_room_too(port, slow):
    links = held(port, 3 * MOST, SLOW)
    try:
        assert within(20, lambda: len(slow) >= MOST)
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        link.request("GET", "/")
        assert link.getresponse().read() == b"ok"
        assert sum(is_open(each) for each in links) < MOST
        link.close()
    finally:
        for each in links:
            each.close()


def test_an_answer_that_is_not_read_closes_the_connection(port):
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert within(20, lambda: len(_server[0].server_state.connections) > 0)
        assert within(20, lambda: not _server[0].server_state.connections)


def hello():
    """Return what a TLS client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("begun", [b"", hello()[:7], hello()])
def test_a_handshake_that_does_not_end_closes_the_connection_and_makes_room(secured, begun):
    port, context = secured
    links = held(port, 3 * MOST, begun)
    try:
        link = http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
        for _ in range(3):
            link.request("GET", "/")
            assert link.getresponse().read() == b"ok"
        link.close()
        for each in links:
            each.settimeout(20)
            with contextlib.suppress(ConnectionError):
                while each.recv(10_000):  # the server's part of the handshake
                    pass
    finally:
        for each in links:
            each.close()


def answer_of(client, incoming, link):
    """Read records until the answer is complete: several may come at once."""
    answer = b""
    while not answer.endswith(b"ok"):
        try:
            answer += client.read(10_000)
        except ssl.SSLWantReadError:
            incoming.write(link.recv(10_000))
    return answer


def test_what_comes_with_the_end_of_a_handshake_is_answered(secured):
    port, context = secured
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("localhost", port), timeout=20) as link:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                link.sendall(outgoing.read())
                incoming.write(link.recv(10_000))
        client.write(REQUEST + b"\r\n")
        link.sendall(outgoing.read())  # the last piece of the handshake and the request at once
        assert answer_of(client, incoming, link).endswith(b"ok")


def test_one_who_speaks_no_tls_is_hung_up(secured):
    port, _ = secured
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(REQUEST + b"\r\n")
        link.settimeout(20)
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in link.recv(1000)
        assert closed_after(link) < 15


@pytest.mark.parametrize("kind", ["websocket", "h2c"])
def test_connections_that_ask_for_another_protocol_stay_bounded(port, kind):
    upgrade = REQUEST + b"Connection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Key: x\r\n\r\n" % kind.encode()
    links = held(port, 2 * MOST, upgrade)
    try:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        link.request("GET", "/")
        assert link.getresponse().read() == b"ok"
        link.close()
        assert within(20, lambda: len(_server[0].server_state.connections) <= MOST)
    finally:
        for each in links:
            each.close()


def test_who_is_served_already_keeps_the_connection_whoever_begins_a_handshake(secured):
    """One recorded first message, sent again and again, costs its sender nothing."""
    port, context = secured
    link = http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
    link.request("GET", "/")
    assert link.getresponse().read() == b"ok"
    served = link.sock
    strangers = held(port, 3 * MOST, hello())
    try:
        link.request("GET", "/")
        assert link.getresponse().read() == b"ok"
        assert link.sock is served
    finally:
        for each in (link, *strangers):
            each.close()


@pytest.mark.parametrize("pieces", [1, 4, 0])
def test_a_first_message_of_a_handshake_may_come_in_pieces(secured, pieces):
    port, context = secured
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                said = outgoing.read()
                size = -(-len(said) // pieces) if pieces else 7
                for start in range(0, len(said), size):
                    link.sendall(said[start : start + size])
                    time.sleep(0.001)
                incoming.write(link.recv(10_000))
        client.write(REQUEST + b"\r\n")
        link.sendall(outgoing.read())
        assert answer_of(client, incoming, link).endswith(b"ok")


def test_the_porter_opens_for_each_caller_in_turn_and_for_who_came_last():
    opened = []

    class Door:
        def __init__(self, caller, number):
            self.caller, self.number = caller, number

        def open(self):
            opened.append((self.caller, self.number))

    async def calls():
        porter = Porter()
        doors = [Door("crowd", number) for number in range(5)]
        for door in doors:
            porter.call(door)
        porter.forget(doors[3])
        porter.call(Door("one", 0))
        porter.call(Door("other", 0))
        await asyncio.sleep(0.1)
        porter.call(Door("late", 0))
        await asyncio.sleep(0.1)

    asyncio.run(calls())
    assert opened == [
        *(("crowd", 4), ("one", 0), ("other", 0), ("crowd", 2), ("crowd", 1), ("crowd", 0), ("late", 0)),
    ]


@pytest.mark.parametrize(
    ("address", "caller"),
    [("10.0.0.7", "10.0.0.7"), ("2001:db8::7", "2001:db8::/64"), ("2001:db8::8", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64")],
)
def test_a_network_of_many_addresses_is_one_caller(address, caller):
    class Transport:
        def get_extra_info(self, _name):
            return (address, 1)

    assert connections._caller(Transport()) == caller


@pytest.mark.parametrize("way", ["plain", "TLS"])
def test_a_head_in_many_pieces_is_read_ever_more_seldom(port, secured, way, monkeypatch):
    """A piece costs as much as a request. A head that is complete in the end is answered."""
    taken = []
    take = connections.BoundedProtocol.data_received

    def counted(connection, data):
        taken.append(len(data))
        take(connection, data)

    monkeypatch.setattr(connections.BoundedProtocol, "data_received", counted)
    monkeypatch.setattr(connections, "HEAD_S", 20)
    secured_port, context = secured
    link = socket.create_connection(("127.0.0.1", port if way == "plain" else secured_port), timeout=20)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if way == "TLS":
        link = context.wrap_socket(link, server_hostname="localhost")
    with link:
        head = REQUEST + b"X-A: " + b"a" * 300 + b"\r\n\r\n"
        for byte in head:
            link.sendall(bytes([byte]))
            time.sleep(0.001)
        assert link.recv(1000).startswith(b"HTTP/1.1 200")
    assert sum(taken) == len(head)
    assert len(taken) < 30
