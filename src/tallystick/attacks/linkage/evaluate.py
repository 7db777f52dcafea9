"""Measure how far an attacker's guessed places are from the keys, for a report's linkage section.

Shapes: T targets that were placed, D dimensions.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from tallystick.attacks.findings import LocatedKeys
from tallystick.attacks.linkage.attack_table import LINKAGE_ATTACKS
from tallystick.attacks.linkage.view import Floats, LinkageView, Located


def measure_located(
    name: str, located: Located, truth_MD: Floats, unit_D: Floats, *, rng: np.random.Generator
) -> LocatedKeys | None:
    """Measure places against the truth. Return None if nothing was placed.

    Args:
        name: of the attack.
        located: places that the attack returned.
        truth_MD: true keys of all targets, in the scale of the view.
        unit_D: size of one step of that scale in the unit of the answer, such as metres, per dimension.
        rng: generator for the bootstrap and the guesses.
    """
    if not len(located.targets_T):
        return None
    true_TD = truth_MD[located.targets_T]
    error_T = np.linalg.norm((located.place_TD - true_TD) * unit_D, axis=1)
    guess_TD = truth_MD[rng.integers(0, len(truth_MD), len(true_TD))]
    resamples = np.median(error_T[rng.integers(0, len(error_T), (1000, len(error_T)))], axis=1)
    low, high = np.quantile(resamples, (0.025, 0.975))
    return LocatedKeys(
        name=name,
        placed=len(error_T),
        median=float(np.median(error_T)),
        low=float(low),
        high=float(high),
        tenth=float(np.quantile(error_T, 0.1)),
        chance=float(np.median(np.linalg.norm((guess_TD - true_TD) * unit_D, axis=1))),
        bounds=0 if located.bound_T is None else int(located.bound_T.sum()),
    )


def locate(
    view: LinkageView,
    *,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    seed: int = 0,
) -> dict[str, Located]:
    """Locate keys by every attack that reads such a view. Arguments as for ``evaluate_linkage``."""
    return {
        name: row.attack(view, rng=np.random.default_rng([seed, 1]), progress=partial(progress, f"attack on links: {name}"))
        for name, row in LINKAGE_ATTACKS.items()
        if isinstance(view, row.view)
    }


def evaluate_linkage(
    view: LinkageView,
    truth_MD: Floats,
    unit_D: Floats,
    *,
    seed: int = 0,
) -> dict[str, LocatedKeys]:
    """Run every attack that reads such a view, and measure how far its places are from the keys.

    No guarantee: no attack here found more, another may. Args: the view, the true keys of its targets in the view's scale, the
    unit of the answer per dimension, and the seed of what they draw.
    """
    keys_located = {}
    for name, located in locate(view, seed=seed).items():
        measured = measure_located(name, located, truth_MD, unit_D, rng=np.random.default_rng([seed, 2]))
        if measured is not None:
            keys_located[name] = measured
    return keys_located
