"""Compare shared linear algebra, clustering and the logistic head with NumPy, brute force and sklearn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import generator
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from tallystick.attacks.label_inference.linear import fit_linear, log_odds, standardised
from tallystick.attacks.matrix import SAMPLE, k_means, principal_components, rescaled, top_direction, two_means_cut


@pytest.mark.parametrize("shape", [(50, 8), (8, 50)])
def test_top_direction_is_the_first_right_singular_vector(shape: tuple[int, int]) -> None:
    matrix_BD = torch.randn(shape, generator=generator())
    expected_D = np.linalg.svd(matrix_BD.double().numpy())[2][0]
    assert abs(float(top_direction(matrix_BD) @ torch.from_numpy(expected_D))) == pytest.approx(1)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=2, max_size=25).filter(lambda values: len(set(values)) > 1))
def test_two_means_cut_is_the_best_of_all_cuts(values: list[int]) -> None:
    score = np.array(values, dtype=float)

    def spread(cut: float) -> float:
        return sum(len(part) * part.var() for part in (score[score > cut], score[score <= cut]))

    cut = two_means_cut(torch.from_numpy(score))
    assert cut is not None
    assert spread(cut) == pytest.approx(min(spread(c) for c in np.unique(score)[:-1]), abs=1e-9)


def test_two_means_cut_of_equal_or_extreme_values() -> None:
    assert two_means_cut(torch.zeros(5)) is None
    assert two_means_cut(torch.zeros(1)) is None
    assert two_means_cut(torch.tensor([1e-300, 2e-300, 9e-300], dtype=torch.float64)) == 2e-300
    assert two_means_cut(torch.tensor([-1e300, 0, 1e299], dtype=torch.float64)) == -1e300


@pytest.mark.parametrize("rows", [600, 2 * SAMPLE])
@pytest.mark.parametrize("clusters", [2, 5])
def test_k_means_is_as_good_as_sklearn(rows: int, clusters: int) -> None:
    source = generator(2)
    centre_KD = 3 * torch.randn(clusters, 4, generator=source)
    x_BD = centre_KD[torch.randint(clusters, (rows,), generator=source)] + torch.randn(rows, 4, generator=source)

    def inertia(cluster_B: np.ndarray) -> float:
        x = x_BD.double().numpy()
        return sum(((x[cluster_B == k] - x[cluster_B == k].mean(axis=0)) ** 2).sum() for k in np.unique(cluster_B))

    ours = inertia(k_means(x_BD, clusters, generator=generator()).numpy())
    theirs = KMeans(clusters, n_init=4, random_state=0).fit(x_BD.double().numpy()).labels_
    assert ours <= inertia(theirs) * 1.001


def test_k_means_of_fewer_points_than_clusters() -> None:
    two = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(5, 1)
    assert torch.equal(k_means(two, 4, generator=generator())[::2].unique(), k_means(two, 4, generator=generator())[:1])
    assert len(k_means(torch.zeros(6, 2), 2, generator=generator()).unique()) == 1


@pytest.mark.parametrize("classes", [2, 4])
def test_logistic_head_is_sklearns(classes: int) -> None:
    source = generator(3)
    x_ND = torch.randn(300, 5, generator=source).double()
    label_N = (x_ND[:, :classes] + torch.randn(300, classes, generator=source)).argmax(dim=1)
    penalty = 0.02
    head = fit_linear(x_ND, label_N, classes, penalty=penalty)
    oracle = LogisticRegression(C=1 / (penalty * 300), tol=1e-10, max_iter=5000).fit(x_ND.numpy(), label_N.numpy())
    np.testing.assert_allclose(head.weight_DO.T.numpy(), oracle.coef_, atol=2e-3)
    odds = oracle.predict_proba(x_ND.numpy())
    expected = np.log(odds / (1 - odds))
    np.testing.assert_allclose(head(x_ND).numpy(), expected[:, 1] if classes == 2 else expected, atol=1e-2)


def test_logistic_head_learns_nothing_from_one_class() -> None:
    x_ND = torch.randn(40, 2, generator=generator()).double()
    assert not fit_linear(x_ND, torch.ones(40).long(), 2, penalty=0.1)(x_ND).any()
    nothing = fit_linear(x_ND[:0], torch.zeros(0).long(), 3, penalty=0.1)(x_ND)
    assert torch.equal(nothing, nothing[:1].expand(40, 3))


def test_log_odds_do_not_saturate() -> None:
    logit_NO = torch.tensor([[50.0, 0.0, -1.0], [51.0, 0.0, -1.0]], dtype=torch.float64)
    odds_NC = log_odds(logit_NO)
    assert odds_NC[1, 0] - odds_NC[0, 0] == pytest.approx(1)
    p = logit_NO.softmax(dim=1)[:, 1]
    torch.testing.assert_close(odds_NC[:, 1], torch.log(p / (1 - p)))


def test_principal_components_are_numpys_and_float64() -> None:
    x_ND = torch.randn(200, 6, generator=generator()) * torch.tensor([9.0, 5.0, 3.0, 1.0, 1e-4, 0.0])
    found_NP = principal_components(x_ND, 3)
    assert found_NP.dtype == torch.float64
    x = x_ND.double().numpy()
    u_NR, s_R, _ = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(found_NP.abs().numpy(), np.abs(u_NR * s_R)[:, 2::-1], atol=1e-9)


def test_scaling() -> None:
    x_ND = torch.randn(500, 3, generator=generator()) * torch.tensor([1.0, 100.0, 0.0]) + 7
    column_ND = standardised(x_ND)
    torch.testing.assert_close(column_ND.std(dim=0, correction=0), torch.tensor([1.0, 1.0, 0.0]).double(), atol=1e-5, rtol=0)
    whole_ND = rescaled(x_ND)
    assert float(whole_ND.square().mean()) == pytest.approx(1)
    torch.testing.assert_close(whole_ND.mean(dim=0), torch.zeros(3).double())
    rare = torch.zeros(1000, 1)
    rare[0] = 1
    assert float(standardised(rare).max()) == 10
    assert not rescaled(torch.ones(4, 2)).any()


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 1e18, 1e30])
def test_clusters_do_not_depend_on_the_scale_of_float32(scale: float) -> None:
    source = generator(2)
    x_BD = torch.randn(300, 4, generator=source) + 20 * torch.eye(3, 4)[torch.arange(300) % 3]
    assert torch.equal(k_means(scale * x_BD, 3, generator=generator()), k_means(x_BD, 3, generator=generator()))
