"""Name the text behind a key from its encoding, its similarities or its links.

Every attack here has a list of texts that the other side's are among, such as a telephone book, and says which one each key is.

Shapes: T targets, S texts of the list, N own rows, K links, P pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from tallystick.attacks.findings import NamedKeys
from tallystick.attacks.linkage.view import DistanceModel, Floats, Integers, OnProgress, Seat, V_contra, quietly
from tallystick.errors import ConfigError

UNNAMED = -1


@dataclass(frozen=True, kw_only=True)
class HelperTexts:
    """View of a helper, which knows no secret and no key, for naming text keys. The truth is in no view.

    Args:
        likeness_SS: q-grams that two texts of the list have in common; of one, all that it has.
        likeness_TT: the same of two filters, as their bits let it be estimated.
    """

    seat: ClassVar[Seat] = "helper"
    likeness_SS: Floats
    likeness_TT: Floats


@dataclass(frozen=True, kw_only=True)
class LabelPartyTexts:
    """View of the label party for naming a feature party's text keys.

    Args:
        targets: T, numbers of the feature party.
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
"""One seat's view of text keys, and the list."""
V = TypeVar("V", bound=TextView)


class TextAttack(Protocol[V_contra]):
    """Reads a view and names targets. It sees nothing else."""

    def __call__(self, view: V_contra, *, progress: OnProgress = quietly) -> Integers:
        """Return the place on the list of each target's text (T,), -1 for those that it leaves out."""
        ...


@dataclass(frozen=True, kw_only=True)
class FilterGraph:
    """Matches the graph of filters with that of listed texts, by q-grams in common. It needs no known key. It is for the helper.

    After Vidanage, Christen, Ranbaduge and Schnell, "A graph matching attack on privacy-preserving record linkage" (CIKM 2020),
    which matches by features of each node. Here a few filters that are much alike are placed together: whichever text the first
    of them is taken for, the next one goes where its likeness to those before fits best, and the start with the least misfit is
    kept. A ridge regression on these pairs then foretells how alike every filter is to any listed text, and the surest pairs join
    them, round by round.

    Args:
        placed: filters that are placed together first.
        tries: filters that placing begins at.
        rounds: how often the matched pairs grow.
        ridge: of the regression, in the texts' mean likeness to themselves.
    """

    placed: int = 12
    tries: int = 3
    rounds: int = 4
    ridge: float = 0.1

    def __post_init__(self) -> None:
        if min(self.placed, self.tries, self.rounds) < 1 or not self.ridge > 0:
            raise ConfigError(
                f"filter-graph attack: placed={self.placed}, tries={self.tries}, rounds={self.rounds}, ridge={self.ridge}; "
                "expected at least 1, and above 0"
            )

    def __call__(self, view: HelperTexts, *, progress: OnProgress = quietly) -> Integers:
        """Name every filter."""
        likeness_SS, likeness_TT = view.likeness_SS, view.likeness_TT
        texts, targets = len(likeness_SS), len(likeness_TT)
        size_S, others_TT = np.diag(likeness_SS), likeness_TT - np.diag(np.diag(likeness_TT))
        closeness_T = np.sort(others_TT, axis=1)[:, -8:].sum(axis=1)
        best: tuple[float, Integers, Integers] | None = None
        for first in np.argsort(-closeness_T, kind="stable")[: self.tries]:
            order = [int(first)]
            while len(order) < min(self.placed, targets, texts):
                gain_T = np.square(others_TT[order]).sum(axis=0)
                gain_T[order] = -1
                order.append(int(gain_T.argmax()))
            # Row s of these is the placing that begins with text s.
            place_SP = np.empty((texts, len(order)), dtype=np.int64)
            place_SP[:, 0] = np.arange(texts)
            misfit_S = np.square(size_S - likeness_TT[first, first])
            for count, target in enumerate(order[1:], start=1):
                misfit_SS = np.tile(np.square(size_S - likeness_TT[target, target]), (texts, 1))
                for earlier in range(count):
                    misfit_SS += np.square(likeness_SS[place_SP[:, earlier]] - likeness_TT[target, order[earlier]])
                np.put_along_axis(misfit_SS, place_SP[:, :count], np.inf, axis=1)
                place_SP[:, count] = misfit_SS.argmin(axis=1)
                misfit_S = misfit_S + misfit_SS[np.arange(texts), place_SP[:, count]]
            start = int(misfit_S.argmin())
            # How much worse the next best start is says how sure this one is.
            doubt = float(misfit_S[start] / max(np.partition(misfit_S, min(1, texts - 1))[min(1, texts - 1)], 1e-12))
            if best is None or doubt < best[0]:
                best = doubt, np.array(order), place_SP[start]
        assert best is not None, "there is at least one try"
        _, first_P, first_text_P = best
        likeness_SS, likeness_TT = _centred(view.likeness_SS), _centred(view.likeness_TT)
        target_P, text_P, targets = first_P, first_text_P, len(likeness_TT)
        guess_T = np.full(targets, UNNAMED)
        for done in range(self.rounds):
            progress(done, self.rounds)
            ridge = self.ridge * float(np.diag(likeness_SS).mean()) + 1e-9
            matched_PP = likeness_SS[np.ix_(text_P, text_P)] + ridge * np.eye(len(text_P))
            weight_SP = np.linalg.solve(matched_PP, likeness_SS[text_P]).T
            foretold_ST = weight_SP @ likeness_TT[target_P]
            square_S = np.einsum("sp,pq,sq->s", weight_SP, likeness_TT[np.ix_(target_P, target_P)], weight_SP, optimize=True)
            length_S, length_T = np.sqrt(np.maximum(square_S, 0)), np.sqrt(np.maximum(np.diag(likeness_TT), 0))
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
    """Names a key by the listed text whose distances to own rows fit its similarities to them best. Noise averages out.

    Not in the paper: trilateration among texts. The label party shares the filters' secret, so it can encode any listed text and
    knows how far it is from each own row. For its view.
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
    """Names a row by the listed text whose nearest own rows are those that the row is linked to. Of several it takes the nearest.

    Not in the paper: cells among texts. It needs no similarities, and no noise on these blurs it. For a feature party's view.
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
    """An attack on text keys, the view that it reads, and how it works, in a line for the report."""

    attack: TextAttack[V]
    view: type[V]
    description: str

    @property
    def seat(self) -> Seat:
        """Return in whose seat the attack is made."""
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
"""The attacks on text keys: a new one is a class here and a row."""


def evaluate_texts(view: TextView, truth_T: Integers, *, progress: OnProgress = quietly) -> dict[str, NamedKeys]:
    """Run every attack that reads such a view, and compare with the truth, which is -1 for targets that do not count.

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
            # The share of right names, with Wilson's interval
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
    """Take the mean away and return the inner products of what is left."""
    mean = matrix.mean(axis=0)
    return np.asarray(matrix - mean - mean[:, None] + mean.mean())
