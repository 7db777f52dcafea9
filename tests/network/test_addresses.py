"""Ports on this machine: one that nobody else is given while its party is down."""

import socket
from itertools import count

from tallystick.network import addresses
from tallystick.network.addresses import free_port


def test_a_port_is_given_once_and_the_system_gives_it_to_nobody():
    given = [free_port() for _ in range(200)]
    assert len(set(given)) == len(given)
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        assert max(given) < 32_000 < any_port.getsockname()[1]


def test_a_port_that_is_taken_is_passed_over(monkeypatch):
    monkeypatch.setattr(addresses, "_asked", count())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        monkeypatch.setattr(addresses, "_asked", count())  # asked from the start again
        assert free_port() != taken.getsockname()[1]
