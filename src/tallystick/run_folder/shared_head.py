"""A party's half of a head that was trained on shares, as its run folder keeps it, and which rows have a score by it.

Shapes: D own features, E the other party's, C outputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from tallystick.errors import ConfigError, DataError
from tallystick.models.fixed_features import FixedFeatures
from tallystick.run_folder.folder import START, RunFolder
from tallystick.run_folder.own_network import OwnNetwork
from tallystick.run_folder.trained import Architecture
from tallystick.secret_sharing.matrix_products import Shares
from tallystick.tables.encoder import Encoder
from tallystick.training.checkpoint import TrainingState, put_weights, read_tensors, write_tensors

_NOTE, _SCORED = "training", "scored-rows.safetensors"
_OWN, _OTHERS = "own_share", "others_share"


@dataclass(frozen=True, kw_only=True)
class SharedHead:
    """A party's half: neither it nor the other's tells the weights by itself."""

    features: FixedFeatures
    shares: Shares
    state: TrainingState
    own_network: OwnNetwork | None = None  # of a label party with columns; it is kept once it is trained

    @property
    def width(self) -> int:
        """Count this party's features."""
        return len(self.shares.own_DC)

    def keep(self, folder: RunFolder) -> None:
        """Write it; no row has a score by this run yet."""
        folder.note(_NOTE, {"state": vars(self.state), "folds": 1, "head": "shared"})
        tensors = {name: tensor for name, tensor in self.features.state_dict().items() if tensor.numel()}
        shares = {_OWN: self.shares.own_DC, _OTHERS: self.shares.others_EC}
        tensors |= {name: torch.from_numpy(words.view(np.int64).copy()) for name, words in shares.items()}
        write_tensors(folder.model, tensors, {}, origin=folder.origin, private=True)

    @classmethod
    def load(cls, folder: RunFolder, architecture: Architecture, encoder: Encoder | None, *, is_label: bool) -> "SharedHead":
        """Read it back.

        Raises DataError if there is none or it is of other columns, DamagedFile for a damaged one.
        """
        if not folder.trained:
            raise DataError(f"{folder.path} holds no trained head; run `tallystick run` on all sides first")
        tensors, _ = read_tensors(folder.model, origin=folder.origin)
        shares = Shares(own_DC=_words(tensors.pop(_OWN)), others_EC=_words(tensors.pop(_OTHERS)))
        features = FixedFeatures(encoder.feature_shape if encoder is not None else None, constant=is_label)
        empty = {name: tensor for name, tensor in features.state_dict().items() if not tensor.numel()}
        put_weights(features, {**empty, **tensors}, source=folder.model)
        state = TrainingState(**folder.noted(_NOTE)["state"])  # type: ignore[arg-type]
        own_network = OwnNetwork.load(folder, architecture, encoder) if is_label and encoder is not None else None
        return cls(features=features, shares=shares, state=state, own_network=own_network)


def require_unscored(folder: RunFolder) -> None:
    """Raise ConfigError where rows have a score by this run's head: trained anew, it would give them another one."""
    if (folder.path / _SCORED).exists():
        raise ConfigError(
            f"scores by the head of {folder.path.name} were opened, or were about to be, and each row gets one by a run: it is "
            "not trained again. Begin another run on all sides, without --resume, if you agree to one more score of each row"
        )


def enter_scored(folder: RunFolder, ids: Iterable[bytes]) -> None:
    """Note, before their scores are opened, that these rows have a score by this run's head.

    Each row gets one. Two scores of a row beside other columns of the label party tell more of the feature party's columns than
    two rows do.

    Raises ConfigError if one has a score already, and notes none then.
    """
    key = folder.secret(START)
    digests = [blake2b(each, key=key, digest_size=8, person=b"tallystick score").digest() for each in ids]
    rows_N = np.frombuffer(b"".join(digests), dtype=np.int64)
    path = folder.path / _SCORED
    before_N = read_tensors(path, origin=folder.origin)[0]["rows"].numpy() if path.exists() else np.empty(0, dtype=np.int64)
    if twice := int(np.isin(rows_N, before_N).sum()):
        raise ConfigError(
            f"{twice:,} of {len(rows_N):,} rows have a score by the head of {folder.path.name} already, and each row gets one: "
            "two scores of a row tell more about the feature party's columns. Leave rows with a score out of the table"
        )
    write_tensors(path, {"rows": torch.from_numpy(np.union1d(before_N, rows_N))}, {}, origin=folder.origin, private=True)


def _words(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return tensor.numpy().view(np.uint64)
