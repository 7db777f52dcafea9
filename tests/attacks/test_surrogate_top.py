"""Test the surrogate top model on gradients of top models that it has never seen."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from lanes import short_lane_of
from planted import WIDTH, generator, labels, planted_view
from torch.distributions import Normal
from torch.utils._python_dispatch import TorchDispatchMode

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.evaluate import LabelInferenceEvaluation, evaluate_label_inference
from tallystick.attacks.label_inference.surrogate_top import SurrogateTop, _Fitting, _Surrogate
from tallystick.attacks.scoring import AttackEvaluator, AttackMetrics
from tallystick.attacks.view import StepView, View
from tallystick.errors import ConfigError, DataError

NAMES = ("surrogate-top", "surrogate-top-prediction")
ONCE, ROWS_SEEN = AttackEvaluator(replicates=1), 3000
ROWS = {name: LABEL_INFERENCE_ATTACKS[name] for name in NAMES}


def sent_back(top: torch.nn.Module, label_N: torch.Tensor, *, noise: float = 0.0, gap: float = 0.0) -> View:
    """Return what a label party with this top model sends for embeddings of 6 columns, ``gap`` apart along the axis of
    their class.
    """
    classes, source = int(label_N.max()) + 1, generator(1)
    cut_ND = torch.randn(len(label_N), WIDTH, generator=source) + gap * torch.eye(classes, WIDTH)[label_N]
    cut = cut_ND.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(top(cut), label_N, reduction="sum")
    (grad_ND,) = torch.autograd.grad(loss, cut)
    grad_ND += noise * grad_ND.std() * torch.randn(grad_ND.shape, generator=source)
    rows_N = torch.arange(len(label_N))
    step = StepView(epoch=0, rows_B=rows_N, own_B=torch.ones_like(rows_N).bool(), received_BD=grad_ND, sent_BD=cut_ND)
    return View(received="cut_gradient", steps=(step,), classes=classes)


def found(view: View, truth_N: torch.Tensor, name: str = "surrogate-top") -> AttackMetrics:
    evaluator = AttackEvaluator(replicates=1)
    return evaluate_label_inference(view, truth_N, attacks={name: ROWS[name]}, evaluator=evaluator)[name]


def evaluated(attack: SurrogateTop, view: View, truth_N: torch.Tensor) -> float:
    row = replace(ROWS["surrogate-top"], attack=attack)
    metrics = evaluate_label_inference(view, truth_N, attacks={"it": row}, evaluator=AttackEvaluator(replicates=1))
    return metrics["it"].auc.mean


def top_of(classes: int, hidden: int | None = None) -> torch.nn.Module:
    torch.manual_seed(2)
    if hidden is None:
        return torch.nn.Linear(WIDTH, classes)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes))


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 4])
def test_labels_are_read_off_the_gradients_of_a_top_model_that_nobody_knows(classes: int) -> None:
    """Nearly all of a linear one, most of one with a hidden layer, and still many behind noise as wide as the
    gradients. Seeded.
    """
    truth = labels(classes)
    assert found(sent_back(top_of(classes), truth), truth).auc.mean > 0.98
    assert found(sent_back(top_of(classes, hidden=64), truth, gap=1.0), truth).auc.mean > 0.75
    assert found(sent_back(top_of(classes), truth, noise=1.0, gap=1.0), truth).auc.mean > 0.85


@pytest.mark.parametrize("classes", short_lane_of([2, 4], 1))
def test_labels_that_nothing_was_made_of_are_not_found(classes: int) -> None:
    """Gradients of other labels. Standard error of an AUC over 3,000 rows with a tenth positives: .018; three of them. Seeded."""
    metrics = found(sent_back(top_of(classes), labels(classes, seed=8)), labels(classes))
    assert metrics.auc.mean == pytest.approx(metrics.chance_auc, abs=0.054)


def test_the_prediction_sees_through_labels_that_were_replaced() -> None:
    """A third of the labels are drawn anew before training: gradients show these, the prediction the others. Seeded."""
    truth = labels(4)
    drawn_N = torch.where(torch.rand(len(truth), generator=generator(3)) < 1 / 3, labels(4, seed=9), truth)
    centre_CD = 3 * torch.eye(4, WIDTH)
    cut_ND = torch.randn(len(truth), WIDTH, generator=generator(4)) + centre_CD[truth]
    (step,) = sent_back(top_of(4), drawn_N).steps
    chance_NC = (cut_ND @ centre_CD.T - 4.5).softmax(dim=1)  # the result of training on the replaced labels, without its flatness
    grad_ND = (chance_NC - torch.nn.functional.one_hot(drawn_N, 4)) @ centre_CD
    view = View(received="cut_gradient", steps=(replace(step, received_BD=grad_ND, sent_BD=cut_ND),), classes=4)
    by_gradient, by_prediction = (found(view, truth, name).auc.mean for name in NAMES)
    assert by_prediction > by_gradient + 0.03
    assert by_prediction > 0.9


@pytest.mark.parametrize("hidden", [0, 5])
def test_the_likelihood_is_that_of_the_gradient_under_each_label(hidden: int) -> None:
    """Compared with the loss of the top model, one label at a time, and PyTorch's normal distribution."""
    surrogate = _Surrogate(WIDTH, 3, hidden, generator())
    with torch.no_grad():
        surrogate.bias_C += torch.tensor([0.5, -1.0, 0.2])
        surrogate.bias_H += 0.3
        surrogate.out_HC += torch.randn(hidden, 3, generator=generator(4))
        surrogate.log_scale += 0.3
        surrogate.log_deviation -= 0.4
    cut_SD, grad_SD = torch.randn(7, WIDTH, generator=generator(1)), torch.randn(7, WIDTH, generator=generator(2))
    like_SC, constant = surrogate(cut_SD, grad_SD), WIDTH * torch.log(torch.tensor(2 * torch.pi)) / 2
    for label in range(3):
        cut = cut_SD.clone().requires_grad_()
        loss_S = torch.nn.functional.cross_entropy(surrogate.logits(cut), torch.full((7,), label), reduction="none")
        (mean_SD,) = torch.autograd.grad(loss_S.sum(), cut, retain_graph=True)
        normal = Normal(surrogate.log_scale.exp() * mean_SD, surrogate.log_deviation.exp())
        expected_S = normal.log_prob(grad_SD).sum(dim=1) + constant + surrogate.predicted(cut_SD)[:, label]
        torch.testing.assert_close(like_SC[:, label], expected_S, rtol=1e-4, atol=1e-4)


def test_a_view_that_cannot_be_attacked_is_no_low_figure() -> None:
    """NaN of a training that diverged, no embeddings, one class only. Equal rows are a guess."""
    truth = labels()
    view = planted_view(truth, gap=4.0, epochs=1)
    broken = replace(view.steps[1], received_BD=view.steps[1].received_BD * torch.nan)
    with pytest.raises(DataError, match=r"step 1 .* holds a cut_gradient that is NaN or infinite; training diverged"):
        found(replace(view, steps=(view.steps[0], broken)), truth)
    bare = replace(view, steps=tuple(replace(step, sent_BD=None) for step in view.steps))
    assert not ROWS.keys() & LabelInferenceEvaluation(bare, truth).usable().keys()
    with pytest.raises(DataError, match="holds no cut_embeddings"):
        SurrogateTop()(bare, generator=generator())
    assert not evaluate_label_inference(view, torch.zeros_like(truth), attacks=ROWS)
    still = [replace(step, received_BD=0 * step.received_BD, sent_BD=torch.ones_like(step.received_BD)) for step in view.steps]
    assert found(replace(view, steps=tuple(still)), truth).auc.mean == pytest.approx(0.5, abs=1e-9)


def test_a_hidden_layer_reads_what_a_linear_model_does_not() -> None:
    """Gradients of a model with a hidden layer, whose slopes change from row to row. Seeded."""
    truth = labels()
    view = sent_back(top_of(2, hidden=64), truth, noise=1.0)
    linear, bent = (evaluated(SurrogateTop(hidden=hidden), view, truth) for hidden in (0, SurrogateTop().hidden))
    assert bent > linear + 0.05
    assert bent > 0.97


@pytest.mark.parametrize("name", NAMES)
def test_gradients_that_are_all_alike_tell_nothing_whatever_embeddings_do(name: str) -> None:
    truth = labels()
    (step,) = sent_back(top_of(2), truth, gap=2.0).steps
    view = View(received="cut_gradient", steps=(replace(step, received_BD=torch.ones_like(step.received_BD)),), classes=2)
    assert found(view, truth, name).symmetric_auc.mean == 0.5


def test_what_reads_gradients_alone_finds_nothing_where_embeddings_alone_tell() -> None:
    """All attacks that are said to read gradients alone: four standard errors of .012 beyond a guess. Seeded."""
    truth = labels()
    (step,) = sent_back(top_of(2), truth, gap=2.0).steps
    view = planted_view(truth, gap=0.0, batch=ROWS_SEEN, epochs=1)
    (noise,) = view.steps
    view = replace(view, steps=(replace(noise, sent_BD=step.sent_BD[noise.rows_B]),))
    named = {n: row for n, row in LABEL_INFERENCE_ATTACKS.items() if row.reads == "cut_gradient" and not row.with_embeddings}
    told = evaluate_label_inference(view, truth, attacks={n: row for n, row in named.items() if row.allows(2)}, evaluator=ONCE)
    assert {"norm", "spectral-averaged", "completion-gradient", "probe-gradient"} <= told.keys()
    for name, metrics in told.items():
        assert metrics.symmetric_auc.mean < metrics.chance_symmetric_auc + 0.048, name
    both = [(n, row) for n, row in LABEL_INFERENCE_ATTACKS.items() if row.tells_of_both and row.allows(2)]
    told = {n for n, row in both if not row.from_start and not row.from_flip}
    assert told == {"completion-both", "surrogate-top", "surrogate-top-prediction", "combined", "probe-bilinear"}
    told = evaluate_label_inference(
        view, truth, attacks={"completion-both": LABEL_INFERENCE_ATTACKS["completion-both"]}, evaluator=ONCE
    )
    assert told["completion-both"].auc.mean > 0.6


@pytest.mark.parametrize("classes", [3, 6])
def test_known_labels_name_the_classes_and_add_to_what_gradients_tell(classes: int) -> None:
    """Compared with the same forty labels on embeddings alone. Classes are a deviation apart, half of one over
    gradients. Seeded.
    """
    truth = labels(classes)
    view = sent_back(top_of(classes), truth, noise=0.5, gap=1.0)
    rows = {name: LABEL_INFERENCE_ATTACKS[name] for name in ("surrogate-top-few", "completion")}
    told = evaluate_label_inference(replace(view, classes=classes), truth, attacks=rows, evaluator=ONCE)
    assert told["surrogate-top-few"].chance_auc == 0.5  # named, so that naming lifts no guess
    assert told["surrogate-top-few"].auc.mean > told["completion"].auc.mean + 0.02


def test_of_some_starts_the_likeliest_is_fitted_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    likely: dict[_Surrogate, float] = {}
    calls: list[tuple[_Surrogate, int]] = []
    fit, likelihood = _Fitting.__call__, _Fitting.likelihood

    def fitted(self: _Fitting, surrogate: _Surrogate, steps: int, **told: Any) -> None:
        calls.append((surrogate, steps))
        fit(self, surrogate, steps, **told)

    def looked_at(self: _Fitting, surrogate: _Surrogate) -> float:
        likely[surrogate] = likelihood(self, surrogate)
        return likely[surrogate]

    monkeypatch.setattr(_Fitting, "__call__", fitted)
    monkeypatch.setattr(_Fitting, "likelihood", looked_at)
    SurrogateTop(steps=8, starts=3)(sent_back(top_of(2), labels(2), gap=1.0), generator=generator(1))
    assert [steps for _, steps in calls] == [2, 2, 2, 8]
    assert len(likely) == 3
    assert calls[-1][0] is max(likely, key=likely.__getitem__)


class _Largest(TorchDispatchMode):
    """Records the greatest number of values in a tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.values = max(self.values, made.numel() if isinstance(made, torch.Tensor) else 0)
        return made


def test_many_classes_take_no_more_room_than_their_probabilities() -> None:
    """With memory for rows times classes squared, an audit of a thousand classes would end a trained run for lack of memory."""
    surrogate, rows, classes = _Surrogate(WIDTH, 1000, 0, generator()), 40, 1000
    with _Largest() as largest:
        surrogate(torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)).logsumexp(dim=1).mean().backward()
    assert largest.values <= rows * classes


@pytest.mark.parametrize("option", ["steps", "batch", "rate", "sample", "starts"])
def test_options_out_of_range_are_named(option: str) -> None:
    with pytest.raises(ConfigError, match=f"surrogate top: {option}=0; expected"):
        SurrogateTop(**{option: 0})


def test_a_hidden_layer_of_fewer_than_no_units_is_refused() -> None:
    with pytest.raises(ConfigError, match="surrogate top: hidden=-1; expected at least 0"):
        SurrogateTop(hidden=-1)


def test_one_fit_serves_both_guesses_that_are_drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, fits = labels(2), []
    fitted = SurrogateTop._fitted

    def counted(self: SurrogateTop, *given: Any) -> _Surrogate:
        fits.append(self.guess)
        return fitted(self, *given)

    monkeypatch.setattr(SurrogateTop, "_fitted", counted)
    guesses = [SurrogateTop(steps=5), SurrogateTop(steps=5, guess="prediction")]
    view = sent_back(top_of(2), truth)
    together = [guess(view, generator=generator(1)) for guess in guesses]
    assert len(fits) == 1
    apart = [guess(sent_back(top_of(2), truth), generator=generator(1)) for guess in guesses]
    assert all(torch.equal(one.values[0], other.values[0]) for one, other in zip(together, apart, strict=True))
    guesses[0](view, generator=generator(2))  # other draws give another fit, and so do other steps
    SurrogateTop(steps=6)(view, generator=generator(1))
    assert len(fits) == 5
