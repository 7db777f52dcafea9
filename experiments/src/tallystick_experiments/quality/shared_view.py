"""Attack everything that each party of a head on shares sees, row by row, and compare with its own columns, labels and scores.

The run is the product's. The attack takes each word that a party received, sent, was dealt or holds for a row, and sums and
differences of the words of one exchange. It corrects a model of own columns (boosted trees) by ridge regression on these words.
Folds within the rows that it learns from choose the strength of the correction, or none, so thousands of useless words do little
harm.

The label party attacks the feature party's columns. The feature party attacks labels, of training rows and of scored rows.
The helper receives two seeds and sizes, and nothing by row.

Shapes: N rows, W words of a row, Z numbers made of them, T attacked columns or labels; P phases of a word.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import KFold

from tallystick.job.phases import shared_head
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.shared_head import opened_scores
from tallystick.secret_sharing import head
from tallystick.secret_sharing.columns import Index
from tallystick.secret_sharing.feature_products import share_products
from tallystick.secret_sharing.head import score_shares
from tallystick.secret_sharing.matrix_products import gradients, scores
from tallystick.secret_sharing.ring import Words
from tallystick.secret_sharing.sides import ShareHolder
from tallystick.secret_sharing.sine import TURN_BITS
from tallystick.storage import scratch_folder
from tallystick.tables.encoder import Encoder
from tallystick_experiments.catalogue.public import PublicTable
from tallystick_experiments.feature_leakage.data import as_numbers
from tallystick_experiments.quality.shared_leaks import run_job
from tallystick_experiments.stats import Row

Numbers = NDArray[np.float64]
TRAINING, SCORED = "training", "scored"
PARTIES = ("label", "feature")
MOST_COLUMNS, MOST_STEPS, MOST_WORDS = 12, 24, 64
"""Attacked columns, steps of a row whose words are numbers of their own, and words of a kind that is examined separately."""
FOLDS, INNER_FOLDS = 5, 3
RIDGES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
DRAWS = 400
"""Draws of rows, for the interval of a gain."""


@dataclass(kw_only=True)
class PartyWords:
    """Hold words of one party by part of the run and kind: the rows and their words, once or once a step.

    Args:
        positions: the positions in the dataset of each part's rows.
        words: the words of each kind, in the order in which they came.
        part: the part of the run, training or scoring.
        first_row: the first row of the tile that is scored.
        rows_B: the rows of the current step; None between steps.
        makes_products: whether the dealt words are for products.
    """

    positions: dict[str, Index] = field(default_factory=dict)
    words: dict[str, dict[str, list[tuple[Index, Words]]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    part: str = TRAINING
    first_row: int = 0
    tile_rows: int = 0
    rows_B: Index | None = None
    makes_products: bool = False
    _ends: dict[str, int] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def begin_step(self, rows_B: Index) -> None:
        """Assign the words from now on to these rows."""
        self.rows_B, self._counts = self.first_row + rows_B, {}

    def begin_matrices(self, rows: int) -> None:
        """Assign the words from now on to this many rows in order, a part at a time."""
        self.rows_B, self._ends = None, {}
        self.first_row, self.tile_rows = self.first_row + self.tile_rows, rows if self.part == SCORED else 0

    def add_in_order(self, kind: str, words: Words) -> None:
        """Add the next rows' words."""
        start = self._ends.get(kind, 0)
        self._ends[kind] = start + len(words)
        self.words[self.part][kind].append((self.first_row + np.arange(start, start + len(words)), words))

    def add_of_step(self, kind: str, *words: Words) -> None:
        """Add words of the step's rows. A kind that comes twice in a step is two kinds."""
        assert self.rows_B is not None, "a step has begun"
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        for place, each in enumerate(words):
            self.words[self.part][f"{kind} {number}.{place}"].append((self.rows_B, each.reshape(len(self.rows_B), -1)))


@contextmanager
def watched() -> Iterator[dict[str, PartyWords]]:
    """Keep all words by row of a run in this process, for each party."""
    views = {party: PartyWords() for party in PARTIES}
    exchange, exchange_each, correction = ShareHolder.exchange, ShareHolder.exchange_each, ShareHolder.correction
    matrices, train = head._matrices, shared_head._train

    def view_of(side: ShareHolder) -> PartyWords:
        return views[PARTIES[side.place > 0]]

    def watched_exchange(side: ShareHolder, kind: Any, words: Words, **named: Any) -> Words:
        received, view = exchange(side, kind, words, **named), view_of(side)
        if kind.__name__ == "MaskedFeatures":
            view.add_in_order("own matrix, masked", words)
            view.add_in_order("the other's matrix, masked", received)
        elif view.rows_B is not None and len(words) == len(received) == len(view.rows_B):
            view.add_of_step(kind.__name__, words, received, words + received, words - received)
        return received

    def watched_each(side: ShareHolder, kind: Any, words: Words, shapes: Any) -> list[Words]:
        received, view = exchange_each(side, kind, words, shapes), view_of(side)
        if kind.__name__ == "MaskedFeatures":
            view.add_in_order("own factors, masked", words)
            view.add_in_order("the other's factors, masked", received[0])
        return received

    def watched_correction(side: ShareHolder, *shape: int) -> Words:
        words, view = correction(side, *shape), view_of(side)
        if view.makes_products:
            view.add_in_order("products dealt", words)
        elif view.rows_B is not None and len(shape) > 1 and shape[-2] == len(view.rows_B):
            view.add_of_step("dealt", np.moveaxis(words, -2, 0))
        return words

    def watched_scores(side: ShareHolder, of: Any, rows_B: Index, weights_WC: Words) -> Words:
        view_of(side).begin_step(rows_B)
        share_BC = scores(side, of, rows_B, weights_WC)
        view_of(side).add_of_step("share of scores", share_BC)
        return share_BC

    def watched_gradients(side: ShareHolder, of: Any, rows_B: Index, errors_BC: Words) -> Words:
        view_of(side).add_of_step("share of errors", errors_BC)
        gradient_WC = gradients(side, of, rows_B, errors_BC)
        view_of(side).rows_B = None
        return gradient_WC

    def watched_matrices(side: ShareHolder, features_ND: Numbers, columns: Any) -> Any:
        view_of(side).begin_matrices(len(features_ND))
        return matrices(side, features_ND, columns)

    def watched_products(side: ShareHolder, own_NK: Words, columns: Any) -> Words:
        view = view_of(side)
        view.makes_products = True
        share_NP = share_products(side, own_NK, columns)
        view.makes_products = False
        view.add_in_order("share of products", share_NP)
        return share_NP

    def watched_scoring(features_at: Any, rows: int, weights_WC: Words, columns: Any, side: ShareHolder, **named: Any) -> Words:
        view = view_of(side)
        view.part, view.first_row, view.tile_rows = SCORED, 0, 0
        return score_shares(features_at, rows, weights_WC, columns, side, **named)

    def watched_training(job: Any, dataset: Any, *given: Any) -> Any:
        view = views[PARTIES[not job.is_label]]
        view.positions = {TRAINING: dataset.train_N.numpy(), SCORED: shared_head._scored(dataset).numpy()}
        return train(job, dataset, *given)

    places = {
        ShareHolder: {"exchange": watched_exchange, "exchange_each": watched_each, "correction": watched_correction},
        head: {
            "scores": watched_scores,
            "gradients": watched_gradients,
            "_matrices": watched_matrices,
            "share_products": watched_products,
        },
        shared_head: {"score_shares": watched_scoring, "_train": watched_training},
    }
    with ExitStack() as stack:
        for owner, of in places.items():
            for name, function in of.items():
                stack.enter_context(patch.object(owner, name, function))
        yield views


def view_figures(table: PublicTable, seed: int) -> Row:
    """Run a job on shares, and return what each party rebuilds with and without everything that it saw, and the
    gain's interval.
    """
    with scratch_folder() as folder:
        with watched() as views:
            run_job(table, seed, secret_seed=100 * seed, folder=folder)
        runs = {party: _run_of(folder / party) for party in PARTIES}
        rows = {party: _alignment(run).rows_N for party, run in runs.items()}
        position_N, score_NC = opened_scores(runs["label"])
    scores_at = np.zeros((len(rows["label"]), score_NC.shape[1]))
    scores_at[position_N.numpy()] = score_NC.numpy()
    everywhere, halves = np.arange(table.frame.height), table.halves(seed)
    own, partner = (
        as_numbers(Encoder.fit(table.frame, half, everywhere).encode(table.frame).unpacked()).double().numpy() for half in halves
    )
    labels_N = table.frame.get_column(table.label).cast(float).to_numpy()
    figures: Row = {}
    for part in (TRAINING, SCORED):
        position_M = views["label"].positions[part]
        at_M = rows["label"][position_M]
        has = [own[at_M], labels_N[at_M, None], *([scores_at[position_M]] if part == SCORED else [])]
        columns_MT = partner[at_M][:, :MOST_COLUMNS]
        columns_MT = columns_MT[:, columns_MT.std(axis=0) > 0]
        figures |= _figures(f"columns, {part} rows", np.column_stack(has), columns_MT, _mean_r2, views["label"], part, seed)
        at_M = rows["feature"][views["feature"].positions[part]]
        figure = _auc if table.target == "binary" else _mean_r2
        figures |= _figures(f"labels, {part} rows", partner[at_M], labels_N[at_M, None], figure, views["feature"], part, seed)
    return figures


def _figures(
    what: str,
    has_NA: Numbers,
    truth_NT: Numbers,
    figure: Callable[[Numbers, Numbers], float],
    view: PartyWords,
    part: str,
    seed: int,
) -> Row:
    """Rebuild the target from a party's own data, and from that and its words. Each row is rebuilt from rows of other folds."""
    truth_NT = (truth_NT - truth_NT.mean(axis=0)) / truth_NT.std(axis=0)
    without_NT = np.column_stack([_boosted(has_NA, truth_N, seed) for truth_N in truth_NT.T])
    numbers = [_numbers(parts) for parts in _by_row(view.words[part], len(truth_NT))]
    with_NT = without_NT + _correction([each_NZ @ each_NZ.T for each_NZ in numbers], truth_NT - without_NT, seed)
    rng = np.random.default_rng([seed, 17])
    drawn = [rng.integers(len(truth_NT), size=len(truth_NT)) for _ in range(DRAWS)]
    gains = [figure(truth_NT[rows], with_NT[rows]) - figure(truth_NT[rows], without_NT[rows]) for rows in drawn]
    low, high = np.quantile(gains, [0.025, 0.975])
    before, after = figure(truth_NT, without_NT), figure(truth_NT, with_NT)
    return {
        f"{what}: without the view": before,
        f"{what}: with all that was seen": after,
        f"{what}: gain": after - before,
        f"{what}: gain, from": float(low),
        f"{what}: gain, to": float(high),
    }


def _by_row(words: dict[str, list[tuple[Index, Words]]], rows: int) -> tuple[list[Numbers], list[Numbers]]:
    """Return numbers of all words of each row, and a smaller set: for kinds with few words, the means over the steps."""
    every, few = [], []
    for kind in sorted(words):
        steps: list[Words] = []
        step_N = np.zeros(rows, dtype=np.int64)
        for rows_B, words_BW in words[kind]:
            for step in np.unique(step_N[rows_B]):
                if step == len(steps):
                    steps.append(np.zeros((rows, words_BW.shape[1]), dtype=np.uint64))
                here_B = step_N[rows_B] == step
                steps[step][rows_B[here_B]] = words_BW[here_B]
            step_N[rows_B] += 1
        phases = [_phases(words_NW) for words_NW in steps]
        every += phases[:MOST_STEPS]
        if words_BW.shape[1] <= MOST_WORDS:
            few.append(np.mean(phases, axis=0))
    return every + few, few


def _phases(words_NW: Words) -> Numbers:
    """Return words as signed numbers of 64 places and of the sigmoid's, their places on that circle, and their sizes."""
    parts = []
    for places in (64, TURN_BITS):
        free = np.uint64(64 - places)
        signed_NW = ((words_NW << free).view(np.int64) >> free.astype(np.int64)).astype(np.float64)
        angle_NW = np.ldexp(2 * np.pi * signed_NW, -places)
        parts += [signed_NW, np.cos(angle_NW), np.sin(angle_NW), np.sign(signed_NW) * np.log1p(np.abs(signed_NW))]
    return np.concatenate(parts, axis=1)


def _numbers(parts: list[Numbers]) -> NDArray[np.float32]:
    """Join numbers, each scaled to deviation 1, and scale all of them to length 1 on the mean."""
    numbers_NZ = np.concatenate(parts, axis=1)
    numbers_NZ = numbers_NZ[:, numbers_NZ.std(axis=0) > 0]
    numbers_NZ = (numbers_NZ - numbers_NZ.mean(axis=0)) / numbers_NZ.std(axis=0)
    scaled_NZ: NDArray[np.float32] = (numbers_NZ / np.sqrt(numbers_NZ.shape[1])).astype(np.float32)
    return scaled_NZ


def _boosted(has_NA: Numbers, truth_N: Numbers, seed: int) -> Numbers:
    """Rebuild a column or label from a party's data without its words. Each row is rebuilt by trees of the other folds."""
    rebuilt_N = np.empty(len(truth_N))
    is_class = len(np.unique(truth_N)) == 2
    trees = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    for learnt, judged in KFold(FOLDS, shuffle=True, random_state=seed).split(has_NA):
        model = trees(max_iter=60, learning_rate=0.08, random_state=seed)
        model.fit(has_NA[learnt], truth_N[learnt] > 0 if is_class else truth_N[learnt])
        if is_class:
            chance_M = model.predict_proba(has_NA[judged])[:, 1]
            rebuilt_N[judged] = truth_N.min() + chance_M * (truth_N.max() - truth_N.min())
        else:
            rebuilt_N[judged] = model.predict(has_NA[judged])
    return rebuilt_N


def _correction(kernels: list[NDArray[np.float32]], left_NT: Numbers, seed: int) -> Numbers:
    """Rebuild the rest with the words and the ridge that do best in the training rows, or not at all."""
    corrections_NT = np.zeros_like(left_NT)
    for learnt, judged in KFold(FOLDS, shuffle=True, random_state=seed + 1).split(left_NT):
        errors = np.zeros((1 + len(kernels) * len(RIDGES), left_NT.shape[1]))
        for inner, checked in KFold(INNER_FOLDS, shuffle=True, random_state=seed + 2).split(learnt):
            for way, rebuilt_MT in enumerate(_rebuilt(kernels, left_NT, learnt[inner], learnt[checked])):
                errors[way] += np.square(left_NT[learnt[checked]] - rebuilt_MT).sum(axis=0)
        best_T = errors.argmin(axis=0)
        for way, rebuilt_MT in enumerate(_rebuilt(kernels, left_NT, learnt, judged)):
            for column in np.flatnonzero(best_T == way):
                corrections_NT[judged, column] = rebuilt_MT[:, column]
    return corrections_NT


def _rebuilt(kernels: list[NDArray[np.float32]], left_NT: Numbers, learnt: Index, judged: Index) -> Iterator[Numbers]:
    """Yield zeros, then the rest as each ridge on each kind of words rebuilds it."""
    yield np.zeros((len(judged), left_NT.shape[1]))
    for kernel_NN in kernels:
        variance_K, axes_KK = np.linalg.eigh(kernel_NN[np.ix_(learnt, learnt)].astype(np.float64))
        seen_MK, aims_KT = kernel_NN[np.ix_(judged, learnt)] @ axes_KK, axes_KK.T @ left_NT[learnt]
        for ridge in RIDGES:
            yield seen_MK @ (aims_KT / (variance_K.clip(min=0) + ridge)[:, None])


def _mean_r2(truth_NT: Numbers, rebuilt_NT: Numbers) -> float:
    return float(np.maximum(0, r2_score(truth_NT, rebuilt_NT, multioutput="raw_values")).mean())


def _auc(truth_NT: Numbers, rebuilt_NT: Numbers) -> float:
    return float(roc_auc_score(truth_NT[:, 0] > 0, rebuilt_NT[:, 0]))


def _run_of(home: Path) -> RunFolder:
    (path,) = (each for each in home.iterdir() if (each / "contract.json").exists())
    return RunFolder.open(path)


def _alignment(run: RunFolder) -> Any:
    kept = run.load_alignment()
    assert kept is not None, "it is a finished run"
    return kept[1]
