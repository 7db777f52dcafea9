"""Record what a run's audits need: steps of each peer's cut, and running sums per row.

With ``audit: true`` the label party keeps, for each feature party, the cut embeddings that it received and the cut gradients
that it sent. Recording does not change the training by a bit. The recordings of an interrupted run can be attacked, too. A
quick audit keeps only sums over the training, of at most 4,096 rows for labels and 1,000 for columns. Labels that are numbers
are always recorded as with ``audit: true``.

At most five epochs are kept, among them the first and the last. Each has, in at most 256 MiB:

- Steps, for attacks that look at a batch (``PEER/epoch-*.safetensors``): about 12,288 rows together, in batches spread evenly;
  with ``union.audit`` steps of six epochs, the second among them, and at most 50,000 rows of each.
- Sums over the training up to this epoch, for attacks that read one vector per row (``rows-*.safetensors``): at most 12,288
  rows, spread evenly; attacks read 4,096 of them in epochs before the last. A row has the sum of its gradients, how often it
  was used, and its last embedding. In memory they take 8 bytes per row and column of the cut.
- A feature party's own embeddings: at most 4,000 training rows, each with its last and its mean embedding, and those of several
  epochs (two for a wide cut, up to 64 for a narrow one). At most 100 columns are attacked, evenly spread, and at most 32
  numbers of a vector.

Embeddings for which no gradient comes back (``validation/``, ``test/``, ``shuffled.safetensors``) are kept for at most 2,000
rows of each part, 500 in a quick audit. The true labels are saved when recording begins.

Shapes: N aligned positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tallystick.attacks.label_inference.first_steps import LEAST_STEPS
from tallystick.audit.known_initial_weights import KnownStart
from tallystick.audit.membership import LATER_EPOCHS, MEMBERSHIP_EPOCHS
from tallystick.audit.recorded_labels import BATCH_ROWS, reads_moments, save_labels, sums_of
from tallystick.config.contract import Contract
from tallystick.cut.forward import Part
from tallystick.dataset.dataset import Dataset
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.pass_recorder import PassRecorder, PassStores
from tallystick.run_folder.recorder import ROWS_PER_EPOCH, Recorder, RecordingPlan, ViewStore
from tallystick.run_folder.row_recorder import QUICK_ROWS, Observers, RowRecorder, RowStore, at_once
from tallystick.training.plan import Schedule
from tallystick.training.step import CutObserver

GRADIENTS = "gradients"  # the folder of the gradients that a feature party received
LABEL_EPOCHS = 5  # spread over the whole training: the longer it lasts, the more labels leak


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """The part of one party's run that its audits need.

    Args:
        contract: of the run.
        party: this party's name.
        folder: this party's folder of the run.
        dataset: its rows.
        run_id: of the run.
        given_modules: whether a simulation was given its own modules instead of the contract's.
    """

    contract: Contract
    party: str
    folder: RunFolder
    dataset: Dataset
    run_id: str
    given_modules: bool = False

    @property
    def is_label(self) -> bool:
        """Tell whether this is the label party's side."""
        return self.party == self.contract.label_party

    @property
    def audits_labels(self) -> bool:
        """Tell whether this side sent something that depends on labels, and the contract asks to attack that."""
        return self.contract.audit is not False and self.is_label and self.contract.sends_gradients

    @property
    def audits_numbers(self) -> bool:
        """Tell whether these labels are numbers."""
        return self.audits_labels and self.contract.target.is_number

    @property
    def audits_columns(self) -> bool:
        """Tell whether this side has columns that the contract asks to attack."""
        return self.contract.audit is not False and not self.is_label

    @property
    def sums_received_gradients(self) -> bool:
        """Tell whether a feature party keeps sums of its gradients, which stand in for those that other feature parties
        received.
        """
        return self.audits_columns and self.contract.sends_gradients and len(self.contract.feature_parties) > 1

    @property
    def membership(self) -> Tensor | None:
        """Mark the rows that this side has, if membership is a secret and the contract asks to attack it."""
        return self.dataset.membership if self.contract.union.audit else None

    @property
    def kept_epochs(self) -> tuple[int, int]:
        """Return the number of first epochs and of later ones that are kept for the audits. Either may be 0."""
        # A quick audit reads only sums over the training; attacks on numbers read the first steps.
        labels = self.audits_numbers or (self.audits_labels and self.contract.audit is True)
        hides = self.membership is not None
        later = max(LABEL_EPOCHS - 1 if labels else 0, LATER_EPOCHS if hides else 0)
        return (MEMBERSHIP_EPOCHS if hides else int(labels)), later

    @property
    def records(self) -> bool:
        """Tell whether anything is recorded at all."""
        return self.kept_epochs != (0, 0) or self.audits_labels or self.audits_columns

    @property
    def stores(self) -> list[ViewStore]:
        """Return the store of each peer's view, in the contract's order."""
        peers = self.contract.feature_parties if self.is_label else (self.contract.label_party,)
        folder, contract = self.folder, self.contract.hash
        return [
            ViewStore(folder=folder.views / peer, contract=contract, origin=folder.origin, run_id=self.run_id) for peer in peers
        ]


def recorders(
    run: AuditedRun, widths: Sequence[int], *, resume_epoch: int, later: Callable[..., None] = at_once
) -> Sequence[CutObserver | None]:
    """Make a recorder for each peer's cut of that width, or return None for each if the contract asks for no audit.

    ``later`` carries out what sums of gradients take at the label party. The true labels are written first, so that each finished
    epoch can be attacked even if the run is not finished.
    """
    if not run.kept_epochs[0] and not (run.audits_labels or run.audits_columns):
        return [None] * len(widths)
    contract, dataset = run.contract, run.dataset
    run.folder.make_views()
    if run.audits_labels:
        true_N = dataset.known_labels.true_N
        own_N = dataset.is_own(torch.arange(len(true_N)))
        start = KnownStart.of(contract, dataset, widths, given_modules=run.given_modules)
        save_labels(run.folder, contract, true_N, own_N, run_id=run.run_id, start=start)
    training = dataset.resolved(contract.training)
    schedule, epochs = dataset.schedule(training, seed=contract.seed), training.epochs
    if contract.refits:  # its gradients depend on the validation rows' labels, too
        schedule, epochs = dataset.with_validation().schedule(training, seed=contract.seed), 2 * epochs
    observers: list[CutObserver] = []
    for number, (width, store) in enumerate(zip(widths, run.stores, strict=True)):
        store.drop_from(resume_epoch)
        dataset, quick = run.dataset, run.contract.audit == "quick"
        first, others = run.kept_epochs
        watching: list[CutObserver] = []
        if first:
            if run.audits_numbers:
                plan = numbers_plan(schedule, first=first, later=others, epochs=epochs, width=width, quick=quick)
            else:
                plan = recording_plan(schedule, first=first, later=others, epochs=epochs, width=width)
            watching.append(Recorder(plan=plan, store=store))
        if run.audits_labels and not run.audits_numbers:
            row_store = sums_of(store, "cut_gradient")
            no_sums = row_store.no_sums(schedule.train_N, width=width, quick=quick, moments=reads_moments(contract))
            watching.append(RowRecorder.of(row_store, no_sums, resume_epoch=resume_epoch, later=later))
        by_example = Observers(each=watching, by_example=partial(dataset.seen, peer=number))
        if not run.audits_columns:
            observer = by_example
        else:
            # An embedding belongs to one row of this party, no matter how many examples used it.
            row_store, rows = sums_of(store, "cut_embedding"), partial(dataset.cut_numbers, peer=number)
            positions = rows(schedule.train_N)
            positions = positions[dataset.is_own(positions)]
            no_sums = row_store.no_sums(positions, width=width, quick=quick)
            recorder = RowRecorder.of(row_store, no_sums, resume_epoch=resume_epoch, rows=rows)
            if not run.sums_received_gradients:
                observer = Observers(each=(by_example, recorder))
            else:
                row_store = gradient_sums(store)
                no_sums = row_store.no_sums(positions, width=width, quick=quick, moments=False)  # no attack on columns reads them
                answers = RowRecorder.of(row_store, no_sums, resume_epoch=resume_epoch, rows=rows)
                observer = Observers(each=(by_example, recorder, answers))
        observers.append(observer)
    return observers


def pass_recorder(run: AuditedRun, width: int, validated: Sequence[Tensor] = (), *, anew: bool = False) -> PassRecorder | None:
    """Make the recorder of embeddings for which no gradient comes back, if an audit of columns reads them.

    Otherwise return None.

    ``validated`` are the positions of a validation pass, in batches, where training is about to begin or to go on.
    """
    if not run.audits_columns or run.folder.noted("audit"):
        return None
    run.folder.make_views()
    dataset = run.dataset
    validated_N = torch.cat(list(validated)) if len(validated) else dataset.validation_N
    embeds = dataset.schedule(dataset.resolved(run.contract.training), seed=run.contract.seed).embeds_before is not None
    positions: dict[Part, Tensor] = {"training": dataset.train_N} if embeds else {}
    positions |= {"validation": validated_N, "test": dataset.test_N}
    (store,) = run.stores
    rows = partial(dataset.cut_numbers, peer=0)
    quick = run.contract.audit == "quick"
    return PassRecorder.of(pass_stores(store), positions, width=width, rows=rows, quick=quick, anew=anew)


def pass_stores(store: ViewStore) -> PassStores:
    """Return the stores of passes, which lie next to a view."""
    return PassStores(folder=store.folder, contract=store.contract, origin=store.origin, run_id=store.run_id)


def gradient_sums(store: ViewStore) -> RowStore:
    """Return the store of sums of the gradients that a feature party received, beside the sums of what it sent."""
    return RowStore(
        folder=store.folder / GRADIENTS,
        contract=store.contract,
        origin=store.origin,
        run_id=store.run_id,
        received="cut_gradient",
    )


def recording_plan(schedule: Schedule, *, first: int, later: int, epochs: int, width: int) -> RecordingPlan:
    """Plan which steps to record: those that attacks on single batches read, or that an audit of membership compares."""
    compared = first == MEMBERSHIP_EPOCHS
    rows = ROWS_PER_EPOCH if compared else -(-BATCH_ROWS // min(epochs, LABEL_EPOCHS))
    return RecordingPlan.of(schedule, first=first, later=later, epochs=epochs, width=width, rows=rows)


def numbers_plan(schedule: Schedule, *, first: int, later: int, epochs: int, width: int, quick: bool) -> RecordingPlan:
    """Plan which steps to record if labels are numbers: the very first ones, because these reveal the most about them."""
    rows = QUICK_ROWS["cut_gradient"] if quick else ROWS_PER_EPOCH
    plan = RecordingPlan.of(schedule, first=first, later=later, epochs=epochs, width=width, rows=rows)
    return replace(plan, lead=LEAST_STEPS)
