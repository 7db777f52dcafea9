"""Compare TabM's rows, losses and training with oracles; run the whole method if its package is installed."""

import sys
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest
import torch
from scipy import special, stats
from torch import nn
from torch.nn import functional

from tallystick.config.party import FeatureColumns
from tallystick.errors import ConfigError, DataError
from tallystick_experiments.catalogue.public import PublicTable, load_table
from tallystick_experiments.quality import sweep, tabm
from tallystick_experiments.quality.methods import METHODS, USUAL

pytest.importorskip("sklearn")


class Members(nn.Module):
    """Linear models side by side, called as TabM is."""

    def __init__(self, numbers: int, members: int) -> None:
        super().__init__()
        self.each = nn.Linear(numbers, members)

    def forward(self, numbers_BF, codes_BG):
        assert codes_BG is None
        return self.each(numbers_BF).unsqueeze(-1)


def linear_examples(rows=300, numbers=4, noise=1.0):
    generator = torch.Generator().manual_seed(3)
    numbers_NF = torch.randn(rows, numbers, generator=generator)
    labels_N = numbers_NF.sum(1) + noise * torch.randn(rows, generator=generator)
    return tabm.Examples(
        target="regression", numbers_NF=numbers_NF, codes_NG=torch.zeros(rows, 0, dtype=torch.int64), codes=(), labels_N=labels_N
    )


def begun(members=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Members(4, members)


def test_a_loss_is_the_mean_of_the_members_losses_and_a_prediction_that_of_their_probabilities():
    outputs_BKC = torch.randn(7, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    classes_B = torch.tensor([0, 1, 2, 0, 1, 2, 2])
    each = [functional.cross_entropy(outputs_BKC[:, member], classes_B) for member in range(5)]
    assert tabm.member_loss("multiclass", outputs_BKC, classes_B) == pytest.approx(torch.stack(each).mean().item())
    means_BC = special.softmax(outputs_BKC.numpy(), axis=-1).mean(1)
    found_BC = tabm.mean_prediction("multiclass", outputs_BKC)
    assert found_BC.numpy() == pytest.approx(means_BC)
    assert tabm.loss_of("multiclass", found_BC, classes_B) == pytest.approx(-np.log(means_BC[range(7), classes_B]).mean())

    one_BK1, labels_B = outputs_BKC[..., :1], (classes_B > 0).double()
    each = [functional.binary_cross_entropy_with_logits(one_BK1[:, member, 0], labels_B) for member in range(5)]
    assert tabm.member_loss("binary", one_BK1, labels_B) == pytest.approx(torch.stack(each).mean().item())
    probability_B = special.expit(one_BK1.numpy()[..., 0]).mean(1)
    assert tabm.mean_prediction("binary", one_BK1).numpy() == pytest.approx(probability_B)

    assert tabm.member_loss("regression", one_BK1, labels_B) == pytest.approx(
        ((one_BK1[..., 0] - labels_B[:, None]) ** 2).mean().item()
    )
    assert tabm.mean_prediction("regression", one_BK1).numpy() == pytest.approx(one_BK1.numpy()[..., 0].mean(1))


def test_training_keeps_the_best_epoch_and_a_refit_stops_there(monkeypatch):
    monkeypatch.setattr(tabm, "RATE", 0.1)
    monkeypatch.setattr(tabm, "PATIENCE", 4)
    examples, train_N, held_N = linear_examples(), torch.arange(200), torch.arange(200, 300)
    network = begun()
    best, epochs = tabm.train_with_patience(network, examples, train_N, held_N, torch.Generator().manual_seed(1))
    assert epochs == best + 5  # more than the patience

    def loss(trained):
        means_V = trained(examples.numbers_NF[held_N], None).squeeze(-1).mean(1)
        return ((means_V - examples.labels_N[held_N]) ** 2).mean().item()

    again, losses = begun(), []
    for epoch in tabm.epochs_of(again, examples, train_N, torch.Generator().manual_seed(1)):
        losses.append(loss(again))
        if epoch == best:
            assert all(torch.equal(*pair) for pair in zip(again.parameters(), network.parameters(), strict=True))
        if epoch == epochs:
            break
    assert min(losses) == losses[best - 1] == pytest.approx(loss(network))


def test_an_epoch_takes_every_row_once_and_a_step_is_adamws_of_a_clipped_gradient(monkeypatch):
    monkeypatch.setattr(tabm, "LARGEST_NORM", 0.5)
    examples, network, oracle = linear_examples(), begun(), begun()
    next(tabm.epochs_of(network, examples, torch.arange(300), torch.Generator().manual_seed(2)))
    optimizer = torch.optim.AdamW(oracle.parameters(), lr=2e-3, weight_decay=3e-4)
    order_N = torch.randperm(300, generator=torch.Generator().manual_seed(2))
    assert sorted(order_N.tolist()) == list(range(300))
    for batch_B in (order_N[:256], order_N[256:]):
        out_BK = oracle(examples.numbers_NF[batch_B], None)[..., 0]
        gradients = torch.autograd.grad(((out_BK - examples.labels_N[batch_B, None]) ** 2).mean(), list(oracle.parameters()))
        norm = torch.cat([each.flatten() for each in gradients]).norm()
        assert norm > 0.5
        for weight, gradient in zip(oracle.parameters(), gradients, strict=True):
            weight.grad = gradient * 0.5 / norm
        optimizer.step()
    for one, other in zip(network.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def mixed_table(rows=400):
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {
            "skewed": np.exp(3 * rng.normal(size=rows)),
            "holes": [
                None if hole else 1.0 + value for hole, value in zip(rng.random(rows) < 0.2, rng.random(rows), strict=True)
            ],
            "same": np.ones(rows),
            "word": rng.choice(["a", "b", "c"], size=rows),
            "label": rng.integers(0, 2, size=rows),
        }
    )
    columns = FeatureColumns(numeric=("skewed", "holes", "same"), categorical=("word",))
    return PublicTable(name="mixed", source="here", frame=frame, columns=columns, label="label", target="binary")


def test_rows_are_encoded_by_the_fitted_ones_alone():
    table, fitted, labels_N = mixed_table(), np.arange(300), torch.zeros(400)
    found = tabm.examples_of(table, fitted, labels_N, seed=1)
    assert found.numbers_NF.shape == (400, 2)  # a constant column is useless
    assert found.codes == (2, 5)
    missing_N = table.frame.get_column("holes").is_null().to_numpy()
    assert (found.codes_NG[:, 0].numpy() == missing_N).all()
    assert (found.numbers_NF[:, 1].numpy()[missing_N] == 0).all()
    skewed_N = found.numbers_NF[:300, 0].numpy()
    assert (np.argsort(skewed_N) == np.argsort(table.frame["skewed"][:300].to_numpy())).all()
    assert stats.kstest(skewed_N, "norm").statistic <= 1 / 9  # straight between ten quantiles
    words = pl.DataFrame({"code": found.codes_NG[:, 1].numpy(), "word": table.frame["word"]}).unique()
    assert (words.height, words["code"].min(), words["code"].max()) == (3, 2, 4)

    others = table.frame.with_columns(pl.when(pl.int_range(pl.len()) < 300).then("skewed").otherwise(1e9).alias("skewed"))
    again = tabm.examples_of(replace(table, frame=others), fitted, labels_N, seed=1)
    assert torch.equal(again.numbers_NF[:300], found.numbers_NF[:300])
    assert again.numbers_NF.abs().max() < 10


@dataclass
class Begun:
    """A stand-in for the package, which records for which rows a network is made."""

    rows: list

    def __call__(self, examples, train_N, outputs):
        assert outputs == 1
        self.rows.append(train_N.tolist())
        return Members(examples.numbers_NF.shape[1], 3)


@pytest.mark.parametrize(("method", "by_time", "begins"), [("tabm", False, 1), ("tabm", True, 2), ("tabm-refit", False, 2)])
def test_a_refit_has_the_validation_rows_too(monkeypatch, method, by_time, begins):
    monkeypatch.setattr(tabm, "RATE", 0.05)
    monkeypatch.setattr(tabm, "build_tabm", build := Begun([]))
    table = load_table("diabetes", None)
    if by_time:
        table = replace(table, times=pl.Series(range(table.frame.height)))
    drawn = torch.get_rng_state()
    found = METHODS[method](table, 1)
    assert torch.equal(torch.get_rng_state(), drawn)
    train, validation, test = table.parts(1)
    assert build.rows == [train.tolist(), [*train.tolist(), *validation.tolist()]][:begins]
    labels = table.frame["label"].to_numpy()
    assert found.value < 0.85 * np.sqrt(((labels[test] - labels[train].mean()) ** 2).mean())
    assert found.epochs > tabm.PATIENCE


def test_what_it_needs_is_said(monkeypatch):
    assert {"tabm", "tabm-refit", "shared"} == {*METHODS} - {*USUAL}
    with pytest.raises(ConfigError, match="--device abacus: PyTorch has no such device here"):
        sweep.quality_sweep_experiment(data=None, tables=["wine"], methods=["tabm"], device="abacus").run()
    monkeypatch.setitem(sys.modules, "tabm", None)
    with pytest.raises(DataError, match="TabM is not installed; run: pip install tabm"):
        METHODS["tabm"](load_table("wine", None), 1)


def test_tabm_learns(monkeypatch):
    pytest.importorskip("tabm")
    monkeypatch.setattr(tabm, "PATIENCE", 2)
    assert METHODS["tabm"](load_table("wine", None), 1).value > 0.95
