"""Which values to try next: Optuna's tree-structured Parzen estimator over what the contract lets be tuned.

Akiba et al. (2019), "Optuna"; Bergstra et al. (2011), "Algorithms for hyper-parameter optimization", section 4. The study is made
anew for every trial from the trials before, with a seed of its own: a resumed search goes on as an undisturbed one would have.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tallystick.config.tuning import TUNABLE, TunedKey
from tallystick.errors import ConfigError

_ATTEMPTS = 50  # draws before all there is to try counts as tried


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One trial that is over; a feature party knows no loss.

    Args:
        values: of the tuned keys; empty for the contract as it is.
        loss: the best validation loss.
        epochs: how many it took.
        rows: training rows, and validation rows.
        problem: why nothing was trained: the contract cannot have these values together.
    """

    number: int
    values: dict[str, Any]
    loss: float | None = None
    epochs: int = 0
    rows: tuple[int, int] = (0, 0)
    seconds: float = 0.0
    problem: str = ""


def best_of(finished: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial of the lowest validation loss, the first of several."""
    return min((trial for trial in finished if trial.loss is not None), key=lambda trial: trial.loss or 0.0, default=None)


def next_values(keys: Mapping[str, TunedKey], finished: Sequence[TrialRecord], *, seed: int) -> dict[str, Any] | None:
    """What to try after these trials: the contract as it is, then what Optuna suggests and was not tried yet.

    None where nothing is left that was not tried. Raises ConfigError where Optuna is not installed.
    """
    if not finished:
        return {}
    require_optuna()
    for attempt in range(_ATTEMPTS):
        entropy = np.random.SeedSequence([seed, len(finished), attempt])
        values = _suggested(keys, finished, seed=int(entropy.generate_state(1)[0]))
        if values not in [trial.values for trial in finished]:
            return values
    return None


def require_optuna() -> None:
    """Raise ConfigError where Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("tallystick tune needs Optuna at the label party; run: pip install 'tallystick[tune]'")


def _suggested(keys: Mapping[str, TunedKey], finished: Sequence[TrialRecord], *, seed: int) -> dict[str, Any]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces = {key: _space(key, tuned) for key, tuned in keys.items()}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    for trial in finished:
        # Optuna takes numbers and words; of a list of values it is given the place.
        params = {
            key: list(map(_comparable, keys[key].values)).index(value) if keys[key].values else value
            for key, value in trial.values.items()
        }
        study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions={key: spaces[key] for key in params},
                value=trial.loss,
                state=optuna.trial.TrialState.FAIL if trial.loss is None else optuna.trial.TrialState.COMPLETE,
            )
        )
    asked = study.ask(spaces).params
    return {
        key: _comparable(tuned.values[asked[key]]) if tuned.values else _rounded(asked[key], *tuned.ends(key))
        for key, tuned in keys.items()
    }


def _rounded(number: float, low: float, high: float) -> float:
    """Three digits, as one would write it into a contract, within the bounds."""
    return number if isinstance(number, int) else min(max(float(f"{number:.3g}"), low), high)


def _space(key: str, tuned: TunedKey) -> Any:
    from optuna import distributions

    if tuned.values:
        return distributions.CategoricalDistribution(range(len(tuned.values)))
    low, high = tuned.ends(key)
    if TUNABLE[key] == "whole":
        return distributions.IntDistribution(low, high, log=tuned.log)
    return distributions.FloatDistribution(low, high, log=tuned.log)


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
