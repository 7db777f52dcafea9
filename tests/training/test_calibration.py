"""Compare the logit shift with 300-digit arithmetic, by inversion, and on simulated unions; compare the fitted line with a slow
reference.
"""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit

from tallystick.dataset.dataset import Labels, UnalignedRows
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.errors import ConfigError, DataError
from tallystick.metrics import ace, ace_statistic
from tallystick.models.branches import BranchedModel
from tallystick.run_folder.local_scores import calibrated_alone, logits_alone
from tallystick.tables.features import Features
from tallystick.tables.target import LabelCoder
from tallystick.training.calibration import LOGIT_LIMIT, NO_CALIBRATION, Calibration, LogitLine, LogitShift, fit_line

UNIONS = [
    LogitShift.of_union(shared=50, label_only=0, union=100, positive_rate=0.25),  # labels only
    LogitShift.of_union(shared=50, label_only=50, union=100, positive_rate=0.25),  # features only
    LogitShift.of_union(shared=25, label_only=30, union=100, positive_rate=0.17),  # both
    LogitShift.of_union(shared=1, label_only=10**6, union=3 * 10**6, positive_rate=0.001),  # hardly anything shared
    LogitShift.of_union(shared=40, label_only=0, union=100, positive_rate=0.9, imputed_rate=1.0),  # imputed as ones
    LogitShift(shared=1.0, positive=0.0, negative=0.0),
]


def exact_forward(shift: LogitShift, logit: float) -> mpmath.mpf:
    with mpmath.workdps(300):
        sigmoid = 1 / (1 + mpmath.exp(-mpmath.mpf(logit)))
        shared, positive = mpmath.mpf(shift.shared), mpmath.mpf(shift.positive)
        one, zero = shared * sigmoid + positive, shared * (1 - sigmoid) + mpmath.mpf(shift.negative)
        return mpmath.log(one) - mpmath.log(zero)


def exact_inverse(shift: LogitShift, logit: float) -> mpmath.mpf:
    with mpmath.workdps(300):
        sigmoid = 1 / (1 + mpmath.exp(-mpmath.mpf(logit)))
        one, zero = sigmoid - mpmath.mpf(shift.positive), 1 - sigmoid - mpmath.mpf(shift.negative)
        if one <= 0:
            return mpmath.mpf(-LOGIT_LIMIT)
        if zero <= 0:
            return mpmath.mpf(LOGIT_LIMIT)
        return max(min(mpmath.log(one) - mpmath.log(zero), mpmath.mpf(LOGIT_LIMIT)), mpmath.mpf(-LOGIT_LIMIT))


@pytest.mark.parametrize("shift", UNIONS)
@pytest.mark.parametrize("logit", [-500.0, -40.0, -3.0, -1.1, 0.0, 0.3, 2.0, 17.0, 40.0, 500.0])
def test_both_directions_match_high_precision(shift: LogitShift, logit: float) -> None:
    logits_B = torch.tensor([logit], dtype=torch.float64)
    assert float(shift.forward(logits_B)) == pytest.approx(float(exact_forward(shift, logit)), rel=1e-11, abs=1e-12)
    assert float(shift.inverse(logits_B)) == pytest.approx(float(exact_inverse(shift, logit)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("shift", UNIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_gradient_is_finite_everywhere_and_right(shift: LogitShift, dtype: torch.dtype) -> None:
    logits_B = torch.tensor([-1e4, -90.0, -5.0, 0.0, 5.0, 90.0, 1e4], dtype=dtype, requires_grad=True)
    for target in (0.0, 1.0):
        shifted_B = Calibration(shift=shift, when="training").training_logits(logits_B)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            shifted_B, torch.full_like(shifted_B, target), reduction="sum"
        )
        (grad_B,) = torch.autograd.grad(loss, logits_B)
        assert torch.isfinite(loss)
        for logit, grad in zip(logits_B.tolist(), grad_B.tolist(), strict=True):
            sigmoid = torch.sigmoid(torch.tensor(logit, dtype=torch.float64))
            complement = torch.sigmoid(torch.tensor(-logit, dtype=torch.float64))
            one, zero = shift.shared * sigmoid + shift.positive, shift.shared * complement + shift.negative
            if min(one, zero) > 1e-30:
                expected = shift.shared * sigmoid * complement * ((1 - target) / zero - target / one)
                assert grad == pytest.approx(float(expected), rel=2e-4, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    shared=st.integers(1, 10**6),
    label_only=st.integers(0, 10**6),
    feature_only=st.integers(0, 10**6),
    positive_rate=st.floats(0, 1),
    imputed_rate=st.floats(0, 1),
    logit=st.floats(-10, 10),
)
def test_inverse_undoes_forward(
    shared: int, label_only: int, feature_only: int, positive_rate: float, imputed_rate: float, logit: float
) -> None:
    shift = LogitShift.of_union(
        shared=shared,
        label_only=label_only,
        union=shared + label_only + feature_only,
        positive_rate=positive_rate,
        imputed_rate=imputed_rate,
    )
    logits_B = torch.tensor([logit], dtype=torch.float64)
    # D' carries a factor P11: a share of 1e-6 at a logit of -10 leaves 5 digits of D in float64, hence the tolerance
    assert float(shift.inverse(shift.forward(logits_B))) == pytest.approx(logit, abs=1e-4)


def test_a_probability_below_the_synthetic_share_is_cut_not_nan() -> None:
    shift = LogitShift(shared=0.5, positive=0.25, negative=0.25)
    logits_B = torch.tensor([-50.0, 50.0], requires_grad=True)
    assert shift.inverse(logits_B).tolist() == [-LOGIT_LIMIT, LOGIT_LIMIT]


def test_formula_gives_the_share_of_positives_of_a_simulated_union() -> None:
    """Labels only, features only and both are counted: 4 standard errors of 200,000 rows, so a chance below 1e-3 of failing."""
    generator = torch.Generator().manual_seed(5)
    rows, real = 200_000, 0.3  # every x alike: D(y=1|x) = 0.3, hence π = 0.3
    for label_share, feature_share in [(0.5, 1.0), (1.0, 0.5), (0.6, 0.7)]:
        has_label = torch.rand(rows, generator=generator) < label_share
        has_feature = torch.rand(rows, generator=generator) < feature_share
        label = (torch.rand(rows, generator=generator) < real) & has_label  # majority: 0
        kept = has_label | has_feature
        shift = LogitShift.of_union(
            shared=int((has_label & has_feature).sum()),
            label_only=int((has_label & ~has_feature).sum()),
            union=int(kept.sum()),
            positive_rate=real,
        )
        expected = torch.sigmoid(shift.forward(torch.logit(torch.tensor([real], dtype=torch.float64))))
        assert float(expected) == pytest.approx(float(label[kept].double().mean()), abs=4 * 0.5 / int(kept.sum()) ** 0.5)


def test_where_it_applies() -> None:
    shift, logits_B = UNIONS[2], torch.tensor([-1.0, 0.5])
    training, prediction = Calibration(shift=shift, when="training"), Calibration(shift=shift, when="prediction")
    assert torch.equal(training.training_logits(logits_B), shift.forward(logits_B))
    assert training.prediction_logits(logits_B) is logits_B
    assert prediction.training_logits(logits_B) is logits_B
    assert torch.equal(prediction.prediction_logits(logits_B), shift.inverse(logits_B))
    assert NO_CALIBRATION.training_logits(logits_B) is logits_B is NO_CALIBRATION.prediction_logits(logits_B)
    fitted = Calibration(shift=shift, when="fitted", line=LogitLine(slope=0.5, intercept=-1.0))
    assert torch.equal(fitted.training_logits(logits_B), shift.forward(logits_B))
    assert fitted.prediction_logits(logits_B).tolist() == [-1.5, -0.75]


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"shared": 0, "label_only": 5, "union": 10, "positive_rate": 0.2}, "shared=0"),
        ({"shared": 6, "label_only": 5, "union": 10, "positive_rate": 0.2}, "union=10"),
        ({"shared": 6, "label_only": -1, "union": 10, "positive_rate": 0.2}, "label_only=-1"),
        ({"shared": 6, "label_only": 1, "union": 10, "positive_rate": 1.2}, "1.2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        LogitShift.of_union(**sizes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shares"):
        LogitShift(shared=0.5, positive=0.6, negative=-0.1)


# --- the fitted line


def slow_line(logits: np.ndarray, labels: np.ndarray, *, real: float, rate: float) -> tuple[float, float, float]:
    """Compute slope, intercept and loss row by row, the slope by continuous search."""
    standard = (logits - logits.mean()) / logits.std()

    def intercept(slope: float) -> float:
        return float(brentq(lambda at: expit(slope * standard + at).mean() - rate, -100, 100))

    def loss(slope: float) -> float:
        chance = real * expit(slope * standard + intercept(slope)) + (1 - real) * rate
        return -float(np.log(np.where(labels > 0, chance, 1 - chance)).sum())

    slope = float(minimize_scalar(lambda at: loss(at) + at**2 / 2, bounds=(0.01, 10), method="bounded").x)
    return slope / logits.std(), intercept(slope) - slope * logits.mean() / logits.std(), loss(slope) / len(logits)


def overstated(rows: int, *, real: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return true logits, labels of which a share 1 - real is drawn without them, and a model's logits: three times as steep, and
    shifted.
    """
    rng = np.random.default_rng(seed)
    true = rng.normal(-1.2, 1.1, rows)
    chance = np.where(rng.random(rows) < real, expit(true), expit(true).mean())
    return true, (rng.random(rows) < chance).astype(float), 3 * true + 2


@pytest.mark.parametrize(("rows", "real"), [(40, 1.0), (700, 0.5), (5_000, 1.0), (20_000, 0.2)])
def test_the_line_is_that_of_a_slow_reference(rows: int, real: float) -> None:
    _, labels, logits = overstated(rows, real=real, seed=rows)
    slope, _, loss = slow_line(logits, labels, real=real, rate=0.29)
    line, found = fit_line(torch.from_numpy(logits), torch.from_numpy(labels), real=real, positive_rate=0.29)
    assert line.slope == pytest.approx(slope, rel=0.07)  # half a step between the slopes that are tried
    assert found == pytest.approx(loss, abs=1e-3)
    assert expit(line.slope * logits + line.intercept).mean() == pytest.approx(0.29, abs=1e-3)


def test_the_line_finds_what_a_model_overstates_though_most_own_rows_are_imputed() -> None:
    """40,000 rows, half of which carry information: the slope's standard error is below 4 %, the grid adds 6 %. Seeded."""
    true, labels, logits = overstated(40_000, real=0.5, seed=1)
    line, _ = fit_line(torch.from_numpy(logits), torch.from_numpy(labels), real=0.5, positive_rate=expit(true).mean())
    assert line.slope == pytest.approx(1 / 3, rel=0.2)
    assert np.abs(expit(line.slope * logits + line.intercept) - expit(true)).mean() < 0.02


@pytest.mark.parametrize(("shared", "label_only", "union"), [(4_500, 13_500, 72_000), (180, 3_420, 72_000)])
def test_where_little_is_shared_the_line_is_calibrated_and_the_inverse_is_not(shared: int, label_only: int, union: int) -> None:
    """Both sides lack three quarters, or nineteen in twenty, of 72,000 rows; a tenth of the label party's is for validation.

    The model's logits of D' are off by .2. Seeded; measured .098 and .357 by the inverse, .037 and .027 by the line.
    """
    shift = LogitShift.of_union(shared=shared, label_only=label_only, union=union, positive_rate=0.25)
    fitted = Calibration(shift=shift, when="fitted", real=shared / (shared + label_only))
    errors = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        true = rng.normal(-1.3, 1.1, 10_000)
        labels = (rng.random(10_000) < expit(true)).astype(float)
        logits = shift.forward(torch.from_numpy(true)) + torch.from_numpy(rng.normal(0, 0.2, 10_000))
        own = (shared + label_only) // 10
        from_nothing = rng.random(own) > fitted.real
        own_labels = np.where(from_nothing, rng.random(own) < labels.mean(), labels[:own] > 0).astype(float)
        line, _ = fitted.fit(logits[:own], torch.from_numpy(own_labels), positive_rate=0.25)
        inverse = Calibration(shift=shift, when="prediction")
        errors.append(
            [
                ace_statistic(labels, expit(each.prediction_logits(logits).numpy()), bins=15)(np.ones(10_000))
                for each in (inverse, line)
            ]
        )
    inverted, calibrated = np.mean(errors, axis=0)
    assert calibrated < 0.04 < 0.09 < inverted


def test_where_labels_say_nothing_every_prediction_is_near_the_rate_and_ranks_stay() -> None:
    logits = torch.linspace(-30, 30, 20)
    line, _ = fit_line(logits, (torch.arange(20) % 2).float(), real=0.05, positive_rate=0.1)
    predicted = torch.sigmoid(line(logits))
    assert float((predicted - 0.1).abs().max()) < 0.01
    assert bool((predicted.diff() > 0).all())


def test_awkward_rows_of_validation() -> None:
    same, loss = fit_line(torch.full((10,), 3.0), torch.ones(10), real=1.0, positive_rate=0.25)
    assert torch.sigmoid(same(torch.tensor(3.0))) == pytest.approx(0.25)
    assert loss == pytest.approx(-math.log(0.25))
    for rate in (0.0, 1.0):
        line, loss = fit_line(torch.linspace(-1, 1, 50), torch.full((50,), rate), real=1.0, positive_rate=rate)
        assert math.isfinite(line.intercept)
        assert math.isfinite(loss)
    assert math.isnan(fit_line(torch.tensor([0.0, math.nan]), torch.ones(2), real=1.0, positive_rate=0.5)[1])
    assert math.isnan(fit_line(torch.tensor([0.0, math.inf]), torch.ones(2), real=1.0, positive_rate=0.5)[1])
    with pytest.raises(DataError, match=r"raise split\.validation"):
        fit_line(torch.empty(0), torch.empty(0), real=1.0, positive_rate=0.5)


# --- rows without a partner's row


class Overconfident(BranchedModel):
    """Its logits are three times the true ones."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)

    def local(self, own: Features) -> torch.Tensor:
        return 3 * own.numeric_NF[:, 0]


def test_an_over_confident_branch_is_shrunk_to_a_third() -> None:
    """The line has a third of the slope, within a tenth, and the error on rows it never saw is the sample's own."""
    rows = 9000
    logits_N1 = torch.randn(rows, 1, generator=torch.Generator().manual_seed(1))
    own = Features(numeric_NF=logits_N1, categorical_NG=torch.empty(rows, 0, dtype=torch.int64))
    true_N = (torch.rand(rows, generator=torch.Generator().manual_seed(2)) < torch.sigmoid(logits_N1[:, 0])).float()
    train_N, validation_N, test_N = torch.arange(rows).chunk(3)
    dataset = IntersectionDataset(
        encoder=None,
        source=own.rows,
        labels=Labels.of(LabelCoder(type="binary", classes=("0", "1")), true_N),
        unaligned=UnalignedRows(train_N=train_N, validation_N=validation_N, test_N=test_N),
    )
    line = calibrated_alone(Overconfident(), dataset)
    assert line.slope == pytest.approx(1 / 3, rel=0.1)
    assert line.intercept == pytest.approx(0, abs=0.15)
    logits_T = logits_alone(Overconfident(), dataset, test_N)
    assert torch.equal(logits_T, 3 * logits_N1[test_N, 0])
    before, after = (ace(true_N[test_N], torch.sigmoid(each), bins=15) for each in (logits_T, line(logits_T)))
    assert before > 0.12
    assert after < 2 * 0.8 * math.sqrt(0.25 * 15 / 3000)
    # If a defence replaced labels, the line is fitted to the replaced ones, because training saw no others.
    assert calibrated_alone(Overconfident(), dataset.trained_on(1 - true_N)).slope < 0.1
    # Other targets' outputs are no logits, and without validation rows there is nothing to fit.
    numbers = replace(dataset, labels=Labels.of(LabelCoder(type="regression"), true_N))
    unseen = replace(dataset, unaligned=UnalignedRows(train_N=train_N))
    assert [calibrated_alone(Overconfident(), each) for each in (numbers, unseen)] == [LogitLine(), LogitLine()]
