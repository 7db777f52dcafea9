"""Aggregate securely: K clients send vectors of integers, and the server learns their sum and nothing else.

Bonawitz et al. 2017, sections 3 and 4.0.1 (pairwise masks without the recovery of dropped clients): each pair of clients
agrees on a key over X25519, both expand it to the same stream of 64-bit words, one adds the stream and the other subtracts it.

Threat model: an honest-but-curious server that relays the keys, and clients that do not collude with it. Anyone with K - 1
clients' terms learns the last one. Not protected: a server that swaps the relayed keys for its own reads every term. If that is a
concern, sign the keys. Noise inside the terms (polya_share) limits what the sum itself reveals.

If a client drops out, its masks stay in the sum, which is then uniformly random. The server raises an error and tells the others.
The round may start again among those that remain, with new keys and noise shares for the new number of clients. A sum that lacks
a share of noise is never produced. A round may have an exact sum before the noisy one. If a client drops out between the two, the
server has that exact sum over all, and a new round without the lost client would reveal this client's own values by the
difference.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from tallystick.errors import ConfigError, PeerError, ProtocolError, TallystickError
from tallystick.network.channel import Channel
from tallystick.network.messages import MEBIBYTE, Array, MalformedMessage, Message, Stopped

Ints = NDArray[np.int64]
_KEY_BYTES = 32
MAX_CLIENTS = 10_000


class Join(Message, frozen=True):
    """A client's new public key for this round."""

    public_key: bytes


class Roster(Message, frozen=True):
    """All clients' public keys, and which of them belongs to the receiver."""

    public_keys: tuple[bytes, ...]
    position: int


class Term(Message, frozen=True):
    """One client's vector, masked or plain."""

    limit: ClassVar[int] = 16 * MEBIBYTE
    values: Array


@dataclass(frozen=True, kw_only=True)
class PlainTerms:
    """A sender of a client's vectors without masks: the server sees each client's own."""

    channel: Channel
    clients: int | None = None  # not known, and not needed, because each client adds the whole noise

    def send(self, values_L: Ints) -> None:
        """Send the next vector of this round."""
        self.channel.send(Term(values=Array.of(values_L.astype(np.int64))))


class MaskedTerms:
    """A sender of a client's vectors under pairwise masks."""

    def __init__(self, channel: Channel, *, least_clients: int = 2) -> None:
        """Exchange keys. Raises ProtocolError if the roster is short, repeats a key or lacks this client's own."""
        self.channel = channel
        private_key = X25519PrivateKey.generate()
        own = private_key.public_key().public_bytes_raw()
        channel.send(Join(public_key=own))
        roster = channel.receive(Roster)
        keys = roster.public_keys
        if not max(2, least_clients) <= len(keys) <= MAX_CLIENTS:
            raise ProtocolError(
                channel.peer,
                f"{channel.peer} lists {len(keys)} clients for a masked sum; at least {least_clients} are due",
            )
        if not 0 <= roster.position < len(keys) or keys[roster.position] != own or len(set(keys)) != len(keys):
            raise ProtocolError(channel.peer, f"{channel.peer} sent a roster that repeats a key or lacks this client's own")
        self.clients = len(keys)
        self._position = roster.position
        self._round = hashlib.sha256(b"".join(keys)).digest()
        self._secrets: list[bytes | None] = []
        for key in keys:
            try:
                secret = private_key.exchange(X25519PublicKey.from_public_bytes(key)) if key != own else None
            except ValueError as error:
                raise ProtocolError(
                    channel.peer, f"{channel.peer} relayed a client key that is not a usable X25519 key: {error}"
                ) from None
            self._secrets.append(secret)
        self._sent = 0

    def send(self, values_L: Ints) -> None:
        """Mask and send the next vector of this round."""
        masked_L = values_L.astype(np.int64).view(np.uint64).copy()
        for other, secret in enumerate(self._secrets):
            if secret is None:
                continue
            key = HKDF(algorithm=SHA256(), length=32, salt=self._round, info=b"tallystick mask %d" % self._sent).derive(secret)
            stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * len(masked_L)))
            mask_L = np.frombuffer(stream, dtype="<u8")
            masked_L = masked_L + mask_L if self._position < other else masked_L - mask_L
        self._sent += 1
        self.channel.send(Term(values=Array.of(masked_L.view(np.int64))))


def exchange_keys(channels: Sequence[Channel]) -> None:
    """Collect every client's public key and send all of them to each client.

    This is the server's side of MaskedTerms, within all_or_none.
    """
    if len(channels) < 2:
        raise ConfigError(f"a masked sum over {len(channels)} client hides nothing; it needs at least 2 clients")
    keys = tuple(channel.receive(Join).public_key for channel in channels)
    for position, channel in enumerate(channels):
        if len(keys[position]) != _KEY_BYTES:
            raise ProtocolError(channel.peer, f"{channel.peer} sent a key of {len(keys[position])} bytes; {_KEY_BYTES} are due")
        channel.send(Roster(public_keys=keys, position=position))


def receive_sum(channels: Sequence[Channel], length: int) -> Ints:
    """Receive one vector of ``length`` from every client and add them modulo 2^64, so that the masks cancel.

    Raises PeerError, which names a client that dropped out or broke the protocol; there is no partial sum. Call it within
    all_or_none, which tells the others.
    """
    total_L = np.zeros(length, dtype=np.uint64)
    for channel in channels:
        term = channel.receive(Term)
        try:
            if term.values.dtype != "int64":
                raise MalformedMessage(f"a term of type {term.values.dtype}, expected int64")
            total_L += term.values.numpy(length).view(np.uint64)
        except MalformedMessage as error:
            raise ProtocolError(channel.peer, f"{channel.peer} broke the protocol: {error}") from None
    return total_L.view(np.int64)


@contextmanager
def all_or_none(channels: Sequence[Channel]) -> Iterator[list[str]]:
    """End the round for every client, once, if it fails, and say why. A client that dropped out or misbehaved is named.

    Yields a list, to which the caller adds the name of every exact sum that was revealed. From then on the reason says so, and
    says what a new round without the lost client would reveal.
    """
    sums_out: list[str] = []
    try:
        yield sums_out
    except TallystickError as error:
        sums = " and ".join(sums_out)
        outcome = (
            f"no result was released, but the server knows the {sums} over all clients" if sums_out else "nothing was released"
        )
        reason = f"{error}; {outcome}"
        if isinstance(error, PeerError):
            lost = error.peer
            advice = "start a new round without it"
            if sums_out:
                advice = (
                    f"the difference to a new round without {lost} would show {lost}'s own exact {sums}: start it with {lost} "
                    "again, or only if others may know them"
                )
            reason = f"{lost} dropped out of the sum over {len(channels)} clients; {outcome}, {advice}"
            error.add_note(reason)
        for channel in channels:
            if isinstance(error, PeerError) and channel.peer == error.peer:
                continue
            try:
                channel.send(Stopped(reason=reason))
            except PeerError as second:
                error.add_note(f"{second.peer} could not be told: {second}")
        raise
