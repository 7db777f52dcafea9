"""Build a permutation from layers of switches, each of which exchanges two values or does not: a network of Benes.

Neighbours enter a switch together. The first of each pair goes to one half of the block and the second to the other. Both halves
are permuted in the same way. Then pairs enter a switch again. In the middle, blocks of at most eight values are sorted by their
targets in Batcher's network (Knuth, The Art of Computer Programming 3, section 5.2.2, algorithm M).

How values get their halves: the two values of a pair go to different halves, both for pairs that enter and for pairs that leave.
So values form circles, linked by pairs of both kinds in turn, and every second value of a circle goes to the same half. The value
with the least number determines which half. All halves are found at once, by doubling steps (Bernstein 2020, "Verified fast
formulas for control bits for permutation networks"). The number of steps is the same for every permutation of a size.

Shapes: N values of the network; W switches of a layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

WIDEST = 8
"""Greatest number of values of a block in the middle. Up to this width no network with fewer switches than Batcher's is known."""

Values = np.ndarray[Any, Any]
Index = np.ndarray[Any, np.dtype[np.int32]]
Bits = np.ndarray[Any, np.dtype[np.bool_]]


class Layer(Protocol):
    """Switches that share no value."""

    def taken(self, values_N: Values) -> tuple[Values, Values]:
        """Return copies of the first and of the second value of every switch (W)."""
        ...

    def put(self, first_W: Values, second_W: Values, values_N: Values) -> None:
        """Set the values to the outputs of the switches."""
        ...


@dataclass(frozen=True)
class _Parting:
    """Neighbours enter a switch. Then the first values of all pairs of a block become its first half."""

    blocks: int

    def taken(self, values_N: Values) -> tuple[Values, Values]:
        return values_N[0::2].copy(), values_N[1::2].copy()

    def put(self, first_W: Values, second_W: Values, values_N: Values) -> None:
        halves = values_N.reshape(self.blocks, 2, -1)
        halves[:, 0], halves[:, 1] = first_W.reshape(self.blocks, -1), second_W.reshape(self.blocks, -1)


@dataclass(frozen=True)
class _Meeting:
    """The mirror image: the values of a block's halves enter a switch, and then become neighbours."""

    blocks: int

    def taken(self, values_N: Values) -> tuple[Values, Values]:
        halves = values_N.reshape(self.blocks, 2, -1)
        return halves[:, 0].flatten(), halves[:, 1].flatten()

    def put(self, first_W: Values, second_W: Values, values_N: Values) -> None:
        values_N[0::2], values_N[1::2] = first_W, second_W


@dataclass(frozen=True)
class _Comparing:
    """The values at two places of every block enter a switch, and stay there."""

    width: int
    first: int
    second: int

    def taken(self, values_N: Values) -> tuple[Values, Values]:
        blocks = values_N.reshape(-1, self.width)
        return blocks[:, self.first].copy(), blocks[:, self.second].copy()

    def put(self, first_W: Values, second_W: Values, values_N: Values) -> None:
        blocks = values_N.reshape(-1, self.width)
        blocks[:, self.first], blocks[:, self.second] = first_W, second_W


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network with room for at least ``least`` values. Both sides know it."""

    least: int
    size: int = field(init=False)
    levels: int = field(init=False)
    width: int = field(init=False)

    def __post_init__(self) -> None:
        levels = 0
        while -(-self.least >> levels) > WIDEST:
            levels += 1
        width = -(-self.least >> levels)
        for name, value in (("levels", levels), ("width", width), ("size", width << levels)):
            object.__setattr__(self, name, value)

    def layers(self) -> Iterator[Layer]:
        """Yield all layers, in order."""
        yield from (_Parting(1 << level) for level in range(self.levels))
        yield from (_Comparing(self.width, *pair) for pair in comparisons(self.width))
        yield from (_Meeting(1 << level) for level in reversed(range(self.levels)))

    def switches(self) -> list[int]:
        """Return how many switches each layer has."""
        outer = [self.size // 2] * self.levels
        return [*outer, *[1 << self.levels] * len(comparisons(self.width)), *outer]


def comparisons(width: int) -> list[tuple[int, int]]:
    """List the two places of every comparison, in order, by Batcher's sorting network."""
    pairs: list[tuple[int, int]] = []
    part = top = 1 << (width - 1).bit_length() >> 1
    while part:
        step, residue, apart = top, 0, part
        while True:
            pairs += [(place, place + apart) for place in range(width - apart) if place & part == residue]
            if step == part:
                break
            step, residue, apart = step >> 1, part, step - part
        part >>= 1
    return pairs


def route(network: Network, target_N: Index) -> list[Bits]:
    """Return every layer's choices (W) that bring value n to place ``target_N[n]``, for a permutation of all places."""
    target_N = target_N.copy()
    parting, comparing, meeting = [], [], []
    for level in range(network.levels):
        block = network.size >> level
        enters_W, leaves_W = _halves(target_N, block=block)
        parting.append(enters_W)
        meeting.append(leaves_W)
        _switch(_Parting(1 << level), enters_W, target_N)
        # Within its half of the block, a value leaves where its pair leaves.
        halves = target_N.reshape(1 << level, 2, -1)
        start = np.arange(0, network.size, block, dtype=np.int32)[:, None, None]
        halves[...] = start + ((halves - start) >> 1)
        halves[:, 1] += np.int32(block // 2)
    for pair in comparisons(network.width):
        layer = _Comparing(network.width, *pair)
        first_W, second_W = layer.taken(target_N)
        comparing.append(first_W > second_W)
        layer.put(np.minimum(first_W, second_W), np.maximum(first_W, second_W), target_N)
    return [*parting, *comparing, *reversed(meeting)]


def _halves(target_N: Index, *, block: int) -> tuple[Bits, Bits]:
    """Tell, for pairs that enter and for pairs that leave, whether the first of the pair uses the second half of its block."""
    source_N = np.empty_like(target_N)
    source_N[target_N] = np.arange(len(target_N), dtype=np.int32)
    # Two steps along the circle: to the other value of the pair, and to the value with which that one leaves.
    ahead_N = source_N[_others(target_N) ^ np.int32(1)]
    least_N = np.arange(len(target_N), dtype=np.int32)
    for _ in range((block // 2 - 1).bit_length()):
        np.minimum(least_N, least_N[ahead_N], out=least_N)
        ahead_N = ahead_N[ahead_N]
    second_N = least_N > _others(least_N)
    return second_N[0::2].copy(), second_N[source_N[0::2]]


def _others(values_N: Values) -> Values:
    """Return each pair's other value."""
    return values_N.reshape(-1, 2)[:, ::-1].reshape(-1)


def _switch(layer: Layer, choice_W: Bits, values_N: Values) -> None:
    first_W, second_W = layer.taken(values_N)
    layer.put(np.where(choice_W, second_W, first_W), np.where(choice_W, first_W, second_W), values_N)
