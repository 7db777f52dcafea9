"""Choose the values to try next: Optuna's tree-structured Parzen estimator over what the contract lets be tuned.

Akiba et al. (2019), "Optuna"; Bergstra et al. (2011), "Algorithms for hyper-parameter optimization", section 4. The study is made
anew for every trial from the trials before, with a seed of its own: a resumed search goes on as an undisturbed one would have.
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
"""Trials that the estimator needs before it tells good values from bad ones; until then values are drawn blindly."""
_ATTEMPTS = 50  # draws before all there is to try counts as tried


@dataclass(frozen=True, kw_only=True)
class TrialOrder:
    """The trials of a search of which some run at a time: what each tries does not depend on which one is over first.

    A trial is named by those before it, and of the last ``at_once`` - 1 of them not even by what they came to. The first
    ``STARTUP`` trials are drawn blindly, so that these may all run at a time.

    Args:
        keys: what may be tuned.
        own: what the contract itself has for these keys; the first trial has it.
        most: trials.
        at_once: that may run at a time after those first ones; at least 1.
        seed: the contract's.
        problem: says why values cannot be together; empty if they can.
        found: the trials that were named, by number; whoever runs one puts it here again with its loss.
    """

    keys: Mapping[str, TunedKey]
    own: Mapping[str, Any]
    most: int
    at_once: int
    seed: int
    problem: Callable[[Mapping[str, Any]], str]
    found: dict[int, TrialRecord]

    def due(self) -> Iterator[TrialRecord | None]:
        """Yield one trial after the other to run. Yield None where the next one waits for the loss of one that runs."""
        for number in range(1, self.most + 1):
            if number in self.found:
                continue
            # It may know the losses of the trials before it, but for those that may still run; of these, the values alone
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
    """Return the trial of the lowest validation loss, the first of several."""
    return min((trial for trial in finished if trial.loss is not None), key=lambda trial: trial.loss or 0.0, default=None)


def next_values(
    keys: Mapping[str, TunedKey], before: Sequence[TrialRecord], *, own: Mapping[str, Any], seed: int
) -> dict[str, Any] | None:
    """Choose what to try after these trials: the contract as it is, then what Optuna suggests and was not tried yet.

    The contract's ``own`` values are not tried twice, since a trial discloses as much as a training.

    None where nothing is left that was not tried. Raises ConfigError where Optuna is not installed.
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
        # An open trial counts as a bad one, so that the next is named elsewhere.
        sampler = optuna.samplers.TPESampler(seed=seed_of_trial, n_startup_trials=blind, constant_liar=True)
        study = optuna.create_study(sampler=sampler)
        for trial in before:
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
                    state=TrialState.FAIL if trial.problem else TrialState.RUNNING if trial.is_open else TrialState.COMPLETE,
                )
            )
        suggested, values = study.ask(spaces).params, dict[str, Any]()
        for key, tuned in keys.items():
            value = suggested[key]
            if tuned.values:
                value = _comparable(tuned.values[value])
            elif not isinstance(value, int):  # to three digits, as one would write it into a contract
                low, high = tuned.ends(key)
                value = min(max(float(f"{value:.3g}"), low), high)
            values[key] = value
        if values != own and values not in [trial.values for trial in before]:
            return values
    return None


def require_optuna() -> None:
    """Raise ConfigError where Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("tallystick tune needs Optuna at the label party; run: pip install 'tallystick[tune]'")


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
