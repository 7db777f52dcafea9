"""How far off an attacker is who says where keys lie: what a report's linkage section holds.

Shapes: T targets that were placed, D dimensions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tallystick.attacks.linkage.table import LINKAGE_ATTACKS, LinkageAttackRow
from tallystick.attacks.linkage.view import Floats, LinkageView, Located


@dataclass(frozen=True, kw_only=True)
class LocatedError:
    """How far off an attack's places are.

    Args:
        placed: targets that were placed.
        median, low, high: median distance from the truth, with a 95 % bootstrap interval, in the unit of the truth.
        tenth: a tenth of the targets are placed at least so well.
        chance: median distance of a guess that knows no more than where keys of that side lie in general: another key at random.
        bounds: of the placed ones, those of which only a bound is known, as similarity saturates there.
    """

    placed: int
    median: float
    low: float
    high: float
    tenth: float
    chance: float
    bounds: int = 0


def located_error(located: Located, truth_MD: Floats, unit_D: Floats, *, rng: np.random.Generator) -> LocatedError | None:
    """Measure places against the truth; None where nothing was placed.

    Args:
        located: an attack's result.
        truth_MD: true keys of all targets, in the scale of the view.
        unit_D: what one of that scale is in the unit of the answer, such as metres, per dimension.
        rng: of the bootstrap and the guesses.
    """
    if not len(located.targets_T):
        return None
    true_TD = truth_MD[located.targets_T]
    error_T = np.linalg.norm((located.place_TD - true_TD) * unit_D, axis=1)
    guess_TD = truth_MD[rng.integers(0, len(truth_MD), len(true_TD))]
    resamples = np.median(error_T[rng.integers(0, len(error_T), (1000, len(error_T)))], axis=1)
    low, high = np.quantile(resamples, (0.025, 0.975))
    return LocatedError(
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
    attacks: Mapping[str, LinkageAttackRow[Any]] | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    seed: int = 0,
) -> dict[str, Located]:
    """Where every attack that reads such a view says that keys lie. Arguments as for ``evaluate_linkage``."""
    return {
        name: row.attack(view, rng=np.random.default_rng([seed, 1]), progress=partial(progress, f"attack on links: {name}"))
        for name, row in (LINKAGE_ATTACKS if attacks is None else attacks).items()
        if isinstance(view, row.view)
    }


def evaluate_linkage(
    view: LinkageView,
    truth_MD: Floats,
    unit_D: Floats,
    *,
    attacks: Mapping[str, LinkageAttackRow[Any]] | None = None,
    seed: int = 0,
) -> dict[str, LocatedError]:
    """Attack a view by every attack that reads such a one, and measure how far off it is.

    No guarantee: no attack here found more, another may. Args: the view, the true keys of its targets in the view's scale, the
    unit of the answer per dimension, attacks by name (by default all), and the seed of what they draw.
    """
    found = {}
    for name, located in locate(view, attacks=attacks, seed=seed).items():
        error = located_error(located, truth_MD, unit_D, rng=np.random.default_rng([seed, 2]))
        if error is not None:
            found[name] = error
    return found
