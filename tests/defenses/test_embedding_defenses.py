"""Defences of a feature party's columns: the effect of each on embeddings, compared with slow references; and the
defended bottom.
"""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from tallystick.defenses.chain import NO_EMBEDDING_DEFENSE, embedding_chain
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.defenses.noise import NoiseStream
from tallystick.defenses.quantized_embeddings import QuantizedEmbeddings
from tallystick.errors import ConfigError, DataError
from tallystick.models.tabular import TabularBottom
from tallystick.tables.features import Features, FeatureShape
from tallystick.training.feature_defense import DefendedBottom, embeds_by
from tallystick_experiments.defenses.feature_distance_correlation import FeatureDistanceCorrelation, correlation_of_distances
from tallystick_experiments.defenses.reconstruction_penalty import RIDGE, ReconstructionPenalty, explained

ROWS, WIDTH = 120, 6
NO_CODES = torch.empty(ROWS, 0, dtype=torch.int64)
EVERY = (
    GaussianEmbeddings(epsilon=10.0, delta=1e-6, clip=1.0),
    QuantizedEmbeddings(levels=5),
    FeatureDistanceCorrelation(weight=0.5),
    ReconstructionPenalty(weight=0.5),
)


def drawn(rows=ROWS, width=WIDTH, seed=0):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def noise(seed=0):
    return NoiseStream(bytes(32), step=seed)


class Bottom(nn.Module):
    """A layer over the numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, WIDTH)
        self.width = WIDTH
        with torch.no_grad():
            self.layer.weight.copy_(drawn(WIDTH, 4, seed=3))
            self.layer.bias.zero_()

    def forward(self, features):
        return self.layer(features.numeric_NF)


def features(rows=ROWS):
    codes_NG = torch.randint(0, 3, (rows, 2), generator=torch.Generator().manual_seed(9))
    return Features(numeric_NF=drawn(rows, 4, seed=1), categorical_NG=codes_NG)


def test_noise_is_that_which_the_epsilon_needs_and_half_of_it_is_not_enough():
    """Worst neighbours: both at the clip, on opposite sides. 400,000 draws: a standard error of 0.0008; four of them. Seeded."""
    defense, rows = GaussianEmbeddings(epsilon=1.0, delta=0.1, clip=2.0), 400_000
    sent = [defense(torch.full((rows, 1), side), generator=noise(seed)).squeeze(1) for seed, side in enumerate((2.0, -9.0))]
    sigma = float(sent[0].std())

    def delta(deviation, values):
        loss = [4.0 * value / deviation**2 for value in values]  # log of the densities' ratio of N(2, s) and N(-2, s)
        return float((loss[0] > 1.0).double().mean() - np.exp(1.0) * (loss[1] > 1.0).double().mean())

    assert delta(sigma, sent) == pytest.approx(0.1, abs=0.0032)
    assert [float(each.mean()) for each in sent] == pytest.approx([2.0, -2.0], abs=4 * sigma / rows**0.5)
    halved = [side + (value - side) / 2 for side, value in zip((2.0, -2.0), sent, strict=True)]
    assert delta(sigma / 2, halved) > 0.2


def test_several_releases_of_a_row_cost_more_and_less_than_their_sum():
    defense = GaussianEmbeddings(epsilon=1.0, delta=1e-6, clip=1.0)
    assert defense.over(1) == pytest.approx(1.0, rel=0.02)
    assert 1.5 < defense.over(4) < 4.0


def test_short_rows_stay_and_long_ones_are_clipped_before_the_noise():
    cut_BD = torch.tensor([[0.3, 0.4], [30.0, 40.0], [0.0, 0.0]])
    defense = GaussianEmbeddings(epsilon=100.0, delta=0.9, clip=1.0)
    sent_BD = torch.stack([defense(cut_BD, generator=noise(seed)) for seed in range(4000)]).mean(dim=0)
    error = 5 * 2 * defense.multiplier / 4000**0.5
    torch.testing.assert_close(sent_BD, torch.tensor([[0.3, 0.4], [0.6, 0.8], [0.0, 0.0]]), atol=error, rtol=0)


def test_quantized_coordinates_have_the_levels_and_the_gradient_of_what_is_within_reach():
    defense = QuantizedEmbeddings(levels=5, reach=2.0)
    cut_BD = torch.tensor([[-5.0, -1.1, -0.4], [0.6, 1.7, 9.0]], requires_grad=True)
    sent_BD = defense(cut_BD, generator=noise())
    torch.testing.assert_close(sent_BD, torch.tensor([[-2.0, -1.0, 0.0], [1.0, 2.0, 2.0]]))
    sent_BD.sum().backward()
    assert cut_BD.grad.tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]]
    levels = QuantizedEmbeddings(levels=7, reach=1.0)(drawn(1000), generator=noise())
    assert len(levels.unique()) == 7  # to the bit, because sums with rounded values would show them
    values = QuantizedEmbeddings(levels=3)(drawn(1000) * 3, generator=noise())
    assert set(values.flatten().tolist()) == {-1.0, 0.0, 1.0}


def by_definition(a_BD, b_BD):
    """dCor^2 by its definition, in numpy."""
    centred = []
    for x in (a_BD.double().numpy(), b_BD.double().numpy()):
        d = np.linalg.norm(x[:, None] - x[None], axis=2)
        centred.append(d - d.mean(axis=0) - d.mean(axis=1, keepdims=True) + d.mean())
    a, b = centred
    return (a * b).mean() / np.sqrt((a**2).mean() * (b**2).mean())


def test_the_correlation_of_columns_is_the_definition():
    x_BD, z_BD = drawn(), drawn(seed=2) + drawn()
    codes_BG = (x_BD[:, :1] > 0).long()
    beside_BD = torch.cat([x_BD, nn.functional.one_hot(codes_BG[:, 0], 2).float()], dim=1)
    for width in (1, WIDTH):
        penalty = FeatureDistanceCorrelation(weight=2.0)(z_BD[:, :width], x_BD, codes_BG)
        assert float(penalty) == pytest.approx(2 * by_definition(z_BD[:, :width], beside_BD), rel=1e-4)


def test_the_correlations_gradient_is_that_of_differences_and_finite_where_rows_coincide():
    x_BD, z_BD = drawn(20, 3).double(), drawn(20, 2, seed=2).double()
    defense, codes_BG = FeatureDistanceCorrelation(weight=1.0), torch.empty(20, 0, dtype=torch.int64)
    assert torch.autograd.gradcheck(lambda z: defense(z, x_BD, codes_BG), z_BD.clone().requires_grad_(), atol=1e-5)
    same_BD = torch.cat([z_BD[:10], z_BD[:10]]).requires_grad_()
    defense(same_BD, x_BD, codes_BG).backward()
    assert bool(same_BD.grad.isfinite().all())
    constant_BB = torch.zeros(20, 20).double()
    assert float(correlation_of_distances(constant_BB, constant_BB)) == 0.0


def test_what_a_batch_explains_is_ridge_regressions_share():
    x_BD, wide_BT = drawn(), drawn(width=3, seed=4)
    y_BT = torch.cat([x_BD[:, :1] * 2 + 0.1 * wide_BT[:, :1], wide_BT[:, 1:], torch.ones(ROWS, 1)], dim=1)
    x, y = (each.double().numpy() - each.double().numpy().mean(axis=0) for each in (x_BD, y_BT[:, :3]))
    gram = x.T @ x / ROWS + RIDGE * (x**2).mean() * np.eye(WIDTH)
    fitted = x @ np.linalg.solve(gram, x.T @ y / ROWS)
    shares = [(fitted[:, c] * y[:, c]).mean() / (y[:, c] ** 2).mean() for c in range(3)]
    assert float(explained(x_BD, y_BT)) == pytest.approx(np.mean(shares), rel=1e-4)
    assert float(explained(torch.ones(ROWS, 2), y_BT)) == 0.0
    z_BD = drawn(40, 2).double().requires_grad_()
    defense = ReconstructionPenalty(weight=1.0)
    assert torch.autograd.gradcheck(lambda z: defense(z, drawn(40, 3).double(), NO_CODES[:40]), z_BD, atol=1e-5)


@pytest.mark.parametrize("defense", EVERY, ids=lambda each: each.method)
def test_every_embedding_that_leaves_is_defended_in_training_and_after(defense):
    """The bottom's output differs from what is sent, in evaluation as well. A penalty acts on the backward pass alone."""
    bare, defended = Bottom(), DefendedBottom(Bottom(), embedding_chain([defense]), secret=bytes(32))
    given = features()
    for mode in (True, False):
        defended.train(mode)
        same = torch.equal(bare(given), defended(given))
        assert same == (defense.stage == "embedding penalties")
    assert defended.width == WIDTH


@pytest.mark.parametrize("defense", [each for each in EVERY if each.stage == "embedding penalties"], ids=lambda each: each.method)
def test_a_penaltys_gradient_joins_the_cut_gradient(defense):
    given, gradient_BD = features(), drawn(seed=7) / ROWS
    defended = DefendedBottom(Bottom(), embedding_chain([defense]))
    torch.autograd.backward(defended(given), gradient_BD)
    expected = Bottom()
    cut_BD = expected(given)
    ((cut_BD * gradient_BD).sum() + defense(cut_BD, given.numeric_NF, given.categorical_NG)).backward()
    torch.testing.assert_close(defended.bottom.layer.weight.grad, expected.layer.weight.grad)
    alone = Bottom()
    torch.autograd.backward(alone(given), gradient_BD)
    assert not torch.allclose(alone.layer.weight.grad, expected.layer.weight.grad)


@pytest.mark.parametrize("defense", [each for each in EVERY if each.stage == "embedding penalties"], ids=lambda each: each.method)
def test_training_against_a_penalty_hides_columns(defense):
    """Gradient steps on the penalty alone reduce it. Of 120 rows and 70 regressors some is always explained. Seeded."""
    given, bottom = features(), Bottom()
    optimizer, values = torch.optim.Adam(bottom.parameters(), lr=0.03), []
    for _ in range(60):
        penalty = defense(bottom(given), given.numeric_NF, given.categorical_NG)
        values.append(float(penalty.detach()))
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
    assert values[-1] < 0.9 * values[0]


def test_noise_comes_from_the_secret_and_from_what_it_hides():
    made = embedding_chain([EVERY[0]])
    one, other = DefendedBottom(Bottom(), made, secret=bytes(32)), DefendedBottom(Bottom(), made)
    given = features()
    assert torch.equal(one(given), one(given))
    assert not torch.equal(one(given), other(given))
    again = DefendedBottom(Bottom(), made, secret=bytes(32))  # as a resumed run, a retrained one and a prediction have it
    again.load_state_dict(other.state_dict())
    assert torch.equal(one(given), again(given))
    of_runs = [DefendedBottom(Bottom(), made, secret=bytes(32), run=run) for run in ("a", "b", "a", "a")]
    for place, weights in ((2, "step 3"), (3, "step 4")):
        embeds_by(of_runs[place], weights)
    of_each = [model(given) for model in (one, *of_runs)]
    assert all(bool((some != more).any(dim=1).all()) for some, more in combinations(of_each, 2))
    assert not any(bytes(32) in value.numpy().tobytes() for value in one.state_dict().values())


def test_one_name_of_other_weights_has_other_noise():
    """Two copies of a run folder that are both resumed have the same names of steps, and closed units embed a row alike
    in both.
    """

    class Closed(Bottom):
        def forward(self, features):
            return super().forward(features) * 0

    made, given = embedding_chain([EVERY[0]]), features()
    models = [DefendedBottom(Closed(), made, secret=bytes(32), run="a run") for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    for model in models:
        embeds_by(model, "step 3")
    first_BD, again_BD, before_BD = (model(given) for model in models)
    assert torch.equal(first_BD, again_BD)
    assert torch.equal(first_BD, before_BD)
    with torch.no_grad():
        next(models[2].parameters()).add_(1e-6)
    assert bool((models[2](given) != first_BD).any(dim=1).all())  # a row of six is alike with a chance below 1e-14


def test_a_row_has_one_noise_whatever_rows_stand_beside_it():
    """Two hundred batches of other companions: the same bytes, so their mean is no nearer to the embedding than one."""
    defended, given = DefendedBottom(Bottom(), embedding_chain([EVERY[0]]), secret=bytes(32)), features()
    defended.eval()
    whole_BD = defended(given)
    picked = torch.Generator().manual_seed(1)
    for _ in range(200):
        others_B = 1 + torch.randperm(ROWS - 1, generator=picked)[: ROWS - 21]
        index_B = torch.cat([others_B[:20], torch.zeros(1, dtype=torch.int64), others_B[20:]])
        assert torch.equal(defended(given.rows(index_B))[20], whole_BD[0])
        assert torch.equal(defended(given.rows(index_B)), whole_BD[index_B])


def test_few_rows_are_sent_as_beside_many():
    """One to three rows alone have other last bits, and some cross the noise's grid, which gives another draw."""

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.width = 128
            self.layers = nn.Sequential(nn.Linear(60, 128), nn.ReLU(), nn.Linear(128, 128))

        def forward(self, features):
            return self.layers(features.numeric_NF)

    many = Features(numeric_NF=drawn(600, 60), categorical_NG=torch.empty(600, 0, dtype=torch.int64), who_N=torch.arange(600))
    defended = DefendedBottom(Wide(), embedding_chain([EVERY[0]]), secret=bytes(32), run="a run").eval()
    with torch.no_grad():
        whole_BD = defended(many)
        for size in (1, 2, 3):
            parts = [defended(many.rows(index_B)) for index_B in torch.split(torch.arange(600), size)]
            assert torch.equal(torch.cat(parts), whole_BD)
        assert len(defended(many.rows(torch.arange(0)))) == 0


def test_rows_with_one_embedding_have_independent_noise_and_another_embedding_has_another():
    """Otherwise a row whose columns are known would show all equal rows. 2,000 rows of 6: two are alike with a chance
    of 1e-10.
    """
    defended = DefendedBottom(Bottom(), embedding_chain([EVERY[0]]), secret=bytes(32))
    like = features(1).rows(torch.zeros(2_000, dtype=torch.int64))
    like = replace(like, who_N=torch.arange(2_000))
    sent_BD, made_D = defended(like).detach(), defended.bottom(like)[0].detach()
    assert len(sent_BD.unique(dim=0)) == 2_000
    error = 5 * float(sent_BD.std()) / 2_000**0.5
    torch.testing.assert_close(sent_BD.mean(dim=0), made_D / made_D.norm(), atol=error, rtol=0)
    moved = defended(replace(like, numeric_NF=like.numeric_NF * 0.5 + 1))
    assert bool((moved != sent_BD).any(dim=1).all())


def test_without_a_defence_there_is_nothing_around():
    assert not NO_EMBEDDING_DEFENSE
    assert embedding_chain(EVERY)
    assert NO_EMBEDDING_DEFENSE.penalty(drawn(), drawn(), NO_CODES) is None


@pytest.mark.parametrize("defense", EVERY, ids=lambda each: each.method)
def test_broken_embeddings_are_refused(defense):
    broken_BD = drawn()
    broken_BD[3, 2] = torch.nan
    for cut_BD, says in ((broken_BD, "NaN or infinite"), (torch.ones(3), "have shape")):
        arguments = (cut_BD, drawn(), NO_CODES) if defense.stage == "embedding penalties" else (cut_BD,)
        with pytest.raises(DataError, match=says):
            defense(*arguments, **({} if len(arguments) > 1 else {"generator": noise()}))


@pytest.mark.parametrize("defense", [each for each in EVERY if each.stage == "embedding penalties"], ids=lambda each: each.method)
def test_a_batch_that_tells_nothing_has_no_penalty(defense):
    """One row, or the same embedding for all: nothing to rebuild by, and a gradient that is finite."""
    for cut_BD, rows in ((torch.ones(5, 2), 5), (torch.ones(1, 2), 1)):
        leaf_BD = cut_BD.requires_grad_()
        penalty = defense(leaf_BD, drawn(rows, 2), NO_CODES[:rows])
        assert float(penalty.detach()) == pytest.approx(0.0, abs=1e-12)
        if penalty.requires_grad:
            penalty.backward()
            assert bool(leaf_BD.grad.isfinite().all())


def test_strengths_out_of_range_are_refused():
    for make in (
        lambda: GaussianEmbeddings(epsilon=0.0, delta=1e-6, clip=1.0),
        lambda: GaussianEmbeddings(epsilon=1.0, delta=1e-6, clip=-1.0),
        lambda: GaussianEmbeddings(epsilon=1.0, delta=1e-25, clip=1.0),
        lambda: QuantizedEmbeddings(levels=1),
        lambda: QuantizedEmbeddings(levels=4, reach=0.0),
        lambda: FeatureDistanceCorrelation(weight=0.0),
        lambda: ReconstructionPenalty(weight=float("nan")),
    ):
        with pytest.raises(ConfigError):
            make()


def trained(bottom, rows, *, wanted_B, steps=300):
    """Train it like a top model that first pushes every row down. Return what is sent at the end."""
    optimizer = torch.optim.Adam(bottom.parameters(), lr=1e-2)
    for step in range(steps):
        sent_BD = bottom(rows)
        push_B1 = torch.ones(len(wanted_B), 1) if step < steps // 3 else 0.5 - wanted_B[:, None]
        optimizer.zero_grad()
        (push_B1 * sent_BD).mean().backward()
        optimizer.step()
    return bottom(rows).detach()


@pytest.mark.parametrize("defended", [True, False])
def test_units_that_all_rows_closed_open_again_where_embeddings_are_rounded(defended):
    """Units of a plain ReLU stay closed: after a push that all rows share, every embedding is 0 for ever. Seeded."""
    torch.manual_seed(0)
    shape = FeatureShape(numeric=3, cardinalities=())
    bottom = TabularBottom(shape, embedding_width=4, hidden=(16, 4))
    number_BF = torch.randn(200, 3)
    rows = Features(numeric_NF=number_BF, categorical_NG=torch.zeros(200, 0, dtype=torch.int64))
    wanted_B = (number_BF[:, 0] > 0).float()
    start_BD = bottom(rows).detach()
    rounding = embedding_chain([QuantizedEmbeddings(levels=3)])
    model = DefendedBottom(bottom, rounding, secret=bytes(32)) if defended else bottom
    assert torch.equal(bottom(rows).detach(), start_BD)  # what is embedded stays the same to the bit
    sent_BD = trained(model, rows, wanted_B=wanted_B)
    if not defended:
        assert not sent_BD.any()
        return
    assert sent_BD[wanted_B > 0.5].mean() > 0.9
    assert sent_BD[wanted_B < 0.5].mean() < 0.1
