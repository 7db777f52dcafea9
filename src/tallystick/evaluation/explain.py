"""Explain one score: Shapley values of the own columns, one by one, and of each partner's embedding as a whole.

Lundberg and Lee (2017), "A unified approach to interpreting model predictions", with the interventional game of Janzing, Minorics
and Blöbaum (2020): a coalition S of columns and embeddings has the value v(S), the mean logit over reference rows whose values in
S are replaced by the row's own. All other values come from the reference row, so a combination may be one that no row has. Up to
EXACT_PLAYERS players all coalitions are tried. With more players, orders are drawn at random (Štrumbelj and Kononenko 2014). In
both cases the contributions add up exactly to the score's logit minus the reference's mean.

Nothing crosses: the embeddings that arrived for the score are used again.

Shapes: P players, R reference rows, M mixed rows, D cut width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import factorial

import torch
from torch import Tensor

from tallystick.evaluation.importance import ColumnPlace
from tallystick.tables.features import Features

EXACT_PLAYERS = 10
ORDERS = 200  # orders drawn beyond that, at least one for each reference row, and each also backwards
PASS = 1 << 14

Logits = Callable[[Sequence[Tensor], Features], Tensor]
"""A function from cut embeddings and own columns to a label model's calibrated logits (M,)."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row as the model's input, or several reference rows."""

    own: Features
    cuts: Sequence[Tensor]  # (rows, D) for each feature party


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Explanation of a logit: what moved it away from the reference rows' mean.

    Args:
        logit: logit of the row.
        base: mean logit of the reference rows.
        contributions: contribution of each player; they add up to ``logit - base``.
        deviations: standard errors of the contributions, if orders were drawn; empty if all coalitions were tried.
    """

    logit: float
    base: float
    contributions: dict[str, float]
    deviations: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Game:
    """The players: own columns by their places, and feature parties by name."""

    columns: Sequence[ColumnPlace]
    parties: Sequence[str]

    @property
    def players(self) -> list[str]:
        """Return the players' names, own columns first."""
        return [each.name for each in self.columns] + [f"embedding of {name}" for name in self.parties]

    def mixed(self, row: Row, reference: Row, from_row_MP: Tensor) -> Row:
        """Mix M rows: each player has the row's value if ``from_row_MP`` says so, else the value of the matching
        reference row.
        """
        numeric, codes = reference.own.numeric_NF.clone(), reference.own.categorical_NG.clone()
        for player, place in enumerate(self.columns):
            joined = from_row_MP[:, player]
            for values, own, columns in (
                (numeric, row.own.numeric_NF, place.numeric),
                (codes, row.own.categorical_NG, place.categorical),
            ):
                for column in columns:
                    values[joined, column] = own[0, column]
        cuts = [
            torch.where(from_row_MP[:, len(self.columns) + number, None], own, theirs)
            for number, (own, theirs) in enumerate(zip(row.cuts, reference.cuts, strict=True))
        ]
        return Row(own=Features(numeric_NF=numeric, categorical_NG=codes), cuts=cuts)


@torch.no_grad()
def explain(model: Logits, game: Game, row: Row, reference: Row, *, generator: torch.Generator) -> Explanation:
    """Explain one row.

    Args:
        model: returns logits.
        game: the players.
        row: the row whose score is explained.
        reference: R rows to compare it with.
        generator: draws orders if there are too many players for all coalitions.
    """
    logit, base_R = model(row.cuts, row.own).double(), model(reference.cuts, reference.own).double()
    values_P, deviations_P = (
        (_of_all_coalitions(model, game, row, reference), None)
        if len(game.players) <= EXACT_PLAYERS
        else _of_drawn_orders(model, game, row, reference, generator)
    )
    return Explanation(
        logit=float(logit),
        base=float(base_R.mean()),
        contributions=dict(zip(game.players, values_P.tolist(), strict=True)),
        deviations=dict(zip(game.players, deviations_P.tolist(), strict=True)) if deviations_P is not None else {},
    )


def _of_all_coalitions(model: Logits, game: Game, row: Row, reference: Row) -> Tensor:
    """Average, by Shapley's formula over sizes, the gain that a player adds to a coalition of each size."""
    players, rows = len(game.players), len(reference.own)
    masks_SP = ((torch.arange(1 << players)[:, None] >> torch.arange(players)) & 1).bool()
    which = torch.arange(rows).repeat(len(masks_SP))
    worth_S = _logits(model, game, row, reference, which, masks_SP.repeat_interleave(rows, dim=0)).view(-1, rows).mean(dim=1)
    sizes_S = masks_SP.sum(dim=1)
    share = torch.tensor([factorial(s) * factorial(players - s - 1) / factorial(players) for s in range(players)])
    gains = []
    for player in range(players):
        without_S = ~masks_SP[:, player]
        gain = worth_S[torch.arange(len(masks_SP))[without_S] | (1 << player)] - worth_S[without_S]
        gains.append((share.double()[sizes_S[without_S]] * gain).sum())
    return torch.stack(gains) if gains else torch.empty(0, dtype=torch.float64)


def _of_drawn_orders(model: Logits, game: Game, row: Row, reference: Row, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Use each reference row in equally many orders, so that all contributions add up to the row's difference from their mean."""
    players, rows = len(game.players), len(reference.own)
    orders = -(-ORDERS // rows) * rows
    pairs = []
    for number in range(orders):
        order = torch.randperm(players, generator=generator)
        both = torch.zeros(players, dtype=torch.float64)
        for turn in (order, order.flip(0)):
            steps_QP = torch.zeros(players + 1, players, dtype=torch.bool)
            for step, player in enumerate(turn.tolist()):
                steps_QP[step + 1 :, player] = True
            which = torch.full((players + 1,), number % rows)
            both[turn] += _logits(model, game, row, reference, which, steps_QP).diff() / 2
        pairs.append(both)
    values = torch.stack(pairs)
    return values.mean(dim=0), values.std(dim=0) / orders**0.5


def _logits(model: Logits, game: Game, row: Row, reference: Row, which_M: Tensor, from_row_MP: Tensor) -> Tensor:
    parts = []
    for start in range(0, len(which_M), PASS):
        which, mask = which_M[start : start + PASS], from_row_MP[start : start + PASS]
        beside = Row(own=reference.own.rows(which), cuts=[cut.index_select(0, which) for cut in reference.cuts])
        mixed = game.mixed(row, beside, mask)
        parts.append(model(mixed.cuts, mixed.own).double())
    return torch.cat(parts)
