"""A job on a union: what is imputed for the rows that this party lacks, and the audit of what that gave away.

Shapes: U positions of the union, N own rows.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tallystick.alignment.outcome import Alignment
from tallystick.attacks.membership.evaluate import evaluate_membership
from tallystick.attacks.view import Received, StepView
from tallystick.config.contract import Contract, Union
from tallystick.data.features import Features
from tallystick.imputation.draws import Draws
from tallystick.imputation.sampling_features import SamplingFeatures
from tallystick.imputation.table import feature_strategy, label_strategy
from tallystick.job.folder import RunFolder
from tallystick.job.randomness import SEED_BITS, secret_generator
from tallystick.report import result as shown
from tallystick.training.calibration import NO_CALIBRATION, Calibration, LogitShift
from tallystick.training.union import ImputingBottom, ImputingObjective, ImputingSource


@dataclass(frozen=True, kw_only=True)
class Imputation:
    """What one party imputes in a run, from a seed that it keeps secret in its run folder."""

    contract: Contract
    alignment: Alignment
    own_U: Tensor  # own row at each position, -1 where absent
    seed: int

    @classmethod
    def of(cls, contract: Contract, alignment: Alignment, folder: RunFolder) -> "Imputation":
        """Draw the secret seed, or take the one of the run that goes on."""
        kept = folder.noted("imputation").get("seed")
        seed = kept if isinstance(kept, int) else secrets.randbits(SEED_BITS)
        folder.note("imputation", {"seed": seed}, private=True)
        return cls(contract=contract, alignment=alignment, own_U=torch.from_numpy(alignment.rows_N.copy()), seed=seed)

    def source(self, features: Features, *, own_columns: bool) -> ImputingSource:
        """Features at every position; the label party's own columns never leave, so plain sampling does for them."""
        imputer = SamplingFeatures() if own_columns else feature_strategy(self._union.features)[0]
        return ImputingSource(features=features, own_U=self.own_U, imputer=imputer, draws=self._draws(1, stream=1))

    def bottom(self, bottom: nn.Module) -> ImputingBottom:
        """The bottom model with whatever the imputer does after it."""
        imputer, _ = feature_strategy(self._union.features)
        return ImputingBottom(bottom, imputer, generator=secret_generator(self.seed, stream=2))

    def objective(self, labels_N: Tensor, calibration: Calibration, *, positive_rate: float) -> ImputingObjective:
        """The label party's loss."""
        imputer, _ = label_strategy(self._union.labels)
        draws = self._draws(max(imputer.draws, 1), stream=3)
        return ImputingObjective(
            labels_N, self.own_U, imputer=imputer, draws=draws, calibration=calibration, positive_rate=positive_rate
        )

    def calibration(self, *, positive_rate: float, own_columns: bool) -> Calibration:
        """The calibration that the contract's strategies ask for, from the sizes that this party learnt.

        The shift holds where the label party has no columns of its own: with some, a row that only it has still tells of its
        label. A fitted calibration then leaves the shift out and takes its own rows as they are, imputed features and all.
        """
        label_imputer, label_when = label_strategy(self._union.labels)
        _, feature_when = feature_strategy(self._union.features)
        asked = {label_when, feature_when} - {"never"}
        if not asked:
            return NO_CALIBRATION
        (when,) = asked  # the contract allows one
        if when == "fitted" and own_columns:
            return Calibration(when=when)
        sizes = self.alignment.sizes
        shared, label_only = sizes["intersection"], sizes["union"] - sizes[self.contract.feature_parties[0]]
        imputed = label_imputer.imputed_rate(positive_rate)
        # Imputation that follows the model's own predictions teaches nothing: only the label party's rows count then.
        union = sizes["union"] if imputed is not None else shared + label_only
        shift = LogitShift.of_union(
            shared=shared, label_only=label_only, union=union, positive_rate=positive_rate, imputed_rate=imputed or 0.0
        )
        return Calibration(shift=shift, when=when, real=shared / (shared + label_only))

    def uids(self) -> list[bytes]:
        """The universal ids as bytes, which both sides have for every position; a helper's positions are ids themselves."""
        if self.alignment.uids_N16 is None:
            return [position.to_bytes(8, "big") for position in range(len(self.alignment))]
        return [bytes(uid) for uid in np.ascontiguousarray(self.alignment.uids_N16)]

    @property
    def _union(self) -> Union:
        return self.contract.union

    def _draws(self, k: int, *, stream: int) -> Draws:
        generator = secret_generator(self.seed, stream=stream)
        return Draws.of(rows=len(self.alignment), k=k, redraw="once", generator=generator)


def audit_union(
    steps: Sequence[StepView], own_U: Tensor, *, peer: str, received: Received, say: Callable[[str], None]
) -> shown.Audit:
    """Attack what this party sent, as its peer could, and measure by the truth that only this party has."""
    say("attacking what this side sent, as the peer could")
    found = evaluate_membership(received, steps, own_U >= 0)
    what = "cut gradients" if received == "cut_gradient" else "cut embeddings"
    attacks = [
        shown.Attack(
            name=name,
            view=f"{peer}, from {what}",
            auc=metrics.symmetric_auc.mean,
            low=metrics.symmetric_auc.low,
            high=metrics.symmetric_auc.high,
            tpr_at_fpr_0=metrics.tpr_at_fpr.mean,
            note=f"a guess would give {metrics.chance_symmetric_auc:.3f}" if metrics.chance_symmetric_auc > 0.505 else "",
        )
        for name, metrics in found.items()
    ]
    epochs = ", ".join(str(epoch + 1) for epoch in sorted({step.epoch for step in steps}))
    rows = sum(len(step.rows_B) for step in steps)
    summary = (
        f"Could {peer} tell from {what} which rows of the union this side has? Measured on {rows:,} rows of epochs {epochs}."
    )
    return shown.Audit(summary=summary, defense="synthetic rows; no formal guarantee", attacks=attacks)
