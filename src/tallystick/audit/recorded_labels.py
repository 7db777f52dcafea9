"""Load what the label party's folder recorded for the audit of its labels: the true labels, and what each feature party
received.

Shapes: N aligned positions, R recorded rows.

All that the audit reads of a folder is read here, once. ``audit/labels.py`` attacks it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import expm1, prod

import torch
from torch import Tensor

from tallystick.attacks.row_sums import RowSums
from tallystick.attacks.view import Received, StepView, View
from tallystick.audit.known_initial_weights import KnownStart
from tallystick.audit.other_run import OtherRun
from tallystick.config.contract import Contract
from tallystick.defenses.label_dp import LabelDP
from tallystick.errors import DataError, StorageError
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.recorder import ViewStore
from tallystick.run_folder.row_recorder import RowStore
from tallystick.run_folder.trained import epochs_trained
from tallystick.training.checkpoint import read_tensors, write_tensors

_LABELS = "labels.safetensors"
MOST_ROWS = 12_288  # evenly chosen rows, for attacks that read one vector per row
GROWTH_ROWS = 4096  # rows of earlier epochs, which only show how a leak grew
BATCH_ROWS = 12_288  # about this many, in batches spread over the recorded epochs, are enough for the second decimal


@dataclass(frozen=True, kw_only=True)
class KeptLabels:
    """The labels that are stored beside the views: the true labels, which of them are real, the run, and its public starting
    weights.
    """

    label_N: Tensor
    own_N: Tensor
    run_id: str
    start: KnownStart | None = None


def save_labels(
    folder: RunFolder, contract: Contract, true_N: Tensor, own_N: Tensor, *, run_id: str, start: KnownStart | None = None
) -> None:
    """Save the true labels with the views, readable by this user alone, so that attacks can be measured again later."""
    facts = {"contract": contract.hash, "run_id": run_id, "start": start.facts() if start is not None else None}
    label_N = true_N if contract.target.is_number else true_N.to(torch.int64)
    tensors = {"label_N": label_N, "own_N": own_N}
    write_tensors(folder.views / _LABELS, tensors, {"labels": json.dumps(facts)}, origin=folder.origin, private=True)


def load_labels(folder: RunFolder, contract: Contract) -> KeptLabels:
    """Read the true labels back. Raises DataError if that fails."""
    path = folder.views / _LABELS
    if not path.exists():
        raise DataError(
            f"{folder.path} holds no recorded labels: only the label party's folder of a run whose contract has an audit "
            "can be audited, once its training has begun (go on with an interrupted run with --resume); to try a contract before "
            "any run, give the contract and --party"
        )
    try:
        tensors, metadata = read_tensors(path, origin=folder.origin)
        facts = json.loads(metadata["labels"])
        of, start = str(facts["contract"]), KnownStart.read(facts.get("start"))
        labels_file = KeptLabels(label_N=tensors["label_N"], own_N=tensors["own_N"], run_id=str(facts["run_id"]), start=start)
    except (StorageError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is cut short or holds no labels ({error}); run the contract again") from None
    if of != contract.hash:
        raise DataError(
            f"{path}: is of contract {of[:8]}, but here {contract.hash[:8]} is audited; give the folder of its own run"
        )
    return labels_file


@dataclass(frozen=True, kw_only=True)
class RecordedSeat:
    """Messages to one feature party, as far as the label party recorded them.

    Args:
        peer: the feature party.
        view: some steps, which attacks read; in a quick audit the sums by row.
        sums: over the whole training; None if no epoch was finished, or labels are numbers.
        by_epoch: sums by row at the end of each kept epoch (in a quick audit the last), each as a view of one step.
        of_others: the same sums of other runs, by this run's row numbers.
    """

    peer: str
    view: View
    sums: RowSums | None = None
    by_epoch: tuple[tuple[int, View], ...] = ()
    of_others: tuple[View, ...] = ()

    @property
    def whole(self) -> View | None:
        """Return the sums over the whole training as a view of one step, or None if no epoch was finished."""
        return self.by_epoch[-1][1] if self.by_epoch else None


@dataclass(frozen=True, kw_only=True)
class RecordedLabels:
    """Everything that an audit of labels reads from a run folder.

    Args:
        contract: of the run.
        label_N: the true labels.
        own_N: bool, whether this side has a row at the position.
        seats: one for each feature party.
        trained: number of epochs of the run; None if it was not finished.
        runs: number of attacked runs.
    """

    contract: Contract
    label_N: Tensor
    own_N: Tensor
    seats: tuple[RecordedSeat, ...]
    trained: int | None
    runs: int = 1

    @classmethod
    def load(cls, folder: RunFolder, contract: Contract, *, also: Sequence[OtherRun] = ()) -> "RecordedLabels":
        """Read a folder, and those of other runs on the same rows.

        Raises DataError if a folder has no view, a damaged view, or that of another contract or run.
        """
        labels = load_labels(folder, contract)
        quick = contract.audit == "quick"
        seats = []
        for number, peer in enumerate(contract.feature_parties):
            store = _store(folder, contract, labels.run_id, peer)
            if contract.target.is_number:
                view = View(received="cut_gradient", steps=_real_rows(store.load("cut_gradient"), labels.own_N), classes=0)
                seats.append(RecordedSeat(peer=peer, view=view))
                continue
            # An attacker's sums about this side's rows at the end of each kept epoch, or of the last one
            row_store = sums_of(store)
            sums, views_by_epoch = None, []
            epochs = row_store.epochs()
            for epoch in epochs[-1:] if quick else epochs:
                of_epoch = row_store.load(epoch).some(MOST_ROWS if epoch == epochs[-1] else GROWTH_ROWS)
                view_of_epoch = of_epoch.view(classes=contract.target.classes)
                if steps_of_epoch := _real_rows(view_of_epoch.steps, labels.own_N):
                    sums = of_epoch
                    views_by_epoch.append((epoch, replace(view_of_epoch, steps=steps_of_epoch, flip=flip_of(contract))))
            by_epoch = tuple(views_by_epoch)
            whole = by_epoch[-1][1] if by_epoch else None
            if quick and whole is None:
                raise DataError(f"{store.folder} holds no sums per row; run the contract until an epoch is over at least")
            if not quick:
                steps = _real_rows(store.load("cut_gradient"), labels.own_N)
                start = labels.start.seen_by(number, contract) if labels.start is not None else None
                view = some_steps(
                    View(
                        received="cut_gradient", steps=steps, classes=contract.target.classes, start=start, flip=flip_of(contract)
                    )
                )
            else:
                assert whole is not None
                view = whole
            others = tuple(_sums_of_other(other, whole, labels.label_N, peer) for other in also) if whole is not None else ()
            seats.append(RecordedSeat(peer=peer, view=view, sums=sums, by_epoch=by_epoch, of_others=others))
        return cls(
            contract=contract,
            label_N=labels.label_N,
            own_N=labels.own_N,
            seats=tuple(seats),
            trained=epochs_trained(folder),
            runs=1 + len(also),
        )

    def each_label(self) -> "dict[str, RecordedLabels]":
        """Return the inputs of attacks on each label as if it were the only label. A single label has no name.

        They have no public starting weights, because the model predicts all labels together. They have the number of labels, and
        the number of rarer ones.
        """
        if self.contract.target.type != "multilabel":
            return {"": self}
        names = self.contract.target.labels
        label_KN = torch.stack([(self.label_N >> bit) & 1 for bit in range(len(names))])
        share_K = label_KN[:, self.own_N].double().mean(dim=1)
        rarer_K = torch.minimum(share_K, 1 - share_K).argsort().argsort()

        def of_label(view: View, bit: int) -> View:
            return replace(view, start=None, labels=len(names), rarer_labels=int(rarer_K[bit]))

        def seat_of(seat: RecordedSeat, bit: int) -> RecordedSeat:
            by_epoch = tuple((epoch, of_label(view, bit)) for epoch, view in seat.by_epoch)
            of_others = tuple(of_label(view, bit) for view in seat.of_others)
            return replace(seat, view=of_label(seat.view, bit), by_epoch=by_epoch, of_others=of_others)

        return {
            name: replace(self, label_N=label_KN[bit], seats=tuple(seat_of(seat, bit) for seat in self.seats))
            for bit, name in enumerate(names)
        }


def sums_of(store: ViewStore, received: Received = "cut_gradient") -> RowStore:
    """Return the running sums stored with a peer's recorded steps."""
    return RowStore(folder=store.folder, contract=store.contract, origin=store.origin, run_id=store.run_id, received=received)


def _store(folder: RunFolder, contract: Contract, run_id: str, peer: str) -> ViewStore:
    return ViewStore(folder=folder.views / peer, contract=contract.hash, origin=folder.origin, run_id=run_id)


def flip_of(contract: Contract) -> float | None:
    """Return the probability that the contract replaces one of two labels by the other, or None if it replaces none.

    The same probability holds for each of several labels, because half of the other patterns have the other value.
    """
    epsilons = [defense.epsilon for defense in contract.defenses().labels if isinstance(defense, LabelDP)]
    if not epsilons or contract.target.type not in ("binary", "multilabel"):
        return None
    patterns = 1 << contract.target.outputs
    kept_share = prod(expm1(epsilon) / (expm1(epsilon) + patterns) for epsilon in epsilons)
    return (1 - kept_share) / 2


def reads_moments(contract: Contract) -> bool:
    """Tell whether attacks read the gradients' second moments.

    A quick audit reads them where labels are hidden, or mixed with other labels. Otherwise mean gradients tell two classes apart,
    and those attacks find no more (all tables of ``bench label-defenses``).
    """
    defenses = contract.defenses()
    hides = bool(defenses.labels or defenses.gradients) or contract.target.type == "multilabel"
    return hides or contract.audit is True


def some_steps(view: View) -> View:
    """Choose evenly spread steps of a view, for attacks that look at one batch at a time."""
    rows = sum(len(step.rows_B) for step in view.steps)
    every = max(1, round(rows / BATCH_ROWS))
    return view if every == 1 else replace(view, steps=view.steps[::every])


def _real_rows(steps: tuple[StepView, ...], own_N: Tensor) -> tuple[StepView, ...]:
    """Keep the rows that this side has. Other rows have no true label that could leak."""
    real_steps = []
    for step in steps:
        if int(step.rows_B.max()) >= len(own_N):
            raise DataError(f"the recorded view names row {int(step.rows_B.max())}, but there are labels for {len(own_N)} rows")
        own_B = own_N[step.rows_B]
        if own_B.any():
            real_steps.append(step if own_B.all() else step.only(own_B))
    return tuple(real_steps)


def _sums_of_other(other: OtherRun, whole: View, label_N: Tensor, peer: str) -> View:
    """Return the sums over another run's whole training, by this run's row numbers.

    Raises DataError if the two runs' labels differ.
    """
    labels_file = load_labels(other.folder, other.contract)
    store = sums_of(_store(other.folder, other.contract, labels_file.run_id, peer))
    if not (epochs := store.epochs()):
        raise DataError(f"{store.folder} holds no sums per row; run the contract until an epoch is over at least")
    view = store.load(epochs[-1]).view(classes=whole.classes)
    (step,) = view.steps
    known_B = other.renumbered(step.rows_B)
    step = step.only(known_B >= 0)
    here_B = known_B[known_B >= 0]
    if not torch.equal(labels_file.label_N[step.rows_B], label_N[here_B]):
        raise DataError(f"{other.folder.path}: its labels are not those of the run that is audited; give a run of the same table")
    return replace(view, steps=(replace(step, rows_B=here_B),))
