"""Compare many values with the other side's: one side learns which are equal, and nothing else about the other's values.

    side that learns, a value b_j in place j       side that answers, a value c_j
    an oblivious pseudorandom function:    <->     F_j at any value
    F_j(b_j)                               <-      F_j(c_j), for every j
    equal: b_j = c_j

The function is that of ``oprf.extension``, with one input for each place. A hash of c_j would not be enough: the side that learns
may be able to guess c_j.

Threat model: honest but curious. Guarantee: the side that answers learns nothing; to the other, F_j looks random except at b_j.
Two different values appear equal with a chance of 2^-96.

Shapes: J places; B of a piece.
"""

from collections import deque
from hashlib import blake2b

import numpy as np

from tallystick.alignment.exchange import Chunk, receive_chunk
from tallystick.alignment.oprf.base_transfers import transfer_receiver, transfer_sender
from tallystick.alignment.oprf.bit_matrix import Rows, Words
from tallystick.alignment.oprf.codes import CODE_BITS, CODE_BYTES, FINGERPRINT_BYTES, Codes
from tallystick.alignment.oprf.extension import SALT_BYTES, Receiver, Sender, outputs
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.switching.network import Bits
from tallystick.alignment.switching.shuffle import SwitchProgress
from tallystick.network.channel import Channel
from tallystick.network.messages import Array

PIECE = 8192
AHEAD = 8
"""How many pieces the side that learns sends before it waits for the first answer."""
_OUTPUT_BYTES = 12
_CORRECTIONS, _OUTPUTS = "corrections of places", "values of places"


def learn_equal(channel: Channel, value_J: Words, *, rng: SecureRandom, salt: bytes, progress: SwitchProgress) -> Bits:
    """Return whether the value of each place (J) equals the other side's. Raises ProtocolError for messages of other sizes."""
    receiver = Receiver(*transfer_sender(channel, CODE_BITS, rng=rng, context=salt))
    codes, equal_J = Codes(_key(salt)), np.zeros(len(value_J), dtype=bool)
    waiting: deque[tuple[slice, Rows]] = deque()

    def compare() -> None:
        span, own_B12 = waiting.popleft()
        their_B12 = receive_chunk(channel, _OUTPUTS, span, (_OUTPUT_BYTES,), np.uint8)
        equal_J[span] = (own_B12 == their_B12).all(axis=1)
        progress(len(own_B12))

    for span in _spans(len(value_J)):
        input_B64, correction_B64 = receiver.next_bins(codes.words(_padded(value_J[span])))
        channel.send(Chunk(of=_CORRECTIONS, rows=Array.lend(correction_B64)))
        waiting.append((span, _function(input_B64, span, salt=salt)))
        if len(waiting) > AHEAD:
            compare()
    while waiting:
        compare()
    return equal_J


def answer_equal(channel: Channel, value_J: Words, *, rng: SecureRandom, salt: bytes, progress: SwitchProgress) -> None:
    """Let the other side learn which of its values equal this side's (J). Raises what ``learn_equal`` raises."""
    choices_T = np.unpackbits(np.frombuffer(rng.bytes(CODE_BYTES), dtype=np.uint8)).astype(bool)
    sender = Sender(transfer_receiver(channel, choices_T, rng=rng, context=salt), choices_T)
    codes = Codes(_key(salt))
    for span in _spans(len(value_J)):
        secret_B64 = sender.next_bins(receive_chunk(channel, _CORRECTIONS, span, (CODE_BYTES,), np.uint8))
        input_B64 = sender.inputs(secret_B64, codes.words(_padded(value_J[span])))
        channel.send(Chunk(of=_OUTPUTS, rows=Array.lend(_function(input_B64, span, salt=salt))))
        progress(len(secret_B64))


def _function(input_B64: Rows, span: slice, *, salt: bytes) -> Rows:
    return outputs(input_B64, np.arange(span.start, span.stop, dtype=np.int32), salt=salt[:SALT_BYTES], size=_OUTPUT_BYTES)


def _padded(value_B: Words) -> Rows:
    """Pad values to the size that the code takes (B, 16)."""
    words_B2 = np.zeros((len(value_B), FINGERPRINT_BYTES // 8), dtype=np.uint64)
    words_B2[:, 0] = value_B
    return words_B2.view(np.uint8)


def _key(salt: bytes) -> bytes:
    return blake2b(salt, digest_size=16, person=b"tallystick equal").digest()


def _spans(count: int) -> list[slice]:
    return [slice(start, min(start + PIECE, count)) for start in range(0, count, PIECE)]
