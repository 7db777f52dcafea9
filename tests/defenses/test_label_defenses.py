"""Label defences: flip rates, the optimal use of a prior, sigma by inversion compared with dp-accounting, and refusals."""

import itertools
import math
import os
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from dp_accounting.pld import common, privacy_loss_mechanism
from hypothesis import given
from hypothesis import strategies as st
from lower_bounds import epsilon_lower_bound_of_outcomes
from scipy.optimize import linprog
from scipy.stats import binomtest, chisquare, kstest, norm

from tallystick.defenses.gaussian_labels import GaussianLabels
from tallystick.defenses.label_dp import WORDS, LabelDP, LabelDPPrior, best_classes, estimated_prior, other_words, respond
from tallystick.errors import ConfigError, DataError
from tallystick.privacy.composition import total_epsilon


def seeded_bytes(seed: int = 0):  # type: ignore[no-untyped-def]
    return np.random.default_rng(seed).bytes


def likely(hits: int, trials: int, probability: float) -> bool:
    """A two-sided exact test at 1e-6."""
    return bool(binomtest(int(hits), int(trials), probability).pvalue > 1e-6)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_flip_rate_and_the_class_that_a_flip_gives(classes: int, epsilon: float) -> None:
    """Each exact binomial test fails with a chance of 1e-6; 21 of them with one of 2e-5."""
    rows = 200_000
    labels_N = torch.arange(rows) % classes
    replaced_N = LabelDP(epsilon=epsilon)(labels_N, classes=classes, random_bytes=seeded_bytes())
    kept = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    assert likely((replaced_N == labels_N).sum(), rows, kept)
    step_N = (replaced_N - labels_N) % classes
    for step in range(1, classes):
        assert likely((step_N == step).sum(), rows, (1 - kept) / (classes - 1))


@given(st.integers(2, 100_000), st.floats(1e-6, 60))
def test_coins_never_exceed_epsilon_and_come_as_near_as_64_bits_can(classes: int, epsilon: float) -> None:
    each = other_words(classes, epsilon)
    keep = WORDS - (classes - 1) * each
    assert keep >= each > 0
    ratio = math.log1p((keep - each) / each)
    assert ratio <= epsilon * (1 + 1e-9)
    if epsilon < 20:
        # Of each other class at most one word too many, of this one as many fewer as there are others.
        assert ratio == pytest.approx(epsilon, rel=1e-5, abs=1.1 * classes**2 / WORDS + 1e-10)


def test_every_word_means_the_right_class() -> None:
    """Words at both sides of every border: the flipped words go to the others in turn, the rest keep the label."""
    each, classes = other_words(3, 1.0), 3
    words = [0, each - 1, each, 2 * each - 1, 2 * each, WORDS - 1]
    drawn = np.array(words, dtype=np.uint64).tobytes()
    assert respond(np.full(6, 1), classes, 1.0, lambda count: drawn[:count]).tolist() == [2, 2, 0, 0, 1, 1]


@pytest.mark.unseeded
def test_labels_keep_type_and_shape_and_fresh_bytes_give_fresh_labels() -> None:
    """Two draws of 1,000 labels, each kept with e/(1+e), are equal with a chance of .607^1000, below 1e-200."""
    labels_N = (torch.arange(1_000) % 2).float()
    first, second = (LabelDP(epsilon=1.0)(labels_N, classes=2, random_bytes=os.urandom) for _ in range(2))
    assert first.dtype == torch.float32
    assert set(first.tolist()) == {0.0, 1.0}
    assert not torch.equal(first, second)
    assert LabelDP(epsilon=1.0)(labels_N[:0], classes=2, random_bytes=os.urandom).shape == (0,)  # nothing to draw


def kept_share(prior_C: np.ndarray, epsilon: float, k: int) -> float:
    top = np.sort(prior_C)[::-1][:k].sum()
    return float(math.exp(epsilon) / (math.exp(epsilon) + k - 1) * top)


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=12), st.floats(0.01, 6))
def test_the_number_of_classes_is_the_best_of_all(weights: list[float], epsilon: float) -> None:
    prior_C = np.array(weights) / sum(weights)
    top_K = best_classes(prior_C, epsilon)
    shares = [kept_share(prior_C, epsilon, k) for k in range(2, len(prior_C) + 1)]
    assert kept_share(prior_C, epsilon, len(top_K)) == pytest.approx(max(shares), rel=1e-12)
    assert prior_C[top_K].min() >= np.delete(prior_C, top_K).max(initial=0)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("prior", [(0.5, 0.3, 0.15, 0.05), (0.25, 0.25, 0.25, 0.25), (0.4, 0.39, 0.2, 0.01)])
def test_no_label_private_mechanism_keeps_more(prior: tuple[float, ...], epsilon: float) -> None:
    """The best epsilon-DP matrix by linear programming keeps as many labels as the response over the best k classes.

    If k is 1 the matrix calls every row one class; the response then uses two classes, the best ones to learn from.
    """
    classes = len(prior)
    rows, limits = [], []
    for a, b, out in itertools.product(range(classes), range(classes), range(classes)):
        if a != b:
            row = np.zeros((classes, classes))
            row[a, out], row[b, out] = 1, -math.exp(epsilon)
            rows.append(row.ravel())
            limits.append(0)
    sums = [np.repeat(np.eye(classes)[a], classes) for a in range(classes)]
    gain = -np.diag(prior).ravel()
    best = linprog(gain, A_ub=np.array(rows), b_ub=limits, A_eq=np.array(sums), b_eq=np.ones(classes), bounds=(0, 1))
    k = len(best_classes(np.array(prior), epsilon))
    shares = [kept_share(np.array(prior), epsilon, k) for k in range(1, classes + 1)]
    assert max(shares) == pytest.approx(-best.fun, rel=1e-7)
    assert k == 2 if np.argmax(shares) == 0 else shares[k - 1] == max(shares)


def test_with_a_public_prior_rows_respond_within_the_top_classes() -> None:
    """Four exact binomial tests at 1e-6 each."""
    rows, epsilon, prior = 100_000, 1.5, (0.45, 0.45, 0.05, 0.05)
    labels_N = torch.arange(rows) % 4
    replaced_N = LabelDPPrior(epsilon=epsilon, prior=prior)(labels_N, classes=4, random_bytes=seeded_bytes())
    assert len(best_classes(np.array(prior), epsilon)) == 2
    assert set(replaced_N.tolist()) == {0, 1}
    kept = math.exp(epsilon) / (math.exp(epsilon) + 1)
    for label in (0, 1):
        assert likely((replaced_N[labels_N == label] == label).sum(), rows // 4, kept)
    for label in (2, 3):
        assert likely((replaced_N[labels_N == label] == 0).sum(), rows // 4, 0.5)


def test_an_estimated_prior_finds_the_classes_that_matter() -> None:
    """20,000 rows in the first stage: a class share is off by .006 (standard error), while .4 separates the two groups."""
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.multinomial(torch.tensor([0.02, 0.46, 0.02, 0.48, 0.02]), 200_000, replacement=True, generator=generator)
    replaced_N = LabelDPPrior(epsilon=1.5)(labels_N, classes=5, random_bytes=seeded_bytes(1))
    counts = torch.bincount(replaced_N, minlength=5) / len(labels_N)
    # The rare classes come from the first tenth only, where each gets at least its flip rate .13.
    assert counts[[0, 2, 4]].max() < 0.03
    plain_N = LabelDP(epsilon=1.5)(labels_N, classes=5, random_bytes=seeded_bytes(2))
    assert float((replaced_N == labels_N).float().mean()) > float((plain_N == labels_N).float().mean()) + 0.1


def test_the_estimate_of_the_prior_undoes_the_response() -> None:
    """200,000 rows at epsilon 1: a standard error below .003 for each share; .015 is five of them (chance 6e-7 each)."""
    labels_N = np.repeat([0, 1, 2, 3], [100_000, 60_000, 30_000, 10_000])
    prior_C = estimated_prior(respond(labels_N, 4, 1.0, seeded_bytes(3)), 4, 1.0)
    assert np.abs(prior_C - [0.5, 0.3, 0.15, 0.05]).max() < 0.015
    assert estimated_prior(labels_N[:0], 4, 1.0).tolist() == [0.25] * 4


@pytest.mark.parametrize("prior", [None, (0.98, 0.01, 0.01)])
def test_a_prior_by_which_one_class_is_best_leaves_two(prior: tuple[float, ...] | None) -> None:
    """9,900 rows of class 0: calling every row 0 keeps most labels, and responding over two classes still gives both.

    The exact binomial test fails with a chance of 1e-6; the seed is fixed.
    """
    epsilon, labels_N = 0.5, (torch.arange(10_000) % 100 == 0).long()
    replaced_N = LabelDPPrior(epsilon=epsilon, prior=prior, first_stage=0.01)(labels_N, classes=3, random_bytes=seeded_bytes())
    seen_C = torch.bincount(replaced_N, minlength=3)
    assert int((seen_C > 1000).sum()) == 2
    if prior is not None:
        assert likely((replaced_N[labels_N == 0] == 0).sum(), 9_900, math.exp(epsilon) / (math.exp(epsilon) + 1))


# --- label-dp-prior's guarantee: three rows, so that every outcome of the whole mechanism can be counted

ROWS, CLASSES, HALF = 3, 3, 0.5
OUTCOMES = list(itertools.product(range(CLASSES), repeat=ROWS))


def exact_chances(labels: tuple[int, ...], epsilon: float) -> np.ndarray:
    """Return the chance of every outcome, by a sum over which rows are in the first stage."""

    def response(label: int, out: int, top: Sequence[int]) -> float:
        weights = [math.exp(epsilon * (each == label)) for each in top]
        return weights[list(top).index(out)] / sum(weights) if out in top else 0.0

    chances = np.zeros(len(OUTCOMES))
    for stages in itertools.product([True, False], repeat=ROWS):
        for number, out in enumerate(OUTCOMES):
            first = np.array([out[row] for row in range(ROWS) if stages[row]], dtype=np.int64)
            top = best_classes(estimated_prior(first, CLASSES, epsilon), epsilon).tolist()
            assert len(top) >= 2
            responses = [response(labels[row], out[row], range(CLASSES) if stages[row] else top) for row in range(ROWS)]
            chances[number] += HALF**ROWS * math.prod(responses)
    return chances


def drawn(labels: tuple[int, ...], epsilon: float, *, runs: int, seed: int) -> np.ndarray:
    """Return the outcome of each run of the defence."""
    defense, labels_N, source = LabelDPPrior(epsilon=epsilon, first_stage=HALF), torch.tensor(labels), seeded_bytes(seed)
    places = np.array([CLASSES**row for row in reversed(range(ROWS))])
    return np.array([defense(labels_N, classes=CLASSES, random_bytes=source).numpy() @ places for _ in range(runs)])


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
def test_no_outcome_of_the_response_with_a_prior_tells_more_than_epsilon(epsilon: float) -> None:
    """Over all pairs of labels that differ in one row, by exact chances: at most epsilon, and not less than it claims."""
    chances = {labels: exact_chances(labels, epsilon) for labels in OUTCOMES}
    assert all(each.sum() == pytest.approx(1) for each in chances.values())
    losses = [
        float(np.abs(np.log(chances[one] / chances[other])).max())
        for one, other in itertools.combinations(OUTCOMES, 2)
        if sum(a != b for a, b in zip(one, other, strict=True)) == 1
    ]
    assert max(losses) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.long
def test_what_is_drawn_with_a_prior_has_these_chances_and_twice_the_budget_is_caught() -> None:
    """Two chi-square tests at 1e-6 and a lower bound at 1 - 1e-7, on fixed seeds."""
    neighbours = (0, 1, 2), (1, 1, 2)
    samples = [drawn(labels, 1.0, runs=3_000, seed=side) for side, labels in enumerate(neighbours)]
    for sample, labels in zip(samples, neighbours, strict=True):
        seen = np.bincount(sample, minlength=len(OUTCOMES))
        assert chisquare(seen, len(sample) * exact_chances(labels, 1.0)).pvalue > 1e-6
    assert epsilon_lower_bound_of_outcomes(*samples) <= 1.0
    wide = [drawn(labels, 2.0, runs=2_000, seed=2 + side) for side, labels in enumerate(neighbours)]
    assert epsilon_lower_bound_of_outcomes(*wide) > 1.0


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-7])
def test_sigma_is_the_least_that_an_independent_accountant_accepts(epsilon: float, delta: float) -> None:
    sigma = GaussianLabels(epsilon=epsilon, delta=delta).sigma
    accountant = privacy_loss_mechanism.GaussianPrivacyLoss.from_privacy_guarantee(
        common.DifferentialPrivacyParameters(epsilon, delta), sensitivity=1
    )
    assert sigma == pytest.approx(accountant.standard_deviation, rel=1e-5)
    losses = [privacy_loss_mechanism.GaussianPrivacyLoss(factor * sigma, sensitivity=1) for factor in (1, 0.999)]
    spent, overspent = (loss.get_delta_for_epsilon(epsilon) for loss in losses)
    assert spent <= delta * (1 + 1e-6) < overspent


def test_gaussian_labels_carry_the_noise_they_say() -> None:
    """100,000 draws are compared with the exact distribution: a Kolmogorov-Smirnov test at 1e-6; the grid adds 1e-4 to
    its distance.
    """
    labels_N = (torch.arange(100_000) % 4 == 0).float()
    defense = GaussianLabels(epsilon=1.0, delta=1e-6)
    noise_N = (defense.noisy(labels_N, random_bytes=seeded_bytes()) - labels_N).numpy()
    assert kstest(noise_N, norm(scale=defense.sigma).cdf).pvalue > 1e-6


def test_gaussian_targets_are_probabilities_that_are_right_on_average() -> None:
    """The mean target estimates the positive share .1; 100,000 rows: sigma / sqrt(N) = .014, five of them .07 (chance 6e-7)."""
    labels_N = (torch.arange(100_000) % 10 == 0).float()
    defense = GaussianLabels(epsilon=1.0, delta=1e-6)
    target_N = defense(labels_N, classes=2, random_bytes=seeded_bytes(5))
    assert target_N.dtype == labels_N.dtype
    assert float(target_N.min()) >= 0
    assert float(target_N.max()) <= 1
    assert float(target_N.mean()) == pytest.approx(0.1, abs=0.07)
    assert float(target_N[labels_N == 1].mean()) > float(target_N[labels_N == 0].mean())
    noisy_N = defense.noisy(labels_N, random_bytes=seeded_bytes(5))
    assert bool((target_N[noisy_N.argsort()].diff() >= 0).all())


def test_much_budget_gives_nearly_exact_targets_and_the_loss_stays_bounded() -> None:
    labels_N = (torch.arange(1_000) % 4 == 0).float()
    target_N = GaussianLabels(epsilon=12.0, delta=0.9)(labels_N, classes=2, random_bytes=seeded_bytes())
    assert float((target_N - labels_N).abs().mean()) < 0.02
    wild_N = GaussianLabels(epsilon=1e-3, delta=1e-9)(labels_N, classes=2, random_bytes=seeded_bytes())
    loss = torch.nn.functional.binary_cross_entropy_with_logits(torch.full((1_000,), 1e4), wild_N, reduction="none")
    assert float(loss.min()) >= 0


def test_guarantees_are_events_that_add_up() -> None:
    assert total_epsilon([LabelDP(epsilon=0.7).guarantee().event]) == 0.7  # type: ignore[list-item]
    assert total_epsilon([LabelDPPrior(epsilon=0.7).guarantee().event]) == 0.7  # type: ignore[list-item]
    event = GaussianLabels(epsilon=0.7, delta=1e-6).guarantee().event
    assert total_epsilon([event], delta=1e-6) == pytest.approx(0.7, rel=1e-2)  # type: ignore[list-item]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e-9, 101.0])
@pytest.mark.parametrize("defense", [LabelDP, LabelDPPrior, lambda epsilon: GaussianLabels(epsilon=epsilon, delta=1e-6)])
def test_an_epsilon_out_of_range_is_refused(defense: object, epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon is"):
        defense(epsilon=epsilon)  # type: ignore[operator]


def test_other_values_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="delta is 0"):
        GaussianLabels(epsilon=1.0, delta=0.0)
    with pytest.raises(ConfigError, match=r"delta is 1e-09; at epsilon 8 it must be at least 6e-07"):
        GaussianLabels(epsilon=8.0, delta=1e-9)
    with pytest.raises(ConfigError, match="prior is"):
        LabelDPPrior(epsilon=1.0, prior=(0.5, 0.4))
    with pytest.raises(ConfigError, match=r"first_stage is 1\.0"):
        LabelDPPrior(epsilon=1.0, first_stage=1.0)
    with pytest.raises(ConfigError, match="prior has 2 classes; the labels have 3"):
        LabelDPPrior(epsilon=1.0, prior=(0.5, 0.5))(torch.zeros(3), classes=3, random_bytes=bytes)
    with pytest.raises(ConfigError, match="gaussian-labels is for two classes, found 3"):
        GaussianLabels(epsilon=1.0, delta=1e-6)(torch.zeros(3), classes=3, random_bytes=bytes)


@pytest.mark.parametrize("wrong", [math.nan, 0.5, -1.0, 2.0])
def test_labels_that_are_no_class_numbers_are_refused(wrong: float) -> None:
    labels_N = torch.tensor([0.0, 1.0, wrong])
    for defense in (LabelDP(epsilon=1.0), LabelDPPrior(epsilon=1.0), GaussianLabels(epsilon=1.0, delta=1e-6)):
        with pytest.raises(DataError, match=r"labels: NaN|needs class numbers 0 to 1; found"):
            defense(labels_N, classes=2, random_bytes=bytes)
