"""Score a share of the requests with a candidate, too, after they were answered. No client gets its scores.

This is done when nothing else waits; rows that come too fast are left out. It discloses something: the label party gets a
second embedding of each such row, by another model, and the day's budgets count both. With ``gaussian-embeddings`` the ledger
is charged for each version when it is loaded. With ``ahead`` all rows cross once more. A client who reads ``/metrics`` before
and after its own request learns how far the candidate's score of that row is from the answer.

Shapes: B rows compared.
"""

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from tallystick.config.serving import ShadowOptions
from tallystick.errors import DataError, StoreError
from tallystick.scoring.answering import Gate
from tallystick.scoring.asking import Asking, Refused
from tallystick.scoring.batching import MOST_ROWS
from tallystick.serving.served_runs import ServedRun

MOST_PIECES = 64
"""Pieces of at most MOST_ROWS rows that wait for their shadow score."""


class Comparisons(Protocol):
    """Receiver of the differences."""

    def observe_shadow(self, candidate: str, differences_B: NDArray[np.float64], changed: int | None) -> None:
        """Observe how far apart the scores of some rows are, and how many of them change side.

        The second is None if there are no sides.
        """
        ...

    def skip_shadow(self, candidate: str, rows: int) -> None:
        """Count rows that were not compared."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Piece:
    candidate: ServedRun
    keys: Sequence[bytes]
    columns: pl.DataFrame | None
    scores: Mapping[str, Sequence[float]]


class Shadow:
    """Collects answered rows, in the server's thread, and lets the candidate score them, in the partners' thread.

    Args:
        options: the share of requests, and the threshold.
        target: the contract's type of target.
        gate: this side's budgets and journal.
        told: receives the differences.
        draw: returns a number in [0, 1) for each request; from the operating system by default.
    """

    def __init__(
        self,
        options: ShadowOptions,
        *,
        target: str,
        gate: Gate,
        comparisons: Comparisons,
        draw: Callable[[], float] | None = None,
    ) -> None:
        self._options, self._target, self._gate, self._told = options, target, gate, comparisons
        self._draw = draw or secrets.SystemRandom().random
        self._waiting: deque[_Piece] = deque()

    def offer(
        self,
        candidate: ServedRun | None,
        keys: Sequence[bytes],
        columns: pl.DataFrame | None,
        scores: Mapping[str, Sequence[float]],
    ) -> None:
        """Offer rows with joint scores by the run in use. ``columns`` are their own columns, if the request had them."""
        if candidate is None or not keys or self._draw() >= self._options.share:
            return
        for start in range(0, len(keys), MOST_ROWS):
            part = slice(start, start + MOST_ROWS)
            if len(self._waiting) >= MOST_PIECES:
                self._told.skip_shadow(candidate.run_id, len(keys) - start)
                return
            self._waiting.append(
                _Piece(
                    candidate=candidate,
                    keys=keys[part],
                    columns=columns[part] if columns is not None else None,
                    scores={name: values[part] for name, values in scores.items()},
                )
            )

    def __call__(self, askings: Mapping[str, Asking]) -> bool:
        """Score one piece with the candidate. Return whether more are waiting. Raises what a channel raises."""
        if not self._waiting:
            return False
        piece = self._waiting.popleft()
        asking, candidate = askings.get(piece.candidate.run_id), piece.candidate
        compared = 0
        if asking is not None and candidate.users.come():
            try:
                compared = self._compare(piece, asking)
            except (Refused, StoreError, DataError):
                compared = 0  # a store does not answer, or the request lacks columns that this run reads
            finally:
                candidate.users.go()
        if compared < len(piece.keys):
            self._told.skip_shadow(candidate.run_id, len(piece.keys) - compared)
        return bool(self._waiting)

    def _compare(self, piece: _Piece, asking: Asking) -> int:
        run, keys = piece.candidate, list(piece.keys)
        # the rows that this side knows, and their columns as the candidate reads them
        if piece.columns is None or run.reader.encoder is None:
            rows_found = run.store.find(piece.keys)
            is_known_B, own_K = rows_found.is_found_B, rows_found.features_E
        elif missing := sorted(set(run.reader.own_columns) - set(piece.columns.columns)):
            raise DataError(f"the request brought no column {missing[0]!r}")
        else:
            is_known_B = np.ones(len(keys), dtype=np.bool_)
            own_K = run.reader.encoder.encode(piece.columns).unpacked()
        known_keys = [key for key, is_known in zip(keys, is_known_B, strict=True) if is_known]
        is_allowed_K = self._gate.allowed(known_keys, run=run.run_id) if known_keys else np.zeros(0, dtype=np.bool_)
        if not is_allowed_K.any():
            return 0
        allowed_keys = [key for key, is_allowed in zip(known_keys, is_allowed_K, strict=True) if is_allowed]
        own_W = own_K.rows(_index(is_allowed_K)) if own_K is not None else None
        answered = asking(allowed_keys, own_W)
        if not answered.is_here.any():
            return 0
        own_E = own_W.rows(_index(answered.is_here)) if own_W is not None else None
        candidate_scores = run.scorer.joint(answered.cuts_ED, own_E)
        place_E = np.flatnonzero(is_known_B)[is_allowed_K][answered.is_here]
        served_scores = {name: np.asarray(values, dtype=np.float32)[place_E] for name, values in piece.scores.items()}
        if served_scores.keys() != candidate_scores.keys():
            return 0
        apart_BC = np.stack(
            [np.abs(served_scores[name].astype(np.float64) - candidate_scores[name]) for name in served_scores], axis=1
        )
        if self._target == "multiclass":
            one, other = (np.stack(list(scores.values())).argmax(axis=0) for scores in (served_scores, candidate_scores))
            changed = int((one != other).sum())
        else:
            threshold = self._options.threshold
            if len(served_scores) > 1 or (threshold is None and self._target != "binary"):
                changed = None
            else:
                at = np.float32(0.5 if threshold is None else threshold)
                (name,) = served_scores
                changed = int(((served_scores[name] >= at) != (candidate_scores[name] >= at)).sum())
        self._told.observe_shadow(run.run_id, apart_BC.max(axis=1), changed)
        return len(place_E)


def _index(is_B: NDArray[np.bool_]) -> torch.Tensor:
    return torch.from_numpy(np.flatnonzero(is_B))
