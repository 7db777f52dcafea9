"""Membership attacks on views with a known answer, one row of the table per attack."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from tallystick.attacks.membership.agreement import InferredLabelAgreement, LabelAgreement, OwnColumnAgreement
from tallystick.attacks.membership.cells import UniqueCells
from tallystick.attacks.membership.consistency import Consistency
from tallystick.attacks.membership.direction import DirectionFlips, GradientDirection
from tallystick.attacks.membership.discriminator import LearnedDiscriminator
from tallystick.attacks.membership.evaluate import EVALUATOR, evaluate_membership
from tallystick.attacks.membership.identical import IdenticalEmbeddings
from tallystick.attacks.membership.spectral import SpectralMembership
from tallystick.attacks.membership.twins import TwinEmbeddings
from tallystick.attacks.scoring import AttackEvaluator, AttackMetrics, Bootstrap, rank_auc
from tallystick.attacks.view import Attack, Scores, StepView, View
from tallystick.errors import ConfigError, DataError

ROWS, WIDTH, BATCH, EPOCHS = 600, 8, 100, 3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def truth() -> torch.Tensor:
    return torch.arange(ROWS) % 2 == 0


Maker = Callable[[torch.Tensor, torch.Generator], tuple[torch.Tensor, torch.Tensor | None]]


def view_of(make: Maker, *, seed: int = 0, lacking: int = 0, planted: int = 0) -> View:
    """Make a run in which ``make(rows_B, generator)`` returns what is received and the targets."""
    source = generator(seed)
    steps = []
    for epoch in range(EPOCHS):
        for rows_B in torch.randperm(ROWS, generator=source).split(BATCH):
            received_BD, targets_B = make(rows_B, source)
            steps.append(
                StepView(epoch=epoch, rows_B=rows_B, own_B=rows_B >= lacking, received_BD=received_BD, targets_B=targets_B)
            )
    odd = torch.arange(planted) * 2 + 1
    return View(received="cut_gradient", steps=tuple(steps), known_absent=odd if planted else None)


LABEL = torch.rand(ROWS, generator=generator(9)) < 0.25
REAL_EMBEDDING = torch.rand(ROWS, WIDTH, generator=generator(8)) * 3
SLOPE = torch.rand(WIDTH, generator=generator(7)) + 0.5


def gradients(label_B: torch.Tensor, source: torch.Generator) -> torch.Tensor:
    p_B = 0.1 + 0.1 * torch.rand(len(label_B), generator=source)
    return (p_B - label_B.float())[:, None] * SLOPE * (1 + 0.1 * torch.randn(len(label_B), WIDTH, generator=source))


def majority(rows_B: torch.Tensor, source: torch.Generator) -> tuple[torch.Tensor, None]:
    return gradients(LABEL[rows_B] & truth()[rows_B], source), None


def fresh_labels(rows_B: torch.Tensor, source: torch.Generator) -> tuple[torch.Tensor, None]:
    drawn_B = torch.rand(len(rows_B), generator=source) < 0.25
    return gradients(torch.where(truth()[rows_B], LABEL[rows_B], drawn_B), source), None


def outliers(rows_B: torch.Tensor, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    noise_BD = 9 * torch.randn(len(rows_B), WIDTH, generator=source)
    return torch.where(truth()[rows_B][:, None], REAL_EMBEDDING[rows_B], noise_BD), LABEL[rows_B].float()


def two_clusters(rows_B: torch.Tensor, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shift_BD = torch.where(truth()[rows_B][:, None], 1.0, -1.0)
    return shift_BD + torch.randn(len(rows_B), WIDTH, generator=source), LABEL[rows_B].float()


def fresh_donors(rows_B: torch.Tensor, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    donor_B = torch.where(truth()[rows_B], rows_B, torch.randint(ROWS, rows_B.shape, generator=source))
    return REAL_EMBEDDING[donor_B], LABEL[rows_B].float()


def kept_donors(rows_B: torch.Tensor, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Each absent row keeps one of 100 donors. A batch's common drift shifts all its rows."""
    donor_B = torch.where(truth()[rows_B], rows_B, 2 * (rows_B // 2 % 100))
    return REAL_EMBEDDING[donor_B] + torch.randn(1, WIDTH, generator=source), LABEL[rows_B].float()


def batch_copies(rows_B: torch.Tensor, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    cut_BD = REAL_EMBEDDING[rows_B].clone()
    absent_B = ~truth()[rows_B]
    few = torch.nonzero(absent_B).squeeze(1)
    cut_BD[few] = cut_BD[torch.nonzero(truth()[rows_B]).squeeze(1)[:5]].repeat(20, 1)[: len(few)]
    return cut_BD, LABEL[rows_B].float()


def honest(rows_B: torch.Tensor, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return REAL_EMBEDDING[rows_B] + 0.1 * torch.randn(len(rows_B), WIDTH, generator=source), LABEL[rows_B].float()


def blind(rows_B: torch.Tensor, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings that show the label of a real row, and for an absent row that of another row."""
    told_B = torch.where(truth()[rows_B], LABEL[rows_B], LABEL[(rows_B * 7 + 3) % ROWS])
    return told_B[:, None] * 2.0 + honest(rows_B, source)[0], LABEL[rows_B].float()


def told(rows_B: torch.Tensor, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings that show every row's own label."""
    return LABEL[rows_B, None] * 2.0 + honest(rows_B, source)[0], LABEL[rows_B].float()


def evaluated(attack: Attack, view: View) -> AttackMetrics:
    metrics = EVALUATOR(attack(view, generator=generator()), truth(), bootstrap=Bootstrap(0))
    assert metrics is not None
    return metrics


@pytest.mark.parametrize(
    ("attack", "maker", "least"),
    [
        (SpectralMembership(), outliers, 0.9),
        (SpectralMembership(signed=True), two_clusters, 0.99),
        (GradientDirection(), majority, 0.59),
        (DirectionFlips(), fresh_labels, 0.7),
        (Consistency(), fresh_donors, 0.95),
        (IdenticalEmbeddings(), batch_copies, 0.9),
        (IdenticalEmbeddings(pool=2), batch_copies, 0.9),
        (TwinEmbeddings(), kept_donors, 0.7),
        (LabelAgreement(), blind, 0.6),
        (LearnedDiscriminator(), outliers, 0.95),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_each_attack_finds_what_it_is_aimed_at(attack: Attack, maker: Maker, least: float) -> None:
    """Seeded, so it cannot fail by chance; the bars are below the theory for these views."""
    assert evaluated(attack, view_of(maker, lacking=40, planted=40)).symmetric_auc.mean >= least


@pytest.mark.parametrize(
    "attack",
    [SpectralMembership(), GradientDirection(), DirectionFlips(), Consistency(), IdenticalEmbeddings(), LearnedDiscriminator()],
)
def test_no_attack_finds_what_is_not_there(attack: Attack) -> None:
    """Real and synthetic rows have one distribution: the symmetric AUC stays near its null value. Seeded."""
    metrics = evaluated(attack, view_of(honest, lacking=40, planted=40))
    assert metrics.symmetric_auc.mean < metrics.chance_symmetric_auc + 0.06


def test_agreement_finds_nothing_where_all_embeddings_go_with_their_labels_and_asks_for_labels() -> None:
    metrics = evaluated(LabelAgreement(), view_of(told, lacking=40))
    assert metrics.symmetric_auc.mean < 0.56  # 560 rows: the standard error of an AUC is .024
    unlabelled = evaluate_membership("cut_embedding", [replace(step, targets_B=None) for step in view_of(told).steps], truth())
    assert "agreement" not in unlabelled.found
    assert unlabelled.not_measured["agreement"] == "it needs the receiving party's labels, which are not in the view"


SCORE = torch.randn(ROWS, generator=generator(11))
COLUMNS = SCORE[:, None] + 0.3 * torch.randn(ROWS, WIDTH, generator=generator(12))


def kept_labels(rate: float, *, imputed_ignore_columns: bool) -> View:
    """Labels that never flip: real ones depend on the columns, imputed ones may or may not. Embeddings rotate with the epochs."""
    source, steps = generator(13), []
    above_N = SCORE.quantile(1 - rate) < SCORE
    drawn_N = above_N[torch.randperm(ROWS, generator=source)] if imputed_ignore_columns else above_N
    label_N = torch.where(truth(), above_N, drawn_N)
    for epoch in range(EPOCHS):
        turn_DD = torch.linalg.qr(torch.eye(WIDTH) + 0.2 * torch.randn(WIDTH, WIDTH, generator=source)).Q
        for rows_B in torch.randperm(ROWS, generator=source).split(BATCH):
            own_B, received_BD = torch.ones(len(rows_B), dtype=torch.bool), gradients(label_N[rows_B], source)
            steps.append(
                StepView(epoch=epoch, rows_B=rows_B, own_B=own_B, received_BD=received_BD, sent_BD=COLUMNS[rows_B] @ turn_DD)
            )
    return View(received="cut_gradient", steps=tuple(steps))


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_labels_that_never_flip_are_told_by_what_agrees_with_embeddings_or_own_columns(rate: float) -> None:
    """Seeded. Even labels, too, where no batch shows which of its sides is which."""
    view, null = (kept_labels(rate, imputed_ignore_columns=ignore) for ignore in (True, False))
    unshown = replace(view, steps=tuple(replace(step, sent_BD=None) for step in view.steps))
    assert evaluated(DirectionFlips(), view).symmetric_auc.mean < 0.53
    for told in (view, replace(unshown, own_NA=COLUMNS)):
        assert evaluated(InferredLabelAgreement(), told).auc.mean > 0.62
    assert evaluated(InferredLabelAgreement(), null).symmetric_auc.mean < 0.56  # 600 rows: the standard error of an AUC is .024
    leaks = evaluate_membership("cut_gradient", unshown.steps, truth())
    assert "agreement" not in leaks.found
    assert any("agreement" in names and "columns or embeddings" in why for names, why in leaks.not_measured.items())


@pytest.mark.parametrize(("known", "least", "most"), [("the row's own", 0.97, 1.0), ("some other row's", 0.5, 0.56)])
def test_own_columns_tell_made_up_rows_by_what_goes_with_the_embedding(known: str, least: float, most: float) -> None:
    """Columns are half of the embedding, and noise the rest; a made-up row has another's.

    If they belong to no row they show nothing. No label depends on an embedding here. Seeded; 600 rows: the standard error of an
    AUC is .024.
    """
    view = view_of(fresh_donors)
    shown_N = torch.arange(ROWS) if known == "the row's own" else torch.randperm(ROWS, generator=generator(5))
    own_NA = REAL_EMBEDDING[shown_N, : WIDTH // 2] + 0.3 * torch.randn(ROWS, WIDTH // 2, generator=generator(6))
    one_epoch = view.steps[: ROWS // BATCH]
    leaks = evaluate_membership("cut_embedding", one_epoch, truth(), own_UA=own_NA)
    assert least <= leaks.found["agreement-own"].symmetric_auc.mean <= most
    assert leaks.found["agreement"].symmetric_auc.mean < 0.58
    unlabelled = tuple(replace(step, targets_B=None) for step in one_epoch)
    alone = evaluated(OwnColumnAgreement(), replace(view, received="cut_embedding", steps=unlabelled, own_NA=own_NA))
    assert least <= alone.symmetric_auc.mean <= most


def test_without_own_columns_their_agreement_is_not_measured_and_that_is_said() -> None:
    for own_UA in (None, torch.empty(ROWS, 0)):
        leaks = evaluate_membership("cut_embedding", view_of(told).steps, truth(), own_UA=own_UA)
        assert "agreement-own" not in leaks.found
        assert leaks.not_measured["agreement-own"].startswith("it needs the receiving party's columns")
    constant = evaluate_membership("cut_embedding", view_of(fresh_donors).steps, truth(), own_UA=torch.ones(ROWS, 3))
    assert constant.found["agreement-own"].symmetric_auc.mean < 0.56
    with pytest.raises(DataError, match="own columns of 5 rows for a view of 600"):
        replace(view_of(told), own_NA=torch.ones(5, 1))


@pytest.mark.parametrize("together", [1, 2])
def test_values_of_one_row_alone_mark_it_as_real_and_values_of_as_many_rows_do_not(together: int) -> None:
    """Planted: made-up rows copy cells of real ones, in each column of another row. Absent: values from the same few. Seeded."""
    copied_NC, common_NC = (
        torch.randn(ROWS, 6, generator=generator(1)),
        torch.randint(4, (ROWS, 6), generator=generator(2)).float(),
    )
    donors = torch.nonzero(truth()).squeeze(1)
    for pair in range(0, 6, 2):  # a donor gives two columns at a time
        chosen = donors[torch.randint(len(donors), (ROWS // 2,), generator=generator(pair))]
        copied_NC[~truth(), pair : pair + 2] = copied_NC[chosen, pair : pair + 2]
    found, none = (
        evaluated(UniqueCells(together=together), replace(view_of(honest), sent_NC=sent_NC)) for sent_NC in (copied_NC, common_NC)
    )
    assert found.symmetric_auc.mean > 0.9
    assert found.tpr_at_fpr.mean > 0.1
    assert none.symmetric_auc.mean < 0.57
    leaks = evaluate_membership("cut_embedding", view_of(honest).steps, truth(), sent=copied_NC.__getitem__)
    assert leaks.found["unique-cells"].symmetric_auc.mean > 0.9
    assert "unique-cells" in ", ".join(evaluate_membership("cut_embedding", view_of(honest).steps, truth()).not_measured)


def test_majority_labels_leak_a_share_of_positives_without_a_false_alarm() -> None:
    """The direction attack's TPR at FPR 0 is the members' rate of positives, and its AUC one half plus half of it."""
    view = view_of(majority)
    rate = float(LABEL[truth()].double().mean())
    metrics = evaluated(GradientDirection(), view)
    assert metrics.tpr_at_fpr.mean == pytest.approx(rate, abs=0.03)
    assert evaluated(GradientDirection(), view).symmetric_auc.mean > SPECTRAL_CHANCE
    assert evaluated(DirectionFlips(), view).symmetric_auc.mean == pytest.approx(0.5, abs=0.02)  # nothing flips


SPECTRAL_CHANCE = 0.55


def test_absolute_projection_folds_two_equal_clusters() -> None:
    """The paper's attack can miss Gaussian features that differ only in their centre; seeded."""
    view = view_of(two_clusters)
    assert evaluated(SpectralMembership(label_scale=0), view).symmetric_auc.mean < 0.7
    assert evaluated(SpectralMembership(label_scale=0, signed=True), view).symmetric_auc.mean > 0.99


@pytest.mark.parametrize(("rows", "columns"), [(40, 7), (7, 40)])
def test_spectral_score_is_the_projection_on_the_top_singular_vector(rows: int, columns: int) -> None:
    received_BD = torch.randn(rows, columns, generator=generator(2))
    step = StepView(epoch=0, rows_B=torch.arange(rows), own_B=torch.ones(rows, dtype=torch.bool), received_BD=received_BD)
    scores = SpectralMembership()(View(received="cut_gradient", steps=(step,)), generator=generator())
    centred = (received_BD - received_BD.mean(dim=0)).double().numpy()
    expected = np.abs(centred @ np.linalg.svd(centred)[2][0])
    assert np.corrcoef(-scores.values[0].numpy(), expected)[0, 1] == pytest.approx(1)
    assert scores.values[0].argmin() == expected.argmax()


def test_rows_whose_presence_is_known_anyhow_are_not_scored() -> None:
    view = view_of(honest, lacking=50, planted=10)
    scores = SpectralMembership()(view, generator=generator())
    rows = set(torch.cat(scores.rows).tolist())
    assert rows == set(range(50, ROWS))  # planted rows 1, 3, ..., 19 lie below 50
    whole = LearnedDiscriminator()(view, generator=generator())
    assert set(whole.rows[0].tolist()) == set(range(50, ROWS))


def test_learned_attack_works_without_planted_rows() -> None:
    """Positive-unlabelled: rows that the attacker lacks (certainly real, here even ids) against the rest. Seeded."""
    view = view_of(outliers)
    even = torch.arange(0, 100, 2)
    view = View(received="cut_embedding", steps=view.steps, known_present=even)
    assert evaluated(LearnedDiscriminator(), view).symmetric_auc.mean > 0.9
    blind = View(received="cut_embedding", steps=view.steps)
    assert len(LearnedDiscriminator()(blind, generator=generator()).rows[0]) == 0


def test_one_epoch_gives_the_attacks_across_epochs_nothing() -> None:
    view = view_of(fresh_donors)
    one = View(received="cut_embedding", steps=view.steps[: ROWS // BATCH])
    for attack in (Consistency(), DirectionFlips()):
        assert EVALUATOR(attack(one, generator=generator()), truth(), bootstrap=Bootstrap(0)) is None


def test_identical_embeddings_are_found_exactly_and_never_missed() -> None:
    """A row's score is 0 if, and only if, another row of its pool has the same embedding."""
    source = generator(3)
    received_BD = torch.rand(300, 5, generator=source)
    donors, copies = torch.arange(100, 120), torch.arange(0, 20)
    received_BD[copies] = received_BD[donors]
    rows_B = torch.arange(300)
    steps = tuple(
        StepView(epoch=0, rows_B=part_B, own_B=torch.ones(150, dtype=torch.bool), received_BD=received_BD[part_B])
        for part_B in rows_B[torch.randperm(300, generator=source)].split(150)
    )
    scores = IdenticalEmbeddings(pool=2)(View(received="cut_embedding", steps=steps), generator=generator())
    found = torch.cat(scores.rows)[torch.cat(scores.values) == 0]
    assert set(found.tolist()) == {*donors.tolist(), *copies.tolist()}


def test_evaluator_against_sklearn() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        real_N = rng.random(60) < 0.4
        score_N = rng.integers(0, 8, 60) + real_N * rng.random()
        assert rank_auc(real_N, score_N) == pytest.approx(roc_auc_score(real_N, score_N))
        fprs, tprs, _ = roc_curve(real_N, score_N, drop_intermediate=False)
        for fpr in (0.0, 0.1, 0.5):
            scores = Scores(rows=(torch.arange(60),), values=(torch.from_numpy(score_N),))
            metrics = AttackEvaluator(fpr=fpr, replicates=1)(scores, torch.from_numpy(real_N), bootstrap=Bootstrap(0))
            assert metrics is not None
            assert metrics.tpr_at_fpr.mean == pytest.approx(tprs[fprs <= fpr].max())
            turned = replace(scores, values=(-scores.values[0],))
            found = AttackEvaluator(fpr=fpr, replicates=1, either_end=True)(
                turned, torch.from_numpy(real_N), bootstrap=Bootstrap(0)
            )
            assert found is not None
            assert found.tpr_at_fpr.mean >= metrics.tpr_at_fpr.mean


def test_symmetric_auc_of_a_guess_is_as_stated() -> None:
    """A guess on 2,000 groups of 40 rows: the mean is the stated chance level within 0.004 (> 3 standard errors)."""
    rng = np.random.default_rng(6)
    present = torch.tensor([True, False] * 20)
    scores = Scores(rows=(torch.arange(40),) * 2000, values=tuple(torch.tensor(rng.random(40)) for _ in range(2000)))
    metrics = EVALUATOR(scores, present, bootstrap=Bootstrap(0))
    assert metrics is not None
    assert metrics.symmetric_auc.mean == pytest.approx(metrics.chance_symmetric_auc, abs=0.004)
    assert metrics.symmetric_auc.low < metrics.symmetric_auc.mean < metrics.symmetric_auc.high
    below = Scores(rows=(torch.arange(40),), values=(-present.double(),))
    folded = EVALUATOR(below, present, bootstrap=Bootstrap(0))
    assert folded is not None
    assert folded.symmetric_auc.mean == 1.0
    assert folded.tpr_at_fpr.mean == 1.0


def test_evaluator_and_view_refuse_what_they_cannot_use() -> None:
    rows = (torch.arange(2),)
    with pytest.raises(DataError, match="NaN"):
        EVALUATOR(
            Scores(rows=rows, values=(torch.tensor([0.0, torch.nan]),)), torch.tensor([True, False]), bootstrap=Bootstrap(0)
        )
    with pytest.raises(DataError, match="no step"):
        View(received="cut_gradient", steps=())
    same = Scores(rows=rows, values=(torch.zeros(2),))
    assert EVALUATOR(same, torch.tensor([True, True]), bootstrap=Bootstrap(0)) is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (AttackEvaluator, {"fpr": 1}),
        (IdenticalEmbeddings, {"pool": 0}),
        (SpectralMembership, {"label_scale": -1}),
        (TwinEmbeddings, {"queries": 0}),
        (LabelAgreement, {"most": 0}),
        (UniqueCells, {"together": 3}),
        (OwnColumnAgreement, {"penalty": 0}),
        (LearnedDiscriminator, {"hidden": 0}),
    ],
)
def test_an_argument_out_of_its_range_is_named(kind: type, value: dict[str, int]) -> None:
    ((name, given),) = value.items()
    with pytest.raises(ConfigError, match=f"{name}={given}"):
        kind(**value)


def test_audit_runs_all_attacks_and_leaves_out_those_with_nothing_to_see() -> None:
    steps = view_of(fresh_donors).steps
    found = evaluate_membership("cut_embedding", steps, truth(), planted=20).found
    assert set(found) == {"spectral", "spectral-signed", "identical", "twins", "consistency", "agreement", "learned"}
    assert found["consistency"].symmetric_auc.mean > 0.95
    assert {"symmetric_auc", "symmetric_auc_interval", "chance_symmetric_auc", "tpr_at_fpr"} <= set(found["learned"].as_figures())
    one_epoch = evaluate_membership("cut_embedding", steps[: ROWS // BATCH], truth(), planted=20).found
    assert set(found) - set(one_epoch) == {"consistency"}
    assert evaluate_membership("cut_embedding", steps, torch.ones(ROWS, dtype=torch.bool)).found == {}
    gradients = evaluate_membership("cut_gradient", view_of(majority).steps, truth(), planted=20).found
    assert set(gradients) == {"spectral", "direction", "flips", "consistency", "learned"}


def test_a_few_rows_of_a_large_table_cost_what_they_are_and_give_the_same_figures() -> None:
    """An audit of 50,000 recorded rows of 8,000,000 took 13 GiB, because attacks kept a vector per row number."""
    most: list[int] = []

    def looked(view: View, *, generator: torch.Generator) -> Scores:
        most.append(view.rows)
        return Consistency()(view, generator=generator)

    view, stride = view_of(kept_donors), 1000
    sparse = [replace(step, rows_B=step.rows_B * stride) for step in view.steps]
    truth_U = truth().repeat_interleave(stride)
    small, large = (
        evaluate_membership("cut_embedding", steps, present_U, attacks={"consistency": looked}).found
        for steps, present_U in ((view.steps, truth()), (sparse, truth_U))
    )
    assert small == large
    assert most == [ROWS, ROWS]
