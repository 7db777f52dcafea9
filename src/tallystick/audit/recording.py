"""Record what a run's audits need: steps of each peer's cut, and running sums per row.

With ``audit: true`` the label party keeps, for each feature party, the cut embeddings that it received and the cut gradients
that it sent. Recording changes no bit of the training. What an interrupted run recorded can be attacked. A quick audit keeps
sums over the training only, of at most 4,096 rows for labels and 1,000 for columns; labels that are numbers are recorded as with
``audit: true``.

Of at most five epochs, the first and the last trained among them, there are, in at most 256 MiB each:

- Steps, for attacks that look at a batch (``PEER/epoch-*.safetensors``): about 12,288 rows together, in batches spread evenly;
  with ``union.audit`` of six epochs, the second among them, and at most 50,000 rows of each.
- Sums over the training until then, for attacks that read one vector per row (``rows-*.safetensors``): at most 12,288 rows,
  spread evenly; 4,096 of epochs before the last are read. Each has the sum of its gradients, how often it came, and its last
  embedding. In memory they take 8 bytes per row and column of the cut.
- A feature party's own embeddings: at most 4,000 training rows, each with its last and its mean embedding, and those of several
  epochs (two of a wide cut, up to 64 of a narrow one). Of more than 100 columns 100 are attacked, evenly spread, 32 numbers of a
  vector among them.

What crosses without a gradient coming back (``validation/``, ``test/``, ``shuffled.safetensors``) is kept of at most 2,000 rows
of each part, 500 for a quick audit. The true labels are kept when recording begins.

Shapes: N aligned positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tallystick.attacks.label_inference.first_steps import LEAST_STEPS
from tallystick.audit.known_initial_weights import KnownStart
from tallystick.audit.membership import LATER_EPOCHS, MEMBERSHIP_EPOCHS
from tallystick.audit.recorded_labels import BATCH_ROWS, save_labels, sums_of
from tallystick.config.contract import Contract
from tallystick.cut.forward import Part
from tallystick.dataset.dataset import Dataset
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.pass_recorder import PassRecorder, PassStores
from tallystick.run_folder.recorder import ROWS_PER_EPOCH, Recorder, RecordingPlan, ViewStore
from tallystick.run_folder.row_recorder import QUICK_ROWS, Observers, RowRecorder, RowStore
from tallystick.training.plan import Schedule
from tallystick.training.step import CutObserver

GRADIENTS = "gradients"  # the folder of a feature party's own ones
LABEL_EPOCHS = 5  # spread over the training up to its end: labels leak more the longer it lasts


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """One party's side of a run, as far as its audits ask.

    Args:
        contract: of the run.
        party: this party's name.
        folder: where this party keeps the run.
        dataset: its rows.
        run_id: of the run.
        given_modules: whether a simulation was given modules in place of the contract's.
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
        """Tell whether this side has labels that something was sent of, and the contract wants that attacked."""
        return self.contract.audit is not False and self.is_label and self.contract.sends_gradients

    @property
    def audits_numbers(self) -> bool:
        """Tell whether these labels are numbers."""
        return self.audits_labels and self.contract.target.is_number

    @property
    def audits_columns(self) -> bool:
        """Tell whether this side has columns that the contract wants attacked."""
        return self.contract.audit is not False and not self.is_label

    @property
    def sums_received_gradients(self) -> bool:
        """Tell whether a feature party keeps sums of gradients, which stand for those that other feature parties were sent."""
        return self.audits_columns and self.contract.sends_gradients and len(self.contract.feature_parties) > 1

    @property
    def membership(self) -> Tensor | None:
        """Mark the rows of this side, if that is a secret that the contract wants attacked."""
        return self.dataset.membership if self.contract.union.audit else None

    @property
    def kept_epochs(self) -> tuple[int, int]:
        """Return how many of the first epochs, and how many later ones, are kept for the audits. Either may be 0."""
        # A quick audit reads sums over the training alone; numbers are read off the first steps.
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
        """Return where each peer's view lies, in the contract's order."""
        peers = self.contract.feature_parties if self.is_label else (self.contract.label_party,)
        folder, contract = self.folder, self.contract.hash
        return [
            ViewStore(folder=folder.views / peer, contract=contract, origin=folder.origin, run_id=self.run_id) for peer in peers
        ]


def recorders(run: AuditedRun, widths: Sequence[int], *, resume_epoch: int) -> Sequence[CutObserver | None]:
    """Make a recorder for each peer's cut of that width if the contract asks for an audit. Otherwise return None for each.

    The true labels are written first: once an epoch is over it can be attacked, whether or not the run is finished.
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
    if contract.refits:  # whose gradients tell of the validation rows' labels, too
        schedule, epochs = dataset.with_validation().schedule(training, seed=contract.seed), 2 * epochs
    observers: list[CutObserver] = []
    for number, (width, store) in enumerate(zip(widths, run.stores, strict=True)):
        store.drop_from(resume_epoch)
        dataset, quick = run.dataset, run.contract.audit == "quick"
        first, later = run.kept_epochs
        watching: list[CutObserver] = []
        if first:
            if run.audits_numbers:
                plan = numbers_plan(schedule, first=first, later=later, epochs=epochs, width=width, quick=quick)
            else:
                plan = recording_plan(schedule, first=first, later=later, epochs=epochs, width=width)
            watching.append(Recorder(plan=plan, store=store))
        if run.audits_labels and not run.audits_numbers:
            sums = sums_of(store, "cut_gradient")
            watching.append(RowRecorder.of(sums, schedule.train_N, width=width, resume_epoch=resume_epoch, quick=quick))
        by_example = Observers(each=watching, by_example=partial(dataset.seen, peer=number))
        if not run.audits_columns:
            observer = by_example
        else:
            # What crossed is of a row of this party, however many examples it was for.
            sums, rows = sums_of(store, "cut_embedding"), partial(dataset.cut_numbers, peer=number)
            positions = rows(schedule.train_N)
            positions = positions[dataset.is_own(positions)]
            recorder = RowRecorder.of(sums, positions, width=width, resume_epoch=resume_epoch, rows=rows, quick=quick)
            if not run.sums_received_gradients:
                observer = Observers(each=(by_example, recorder))
            else:
                answers = RowRecorder.of(
                    gradient_sums(store), positions, width=width, resume_epoch=resume_epoch, rows=rows, quick=quick
                )
                observer = Observers(each=(by_example, recorder, answers))
        observers.append(observer)
    return observers


def pass_recorder(run: AuditedRun, width: int, validated: Sequence[Tensor] = (), *, anew: bool = False) -> PassRecorder | None:
    """Make what keeps embeddings that cross without a gradient coming back, if an audit of columns reads them.

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
    """Return where passes are kept, beside a view."""
    return PassStores(folder=store.folder, contract=store.contract, origin=store.origin, run_id=store.run_id)


def gradient_sums(store: ViewStore) -> RowStore:
    """Return where a feature party keeps sums of the gradients that it received, beside the sums of what it sent."""
    return RowStore(
        folder=store.folder / GRADIENTS,
        contract=store.contract,
        origin=store.origin,
        run_id=store.run_id,
        received="cut_gradient",
    )


def recording_plan(schedule: Schedule, *, first: int, later: int, epochs: int, width: int) -> RecordingPlan:
    """Plan which steps are recorded: what attacks on single batches read, or what an audit of membership compares."""
    compared = first == MEMBERSHIP_EPOCHS
    rows = ROWS_PER_EPOCH if compared else -(-BATCH_ROWS // min(epochs, LABEL_EPOCHS))
    return RecordingPlan.of(schedule, first=first, later=later, epochs=epochs, width=width, rows=rows)


def numbers_plan(schedule: Schedule, *, first: int, later: int, epochs: int, width: int, quick: bool) -> RecordingPlan:
    """Plan which steps are recorded if labels are numbers: the first ones of all, for these tell the most of them."""
    rows = QUICK_ROWS["cut_gradient"] if quick else ROWS_PER_EPOCH
    plan = RecordingPlan.of(schedule, first=first, later=later, epochs=epochs, width=width, rows=rows)
    return replace(plan, lead=LEAST_STEPS)
