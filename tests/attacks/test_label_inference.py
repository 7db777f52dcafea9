"""Label attacks on views with a known answer: every row of the table finds what is there, and none finds what is not."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from lanes import but_costly, short_lane_of
from planted import BATCH, ROWS, PlantedModel, audit_by_epoch, generator, labels, noisy_class, planted_view
from scipy.stats import norm
from tiny import short_trainings
from torch.nn.functional import cosine_similarity

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.auxiliary import ClassOrder, FewLabels, LabelsPerBatch, ShareOfLabels
from tallystick.attacks.label_inference.averaged import OverEpochs
from tallystick.attacks.label_inference.clusters import ClusterAttack
from tallystick.attacks.label_inference.completion import ModelCompletion
from tallystick.attacks.label_inference.direction import DirectionAttack
from tallystick.attacks.label_inference.energy import EnergyAttack
from tallystick.attacks.label_inference.enumeration import LabelEnumeration, agreement
from tallystick.attacks.label_inference.evaluate import evaluate_label_inference
from tallystick.attacks.label_inference.fine_tuned import FineTunedCompletion
from tallystick.attacks.label_inference.norm import NormAttack
from tallystick.attacks.label_inference.paired import PairedEnergy
from tallystick.attacks.label_inference.probe import Probe
from tallystick.attacks.label_inference.spectral import SpectralAttack, spectral_scores
from tallystick.attacks.label_inference.unflipped import UnflippedAttack
from tallystick.attacks.scoring import AttackEvaluator, AttackMetrics, Bootstrap
from tallystick.attacks.second_moments import SecondMoments, StepRows
from tallystick.attacks.view import Scores, StepView, View
from tallystick.errors import ConfigError, DataError

TRUTH, NOTHING = labels(), 0.0
FEW = TRUTH[:900]  # for which any rows show what is planted
BINARY = {name: row for name, row in LABEL_INFERENCE_ATTACKS.items() if row.binary}
OF_MEANS = [
    name for name, row in BINARY.items() if not isinstance(row.attack, EnergyAttack | PairedEnergy | UnflippedAttack)
]  # which are tested separately
TOLD = [name for name, row in LABEL_INFERENCE_ATTACKS.items() if not row.numbers and name != "combined"]
MULTICLASS = {name: row for name, row in LABEL_INFERENCE_ATTACKS.items() if row.multiclass}


def metrics_of(name: str, view: View, truth: torch.Tensor, *, classes: int = 2) -> AttackMetrics:
    return evaluate_label_inference(replace(view, classes=classes), truth, attacks={name: LABEL_INFERENCE_ATTACKS[name]})[name]


@pytest.mark.parametrize("name", but_costly(OF_MEANS, ["combined", "surrogate-top-prediction"]))
def test_each_attack_reads_a_planted_label(name: str) -> None:
    """Both classes are at least four deviations apart; seeded, so it cannot fail by chance."""
    metrics = metrics_of(name, planted_view(FEW, gap=4.0), FEW)
    assert metrics.auc.mean > 0.95
    assert metrics.balanced_accuracy.mean > 0.9
    assert metrics.auc.low <= metrics.auc.mean <= metrics.auc.high


@pytest.mark.parametrize("name", but_costly(short_lane_of(BINARY, 12), ["combined-unflipped"]))
def test_no_attack_reads_what_is_not_there(name: str) -> None:
    """The standard error of a mean AUC over at least 1,500 rows with a quarter of positives is at most 0.017. Three of
    them; seeded.
    """
    metrics = metrics_of(name, planted_view(TRUTH, gap=NOTHING), TRUTH)
    assert metrics.auc.mean == pytest.approx(0.5, abs=0.051)
    assert metrics.tpr_at_fpr.mean < 0.02
    assert metrics.symmetric_auc.mean < metrics.chance_symmetric_auc + 0.051


@pytest.mark.parametrize("share", [0.3, 3.0])
def test_low_energy_reads_a_class_by_its_silence_where_nothing_else_does(share: float) -> None:
    """Either class may be the silent one. In four epochs it has a quarter of the energy, or nine times as much; seeded."""
    view = noisy_class(TRUTH, share=share)
    assert metrics_of("low-energy", view, TRUTH).auc.mean > 0.98
    for name in ("norm-averaged", "spectral-averaged", "clusters-averaged", "high-energy"):
        assert metrics_of(name, view, TRUTH).symmetric_auc.mean < 0.65


def test_low_energy_reads_nothing_where_both_classes_are_as_silent() -> None:
    assert metrics_of("low-energy", noisy_class(TRUTH, share=1.0), TRUTH).symmetric_auc.mean < 0.53


def energies_of(x_BD: torch.Tensor) -> torch.Tensor:
    return SecondMoments()(StepRows.of(x_BD[None]))[0]


def test_energies_are_those_of_the_singular_vectors() -> None:
    """The first batch is compared with NumPy's SVD. A constant batch shows nothing, and one that diverged gives no number."""
    x_BD = torch.randn(40, 6, generator=generator()) * torch.tensor([9.0, 4.0, 2.0, 1.0, 0.5, 0.0])
    vectors = np.linalg.svd((x_BD - x_BD.mean(dim=0)).double().numpy())[2]
    projected = (x_BD - x_BD.mean(dim=0)).double().numpy() @ vectors.T
    expected = -np.log(np.stack([np.square(projected[:, 3:5]).sum(axis=1), np.square(projected[:, :3]).sum(axis=1)], axis=1))
    np.testing.assert_allclose(energies_of(x_BD).numpy(), expected - expected.mean(axis=0), atol=1e-3)
    assert not energies_of(torch.ones(5, 6)).any()
    assert energies_of(x_BD * torch.nan).isnan().all()


@pytest.mark.parametrize("name", but_costly(short_lane_of(MULTICLASS, 5), ["surrogate-top-prediction"]))
def test_attacks_on_several_classes(name: str) -> None:
    truth = labels(3)
    assert metrics_of(name, planted_view(truth, gap=5.0), truth, classes=3).auc.mean > 0.95
    guess = metrics_of(name, planted_view(truth, gap=NOTHING), truth, classes=3)
    assert guess.auc.mean == pytest.approx(guess.chance_auc, abs=0.05)


def test_spectral_and_norm_scores_have_the_auc_of_theory() -> None:
    """Binormal scores of gap d have AUC Phi(d / sqrt 2); 3,000 rows: a standard error of 0.007, three of them. Seeded."""
    expected = norm.cdf(2.5 / 2**0.5)
    view = planted_view(TRUTH, gap=2.5, epochs=1)
    assert metrics_of("spectral-embedding", view, TRUTH).auc.mean == pytest.approx(expected, abs=0.021)
    length_N = 20 + torch.randn(ROWS, generator=generator(1)) + 2.5 * TRUTH
    turn_ND = torch.nn.functional.normalize(torch.randn(ROWS, 4, generator=generator(2)), dim=1)
    long = replace(
        view, steps=tuple(replace(step, received_BD=length_N[step.rows_B, None] * turn_ND[step.rows_B]) for step in view.steps)
    )
    assert metrics_of("norm", long, TRUTH).auc.mean == pytest.approx(expected, abs=0.021)


def test_spectral_score_against_numpy() -> None:
    x_BD = torch.randn(200, 5, generator=generator()) + 6 * (torch.arange(200) < 40)[:, None]
    centred = (x_BD - x_BD.mean(dim=0)).double().numpy()
    projection = centred @ np.linalg.svd(centred)[2][0]
    signed = spectral_scores(x_BD).numpy()
    np.testing.assert_allclose(np.abs(signed), np.abs(projection), atol=1e-5)
    np.testing.assert_allclose(spectral_scores(x_BD, signed=False).numpy(), np.abs(projection), atol=1e-5)
    assert signed[:40].min() > signed[40:].max()  # the smaller cluster is high
    np.testing.assert_allclose(spectral_scores(-x_BD).numpy(), signed, atol=1e-9)


def test_absolute_spectral_score_folds_two_equal_clusters() -> None:
    """The reason for the signed score as the default; seeded."""
    truth = torch.arange(ROWS) % 2
    view = planted_view(truth, gap=4.0, epochs=1)
    row = LABEL_INFERENCE_ATTACKS["spectral-embedding"]
    rows = {signed: replace(row, attack=SpectralAttack(target="cut_embedding", signed=signed)) for signed in (True, False)}
    found = evaluate_label_inference(view, truth, attacks={str(signed): row for signed, row in rows.items()})
    assert found["True"].symmetric_auc.mean > 0.99
    assert found["False"].symmetric_auc.mean < 0.6


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("count", [1, 3])
def test_direction_is_the_mean_cosine_with_the_hints(classes: int, count: int) -> None:
    truth = labels(classes)
    view = LabelsPerBatch(count=count).reveal(planted_view(truth, gap=1.0, epochs=1), truth, rng=np.random.default_rng(0))
    scores = DirectionAttack()(view, generator=generator())
    for index, (step, values) in enumerate(zip(view.steps, scores.values, strict=True)):
        label_B = view.known_label(index)
        assert scores.rows[index].tolist() == step.rows_B[label_B < 0].tolist()
        columns = []
        for c in range(1, 2) if classes == 2 else range(classes):
            hint_HD = step.received_BD[label_B == c].double()
            assert len(hint_HD) == count
            columns.append(cosine_similarity(step.received_BD.double()[:, None], hint_HD[None], dim=2).mean(dim=1))
        expected = torch.stack(columns, dim=1)[label_B < 0]
        torch.testing.assert_close(values, expected.squeeze(1) if classes == 2 else expected)


def test_direction_uses_clean_gradients_of_the_told_rows_where_it_is_given_them() -> None:
    """Noise on everything that is received hides half of the label. An undefended hint finds more than a noisy one. Seeded."""
    view = planted_view(TRUTH, gap=3.0)
    clean = [step.received_BD for step in view.steps]
    noise = [3 * torch.randn(BATCH, 6, generator=generator(index)) for index in range(len(clean))]
    noisy = replace(
        view, steps=tuple(replace(step, received_BD=step.received_BD + n) for step, n in zip(view.steps, noise, strict=True))
    )
    one = {"direction-1": LABEL_INFERENCE_ATTACKS["direction-1"]}
    granted = evaluate_label_inference(noisy, TRUTH, clean=clean, attacks=one)["direction-1"]
    assert granted.auc.low > evaluate_label_inference(noisy, TRUTH, attacks=one)["direction-1"].auc.high
    by_epoch = audit_by_epoch(noisy, TRUTH, clean=clean, attacks=one)
    assert np.mean([found["direction-1"].auc.mean for found in by_epoch.values()]) == pytest.approx(granted.auc.mean, abs=0.03)
    told = LabelsPerBatch(count=1).reveal(noisy, TRUTH, rng=np.random.default_rng(0))
    hints = tuple(c[told.known_label(index) >= 0] for index, c in enumerate(clean))
    (score_B, *_) = DirectionAttack()(replace(told, clean_hints=hints), generator=generator()).values
    expected_B = cosine_similarity(noisy.steps[0].received_BD.double(), hints[0].double())[told.known_label(0) < 0]
    torch.testing.assert_close(score_B, expected_B)
    with pytest.raises(DataError, match="clean gradients for 1 steps"):
        evaluate_label_inference(noisy, TRUTH, clean=clean[:1], attacks=one)
    with pytest.raises(DataError, match="clean hints of step 0"):
        DirectionAttack()(replace(told, clean_hints=tuple(hint_HD * torch.nan for hint_HD in hints)), generator=generator())
    with pytest.raises(DataError, match="known_labels of step 0 has shape"):
        DirectionAttack()(replace(told, known_labels=(torch.zeros(3),) * len(told.steps)), generator=generator())


def evaluated(scores: Scores) -> AttackMetrics:
    metrics = AttackEvaluator()(scores, TRUTH, bootstrap=Bootstrap(0))
    assert metrics is not None
    return metrics


def test_inner_product_adds_length() -> None:
    view = LabelsPerBatch(count=5).reveal(planted_view(TRUTH, gap=1.0, epochs=1), TRUTH, rng=np.random.default_rng(0))
    cosine, inner = (DirectionAttack(measure=m)(view, generator=generator()).values[0] for m in ("cosine", "inner"))
    norm_B = view.steps[0].received_BD[view.known_label(0) < 0].double().norm(dim=1)
    torch.testing.assert_close(inner, cosine * norm_B)


@pytest.mark.long
def test_fresh_noise_averages_out_over_epochs() -> None:
    """Four looks halve the noise: a cosine or norm of one look is worse. One epoch gives the average nothing to add. Seeded."""
    view = planted_view(TRUTH, gap=1.0, epochs=4)
    once, averaged = metrics_of("direction-5", view, TRUTH), metrics_of("direction-averaged", view, TRUTH)
    assert averaged.auc.low > once.auc.high
    assert "norm-averaged" not in evaluate_label_inference(view.epoch(0), TRUTH)
    view = LabelsPerBatch(count=1).reveal(view, TRUTH, rng=np.random.default_rng(0))
    (rows,) = OverEpochs(attack=DirectionAttack())(view, generator=generator()).rows
    hints = torch.cat([step.rows_B[view.known_label(index) >= 0] for index, step in enumerate(view.steps)])
    assert not set(rows.tolist()) & set(hints.tolist())


def test_mean_gradient_over_epochs_tells_more_than_one_epoch() -> None:
    """Fresh noise of a defence averages out when a row's gradients are summed over epochs. Seeded."""
    view = planted_view(TRUTH, gap=1.0, epochs=4)
    few = {"completion-gradient": LABEL_INFERENCE_ATTACKS["completion-gradient"]}
    by_epoch = audit_by_epoch(view, TRUTH, attacks=few)
    best = max(found["completion-gradient"].auc.high for found in by_epoch.values())
    assert evaluate_label_inference(view, TRUTH, attacks=few)["completion-gradient"].auc.low > best


def test_completion_of_each_column_alike_finds_a_label_in_a_narrow_direction() -> None:
    """A hundred times narrower than its neighbour, as distance correlation leaves it; seeded."""
    view = planted_view(TRUTH, gap=4.0, epochs=1)
    scale_D = torch.full((view.steps[0].sent_BD.shape[1] + 1,), 1e-2)
    scale_D[-1] = 1.0
    wide = torch.randn(ROWS, 1, generator=generator(3))
    hidden = replace(
        view, steps=tuple(replace(s, sent_BD=torch.cat([s.sent_BD, wide[s.rows_B]], dim=1) * scale_D) for s in view.steps)
    )
    few = {name: LABEL_INFERENCE_ATTACKS[name] for name in ("completion", "completion-standardised")}
    found = evaluate_label_inference(hidden, TRUTH, attacks=few)
    assert found["completion-standardised"].auc.mean > 0.9
    assert found["completion"].auc.mean < 0.8


COMPLETIONS = ("completion", "completion-standardised", "completion-components")


def test_completion_of_components_finds_a_label_behind_wider_directions_and_among_many_narrow_ones() -> None:
    """Three random directions have more spread than the label's, a hundred others less; seeded."""
    view = planted_view(TRUTH, gap=2.0, epochs=1)
    wide, narrow = torch.randn(ROWS, 3, generator=generator(5)), torch.randn(ROWS, 100, generator=generator(6))
    hidden = replace(
        view,
        steps=tuple(
            replace(s, sent_BD=torch.cat([3 * wide[s.rows_B], s.sent_BD[:, :1], 0.9 * narrow[s.rows_B]], dim=1))
            for s in view.steps
        ),
    )
    few = {name: row for name, row in LABEL_INFERENCE_ATTACKS.items() if name in COMPLETIONS}
    found = {name: metrics.auc.mean for name, metrics in evaluate_label_inference(hidden, TRUTH, attacks=few).items()}
    assert found.pop("completion-components") > max(found.values()) + 0.05


def test_noise_of_every_epoch_hides_a_label_from_batches_and_not_from_their_mean() -> None:
    """Twelve looks; one batch's spectral score is little above a guess. Seeded."""
    view = planted_view(TRUTH, gap=0.4, epochs=12)
    names = ("spectral-gradient", "spectral-averaged", "clusters-averaged")
    found = evaluate_label_inference(view, TRUTH, attacks={name: LABEL_INFERENCE_ATTACKS[name] for name in names})
    assert found["spectral-gradient"].symmetric_auc.mean < 0.7
    assert found["spectral-averaged"].auc.mean > 0.95
    assert found["clusters-averaged"].auc.mean > 0.9


@pytest.mark.long
def test_gradients_and_embeddings_together_tell_more_than_either() -> None:
    """Half of the label's gap in each, with noise of their own; seeded."""
    view = planted_view(TRUTH, gap=0.8, epochs=1)
    found = evaluate_label_inference(view, TRUTH, auxiliary_labels=200)
    alone = max(found[name].auc.mean for name in ("completion", "completion-gradient"))
    assert found["completion-both"].auc.mean > alone + 0.01


def test_clusters_named_by_size_are_named_as_well_as_sizes_tell() -> None:
    """With shares 3 : 2 : 1 the sizes identify all three clusters, whichever class is the largest. Seeded."""
    truth, name = labels(3), "clusters-size-embedding"
    fit = metrics_of("clusters-embedding", planted_view(truth, gap=5.0), truth, classes=3)
    assert metrics_of(name, planted_view(truth, gap=5.0), truth, classes=3).auc.mean == pytest.approx(fit.auc.mean, abs=1e-6)
    order = ClassOrder().reveal(planted_view(truth, gap=5.0), truth, rng=np.random.default_rng(0)).class_order
    assert order is not None
    assert order.tolist() == [0, 1, 2]
    turned = 2 - truth  # now the third class is the most frequent, and the attacker is told so
    assert metrics_of(name, planted_view(turned, gap=5.0), turned, classes=3).auc.mean > 0.95
    with pytest.raises(DataError, match="in the order of their frequency"):
        LABEL_INFERENCE_ATTACKS[name].attack(planted_view(truth, gap=5.0), generator=generator())


def test_more_labels_tell_more_and_are_not_scored() -> None:
    view = planted_view(TRUTH, gap=1.5, epochs=1)
    few = {"completion": LABEL_INFERENCE_ATTACKS["completion"]}
    found = [
        evaluate_label_inference(view, TRUTH, auxiliary_labels=count, attacks=few)["completion"].auc.mean for count in (4, 400)
    ]
    assert found[0] < found[1]
    told = FewLabels(count=40).reveal(view, TRUTH, rng=np.random.default_rng(0))
    scored = ModelCompletion()(told, generator=generator()).rows[0]
    assert len(scored) == ROWS - 40
    known = torch.cat([told.known_label(index) for index in range(len(told.steps))])
    assert torch.bincount(known[known >= 0]).tolist() == [20, 20]


@pytest.mark.parametrize("hidden", [0, 16])
def test_probe_trains_on_one_half_and_scores_the_other(hidden: int) -> None:
    """Labels that are pure chance, though trained on, are not found again: a guess within three standard errors. Seeded."""
    view = ShareOfLabels().reveal(planted_view(TRUTH, gap=NOTHING, epochs=1), TRUTH, rng=np.random.default_rng(0))
    scores = Probe(hidden=hidden)(view, generator=generator())
    assert len(scores.rows[0]) == ROWS // 2
    assert evaluated(scores).auc.mean == pytest.approx(0.5, abs=0.051)


def test_network_probe_finds_what_no_line_does() -> None:
    """The label is the sign of a product of two columns. Seeded."""
    view = planted_view(TRUTH, gap=NOTHING, epochs=1)
    x_ND = torch.randn(ROWS, 4, generator=generator(4))
    truth = (x_ND[:, 0] * x_ND[:, 1] > 0).long()
    view = replace(view, steps=tuple(replace(step, sent_BD=x_ND[step.rows_B]) for step in view.steps))
    found = evaluate_label_inference(
        view, truth, attacks={name: LABEL_INFERENCE_ATTACKS[name] for name in ("probe", "probe-network")}
    )
    assert found["probe-network"].auc.mean > 0.9
    assert found["probe"].auc.mean < 0.6


@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_bilinear_probe_finds_gradients_that_turn_with_the_embedding(gap: float) -> None:
    """A gradient points up or down by label and by the sign of an embedding's column, so no line through either shows the label.

    Without a leak the AUC of 1,500 rows has a deviation of .017, so four of them are within .07. Seeded.
    """
    view = planted_view(TRUTH, gap=NOTHING, epochs=1)
    x_ND = torch.randn(ROWS, 4, generator=generator(4))
    turn_N = (2 * TRUTH - 1) * x_ND[:, 0]
    noise_ND = torch.randn(ROWS, 5, generator=generator(6))
    grad_ND = torch.cat([gap * turn_N[:, None] + 0.3 * noise_ND[:, :1], noise_ND[:, 1:]], dim=1)
    steps = tuple(replace(step, received_BD=grad_ND[step.rows_B], sent_BD=x_ND[step.rows_B]) for step in view.steps)
    names = ("probe", "probe-gradient", "probe-bilinear")
    attacks = {name: LABEL_INFERENCE_ATTACKS[name] for name in names}
    found = evaluate_label_inference(replace(view, steps=steps), TRUTH, attacks=attacks)
    for name in names if gap == 0 else names[:2]:
        assert abs(found[name].auc.mean - 0.5) < 0.07
    if gap:
        assert found["probe-bilinear"].auc.mean > 0.9


def one_step(gradients: torch.Tensor, embeddings: torch.Tensor | None = None) -> View:
    rows_B = torch.arange(len(gradients))
    step = StepView(
        epoch=0, rows_B=rows_B, own_B=torch.ones(len(rows_B), dtype=torch.bool), received_BD=gradients, sent_BD=embeddings
    )
    return View(received="cut_gradient", steps=(step,), start=lambda cut_BD: cut_BD.sum(dim=1, keepdim=True), labels=2)


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_equal_or_zero_rows_are_a_guess(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every attack all rows but the known ones have the same label: all score alike, hence AUC 0.5 exactly."""
    short_trainings(monkeypatch)
    same = torch.full((60, 4), value)
    truth = (torch.arange(60) % 3 == 0).long()
    found = evaluate_label_inference(one_step(same, same), truth, auxiliary_labels=6)
    assert set(found) == {name for name, row in BINARY.items() if not row.from_flip} - {
        "norm-averaged",
        "paired-energy",
        "completion-fine-tuned",
    }
    for metrics in found.values():
        assert metrics.auc.mean == metrics.symmetric_auc.mean == metrics.balanced_accuracy.mean == 0.5


@pytest.mark.parametrize("positives", [0, 1, 2])
def test_few_positives(positives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No attack fails. Without a positive left to find, the batch is not evaluated."""
    short_trainings(monkeypatch)
    view = one_step(torch.randn(40, 4, generator=generator()), torch.randn(40, 4, generator=generator(1)))
    truth = (torch.arange(40) < positives).long()
    found = evaluate_label_inference(view, truth, auxiliary_labels=2)
    assert ("norm" in found) == (positives > 0)
    assert ("direction-1" in found) == (positives > 1)
    assert "direction-3" not in found


def test_a_batch_of_one_row() -> None:
    assert evaluate_label_inference(one_step(torch.ones(1, 4), torch.ones(1, 4)), torch.ones(1)) == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_numbers_name_the_step(bad: float) -> None:
    view = planted_view(FEW, gap=1.0, batch=75)
    for field, names in (("received_BD", "cut_gradient"), ("sent_BD", "cut_embedding")):
        broken = getattr(view.steps[12], field).clone()
        broken[3, 1] = bad
        steps = (*view.steps[:12], replace(view.steps[12], **{field: broken}), *view.steps[13:])
        for name, row in BINARY.items():
            if row.reads == names and not (row.from_start or row.with_model):  # which read the first epoch alone, or a model
                with pytest.raises(DataError, match=rf"step 12 of the view \(epoch 1\) holds a {names} that is NaN"):
                    metrics_of(name, replace(view, steps=steps), FEW)


def test_what_was_not_recorded_is_left_out_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    short_trainings(monkeypatch)
    view = replace(planted_view(FEW, gap=4.0, epochs=1, batch=90), labels=2)
    gradients = replace(view, steps=tuple(replace(step, sent_BD=None) for step in view.steps))
    embeddings = replace(view, steps=tuple(replace(step, received_BD=torch.zeros(90, 0)) for step in view.steps))
    for kept, other, reads in ((gradients, embeddings, "cut_gradient"), (embeddings, gradients, "cut_embedding")):
        alone = {name for name, row in BINARY.items() if row.reads == reads and not row.with_embeddings}
        once = alone - {"norm-averaged", "paired-energy"}  # which compare epochs
        assert set(evaluate_label_inference(kept, FEW)) == once
        for name in once - {"completion-fine-tuned"}:  # which reads its own model
            with pytest.raises(DataError, match=f"holds no {reads}"):
                metrics_of(name, other, FEW)
    some = replace(view, steps=(*view.steps[:-1], gradients.steps[-1]))
    with pytest.raises(DataError, match="step 9 of the view"):
        evaluate_label_inference(some, FEW)


def test_views_of_another_kind_and_wrong_shape_are_errors() -> None:
    view = planted_view(TRUTH, gap=4.0, epochs=1)
    with pytest.raises(DataError, match="feature party"):
        evaluate_label_inference(replace(view, received="cut_embedding"), TRUTH)
    short = replace(view, steps=(replace(view.steps[0], received_BD=view.steps[0].received_BD[:5]),))
    with pytest.raises(DataError, match="shape"):
        metrics_of("norm", short, TRUTH)
    narrow = replace(view, steps=(view.steps[0], replace(view.steps[1], sent_BD=view.steps[1].sent_BD[:, :2])))  # type: ignore[index]
    with pytest.raises(DataError, match="width 2"):
        metrics_of("probe", narrow, TRUTH)
    with pytest.raises(DataError, match="known_labels has 1 entries for 10 steps"):
        replace(view, known_labels=(torch.zeros(1),))
    for rows_B in (torch.zeros(0).long(), torch.tensor([0, -1])):
        with pytest.raises(DataError, match="step 1 of the view"):
            replace(view, steps=(view.steps[0], replace(view.steps[1], rows_B=rows_B)))
    with pytest.raises(DataError, match="no step of epoch 7"):
        view.epoch(7)


def test_labels_that_do_not_fit_are_errors() -> None:
    view = planted_view(TRUTH, gap=4.0, epochs=1)
    with pytest.raises(DataError, match="one label per row"):
        evaluate_label_inference(view, TRUTH[:10])
    with pytest.raises(DataError, match="class numbers"):
        evaluate_label_inference(view, TRUTH + 1)
    with pytest.raises(DataError, match="class numbers"):
        evaluate_label_inference(view, TRUTH * 0.5)
    with pytest.raises(ConfigError, match="classes=1"):
        evaluate_label_inference(replace(view, classes=1), TRUTH)


@pytest.mark.parametrize("name", [name for name in BINARY if name not in MULTICLASS])
def test_binary_attacks_refuse_several_classes(name: str) -> None:
    truth = labels(3)
    with pytest.raises(ConfigError, match="3 classes"):
        metrics_of(name, planted_view(truth, gap=1.0), truth, classes=3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DirectionAttack(measure="angle"), "measure='angle'"),  # type: ignore[arg-type]
        (lambda: LabelsPerBatch(count=0), "count=0"),
        (lambda: FewLabels(count=1), "count=1"),
        (lambda: ShareOfLabels(share=1.0), "share=1.0"),
        (lambda: ModelCompletion(penalty=0), "penalty=0"),
        (lambda: Probe(steps=0), "steps=0"),
        (
            lambda: evaluate_label_inference(replace(planted_view(labels(5), gap=1.0), classes=5), labels(5), auxiliary_labels=4),
            "each of 5 classes",
        ),
    ],
)
def test_strengths_outside_their_range(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_every_epoch_by_itself() -> None:
    """A label that enters the embeddings in the second epoch is found there and not in the first. Seeded."""
    silent, telling = (planted_view(TRUTH, gap=gap, epochs=1, seed=8) for gap in (NOTHING, 3.0))
    steps = (*silent.steps, *(replace(step, epoch=1) for step in telling.steps))
    attacks = {"spectral": LABEL_INFERENCE_ATTACKS["spectral-embedding"]}
    found = audit_by_epoch(View(received="cut_gradient", steps=steps), TRUTH, attacks=attacks)
    assert list(found) == [0, 1]
    assert found[0]["spectral"].auc.mean < 0.56
    assert found[1]["spectral"].auc.mean > 0.95


def test_one_seed_gives_the_same_bits() -> None:
    view = planted_view(TRUTH[:600], gap=1.0, epochs=1)
    drawing = {name: LABEL_INFERENCE_ATTACKS[name] for name in ("direction-1", "clusters-embedding", "completion", "probe")}
    one = evaluate_label_inference(view, TRUTH, attacks=drawing, seed=3)
    assert one == evaluate_label_inference(view, TRUTH.float(), attacks=drawing, seed=3)
    assert one["completion"] != evaluate_label_inference(view, TRUTH, attacks=drawing, seed=4)["completion"]


@pytest.mark.parametrize("name", TOLD)
def test_told_labels_are_true_and_not_scored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short_trainings(monkeypatch)
    view, row = planted_view(TRUTH[:600], gap=1.0), LABEL_INFERENCE_ATTACKS[name]
    told = row.knows.reveal(view, TRUTH, rng=np.random.default_rng(1))
    for index, (step, rows_B) in enumerate(zip(told.steps, row.attack(told, generator=generator()).rows, strict=False)):
        label_B = told.known_label(index)
        assert torch.equal(label_B[label_B >= 0], TRUTH[step.rows_B][label_B >= 0])
        assert len(rows_B.unique()) == len(rows_B)
        assert not set(rows_B.tolist()) & set(step.rows_B[label_B >= 0].tolist())


def test_names_of_simple_attacks_state_what_they_read() -> None:
    assert isinstance(LABEL_INFERENCE_ATTACKS["norm"].attack, NormAttack)
    assert LABEL_INFERENCE_ATTACKS["clusters-embedding"].attack == ClusterAttack(target="cut_embedding")
    assert {name for name, row in LABEL_INFERENCE_ATTACKS.items() if row.upper_bound} == {
        "probe",
        "probe-network",
        "probe-gradient",
        "probe-bilinear",
    }
    assert LABEL_INFERENCE_ATTACKS["direction-3"].knows.describe() == "3 labels in every batch"
    assert LABEL_INFERENCE_ATTACKS["probe"].knows.describe() == "50% of all labels"


@pytest.mark.parametrize("classes", [2, 3])
def test_simulated_gradients_are_those_of_the_loss_under_each_label(classes: int) -> None:
    """Compared with the loss itself, one label at a time, on a network with a hidden layer."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1 if classes == 2 else classes))
    cut_BD, grad_BD = torch.randn(7, 5), torch.randn(7, 5)
    found_BC = agreement(network, cut_BD, grad_BD, classes)
    for label in range(classes):
        cut = cut_BD.clone().requires_grad_()
        truth_B = torch.full((7,), label)
        logit_BO = network(cut)
        loss = (
            torch.nn.functional.binary_cross_entropy_with_logits(logit_BO[:, 0], truth_B.float(), reduction="sum")
            if classes == 2
            else torch.nn.functional.cross_entropy(logit_BO, truth_B, reduction="sum")
        )
        (expected_BD,) = torch.autograd.grad(loss, cut)
        expected_B = cosine_similarity(grad_BD.double(), expected_BD.double(), dim=1)
        torch.testing.assert_close(found_BC[:, label], expected_B, atol=1e-5, rtol=1e-5)


def test_enumeration_takes_the_best_of_all_mappings_of_clusters_to_labels() -> None:
    """Compared with all 24 permutations."""
    truth = labels(4)
    view = planted_view(truth, gap=1.5, epochs=1)
    (guess_NC,) = LabelEnumeration(clusters=True)(view, generator=generator(3)).values
    (unnamed,) = ClusterAttack(target="cut_embedding")(view, generator=generator(3)).values
    cluster_N, name_N = unnamed.argmax(dim=1), guess_NC.argmax(dim=1)
    like_NC = torch.zeros(ROWS, 4, dtype=torch.float64)
    for step in view.steps:
        like_NC[step.rows_B] = agreement(view.start, step.sent_BD, step.received_BD, 4)
    like_NC -= like_NC.mean(dim=0)
    total = {
        names: sum(float(like_NC[cluster_N == k, name].sum()) for k, name in enumerate(names)) for names in permutations(range(4))
    }
    best = max(total, key=total.__getitem__)
    assert name_N.tolist() == [best[k] for k in cluster_N.tolist()]


def test_enumeration_with_the_start_of_another_seed_guesses() -> None:
    """An attacker who does not know the top model's start simulates another one. Standard error of the AUC: at most .011; four of
    them.
    """
    view = planted_view(TRUTH, gap=4.0)
    across_D = torch.nn.functional.one_hot(torch.tensor(5), 6).float()  # an axis along which no gradient lies
    other = replace(view, start=lambda cut_BD: cut_BD @ across_D[:, None])
    assert metrics_of("enumeration", other, TRUTH).auc.mean == pytest.approx(0.5, abs=0.045)


@pytest.mark.long
def test_enumeration_says_what_it_lacks() -> None:
    view = replace(planted_view(TRUTH, gap=4.0), start=None)
    with pytest.raises(DataError, match=r"has no initial top model \(View.start\)"):
        LabelEnumeration()(view, generator=generator())
    assert not {"enumeration", "enumeration-clusters"} & evaluate_label_inference(view, TRUTH).keys()


def test_a_few_rows_of_a_large_table_cost_what_they_are_and_give_the_same_figures() -> None:
    most: list[int] = []
    row = LABEL_INFERENCE_ATTACKS["spectral-averaged"]

    def looked(view: View, *, generator: torch.Generator) -> Scores:
        most.append(view.rows)
        return row.attack(view, generator=generator)

    view, stride = planted_view(TRUTH, gap=1.0), 1000
    sparse = replace(view, steps=tuple(replace(step, rows_B=step.rows_B * stride) for step in view.steps))
    attacks = {"spectral-averaged": replace(row, attack=looked)}
    small = evaluate_label_inference(view, TRUTH, attacks=attacks)
    large = evaluate_label_inference(sparse, TRUTH.repeat_interleave(stride), attacks=attacks)
    assert small == large
    assert most == [ROWS, ROWS]


def test_fine_tuning_trains_a_copy_of_the_model() -> None:
    view = planted_view(TRUTH, gap=4.0, epochs=1)
    assert view.own_model is not None
    before = {name: weight.clone() for name, weight in view.own_model.state_dict().items()}
    told = FewLabels(count=10).reveal(view, TRUTH, rng=np.random.default_rng(0))
    one, other = (FineTunedCompletion(steps=steps)(told, generator=generator()).values[0] for steps in (1, 20))
    assert not torch.equal(one, other)
    assert all(torch.equal(weight, before[name]) for name, weight in view.own_model.state_dict().items())


def test_fine_tuning_says_what_it_lacks() -> None:
    view = planted_view(FEW, gap=4.0)
    with pytest.raises(DataError, match=r"has no bottom model of the attacker's own \(View.own_model\)"):
        FineTunedCompletion()(replace(view, own_model=None), generator=generator())
    spoilt = replace(view, own_model=PlantedModel(torch.full((len(FEW), 6), torch.nan)))
    with pytest.raises(DataError, match="NaN or infinite; training diverged"):
        metrics_of("completion-fine-tuned", spoilt, FEW)
