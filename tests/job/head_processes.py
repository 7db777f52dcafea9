"""Functions that processes of a head on shares call first. This module loads little, and none of the tests that start them."""

import os
import signal
import time
from functools import partial

from tallystick.config import contract
from tallystick.job.phases import shared_head
from tallystick.models import fixed_features
from tallystick.run_folder import shared_head as halves

SMALL = (
    (shared_head, "OWN_EPOCHS", (2, 2)),
    (fixed_features, "RANDOM_SUMS", 24),
    (halves, "_AXES_LABEL_PARTY", 128),
    (halves, "_AXES_FEATURE_PARTY", 128),
)
"""Make training short, for tests of anything but accuracy: few epochs of the own network, few features, all axes."""


def short_own_network():
    setattr(*SMALL[0])


def short_exploration():
    """Train the model of own columns, which is compared with an exploration, for few epochs, too."""
    short_own_network()
    contract.SynchronousTraining = partial(contract.SynchronousTraining, epochs=2, folds=1)


def die(role, step, after):
    """Kill this party's process before or after a step of opening scores."""
    short_own_network()
    target = {
        "keep": shared_head.DueScores,
        f"open_as_{role}_party": shared_head.DueScores,
        "enter_scored": shared_head,
        f"open_scores_{role}_party": shared_head,
    }[step]
    function = getattr(target, step)

    def dying(*arguments, **named):
        if after:
            function(*arguments, **named)
            time.sleep(2)  # gives the message time to leave
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(target, step, dying)


def die_before_the_head_is_kept():
    short_own_network()
    shared_head.SharedHead.keep = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
