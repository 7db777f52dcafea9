"""Run the label party, the feature party and the helper of a computation on shares, each in a thread of its own."""

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


def run(label, feature, helper, *, seeds=SEEDS, timeout_s=60):
    """Run the three; gives what the parties returned, and the view of each, by its peer's name."""
    between = memory_channels("label", "feature", timeout_s=timeout_s)
    to_label = memory_channels("label", "helper", timeout_s=timeout_s)
    to_feature = memory_channels("feature", "helper", timeout_s=timeout_s)
    ends = {
        "label": {"peer": Recording(between[0]), "helper": Recording(to_label[0])},
        "feature": {"peer": Recording(between[1]), "helper": Recording(to_feature[0])},
    }

    def party(name, role):
        is_label = name == "label"
        side = ShareHolder.begin(ends[name]["peer"], ends[name]["helper"], is_label=is_label, seed=seeds[is_label])
        return role(side)

    with ThreadPoolExecutor(3) as pool:
        label_done = pool.submit(party, "label", label)
        feature_done = pool.submit(party, "feature", feature)
        helper_done = pool.submit(lambda: helper(Dealer.begin(to_label[1], to_feature[1])))
        helper_done.result()
        results = label_done.result(), feature_done.result()
    return *results, {name: {of: end.view for of, end in sides.items()} for name, sides in ends.items()}


def opened(label, feature):
    """Add the two parties' shares by column: of the label party's columns, then of the feature party's, then of products."""
    return np.concatenate(
        [label.own_DC + feature.others_EC, label.others_EC + feature.own_DC, label.common_PC + feature.common_PC]
    )


def replaced(plan, **values):
    return dataclasses.replace(plan, **values)
