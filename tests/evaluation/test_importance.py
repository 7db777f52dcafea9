"""Column importance across the cut: the joined model's values, what crosses, and what a peer may not send."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest
import torch

from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS
from tallystick.attacks.feature_inference.evaluate import evaluate_feature_inference
from tallystick.attacks.feature_inference.view import ColumnValues, SentEmbeddings
from tallystick.config.party import FeatureColumns
from tallystick.config.sections import NetworkModel
from tallystick.cut.cut_messages import CutEmbedding
from tallystick.errors import ProtocolError
from tallystick.evaluation.importance import (
    MAX_COLUMNS,
    ColumnPlace,
    ShuffledColumns,
    Shuffling,
    column_places,
    complete_logits,
    own_falls,
    receive_falls,
    receive_rows,
    sampled_rows,
    send_shuffled,
    shuffled,
)
from tallystick.metrics import auc
from tallystick.models.build import build_bottom, build_label_model
from tallystick.models.split import CentralizedModel
from tallystick.network.channel import memory_channels
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import Features

ROWS, HOW = 300, {"repeats": 3, "batch_size": 64}


class Trained:
    """Make a network of random weights, and labels that follow it, so that columns matter according to its weights."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        frame = pl.DataFrame(
            {
                "strong": rng.normal(size=ROWS),
                "gappy": [None if i % 5 == 0 else float(v) for i, v in enumerate(rng.normal(size=ROWS))],
                "kind": rng.choice(["red", "green", "blue"], size=ROWS),
            }
        )
        columns = FeatureColumns(numeric=("strong", "gappy"), categorical=("kind",))
        self.encoder = Encoder.fit(frame, columns, np.arange(ROWS))
        self.features = self.encoder.encode(frame).unpacked()
        self.own = self.encoder.encode(frame[rng.permutation(ROWS)]).unpacked()
        network = NetworkModel(hidden=(8, 8), cut_after=1)
        shape = self.encoder.feature_shape
        self.bottom = build_bottom(network, "shop", shape, seed=1)
        self.model = build_label_model(network, "bank", shape, [8], outputs=1, seed=1)
        self.joined = CentralizedModel([self.bottom], self.model)
        with torch.no_grad():
            self.cuts = [self.bottom(self.features)]
            logits = self.joined([self.features], self.own)
        self.labels = (logits > logits.median()).double().numpy()

    def scorer(self, logits: torch.Tensor) -> float:
        return auc(self.labels, logits.numpy())


@pytest.fixture
def net() -> Trained:
    return Trained()


def both(net: Trained, *, seed: int = 5) -> list:
    to_shop, to_bank = memory_channels("bank", "shop")
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(
            send_shuffled,
            net.bottom,
            net.features,
            column_places(net.encoder),
            to_bank,
            Shuffling(**HOW),
            generator=torch.Generator().manual_seed(seed),
        )
        found = receive_falls(net.model, net.own, net.cuts, 0, to_shop, net.scorer, Shuffling(**HOW))
        sent.result(20)
    return found


def test_falls_across_the_cut_are_those_of_the_joined_model(net) -> None:
    generator = torch.Generator().manual_seed(5)
    expected = []
    for place in column_places(net.encoder):
        with torch.no_grad():
            after = [
                net.scorer(net.joined([shuffled(net.features, place, torch.randperm(ROWS, generator=generator))], net.own))
                for _ in range(HOW["repeats"])
            ]
        expected.append((1.0 - np.mean(after), np.std(after, ddof=1)))  # the labels follow the model: its AUC is 1
    found = both(net)
    assert [(fall["mean"], fall["deviation"]) for fall in found] == [pytest.approx(each, abs=1e-9) for each in expected]
    assert max(fall["mean"] for fall in found) > 0.02


def test_own_columns_are_measured_without_a_message(net) -> None:
    places = column_places(net.encoder)
    found = own_falls(
        net.model, net.own, places, net.cuts, net.scorer, Shuffling(**HOW), generator=torch.Generator().manual_seed(3)
    )
    generator = torch.Generator().manual_seed(3)
    for place, fall in zip(places, found, strict=True):
        orders = [torch.randperm(ROWS, generator=generator) for _ in range(HOW["repeats"])]
        with torch.no_grad():
            after = [net.scorer(net.joined([net.features], shuffled(net.own, place, order))) for order in orders]
        assert fall["mean"] == pytest.approx(1.0 - np.mean(after), abs=1e-9)


def test_a_shuffled_column_takes_its_missing_indicator_along_and_leaves_the_rest(net) -> None:
    strong, gappy, kind = column_places(net.encoder)
    assert (strong.numeric, gappy.numeric, kind.categorical) == ((0,), (1, 2), (0,))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    moved = shuffled(net.features, gappy, order)
    assert torch.equal(moved.numeric_NF[:, 1:], net.features.numeric_NF[order][:, 1:])
    assert torch.equal(moved.numeric_NF[:, 0], net.features.numeric_NF[:, 0])
    assert torch.equal(moved.categorical_NG, net.features.categorical_NG)
    assert not torch.equal(shuffled(net.features, kind, order).categorical_NG, net.features.categorical_NG)


def test_logits_do_not_depend_on_the_batches(net, monkeypatch) -> None:
    whole = complete_logits(net.model, net.own, net.cuts)
    monkeypatch.setattr("tallystick.evaluation.importance.SCORED_AT_A_TIME", 7)
    torch.testing.assert_close(complete_logits(net.model, net.own, net.cuts), whole)


def test_every_party_samples_the_same_rows() -> None:
    positions = torch.arange(1000) * 3
    some = sampled_rows(positions, 100, seed=7)
    assert len(set(some.tolist())) == 100
    assert set(some.tolist()) <= set(positions.tolist())
    assert torch.equal(some, sampled_rows(positions, 100, seed=7))
    assert torch.equal(sampled_rows(positions, 1000, seed=7), positions)


@pytest.mark.parametrize("columns", [-1, MAX_COLUMNS + 1, 1 << 40])
def test_a_number_of_columns_out_of_range_is_refused(net, columns: int) -> None:
    to_shop, to_bank = memory_channels("bank", "shop")
    to_bank.send(ShuffledColumns(columns=columns))
    with pytest.raises(ProtocolError, match=f"names {columns} columns"):
        receive_falls(net.model, net.own, net.cuts, 0, to_shop, net.scorer, Shuffling(**HOW))


COLUMNS = 8


def crossed(rows: int, *, repeats: int, width: int = 8) -> tuple[SentEmbeddings, ColumnValues]:
    """Return what the label party keeps of a measurement of normal columns, and the columns."""
    generator = torch.Generator().manual_seed(2)
    columns_NF = torch.randn(rows, COLUMNS, generator=generator)
    bottom = torch.nn.Sequential(torch.nn.Linear(COLUMNS, width), torch.nn.ReLU())
    with torch.no_grad():
        for weight in bottom.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
        clean_ND = bottom(columns_NF)
    features = Features(numeric_NF=columns_NF, categorical_NG=torch.empty(rows, 0, dtype=torch.int64))
    network = Numbers(bottom)
    places = [ColumnPlace(name=f"x{place}", numeric=(place,)) for place in range(COLUMNS)]
    to_shop, to_bank = memory_channels("bank", "shop")
    send_shuffled(network, features, places, to_bank, Shuffling(repeats=repeats, batch_size=rows), generator=generator)
    assert to_shop.receive(ShuffledColumns).columns == COLUMNS
    lost = [
        [clean_ND - receive_rows(to_shop, rows, width, batch_size=rows, device="cpu") for _ in range(repeats)] for _ in places
    ]
    contrast_NCD = torch.stack([torch.stack(each).mean(dim=0) for each in lost], dim=1)
    sent = SentEmbeddings(
        last_BD=clean_ND, mean_BD=clean_ND, looks_BE=clean_ND, looks_at_BL=None, contrast_BCD=contrast_NCD, shuffles=repeats
    )
    none = {"categorical_NG": features.categorical_NG, "categorical": (), "categories": ()}
    return sent, ColumnValues(numeric_NF=columns_NF, numeric=tuple(place.name for place in places), **none)


class Numbers(torch.nn.Module):
    """A bottom that reads the numbers."""

    def __init__(self, layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, features: Features) -> torch.Tensor:
        return self.layers(features.numeric_NF)


def test_shuffled_columns_disclose_every_column_of_every_row_with_no_row_known() -> None:
    """The attack from outside, with no known row: embeddings alone do not reveal normal columns; together with shuffled ones they
    reveal all.
    """
    sent, columns = crossed(1000, repeats=20)
    shuffled_alone = {name: row for name, row in FEATURE_INFERENCE_ATTACKS.items() if row.from_shuffled}
    found = evaluate_feature_inference(sent, columns, marginals=True, known=(20,), attacks=shuffled_alone)
    assert found.mean(0) > 0.7
    assert found.mean(20) > 0.7
    by_embeddings = {name: row for name, row in FEATURE_INFERENCE_ATTACKS.items() if row.from_marginals}
    without = dataclasses.replace(sent, contrast_BCD=None)
    assert evaluate_feature_inference(without, columns, marginals=True, known=(), attacks=by_embeddings).mean(0) < 0.2


@pytest.mark.parametrize(("repeats", "width", "least"), [(2, 8, 2 / 3), (2, 32, 0.9), (5, 32, 0.95)])
def test_what_shuffles_leave_to_chance_the_unshuffled_embedding_tells(repeats: int, width: int, least: float) -> None:
    """By the mean over R cells of others alone nobody knows more than 1 / (1 + 1/R) of a normal column."""
    sent, columns = crossed(1000, repeats=repeats, width=width)
    attacks = {name: row for name, row in FEATURE_INFERENCE_ATTACKS.items() if row.from_shuffled}
    assert evaluate_feature_inference(sent, columns, marginals=True, known=(), attacks=attacks).mean(0) > least
    strange = dataclasses.replace(sent, last_BD=torch.randn(1000, width, generator=torch.Generator().manual_seed(3)))
    without = evaluate_feature_inference(strange, columns, marginals=True, known=(), attacks=attacks).mean(0)
    assert without < 1 / (1 + 1 / repeats), "embeddings of other rows tell nothing more"


def test_a_category_comes_back_by_its_share(net) -> None:
    """Rows with the same cell lose alike: there are as many clusters as categories, named by their sizes."""
    generator = torch.Generator().manual_seed(0)
    code_N = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), ROWS, replacement=True, generator=generator)
    contrast_NCD = torch.eye(3)[code_N][:, None] + 0.1 * torch.randn(ROWS, 1, 3, generator=generator)
    cut_ND = torch.randn(ROWS, 3, generator=generator)
    sent = SentEmbeddings(last_BD=cut_ND, mean_BD=cut_ND, looks_BE=cut_ND, looks_at_BL=None, contrast_BCD=contrast_NCD)
    columns = ColumnValues(
        numeric_NF=torch.empty(ROWS, 0), categorical_NG=code_N[:, None], numeric=(), categorical=("kind",), categories=(3,)
    )
    attacks = {name: row for name, row in FEATURE_INFERENCE_ATTACKS.items() if row.from_shuffled}
    (column,) = evaluate_feature_inference(sent, columns, marginals=True, known=(), attacks=attacks).columns
    assert column.value > 0.95


def test_only_numbers_cross_the_cut(net) -> None:
    to_shop, to_bank = memory_channels("bank", "shop")
    send_shuffled(net.bottom, net.features, column_places(net.encoder), to_bank, Shuffling(**HOW), generator=torch.Generator())
    assert to_shop.receive(ShuffledColumns).columns == 3
    for _ in range(3 * HOW["repeats"]):
        sizes = [to_shop.receive(CutEmbedding).values.shape for _ in range(5)]
        assert sizes == [(64, 8)] * 4 + [(44, 8)]
