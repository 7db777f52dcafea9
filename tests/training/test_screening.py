"""Screening: its figures compared with scipy and by chance, what it closes, and the same bits in every way of training."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from lanes import by_turns
from loops import ROWS, Setting, assert_same_bits, features, training, weights_of
from scipy.stats import f_oneway
from test_resume import Unplugged, Until
from test_step import in_process
from test_workers import trained

from tallystick.config.party import FeatureColumns, PartyFile
from tallystick.models.tabular import Columns, TabularBottom
from tallystick.tables.encoder import MANY_COLUMNS, Encoder
from tallystick.tables.features import Features, FeatureShape
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.objective import Supervised
from tallystick.training.screening import BINS, SHADOWS, ColumnFigures, Screening, open_columns
from tallystick.training.workers.team import Team

GENERATOR = torch.Generator().manual_seed(8)
WIDE = FeatureShape(numeric=44, cardinalities=(5, 20), screened=True)
TELLING = 1
SHARES = (1.0, 1.0, 0.3)  # of the label party, then the others, in what determines the label


def drawn_rows(rows, *, numeric, codes=()):
    generator = torch.Generator().manual_seed(3)
    codes_NG = [torch.randint(0, size, (rows,), generator=generator) for size in codes]
    return Features(
        numeric_NF=torch.randn(rows, numeric, generator=generator),
        categorical_NG=torch.stack(codes_NG, dim=1) if codes else torch.empty(rows, 0, dtype=torch.int64),
    )


def figures_of(columns, vector_ND, *, seed=1):
    figures = ColumnFigures(columns, width=vector_ND.shape[1])
    figures.add(columns, vector_ND, torch.Generator().manual_seed(seed))
    return figures.ratios()


def bins_of(columns):
    """Return the same bins, by NumPy: octiles of the numbers and their least one, the first codes and the others together."""
    found = []
    for values_N in columns.numeric_NF.numpy().T:
        ordered = np.sort(values_N)
        edges = ordered[[place * (len(ordered) - 1) // (BINS - 1) for place in range(BINS - 1)]]
        found.append((values_N[:, None] > edges).sum(axis=1))
    return found + [np.minimum(codes_N, BINS - 1) for codes_N in columns.categorical_NG.numpy().T]


def test_a_number_per_row_has_the_f_ratio_of_scipy():
    columns = drawn_rows(500, numeric=3, codes=(4, 30))
    columns.numeric_NF[:, 2] = (columns.numeric_NF[:, 2] > 2).float()  # nearly always 0, and no octile separates its 1
    vector_N = columns.numeric_NF[:, 0] + 5 * columns.numeric_NF[:, 2] + 7 + torch.randn(500, generator=GENERATOR)
    ratio_C, shadows_CS = figures_of(columns, vector_N[:, None])
    for bins_N, ratio in zip(bins_of(columns), ratio_C, strict=True):
        groups = [vector_N.numpy()[bins_N == place].astype(np.float64) for place in np.unique(bins_N)]
        assert ratio.item() == pytest.approx(f_oneway(*groups).statistic, rel=1e-4)
    assert len(np.unique(bins_of(columns)[2])) == 2
    assert shadows_CS.shape == (5, SHADOWS)


def test_vectors_in_batches_have_the_ratio_of_sums_of_squares():
    columns, vector_ND = drawn_rows(300, numeric=2, codes=(3,)), torch.randn(300, 4, generator=GENERATOR)
    figures = ColumnFigures(columns, width=4)
    centred = []
    for index_B in torch.split(torch.arange(300), 64):
        figures.add(columns.rows(index_B), vector_ND[index_B], torch.Generator().manual_seed(1))
        centred.append(vector_ND[index_B] - vector_ND[index_B].mean(dim=0))
    rows_ND = torch.cat(centred).double().numpy()
    for bins_N, ratio in zip(bins_of(columns), figures.ratios()[0], strict=True):
        groups = [rows_ND[bins_N == place] for place in np.unique(bins_N)]
        within = sum(((group - group.mean(axis=0)) ** 2).sum() for group in groups)
        between = (rows_ND**2).sum() - within
        assert ratio.item() == pytest.approx(between / (len(groups) - 1) / (within / (300 - len(groups))), rel=1e-4)


def test_a_column_of_noise_is_below_a_quantile_of_the_shadows_as_often_as_the_quantile_says():
    """80 % and 99 % of 600 columns, within six deviations of both shares: under 1e-8 of all seeds fail."""
    columns = drawn_rows(400, numeric=500, codes=(3,) * 50 + (40,) * 50)
    skewed_ND = torch.randn(400, 5, generator=GENERATOR).exp() * torch.rand(400, 1, generator=GENERATOR)
    ratio_C, shadows_CS = figures_of(columns, skewed_ND)
    for level in (0.8, 0.99):
        found = (ratio_C < torch.quantile(shadows_CS.flatten(), level)).double().mean().item()
        deviation = (level * (1 - level) / 600 * (1 + 1 / SHADOWS)) ** 0.5
        assert abs(found - level) < 6 * deviation, level


def test_only_where_most_are_silent_columns_close_and_never_all_of_them():
    shadows_CS = torch.linspace(0, 1, 300).view(100, 3)
    silent, loud = torch.full((70,), 0.5), torch.full((30,), 2.5)

    def opened(*ratios, shadows=shadows_CS, together=()):
        ratio_C = torch.cat(ratios)
        together_C = torch.zeros(len(ratio_C), dtype=torch.bool)
        together_C[list(together)] = True
        return open_columns(ratio_C, shadows, together_C)

    assert opened(loud, silent).tolist() == [True] * 30 + [False] * 70
    assert opened(loud, silent, together=[40, 80]).nonzero().flatten().tolist() == [*range(30), 40, 80]
    assert opened(loud, loud, silent).all()
    assert opened(loud[:1], silent).nonzero().flatten().tolist() == [0]
    assert opened(loud[:1] - 1, silent).all()  # 1.5 may be chance
    assert opened(silent).all()
    assert opened(torch.zeros(50), shadows=torch.zeros(50, SHADOWS)).all()  # zero gradients say nothing about columns either


def test_a_pairs_figure_is_the_sum_of_products_of_deviations():
    columns, vector_ND = drawn_rows(200, numeric=3, codes=(4,)), torch.randn(200, 20, generator=GENERATOR)
    figures = ColumnFigures(columns, width=20)
    batches, expected = torch.split(torch.arange(200), 64), np.zeros((8, 4, 4))
    edges = [np.sort(values_N)[(len(values_N) - 1) * 4 // 8] for values_N in columns.numeric_NF.numpy().T]
    for index_B in batches:
        figures.add(columns.rows(index_B), vector_ND[index_B], torch.Generator().manual_seed(1))
        rows = columns.rows(index_B)
        above = [rows.numeric_NF[:, place].numpy() > edge for place, edge in enumerate(edges)]
        halves = np.stack([*above, rows.categorical_NG[:, 0].numpy() <= 1], axis=1).astype(np.float64)
        halves -= halves.mean(axis=0)
        centred = (vector_ND[index_B] - vector_ND[index_B].mean(dim=0)).double().numpy()
        for row, vector in zip(halves, centred, strict=True):
            for number in range(8):
                expected[number] += vector[number::8].sum() * np.outer(row, row)
    assert figures.pairs_2ECC[0].numpy() == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_two_columns_whose_product_settles_the_label_tell_together_and_noise_does_not():
    columns = drawn_rows(1000, numeric=60)
    label_N = (columns.numeric_NF[:, 4] * columns.numeric_NF[:, 9] > 0).float()
    figures = ColumnFigures(columns, width=1)
    figures.add(columns, label_N[:, None], torch.Generator().manual_seed(1))
    assert figures.tell_together().nonzero().flatten().tolist() == [4, 9]


class Noisy(Setting):
    """Both parties have many columns of noise and few useful ones, and may close these."""

    def __post_init__(self):
        super().__post_init__()
        generator = torch.Generator().manual_seed(6)
        self.shapes, self.own_shape = dict.fromkeys(self.parties, WIDE), WIDE
        self.columns = {name: features(WIDE, generator) for name in self.parties}
        self.own_columns = features(WIDE, generator)
        told = [self.own_columns, *self.columns.values()]
        score_N = sum(share * columns.numeric_NF[:, :TELLING].sum(dim=1) for columns, share in zip(told, SHARES, strict=False))
        target_N = {"binary": (score_N > 0).float(), "multiclass": (score_N > -1).long() + (score_N > 1).long()}[self.kind]
        self.objective = Supervised(self.kind, target_N, torch.rand(ROWS, generator=generator) + 0.5 if self.weights else None)
        self.settled = []
        self.screening = Screening(seed=4, settled=self.settled.append)


def gates_of(modules):
    bottoms, label = modules
    return [bottom.columns.gates for bottom in (*bottoms.values(), label.bottom)]


@pytest.mark.parametrize("more", [{}, {"parties": ("club", "shop"), "kind": "multiclass", "weights": True}], ids=["two", "three"])
def test_one_process_closes_the_same_columns_to_the_same_bits(more, tmp_path):
    setting = Noisy(**more)
    networked, _ = setting.train(training(), tmp_path)
    assert_same_bits(weights_of(networked), weights_of(in_process(setting, training())))
    own = gates_of(networked)[-1]
    assert own[:TELLING].all()
    assert own.sum() < 10
    assert len(setting.settled) == 2 * len(gates_of(networked))


def test_closed_columns_have_no_say(tmp_path):
    setting = Noisy()
    (bottoms, label), _ = setting.train(training(), tmp_path)
    bottom = bottoms["shop"]
    assert bottom.columns.gates[:TELLING].all()
    assert bottom.columns.gates.sum() < 10
    rows = setting.columns["shop"]
    other = replace(rows, numeric_NF=torch.where(bottom.columns.gates[: WIDE.numeric].bool(), rows.numeric_NF, 9.0))
    assert torch.equal(bottom(rows), bottom(other))
    assert label.bottom.columns.gates.min() == 0


@pytest.mark.parametrize(("sends", "mode"), by_turns([6, 25, 10], [{}, {"mode": "pipelined", "staleness": 2}]), ids=str)
def test_a_training_that_is_cut_while_it_screens_goes_on_to_the_same_bits(mode, sends, tmp_path):
    setting, how = Noisy(validation=40), training(**mode)
    whole, _ = setting.train(how, tmp_path / "whole")
    with pytest.raises(Unplugged):
        setting.train(how, tmp_path / "cut", wrap=lambda channel: Until(channel, sends))
    common = max(set.intersection(*(set(CheckpointStore(tmp_path / "cut" / name).steps()) for name in ("bank", "shop"))))
    assert common > 0
    resumed, _ = setting.train(how, tmp_path / "cut", resume_from=common)
    assert_same_bits(weights_of(resumed), weights_of(whole))


def test_a_refit_screens_again_with_its_own_rows(tmp_path):
    setting = Noisy(validation=80)
    setting.train(training(patience=1, epochs=4), tmp_path, refit=True)
    assert len(setting.settled) == 4  # each party, in either training


@pytest.mark.long
def test_workers_read_which_columns_are_open(tmp_path):
    """In one process and in two. The sums of gradients have another order, so the last bits differ."""
    setting = Noisy()
    alone, _ = setting.train(training(epochs=2), tmp_path / "alone")
    shared = trained(Team, setting, training(epochs=2), {"shop": 2}, tmp_path / "shared")
    one = weights_of(alone)
    assert one["shop/columns.gates"].min() == 0
    assert all(torch.equal(one[name], shared[name]) for name in one if name.endswith("gates"))
    assert max((one[name] - shared[name]).abs().max() for name in one) < 1e-3


def test_what_may_not_be_screened_is_as_it_was():
    shape = replace(WIDE, screened=False)
    assert not [name for name in TabularBottom(shape, embedding_width=2, hidden=(4,)).state_dict() if "gates" in name]
    rows = drawn_rows(20, numeric=44, codes=(5, 20))
    torch.manual_seed(1)
    plain = Columns(shape, embedding_width=2)
    torch.manual_seed(1)
    assert torch.equal(plain(rows), Columns(WIDE, embedding_width=2)(rows))


def test_an_encoder_says_whether_columns_may_be_closed():
    frame = pl.DataFrame({f"n{number}": np.random.default_rng(number).normal(size=50) for number in range(MANY_COLUMNS)})
    names, rows = tuple(frame.columns), np.arange(50)
    every, fewer = FeatureColumns(numeric=names), FeatureColumns(numeric=names[1:])
    screening = Encoder.fit(frame, every, rows).screening()
    assert screening.feature_shape.screened
    assert "encoding.screening = auto" in screening.notes[-1]
    assert not Encoder.fit(frame, fewer, rows).screening().feature_shape.screened

    def of_party(*, screens, encoding="auto"):
        values = {"party": "bank", "table": {"path": "t.csv"}, "keys": {"id": "n0"}, "features": {"numeric": list(names)}}
        party = PartyFile.model_validate(values | {"encoding": {"screening": encoding}})
        return Encoder.of_party(frame, party, rows, numbers="plain", screens=screens).feature_shape.screened

    assert of_party(screens=True)
    assert not of_party(screens=False)
    assert not of_party(screens=True, encoding="off")
