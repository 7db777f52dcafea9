"""Permute and share: one side permutes the values that the other holds, and both end with shares of the result.

    permuter, choice c of each switch              holder of the values
    its share of every value is 0                  its share of every value is the value
    for every switch, whose shares are x and y:
    a transfer by c, so one of two pads    <->     both pads, k0 and k1
                                           <-      k0 + k1 + x + y
    d = its pad, + c (that + x + y)                d = k0
    its shares behind the switch: x + d, y + d     its shares behind the switch: x + d, y + d

The sum of both d is c (x + y) of the values themselves, so a switch exchanges them if c is 1; + is exclusive or. Mohassel and
Sadeghian 2013 ("How to Hide Circuits in MPC"), where a transfer carries two values for each choice; here both values of a switch
share a pad. The permuter knows all its choices from the start, so neither side waits for an answer before the next layer.

Threat model: honest but curious. Guarantee: that of ``transfers``. The permuter sees uniform bits, because each message is masked
by the pad that it did not choose, which is used once. The holder sees only corrections of transfers.

Shapes: N values of the network; W switches of a layer; B of a piece.
"""

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from tallystick.alignment.exchange import Chunk, receive_chunk
from tallystick.alignment.oprf.bit_matrix import Words
from tallystick.alignment.switching.network import Bits, Network
from tallystick.alignment.switching.transfers import GROUPS, TransferReceiver, TransferSender, words_of
from tallystick.network.channel import Channel
from tallystick.network.messages import Array

PIECE_SWITCHES = 32_768
AHEAD = 8
"""How many pieces the permuter sends before it waits for the first answer."""
_CORRECTIONS, _ANSWERS = "choices of switches", "differences at switches"
_WORD_BYTES = 8

SwitchProgress = Callable[[int], None]
"""Called with how many more switches are done."""


def permute(
    channel: Channel, transfers: TransferReceiver, network: Network, choices: list[Bits], *, progress: SwitchProgress
) -> Words:
    """Return the permuter's shares (N) of the holder's values after the network with these choices.

    Raises ProtocolError for messages of other sizes.
    """
    share_N = np.zeros(network.size, dtype=np.uint64)
    choices_of_batches = _begun(channel, transfers, choices)
    for layer, switches in zip(network.layers(), network.switches(), strict=True):
        first_W, second_W = layer.taken(share_N)
        for span in _spans(switches):
            pad_B, choice_B = next(choices_of_batches)
            answer_B = receive_chunk(channel, _ANSWERS, span, (_WORD_BYTES,), np.uint8).view("<u8")[:, 0]
            first_B, second_B = first_W[span], second_W[span]
            chosen_B: Words = first_B ^ second_B ^ answer_B
            chosen_B &= -choice_B.astype(np.uint64)  # all bits, or none
            chosen_B ^= pad_B
            first_B ^= chosen_B
            second_B ^= chosen_B
            progress(len(pad_B))
        layer.put(first_W, second_W, share_N)
    return share_N


def share(channel: Channel, transfers: TransferSender, network: Network, values_N: Words, *, progress: SwitchProgress) -> Words:
    """Return the holder's shares (N) of its values after the network. Raises what ``permute`` raises."""
    share_N = values_N.copy()
    for layer, switches in zip(network.layers(), network.switches(), strict=True):
        first_W, second_W = layer.taken(share_N)
        for span in _spans(switches):
            first_B, second_B = first_W[span], second_W[span]
            correction_GW = receive_correction(channel, _CORRECTIONS, len(first_B))
            pad_B, other_B = (pads_B2[:, 0] for pads_B2 in transfers.next_transfers(correction_GW, len(first_B)))
            answer_B: Words = first_B ^ second_B ^ pad_B ^ other_B
            channel.send(Chunk(of=_ANSWERS, rows=Array.lend(answer_B.view(np.uint8).reshape(-1, _WORD_BYTES))))
            first_B ^= pad_B
            second_B ^= pad_B
            progress(len(pad_B))
        layer.put(first_W, second_W, share_N)
    return share_N


def send_correction(channel: Channel, of: str, correction_GW: Words) -> None:
    """Send a receiver's corrections for a piece of transfers."""
    channel.send(Chunk(of=of, rows=Array.lend(correction_GW.view(np.uint8))))


def receive_correction(channel: Channel, of: str, transfers: int) -> Words:
    """Receive the corrections (G, W) for a piece of this many transfers."""
    rows = receive_chunk(channel, of, slice(0, GROUPS), (_WORD_BYTES * words_of(transfers),), np.uint8)
    return np.ascontiguousarray(rows).view("<u8")


def _begun(channel: Channel, transfers: TransferReceiver, choices: list[Bits]) -> Iterator[tuple[Words, Bits]]:
    """Begin the transfers of all switches in turn, some pieces ahead, and yield each piece's pads (B) and choices."""
    waiting: deque[tuple[Words, Bits]] = deque()
    for choice_W in choices:
        for span in _spans(len(choice_W)):
            correction_GW, pad_B2 = transfers.next_transfers(choice_W[span])
            send_correction(channel, _CORRECTIONS, correction_GW)
            waiting.append((pad_B2[:, 0].copy(), choice_W[span]))
            if len(waiting) > AHEAD:
                yield waiting.popleft()
    yield from waiting


def _spans(count: int) -> Iterator[slice]:
    return (slice(start, min(start + PIECE_SWITCHES, count)) for start in range(0, count, PIECE_SWITCHES))
