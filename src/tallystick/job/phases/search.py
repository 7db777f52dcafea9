"""Choose the values to try next, by Optuna's tree-structured Parzen estimator over the keys that the contract allows.

Akiba et al. (2019), "Optuna"; Bergstra et al. (2011), "Algorithms for hyper-parameter optimization", section 4. For every trial
a new study is built from the trials before, with its own seed, so a resumed search continues as an uninterrupted one would.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tallystick.config.tuning import TUNABLE, TunedKey
from tallystick.errors import ConfigError
from tallystick.job.findings import TrialRecord

STARTUP = 10
"""Trials that the estimator needs before it separates good values from bad ones. Until then values are drawn at random."""
_ATTEMPTS = 50  # after this many repeated draws all values count as tried


@dataclass(frozen=True, kw_only=True)
class TrialOrder:
    """The trials of a search, some of which run at the same time. The values of a trial do not depend on which other trial ends
    first.

    A trial's values depend on the trials before it, but not on the losses of the last ``at_once`` - 1 of them. The first
    ``STARTUP`` trials are random, so they may all run at the same time.

    Args:
        keys: the keys that may be tuned.
        own: the contract's own values of these keys; the first trial uses them.
        most: number of trials.
        at_once: how many may run at the same time after the first ones; at least 1.
        seed: the contract's.
        problem: says why the contract cannot have values together; empty if it can.
        found: the trials so far, by number; the caller replaces each by one with its loss.
    """

    keys: Mapping[str, TunedKey]
    own: Mapping[str, Any]
    most: int
    at_once: int
    seed: int
    problem: Callable[[Mapping[str, Any]], str]
    found: dict[int, TrialRecord]

    def due(self) -> Iterator[TrialRecord | None]:
        """Yield the next trial to run. Yield None if it needs the loss of a trial that still runs."""
        for number in range(1, self.most + 1):
            if number in self.found:
                continue
            # it may use the losses of the trials before it, except of those that may still run: of these it knows only the values
            while True:
                before = [self.found[earlier] for earlier in range(1, number)]
                blind = sum(not trial.problem for trial in before) < STARTUP
                visible = 0 if blind else max(len(before) - (self.at_once - 1), 0)
                if not any(trial.is_open for trial in before[:visible]):
                    break
                yield None
            trials_known = before[:visible] + [msgspec.structs.replace(trial, loss=None) for trial in before[visible:]]
            values = next_values(self.keys, trials_known, own=self.own, seed=self.seed)
            if values is None:
                return
            self.found[number] = TrialRecord(number=number, values=values, problem=self.problem(values))
            if self.found[number].is_open:
                yield self.found[number]


def best_of(finished: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial with the lowest validation loss, the first if there are several."""
    return min((trial for trial in finished if trial.loss is not None), key=lambda trial: trial.loss or 0.0, default=None)


def next_values(
    keys: Mapping[str, TunedKey], before: Sequence[TrialRecord], *, own: Mapping[str, Any], seed: int
) -> dict[str, Any] | None:
    """Choose the values of the next trial: first the contract's own, then new values that Optuna suggests.

    No values are tried twice, because each trial discloses as much as a training.

    Return None if everything was tried. Raises ConfigError if Optuna is not installed.
    """
    if not before:
        return {}
    require_optuna()
    import optuna
    from optuna import distributions
    from optuna.trial import TrialState

    for attempt in range(_ATTEMPTS):
        seed_of_trial = int(np.random.SeedSequence([seed, len(before), attempt]).generate_state(1)[0])
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        spaces: dict[str, distributions.BaseDistribution] = {}
        for key, tuned in keys.items():
            if tuned.values:
                spaces[key] = distributions.CategoricalDistribution(range(len(tuned.values)))
                continue
            low, high = tuned.ends(key)
            whole = TUNABLE[key] == "whole"
            spaces[key] = (distributions.IntDistribution if whole else distributions.FloatDistribution)(low, high, log=tuned.log)
        blind = max(STARTUP - sum(trial.is_open for trial in before), 1)
        # An open trial counts as a bad one, so that the next one tries other values.
        sampler = optuna.samplers.TPESampler(seed=seed_of_trial, n_startup_trials=blind, constant_liar=True)
        study = optuna.create_study(sampler=sampler)
        for trial in before:
            # Optuna takes numbers and words; for a list of values it gets the place in the list.
            params = {
                key: list(map(_comparable, keys[key].values)).index(value) if keys[key].values else value
                for key, value in trial.values.items()
            }
            study.add_trial(
                optuna.trial.create_trial(
                    params=params,
                    distributions={key: spaces[key] for key in params},
                    value=trial.loss,
                    state=TrialState.FAIL if trial.problem else TrialState.RUNNING if trial.is_open else TrialState.COMPLETE,
                )
            )
        suggested, values = study.ask(spaces).params, dict[str, Any]()
        for key, tuned in keys.items():
            value = suggested[key]
            if tuned.values:
                value = _comparable(tuned.values[value])
            elif not isinstance(value, int):  # rounded to three digits, as a person would write it in a contract
                low, high = tuned.ends(key)
                value = min(max(float(f"{value:.3g}"), low), high)
            values[key] = value
        if values != own and values not in [trial.values for trial in before]:
            return values
    return None


def require_optuna() -> None:
    """Raise ConfigError if Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("tallystick tune needs Optuna at the label party; run: pip install 'tallystick[tune]'")


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
