"""Numeric targets, read from the first steps: planted, absent, and what is said if nothing can be read."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from planted import generator
from scipy.stats import pearsonr, spearmanr

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.auxiliary import FewKnownNumbers
from tallystick.attacks.label_inference.few_numbers import FewNumbers
from tallystick.attacks.label_inference.first_steps import FirstSteps
from tallystick.attacks.label_inference.numbers import NumberMetrics, evaluate_on_numbers
from tallystick.attacks.view import StepView, View
from tallystick.errors import ConfigError, DataError

ROWS, BATCH, WIDTH, EPOCHS = 1200, 100, 6, 3
NUMBERS = {name: row for name, row in LABEL_INFERENCE_ATTACKS.items() if row.numbers}


def regression(*, told: bool = True, epochs: int = EPOCHS, seed: int = 0) -> tuple[View, torch.Tensor]:
    """Make a model that knows nothing in its first epoch, and later all but noise; its slope changes with its prediction.

    Half of the target follows from the embeddings. With ``told`` false the gradients are those of other numbers.
    """
    source = generator(seed)
    cut_ND, hidden_N = torch.randn(ROWS, WIDTH, generator=source), torch.randn(ROWS, generator=source)
    learnt_N, noise_N = (cut_ND[:, 0] + hidden_N) / 2**0.5, 0.3 * torch.randn(ROWS, generator=source)
    target_N = (learnt_N + noise_N).exp()  # a long upper tail
    sent_N = target_N if told else target_N[torch.randperm(ROWS, generator=source)]
    cut_ND = cut_ND if told else torch.randn(ROWS, WIDTH, generator=source)
    slope_ND = 1.0 + 0.1 * torch.randn(ROWS, WIDTH, generator=source)
    turn_D = torch.randn(WIDTH, generator=source)
    steps = []
    for epoch in range(epochs):
        guess_N = sent_N.mean() if epoch == 0 else (sent_N.log() - noise_N).exp() if told else sent_N.mean()
        along_ND = slope_ND if epoch == 0 else slope_ND + 0.3 * (torch.as_tensor(guess_N).expand(ROWS)[:, None]).log() * turn_D
        for rows_B in torch.randperm(ROWS, generator=source).split(BATCH):
            gradient_ND = (guess_N - sent_N)[:, None] * along_ND
            own_B = torch.ones(len(rows_B), dtype=torch.bool)
            given = {"received_BD": gradient_ND[rows_B], "sent_BD": cut_ND[rows_B]}
            steps.append(StepView(epoch=epoch, rows_B=rows_B, own_B=own_B, **given))
    return View(received="cut_gradient", steps=tuple(steps), classes=0), target_N


def found(name: str, view: View, target_N: torch.Tensor) -> NumberMetrics:
    metrics = evaluate_on_numbers(NUMBERS[name].attack, view, target_N, knows=NUMBERS[name].knows)
    assert metrics is not None
    return metrics


def test_the_rows_of_the_first_steps_are_ranked_and_all_others_by_them() -> None:
    """Half of the logarithm's variance is in the embeddings, so no ranking of these has more than about .7. Seeded."""
    view, target_N = regression()
    first, embedding, gradient = (found(name, view, target_N) for name in NUMBERS if name.startswith("first-steps"))
    assert first.spearman.mean > 0.95
    assert first.rows == 3 * BATCH
    assert embedding.rows == gradient.rows == ROWS - 3 * BATCH
    assert 0.5 < embedding.spearman.mean < 0.75
    assert gradient.spearman.mean > 0.9
    for each in (first, embedding, gradient):
        assert each.spearman.low <= each.spearman.mean <= each.spearman.high


def test_forty_known_numbers_rank_the_others_by_embeddings_gradients_and_both() -> None:
    """As above no ranking of the embeddings has more than about .7; gradients of later epochs show the rest. Seeded."""
    view, target_N = regression()
    metrics = {name: found(name, view, target_N) for name in NUMBERS if name.startswith("few-numbers")}
    assert {each.rows for each in metrics.values()} == {ROWS - 40}
    assert 0.35 < metrics["few-numbers-embedding"].spearman.mean < 0.75
    assert metrics["few-numbers-gradient"].spearman.mean > 0.7
    assert metrics["few-numbers-both"].spearman.mean > 0.7


def test_known_numbers_are_of_rows_that_were_seen_and_at_most_half_of_them() -> None:
    view, target_N = regression()
    known_N = FewKnownNumbers(count=40).reveal(view, target_N, rng=np.random.default_rng(0)).known_numbers
    assert known_N is not None
    told_N = ~known_N.isnan()
    assert int(told_N.sum()) == 40
    assert torch.equal(known_N[told_N], target_N[told_N].double())
    few = replace(view, steps=view.steps[:1])
    known_N = FewKnownNumbers(count=10_000).reveal(few, target_N, rng=np.random.default_rng(0)).known_numbers
    assert known_N is not None
    assert int((~known_N.isnan()).sum()) == BATCH // 2
    with pytest.raises(ConfigError, match="count=0"):
        FewKnownNumbers(count=0)
    with pytest.raises(DataError, match="0 of the rows seen are known"):
        FewNumbers(reads="embedding")(view, generator=generator())
    with pytest.raises(ConfigError, match="3 classes"):
        FewNumbers(reads="embedding")(replace(view, classes=3), generator=generator())


def test_the_longer_tail_is_taken_for_the_high_one() -> None:
    for sign in (1, -1):
        view, target_N = regression()
        scores = FirstSteps()(turned(view, sign), generator=generator())
        assert spearmanr(scores.values[0], target_N[scores.rows[0]]).statistic > 0.95


def turned(view: View, sign: int) -> View:
    """Make the view of a run whose gradients all point the other way."""
    return replace(view, steps=tuple(replace(step, received_BD=sign * step.received_BD) for step in view.steps))


@pytest.mark.parametrize("name", NUMBERS)
def test_no_attack_ranks_numbers_that_are_not_there(name: str) -> None:
    """A guess over 300 rows has a standard error of .058: three and a half of them. Seeded."""
    metrics = found(name, *regression(told=False))
    assert metrics.spearman.mean < 0.2
    assert metrics.r_squared < 0.04


def test_one_epoch_gives_no_later_gradient() -> None:
    view, target_N = regression(epochs=1)
    assert found("first-steps", view, target_N).spearman.mean > 0.95
    with pytest.raises(DataError, match="only one epoch was recorded"):
        found("first-steps-gradient", view, target_N)


def test_own_columns_stand_beside_embeddings_where_the_view_has_them() -> None:
    view, target_N = regression()
    with_columns = replace(view, own_NA=target_N[:, None].log())
    assert found("first-steps-embedding", with_columns, target_N).spearman.mean > 0.9


def test_figures_are_those_of_scipy() -> None:
    view, target_N = regression()
    scores = NUMBERS["first-steps-gradient"].attack(view, generator=generator())
    value_M, target_M = scores.values[0].numpy(), target_N[scores.rows[0]].numpy()
    metrics = found("first-steps-gradient", view, target_N)
    assert metrics.spearman.mean == pytest.approx(abs(spearmanr(value_M, target_M).statistic), abs=1e-9)
    assert metrics.r_squared == pytest.approx(pearsonr(value_M, target_M).statistic ** 2, abs=1e-6)
    guesses = [abs(spearmanr(np.random.default_rng(seed).permutation(900), target_M).statistic) for seed in range(200)]
    assert metrics.chance_spearman == pytest.approx(np.mean(guesses), abs=0.006)  # a standard error of .0014


def test_what_cannot_be_measured_is_no_low_figure() -> None:
    view, target_N = regression()
    assert evaluate_on_numbers(FirstSteps(), view, torch.ones(ROWS)) is None
    broken = replace(view.steps[0], received_BD=view.steps[0].received_BD * torch.nan)
    with pytest.raises(DataError, match="NaN or infinite"):
        found("first-steps", replace(view, steps=(broken,)), target_N)
    with pytest.raises(DataError, match="one finite number per row"):
        found("first-steps", view, target_N[:-1])
    with pytest.raises(ConfigError, match="2 classes"):
        found("first-steps", replace(view, classes=2), target_N)
    with pytest.raises(ConfigError, match="steps=0"):
        FirstSteps(steps=0)
