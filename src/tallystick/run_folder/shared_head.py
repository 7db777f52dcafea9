"""Keep a party's part of a head that was trained on shares, and record which rows have a score by it.

Shapes: W columns of all parties, with products; C outputs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.errors import ConfigError, DataError
from tallystick.models.fixed_features import FixedFeatures
from tallystick.run_folder.folder import START, RunFolder
from tallystick.run_folder.own_network import OwnNetwork
from tallystick.run_folder.score_count import SHARES
from tallystick.run_folder.trained import Architecture
from tallystick.secret_sharing.columns import HeadColumns
from tallystick.secret_sharing.ring import Words
from tallystick.storage import remove
from tallystick.tables.encoder import Encoder
from tallystick.training.checkpoint import TrainingState, put_weights, read_tensors, write_tensors

_NOTE, _SCORED, _OPENED = "training", "scored-rows.safetensors", "opened-scores.safetensors"
ROW_SCORES = "row-scores.safetensors"
"""File with the scores that a label party received, by row."""
_EPOCH = date(1970, 1, 1)
_WEIGHTS, _COLUMNS, _PLACE = "weight_shares", "columns", "place"
_AXES_LABEL_PARTY, _AXES_FEATURE_PARTY = 256, 512
_CODES_FEATURE_PARTY = 512
"""Greatest number of codes of its large categories together. The network of the label party's own columns knows every code."""


@dataclass(frozen=True, kw_only=True)
class SharedHead:
    """A party's part of a head. Without the part of every other party it reveals nothing about the weights.

    Args:
        features: this party's features.
        weights_WC: its shares.
        columns: column counts of all parties.
        place: this party's place among them; 0 is the label party.
        state: state of the training.
        own_network: of a label party with columns; kept after its training.
    """

    features: FixedFeatures
    weights_WC: Words
    columns: HeadColumns
    place: int
    state: TrainingState
    own_network: OwnNetwork | None = None

    @property
    def width(self) -> int:
        """Count this party's features."""
        return self.columns.counts[self.place]

    def keep(self, folder: RunFolder) -> None:
        """Write it. No row has a score by this run yet."""
        folder.note(_NOTE, {"state": vars(self.state), "folds": 1, "head": "shared"})
        tensors = {name: tensor for name, tensor in self.features.state_dict().items() if tensor.numel()}
        tensors |= {
            _WEIGHTS: torch.from_numpy(self.weights_WC.view(np.int64).copy()),
            _COLUMNS: torch.tensor(self.columns.counts, dtype=torch.int64),
            _PLACE: torch.tensor([self.place]),
        }
        write_tensors(folder.model, tensors, {}, origin=folder.origin, private=True)

    @classmethod
    def load(cls, folder: RunFolder, architecture: Architecture, encoder: Encoder | None, *, is_label: bool) -> "SharedHead":
        """Read it back.

        Raises DataError if there is none or if it has other columns, DamagedFile for a damaged one.
        """
        if not folder.trained:
            raise DataError(f"{folder.path} holds no trained head; run `tallystick run` on all sides first")
        tensors, _ = read_tensors(folder.model, origin=folder.origin)
        weights_WC, counts, place = _words(tensors.pop(_WEIGHTS)), tensors.pop(_COLUMNS), tensors.pop(_PLACE)
        features = features_of(encoder, is_label=is_label)
        empty = {name: tensor for name, tensor in features.state_dict().items() if not tensor.numel()}
        put_weights(features, {**empty, **tensors}, source=folder.model)
        state = TrainingState(**folder.noted(_NOTE)["state"])  # type: ignore[arg-type]
        own_network = OwnNetwork.load(folder, architecture, encoder) if is_label and encoder is not None else None
        return cls(
            features=features,
            weights_WC=weights_WC,
            columns=HeadColumns(counts=tuple(counts.tolist())),
            place=int(place),
            state=state,
            own_network=own_network,
        )


def features_of(encoder: Encoder | None, *, is_label: bool) -> FixedFeatures:
    """Build a party's features, before they are fitted. The label party's own network replaces further axes."""
    shape = encoder.feature_shape if encoder is not None else None
    if is_label:
        return FixedFeatures(shape, most=_AXES_LABEL_PARTY, constant=True)
    return FixedFeatures(shape, most=_AXES_FEATURE_PARTY, constant=False, codes=_CODES_FEATURE_PARTY)


def require_unscored(folder: RunFolder, ids: Iterable[bytes]) -> None:
    """Raise ConfigError if one of these rows has a score by this run's head.

    Each row gets one score. Two scores of a row, with different columns of the label party, would reveal more about the feature
    party's columns than scores of two rows.
    """
    rows_N = _digests(folder, ids)
    if twice := int(np.isin(rows_N, _scored(folder)).sum()):
        raise ConfigError(
            f"{twice:,} of {len(rows_N):,} rows already have a score by the head of {folder.path.name}, and each row gets "
            "only one: two scores of a row reveal more about the feature party's columns. Leave rows with a score out of the "
            "table, or give "
            "exactly the rows of an earlier prediction to get its scores again"
        )


def enter_scored(folder: RunFolder, ids: Iterable[bytes]) -> None:
    """Note, before their scores are opened, that these rows have a score by this run's head."""
    rows_N = np.union1d(_scored(folder), _digests(folder, ids))
    write_tensors(folder.path / _SCORED, {"rows": torch.from_numpy(rows_N)}, {}, origin=folder.origin, private=True)


def keep_score_shares(folder: RunFolder, ids: Iterable[bytes], share_NC: Words) -> None:
    """Keep this party's shares of the scores of these rows, before any of them is opened.

    If a party is killed meanwhile, it opens the same scores again: no second score results, and none is lost.
    """
    rows_N = _digests(folder, ids)
    tensors = {"rows": torch.from_numpy(rows_N), "shares": torch.from_numpy(share_NC.view(np.int64).copy())}
    write_tensors(shares_path(folder, ids), tensors, {}, origin=folder.origin, private=True)


def kept_score_shares(folder: RunFolder, ids: Iterable[bytes]) -> Words | None:
    """Return this party's shares of the scores of exactly these rows, in the ids' order, or None if there are none."""
    rows_N = _digests(folder, ids)
    path = shares_path(folder, ids)
    if not path.exists():
        return None
    tensors, _ = read_tensors(path, origin=folder.origin)
    kept_N = tensors["rows"].numpy()
    order_N = np.argsort(kept_N)
    return _words(tensors["shares"])[order_N[np.searchsorted(kept_N, rows_N, sorter=order_N)]]


def forget_score_shares(folder: RunFolder, ids: Iterable[bytes]) -> None:
    """Delete this party's shares for these rows if the other party has not kept its own: they fit no other shares."""
    shares_path(folder, ids).unlink(missing_ok=True)


def forget_scored(folder: RunFolder, ids: Iterable[bytes]) -> None:
    """Remove these rows and their scores from the rows with a score, and delete all shares of sets that contain one of them.

    The other rows keep their scores: no second score is opened for them.
    """
    if not (folder.path / _SCORED).exists():
        return
    rows_N = _digests(folder, ids)
    remaining_N = _scored(folder)
    remaining_N = remaining_N[~np.isin(remaining_N, rows_N)]
    write_tensors(folder.path / _SCORED, {"rows": torch.from_numpy(remaining_N)}, {}, origin=folder.origin, private=True)
    if (folder.path / ROW_SCORES).exists():
        RowScores.load(folder, outputs=1).without(rows_N).keep(folder)
    for path in folder.path.glob(SHARES):
        if np.isin(read_tensors(path, origin=folder.origin)[0]["rows"].numpy(), rows_N).any():
            remove(path)


def shares_path(folder: RunFolder, ids: Iterable[bytes]) -> Path:
    """Name the file of the shares of these rows, independently of their order."""
    name = blake2b(np.sort(_digests(folder, ids)).tobytes(), digest_size=16).hexdigest()
    return folder.path / SHARES.replace("*", name)


@dataclass(frozen=True, kw_only=True)
class RowScores:
    """Scores that were opened to the label party. Each is its row's only score by this head, even if the columns change.

    Args:
        key: key of the rows' digests.
        rows_N: digests, ascending.
        scores_NC: the opened scores.
        days_N: day of opening, in days since 1970 (UTC).
    """

    key: bytes
    rows_N: NDArray[np.int64]
    scores_NC: NDArray[np.float64]
    days_N: NDArray[np.int64]

    @classmethod
    def load(cls, folder: RunFolder, *, outputs: int) -> "RowScores":
        """Read the scores of a run; there may be none. Raises DamagedFile."""
        key, path = folder.secret(START), folder.path / ROW_SCORES
        if not path.exists():
            none = np.empty(0, dtype=np.int64)
            return cls(key=key, rows_N=none, scores_NC=np.empty((0, outputs)), days_N=none)
        tensors = {name: tensor.numpy() for name, tensor in read_tensors(path, origin=folder.origin)[0].items()}
        return cls(key=key, rows_N=tensors["rows"], scores_NC=tensors["scores"], days_N=tensors["days"])

    def places(self, ids: Iterable[bytes]) -> NDArray[np.int64]:
        """Return the place of each row's score, -1 for a row without a score."""
        rows_B = _digests_under(self.key, ids)
        place_B = np.searchsorted(self.rows_N, rows_B)
        is_here_B = np.append(self.rows_N, 0)[place_B] == rows_B
        is_here_B &= place_B < len(self.rows_N)
        places: NDArray[np.int64] = np.where(is_here_B, place_B, -1)
        return places

    def day_of(self, place: int) -> date:
        """Return the day on which a score was opened."""
        return _EPOCH + timedelta(days=int(self.days_N[place]))

    def keep(self, folder: RunFolder) -> None:
        """Write the scores, in order."""
        order_N = np.argsort(self.rows_N, kind="stable")
        arrays = {"rows": self.rows_N[order_N], "scores": self.scores_NC[order_N], "days": self.days_N[order_N]}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        write_tensors(folder.path / ROW_SCORES, tensors, {}, origin=folder.origin, private=True)

    def without(self, rows_K: NDArray[np.int64]) -> "RowScores":
        """Return the scores without these rows."""
        stays_N = ~np.isin(self.rows_N, rows_K)
        return replace(self, rows_N=self.rows_N[stays_N], scores_NC=self.scores_NC[stays_N], days_N=self.days_N[stays_N])


def keep_row_scores(folder: RunFolder, ids: Sequence[bytes], scores_NC: NDArray[np.float64]) -> None:
    """Keep the scores of these rows, whether they were opened for the first time or again."""
    before, rows_N = RowScores.load(folder, outputs=scores_NC.shape[1]), _digests(folder, ids)
    is_new_N = ~np.isin(rows_N, before.rows_N)
    days_N = np.full(int(is_new_N.sum()), (datetime.now(UTC).date() - _EPOCH).days, dtype=np.int64)
    replace(
        before,
        rows_N=np.concatenate([before.rows_N, rows_N[is_new_N]]),
        scores_NC=np.concatenate([before.scores_NC, scores_NC[is_new_N]]),
        days_N=np.concatenate([before.days_N, days_N]),
    ).keep(folder)


def keep_opened(folder: RunFolder, index_N: Tensor, scores_NC: NDArray[np.float64]) -> None:
    """Keep the opened scores by position: they are the label party's view of the feature party's columns."""
    folder.make_views()
    tensors = {"positions": index_N, "scores": torch.from_numpy(scores_NC)}
    write_tensors(folder.views / _OPENED, tensors, {}, origin=folder.origin, private=True)


def opened_scores(folder: RunFolder) -> tuple[Tensor, Tensor]:
    """Return the positions and the opened scores, (N, C)."""
    tensors, _ = read_tensors(folder.views / _OPENED, origin=folder.origin)
    return tensors["positions"], tensors["scores"]


def _digests(folder: RunFolder, ids: Iterable[bytes]) -> NDArray[np.int64]:
    """Return a keyed digest of each id."""
    return _digests_under(folder.secret(START), ids)


def _digests_under(key: bytes, ids: Iterable[bytes]) -> NDArray[np.int64]:
    digests = [blake2b(each, key=key, digest_size=8, person=b"tallystick score").digest() for each in ids]
    return np.frombuffer(b"".join(digests), dtype=np.int64).copy()


def _scored(folder: RunFolder) -> NDArray[np.int64]:
    path = folder.path / _SCORED
    return read_tensors(path, origin=folder.origin)[0]["rows"].numpy() if path.exists() else np.empty(0, dtype=np.int64)


def _words(tensor: Tensor) -> Words:
    return tensor.numpy().view(np.uint64)
