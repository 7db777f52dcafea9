"""Logit shift against 300-digit arithmetic, by inversion, and on simulated unions."""

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import ConfigError
from tallystick.training.calibration import LOGIT_LIMIT, NO_CALIBRATION, Calibration, LogitShift

UNIONS = [
    LogitShift.of_union(shared=50, label_only=0, union=100, positive_rate=0.25),  # labels only
    LogitShift.of_union(shared=50, label_only=50, union=100, positive_rate=0.25),  # features only
    LogitShift.of_union(shared=25, label_only=30, union=100, positive_rate=0.17),  # both
    LogitShift.of_union(shared=1, label_only=10**6, union=3 * 10**6, positive_rate=0.001),  # hardly anything shared
    LogitShift.of_union(shared=40, label_only=0, union=100, positive_rate=0.9, filled_rate=1.0),  # filled with ones
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
    filled_rate=st.floats(0, 1),
    logit=st.floats(-10, 10),
)
def test_inverse_undoes_forward(
    shared: int, label_only: int, feature_only: int, positive_rate: float, filled_rate: float, logit: float
) -> None:
    shift = LogitShift.of_union(
        shared=shared,
        label_only=label_only,
        union=shared + label_only + feature_only,
        positive_rate=positive_rate,
        filled_rate=filled_rate,
    )
    logits_B = torch.tensor([logit], dtype=torch.float64)
    # D' carries a factor P11: a share of 1e-6 at a logit of -10 leaves 5 digits of D in float64, hence the tolerance
    assert float(shift.inverse(shift.forward(logits_B))) == pytest.approx(logit, abs=1e-4)


def test_a_probability_below_the_synthetic_share_is_cut_not_nan() -> None:
    shift = LogitShift(shared=0.5, positive=0.25, negative=0.25)
    logits_B = torch.tensor([-50.0, 50.0], requires_grad=True)
    assert shift.inverse(logits_B).tolist() == [-LOGIT_LIMIT, LOGIT_LIMIT]


def test_formula_gives_the_share_of_positives_of_a_simulated_union() -> None:
    """Labels-only, features-only and both, counted: 4 standard errors of 200,000 rows, so a chance below 1e-3 of failing."""
    generator = torch.Generator().manual_seed(5)
    rows, real = 200_000, 0.3  # every x alike: D(y=1|x) = 0.3, hence π = 0.3
    for label_share, feature_share in [(0.5, 1.0), (1.0, 0.5), (0.6, 0.7)]:
        has_label = torch.rand(rows, generator=generator) < label_share
        has_feature = torch.rand(rows, generator=generator) < feature_share
        label = (torch.rand(rows, generator=generator) < real) & has_label  # majority fill: 0
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
