"""Count how often a feature party's noisy embeddings were sent: one count for the ledger, the audit and the report.

A row is in one part of the split, so the largest count of any row is the maximum over the parts. The count is noted in the run
folder before the rows leave, so rows that a crash kept here are counted as well. It covers training, including the phases before
it and what a resumed run sent again, validation, test and predictions. Columns are not measured if there is noise.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.sections import TrainingConfig
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.disclosure.training import draws_labels_first
from tallystick.msgspec_threads import prepared
from tallystick.privacy.events import UnsentGaussianDP
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import EMBEDDINGS, charged, data_set, takes_up
from tallystick.run_folder.noise_secret import noise_secret

if TYPE_CHECKING:
    from tallystick.cut.forward import Part
    from tallystick.training.checkpoint import TrainingState
    from tallystick.training.plan import Schedule

_NOTE = "embeddings-sent"


class Sent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of how often a run's model sent any one row of each part.

    Args:
        training, validation, test: counts for the parts of the split.
        prediction: count for rows that may be in any part.
        earlier: count for any row, before the run was aligned again.
        charged: releases of a row that were charged to the ledger.
    """

    training: int = 0
    validation: int = 0
    test: int = 0
    prediction: int = 0
    earlier: int = 0
    charged: int = 0

    @property
    def most(self) -> int:
        """Return the largest count of any row."""
        return self.earlier + max(self.training, self.validation, self.test) + self.prediction

    def and_then(self, more: "Sent") -> "Sent":
        """Return this count plus another one. The charge stays the same."""
        return Sent(
            training=self.training + more.training,
            validation=self.validation + more.validation,
            test=self.test + more.test,
            prediction=self.prediction + more.prediction,
            earlier=self.earlier + more.earlier,
            charged=self.charged,
        )


def sent_by(folder: RunFolder) -> Sent:
    """Return what a run has sent so far."""
    return msgspec.convert(folder.noted(_NOTE), prepared(Sent))


def count_anew(folder: RunFolder) -> None:
    """Carry the count over when rows are about to change their parts."""
    count = sent_by(folder)
    if count.most:
        folder.note(_NOTE, msgspec.to_builtins(Sent(earlier=count.most, charged=count.charged)))


def training_ahead(
    contract: Contract,
    training: TrainingConfig,
    schedule: "Schedule | None" = None,
    *,
    state: "TrainingState | None" = None,
) -> Sent:
    """Bound what training sends from ``state`` on. Training with gradients needs ``schedule``, the first training's."""
    if not contract.sends_gradients:
        return Sent(training=1, validation=1 if contract.split.validation else 0)
    from tallystick.training.checkpoint import TrainingState
    from tallystick.training.plan import Schedule, no_positions
    from tallystick.training.unaligned.schedule import scheduled

    if schedule is None:
        nothing = Schedule(train_N=no_positions(), validation_N=no_positions(), batch_size=1, seed=0)
        schedule = scheduled(nothing, contract.unaligned, no_positions())
        if draws_labels_first(contract):
            schedule = replace(schedule, embeds_before=0)
    state = state or TrainingState()
    if state.refit_epochs:
        passes_left = state.first_epochs + state.refit_epochs - state.epoch
        return Sent(training=passes_left, validation=passes_left)
    step, refit = state.step, training.epochs if contract.refits else 0
    epochs = schedule.epochs_before + training.epochs - state.epoch
    embeds = schedule.embeds_before is not None and (not step or step <= schedule.steps_before(schedule.embeds_before))
    usual = min(epochs, training.epochs)
    validated = epochs - usual + usual * contract.validations(training) + refit
    return Sent(training=epochs + embeds + refit, validation=validated if contract.split.validation else 0)


def evaluation_ahead(contract: Contract) -> Sent:
    """Return what evaluation sends."""
    validation = 0
    if contract.measures_columns and contract.sends_gradients:  # else the embeddings of these rows are kept from training
        validation = 1
    return Sent(validation=validation, test=1 if contract.split.test else 0)


@dataclass(frozen=True, kw_only=True)
class EmbeddingCharge:
    """The charges of a feature party's noisy embeddings to its ledger, in a separate data set. Without noise they are none.

    The guarantee is conditional on the bottom model's weights, which learn from all rows, so it is kept apart from guarantees
    without a condition. The most that a run may send is charged before it sends anything, so a cap ends it there. Releases that
    were not needed, for example after early stopping, are taken back at its end. If a row may stand in for others (on a union,
    linked by similarity, or with several rows of the label party for it), nothing limits how often it is sent. Then the entry
    says "not private", once per run.

    A copy of the run folder that is resumed as well is charged again for everything that it will send from there.

    Args:
        noise: the contract's noise, if it has any.
        bounded: whether a row is sent only for itself.
        party: owner of the ledger.
        folder: folder of the run, which keeps the count.
        what: name of the run in the ledger.
    """

    noise: GaussianEmbeddings | None
    bounded: bool
    party: PartyFile
    folder: RunFolder
    what: str

    @classmethod
    def of(cls, contract: Contract, party: PartyFile, folder: RunFolder, *, what: str) -> "EmbeddingCharge":
        """Make the charges that the contract requires."""
        noise, bounded = noise_on_embeddings(contract), not serves_others(contract)
        return cls(noise=noise, bounded=bounded, party=party, folder=folder, what=what)

    def reserve(self, ahead: Sent) -> None:
        """Charge for what may be sent in addition, unless it is already charged. Raises BudgetExceeded over the cap."""
        self._charge(sent_by(self.folder).and_then(ahead).most)

    def __call__(self, part: "Part", times: int = 1) -> None:
        """Count, and charge if not reserved, before each row of a part is sent this many times. Raises BudgetExceeded."""
        if self.noise is None:
            return
        count = sent_by(self.folder).and_then(Sent(**{part: times}))
        self._charge(count.most)
        self._note(msgspec.structs.replace(count, charged=sent_by(self.folder).charged))

    def refitting(self, part: "Part", times: int = 1) -> None:  # noqa: ARG002
        """Count a pass of a refit, which trains on the validation rows as well."""
        self("training", times)
        self("validation", times)

    def settle(self) -> None:
        """Take back what was charged and not sent."""
        count = sent_by(self.folder)
        if self.noise is None or count.charged <= count.most:
            return
        never = self._own().charged - count.most
        if never <= 0:
            return
        # If the process is killed after this, too much stays charged, never too little.
        self._note(msgspec.structs.replace(count, charged=count.most))
        if not self.bounded:
            return
        event = UnsentGaussianDP(noise_multiplier=self.noise.multiplier, releases=never, unit="record")
        with charged(self.party, self.folder, EMBEDDINGS) as ledger:
            ledger.take_back(data_set(self.party, EMBEDDINGS), event, what=f"{self.what}: {never} of them were not sent")

    def _charge(self, most: int) -> None:
        if self.noise is None or not most:
            return
        noise_secret(self.party)  # it must be known before anything is charged that relies on it
        count = self._own()
        if most <= count.charged:
            return
        name, more = data_set(self.party, EMBEDDINGS), most - count.charged
        with charged(self.party, self.folder, EMBEDDINGS) as ledger:
            if self.bounded:
                purpose = f"{self.what}: embeddings of each row, up to {more}, given the bottom model's weights at each"
                ledger.spend(name, self.noise.event(more), what=purpose)
            elif not count.charged:
                ledger.enter_not_private(name, what=f"{self.what}: noisy embeddings, each row's any number of times")
        self._note(msgspec.structs.replace(count, charged=most))  # if the process is killed before this, it is charged again

    def _own(self) -> Sent:
        """Return the count. If another copy of the folder took up the charge, only what was sent counts as charged here."""
        count = sent_by(self.folder)
        if not takes_up(self.party, self.folder, EMBEDDINGS) and count.charged > count.most:
            count = msgspec.structs.replace(count, charged=count.most)
            self._note(count)
        return count

    def _note(self, charge: Sent) -> None:
        self.folder.note(_NOTE, msgspec.to_builtins(charge))


def embeddings_epsilon(contract: Contract, folder: RunFolder) -> tuple[float | None, float, int]:
    """Return the privacy cost of all embeddings of a row that a run sent, given the weights at each, its delta, and
    their number.
    """
    noise, most = noise_on_embeddings(contract), sent_by(folder).most
    if noise is None or serves_others(contract) or not most:
        return None, 0.0, most
    return noise.over(most), noise.delta, most


def embeddings_cost(contract: Contract, folder: RunFolder) -> str:
    """Say the same in words. The text is empty if no noise was sent."""
    if noise_on_embeddings(contract) is None or not sent_by(folder).most:
        return ""
    epsilon, delta, most = embeddings_epsilon(contract, folder)
    if epsilon is None:
        return "noisy embeddings: not bounded, because a row's may be sent any number of times"
    times = "1 release" if most == 1 else f"{most} releases"
    return f"noisy embeddings: ε = {epsilon:.3g} (δ = {delta:g}) for {times} of a row, given the bottom model's weights at each"


def noise_on_embeddings(contract: Contract) -> GaussianEmbeddings | None:
    """Return the contract's defence of embeddings that the ledger counts. There is at most one."""
    defenses = [each for each in contract.embedding_defenses().embeddings if isinstance(each, GaussianEmbeddings)]
    assert len(defenses) <= 1, "a contract names each defence once"
    return defenses[0] if defenses else None


def serves_others(contract: Contract) -> bool:
    """Tell whether a feature party's row may be sent several times in an epoch.

    This is so on a union, if linked by similarity, and if the label party may have several rows for it.
    """
    linkage = contract.linkage
    return linkage.imputes or linkage.similar or contract.alignment.duplicates == "all"
