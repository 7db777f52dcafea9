"""Tests of sessions share these: a message, and how a socket says that its peer has gone."""

import ssl

from tallystick.network.messages import MEBIBYTE, Message


class Note(Message, frozen=True):
    limit = 64 * MEBIBYTE
    number: int
    ballast: bytes = b""


def hung_up(end):
    try:
        return end.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True
