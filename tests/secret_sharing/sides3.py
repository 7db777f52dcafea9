"""Run the label party, feature parties and the helper of a computation on shares, each in its own thread."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tallystick.network.channel import memory_channels
from tallystick.secret_sharing.sides import Dealer, ShareHolder

SEEDS = {True: b"l" * 32, False: b"f" * 32}


class Recording:
    """A channel that keeps each message that was received, as words, in order."""

    def __init__(self, channel):
        self._channel, self.peer, self.view = channel, channel.peer, []

    def send(self, message):
        self._channel.send(message)

    def receive(self, kind):
        message = self._channel.receive(kind)
        if hasattr(message, "words"):
            self.view.append((kind.__name__, message.words.numpy().copy().view(np.uint64)))
        return message


def run(label, features, helper, *, seeds=SEEDS, timeout_s=60):
    """Run them.

    Return what the parties returned, and the view of each, by its peer's name. There is one feature party, or a list of several.
    Of these the first has the seed of False, the others one of their place.
    """
    roles = {"label": label}
    several = features if isinstance(features, list) else [features]
    roles |= {("feature" if place == 1 else f"feature {place}"): role for place, role in enumerate(several, start=1)}
    names = list(roles)
    helpers, ends = {}, {name: {"peers": [], "helper": None} for name in names}
    for place, name in enumerate(names):
        here, helpers[name] = memory_channels(name, "helper", timeout_s=timeout_s)
        ends[name]["helper"] = Recording(here)
        if place:
            of_label, of_feature = memory_channels("label", name, timeout_s=timeout_s)
            ends["label"]["peers"].append(Recording(of_label))
            ends[name]["peers"].append(Recording(of_feature))

    def party(place, name):
        seed = seeds[place == 0] if place < 2 else bytes([place]) * 32
        return roles[name](ShareHolder.begin(ends[name]["peers"], ends[name]["helper"], place=place, seed=seed))

    def of_helper():
        channels = list(helpers.values())
        return helper(Dealer.begin(channels[0], channels[1:]))

    with ThreadPoolExecutor(1 + len(names)) as pool:
        parties = [pool.submit(party, place, name) for place, name in enumerate(names)]
        pool.submit(of_helper).result()
        results = [each.result() for each in parties]
    views = {
        name: {
            "peer": [each for peer in sides["peers"] for each in peer.view],
            "peers": [peer.view for peer in sides["peers"]],
            "helper": sides["helper"].view,
        }
        for name, sides in ends.items()
    }
    return *results, views


def opened(*shares):
    """Add the parties' shares by column."""
    return sum(shares[1:], shares[0])


def replaced(plan, **values):
    return dataclasses.replace(plan, **values)
