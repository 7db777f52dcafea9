"""Train a linear head on shares: read this file to see the whole protocol.

    label party                    helper                     feature party, or several
    features_ND, labels_NC                                    features_NE
            --- seed ------------->    <------------- seed ---
            <======== masked factors, each party's once ======>     shares of their products: further columns
            <======== masked columns, each party's once ======>
    step:   scores     z = X w         <======== masked weights ======>
            errors     e = f(z) - y    <======== masked scores =======>
            weighted   h e             <== masked errors, masked h ===>     if rows have weights h
                                       <======== masked errors =======>     and cut to their places
            gradients  g = X' e        <======== masked errors =======>
            decay      d w             <== masked weights, masked d ==>
            weights    w + m u - r (g + d w)   <== masked steps ======>
    end:    each party keeps its share of w, and of how often z came near the edge of the sigmoid's range
    score:  z = X w of other rows, cut to 12 places, each party keeps its shares; then the feature parties' are sent, and after
            them their shares of how often z came near the edge

Mohassel and Zhang 2017 ("SecureML"), with a helper (Beaver 1997) instead of their two servers' preparation, and with the
logistic function by dealt sines (sigmoid.py) instead of their piecewise one. Stochastic gradient descent with momentum and
weight decay, at a rate that falls linearly to 0. The label party chooses the decay d. The best value depends on the labels, so
nobody else learns it. Nobody else learns the rows' weights either, only whether there are any.

With several feature parties there is one share for each party, and the label party passes on the others' words (sides.py).

Threat model: sides that follow the protocol, and a helper that works with no party. Guarantee: in training a party receives
uniform words, and nothing that depends on another party's columns, labels or weights. The label party learns the scores of
scored rows, and with them one whole number: how often scores came near the edge in training. A feature party learns nothing but
how many columns each party has (under AES-256 in counter mode as a pseudorandom generator). It holds for each party even if all
other parties work together. The helper learns how many rows, columns and steps there are, and which rows are in the same batch.
Not protected: what the scores themselves reveal about feature parties' columns, above all if the label party chose a label for
that purpose; a helper together with a party; deviations.

Shapes: N rows, B rows of a batch, D own columns, W of all parties with products, C outputs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import DataError
from tallystick.network.channel import Channel, Progress, no_progress
from tallystick.secret_sharing.columns import HeadColumns, Index
from tallystick.secret_sharing.feature_products import deal_products, factors_of, share_products
from tallystick.secret_sharing.matrix_products import (
    MaskMatrices,
    Matrices,
    deal_gradients,
    deal_scaled,
    deal_scores,
    gradients,
    scaled,
    scores,
)
from tallystick.secret_sharing.ring import Words, to_numbers, to_words
from tallystick.secret_sharing.share_messages import (
    EdgeShares,
    MaskedErrors,
    MaskedScores,
    MaskedSteps,
    MaskedWeights,
    ScoreShares,
    receive_words,
    send_words,
)
from tallystick.secret_sharing.sides import Dealer, ShareHolder, deal, draw_dealt
from tallystick.secret_sharing.sigmoid import DEALT_BITS, EDGE_BITS, EDGE_MEAN, FACTOR_BITS, dealt_values, public_factors
from tallystick.secret_sharing.sine import TURN_BITS
from tallystick.secret_sharing.truncation import cut_places, deal_truncation

FEATURE_BITS = 16
WEIGHT_BITS = 24
SCORE_BITS = FEATURE_BITS + WEIGHT_BITS
ERROR_BITS = DEALT_BITS + FACTOR_BITS
STEP_BITS = FEATURE_BITS + ERROR_BITS - WEIGHT_BITS
"""Places that are cut off a step, in which momentum and weight decay are written."""
ROW_WEIGHT_BITS = 12
"""Binary places of the rows' weights, whose mean in a batch is 1."""
MOST_MORE_BITS = 16
"""Greatest number of further places of errors and steps at a low rate."""
_STEP_RANGE = 2.0 ** (62 - FEATURE_BITS - ERROR_BITS)
LARGEST_FEATURE = 3.0
LARGEST_LABEL = 8.0
LARGEST_DECAY = 1.0
LEAST_ROWS = {"logistic": 32, "squared": 512}
"""The fewest rows over which a step's errors are averaged. Small batches of squared loss diverge, because errors are
unbounded.
"""
OPENED_BITS = 12
"""Binary places of the scores that the label party learns."""


@dataclass(frozen=True, kw_only=True)
class HeadPlan:
    """What all sides know about a training.

    Args:
        columns: the label party's and each feature party's.
        rows: N.
        outputs: C.
        loss: logistic for each output separately, or squared.
        batches: the rows of each step; each call yields the same ones.
        steps: how many there are.
        rate: learning rate of the first step; it falls evenly to 0.
        momentum: share of a step that the next one keeps.
        weighted: whether rows have weights.
    """

    columns: HeadColumns
    rows: int
    outputs: int
    loss: Literal["logistic", "squared"]
    batches: Callable[[], Iterator[Index]]
    steps: int
    rate: float = 0.5
    momentum: float = 0.9
    weighted: bool = False

    def __post_init__(self) -> None:
        if not self._largest_step < _STEP_RANGE:
            raise DataError(
                f"rate {self.rate:g} with momentum {self.momentum:g}: a step could be {self._largest_step:g}, beyond the range "
                "of shares; lower the rate or the momentum"
            )

    @property
    def _largest_step(self) -> float:
        largest_error = 1.0 if self.loss == "logistic" else 2 * LARGEST_LABEL
        return self.rate * (LARGEST_FEATURE * largest_error) / (1 - self.momentum)

    @property
    def more_bits(self) -> int:
        """Count the binary places of errors and steps beyond ``ERROR_BITS``, because a low rate makes them small."""
        return min(max(math.frexp(_STEP_RANGE / self._largest_step)[1] - 2, 0), MOST_MORE_BITS)

    def rate_at(self, step: int) -> float:
        """Return the rate of a step, counted from 0. It uses only products and quotients, which are the same on every machine."""
        return self.rate * (self.steps - step) / self.steps

    def scale_at(self, step: int, rows: int) -> float:
        """Return the factor of a step's errors: the rate divided by the number of rows, or by ``LEAST_ROWS`` if that is more.

        The last batch of an epoch may have only one row. Divided by one, it would change the weights as much as a full batch
        does. Weight decay is not reduced with it.
        """
        return self.rate_at(step) / max(rows, LEAST_ROWS[self.loss])


def train_head_label_party(
    features_ND: NDArray[np.float64],
    labels_NC: NDArray[np.float64],
    side: ShareHolder,
    plan: HeadPlan,
    *,
    decay: float,
    row_weights_N: NDArray[np.float64] | None = None,
    progress: Progress = no_progress,
) -> tuple[Words, Words]:
    """Train as the label party. Return its shares of the weights, and of how often scores came near the edge of the range.

    Args:
        features_ND: its numbers, within -3 to 3.
        labels_NC: 0 or 1 for logistic loss, numbers within -8 to 8 for squared loss.
        side: begun.
        plan: what all sides know.
        decay: weight decay, the factor of w in the gradient, at most 1. The others do not learn it.
        row_weights_N: weight of each row in its batch, 0 or more, if the plan says that rows have weights. The others do not
            learn them.
        progress: called after each step.

    Raises DataError for numbers out of range, before anything is sent; ProtocolError and PeerLost as channels do.
    """
    to_words(labels_NC, bits=0, limit=LARGEST_LABEL, what="labels")
    to_words(np.array(decay), bits=0, limit=LARGEST_DECAY, what="the weight decay")
    assert plan.weighted == (row_weights_N is not None), "the plan says whether rows have weights"
    return _train(side, plan, features_ND, _LabelPartyInput(labels_NC, decay, row_weights_N), progress)


def train_head_feature_party(
    features_ND: NDArray[np.float64], side: ShareHolder, plan: HeadPlan, *, progress: Progress = no_progress
) -> tuple[Words, Words]:
    """Train as a feature party. Arguments, returned values and errors are those of the label party's role."""
    return _train(side, plan, features_ND, None, progress)


class _LabelPartyInput(NamedTuple):
    """What the label party alone knows of a training."""

    labels_NC: NDArray[np.float64]
    decay: float
    row_weights_N: NDArray[np.float64] | None


def _train(
    side: ShareHolder, plan: HeadPlan, features_ND: NDArray[np.float64], known: _LabelPartyInput | None, progress: Progress
) -> tuple[Words, Words]:
    """Return own shares of the weights, (W, C), and of how often scores came near the edge, (1, 1); (0, 1) for squared loss."""
    edge_E1 = np.zeros((1 if plan.loss == "logistic" else 0, 1), dtype=np.uint64)
    matrices = _matrices(side, features_ND, plan.columns)
    weights_WC = step_WC = np.zeros((plan.columns.all, plan.outputs), dtype=np.uint64)
    bits = STEP_BITS + plan.more_bits
    momentum = np.uint64(round(plan.momentum * 2**bits))
    for number, rows_B in enumerate(plan.batches()):
        rate = plan.rate_at(number)
        scores_BC = scores(side, matrices, rows_B, weights_WC)
        labels_BC = known.labels_NC[rows_B] if known is not None else None
        errors_BC, edges_BC = _ERRORS[plan.loss](side, scores_BC, labels_BC, plan, plan.scale_at(number, len(rows_B)))
        edge_E1 = edge_E1 + edges_BC.sum(dtype=np.uint64)
        if plan.weighted:
            weights_B = known.row_weights_N[rows_B] if known is not None and known.row_weights_N is not None else None
            errors_BC = _weighted(side, errors_BC, weights_B)
        gradient_WC = gradients(side, matrices, rows_B, errors_BC)
        decay = rate * known.decay if known is not None else None
        factor_11 = np.array([[round(decay * 2**bits)]], dtype=np.uint64) if decay is not None else None
        decayed_WC = scaled(side, MaskedWeights, weights_WC, factor_11, count=1)
        step_WC = cut_places(side, MaskedSteps, momentum * step_WC - gradient_WC - decayed_WC, bits=bits)
        weights_WC = weights_WC + step_WC
        progress("training on shares", number + 1, plan.steps)
    if plan.loss == "logistic":
        edge_E1 = cut_places(side, MaskedSteps, edge_E1, bits=DEALT_BITS + EDGE_BITS)
    return weights_WC, edge_E1


def deal_training(dealer: Dealer, plan: HeadPlan, *, progress: Progress = no_progress) -> None:
    """Deal, as the helper, the words that a training needs."""
    masks = _deal_matrices(dealer, plan.rows, plan.columns)
    for number, rows_B in enumerate(plan.batches()):
        deal_scores(masks, rows_B, plan.outputs)
        if plan.loss == "logistic":
            drawn = [each.masks.draw_below(TURN_BITS, len(rows_B), plan.outputs) for each in dealer.parties]
            deal(dealer, dealt_values(np.stack(drawn).sum(axis=0, dtype=np.uint64) & np.uint64((1 << TURN_BITS) - 1)))
        else:
            deal_truncation(dealer, len(rows_B), plan.outputs, bits=_rescaling(plan, plan.scale_at(number, len(rows_B)))[1])
        if plan.weighted:
            deal_scaled(dealer, len(rows_B), plan.outputs, count=len(rows_B))
            deal_truncation(dealer, len(rows_B), plan.outputs, bits=ROW_WEIGHT_BITS)
        deal_gradients(masks, rows_B, plan.outputs)
        deal_scaled(dealer, plan.columns.all, plan.outputs, count=1)
        deal_truncation(dealer, plan.columns.all, plan.outputs, bits=STEP_BITS + plan.more_bits)
        progress("dealing for shares", number + 1, plan.steps)
    if plan.loss == "logistic":
        deal_truncation(dealer, 1, 1, bits=DEALT_BITS + EDGE_BITS)


def score_shares(
    features_at: Callable[[Index], NDArray[np.float64]],
    rows: int,
    weights_WC: Words,
    columns: HeadColumns,
    side: ShareHolder,
    *,
    progress: Progress = no_progress,
) -> Words:
    """Score rows as any party. Return its shares of the scores, (N, C), with 12 binary places. No score is open yet.

    Args:
        features_at: returns this party's features of some rows, (B, D), so that not all rows are in memory at once.
        rows: number of rows.
        weights_WC: this party's shares of the weights.
        columns: columns of all parties.
        side: this party's side, begun.
        progress: called after each part.
    """
    parts = []
    for rows_B in _tiles(rows):
        matrices = _matrices(side, features_at(rows_B), columns)
        scores_BC = scores(side, matrices, np.arange(len(rows_B)), weights_WC)
        parts.append(cut_places(side, MaskedScores, scores_BC, bits=SCORE_BITS - OPENED_BITS))
        progress("scoring on shares", int(rows_B[-1]) + 1, rows)
    return np.concatenate(parts) if parts else np.empty((0, weights_WC.shape[1]), dtype=np.uint64)


def open_scores_label_party(share_NC: Words, peers: Sequence[Channel]) -> NDArray[np.float64]:
    """Open the scores, (N, C), as the label party: add its own shares and those that it receives."""
    parts = []
    for rows_B in _tiles(len(share_NC)):
        received = [receive_words(peer, ScoreShares, *share_NC[rows_B].shape) for peer in peers]
        parts.append(sum(received, share_NC[rows_B]))
    return to_numbers(np.concatenate([share_NC[:0], *parts]), bits=OPENED_BITS)


def open_scores_feature_party(share_NC: Words, peer: Channel) -> None:
    """Send own shares of the scores, as a feature party, which learns nothing."""
    for rows_B in _tiles(len(share_NC)):
        send_words(peer, ScoreShares, share_NC[rows_B])


def open_edge_label_party(edge_E1: Words, peers: Sequence[Channel]) -> int:
    """Open, as the label party, how often training scores came near the edge of the range.

    It is 0 for squared loss, which has no edge.

    This comes after the scores: a training reveals this number only when its scores are counted, and a training without scores
    reveals nothing.
    """
    if not edge_E1.size:
        return 0
    opened_11 = sum((receive_words(peer, EdgeShares, 1, 1) for peer in peers), edge_E1)
    return max(0, int(opened_11.view(np.int64)[0, 0]))


def open_edge_feature_party(edge_E1: Words, peer: Channel) -> None:
    """Send own share of how often training scores came near the edge, as a feature party, which learns nothing."""
    if edge_E1.size:
        send_words(peer, EdgeShares, edge_E1)


def deal_scoring(dealer: Dealer, columns: HeadColumns, rows: int, outputs: int, *, progress: Progress = no_progress) -> None:
    """Deal, as the helper, the words that scoring this many rows needs."""
    for rows_B in _tiles(rows):
        masks = _deal_matrices(dealer, len(rows_B), columns)
        deal_scores(masks, np.arange(len(rows_B)), outputs)
        deal_truncation(dealer, len(rows_B), outputs, bits=SCORE_BITS - OPENED_BITS)
        progress("dealing for scores", int(rows_B[-1]) + 1, rows)


def _matrices(side: ShareHolder, features_ND: NDArray[np.float64], columns: HeadColumns) -> Matrices:
    """Send own features and own shares of the products to the other parties, masked."""
    encoded_ND = to_words(features_ND, bits=FEATURE_BITS, limit=LARGEST_FEATURE, what="features of a head on shares")
    products_NP = share_products(side, factors_of(features_ND, columns.factors[side.place]), columns)
    return Matrices.exchange(side, np.concatenate([encoded_ND, products_NP], axis=1), columns)


def _deal_matrices(dealer: Dealer, rows: int, columns: HeadColumns) -> MaskMatrices:
    """Deal the words that ``_matrices`` needs, and draw the masks of all matrices."""
    deal_products(dealer, rows, columns)
    return MaskMatrices.draw(dealer, rows, columns)


def _tiles(rows: int) -> Sequence[Index]:
    """Split rows into parts that are scored together."""
    return [np.arange(start, min(start + 4096, rows)) for start in range(0, rows, 4096)]


def _logistic_errors(
    side: ShareHolder, scores_BC: Words, labels_BC: NDArray[np.float64] | None, plan: HeadPlan, scale: float
) -> tuple[Words, Words]:
    """Return shares of (sigmoid(z) - y) times the scale, and of how near each score is to the edge. It takes one exchange."""
    turn = np.uint64((1 << TURN_BITS) - 1)
    mask_BC = side.masks.draw_below(TURN_BITS, *scores_BC.shape)
    waves = len(dealt_values(np.zeros((1, 1), dtype=np.uint64)))  # cosines, then sines
    waves_KBC = draw_dealt(side, waves, *scores_BC.shape)
    masked_BC = side.open(MaskedScores, (scores_BC + mask_BC) & turn, bits=TURN_BITS)
    of_values_KBC, of_edges_KBC = public_factors(masked_BC, scale, more_bits=plan.more_bits)
    errors_BC, edges_BC = (
        (factors_KBC * waves_KBC).sum(axis=0, dtype=np.uint64) for factors_KBC in (of_values_KBC, of_edges_KBC)
    )
    if labels_BC is not None:
        errors_BC = errors_BC + to_words((0.5 - labels_BC) * scale, bits=ERROR_BITS + plan.more_bits, limit=1.0, what="errors")
        edges_BC = edges_BC + to_words(np.array(EDGE_MEAN), bits=DEALT_BITS + EDGE_BITS, limit=1.0, what="edges")
    return errors_BC, edges_BC


def _squared_errors(
    side: ShareHolder, scores_BC: Words, labels_BC: NDArray[np.float64] | None, plan: HeadPlan, scale: float
) -> tuple[Words, Words]:
    """Return shares of (z - y) times the scale, and none of an edge, because squared loss has none. It takes one exchange."""
    errors_BC = scores_BC
    if labels_BC is not None:
        errors_BC = errors_BC - to_words(labels_BC, bits=SCORE_BITS, limit=LARGEST_LABEL, what="labels")
    factor, bits = _rescaling(plan, scale)
    return cut_places(side, MaskedScores, errors_BC * np.uint64(factor), bits=bits), np.zeros_like(errors_BC)


def _rescaling(plan: HeadPlan, scale: float) -> tuple[int, int]:
    """Return the whole number that multiplies squared errors to their scale, and how many places are cut off after that."""
    places = 16 - math.frexp(scale)[1]  # errors within 32 have 45 bits, and the number has 16
    return round(math.ldexp(scale, places)), SCORE_BITS - ERROR_BITS - plan.more_bits + places


_ERRORS = {"logistic": _logistic_errors, "squared": _squared_errors}


def _weighted(side: ShareHolder, errors_BC: Words, weights_B: NDArray[np.float64] | None) -> Words:
    """Return shares of the errors times the rows' weights, divided by the weights' mean in the batch. It takes two exchanges.

    Because of the division, a batch changes the head's weights no more than a batch of equal rows, and one row no more than its
    batch.
    """
    words_B1, count = None, len(errors_BC)
    if weights_B is not None:
        mean = weights_B.mean() or 1.0  # a batch of weight 0 changes nothing
        words_B1 = to_words(weights_B[:, None] / mean, bits=ROW_WEIGHT_BITS, limit=count * (1 + 1e-9), what="weights of rows")
    products_BC = scaled(side, MaskedErrors, errors_BC, words_B1, count=count)
    return cut_places(side, MaskedErrors, products_BC, bits=ROW_WEIGHT_BITS)
