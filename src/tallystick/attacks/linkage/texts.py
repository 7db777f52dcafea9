"""Name the text behind a key from its encoding, its similarities or its links.

Each attack here has a list of texts, such as a telephone book, that holds all texts of the other side. It finds which of them
belongs to each key.

Shapes: T targets, S texts of the list, N own rows, K links, P pairs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from tallystick.attacks.findings import NamedKeys
from tallystick.attacks.linkage.view import DistanceModel, Floats, Integers, OnProgress, Seat, V_contra, quietly
from tallystick.errors import ConfigError

UNNAMED = -1
SAMPLED, FIRST_TEXTS = 150, 256
"""Number of filters that starts are tried on, and number of texts of similar size that a group's first filter may have."""
FITS = 0.1
"""A start is right if its misfit is below this, in units of the variance of shared bits. A wrong start is above a half."""
SWEEPS = 6


@dataclass(frozen=True, kw_only=True)
class HelperTexts:
    """View of a helper for naming text keys. The helper knows no secret and no key. No view holds the truth.

    Args:
        likeness_SS: number of q-grams that two texts of the list share; on the diagonal, number of q-grams of one text.
        likeness_TT: the same for two filters, estimated from their bits.
    """

    seat: ClassVar[Seat] = "helper"
    likeness_SS: Floats
    likeness_TT: Floats


@dataclass(frozen=True, kw_only=True)
class LabelPartyTexts:
    """View of the label party for naming a feature party's text keys.

    Args:
        targets: T, number of keys of the feature party.
        distance_NS: distances of own keys to every text of the list, under the secret that the parties share.
        numbers_NK: links of each own row (-1 pads).
        similarity_NK: noisy similarities.
        metric: how distances became similarities.
    """

    seat: ClassVar[Seat] = "label party"
    targets: int
    distance_NS: Floats
    numbers_NK: Integers
    similarity_NK: Floats
    metric: DistanceModel


@dataclass(frozen=True, kw_only=True)
class FeaturePartyTexts:
    """View of a feature party for naming the label party's text keys.

    Args:
        distance_NS: distances of own keys, by number, to every text of the list, under the secret that the parties share.
        numbers_TK: own rows that each target is linked to (-1 pads).
    """

    seat: ClassVar[Seat] = "feature party"
    distance_NS: Floats
    numbers_TK: Integers


TextView = HelperTexts | LabelPartyTexts | FeaturePartyTexts
"""View of one role on text keys, with the list."""
V = TypeVar("V", bound=TextView)


class TextAttack(Protocol[V_contra]):
    """Reads a view, and nothing else, and names targets."""

    def __call__(self, view: V_contra, *, progress: OnProgress = quietly) -> Integers:
        """Return the place of each target's text on the list (T,), or -1 where it names none."""
        ...


@dataclass(frozen=True, kw_only=True)
class FilterGraph:
    """Matches the graph of filters with the graph of listed texts by shared q-grams. It needs no known key. It is for the helper.

    After Vidanage, Christen, Ranbaduge and Schnell, "A graph matching attack on privacy-preserving record linkage" (CIKM 2020),
    which matches by features of each node. The attack here has three stages:

    1. It takes a small group of similar filters, and tries each text for the first of them. Each next filter gets the text whose
       likeness to the earlier texts fits best. The assignments with the least misfit are the starts.
    2. A ridge regression on the matched pairs predicts the likeness of every filter to every text. Round by round, the most
       certain pairs join the matched ones.
    3. On some of the filters, each moves to the text whose likeness to the others fits best. The remaining misfit shows whether
       the start was right. Other starts are tried until one fits, and the best start is continued on all filters.

    Args:
        placed: number of filters in a group.
        tries: number of groups.
        starts: number of starts of each group.
        rounds: number of rounds of the regression.
        ridge: penalty of the regression, in units of the texts' mean likeness to themselves.
    """

    placed: int = 12
    tries: int = 10
    starts: int = 4
    rounds: int = 4
    ridge: float = 0.1

    def __post_init__(self) -> None:
        if min(self.placed, self.tries, self.starts, self.rounds) < 1 or not self.ridge > 0:
            raise ConfigError(
                f"filter-graph attack: placed={self.placed}, tries={self.tries}, starts={self.starts}, rounds={self.rounds}, "
                f"ridge={self.ridge}; expected at least 1, and above 0"
            )

    def __call__(self, view: HelperTexts, *, progress: OnProgress = quietly) -> Integers:
        """Name every filter."""
        likeness_TT, all_T = view.likeness_TT, np.arange(len(view.likeness_TT))
        fits = FITS * float(np.var(likeness_TT[~np.eye(len(all_T), dtype=bool)])) if len(all_T) > 1 else 0.0
        best: tuple[float, Integers, Integers] | None = None
        for done, (placed_P, text_P) in enumerate(self._starts(view)):
            progress(done, self.tries * self.starts)
            rest_T = np.setdiff1d(all_T, placed_P)
            more = np.linspace(0, len(rest_T) - 1, min(max(SAMPLED - len(placed_P), 0), len(rest_T))).astype(np.int64)
            some_M = np.concatenate((placed_P, rest_T[more]))
            some = HelperTexts(likeness_SS=view.likeness_SS, likeness_TT=likeness_TT[np.ix_(some_M, some_M)])
            guess_M, misfit = _settled(some, self._grown(some, np.arange(len(placed_P)), text_P))
            if best is None or misfit < best[0]:
                best = misfit, some_M, guess_M
            if misfit <= fits:
                break
        assert best is not None, "there is at least one try"
        _, some_M, guess_M = best
        guess_T = np.empty_like(all_T)
        guess_T[some_M] = guess_M
        return guess_T if len(some_M) == len(all_T) else self._grown(view, some_M, guess_M)

    def _starts(self, view: HelperTexts) -> Iterator[tuple[Integers, Integers]]:
        """Yield groups of filters with candidate texts for each filter, in ascending order of misfit."""
        likeness_SS, likeness_TT = view.likeness_SS, view.likeness_TT
        size_S, size_T = np.diag(likeness_SS), np.diag(likeness_TT)
        others_TT = likeness_TT - np.diag(size_T)
        closeness_T = np.sort(others_TT, axis=1)[:, -8:].sum(axis=1)
        for _ in range(self.tries):
            order = [int(closeness_T.argmax())]
            while len(order) < min(self.placed, len(size_T), len(size_S)):
                gain_T = np.square(others_TT[order]).sum(axis=0)
                gain_T[order] = -1
                order.append(int(gain_T.argmax()))
            if not np.isfinite(closeness_T[order[0]]):  # each filter was in a group
                return
            closeness_T[order] = -np.inf
            misfit_S = np.square(size_S - size_T[order[0]])
            first_B = np.argsort(misfit_S, kind="stable")[:FIRST_TEXTS]
            # Row b of these is the assignment that begins with text b of the candidates for the group's first filter.
            misfit_B, place_BP = misfit_S[first_B], np.empty((len(first_B), len(order)), dtype=np.int64)
            place_BP[:, 0] = first_B
            for count, target in enumerate(order[1:], start=1):
                misfit_BS = np.tile(np.square(size_S - size_T[target]), (len(first_B), 1))
                for earlier in range(count):
                    misfit_BS += np.square(likeness_SS[place_BP[:, earlier]] - likeness_TT[target, order[earlier]])
                np.put_along_axis(misfit_BS, place_BP[:, :count], np.inf, axis=1)
                place_BP[:, count] = misfit_BS.argmin(axis=1)
                misfit_B = misfit_B + misfit_BS[np.arange(len(first_B)), place_BP[:, count]]
            for start in np.argsort(misfit_B, kind="stable")[: self.starts]:
                yield np.array(order), place_BP[start]

    def _grown(self, view: HelperTexts, first_P: Integers, first_text_P: Integers) -> Integers:
        """Extend these pairs to a text for every filter."""
        likeness_SS, likeness_TT = _centred(view.likeness_SS), _centred(view.likeness_TT)
        target_P, text_P, targets = first_P, first_text_P, len(likeness_TT)
        guess_T = np.full(targets, UNNAMED)
        length_T = np.sqrt(np.maximum(np.diag(likeness_TT), 0))
        for done in range(self.rounds):
            ridge = self.ridge * float(np.diag(likeness_SS).mean()) + 1e-9
            matched_PP = likeness_SS[np.ix_(text_P, text_P)] + ridge * np.eye(len(text_P))
            weight_SP = np.linalg.solve(matched_PP, likeness_SS[text_P]).T
            foretold_ST = weight_SP @ likeness_TT[target_P]
            square_S = np.einsum("sp,pq,sq->s", weight_SP, likeness_TT[np.ix_(target_P, target_P)], weight_SP, optimize=True)
            length_S = np.sqrt(np.maximum(square_S, 0))
            score_ST = np.asarray(foretold_ST / np.maximum(length_S, 1e-12)[:, None] / np.maximum(length_T, 1e-12))
            guess_T = score_ST.argmax(axis=0)
            ordered_ST = np.partition(score_ST, -2, axis=0) if len(score_ST) > 1 else np.repeat(score_ST, 2, axis=0)
            margin_T = ordered_ST[-1] - ordered_ST[-2]
            mutual_T = score_ST.argmax(axis=1)[guess_T] == np.arange(targets)
            sure = np.flatnonzero(mutual_T & ~np.isin(np.arange(targets), first_P))
            share = (done + 1) / self.rounds
            sure = sure[np.argsort(-margin_T[sure], kind="stable")][: int(share * targets)]
            target_P = np.concatenate((first_P, sure))
            text_P = np.concatenate((first_text_P, guess_T[sure]))
        return np.asarray(guess_T)


@dataclass(frozen=True, kw_only=True)
class SimilarityFit:
    """Names a key by the listed text whose distances to own rows fit the key's similarities best. Noise averages out.

    Not in the paper: trilateration among texts. The label party shares the filters' secret, so it can encode any listed text and
    compute its distance to each own row. It reads the label party's view.
    """

    def __call__(self, view: LabelPartyTexts, *, progress: OnProgress = quietly) -> Integers:
        """Name every number that is linked."""
        position_L, place_L = np.nonzero(view.numbers_NK >= 0)
        number_L = view.numbers_NK[position_L, place_L]
        distance_L = view.metric.distance_of(view.similarity_NK[position_L, place_L], shrink=False)
        guess_T = np.full(view.targets, UNNAMED)
        for number in range(view.targets):
            progress(number, view.targets)
            pair_P = np.flatnonzero(number_L == number)
            if len(pair_P):
                miss_PS = view.distance_NS[position_L[pair_P]] - distance_L[pair_P, None]
                guess_T[number] = np.square(miss_PS).mean(axis=0).argmin()
        return guess_T


@dataclass(frozen=True, kw_only=True)
class NeighborFit:
    """Names a row by the listed text whose nearest own rows are those that the row is linked to. Of several, the nearest wins.

    Not in the paper: cells among texts. It needs no similarities, so noise on them does not blur it. It reads a feature party's
    view.
    """

    def __call__(self, view: FeaturePartyTexts, *, progress: OnProgress = quietly) -> Integers:
        """Name every position that has links."""
        neighbors = min(view.numbers_TK.shape[1], len(view.distance_NS))
        edge_S = np.partition(view.distance_NS, neighbors - 1, axis=0)[neighbors - 1]
        near_NS = view.distance_NS <= edge_S
        furthest = 1 + float(np.abs(view.distance_NS[np.isfinite(view.distance_NS)]).max(initial=0.0))
        targets = len(view.numbers_TK)
        guess_T = np.full(targets, UNNAMED)
        for position, numbers_K in enumerate(view.numbers_TK):
            progress(position, targets)
            if len(linked := numbers_K[numbers_K >= 0]):
                apart_S = np.minimum(view.distance_NS[linked], furthest).mean(axis=0)
                guess_T[position] = (near_NS[linked].sum(axis=0) - apart_S / (2 * furthest)).argmax()
        return guess_T


@dataclass(frozen=True, kw_only=True)
class TextAttackRow(Generic[V]):
    """An attack on text keys, the view that it reads, and a line for the report on how it works."""

    attack: TextAttack[V]
    view: type[V]
    description: str

    @property
    def seat(self) -> Seat:
        """Return the role of the attacker."""
        return self.view.seat


TEXT_ATTACKS: Mapping[str, TextAttackRow[Any]] = MappingProxyType(
    {
        "filter-graph": TextAttackRow[HelperTexts](
            attack=FilterGraph(),
            view=HelperTexts,
            description="matches filters, by bits in common, with a list of texts, by characters in common; knows no key",
        ),
        "similarity-fit": TextAttackRow[LabelPartyTexts](
            attack=SimilarityFit(),
            view=LabelPartyTexts,
            description="the text of a list whose distances to own rows fit the similarities best",
        ),
        "neighbor-fit": TextAttackRow[FeaturePartyTexts](
            attack=NeighborFit(),
            view=FeaturePartyTexts,
            description="the text of a list whose nearest own rows are those that are linked; needs no similarities",
        ),
    }
)
"""The attacks on text keys. Each is a class here and a row of this table."""


def evaluate_texts(view: TextView, truth_T: Integers, *, progress: OnProgress = quietly) -> dict[str, NamedKeys]:
    """Run every attack that reads such a view, and compare it with the truth. Targets whose truth is -1 do not count.

    No guarantee: no attack here found more, another may.
    """
    counted_T = truth_T >= 0
    named_keys = {}
    for name, row in TEXT_ATTACKS.items():
        if not isinstance(view, row.view):
            continue
        guess_T = row.attack(view, progress=progress)
        judged_T = counted_T & (guess_T != UNNAMED)
        if judged_T.any():
            # The share of correct names, with Wilson's interval
            is_right_J = guess_T[judged_T] == truth_T[judged_T]
            counted_truth_T = truth_T[counted_T]
            count, share, z = len(is_right_J), float(is_right_J.mean()), 1.959964
            middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
            half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
            chance = float(np.unique(counted_truth_T, return_counts=True)[1].max() / len(counted_truth_T))
            named_keys[name] = NamedKeys(
                name=name, named=count, right=share, low=float(middle - half), high=float(middle + half), chance=chance
            )
    return named_keys


def _centred(matrix: Floats) -> Floats:
    """Subtract the mean and return inner products."""
    mean = matrix.mean(axis=0)
    return np.asarray(matrix - mean - mean[:, None] + mean.mean())


def _settled(view: HelperTexts, guess_T: Integers) -> tuple[Integers, float]:
    """Move each filter to the text whose likeness to all others fits best, in several sweeps; return the texts and the misfit."""
    likeness_SS, likeness_TT, best = view.likeness_SS, view.likeness_TT, (guess_T, np.inf)
    size_S, size_T = np.diag(likeness_SS), np.diag(likeness_TT)
    others_TT = likeness_TT - np.diag(size_T)
    for _ in range(SWEEPS):
        likeness_ST = likeness_SS[:, guess_T]
        square_ST = np.square(likeness_ST)
        # The sum of squared differences, up to a constant per filter; the difference to itself is replaced by that of sizes
        misfit_ST = square_ST.sum(axis=1)[:, None] - square_ST - 2 * likeness_ST @ others_TT
        misfit_ST += np.square(size_S[:, None] - size_T)
        moved_T = np.asarray(misfit_ST.argmin(axis=0))
        misfit = float(np.square(likeness_SS[np.ix_(moved_T, moved_T)] - likeness_TT).mean())
        if misfit < best[1]:
            best = moved_T, misfit
        if np.array_equal(moved_T, guess_T):
            break
        guess_T = moved_T
    return best
