"""What plain TLS does that gRPC does for itself: a listener among strangers, the wrong transport, keys that wear out."""

import socket
import ssl
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tiny import QUICK, error_of

from tallystick.errors import PeerLost
from tallystick.network import tls
from tallystick.network.certificates import ALPN, probe
from tallystick.network.messages import MEBIBYTE, Message


class Note(Message, frozen=True):
    limit = 64 * MEBIBYTE
    number: int
    ballast: bytes = b""


@pytest.fixture
def transport():
    return "tls"


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as threads:
        yield threads


def connect(bank, shop, pool, address=None):
    waiting = pool.submit(bank.connect, {"shop": None})
    at_shop = shop.connect({"bank": address or f"127.0.0.1:{bank.port}"})["bank"]
    return waiting.result()["shop"], at_shop


def test_keys_that_wear_out_are_renewed_and_nothing_is_lost(networks, pool, monkeypatch):
    monkeypatch.setattr(tls, "RENEW_BYTES", 5 * MEBIBYTE)
    links = []
    handshake = tls._Link.handshake

    async def counted(link):
        links.append(link)
        await handshake(link)

    monkeypatch.setattr(tls._Link, "handshake", counted)
    at_bank, at_shop = connect(networks("bank", listen="127.0.0.1:0"), networks("shop"), pool)
    pouring = pool.submit(lambda: [at_shop.send(Note(number=number, ballast=bytes(MEBIBYTE))) for number in range(24)])
    assert [at_bank.receive(Note).number for _ in range(24)] == list(range(24))
    pouring.result()
    assert len(links) >= 2 * (24 // 6)  # two ends each


def test_many_strangers_who_say_nothing_keep_nobody_out(networks, pool):
    bank, shop = networks("bank", listen="127.0.0.1:0"), networks("shop")
    strangers = [socket.create_connection(("127.0.0.1", bank.port)) for _ in range(2 * tls.STRANGERS)]
    try:
        at_bank, at_shop = connect(bank, shop, pool)
        at_shop.send(Note(number=1))
        assert at_bank.receive(Note).number == 1
    finally:
        for stranger in strangers:
            stranger.close()


def test_strangers_who_hang_up_at_once_harm_nobody(networks, pool):
    bank, shop = networks("bank", listen="127.0.0.1:0"), networks("shop")
    at_bank, at_shop = connect(bank, shop, pool)
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", bank.port)) as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    at_shop.send(Note(number=1))
    assert at_bank.receive(Note).number == 1


def test_a_first_frame_that_is_too_large_for_a_hello_is_not_waited_for(networks, pool, certificates):
    """The caller holds a certificate of the CA, and announces as much as a frame can be."""
    bank, shop = networks("bank", listen="127.0.0.1:0"), networks("shop")
    at_bank, at_shop = connect(bank, shop, pool)
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "club.pem", certificates / "club.key")
    context.set_alpn_protocols([ALPN["tls"]])
    with (
        socket.create_connection(("127.0.0.1", bank.port), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname="bank") as caller,
    ):
        began = time.monotonic()
        caller.sendall(struct.pack("<I", tls.HELLO_BYTES + 1) + bytes(100))
        assert hung_up(caller)
        assert time.monotonic() - began < QUICK.deadline_s / 2  # not for want of the rest
    at_shop.send(Note(number=1))
    assert at_bank.receive(Note).number == 1


def hung_up(end):
    try:
        return end.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.mark.parametrize(("dials", "listens"), [("tls", "grpc"), ("grpc", "tls")])
def test_another_transport_is_named(networks, pool, identity, dials, listens):
    limits = replace(QUICK, wait_s=3)
    bank = networks("bank", listen="127.0.0.1:0", limits=limits, transport=listens)
    shop = networks("shop", limits=limits, transport=dials)
    waiting = pool.submit(error_of, bank.connect, {"shop": None})
    address = f"127.0.0.1:{bank.port}"
    said = f"bank at {address}: does not speak {ALPN[dials]} after the TLS handshake; is network.transport the same in both"
    assert said in (probe(identity("shop"), "bank", address, transport=dials) or "")
    error = error_of(shop.connect, {"bank": address})
    assert isinstance(error, PeerLost)
    assert said in str(error)
    assert isinstance(waiting.result(timeout=20), PeerLost)


def test_over_ipv6(networks, pool):
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    for listen in ("[::1]:0", "[::]:0", "localhost:0"):
        bank, shop = networks("bank", listen=listen), networks("shop")
        at_bank, at_shop = connect(bank, shop, pool, f"{listen[:-2]}:{bank.port}".replace("[::]", "[::1]"))
        at_shop.send(Note(number=1))
        assert at_bank.receive(Note).number == 1


def test_a_host_name_that_nobody_knows(networks):
    shop = networks("shop", limits=replace(QUICK, wait_s=1.5))
    began = time.monotonic()
    with pytest.raises(PeerLost, match=r"bank did not come up.*nowhere\.invalid:7443"):
        shop.connect({"bank": "nowhere.invalid:7443"})
    assert time.monotonic() - began < 15


def test_a_half_sent_frame_goes_on_while_its_sender_computes(networks, pool):
    """A message that fills every buffer on the way, from a thread that does not come back to the network."""
    at_bank, at_shop = connect(networks("bank", listen="127.0.0.1:0"), networks("shop"), pool)
    at_shop.send(Note(number=1, ballast=bytes(30 * MEBIBYTE)))
    assert len(at_bank.receive(Note).ballast) == 30 * MEBIBYTE
