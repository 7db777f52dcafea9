"""Send rows that the receiver gets only if its choice is 0, in many oblivious transfers.

Threat model and guarantee: those of ``transfers``. A row is masked by the pad of choice 0, and choice 1 gives nothing.

Shapes: J rows; B of a piece.
"""

from collections import deque

import numpy as np

from tallystick.alignment.exchange import Chunk, receive_chunk
from tallystick.alignment.matching import TAG_BYTES, Tags
from tallystick.alignment.oprf.bit_matrix import Words
from tallystick.alignment.switching.network import Bits
from tallystick.alignment.switching.shuffle import receive_correction, send_correction
from tallystick.alignment.switching.transfers import TransferReceiver, TransferSender
from tallystick.network.channel import Channel
from tallystick.network.messages import Array

PIECE = 32_768
AHEAD = 8
_CORRECTIONS, _ROWS = "choices of rows", "hidden rows"


def receive_hidden_rows(channel: Channel, transfers: TransferReceiver, choice_J: Bits) -> Tags:
    """Return the rows (J, 16) whose choice is 0, and noise elsewhere. Raises ProtocolError for messages of other sizes."""
    rows_J16 = np.empty((len(choice_J), TAG_BYTES), dtype=np.uint8)
    waiting: deque[tuple[slice, Words]] = deque()

    def take() -> None:
        span, pad_B2 = waiting.popleft()
        rows_J16[span] = receive_chunk(channel, _ROWS, span, (TAG_BYTES,), np.uint8) ^ pad_B2.view(np.uint8)

    for span in _spans(len(choice_J)):
        correction_GW, pad_B2 = transfers.next_transfers(choice_J[span])
        send_correction(channel, _CORRECTIONS, correction_GW)
        waiting.append((span, pad_B2))
        if len(waiting) > AHEAD:
            take()
    while waiting:
        take()
    return rows_J16


def send_hidden_rows(channel: Channel, transfers: TransferSender, rows_J16: Tags) -> None:
    """Send rows, each masked from a receiver whose choice is 1. Raises what ``receive_hidden_rows`` raises."""
    for span in _spans(len(rows_J16)):
        rows_B16 = rows_J16[span]
        correction_GW = receive_correction(channel, _CORRECTIONS, len(rows_B16))
        pad_B2, _ = transfers.next_transfers(correction_GW, len(rows_B16))
        channel.send(Chunk(of=_ROWS, rows=Array.lend(rows_B16 ^ pad_B2.view(np.uint8))))


def _spans(count: int) -> list[slice]:
    return [slice(start, min(start + PIECE, count)) for start in range(0, count, PIECE)]
