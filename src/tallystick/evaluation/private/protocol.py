"""Compute a private AUC over channels: K clients have scores and labels, and a server learns the noisy sum.

There is one function per role and family of mechanisms. ``client`` and ``server`` run every counting mechanism, plain or securely
summed; ``noisy_scores_client`` and ``noisy_scores_server`` are the baseline that shares scores. Both sides must be given the same
mechanism (it is in the contract). A client's budget is spent in its ledger before its answer is sent.

A client without rows takes part like any other: its answer is noise. A client that drops out ends the round for all, by name
(privacy/masks.py); the budget that the others spent stays spent. A new round may start without it, unless the server already had
the sum of the score histograms (or row counts): the next sum would then reveal the lost client's own by the difference, and the
error says so.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import ConfigError, DataError, ProtocolError
from tallystick.evaluation.evaluation_messages import check_auc
from tallystick.evaluation.private.bins import (
    MOST_ROWS,
    Population,
    ScoreBins,
    check_scores,
    score_grid,
)
from tallystick.evaluation.private.mechanism import CountingMechanism
from tallystick.evaluation.private.result import PrivateAuc, estimate_auc
from tallystick.evaluation.private.scores import NoisyScores
from tallystick.network.channel import Channel
from tallystick.network.messages import MEBIBYTE, Array, MalformedMessage, Message
from tallystick.privacy.ledger import Ledger
from tallystick.privacy.masks import MaskedTerms, PlainTerms, all_or_none, exchange_keys, receive_sum
from tallystick.privacy.noise import NoiseSource


class PublicBins(Message, frozen=True):
    """The bins for the answer: inner edges, and the number of all clients' rows in each."""

    limit: ClassVar[int] = 2 * MEBIBYTE
    edges: Array
    totals: Array


class PublicResult(Message, frozen=True):
    """The released AUC and its interval, for every client."""

    auc: float
    low: float
    high: float


class NoisyScoreRows(Message, frozen=True):
    """Noisy scores with their labels."""

    limit: ClassVar[int] = 256 * MEBIBYTE
    scores: Array
    labels: Array


def client(
    labels_N: NDArray[Any],
    scores_N: NDArray[Any],
    channel: Channel,
    *,
    mechanism: CountingMechanism,
    noise: NoiseSource,
    ledger: Ledger | None = None,
    dataset: str = "",
) -> PublicResult:
    """Answer with noise and learn the released AUC (DPAUC, steps 1 to 3 of the overall workflow).

    ``labels_N`` are 0 or 1 and ``scores_N`` in [0, 1], one per row; zero rows are allowed. ``noise`` must be SecureNoise in a
    release. Raises DataError for other values, BudgetExceeded if the ledger's cap for ``dataset`` refuses, PeerError if the round
    ends.
    """
    labels, scores = check_scores(labels_N, scores_N)
    terms: MaskedTerms | PlainTerms = PlainTerms(channel=channel)
    if mechanism.needs_clients:
        terms = MaskedTerms(channel, least_clients=mechanism.least_clients)
    if mechanism.needs_totals:
        terms.send(ScoreBins(edges=_grid(mechanism)).count(scores))
        message = channel.receive(PublicBins)
        try:
            if (message.edges.dtype, message.totals.dtype) != ("float64", "int64"):
                raise MalformedMessage(
                    f"bins of type {message.edges.dtype} and {message.totals.dtype}, expected float64 and int64"
                )
            bins = ScoreBins(edges=message.edges.numpy(None), totals_B=message.totals.numpy(None))
        except (MalformedMessage, ConfigError) as error:
            raise ProtocolError(channel.peer, f"{channel.peer} broke the protocol: {error}") from None
    else:
        terms.send(np.array([len(scores)]))
        bins = mechanism.bins(ScoreBins(edges=score_grid()))
    if ledger is not None:
        ledger.spend(dataset, mechanism.event, what=f"AUC by {mechanism.name}")
    answer_L = mechanism.answer(*bins.count_classes(labels, scores), bins, noise=noise)
    noise_L = mechanism.noise(bins, source=noise, shares=terms.clients)
    terms.send(answer_L + noise_L)
    return _read_result(channel)


def server(channels: Sequence[Channel], *, mechanism: CountingMechanism, assumed: Population) -> PrivateAuc:
    """Add up the clients' noisy answers and compute the AUC (DPAUC, steps 4 to 6), then tell every client.

    ``assumed`` (class balance and AUC) is only used for the predicted error. Raises PeerError, which names the client that
    dropped out or broke the protocol, and DataError if the noise leaves no AUC to compute; nothing partial is released.
    """
    if not channels:
        raise ConfigError("no client takes part; a private AUC needs at least one")
    summed = mechanism.needs_clients
    with all_or_none(channels) as sums_out:
        if summed:
            exchange_keys(channels)
        if mechanism.needs_totals:
            edges = _grid(mechanism)
            totals_G = receive_sum(channels, len(edges) + 1)
            try:
                grid = ScoreBins(edges=edges, totals_B=totals_G)
            except ConfigError as error:
                raise ProtocolError(
                    channels[0].peer, f"the clients' score histograms do not add up ({error}); one of them is not honest"
                ) from None
            if summed:
                sums_out.append("score histogram")
            bins = mechanism.bins(grid)
            rows = bins.rows
            for channel in channels:
                channel.send(PublicBins(edges=Array.of(bins.edges), totals=Array.of(bins.totals())))
        else:
            bins = mechanism.bins(ScoreBins(edges=score_grid()))
            rows = int(receive_sum(channels, 1)[0])
            if summed:
                sums_out.append("number of rows")
            if not 0 <= rows <= MOST_ROWS:
                raise ProtocolError(channels[0].peer, f"the clients' row counts add up to {rows}; one of them is not honest")
        nothing = np.zeros(len(bins), dtype=np.int64)
        length = len(mechanism.answer(nothing, nothing, bins, noise=_NO_NOISE))
        total_L = receive_sum(channels, length)
        result = estimate_auc(mechanism, total_L, bins, rows=rows, clients=len(channels), assumed=assumed)
        for channel in channels:
            channel.send(PublicResult(auc=result.auc, low=result.interval[0], high=result.interval[1]))
    return result


def noisy_scores_client(
    labels_N: NDArray[Any],
    scores_N: NDArray[Any],
    channel: Channel,
    *,
    mechanism: NoisyScores,
    noise: NoiseSource,
    ledger: Ledger | None = None,
    dataset: str = "",
) -> float:
    """Send noisy scores with their labels (DPAUC Table 3's baseline: labels are NOT protected) and learn the AUC."""
    labels, scores = check_scores(labels_N, scores_N)
    noisy = mechanism.perturb(scores, noise=noise)
    if ledger is not None:
        ledger.spend(dataset, mechanism.event, what=f"AUC by {mechanism.name}")
    channel.send(NoisyScoreRows(scores=Array.of(noisy), labels=Array.of(labels)))
    return _read_result(channel).auc


def noisy_scores_server(channels: Sequence[Channel], *, mechanism: NoisyScores) -> float:
    """Pool the clients' noisy scores and compute their AUC."""
    with all_or_none(channels):
        all_labels, all_scores = [], []
        for channel in channels:
            message, breaks = channel.receive(NoisyScoreRows), f"{channel.peer} broke the protocol"
            try:
                if (message.scores.dtype, message.labels.dtype) != ("float64", "bool"):
                    raise MalformedMessage(
                        f"scores of type {message.scores.dtype} and labels of type {message.labels.dtype}, "
                        "expected float64 and bool"
                    )
                scores = message.scores.numpy(None)
                labels = message.labels.numpy(len(scores)).view(np.uint8)  # its bytes may have any value
            except MalformedMessage as error:
                raise ProtocolError(channel.peer, f"{breaks}: {error}") from None
            if not np.all(np.isfinite(scores)):
                row = int(np.flatnonzero(~np.isfinite(scores))[0])
                raise ProtocolError(channel.peer, f"{breaks}: noisy score {row} is {scores[row]}, not a number")
            if not np.all((labels == 0) | (labels == 1)):
                raise ProtocolError(channel.peer, f"{breaks}: a label is neither 0 nor 1")
            all_labels.append(labels.astype(bool))
            all_scores.append(scores)
        auc = mechanism.estimate(np.concatenate(all_labels), np.concatenate(all_scores))
        if not math.isfinite(auc):
            raise DataError("the clients' rows are all of one class; an AUC needs at least one positive and one negative")
        for channel in channels:
            channel.send(PublicResult(auc=auc, low=auc, high=auc))
    return auc


def _grid(mechanism: CountingMechanism) -> NDArray[np.float64]:
    """Return the grid on which the clients' scores are first counted."""
    return score_grid(mechanism.counted.grid_bins)


def _read_result(channel: Channel) -> PublicResult:
    result = channel.receive(PublicResult)
    check_auc(channel, result.low, result.auc, result.high)
    return result


class _NoNoise:
    """A stand-in for noise in an answer about zero rows, which flips no coin."""

    def binomial(self, counts: NDArray[np.int64], probability: object) -> NDArray[np.int64]:  # noqa: ARG002
        return counts * 0


_NO_NOISE: Any = _NoNoise()
