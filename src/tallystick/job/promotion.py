"""Decide by the contract's rule whether a new run replaces the one in use. A scheduler may ask for this.

Others see the answer, because they see which run is promoted. It depends on exact test labels and on the training labels, and a
single label can change it. So the label party's ledger counts it: as not private, or with ``promotion.epsilon`` by randomised
response. The answer is then inverted with probability 1 / (1 + e^epsilon). That makes it epsilon-DP for all labels of training
and test rows together, because it bounds the effect of any change of the data. Only this party sees the figures behind the
answer.
"""

import math
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import yaml

from tallystick.config.contract import Contract, parse_contract
from tallystick.config.party import PartyFile
from tallystick.defenses.label_dp import respond
from tallystick.errors import ConfigError
from tallystick.metrics import METRICS
from tallystick.privacy.events import PureDP
from tallystick.results import Result
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import LABELS, charged, enter_exact, known_ledger, refuse_exact

DECISION = "decision"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The rule's decision, and its figures.

    Args:
        promote: whether to promote the new run.
        metric: the metric that was compared.
        before, after: its values for the old and the new run; None without a result.
        gain: how much better the new run is, in the metric's own units.
        reasons: one sentence each.
    """

    promote: bool
    metric: str
    before: float | None
    after: float | None
    gain: float | None
    reasons: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def decide_promotion(old: Result, new: Result) -> Decision:
    """Compare two runs by the rule of the new one's contract.

    Each run is measured on its own test rows. If these differ, the figures may differ for that reason alone, and a sentence
    says so. Raises ConfigError if a result lacks the figure, as a feature party's does.
    """
    contract = parse_contract(yaml.safe_load(new.contract.yaml), source="the new run's contract")
    rule, metrics = contract.promotion, METRICS[contract.target.type]
    name = rule.metric_of(contract.target.type)
    before, after = _value(old, name, "old"), _value(new, name, "new")
    gain = after - before if metrics[name].higher_is_better else before - after
    better = gain >= rule.least_gain
    reasons = [
        f"{metrics[name].title}: {before:.6g} before, {after:.6g} now, a gain of {gain:.6g}; promotion.least_gain = "
        f"{rule.least_gain:g} {'is reached' if better else 'is not reached'}"
    ]
    calibrated = True
    if rule.calibration_slack is not None:
        worse = _value(new, "ace", "new") - _value(old, "ace", "old")
        calibrated = worse <= rule.calibration_slack
        reasons.append(
            f"{metrics['ace'].title}: larger by {worse:.6g}; promotion.calibration_slack = {rule.calibration_slack:g} "
            f"{'is kept' if calibrated else 'is passed'}"
        )
    if _rows(old) != _rows(new):
        reasons.append("the runs were measured on different test rows: a difference may come from the rows alone")
    return Decision(promote=better and calibrated, metric=name, before=before, after=after, gain=gain, reasons=reasons)


def decide_without_figures(contract: Contract, old: Result | None, new: Result | None) -> Decision | None:
    """Decide if a run lacks the figure, as after a failed training: it counts as the worse run. Return None if both have it.

    If answers are noisy, a missing answer would reveal something about labels, too.
    """
    name = contract.promotion.metric_of(contract.target.type)
    lacks = []
    for each in (old, new):
        names = [name]
        names += ["ace"] if contract.promotion.calibration_slack is not None else []
        lacks.append(each is None or any(_figure(each, needed) is None for needed in names))
    if not any(lacks):
        return None
    why = f"the {'new' if lacks[1] else 'old'} run has no {name} of the joint model, so it is not better"
    return Decision(promote=not lacks[1], metric=name, before=None, after=None, gain=None, reasons=[why])


def count_decision(decision: Decision, party: PartyFile, folder: RunFolder, *, old: str) -> Decision:
    """Count a decision between the ``old`` run and the new one of this folder in the ledger, and return the answer to act on.

    Two runs are compared once: a second call returns the same answer and charges nothing.

    Raises ConfigError at another party, or if the contract sends nothing about labels and has no ``promotion.epsilon``;
    BudgetExceeded beyond the cap.
    """
    contract = folder.contract()
    epsilon = contract.promotion.epsilon
    if party.party != contract.label_party or folder.origin.party != party.party:
        raise ConfigError(f"compare --decide: {folder.path} is a run of {folder.origin.party}; decide at {contract.label_party}")
    note = folder.noted(DECISION)
    which = f"{old}, epsilon {epsilon}"
    if which in note:
        answer = bool(note[which])
    elif epsilon is not None:
        what = f"decision whether run {folder.run_id} takes the place of run {old}, by randomised response"
        with charged(party, folder, LABELS) as ledger:
            ledger.spend(party.privacy.dataset, PureDP(epsilon=epsilon), what=what)
        answer = bool(respond(np.array([int(decision.promote)]), 2, epsilon, secrets.token_bytes)[0])
    else:
        if not contract.sends_gradients:
            raise ConfigError(
                f"compare --decide: training.gradients = {contract.training.gradients} promises that nothing sent depends on "
                "a label, and the choice of the promoted run would; agree on promotion.epsilon, or compare without --decide and "
                "promote each run"
            )
        what = f"decision whether run {folder.run_id} takes the place of run {old}, by exact labels of test rows"
        enter_exact(party, folder, "promotion", what=what)
        answer = decision.promote
    folder.note(DECISION, {**note, which: answer}, private=True)
    if epsilon is None:
        return replace(decision, promote=answer)
    chance = 1 / (1 + math.exp(epsilon))
    why = (
        f"promotion.epsilon = {epsilon:g}: the answer is reversed with probability {chance:.3g}, once for these two runs; act on "
        "the answer alone, because the others see what is promoted"
    )
    return replace(decision, promote=answer, reasons=[*decision.reasons, why])


def enter_choice(contract: Contract, party: PartyFile, folder: RunFolder | None, *, what: str) -> None:
    """Record as not private that a label party chose a run and others see it: the person who chose may have seen exact figures.

    Without gradients a person must not choose by exact figures, and no ledger can check it. Raises BudgetExceeded beyond the
    cap.
    """
    if party.party != contract.label_party or not contract.sends_gradients:
        return
    what = f"{what}, chosen at {party.party}"
    if folder is not None:
        enter_exact(party, folder, "promotion", what=what)
    else:  # its folder is gone, so it cannot note the charge
        refuse_exact(party, ["promotion"], what=what)
        known_ledger(party).enter_not_private(party.privacy.dataset, what=what)


def was_decided(folder: RunFolder) -> bool:
    """Tell whether a counted decision said to promote this run."""
    return any(bool(told) for told in folder.noted(DECISION).values())


def _figure(result: Result, name: str) -> float | None:
    shared = result.sections.shared
    figures = result.joint or (shared.metrics if shared is not None else {})
    return figures[name]["value"] if name in figures else None


def _value(result: Result, name: str, which: str) -> float:
    value = _figure(result, name)
    if value is None:
        raise ConfigError(
            f"the {which} run {result.run_id} has no {name} of the joint model here, so nothing can be decided; decide "
            "at the label party, on runs that were evaluated"
        )
    return value


def _rows(result: Result) -> tuple[Any, Any] | None:
    return (result.evaluation["rows"], result.evaluation["label_mean"]) if result.evaluation is not None else None
