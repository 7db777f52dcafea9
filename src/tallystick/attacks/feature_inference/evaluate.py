"""Measure how well each column can be rebuilt: run every attack on a label party's view, and compare with the true columns.

Shapes: N rows, K known rows, F numeric columns, G categorical columns.

The feature party runs this alone: it sent the embeddings and has the columns, so nothing has to cross. It lacks the label
party's own columns, which would help; a simulation has both sides and measures that, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS, FeatureInferenceAttack
from tallystick.attacks.feature_inference.contrast import upward
from tallystick.attacks.feature_inference.marginals import marginals_of
from tallystick.attacks.feature_inference.simulator import LEAST_PEOPLE
from tallystick.attacks.feature_inference.view import ColumnValues, FeatureView, Reconstruction, SentEmbeddings
from tallystick.attacks.findings import RebuiltColumn
from tallystick.attacks.matrix import UNSOLVED
from tallystick.errors import ConfigError, DataError

KNOWN = (20, 200)
DRAWS = 3
MOST_ROWS = 5000
OTHERS = 1000
SURE = 0.01  # probability of reporting a rebuilt column although embeddings are independent of columns
RANKED_NUMBERS = 2**20  # about this many scores of categories are sorted at a time
LEAST_OF_CATEGORY = 5  # rows with a category, and without it, that are needed to judge their ranking
NO_ROW_KNOWN = "no attack here can run without a known row, so an attacker who knows none was not measured"
KnownRows: TypeAlias = Mapping[int, Sequence[Tensor]]
"""The known rows by their number: int64 (K,), one tensor per draw."""


@dataclass(frozen=True, kw_only=True)
class FeatureLeaks:
    """Findings for all columns, and sentences on what could not be measured."""

    columns: tuple[RebuiltColumn, ...]
    not_measured: tuple[str, ...] = ()
    by_attack: Mapping[tuple[str, int], float] = field(default_factory=dict)  # (attack, known): mean over columns

    def mean(self, known: int) -> float | None:
        """Average over the columns what the strongest attack rebuilt, or None if none was measured."""
        values = [column.value for column in self.columns if column.known == known]
        return float(np.mean(values)) if values else None


def evaluate_feature_inference(
    sent_embeddings: SentEmbeddings,
    columns: ColumnValues,
    *,
    marginals: bool = False,
    known: Sequence[int] | KnownRows = KNOWN,
    draws: int = DRAWS,
    attacks: Mapping[str, FeatureInferenceAttack] | None = None,
    seed: int = 0,
) -> FeatureLeaks:
    """Rebuild every column from embeddings with a few known rows, and measure how much of it was rebuilt.

    Threat model: an honest-but-curious label party that keeps all it receives and knows some rows' columns from elsewhere. No
    guarantee: every figure is a floor. At most 5,000 evenly spread rows are attacked; all rows if the known ones are given.

    Args:
        sent_embeddings: each row's cut embeddings, and the label party's other data.
        columns: the truth, row by row.
        marginals: whether to measure attackers, too, who know no row. They know the distribution of each column of these rows, or
            1,000 of these rows (at most half) as rows of other people, about whom nothing was sent.
        known: numbers of rows that the attacker knows, with a figure per column for each number; or the known rows themselves.
        draws: number of draws of the known rows, at least 1.
        attacks: by name; by default all that can be run with what is given.
        seed: of the known rows and of attacks that draw.

    Raises DataError if shapes do not fit or an embedding is not finite, ConfigError for no draw.
    """
    if attacks is None:
        has_own = sent_embeddings.own_BA is not None
        attacks = {name: row for name, row in FEATURE_INFERENCE_ATTACKS.items() if has_own or not row.own_columns}
    plan = AttackPlan.of(sent_embeddings, columns, marginals=marginals, known=known, draws=draws, attacks=attacks, seed=seed)
    return plan.leaks(PlannedAttack.__call__)


@dataclass(frozen=True, kw_only=True)
class PlannedAttack:
    """One attack, with one draw of the rows that it knows. It does not depend on the other attacks of the plan.

    Args:
        known: number of rows that it knows.
        name: name of the attack.
        row: the attack.
        view: the view that it reads.
        truth: columns of the rows on which it is measured.
        rest_N: places of these rows in the view.
        seed: seed of its draws.
        is_read_later: whether a later attack of the plan reads its guesses.
    """

    known: int
    name: str
    row: FeatureInferenceAttack
    view: FeatureView
    truth: ColumnValues
    rest_N: Tensor
    seed: int
    is_read_later: bool = False

    @property
    def key(self) -> tuple[int, int, str]:
        """Return the key that identifies it within its plan."""
        return self.known, self.seed, self.name

    def __call__(self) -> Reconstruction | str:
        """Rebuild the columns, or say why that was not possible."""
        try:
            rebuilt = self.row.attack(self.view, generator=torch.Generator().manual_seed(self.seed))
        except UNSOLVED as error:
            return f"the attack {self.name}, knowing {self.known} rows, could not be run: {error}"
        if self.is_read_later:
            self.view.guesses[self.row.attack, self.seed] = rebuilt
        return rebuilt


@dataclass(frozen=True, kw_only=True)
class _Round:
    """All attacks that know a given number of rows, or why there are none, and the columns that cannot be measured."""

    known: int
    attacks: Sequence[PlannedAttack] = ()
    reason: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """All attacks on one label party's view, by what the attacker knows.

    Its arguments are those of ``evaluate_feature_inference``.

    ``told`` holds the known rows; ``sent``, ``columns`` and the others belong to the attacked rows.
    """

    sent: SentEmbeddings
    columns: ColumnValues
    marginals: bool
    told: KnownRows
    attacks: Mapping[str, FeatureInferenceAttack]
    seed: int

    @classmethod
    def of(
        cls,
        sent_embeddings: SentEmbeddings,
        columns: ColumnValues,
        *,
        marginals: bool = False,
        known: Sequence[int] | KnownRows = KNOWN,
        draws: int = DRAWS,
        attacks: Mapping[str, FeatureInferenceAttack],
        seed: int = 0,
    ) -> "AttackPlan":
        """Choose the attacked rows and the known rows. Raises what ``evaluate_feature_inference`` raises."""
        embedded = len(sent_embeddings.last_BD)
        rows = len(columns)
        if draws < 1:
            raise ConfigError(f"feature inference: draws={draws}; expected at least 1")
        if embedded != rows:
            raise DataError(f"feature inference: embeddings of {embedded} rows, but columns of {rows}")
        known_draws = known if isinstance(known, Mapping) else draws_of_known(len(columns), known=known, draws=draws, seed=seed)
        rows_C = torch.arange(len(columns)) if known_draws is known else attacked_rows(len(columns))
        return cls(
            sent=sent_embeddings.rows(rows_C),
            columns=columns.rows(rows_C),
            marginals=marginals,
            told=known_draws,
            attacks=attacks,
            seed=seed,
        )

    def leaks(self, reconstruct: Callable[[PlannedAttack], Reconstruction | str], *, groups: int = 1) -> FeatureLeaks:
        """Compare the attacks' guesses with the truth.

        ``groups`` is the number of groups of rows that are attacked, because luck may find something in each.
        """
        measured: list[RebuiltColumn] = []
        unmeasured: list[str] = []
        by_attack: dict[tuple[str, int], float] = {}
        for each in self._rounds():
            if each.reason:
                unmeasured += [each.reason] if each.known or not measured else []
                continue
            tally = _Tally(self.columns, each.known, groups=groups)
            for attack in each.attacks:
                rebuilt = reconstruct(attack)
                if isinstance(rebuilt, str):
                    tally.missing[f"the attack {attack.name}"] = rebuilt
                else:
                    tally.add(attack.name, rebuilt, attack.truth, attack.rest_N)
            tally.missing.update(each.missing)
            columns, missing = tally.result()
            measured += columns
            unmeasured += missing
            by_attack |= {(name, tally.known): value for name, value in tally.means().items()}
        return FeatureLeaks(columns=tuple(measured), not_measured=tuple(dict.fromkeys(unmeasured)), by_attack=by_attack)

    def planned(self) -> Iterator[PlannedAttack]:
        """Yield all attacks, in their order."""
        for each in self._rounds():
            yield from each.attacks

    def _rounds(self) -> Iterator[_Round]:
        view_of = partial(
            FeatureView,
            last_ND=self.sent.last_BD,
            mean_ND=self.sent.mean_BD,
            looks_NE=self.sent.looks_BE,
            looks_at_NL=self.sent.looks_at_BL,
            contrast_NCD=self.sent.contrast_BCD,
            shuffles=self.sent.shuffles,
            own_NA=self.sent.own_BA,
            scaled={},
        )
        every = {name: row for name, row in self.attacks.items() if not row.from_shuffled or self.sent.contrast_BCD is not None}
        without = {name: row for name, row in every.items() if row.knows_no_row}
        possible = {
            name: row
            for name, row in every.items()
            if (row.knows_no_row or row.from_shuffled) and (self.sent.first is not None if row.from_start else self.marginals)
        }
        if possible and len(self.columns) >= 10 and (self.columns.numeric or self.columns.categorical):
            columns, everything_N = self.columns, torch.arange(len(self.columns))
            none_K = everything_N[:0]
            view_by_start = view_of(
                known_K=none_K, columns_K=columns.rows(none_K), first=self.sent.first, marginals=marginals_of(columns)
            )
            if view_by_start.contrast_NCD is not None:
                view_by_start = replace(view_by_start, contrast_NCD=upward(view_by_start.contrast_NCD, columns.numeric_NF))
            all_rows = {name: row for name, row in possible.items() if not row.from_others}
            planned = self._planned(all_rows, 0, view_by_start, columns, everything_N, seed=self.seed)
            missing: dict[str, str] = {}
            by_others = {name: row for name, row in possible.items() if row.from_others}
            # split off the rows that represent other people, whom the attacker knows and about whom nothing was sent
            rows = len(columns)
            order = torch.from_numpy(np.random.default_rng([self.seed, 11]).permutation(rows))
            count = min(OTHERS, rows // 2)
            others_O = order[:count].sort().values
            rest_N = order[count:].sort().values
            if by_others and len(others_O) < LEAST_PEOPLE:
                missing["other people"] = (
                    f"{', '.join(by_others)}: half of {len(columns)} rows stand in for other people; {LEAST_PEOPLE} of these "
                    "are needed"
                )
            elif by_others:
                other_people = columns.rows(others_O)
                rest = view_by_start.of_rows(rest_N, others=other_people, marginals=marginals_of(other_people))
                planned += self._planned(by_others, 0, rest, columns.rows(rest_N), torch.arange(len(rest_N)), seed=self.seed)
            yield _Round(known=0, attacks=planned, missing=missing)
        attacks = {name: row for name, row in every.items() if name not in without}
        for count in self.told:
            yield self._knowing_rows(view_of, attacks, count)

    def _knowing_rows(
        self, view_of: Callable[..., FeatureView], attacks: Mapping[str, FeatureInferenceAttack], count: int
    ) -> _Round:
        """Plan the attacks with this many known rows, in each draw of them."""
        if count < 1:
            return _Round(known=count, reason=NO_ROW_KNOWN)
        if len(self.columns) < count + 10:
            few = f"{count} known rows of {len(self.columns)}: fewer than 10 rows are left for the measurement"
            return _Round(known=count, reason=few)
        if not (self.columns.numeric or self.columns.categorical):
            return _Round(known=count, reason="there is no column to rebuild")
        planned: list[PlannedAttack] = []
        for draw, known_K in enumerate(self.told[count]):
            other_N = torch.ones(len(self.columns), dtype=torch.bool)
            other_N[known_K] = False
            rest_N = other_N.nonzero().flatten()
            view = view_of(known_K=known_K, columns_K=self.columns.rows(known_K))
            planned += self._planned(attacks, count, view, self.columns.rows(rest_N), rest_N, seed=self.seed + draw)
        return _Round(known=count, attacks=planned)

    @staticmethod
    def _planned(
        attacks: Mapping[str, FeatureInferenceAttack],
        known: int,
        view: FeatureView,
        truth: ColumnValues,
        rest_N: Tensor,
        *,
        seed: int,
    ) -> list[PlannedAttack]:
        read_later = [part for row in attacks.values() for part in row.parts]
        return [
            PlannedAttack(
                known=known,
                name=name,
                row=row,
                view=view,
                truth=truth,
                rest_N=rest_N,
                seed=seed,
                is_read_later=row.attack in read_later,
            )
            for name, row in attacks.items()
        ]


def attacked_rows(rows: int) -> Tensor:
    """Choose the attacked rows: at most 5,000, evenly spread."""
    return torch.linspace(0, rows - 1, min(rows, MOST_ROWS), dtype=torch.float64).round().long()


def draws_of_known(rows: int, *, known: Sequence[int] = KNOWN, draws: int = DRAWS, seed: int = 0) -> KnownRows:
    """Draw the rows that an attacker knows, as places among ``attacked_rows``."""

    def drawn(count: int, draw: int) -> Tensor:
        order = np.random.default_rng([seed, 7, count, draw]).permutation(min(rows, MOST_ROWS))
        return torch.from_numpy(order[:count])

    return {count: [drawn(count, draw) for draw in range(draws)] for count in known}


class _Tally:
    """Figures per column, attack and draw."""

    def __init__(self, columns: ColumnValues, known: int, *, groups: int) -> None:
        self.columns, self.known, self.groups = columns, known, groups
        self.values: dict[tuple[str, str], list[float]] = {}  # column, attack
        self.errors: dict[tuple[str, str], list[float]] = {}  # standard errors of the values
        self.accuracies: dict[tuple[str, str], list[float]] = {}
        self.majorities: dict[str, list[float]] = {}
        self.aucs: dict[tuple[str, str], list[float]] = {}  # for the best-ranked category, if it is beyond luck
        self.cosines: dict[tuple[str, str], list[float]] = {}  # mean cosines of vectors
        self.missing: dict[str, str] = {}
        self.judged: dict[int, tuple[ColumnValues, list[_JudgedCategories]]] = {}  # by the truth's id, one per categorical column

    def add(self, attack: str, reconstruction: Reconstruction, truth: ColumnValues, rest_N: Tensor) -> None:
        truth_NF = truth.numeric_NF.double()
        apart_NF = (truth_NF - truth_NF.mean(dim=0)).square()
        square_F = apart_NF.sum(dim=0)
        scale_F = truth_NF.abs().amax(dim=0) if len(truth) else torch.zeros_like(square_F)
        varies = (square_F > 1e-12 * scale_F.clamp(min=1e-12).square() * len(truth)).tolist()
        gain_NF = apart_NF - (truth_NF - reconstruction.numeric_NF.index_select(0, rest_N)).square()
        sums, errors, squares = gain_NF.sum(dim=0).tolist(), _error(gain_NF).tolist(), square_F.tolist()
        for name, places in truth.numbers.items():
            judged = [place for place in places if varies[place]]
            if not judged:
                self.missing[name] = f"column {name!r} is constant on the judged rows: there is nothing to rebuild"
                continue
            total = sum(squares[place] for place in judged)
            error = errors[judged[0]] if len(judged) == 1 else float(_error(gain_NF[:, judged].sum(dim=1)))
            # 1 minus the squared error divided by that of the mean, and its standard error
            self._keep(name, attack, sum(sums[place] for place in judged) / total, error * len(truth) / total)
            if name not in truth.numeric:
                truth_NV, guess_NV = truth.numeric_NF[:, judged].double(), reconstruction.numeric_NF[rest_N][:, judged].double()
                mean_V = truth_NV.mean(dim=0)
                cosine_N = torch.nn.functional.cosine_similarity(truth_NV - mean_V, guess_NV - mean_V, dim=1)
                self.cosines.setdefault((name, attack), []).append(float(cosine_N.mean()))
        if id(truth) not in self.judged:  # the same for all attacks measured on these rows
            self.judged[id(truth)] = truth, [_JudgedCategories.of(truth, g) for g in range(len(truth.categorical))]
        columns = self.judged[id(truth)][1]
        ranked_G = _ranked(reconstruction.scores, reconstruction.codes, rest_N, columns)
        right_NG = (reconstruction.categorical_NG.index_select(0, rest_N) == truth.categorical_NG).double()
        by_majority_NG = torch.stack([column.is_majority_N for column in columns], dim=1) if columns else right_NG
        accuracy_G, error_G = right_NG.mean(dim=0).tolist(), _error(right_NG - by_majority_NG).tolist()
        for g, (name, column) in enumerate(zip(truth.categorical, columns, strict=True)):
            majority = column.majority
            if column.occurring < 2:
                self.missing[name] = f"column {name!r} has one category on the judged rows: there is nothing to rebuild"
                continue
            if column.occurring > self.known > 0:
                self.missing[name] = (
                    f"column {name!r} has {column.occurring} categories and {self.known} rows are known: no attack here can "
                    "guess a category that no known row has, so the figure is low for that reason"
                )
            accuracy = accuracy_G[g]
            value, error = (accuracy - majority) / (1 - majority), error_G[g] / (1 - majority)
            if (ranked := ranked_G.get(g)) is not None:
                self.aucs.setdefault((name, attack), []).append((1 + ranked[0]) / 2)
                value, error = max((value, error), ranked)
            self._keep(name, attack, value, error)
            self.accuracies.setdefault((name, attack), []).append(accuracy)
            self.majorities.setdefault(name, []).append(majority)

    def _keep(self, name: str, attack: str, value: float, error: float) -> None:
        self.values.setdefault((name, attack), []).append(value)
        self.errors.setdefault((name, attack), []).append(error)

    def result(self) -> tuple[list[RebuiltColumn], list[str]]:
        columns = []
        kinds: list[tuple[str, Literal["numeric", "categorical", "vector"]]] = [
            (name, "numeric" if name in self.columns.numeric else "vector") for name in self.columns.numbers
        ]
        kinds += [(name, "categorical") for name in self.columns.categorical]
        for name, kind in kinds:
            by_attack = {attack: values for (column, attack), values in self.values.items() if column == name}
            if not by_attack:
                continue
            best = max(by_attack, key=lambda attack: float(np.mean(by_attack[attack])))
            values = by_attack[best]
            beaten = float(np.mean(values)) <= 0
            majority = float(np.mean(self.majorities[name])) if kind == "categorical" else None
            accuracy = float(np.mean(self.accuracies[name, best])) if kind == "categorical" else None
            columns.append(
                RebuiltColumn(
                    name=name,
                    kind=kind,
                    known=self.known,
                    attack="a guess" if beaten else best,
                    value=0.0 if beaten else float(np.mean(values)),
                    low=0.0 if beaten else min(values),
                    high=0.0 if beaten else max(values),
                    auc=float(np.mean(aucs)) if (aucs := self.aucs.get((name, best))) and not beaten else None,
                    accuracy=majority if beaten else accuracy,
                    majority=majority,
                    cosine=float(np.mean(self.cosines[name, best])) if kind == "vector" and not beaten else None,
                    luck=float(-ndtri(SURE / (self.groups * len(self.values)))) * float(np.mean(self.errors[name, best])),
                )
            )
        return columns, list(self.missing.values())

    def means(self) -> dict[str, float]:
        """Average each attack's figures over the columns, each at least 0."""
        attacks = dict.fromkeys(attack for _, attack in self.values)  # in order, so that the first of equal attacks is shown
        return {
            attack: float(np.mean([max(0.0, float(np.mean(v))) for (_, each), v in self.values.items() if each == attack]))
            for attack in attacks
        }


def _error(gained_N: Tensor) -> Tensor:
    """Compute the standard error of a mean over rows, of each column if there are several."""
    rows = len(gained_N)
    error: Tensor = ((gained_N - gained_N.mean(dim=0)).square().sum(dim=0) / ((rows - 1) * rows)).sqrt()
    return error


@dataclass(frozen=True, kw_only=True)
class _JudgedCategories:
    """A categorical column of the judged rows.

    Args:
        count_C: number of rows of each category.
        by_code_N: the rows, ordered by category.
        is_majority_N: 1 for rows with the most frequent category, 0 for others.
        is_judged_C: whether enough rows have a category, and enough do not.
    """

    count_C: Tensor
    by_code_N: NDArray[np.int64]
    is_majority_N: Tensor
    is_judged_C: Tensor

    @classmethod
    def of(cls, truth: ColumnValues, g: int) -> "_JudgedCategories":
        """Make it from column ``g`` of the truth."""
        code_N = truth.categorical_NG[:, g]
        count_C = torch.bincount(code_N, minlength=truth.categories[g])
        return cls(
            count_C=count_C,
            by_code_N=np.argsort(code_N.numpy(), kind="stable"),
            is_majority_N=(code_N == count_C.argmax()).double(),
            is_judged_C=(count_C >= LEAST_OF_CATEGORY) & (len(code_N) - count_C >= LEAST_OF_CATEGORY),
        )

    @property
    def majority(self) -> float:
        """Return the share of the most frequent category."""
        return float(self.count_C.max()) / len(self.is_majority_N)

    @property
    def occurring(self) -> int:
        """Count the categories that some row has."""
        return int((self.count_C > 0).sum())


def _ranked(
    scores: Sequence[Tensor], codes: Sequence[Tensor], rest_N: Tensor, columns: Sequence[_JudgedCategories]
) -> dict[int, tuple[float, float]]:
    """Find, for each column, the category whose rows are ranked best: its 2 AUC - 1, and its standard error for a guess (Mann
    and Whitney 1947).

    A rare category can be ranked well and never be guessed. A category is beyond luck if chance would reach its figure for the
    column's best category in at most one of a hundred audits; a column without such a category is left out. ``rest_N`` are the
    judged rows.
    """
    best_G: dict[int, tuple[float, float]] = {}
    parts: list[tuple[int, Tensor, NDArray[np.int64]]] = []  # number of a column, scores of its judged categories, their codes
    for g, (score_JM, code_J, column) in enumerate(zip(scores, codes, columns, strict=False)):
        (told_J,) = column.is_judged_C[code_J].nonzero(as_tuple=True)
        if len(told_J):
            parts.append((g, score_JM[told_J], code_J[told_J].numpy()))
        if parts and (g == len(columns) - 1 or sum(part[1].numel() for part in parts) > RANKED_NUMBERS):
            best_G |= _best_ranked(parts, rest_N, columns)
            parts = []
    return best_G


def _best_ranked(
    parts: Sequence[tuple[int, Tensor, NDArray[np.int64]]], rest_N: Tensor, columns: Sequence[_JudgedCategories]
) -> dict[int, tuple[float, float]]:
    """Do the work of ``_ranked`` for several columns at once, because one large sort is faster than many small ones."""
    score_JM = torch.cat([score_JM for _, score_JM, _ in parts])
    code_J = np.concatenate([each for _, _, each in parts])
    column_J = np.repeat([g for g, _, _ in parts], [len(each) for _, _, each in parts])
    # float32 sorts in half the time; centre first, because scores may be small differences from a large mean
    score_JN = (score_JM - score_JM.mean(dim=1, keepdim=True)).float().index_select(1, rest_N).numpy()
    sorted_JN = np.sort(score_JN, axis=1)
    is_ranked_J = sorted_JN[:, 0] < sorted_JN[:, -1]
    has_ties_J = (sorted_JN[:, 1:] == sorted_JN[:, :-1]).any(axis=1)
    best_G = {}
    for g, _, _ in parts:
        (place_J,) = np.nonzero((column_J == g) & is_ranked_J)
        if not len(place_J):
            continue
        column, rows = columns[g], len(rest_N)
        mine_of_C = column.count_C.numpy()
        end_C = np.cumsum(mine_of_C)
        right = np.empty(len(place_J))
        for number, place in enumerate(place_J):
            code, sorted_N = code_J[place], sorted_JN[place]
            mine = score_JN[place].take(column.by_code_N[end_C[code] - mine_of_C[code] : end_C[code]])
            below = int(sorted_N.searchsorted(mine).sum())
            right[number] = below + (sorted_N.searchsorted(mine, side="right").sum() if has_ties_J[place] else below + len(mine))
        mine_J = mine_of_C[code_J[place_J]].astype(np.float64)
        others_J = rows - mine_J
        auc_J = (right / 2 - mine_J * mine_J / 2) / (mine_J * others_J)  # half of the pairs within a category count as right
        gain_J, error_J = 2 * auc_J - 1, np.sqrt((rows + 1) / (3 * mine_J * others_J))
        gain_J = np.where(gain_J > -ndtri(SURE / int(column.is_judged_C.sum())) * error_J, gain_J, -np.inf)
        best = int(gain_J.argmax())
        if gain_J[best] > 0:
            best_G[g] = float(gain_J[best]), float(error_J[best])
    return best_G
