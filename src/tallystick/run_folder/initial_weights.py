"""Keep what a run starts from if it does not start from scratch: a finished run's weights, encoder and label coder.

A run keeps its own copy, so it is resumed to the same bits whatever happens to the earlier run's folder.
"""

from dataclasses import dataclass

import msgspec
from torch import nn

from tallystick.dataset.own_rows import Before
from tallystick.errors import DataError
from tallystick.models.growth import grown
from tallystick.msgspec_threads import prepared
from tallystick.run_folder.folder import STARTING_POINT, RunFolder
from tallystick.run_folder.trained import kept_encoder, kept_folds, kept_own_folds
from tallystick.tables.encoder import Encoder
from tallystick.tables.target import LabelCoder
from tallystick.training.checkpoint import put_weights, read_tensors, write_tensors


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are kept with the weights. Encoder and label coder are kept as JSON."""

    run_id: str
    contract: str
    encoder: str | None
    labels: str | None
    folds: int = 1
    own_folds: int = 1


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """An earlier run, as a starting point for a new one.

    Args:
        run_id: the earlier run's id, which all its parties know.
        contract: hash of its contract.
        encoder: encoder of this party's columns; None for a label party without columns.
        coder: coder of labels, at the label party.
        folds: number of networks side by side in its model.
        own_folds: number of networks of own columns alone.
    """

    run_id: str
    contract: str
    encoder: Encoder | None
    coder: LabelCoder | None
    folds: int = 1
    own_folds: int = 1

    @classmethod
    def of(cls, folder: RunFolder) -> "StartingPoint | None":
        """Return the starting point of this folder's run, or None if it starts from scratch. Raises DamagedFile."""
        if not folder.starts_from_a_run:
            return None
        path = folder.path / STARTING_POINT
        _, metadata = folder.advised(path, lambda: read_tensors(path, origin=folder.origin, only_metadata=True))
        facts = msgspec.json.decode(metadata["facts"], type=prepared(_Facts))
        return cls(
            run_id=facts.run_id,
            contract=facts.contract,
            encoder=Encoder.from_json(facts.encoder) if facts.encoder is not None else None,
            coder=LabelCoder.from_json(facts.labels) if facts.labels is not None else None,
            folds=facts.folds,
            own_folds=facts.own_folds,
        )

    def before(self, *, grows: bool) -> Before:
        """Return the earlier state from which the encoding of a new run's rows continues."""
        return Before(encoder=self.encoder, coder=self.coder, grows=grows, folds=self.folds, own_folds=self.own_folds)


def finished_run(folder: RunFolder) -> StartingPoint:
    """Return a finished run as a starting point. Raises DamagedFile."""
    coder = LabelCoder.from_json(folder.read_json(folder.label_coder)) if folder.label_coder.exists() else None
    return StartingPoint(
        run_id=folder.run_id,
        contract=folder.origin.contract,
        encoder=kept_encoder(folder),
        coder=coder,
        folds=kept_folds(folder),
        own_folds=kept_own_folds(folder),
    )


def starting_point(folder: RunFolder | None, earlier: RunFolder | None) -> StartingPoint | None:
    """Return the starting point of a run: the one in its folder if it is resumed, else the earlier run, or None for a start from
    scratch.
    """
    point = StartingPoint.of(folder) if folder is not None else None
    return finished_run(earlier) if point is None and earlier is not None else point


def keep_starting_point(earlier: RunFolder, folder: RunFolder) -> None:
    """Copy the starting point of a new run into its own folder, completely or not at all."""
    point = finished_run(earlier)
    # Without the optimizer's state: it belongs to the last step's weights, but a finished run keeps the best epoch's averages.
    weights, _ = earlier.advised(earlier.model, lambda: read_tensors(earlier.model, origin=earlier.origin))
    facts = _Facts(
        run_id=point.run_id,
        contract=point.contract,
        encoder=point.encoder.to_json() if point.encoder is not None else None,
        labels=point.coder.to_json() if point.coder is not None else None,
        folds=point.folds,
        own_folds=point.own_folds,
    )
    write_tensors(folder.path / STARTING_POINT, weights, {"facts": msgspec.json.encode(facts).decode()}, origin=folder.origin)


def put_starting_weights(folder: RunFolder, module: nn.Module) -> None:
    """Load the starting weights of this folder's run into its module. Do nothing if it starts from scratch.

    Raises DataError if the module differs from theirs in more than new categories.
    """
    path = folder.path / STARTING_POINT
    if not path.exists():
        return
    weights, metadata = folder.advised(path, lambda: read_tensors(path, origin=folder.origin))
    try:
        put_weights(module, grown(module, weights), source=path)
    except DataError:
        run_id = msgspec.json.decode(metadata["facts"], type=prepared(_Facts)).run_id
        shapes = [{name: each.shape for name, each in state.items()} for state in (module.state_dict(), grown(module, weights))]
        parts = sorted({name.partition(".")[0] for name, _ in shapes[0].items() ^ shapes[1].items()})
        raise DataError(
            f"run {run_id} is of another network than the contract, the columns and the other parties' cut widths give now "
            f"(these parts differ: {', '.join(parts)}): this run cannot start from it; start a new run on all "
            "sides, without --start-from"
        ) from None
