"""Ports of this machine that nobody else is given while their party is down."""

import socket
from itertools import count

from tallystick.network import addresses
from tallystick.network.addresses import free_port


def test_a_port_is_given_once_and_lies_below_those_that_systems_give_out():
    given = [free_port() for _ in range(200)]
    assert len(set(given)) == len(given)
    assert 1_024 < min(given) < max(given) < 32_768  # Linux begins there, others at 49,152


def test_a_port_that_is_taken_is_passed_over(monkeypatch):
    monkeypatch.setattr(addresses, "_asked", count())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        monkeypatch.setattr(addresses, "_asked", count())  # asked from the start again
        assert free_port() != taken.getsockname()[1]
