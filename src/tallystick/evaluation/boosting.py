"""Boost trees on the label party's own columns: the baseline that a data scientist without a partner would use.

It is scikit-learn's HistGradientBoosting with its defaults, on the encoded columns. Nothing is sent.

Shapes: N rows, C classes, L levels, K labels of a row.
"""

import importlib.util
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from threadpoolctl import threadpool_limits
from torch import Tensor

from tallystick.errors import DataError
from tallystick.metrics import NUMBERS, TargetType, label_bits
from tallystick.tables.features import Features

MOST_CODES = (
    255  # of a categorical column that scikit-learn takes as such; beyond, codes count as numbers: the frequent come first
)
MOST_ROWS = 1_000_000  # greatest number of rows to fit, because it needs a table of 64-bit numbers; a sample if there are more
MOST_LEVELS = 9  # greatest number of boosted levels; quantiles between two levels are interpolated
SCORED_AT_A_TIME = 2**18
CERTAIN = 1e-7  # a probability is kept at least this far from 0 and 1


def can_boost() -> bool:
    """Tell whether scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


class Boosted:
    """A boosted model of encoded columns.

    Args:
        kind: kind of the target.
        features: the training rows.
        labels: their labels, as the label coder returns them.
        weights: their weights, if rows have any.
        levels: levels of a quantile target; each is a separate model, or some of them if there are many (``boosted_places``).
        outputs: for a multilabel target, the number of labels; each is a separate model.
        seed: seed of its random choices.
    """

    def __init__(
        self,
        kind: TargetType,
        features: Features,
        labels: Tensor,
        weights: Tensor | None = None,
        *,
        levels: Sequence[float] = (),
        outputs: int = 1,
        seed: int,
    ) -> None:
        assert kind != "survival", "gradient boosting has no loss of survival times"
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        codes = features.categorical_NG.cpu()
        self._kind = kind
        numbers = features.numeric_NF.shape[1]
        largest = codes.max(dim=0).values.tolist() if len(codes) else []
        few = [numbers + place for place, code in enumerate(largest) if code < MOST_CODES]
        is_number = kind in NUMBERS
        estimator = HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier
        targets = [labels.cpu().numpy()]
        if kind == "multilabel":
            targets = list(label_bits(targets[0], outputs).T)
        losses: list[dict[str, Any]] = [{"loss": "poisson"} if kind == "count" else {}]
        if kind == "quantile":
            places = boosted_places(levels)
            losses = [{"loss": "quantile", "quantile": levels[place]} for place in places]
            # The quantiles of a normal label lie on a line over the standard normal's, so lines between few of them are exact
            at_L, at_M = ndtri(levels), ndtri(np.asarray(levels)[places])
            self._shares_ML = np.stack([np.interp(at_L, at_M, unit_M) for unit_M in np.eye(len(places))])
        weights_N = weights.cpu().numpy() if weights is not None else None
        self._models: list[Any] = []
        with threadpool_limits(torch.get_num_threads(), user_api="openmp"):
            for target, loss in product(targets, losses):
                # Rows for early stopping are drawn from each class, which is impossible for a class with one row.
                lone = not is_number and bool((np.bincount(target.astype(np.int64)) == 1).any())
                model = estimator(categorical_features=few, random_state=seed, early_stopping=False if lone else "auto", **loss)
                self._models.append(model.fit(_table(features), target, sample_weight=weights_N))

    def logits(self, source: Callable[[Tensor], Features], index_N: Tensor, *, classes: int) -> Tensor:
        """Compute what a network would return at these positions, a part of them at a time.

        These are logits (N,), (N, C) or (N, K), standardised numbers or log counts (N,), or standardised quantiles (N, L).
        """
        parts, model = [], self._models[0]
        for index_B in torch.split(index_N, SCORED_AT_A_TIME):
            table = _table(source(index_B))
            if self._kind == "count":
                values = np.log(model.predict(table))
            elif self._kind == "regression":
                values = model.predict(table)
            elif self._kind == "quantile":
                values = np.stack([each.predict(table) for each in self._models], axis=1) @ self._shares_ML
            elif self._kind == "multilabel":
                logs = [_log_chances(each, table, 2) for each in self._models]
                values = np.stack([each[:, 1] - each[:, 0] for each in logs], axis=1)
            else:
                values = _log_chances(model, table, classes)
                values = values[:, 1] - values[:, 0] if self._kind == "binary" else values
            parts.append(torch.from_numpy(values).float())
        return torch.cat(parts)


def boosted_places(levels: Sequence[float]) -> NDArray[np.int64]:
    """Return the boosted levels: all, or some of them, spread half by number and half by a normal label's quantiles.

    If spread only by number, the quantiles of labels with long tails are far from a line between the outer ones.
    """
    if len(levels) <= MOST_LEVELS:
        return np.arange(len(levels))
    at_L = ndtri(levels)
    by_number = at_L[np.linspace(0, len(levels) - 1, MOST_LEVELS).round().astype(int)]
    spread_M = (by_number + np.linspace(at_L[0], at_L[-1], MOST_LEVELS)) / 2
    return np.unique([np.abs(at_L - at).argmin() for at in spread_M])


def _log_chances(model: Any, table: NDArray[Any], classes: int) -> NDArray[Any]:
    """Return the logarithm of each class's probability, (N, C), also for classes that the model has never seen."""
    chances = np.zeros((len(table), classes))
    class_codes = model.classes_.astype(int)
    chances[:, class_codes] = model.predict_proba(table) if len(class_codes) > 1 else 1.0
    logs: NDArray[Any] = np.log(chances.clip(CERTAIN, 1 - CERTAIN))
    return logs


def cross_fitted(
    kind: TargetType,
    source: Callable[[Tensor], Features],
    labels_N: Tensor,
    train_N: Tensor,
    *,
    classes: int,
    seed: int,
) -> Tensor:
    """Compute logits of all rows. The model for each training row was fitted on the other half, so it did not see the row's
    label.

    Raises DataError if a half lacks a class.
    """
    order_N = torch.randperm(len(train_N), generator=torch.Generator().manual_seed(seed))
    halves = torch.tensor_split(train_N[order_N.to(train_N.device)], 2)  # on the device of the source's rows
    labels_N = labels_N.to(train_N.device)
    models = []
    for half_N in halves:
        if kind not in NUMBERS:
            _check_half(len(torch.unique(labels_N[half_N])), classes)
        fitted_N = half_N[:MOST_ROWS]
        models.append(Boosted(kind, source(fitted_N), labels_N[fitted_N], seed=seed))
    logits = models[0].logits(source, torch.arange(len(labels_N), device=train_N.device), classes=classes)
    logits[halves[0].cpu()] = models[1].logits(source, halves[0], classes=classes)
    return logits


def check_halves(labels_N: Tensor, *, classes: int) -> None:
    """Raise DataError if one of two halves of rows must lack one of these classes, however they are drawn."""
    _check_half(int((labels_N.long().bincount(minlength=classes) > 1).sum()), classes)


def _check_half(present: int, classes: int) -> None:
    if present < classes:
        raise DataError(
            f"a half of the training rows has {present} of {classes} classes, and a model of it answers for the other half; "
            "bring more rows"
        )


def _table(features: Features) -> NDArray[Any]:
    return np.hstack([features.numeric_NF.cpu().numpy(), features.categorical_NG.cpu().numpy()]).astype(np.float64)
