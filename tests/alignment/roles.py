"""Run the roles of a protocol, each in its own thread, and channels that record or change what crosses them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tallystick.alignment.exchange import Chunk, Size
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import TallystickError
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Array

_STREAMS = {}


def _draw(count):
    use = threading.current_thread().name, count
    if use not in _STREAMS:
        _STREAMS[use] = np.random.default_rng([1, count, *use[0].encode()])
    return _STREAMS[use].bytes(count)


RNG = SecureRandom(source=_draw)
"""Each role draws each number of bytes from a separate stream, which starts anew with the roles.

So base transfers are alike, whatever was drawn before them, and their products are remembered.
"""


def in_threads(*roles):
    """Run the roles at the same time. Return what each returned, or the TallystickError it raised."""
    _STREAMS.clear()

    def outcome(role, number):
        threading.current_thread().name = f"role {number}"
        try:
            return role()
        except TallystickError as error:
            return error

    with ThreadPoolExecutor(len(roles)) as pool:
        return list(pool.map(outcome, roles, range(len(roles))))


def error_of(role, cheat):
    """Run a role against a peer that does not follow the protocol. Return the role's error."""
    mine, theirs = memory_channels("role", "peer", timeout_s=5)
    return in_threads(lambda: role(mine), lambda: cheat(theirs))[0]


class Recording:
    """A channel that keeps the view: every list that was received, in order."""

    def __init__(self, channel):
        self._channel, self.peer, self.view = channel, channel.peer, {}

    def send(self, message):
        self._channel.send(message)

    def receive(self, kind):
        message = self._channel.receive(kind)
        if isinstance(message, Chunk):
            before = self.view.get(message.of)
            rows = message.rows.numpy().copy()
            self.view[message.of] = rows if before is None else np.concatenate((before, rows))
        return message


class Tampering:
    """A channel of a party that follows the protocol except for one list, which it changes before sending."""

    def __init__(self, channel, of, change):
        self._channel, self.peer, self._of, self._change = channel, channel.peer, of, change

    def send(self, message):
        if isinstance(message, Chunk) and message.of == self._of:
            message = Chunk(of=message.of, rows=Array.of(self._change(message.rows.numpy().copy())))
        self._channel.send(message)

    def receive(self, kind):
        return self._channel.receive(kind)


class Watching:
    """A channel that keeps the bytes of every list that was received, and the kind and size of every message."""

    def __init__(self, channel):
        self._channel, self.peer, self.send = channel, channel.peer, channel.send
        self.lists, self.sizes = {}, []

    def receive(self, kind):
        message = self._channel.receive(kind)
        size = message.rows if isinstance(message, Size) else None
        if isinstance(message, Chunk):
            size = message.of, message.rows.shape
            self.lists.setdefault(message.of, bytearray()).extend(message.rows.numpy().tobytes())
        self.sizes.append((type(message).__name__, size))
        return message
