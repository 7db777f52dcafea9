"""Fill the places of a network beyond the bins, and count the progress of both.

Shapes: J places of the network.
"""

from collections.abc import Callable

import numpy as np

from tallystick.alignment.oprf.bit_matrix import Words
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.switching.network import Network
from tallystick.alignment.switching.programmed import Bins
from tallystick.network.channel import Progress


def padded_values(value_J: Words, network: Network, rng: SecureRandom) -> Words:
    """Fill the network's places beyond the bins with random values, which no value of the other side equals."""
    return np.concatenate((value_J, np.frombuffer(rng.bytes(8 * (network.size - len(value_J))), dtype="<u8")))


def steps_of(progress: Progress, bins: Bins, network: Network, *, what: str) -> Callable[[int], None]:
    """Count bins, switches and places and tell ``progress``."""
    steps, total = 0, bins.count + sum(network.switches()) + network.size

    def count(more: int) -> None:
        nonlocal steps
        steps += more
        progress(what, steps, total)

    return count
