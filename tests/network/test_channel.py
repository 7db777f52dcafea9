"""The same tests over both channels: the pair in memory, and a session with mutual TLS on loopback."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest

from tallystick.errors import PeerLost, PeerStopped, ProtocolError
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Array, Message, Stopped


class Note(Message, frozen=True):
    number: int


class Bulk(Message, frozen=True):
    limit: ClassVar[int] = 64 << 20
    values: Array


class Unbounded(Message, frozen=True):
    limit: ClassVar[int] = 64 << 20
    number: str


def pair_over_tls(networks):
    bank = networks("bank", listen="127.0.0.1:0")
    shop = networks("shop")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bank.connect, {"shop": None})
        at_shop = shop.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"]
        at_bank = waiting.result()["shop"]
    return at_bank, at_shop


@pytest.fixture(params=["memory", "tls"])
def pair(request, networks):
    if request.param == "memory":
        return memory_channels("bank", "shop", timeout_s=5)
    return pair_over_tls(networks)


def test_names_and_order_both_ways(pair):
    bank, shop = pair
    assert (bank.peer, shop.peer) == ("shop", "bank")

    def one(channel):
        for number in range(300):
            channel.send(Note(number=number))
        return [channel.receive(Note).number for _ in range(300)]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(one, pair))
    assert found == [list(range(300))] * 2
    assert bank.traffic == shop.traffic
    assert bank.traffic.messages_sent == bank.traffic.messages_received == 300


def test_ping_pong_from_two_threads(pair):
    bank, shop = pair

    def echo():
        for _ in range(100):
            shop.send(shop.receive(Note))

    thread = threading.Thread(target=echo)
    thread.start()
    for number in range(100):
        bank.send(Note(number=number))
        assert bank.receive(Note).number == number
    thread.join()


def test_large_messages_over_a_window_ahead(pair):
    bank, shop = pair
    values = np.random.default_rng(1).normal(size=3_000_000)  # 24 MB a message, a window is 64 MB

    def pour():
        for number in range(5):
            bank.send(Bulk(values=Array.of(values + number)))
        bank.receive(Note)

    thread = threading.Thread(target=pour)
    thread.start()
    for number in range(5):
        assert np.array_equal(shop.receive(Bulk).values.numpy(3_000_000), values + number)
    shop.send(Note(number=0))
    thread.join()


def test_another_type_is_a_protocol_error_that_names_the_peer(pair):
    bank, shop = pair
    shop.send(Note(number=1))
    with pytest.raises(ProtocolError, match="shop broke the protocol: got a message of type b'Note' where Bulk is due") as caught:
        bank.receive(Bulk)
    assert caught.value.peer == "shop"
    shop.send(Unbounded(number="not a number"))
    with pytest.raises(ProtocolError, match="got a message of type b'Unbounded'"):
        bank.receive(Note)


def test_a_stop_arrives_after_what_came_before_it(pair):
    bank, shop = pair
    shop.send(Note(number=1))
    shop.send(Stopped(reason="the operator pulled the plug"))
    assert bank.receive(Note).number == 1
    with pytest.raises(PeerStopped, match="shop stopped: the operator pulled the plug"):
        bank.receive(Note)


def test_silence_in_memory_is_a_lost_peer():
    bank, _ = memory_channels("bank", "shop", timeout_s=0.05)
    with pytest.raises(PeerLost, match=r"shop sent nothing for 0.05 s"):
        bank.receive(Note)
