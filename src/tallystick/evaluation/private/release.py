"""Release one label party's AUC: choose the mechanism of least predicted error, spend the budget, release.

result = release_private_auc(labels, scores, epsilon=1, ledger=ledger, dataset="test-2024", rng=SecureNoise())
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import ConfigError
from tallystick.evaluation.private.aggregation import SecureSum
from tallystick.evaluation.private.bins import Population, check_both_classes, check_scores
from tallystick.evaluation.private.mechanism import CountingMechanism
from tallystick.evaluation.private.release_table import COUNTING
from tallystick.evaluation.private.result import PrivateAuc, estimate_auc
from tallystick.privacy.events import Unit
from tallystick.privacy.ledger import Ledger
from tallystick.privacy.noise import NoiseSource, SecureNoise

ASSUMED_POSITIVE_RATE = 0.25
ASSUMED_AUC = 0.75


def candidate_mechanisms(epsilon: float, assumed: Population, *, unit: Unit = "label") -> list[CountingMechanism]:
    """List the mechanisms that may be chosen, for one label party or for several clients.

    For several clients they are securely summed: plain sums would show the server each client's score histogram.
    """
    candidates = [mechanism.tuned(epsilon, assumed) for mechanism in COUNTING.values() if mechanism.picked]
    fitting = [each for each in candidates if unit == "label" or each.event.unit == unit]
    return fitting if assumed.clients <= 1 else [SecureSum(inner=each) for each in fitting]


def choose(epsilon: float, assumed: Population, *, unit: Unit = "label") -> tuple[CountingMechanism, dict[str, float]]:
    """Choose the mechanism of least predicted error. Return it, and all predictions by name.

    The error is the noise's standard deviation and, for histograms, the error that their bins may hide, which a large epsilon
    does not reduce. Nothing private is used: class balance and AUC come from ``assumed``, not from the data.
    """
    options = candidate_mechanisms(epsilon, assumed, unit=unit)
    predictions = [option.predicted_error(assumed) for option in options]
    best = options[int(np.argmin(predictions))]
    return best, {option.title: sd for option, sd in zip(options, predictions, strict=True)}


def release_private_auc(
    labels_N: NDArray[Any],
    scores_N: NDArray[Any],
    *,
    epsilon: float,
    ledger: Ledger,
    dataset: str,
    rng: NoiseSource | None = None,
    unit: Unit = "label",
    mechanism: CountingMechanism | None = None,
    what: str = "AUC",
    check_classes: bool = True,
) -> PrivateAuc:
    """Release the AUC of one label party's test set under epsilon-DP, with an interval and a statement of what it revealed.

    It reaches DPAUC's goal with the mechanisms of this package. Threat model: anyone who sees the result. Guarantee: epsilon
    label DP (``unit="record"``: whole records), spent in ``ledger`` before the noise is drawn. Not protected: that both classes
    occur (checked on the exact labels), the number of rows, and the samplers' time. Under label DP the scores count as known, so
    they must not depend on these labels.

    Args:
        labels_N: 0 or 1.
        scores_N: in [0, 1].
        epsilon: from 1e-9 to 1e9.
        ledger, dataset: the ledger that is charged, and the name of the rows in it.
        rng: SecureNoise, except in a simulation.
        unit: what is protected: labels or records.
        mechanism: by default the one of least predicted error for a quarter of positives and an AUC of 0.75. A caller with better
            knowledge, not from these labels, passes the mechanism that ``choose`` returns for it.
        what: name of the figure in the ledger.
        check_classes: False leaves the classes to the noisy count, for callers whose errors others see.

    Raises DataError, ConfigError, BudgetExceeded or StorageError before spending, NothingReleased (a DataError) after it.
    """
    labels, scores = check_scores(labels_N, scores_N)
    if check_classes:
        check_both_classes(labels)
    assumed = Population(rows=len(labels), positive_rate=ASSUMED_POSITIVE_RATE, auc=ASSUMED_AUC)
    if mechanism is not None:
        if not hasattr(mechanism, "answer"):
            raise ConfigError(
                f"{mechanism.name} sends every label in the clear, which is not a release; leave mechanism out, or run "
                "noisy_scores_client and noisy_scores_server for the comparison"
            )
        if mechanism.needs_clients:
            raise ConfigError(
                "a single label party has no clients to sum with; release with the inner mechanism, or run the protocol"
            )
        if mechanism.epsilon != epsilon:
            raise ConfigError(
                f"epsilon is {epsilon!r} but the {mechanism.name} mechanism's own is {mechanism.epsilon!r}, which would be "
                "spent; give both the same"
            )
        if mechanism.event.unit != unit:
            raise ConfigError(
                f"unit is {unit!r} but {mechanism.name} is counted by {mechanism.event.unit!r}; pass "
                f"unit={mechanism.event.unit!r}, or another mechanism"
            )
    choice = choose(epsilon, assumed, unit=unit)[0] if mechanism is None else mechanism
    source = rng if rng is not None else SecureNoise()
    bins = choice.bins_of(scores)
    ledger.spend(dataset, choice.event, what=f"{what} by {choice.title}")
    answer_L = choice.answer(*bins.count_classes(labels, scores), bins, noise=source)
    total_L = answer_L + choice.noise(bins, source=source)
    return estimate_auc(choice, total_L, bins, rows=len(labels), clients=1, assumed=assumed)
