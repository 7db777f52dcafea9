"""Keep a trained party in its run folder: its part of the network, and the facts that belong to it.

Shapes: N positions.

The model is built here, before training and whenever it is loaded again; ``keep`` and ``load`` are inverse.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn

from tallystick.config.contract import Contract
from tallystick.config.sections import NetworkModel, TargetConfig
from tallystick.config.unaligned import NoneConfig, UnalignedKeys
from tallystick.dataset.dataset import Dataset
from tallystick.defenses.chain import NO_EMBEDDING_DEFENSE, EmbeddingDefenses
from tallystick.errors import ConfigError, DamagedFile, DataError
from tallystick.models.branches import BranchedModel
from tallystick.models.build import BranchParts, build_label_model
from tallystick.models.folds import build_folded_bottom, build_folded_label_model
from tallystick.models.split import LabelModel
from tallystick.privacy.randomness import Seed
from tallystick.run_folder.folder import RunFolder, digest_of
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import FeatureShape
from tallystick.tables.target import LabelCoder
from tallystick.training.calibration import NO_CALIBRATION, Calibration, LogitLine, LogitShift
from tallystick.training.checkpoint import TrainingState, load_weights, write_tensors
from tallystick.training.feature_defense import KEPT, DefendedBottom, embeds_by
from tallystick.training.unaligned.method_table import method_of

_NOTE = "training"
_VALUES = "values"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Structure of one party's part of the network. ``bottom`` and ``top``, if given, replace the contract's.

    ``seed`` draws the weights; for a network that is trained with others it is ``start_of`` the run. ``secret`` determines the
    noise on its embeddings (``run_folder/noise_secret.py``), if any are sent, and ``run`` distinguishes its weights from those of
    other runs. ``folds`` is how many networks train side by side, ``own_folds`` how many networks of own columns alone score rows
    without a partner's row.
    """

    model: NetworkModel
    target: TargetConfig
    seed: Seed = field(repr=False)
    party: str
    device: str = "cpu"
    bottom: nn.Module | None = None
    top: nn.Module | None = None
    unaligned: UnalignedKeys = field(default_factory=NoneConfig)
    defenses: EmbeddingDefenses = NO_EMBEDDING_DEFENSE
    secret: bytes | None = field(default=None, repr=False)
    run: str = ""
    scores_alone: bool = False  # rows without a link, if rows are linked by similarity
    folds: int = 1
    own_folds: int = 1

    @classmethod
    def of(
        cls,
        contract: Contract,
        party: str,
        *,
        device: str = "cpu",
        bottom: nn.Module | None = None,
        top: nn.Module | None = None,
        secret: bytes | None = None,
    ) -> "Architecture":
        """Build the structure that the contract says."""
        return cls(
            model=contract.feature_model if contract.role_of(party) == "feature" else contract.model,
            target=contract.target,
            seed=contract.seed,
            party=party,
            device=device,
            bottom=bottom,
            top=top,
            unaligned=contract.unaligned,
            defenses=contract.embedding_defenses(),
            secret=secret,
            scores_alone=contract.alignment.leaves_unlinked,
        )

    def without_unaligned(self) -> "Architecture":
        """Return the same structure for a run that had no unaligned row to train on."""
        return replace(self, unaligned=NoneConfig())

    def of_run(self, folder: RunFolder) -> "Architecture":
        """Return the same structure for a feature party's own run, whose noise is drawn for its weights alone.

        The weights follow from the run's start, and in a search, whose trials share one start, also from the trial.
        """
        if not self.defenses.noisy:
            return self
        return replace(self, run=f"{digest_of(folder.start_secret())} {folder.trial_name}".rstrip())

    def bottom_model(self, dataset: Dataset) -> nn.Module:
        """Build a feature party's bottom model, with the changes to the cut embedding by its linkage and the defences."""
        shape = dataset.known_encoder.feature_shape
        bottom = self.bottom or build_folded_bottom(
            self.model, self.party, shape, seed=self.seed, folds=self.folds, cut_width=self.model.cut_width
        )
        wrapped = dataset.wrap(bottom)
        if self.defenses:
            wrapped = DefendedBottom(wrapped, self.defenses, secret=self.secret, run=self.run)
        return wrapped.to(self.device)

    def label_model(self, encoder: Encoder | None, widths: Sequence[int], *, candidates: Sequence[int] = ()) -> LabelModel:
        """Build the label party's part of the network for these cut widths. A network of own columns alone has no cut widths.

        ``candidates`` is the number of rows of each feature party that are linked to one row, if it is not one each.
        """
        if self.top is not None and candidates:
            raise ConfigError(
                "simulate: top is a module over one row per feature party, but alignment.method = similarity links several; name "
                "the class in the contract's model.top, which is built for the merged rows"
            )
        if self.top is not None:
            return LabelModel(self.top, bottom=self.bottom).to(self.device)
        outputs = self.target.outputs
        own = encoder.feature_shape if encoder is not None else None
        if encoder is not None and own is not None and widths and self.unaligned.used:
            columns = tuple(column.name for column in encoder.categorical)
            method = method_of(self.unaligned, batch_size=1, seed=self.seed, columns=columns)
            parts = BranchParts(
                model=self.model,
                party=self.party,
                own=replace(own, screened=False),  # branches share columns, and no branch decides for the others which to close
                cut_width=sum(widths),
                outputs=outputs,
                label_width=1 if self.target.is_number else outputs,
                seed=self.seed,
            )
            branched = method.model(parts)
            scored = branched.scores_by(self._folded(own, [], folds=self.own_folds)) if method.scores_alone else branched
            return scored.to(self.device)
        if self.folds > 1:
            return self._folded(own, widths, folds=self.folds).to(self.device)
        model = build_label_model(
            self.model,
            self.party,
            own,
            widths,
            outputs=outputs,
            seed=self.seed,
            candidates=candidates,
        )
        if isinstance(model, BranchedModel) and self.scores_alone and own is not None:
            model.scores_by(self._folded(own, [], folds=self.own_folds))
        return model.to(self.device)

    def _folded(self, own: FeatureShape | None, widths: Sequence[int], *, folds: int) -> LabelModel:
        outputs = self.target.outputs
        return build_folded_label_model(self.model, self.party, own, widths, outputs=outputs, seed=self.seed, folds=folds)


@dataclass(frozen=True, kw_only=True)
class TrainedFeatureParty:
    """A feature party's trained bottom model, and the encoder of its columns."""

    bottom: nn.Module
    encoder: Encoder
    state: TrainingState
    folds: int = 1

    def keep(self, folder: RunFolder) -> None:
        """Write model and facts."""
        _keep(folder, self.bottom, self.state, {"folds": self.folds})

    @classmethod
    def load(cls, folder: RunFolder, architecture: Architecture, dataset: Dataset) -> "TrainedFeatureParty":
        """Read a trained feature party, for a dataset of the kept encoder or of one that was fitted in the same way.

        Raises DataError if there is none or if it has other columns, DamagedFile for a damaged one.
        """
        _require_network(folder)
        folds = kept_folds(folder)
        bottom = replace(architecture, folds=folds).of_run(folder).bottom_model(dataset)
        _load(folder, bottom)
        return cls(bottom=bottom, encoder=dataset.known_encoder, state=_state(folder), folds=folds)


@dataclass(frozen=True, kw_only=True)
class TrainedLabelParty:
    """The label party's trained model, and how its logits become scores.

    Args:
        model: the top model and the own bottom.
        encoder: encoder of its own columns, if it has any.
        widths: cut widths of the feature parties, in the contract's order.
        candidates: number of rows of each feature party that are linked to one row, if it is not one each.
        coder: meaning of the outputs.
        calibration: turns logits into those of real rows.
        state: state of the training.
        alone: calibrates the logits of rows without a partner's row; None if these get no score.
        dispensed: whether the contract's method for unaligned rows had no rows to train on, so that the network is that of a run
            without it.
        folds: number of networks side by side in the model.
        own_folds: number of networks of own columns alone that score rows without a partner's row.
    """

    model: LabelModel
    encoder: Encoder | None
    widths: list[int]
    candidates: tuple[int, ...] = ()
    coder: LabelCoder
    calibration: Calibration
    state: TrainingState
    alone: LogitLine | None = None
    dispensed: bool = False
    folds: int = 1
    own_folds: int = 1

    def keep(self, folder: RunFolder) -> None:
        """Write model and facts."""
        facts = {
            "widths": self.widths,
            "candidates": self.candidates,
            "calibration": asdict(self.calibration),
            "alone": asdict(self.alone) if self.alone is not None else None,
            "dispensed": self.dispensed,
            "folds": self.folds,
            "own_folds": self.own_folds,
        }
        _keep(folder, self.model, self.state, facts)

    @classmethod
    def load(cls, folder: RunFolder, architecture: Architecture, *, widths: Sequence[int] | None = None) -> "TrainedLabelParty":
        """Read a trained label party. ``widths`` are those that the feature parties announced; by default the kept ones.

        Raises DataError if there is none or if it has other columns or widths, DamagedFile for a damaged one.
        """
        _require_network(folder)
        facts, encoder = _facts(folder), kept_encoder(folder)
        cut_widths = list(widths) if widths is not None else kept_widths(folder)
        candidates = tuple(int(count) for count in facts["candidates"])
        dispensed = bool(facts["dispensed"])
        folds, own_folds = kept_folds(folder), kept_own_folds(folder)
        built = replace(architecture.without_unaligned() if dispensed else architecture, folds=folds, own_folds=own_folds)
        model = built.label_model(encoder, cut_widths, candidates=candidates)
        _load(folder, model)
        of_calibration = facts["calibration"]
        calibration = NO_CALIBRATION
        if of_calibration is not None:
            parts = {"shift": LogitShift(**of_calibration["shift"]), "line": LogitLine(**of_calibration["line"])}
            calibration = Calibration(**(of_calibration | parts))
        return cls(
            model=model,
            encoder=encoder,
            widths=cut_widths,
            candidates=candidates,
            coder=LabelCoder.from_json(folder.read_json(folder.label_coder)),
            calibration=calibration,
            state=_state(folder),
            alone=LogitLine(**facts["alone"]) if facts.get("alone") else None,
            dispensed=dispensed,
            folds=folds,
            own_folds=own_folds,
        )


def changed_values(folder: RunFolder, digests: Mapping[str, str]) -> list[str]:
    """Name the values of the table that changed since this run began, for the same ids; empty if nothing was kept."""
    try:
        before = folder.noted(_VALUES)
    except DamagedFile:  # it is written again, and nothing depends on it
        return []
    if not before:
        return []
    changed = [name for name, digest in digests.items() if before.get(name, digest) != digest]
    new = [f"{name} (new)" for name in digests if name not in before]
    return changed + new + [f"{name} (gone)" for name in before if name not in digests]


def keep_encoders(folder: RunFolder, dataset: Dataset, digests: Mapping[str, str]) -> None:
    """Write the encoder of the columns and the coding of labels, before training: a model is useless without them.

    ``digests`` are digests of the values, by name, for a later step to compare.
    """
    folder.note(_VALUES, dict(digests))
    if dataset.encoder is not None:
        folder.write(folder.encoder, dataset.encoder.to_json())
    if dataset.labels is not None:
        folder.write(folder.label_coder, dataset.labels.coder.to_json())


def keep_before_refit(folder: RunFolder, module: nn.Module) -> None:
    """Write the model that the validation rows chose, before training is repeated with them."""
    write_tensors(folder.model_before_refit, dict(module.state_dict()), {}, origin=folder.origin)


@contextmanager
def before_refit(folder: RunFolder, module: nn.Module, state: TrainingState) -> Iterator[None]:
    """Replace a trained module, within this block, by the one that did not learn from validation rows. Raises DamagedFile."""
    if not state.refit_epochs:
        yield
        return
    present = deepcopy(module.state_dict())
    load_weights(module, folder.model_before_refit, origin=folder.origin)
    embeds_by(module, "kept before the refit")
    try:
        yield
    finally:
        module.load_state_dict(present)
        embeds_by(module, KEPT)


def kept_encoder(folder: RunFolder) -> Encoder | None:
    """Load the encoder of a run's columns, or None for a label party that had none."""
    return Encoder.from_json(folder.read_json(folder.encoder)) if folder.encoder.exists() else None


def kept_folds(folder: RunFolder) -> int:
    """Return how many networks are side by side in a run's model."""
    return int(_facts(folder)["folds"])


def kept_own_folds(folder: RunFolder) -> int:
    """Return how many networks of own columns alone the model has as well, for rows without a partner's row.

    It is 1 at a feature party.
    """
    return int(_facts(folder).get("own_folds", 1))  # only a label party scores such rows


def epochs_trained(folder: RunFolder) -> int | None:
    """Return how many epochs a run's training took, or None if it has not finished."""
    return _state(folder).epoch if folder.trained else None


def _keep(folder: RunFolder, module: nn.Module, state: TrainingState, facts: dict[str, Any]) -> None:
    folder.note(_NOTE, {"state": vars(state), **facts})
    write_tensors(folder.model, dict(module.state_dict()), {}, origin=folder.origin)


def _load(folder: RunFolder, module: nn.Module) -> None:
    if not folder.trained:
        raise DataError(f"{folder.path} holds no trained model; run `tallystick train` on both sides first")
    load_weights(module, folder.model, origin=folder.origin)


def _require_network(folder: RunFolder) -> None:
    if _facts(folder).get("head") == "shared":
        raise ConfigError(
            f"{folder.path} holds shares of a head (training.gradients = shared), and no network; only `tallystick predict` can "
            "use them"
        )


def kept_widths(folder: RunFolder) -> list[int]:
    """Return the cut widths that a label party's model was trained with, in the contract's order."""
    return [int(width) for width in _facts(folder)["widths"]]


def _facts(folder: RunFolder) -> dict[str, Any]:
    if not folder.trained:
        raise DataError(f"{folder.path} holds no trained model; run `tallystick train` on both sides first")
    return folder.noted(_NOTE)


def _state(folder: RunFolder) -> TrainingState:
    return TrainingState(**_facts(folder)["state"])
