"""Addresses on this machine."""

import socket


def free_port() -> int:
    """A TCP port on loopback that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
