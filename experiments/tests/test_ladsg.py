"""LADSG compared with loops that follow the definition, what its soft labels keep, and what it does not hide."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tallystick.config.contract import Contract, parse_contract
from tallystick.dataset.dataset import Labels
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.boosting import cross_fitted
from tallystick.job.phases.defense import RunDefense
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.features import Features
from tallystick.tables.target import LabelCoder
from tallystick_experiments.defenses.ladsg import Ladsg, SimilarGradients

ANY = torch.Generator()


def substituted(grad_BD: Tensor, *, limit: float = 1e6) -> Tensor:
    return SimilarGradients(limit=limit, text="")(grad_BD, torch.zeros(len(grad_BD)), generator=ANY)


def drawn(rows: int, width: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(1, 5), st.sampled_from([0.1, 1.0, 3.0]))
def test_gradients_are_substituted_and_limited_as_defined(seed: int, rows: int, width: int, limit: float) -> None:
    grad_BD = drawn(rows, width, seed).numpy()
    expected = np.zeros_like(grad_BD)
    for b, mine in enumerate(grad_BD):
        others = [other for place, other in enumerate(grad_BD) if place != b]
        best = max(others, key=lambda other: mine @ other / np.linalg.norm(mine) / np.linalg.norm(other))
        expected[b] = mine @ best / (best @ best) * best
    norms = np.linalg.norm(expected, axis=1)
    most = norms.mean() + limit * norms.std()
    for b, norm in enumerate(norms):
        expected[b] *= min(1.0, most / norm)
    np.testing.assert_allclose(substituted(torch.from_numpy(grad_BD), limit=limit).numpy(), expected, atol=1e-12)


def test_more_rows_than_are_compared_at_a_time_are_compared_with_all() -> None:
    half_BD = drawn(600, 8)
    twins_BD = torch.cat([half_BD, 2 * half_BD])  # each row's most similar one is in the other half, beyond the first tile
    torch.testing.assert_close(substituted(twins_BD), twins_BD)


def test_an_anomalous_norm_is_limited_and_no_other() -> None:
    grad_BD = torch.cat([torch.eye(2).double().repeat(50, 1), torch.tensor([[30.0, 0.0]])])
    sent_BD = substituted(grad_BD, limit=3.0)
    assert float(sent_BD[-1].norm()) < 11
    assert torch.equal(sent_BD[:-1], grad_BD[:-1])


@pytest.mark.parametrize("rows", [0, 1])
def test_a_row_without_another_is_sent_as_zeros(rows: int) -> None:
    assert torch.equal(substituted(torch.ones(rows, 3)), torch.zeros(rows, 3))


def test_zeros_stay_zeros() -> None:
    grad_BD = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    assert torch.equal(substituted(grad_BD)[[0, 2]], torch.zeros(2, 2))


def test_below_a_linear_top_nothing_is_hidden() -> None:
    """The docs say that this is not covered: gradients on one line are sent unchanged."""
    grad_BD = drawn(40, 1) * drawn(1, 6, seed=2)
    torch.testing.assert_close(substituted(grad_BD), grad_BD)


def test_classes_that_lie_apart_still_do() -> None:
    labels_B = torch.arange(300) % 3 == 0
    grad_BD = drawn(300, 8)
    grad_BD[:, 0] += torch.where(labels_B, 4.0, -4.0)
    told_B = substituted(grad_BD, limit=3.0)[:, 0] > 0
    assert float((told_B == labels_B).double().mean()) > 0.99


def test_soft_labels_are_the_mixture_and_keep_the_share_of_positives() -> None:
    labels_N = (torch.arange(20) % 4 == 0).float()
    soft_N = Ladsg(soft=0.3)(labels_N, classes=2, random_bytes=bytes)
    torch.testing.assert_close(soft_N, 0.7 * labels_N + 0.3 * 0.25)
    assert float(soft_N.mean()) == pytest.approx(0.25)
    answers_N = torch.linspace(0, 1, 20)
    taught_N = Ladsg(soft=0.3).taught(lambda _labels_N: answers_N)(labels_N, classes=2, random_bytes=bytes)
    torch.testing.assert_close(taught_N, 0.7 * labels_N + 0.3 * answers_N)


def columns(rows: int) -> tuple[Features, Tensor]:
    generator = torch.Generator().manual_seed(4)
    numeric_NF = torch.randn(rows, 3, generator=generator)
    labels_N = (torch.rand(rows, generator=generator) < torch.sigmoid(2 * numeric_NF[:, 0])).float()
    return Features(numeric_NF=numeric_NF, categorical_NG=torch.zeros(rows, 0, dtype=torch.int64)), labels_N


def test_a_teacher_knows_the_columns_and_not_the_rows_own_label() -> None:
    features, labels_N = columns(1_200)
    train_N = torch.arange(1_000)

    def answers(labels_N: Tensor) -> Tensor:
        return cross_fitted("binary", features.rows, labels_N, train_N, classes=2, seed=3).sigmoid()

    answer_N = answers(labels_N)
    # 200 rows that were not trained on; their standard error is .03, so 5 of them. Cross-fitted rows alike.
    assert float(answer_N[1_000:].mean()) == pytest.approx(float(labels_N[1_000:].mean()), abs=0.15)
    positive_N = labels_N.bool()
    assert float((answer_N[positive_N][:, None] > answer_N[~positive_N]).double().mean()) > 0.75
    for row in (0, 1):
        changed_N = labels_N.clone()
        changed_N[row] = 1 - changed_N[row]
        assert answers(changed_N)[row] == answer_N[row]


def test_a_half_without_a_class_is_refused() -> None:
    features, labels_N = columns(40)
    with pytest.raises(DataError, match="a half of the training rows has 1 of 2 classes"):
        cross_fitted("binary", features.rows, torch.zeros_like(labels_N), torch.arange(40), classes=2, seed=1)


def test_answers_that_are_no_probabilities_are_refused() -> None:
    taught = Ladsg(soft=0.5).taught(lambda labels_N: labels_N + 2)
    with pytest.raises(DataError, match="ladsg: the teacher gave"):
        taught(torch.tensor([0.0, 1.0]), classes=2, random_bytes=bytes)


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"soft": 0.0}, "ladsg: soft is 0.0"), ({"soft": 1.0}, "soft"), ({"soft": 0.5, "limit": 0.0}, "ladsg: limit is 0.0")],
)
def test_values_out_of_range_are_refused(keys: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Ladsg(**keys)


def contract() -> Contract:
    return parse_contract(
        {
            "name": "job",
            "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
            "alignment": {"keys": [{"name": "id"}]},
            "defense": [{"method": "ladsg", "soft": 0.5}],
            "evaluation": {"importance": {"feature_columns": "both"}},  # there is no guarantee that exact figures would break
        }
    )


def test_a_contract_takes_both_parts_and_promises_nothing() -> None:
    defenses = contract().defenses()
    assert len(defenses.labels) == len(defenses.gradients) == 1
    (guarantee,) = defenses.guarantees()
    assert guarantee.text.startswith("no formal guarantee: labels with a share of 0.5")
    assert defenses.events() == ()


def test_a_half_with_one_row_of_a_class_among_many_is_answered_for() -> None:
    """From 10,001 rows on scikit-learn stops by held-out rows of each class; seed 0 puts one positive into a half."""
    labels_N = torch.zeros(20_100)
    labels_N[:3] = 1
    features = Features(numeric_NF=torch.arange(20_100.0)[:, None] % 7, categorical_NG=torch.zeros(20_100, 0, dtype=torch.int64))
    answer_N = cross_fitted("binary", features.rows, labels_N, torch.arange(20_100), classes=2, seed=0).sigmoid()
    assert answer_N.shape == (20_100,)
    assert float(answer_N.mean()) == pytest.approx(3 / 20_100, rel=0.5)


def test_without_own_columns_the_share_of_the_training_rows_is_mixed_in_and_test_labels_are_not(tmp_path: Path) -> None:
    job = contract()
    defense = RunDefense.of(job, RunFolder.new(tmp_path, job, "bank", key=None))
    labels_N = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    coder = LabelCoder(type="binary", classes=("0", "1"))
    parts = {"train_N": torch.arange(4), "validation_N": torch.tensor([4]), "test_N": torch.tensor([5])}
    soft = []
    for tested in (0.0, 1.0):
        labels_N[5] = tested
        dataset = IntersectionDataset(encoder=None, source=None, labels=Labels.of(coder, labels_N.clone()), **parts)
        soft.append(defense.defended(dataset).known_labels.training_labels_N[:5])
    assert torch.equal(*soft)
    torch.testing.assert_close(soft[0], 0.5 * labels_N[:5] + 0.5 * 0.25)
