"""How well each column can be rebuilt: every attack on a label party's view, against columns that only their owner has.

Shapes: N rows, K known rows, F numeric columns, G categorical columns.

The feature party runs it, at home: it sent the embeddings and has the columns, so nothing has to cross for it. What it cannot
know are the label party's own columns, which would help: a simulation that has both sides measures that too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from tallystick.attacks.feature_inference.marginals import marginals_of
from tallystick.attacks.feature_inference.registry import FEATURE_INFERENCE_ATTACKS, FeatureInferenceAttack
from tallystick.attacks.feature_inference.simulator import LEAST_PEOPLE
from tallystick.attacks.feature_inference.view import ColumnValues, FeatureView, FirstBatch, Reconstruction, SentEmbeddings
from tallystick.attacks.findings import RebuiltColumn
from tallystick.attacks.matrix import UNSOLVED
from tallystick.errors import ConfigError, DataError

KNOWN = (20, 200)
DRAWS = 3
MOST_ROWS = 5000
OTHERS = 1000
SURE = 0.01  # chance that some column is said to come back where embeddings have nothing to do with columns
Told: TypeAlias = Mapping[int, Sequence[Tensor]]
"""By number of known rows, which rows these are: int64 (K,), one tensor per draw."""


@dataclass(frozen=True, kw_only=True)
class FeatureLeaks:
    """All columns, and what could not be measured, in sentences."""

    columns: tuple[RebuiltColumn, ...]
    not_measured: tuple[str, ...] = ()
    by_attack: Mapping[tuple[str, int], float] = field(default_factory=dict)  # (attack, known): mean over columns

    def mean(self, known: int) -> float | None:
        """Mean over the columns of what the strongest attack rebuilt; None if none was measured."""
        values = [column.value for column in self.columns if column.known == known]
        return float(np.mean(values)) if values else None


def evaluate_feature_inference(
    sent: SentEmbeddings,
    columns: ColumnValues,
    *,
    own_NA: Tensor | None = None,
    first: FirstBatch | None = None,
    marginals: bool = False,
    known: Sequence[int] | Told = KNOWN,
    draws: int = DRAWS,
    attacks: Mapping[str, FeatureInferenceAttack] | None = None,
    seed: int = 0,
) -> FeatureLeaks:
    """Rebuild every column from embeddings with a few known rows, and say how much of it came out.

    Threat model: an honest-but-curious label party that keeps all it receives and knows some rows' columns from elsewhere. No
    guarantee: every figure is a floor. Of more than 5,000 rows, 5,000 evenly spread ones are attacked, unless it is said which
    are known: then all are.

    Args:
        sent: each row's cut embeddings.
        columns: the truth, row by row.
        own_NA: the label party's own columns, where they are at hand.
        first: the first batch and the bottom model that embedded it, as far as the contract tells; its attacks know no row.
        marginals: whether attackers are measured, too, who know no row, but how each column of these rows is distributed, or
            1,000 of these rows (at most half) as other people's, of whom nothing was sent.
        known: how many rows the attacker knows, one figure per column for each; or which.
        draws: of the known rows, at least 1.
        attacks: by name; by default all that can be run with what is given.
        seed: of the known rows and of attacks that draw.

    Raises DataError if shapes do not fit or an embedding is not finite, ConfigError for no draw.
    """
    _check(draws, len(sent.last_BD), len(columns))
    if attacks is None:
        attacks = {name: row for name, row in FEATURE_INFERENCE_ATTACKS.items() if own_NA is not None or not row.own_columns}
    told = known if isinstance(known, Mapping) else draws_of_known(len(columns), known=known, draws=draws, seed=seed)
    chosen = torch.arange(len(columns)) if told is known else attacked_rows(len(columns))
    sent, columns = sent.rows(chosen), columns.rows(chosen)
    first = _among(first, chosen) if first is not None else None
    view_of = partial(
        FeatureView,
        last_ND=sent.last_BD,
        mean_ND=sent.mean_BD,
        looks_NE=sent.looks_BE,
        looks_at_NL=sent.looks_at_BL,
        own_NA=None if own_NA is None else own_NA[chosen],
    )
    attacked = _Attacks(view_of=view_of, columns=columns, seed=seed)
    without = {name: row for name, row in attacks.items() if row.knows_no_row}
    attacked.knowing_no_row(
        {name: row for name, row in without.items() if (first is not None if row.from_start else marginals)}, first
    )
    attacked.knowing_rows({name: row for name, row in attacks.items() if name not in without}, told)
    return attacked.leaks()


@dataclass(kw_only=True)
class _Attacks:
    """All attacks on one label party's view, by what the attacker knows; gathers what they found."""

    view_of: Callable[..., FeatureView]
    columns: ColumnValues
    seed: int
    measured: list[RebuiltColumn] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)
    by_attack: dict[tuple[str, int], float] = field(default_factory=dict)
    scaled: dict[tuple[str, bool], Tensor] = field(default_factory=dict)

    def knowing_no_row(self, attacks: Mapping[str, FeatureInferenceAttack], first: FirstBatch | None) -> None:
        """Attack by starting weights, or by how each column is distributed."""
        columns = self.columns
        if not attacks or len(columns) < 10 or not (columns.numeric or columns.categorical):
            return
        tally, everything_N = _Tally(columns, 0), torch.arange(len(columns))
        none_K = everything_N[:0]
        view = self.view_of(known_K=none_K, columns_K=columns.rows(none_K), first=first, marginals=marginals_of(columns))
        all_rows = {name: row for name, row in attacks.items() if not row.from_others}
        tally.attacked(view, all_rows, columns, everything_N, seed=self.seed)
        self.scaled = view.scaled
        by_others = {name: row for name, row in attacks.items() if row.from_others}
        others_O, rest_N = _other_people(len(columns), seed=self.seed)
        if by_others and len(others_O) < LEAST_PEOPLE:
            tally.missing["other people"] = (
                f"{', '.join(by_others)}: half of {len(columns)} rows play other people; {LEAST_PEOPLE} of these are needed"
            )
        elif by_others:
            others = columns.rows(others_O)
            rest = view.of_rows(rest_N, others=others, marginals=marginals_of(others))
            tally.attacked(rest, by_others, columns.rows(rest_N), torch.arange(len(rest_N)), seed=self.seed)
        self._keep(tally)

    def knowing_rows(self, attacks: Mapping[str, FeatureInferenceAttack], told: Told) -> None:
        """Attack with so many known rows, in each draw of them."""
        columns = self.columns
        for count in told:
            if not count and self.measured:
                continue
            if reason := _cannot(count, columns):
                self.unmeasured.append(reason)
                continue
            tally = _Tally(columns, count)
            for draw, known_K in enumerate(told[count]):
                rest_N = _others(known_K, len(columns))
                view = self.view_of(known_K=known_K, columns_K=columns.rows(known_K))
                view.scaled.update(self.scaled)
                tally.attacked(view, attacks, columns.rows(rest_N), rest_N, seed=self.seed + draw)
                self.scaled = view.scaled
            self._keep(tally)

    def _keep(self, tally: "_Tally") -> None:
        found, missing = tally.result()
        self.measured += found
        self.unmeasured += missing
        self.by_attack |= {(name, tally.known): value for name, value in tally.means().items()}

    def leaks(self) -> FeatureLeaks:
        """What was found."""
        unmeasured = tuple(dict.fromkeys(self.unmeasured))
        return FeatureLeaks(columns=tuple(self.measured), not_measured=unmeasured, by_attack=self.by_attack)


def _check(draws: int, embedded: int, rows: int) -> None:
    if draws < 1:
        raise ConfigError(f"feature inference: draws={draws}; expected at least 1")
    if embedded != rows:
        raise DataError(f"feature inference: embeddings of {embedded} rows, but columns of {rows}")


def _cannot(count: int, columns: ColumnValues) -> str:
    if count < 1:
        return "without a known row no attack here can be run: nothing is known of what an attacker without one finds"
    if len(columns) < count + 10:
        return f"{count} known rows of {len(columns)}: fewer than 10 are left to judge by"
    if not (columns.numeric or columns.categorical):
        return "there is no column to rebuild"
    return ""


def attacked_rows(rows: int) -> Tensor:
    """Which of so many rows are attacked: at most 5,000, evenly spread."""
    return torch.linspace(0, rows - 1, min(rows, MOST_ROWS), dtype=torch.float64).round().long()


def draws_of_known(rows: int, *, known: Sequence[int] = KNOWN, draws: int = DRAWS, seed: int = 0) -> Told:
    """Draw the rows that an attacker knows, as places among ``attacked_rows``."""

    def drawn(count: int, draw: int) -> Tensor:
        order = np.random.default_rng([seed, 7, count, draw]).permutation(min(rows, MOST_ROWS))
        return torch.from_numpy(order[:count])

    return {count: [drawn(count, draw) for draw in range(draws)] for count in known}


def _among(first: FirstBatch, chosen: Tensor) -> FirstBatch | None:
    """The same batch's rows that are among the chosen ones; None if none is."""
    place_N = torch.full((int(max(chosen.max(), first.rows_B.max())) + 1,), -1, dtype=torch.int64)
    place_N[chosen] = torch.arange(len(chosen))
    (kept,) = (place_N[first.rows_B] >= 0).nonzero(as_tuple=True)
    return replace(first, rows_B=place_N[first.rows_B[kept]], cut_BD=first.cut_BD[kept]) if len(kept) else None


def _other_people(rows: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Which rows play other people, whom the attacker knows and nobody sent, and which are left."""
    order = torch.from_numpy(np.random.default_rng([seed, 11]).permutation(rows))
    count = min(OTHERS, rows // 2)
    return order[:count].sort().values, order[count:].sort().values


def _others(known_K: Tensor, rows: int) -> Tensor:
    other_N = torch.ones(rows, dtype=torch.bool)
    other_N[known_K] = False
    return other_N.nonzero().flatten()


class _Tally:
    """Figures per column, attack and draw."""

    def __init__(self, columns: ColumnValues, known: int) -> None:
        self.columns, self.known = columns, known
        self.values: dict[tuple[str, str], list[float]] = {}  # column, attack
        self.errors: dict[tuple[str, str], list[float]] = {}  # standard errors of the values
        self.accuracies: dict[tuple[str, str], list[float]] = {}
        self.majorities: dict[str, list[float]] = {}
        self.missing: dict[str, str] = {}

    def attacked(
        self, view: FeatureView, attacks: Mapping[str, FeatureInferenceAttack], truth: ColumnValues, rest_N: Tensor, *, seed: int
    ) -> None:
        """Run all attacks on one draw of the known rows; the truth is of the rest."""
        for name, row in attacks.items():
            try:
                found = row.attack(view, generator=torch.Generator().manual_seed(seed))
            except UNSOLVED as error:
                self.missing[f"the attack {name}"] = f"the attack {name}, knowing {self.known} rows, could not be run: {error}"
                continue
            self.add(name, found, truth, rest_N)

    def add(self, attack: str, found: Reconstruction, truth: ColumnValues, rest_N: Tensor) -> None:
        for f, name in enumerate(truth.numeric):
            told = _r_squared(truth.numeric_NF[:, f].double(), found.numeric_NF[rest_N, f])
            if told is None:
                self.missing[name] = f"column {name!r} is constant on the rows that are judged: there is nothing to rebuild"
            else:
                self._keep(name, attack, *told)
        for g, name in enumerate(truth.categorical):
            code_N = truth.categorical_NG[:, g]
            count_C = torch.bincount(code_N, minlength=truth.categories[g])
            majority = float(count_C.max()) / len(code_N)
            occurring = int((count_C > 0).sum())
            if occurring < 2:
                self.missing[name] = f"column {name!r} has one category on the rows that are judged: there is nothing to rebuild"
                continue
            if occurring > self.known > 0:
                self.missing[name] = (
                    f"column {name!r} has {occurring} categories and {self.known} rows are known: those that none of them has "
                    "cannot be guessed by any attack here, so its figure is low for that reason"
                )
            right_N = (found.categorical_NG[rest_N, g] == code_N).double()
            accuracy, gained_N = float(right_N.mean()), right_N - (code_N == count_C.argmax()).double()
            self._keep(name, attack, (accuracy - majority) / (1 - majority), _error(gained_N) / (1 - majority))
            self.accuracies.setdefault((name, attack), []).append(accuracy)
            self.majorities.setdefault(name, []).append(majority)

    def _keep(self, name: str, attack: str, value: float, error: float) -> None:
        self.values.setdefault((name, attack), []).append(value)
        self.errors.setdefault((name, attack), []).append(error)

    def result(self) -> tuple[list[RebuiltColumn], list[str]]:
        found = []
        kinds: list[tuple[str, Literal["numeric", "categorical"]]] = [(name, "numeric") for name in self.columns.numeric]
        kinds += [(name, "categorical") for name in self.columns.categorical]
        for name, kind in kinds:
            tried = {attack: values for (column, attack), values in self.values.items() if column == name}
            if not tried:
                continue
            best = max(tried, key=lambda attack: float(np.mean(tried[attack])))
            values = tried[best]
            beaten = float(np.mean(values)) <= 0
            majority = float(np.mean(self.majorities[name])) if kind == "categorical" else None
            accuracy = float(np.mean(self.accuracies[name, best])) if kind == "categorical" else None
            found.append(
                RebuiltColumn(
                    name=name,
                    kind=kind,
                    known=self.known,
                    attack="a guess" if beaten else best,
                    value=0.0 if beaten else float(np.mean(values)),
                    low=0.0 if beaten else min(values),
                    high=0.0 if beaten else max(values),
                    accuracy=majority if beaten else accuracy,
                    majority=majority,
                    luck=float(-ndtri(SURE / len(self.values))) * float(np.mean(self.errors[name, best])),
                )
            )
        return found, list(self.missing.values())

    def means(self) -> dict[str, float]:
        """Per attack the mean over columns, each at least 0."""
        attacks = dict.fromkeys(attack for _, attack in self.values)  # in their order: of a tie the first is shown
        return {
            attack: float(np.mean([max(0.0, float(np.mean(v))) for (_, each), v in self.values.items() if each == attack]))
            for attack in attacks
        }


def _error(gained_N: Tensor) -> float:
    """The standard error of a mean over rows."""
    error: float = float(gained_N.std()) / len(gained_N) ** 0.5
    return error


def _r_squared(truth_N: Tensor, guess_N: Tensor) -> tuple[float, float] | None:
    """1 less the squared error over that of the mean, and its standard error; None for a constant."""
    total = float((truth_N - truth_N.mean()).square().sum())
    scale = float(truth_N.abs().max()) if len(truth_N) else 0.0
    if total <= 1e-12 * max(scale, 1e-12) ** 2 * len(truth_N):
        return None
    gained_N = (truth_N - truth_N.mean()).square() - (truth_N - guess_N).square()
    return float(gained_N.sum()) / total, _error(gained_N) * len(truth_N) / total
