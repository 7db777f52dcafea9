"""Compare explanations with Shapley's definition by all orders, a linear model's closed form, and the axioms."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tallystick.evaluation import explain as explaining
from tallystick.evaluation.explain import Game, Row, explain
from tallystick.evaluation.importance import ColumnPlace
from tallystick.tables.features import Features

GAME = Game(
    columns=[
        ColumnPlace(name="age", numeric=(0, 2)),  # a number with its indicator
        ColumnPlace(name="income", numeric=(1,)),
        ColumnPlace(name="city", categorical=(0,)),
        ColumnPlace(name="unread", numeric=(3,)),
    ],
    parties=["shop"],
)
WEIGHTS = torch.tensor([0.5, -1.0, 2.0, 0.0])
TABLE, CUT = torch.tensor([0.0, 1.0, -2.0]), torch.tensor([1.0, -0.5])


def linear(cuts: Sequence[Tensor], own: Features) -> Tensor:
    return own.numeric_NF @ WEIGHTS + TABLE[own.categorical_NG[:, 0]] + cuts[0] @ CUT


def bent(cuts: Sequence[Tensor], own: Features) -> Tensor:
    """With products of players, so that the gain by one depends on the others."""
    return (
        linear(cuts, own)
        + 3 * torch.sin(own.numeric_NF[:, 0] * cuts[0][:, 0])
        + own.numeric_NF[:, 1] * (own.categorical_NG[:, 0] == 1)
    )


def rows(count: int, seed: int) -> Row:
    drawn = torch.Generator().manual_seed(seed)
    own = Features(
        numeric_NF=torch.randn(count, 4, generator=drawn), categorical_NG=torch.randint(3, (count, 1), generator=drawn)
    )
    return Row(own=own, cuts=[torch.randn(count, 2, generator=drawn)])


def explained(model: explaining.Logits, seed: int = 0) -> explaining.Explanation:
    return explain(model, GAME, rows(1, seed), rows(12, seed + 100), generator=torch.Generator().manual_seed(seed))


def by_definition(model: explaining.Logits, seed: int = 0) -> list[float]:
    """Return the mean over all orders of what each player adds in its turn."""
    row, reference = rows(1, seed), rows(12, seed + 100)

    def worth(players: set[int]) -> float:
        mask = torch.tensor([[player in players for player in range(5)]] * 12)
        mixed = GAME.mixed(row, reference, mask)
        return float(model(mixed.cuts, mixed.own).double().mean())

    found = [0.0] * 5
    for order in itertools.permutations(range(5)):
        for turn, player in enumerate(order):
            found[player] += (worth({*order[: turn + 1]}) - worth({*order[:turn]})) / 120
    return found


def test_all_coalitions_give_shapleys_definition() -> None:
    assert list(explained(bent).contributions.values()) == pytest.approx(by_definition(bent), abs=1e-5)
    assert explained(bent).deviations == {}


def test_of_a_linear_model_a_contribution_is_its_weight_times_the_distance_from_the_mean() -> None:
    row, reference, found = rows(1, 0), rows(12, 100), explained(linear).contributions
    away = row.own.numeric_NF[0] - reference.own.numeric_NF.mean(dim=0)
    assert found["age"] == pytest.approx(float(away[0] * 0.5 + away[2] * 2), abs=1e-5)
    assert found["income"] == pytest.approx(float(-away[1]), abs=1e-5)
    assert found["city"] == pytest.approx(
        float(TABLE[row.own.categorical_NG[0, 0]] - TABLE[reference.own.categorical_NG[:, 0]].mean()), abs=1e-5
    )
    assert found["embedding of shop"] == pytest.approx(float((row.cuts[0][0] - reference.cuts[0].mean(dim=0)) @ CUT), abs=1e-5)


@pytest.mark.parametrize("exact", [10, 0])
@pytest.mark.parametrize("seed", range(3))
def test_contributions_add_up_and_a_column_that_is_not_read_adds_nothing(
    monkeypatch: pytest.MonkeyPatch, exact: int, seed: int
) -> None:
    monkeypatch.setattr(explaining, "EXACT_PLAYERS", exact)
    found = explained(bent, seed)
    assert sum(found.contributions.values()) == pytest.approx(found.logit - found.base, abs=1e-5)
    assert found.logit == pytest.approx(float(bent(rows(1, seed).cuts, rows(1, seed).own)), abs=1e-6)
    assert found.contributions["unread"] == pytest.approx(0, abs=1e-6)


def test_drawn_orders_come_near_and_say_how_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five players, each within five standard errors, except with a chance of 3 in a million; the draws are the same in
    each run.
    """
    exact = explained(bent).contributions
    monkeypatch.setattr(explaining, "EXACT_PLAYERS", 0)
    drawn = explained(bent)
    for name, value in exact.items():
        assert abs(drawn.contributions[name] - value) <= 5 * drawn.deviations[name] + 1e-6, name
    assert max(drawn.deviations.values()) < 0.5
