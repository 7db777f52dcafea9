"""Methods that train bottom models by unaligned rows: what precedes joint training, and what single steps change."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from branched import CUT, a_batch, copied, model_of, moved, one_step, own_columns, step_rule
from loops import Setting, training
from torch.nn.functional import binary_cross_entropy_with_logits as entropy
from torch.nn.functional import logsigmoid

from tallystick.config.sections import NetworkModel
from tallystick.config.unaligned import CLASSES, METHODS, MultiTaskConfig, SSVFLConfig, unaligned_problems
from tallystick.metrics import auc
from tallystick.models.build import BranchParts, build_bottom
from tallystick.models.split import OwnColumnsModel
from tallystick.tables.categories import MISSING
from tallystick.tables.features import Features, FeatureShape
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.objective import Supervised
from tallystick.training.plan import Schedule
from tallystick.training.single_process import SplitNetwork
from tallystick.training.unaligned import self_supervision
from tallystick.training.unaligned.method import OwnPart
from tallystick.training.unaligned.method_table import method_of
from tallystick.training.unaligned.schedule import rows_ratio, scheduled

ROWS = 200
SGD = training(optimizer="sgd", learning_rate=0.1)  # steps in proportion to the rate


def supervised(own):
    return Supervised("binary", (own.numeric_NF.sum(dim=1) > 0).float())


def own_part(own, folder, **how):
    return OwnPart(
        source=own.rows,
        train_N=torch.arange(len(own) - 40),
        validation_N=torch.arange(len(own) - 40, len(own)),
        training=training(**how),
        store=lambda name: CheckpointStore(folder / name),
        seed=1,
        start=1,
    )


class Asked:
    """An own part that notes what it is asked to train, and how. Nothing is trained."""

    def train(self, model, _objective, _name, **how):
        self.model, self.how = model, how
        with torch.no_grad():
            for weight in model.bottom.parameters():
                weight.add_(1.0)


# --- a model of unaligned rows comes first


@pytest.mark.parametrize("name", ["warm-start", "offset", "average"])
def test_the_bottom_starts_from_a_model_that_unaligned_rows_have_trained(name, tmp_path):
    method, own = step_rule(name, epochs=4), own_columns(ROWS)
    model, objective = model_of(method), supervised(own)
    first = model.first if name == "average" else model
    before, index_N = copied(first), torch.arange(ROWS)
    with torch.no_grad():
        untrained = objective(first.alone([], own), index_N)[0].item()
    assert not torch.equal(first.bottom.layers[0].weight, first.alone.bottom.layers[0].weight)
    method.prepare(model, objective, own_part(own, tmp_path))
    with torch.no_grad():
        assert objective(first.alone([], own), index_N)[0].item() < 0.8 * untrained
    assert all(torch.equal(*pair) for pair in zip(first.bottom.parameters(), first.alone.bottom.parameters(), strict=True))
    if name != "warm-start":
        assert not any(by.any() for by in moved(before, first, "top").values())


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_top_starts_from_the_first_models_where_own_columns_come_in(outputs):
    method = step_rule("warm-start")
    model = model_of(method, outputs=outputs)
    before = copied(model)
    method.prepare(model, None, Asked())
    first, alone = model.top.layers[0], model.alone.top.layers[0]
    assert torch.equal(first.weight[:, CUT:], alone.weight)
    assert torch.equal(first.weight[:, :CUT], before["top.layers.0.weight"][:, :CUT])
    assert torch.equal(first.bias, alone.bias)
    for joint, of_own in zip(model.top.output.parameters(), model.alone.top.output.parameters(), strict=True):
        assert torch.equal(joint, of_own)
    own = own_columns(20)
    no_cut = torch.zeros(20, CUT)
    with torch.no_grad():  # so without the partner's columns it begins where the first model ended
        model.bottom.load_state_dict(model.alone.bottom.state_dict())
        torch.testing.assert_close(model.eval()([no_cut], own), model.local(own))


def test_a_top_of_ones_own_starts_as_it_is():
    method = step_rule("warm-start")
    model = model_of(method)
    model.top = torch.nn.Linear(CUT + 8, 1)
    before = copied(model.top)
    method.prepare(model, None, Asked())
    assert not any(by.any() for by in moved(before, model.top).values())


@pytest.mark.parametrize(("ratio", "size", "rate"), [(0.5, 32, 1.0), (2.5, 80, 2.5), (9.0, 128, 4.0)])
def test_the_first_model_is_trained_at_the_size_and_rate_of_local_batches(ratio, size, rate):
    method, asked = step_rule("warm-start", ratio=ratio, epochs=7), Asked()
    model = model_of(method)
    method.prepare(model, None, asked)
    assert asked.how == {"epochs": 7, "batch_size": size, "rate": rate}
    assert asked.model is model.alone


def joint_step(name, **settings):
    """Take a joint step of plain gradient descent. Return how much each weight moved."""
    method, own = step_rule(name, dropout=0.0, **settings), own_columns(32)
    model = model_of(method)
    before, cut_BD = copied(model), torch.randn(32, CUT, generator=torch.Generator().manual_seed(2))
    one_step(method, model, supervised(own), SGD, a_batch(torch.arange(32)), own.rows, [cut_BD])
    return moved(before, model)


@pytest.mark.parametrize("name", ["warm-start", "offset"])
def test_warm_rate_scales_the_steps_of_the_bottom_alone(name):
    """A quarter of the rate gives a quarter of the step, and 0 none. The top moves the whole step, the first model stays."""
    whole, slow, frozen = (joint_step(name, warm_rate=rate) for rate in (1.0, 0.25, 0.0))
    for weight, by in whole.items():
        if weight.startswith("bottom."):
            torch.testing.assert_close(slow[weight], by / 4, atol=1e-7, rtol=1e-4)
            assert not frozen[weight].any()
        elif weight.startswith("alone."):
            assert not by.any()
        else:
            torch.testing.assert_close(slow[weight], by)
            torch.testing.assert_close(frozen[weight], by)
    assert all(whole[f"{layer}.layers.0.weight"].any() for layer in ("bottom", "top"))


def test_the_top_goes_at_three_times_the_rate():
    """Plain gradient descent: each step is in proportion to the rate. The top over the cut alone has the usual rate."""
    method, own = step_rule("warm-start", dropout=0.0), own_columns(32)
    model, cut_BD = model_of(method), torch.randn(32, CUT, generator=torch.Generator().manual_seed(2))
    before = copied(model)
    method.start(model, own.rows, torch.arange(32))
    loss, _ = method.loss(model, supervised(own), a_batch(torch.arange(32)), [cut_BD], own)
    loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    one_step(method, model, supervised(own), SGD, a_batch(torch.arange(32)), own.rows, [cut_BD])
    for weight, by in moved(before, model).items():
        if not weight.startswith(("alone.", "bottom.")):
            rate = 0.3 if weight.startswith("top.") else 0.1
            torch.testing.assert_close(by, -rate * gradients[weight], atol=1e-7, rtol=1e-4)


def test_a_warm_starts_loss_by_hand():
    """Joint logits, and the cut's at half the weight. Nine tenths of a target are the label's, one is the first model's."""
    method, own, index_B = step_rule("warm-start", dropout=0.0), own_columns(20), torch.arange(20)
    model, cut_BD = model_of(method), torch.randn(20, CUT, generator=torch.Generator().manual_seed(2)).requires_grad_()
    label_B = (own.numeric_NF.sum(dim=1) > 0).float()
    with torch.no_grad():
        target_B = 0.9 * label_B + 0.1 * torch.sigmoid(model.alone.top(model.alone.bottom(own))[:, 0])
    joint = model.top(torch.cat([cut_BD, model.bottom(own)], dim=1))[:, 0]
    by_hand = entropy(joint, target_B) + entropy(model.cut_top(cut_BD)[:, 0], target_B) / 2
    method.start(model, own.rows, index_B.flip(0))  # every row at its position, whatever the order
    loss, targets_B = method.loss(model, supervised(own), a_batch(index_B), [cut_BD], own)
    torch.testing.assert_close(loss, by_hand)
    assert torch.equal(targets_B, label_B)
    torch.testing.assert_close(torch.autograd.grad(loss, cut_BD), torch.autograd.grad(by_hand, cut_BD))


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_towards_another_models_logits_is_a_mean_of_two(kind, weighted):
    """Cross-entropy is linear in the target. With squared errors the mean lacks a constant, and has the same gradient."""
    generator = torch.Generator().manual_seed(1)
    shape = (12, 3) if kind == "multiclass" else (12,)
    logits = torch.randn(shape, generator=generator).requires_grad_()
    prior = torch.randn(shape, generator=generator)
    label_B = torch.randint(0, 3 if kind == "multiclass" else 2, (12,), generator=generator)
    label_B = label_B if kind == "multiclass" else label_B.float()
    weight_B = torch.rand(12, generator=generator) if weighted else torch.ones(12)
    objective = Supervised(kind, label_B, weight_B if weighted else None)
    loss, targets_B = objective.towards(logits, torch.arange(12), prior, share=0.25)
    assert torch.equal(targets_B, label_B)
    if kind == "binary":
        each_B = -(torch.sigmoid(prior) * logsigmoid(logits) + torch.sigmoid(-prior) * logsigmoid(-logits))
    elif kind == "multiclass":
        each_B = -(prior.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
    else:
        each_B = (logits - prior).square()
    by_hand = 0.75 * objective(logits, torch.arange(12))[0] + 0.25 * (each_B * weight_B).sum() / weight_B.sum()
    if kind != "regression":
        torch.testing.assert_close(loss, by_hand)
    torch.testing.assert_close(torch.autograd.grad(loss, logits), torch.autograd.grad(by_hand, logits))


def test_an_offset_is_the_first_models_logit_and_sends_no_gradient_there():
    cut_BD, own = torch.randn(20, CUT), own_columns(20)
    model, plain = (model_of(step_rule(name, dropout=0.0)) for name in ("offset", "warm-start"))
    logits = model([cut_BD], own)
    by_hand = model.top(torch.cat([cut_BD, model.bottom(own)], dim=1))[:, 0]
    alone = model.alone.top(model.alone.bottom(own))[:, 0]
    torch.testing.assert_close(logits, by_hand + alone)
    torch.testing.assert_close(plain([cut_BD], own), by_hand)
    torch.testing.assert_close(model.local(own), alone)
    logits.sum().backward()
    assert all(weight.grad is None for weight in model.alone.parameters())


def test_an_averages_logits_and_losses_by_hand():
    method, own, index_B = step_rule("average"), own_columns(20), torch.arange(20)
    model, cut_BD, objective = model_of(method), torch.randn(20, CUT), supervised(own)
    target_B = (own.numeric_NF.sum(dim=1) > 0).float()
    first, second = model.first, model.second
    by_hand = [
        first.top(torch.cat([cut_BD, first.bottom(own)], dim=1))[:, 0] + first.alone.top(first.alone.bottom(own))[:, 0],
        second.top(torch.cat([cut_BD, second.bottom(own)], dim=1))[:, 0],
        model.cut_top(cut_BD)[:, 0],
    ]
    torch.testing.assert_close(model([cut_BD], own), (by_hand[0] + by_hand[1]) / 2)
    loss, _ = method.loss(model, objective, a_batch(index_B), [cut_BD], own)
    torch.testing.assert_close(loss, sum(entropy(logits, target_B) for logits in by_hand) / 2)
    local = second.local_top(second.bottom(own))[:, 0]
    torch.testing.assert_close(model.local(own), (first.alone.top(first.alone.bottom(own))[:, 0] + local) / 2)
    loss, _ = method.loss(model, objective, a_batch(index_B, is_local=True), [], own)
    torch.testing.assert_close(loss, entropy(local, target_B) / 2)


@pytest.mark.parametrize(("name", "averages"), [("average", True), ("warm-start", False)])
def test_what_scores_rows_without_a_partners_row_by_hand(name, averages):
    """It is the model of all own rows; for average the mean of it and of both branches, which know what it does not."""
    method, own, scorer = step_rule(name), own_columns(20), model_of(step_rule("multi-task"))
    model = model_of(method)
    torch.testing.assert_close(model.score_alone(own), model.local(own))
    of_all_rows = OwnColumnsModel(scorer.local_top, bottom=scorer.bottom)
    model.scores_by(of_all_rows)
    expected = of_all_rows([], own)
    assert not torch.allclose(expected, model.local(own))
    torch.testing.assert_close(model.score_alone(own), (expected + model.local(own)) / 2 if averages else expected)


# --- local batches


@pytest.mark.parametrize(("ratio", "rate"), [(0.5, 1.0), (2.5, 2.5), (9.0, 4.0)])
@pytest.mark.parametrize(
    ("name", "bottom", "top"), [("multi-task", "bottom.", "local_top."), ("average", "second.bottom.", "second.local_top.")]
)
def test_a_local_batch_moves_the_bottom_and_its_top_at_the_rate_of_its_size(name, bottom, top, ratio, rate):
    steps = []
    for each in (1.0, ratio):
        method, own = step_rule(name, ratio=each), own_columns(32)
        model = model_of(method)
        before = copied(model)
        one_step(method, model, supervised(own), SGD, a_batch(torch.arange(32), is_local=True), own.rows)
        steps.append(moved(before, model))
    for weight, by in steps[0].items():
        torch.testing.assert_close(steps[1][weight], rate * by, atol=1e-7, rtol=1e-4)
        assert bool(by.any()) == (weight.startswith((bottom, top)) and "embeddings" not in weight) or "embeddings" in weight
    assert steps[0][f"{bottom}columns.embeddings.0.weight"].any()


@pytest.mark.parametrize("local_steps", [1, 3])
def test_local_steps_share_all_unaligned_rows_among_so_many_batches_of_an_epoch(local_steps):
    aligned_N, local_N = torch.arange(70), torch.arange(70, 400)
    plain = Schedule(train_N=aligned_N, validation_N=torch.arange(0), batch_size=32, seed=3)
    settings = MultiTaskConfig(method="multi-task", local_steps=local_steps)
    batches = list(scheduled(plain, settings, local_N).epoch(0))
    local = [batch.index_B for batch in batches if batch.is_local]
    assert len(local) == 3 * local_steps
    assert sorted(torch.cat(local).tolist()) == local_N.tolist()
    assert rows_ratio(scheduled(plain, settings, local_N)) == pytest.approx(330 / (3 * local_steps) / 32)
    # A feature party, which gives no local position, counts as many steps.
    assert [batch.is_local for batch in scheduled(plain, settings, local_N[:0]).epoch(0)] == [each.is_local for each in batches]


# --- matched pairs


class Unread:
    """An objective whose labels must not be read."""

    def __call__(self, *_):
        raise AssertionError("a label was read")


def test_matched_pairs_score_above_mismatched_ones_after_the_first_epochs():
    """Both parties have the same columns. At most a fifth of the pairs is ranked wrongly; earlier it was about half."""
    setting = Setting()
    own = replace(setting.columns["shop"], categorical_NG=setting.own_columns.categorical_NG)
    own = replace(own, numeric_NF=own.numeric_NF[:, :2])
    method = step_rule("vfl-mpd", joint_epochs=8)
    bottom = build_bottom(setting.model, "shop", setting.shapes["shop"], seed=1)
    model = model_of(method, cut_width=bottom.width)
    network = SplitNetwork(
        bottoms=[bottom],
        sources=setting.sources,
        model=model,
        own=own.rows,
        objective=setting.objective,
        training=training(),
        schedule=scheduled(setting.schedule, method.settings, torch.arange(0)),
        step_rule=method,
    )
    before, top = judged(model, bottom, setting.columns["shop"], own), copied(model.top)
    for epoch in range(8):
        list(network.epoch(epoch))
    assert before < 0.65
    assert judged(model, bottom, setting.columns["shop"], own) > 0.8
    assert not any(by.any() for by in moved(top, model.top).values())
    list(network.epoch(8))  # from here on it is the plain loss
    assert any(by.any() for by in moved(top, model.top).values())


@torch.no_grad()
def judged(model, bottom, theirs, own):
    """Return the AUC of the judge of pairs on all rows, each with its own and with the next one's."""
    cut_ND, own_NW = bottom(theirs), model.bottom(own)
    scores = [model.generator(torch.cat([cut_ND, each_NW], dim=1))[:, 0] for each_NW in (own_NW, own_NW.roll(1, dims=0))]
    return auc([1] * len(cut_ND) + [0] * len(cut_ND), torch.cat(scores).numpy())


def test_the_loss_of_pairs_by_hand():
    method, own, index_B = step_rule("vfl-mpd"), own_columns(3), torch.arange(3)
    model, cut_BD = model_of(method), torch.randn(3, CUT)
    loss, _ = method.loss(model, supervised(own), a_batch(index_B), [cut_BD], own)
    own_BW, by_hand = model.bottom(own), 0.0
    for row in range(3):
        for other, matched in ((row, 1.0), ((row - 1) % 3, 0.0)):
            score = model.generator(torch.cat([cut_BD[row], own_BW[other]]))[0]
            by_hand += entropy(score, torch.tensor(matched)) / 6
    torch.testing.assert_close(loss, by_hand)
    plain, _ = method.loss(model, supervised(own), a_batch(index_B, epoch=1), [cut_BD], own)
    torch.testing.assert_close(plain, supervised(own)(model([cut_BD], own), index_B)[0])


# --- self-supervision


@pytest.mark.long
@pytest.mark.parametrize("name", ["ss-vfl", "fedhssl"])
def test_self_supervision_lowers_its_loss_at_both_parties_and_reads_no_label(name, tmp_path, monkeypatch):
    """Compared with the same passes at a rate of nearly nothing: momentum contrast gets harder as its queue fills up."""
    losses, what = [], {"ss-vfl": "cross_entropy", "fedhssl": "cosine_similarity"}[name]
    loss_of, sign = getattr(self_supervision, what), 1 if name == "ss-vfl" else -1

    def listening(*arguments):
        found = loss_of(*arguments)
        losses.append(sign * found.mean().item())
        return found

    monkeypatch.setattr(self_supervision, what, listening)
    method, own, setting = step_rule(name, epochs=60), own_columns(ROWS), Setting()

    def passed(party, rate):
        """Return the mean loss of the last pass of six."""
        losses.clear()
        model = model_of(method)
        if party == "bank":
            bottom, rest = model.bottom, {key: weight for key, weight in copied(model).items() if not key.startswith("bottom.")}
            before = copied(bottom)
            method.prepare(model, Unread(), own_part(own, tmp_path, learning_rate=rate))
            assert not any(by.any() for by in moved(rest, model).values())
        else:
            bottom = build_bottom(setting.model, "shop", setting.shapes["shop"], seed=1)
            before = copied(bottom)
            method.prepare_bottom(bottom, own_part(setting.columns["shop"], tmp_path, learning_rate=rate))
        assert all(by.any() for by in moved(before, bottom).values())
        last = losses[-len(losses) // 6 :]
        return sum(last) / len(last)

    for party in ("bank", "shop"):
        assert passed(party, 0.01) < passed(party, 1e-6) - 0.01


@pytest.mark.parametrize(("name", "epochs", "batch_size"), [("ss-vfl", 30, 64), ("fedhssl", 15, 128)])
def test_self_supervision_finds_groups_that_its_columns_share(name, epochs, batch_size):
    """Twelve noisy columns show which of eight groups a row belongs to: this explains more of a pretrained cut.

    Over eight seeds the share of the cut's variance rose by .30 (standard deviation .02) with ss-vfl and by .52 (.03) with
    fedhssl, so .15 is six deviations away. What sixty labels learn from the cut depends on which sixty they are.
    """
    rows, groups = 1500, 8
    generator = torch.Generator().manual_seed(2)
    group_N = torch.randint(0, groups, (rows,), generator=generator)
    true_NG = 2 * group_N[:, None] + torch.randint(0, 2, (rows, 12), generator=generator)
    any_NG = torch.randint(0, 2 * groups, (rows, 12), generator=generator)
    codes_NG = torch.where(torch.rand(rows, 12, generator=generator) < 0.8, true_NG, any_NG) + 2  # 0 and 1 are no values
    own = Features(numeric_NF=torch.zeros(rows, 0), categorical_NG=codes_NG)
    shape = FeatureShape(numeric=0, cardinalities=(2 * groups + 2,) * 12)
    model = NetworkModel(embedding_width=4, hidden=(32, 16, 16), cut_after=2)
    parts = BranchParts(model=model, party="bank", own=shape, cut_width=2, outputs=1, seed=2)
    method = method_of(CLASSES[name](method=name, epochs=epochs), batch_size=batch_size, seed=2)

    def explained(bottom):
        """Return the share of the cut's variance that is between groups."""
        with torch.no_grad():
            cut_ND = bottom(own)
        mean_GD = torch.stack([cut_ND[group_N == group].mean(dim=0) for group in range(groups)])
        return ((mean_GD[group_N] - cut_ND.mean(dim=0)).square().sum() / (cut_ND - cut_ND.mean(dim=0)).square().sum()).item()

    trained = method.model(parts)
    before = explained(trained.bottom)
    part = own_part(own, Path(), learning_rate=0.01, batch_size=batch_size)
    method.prepare(trained, Unread(), part)
    assert explained(trained.bottom) > before + 0.15


@pytest.mark.parametrize("masked_by", ["missing", "other-row"])
def test_a_view_hides_that_share_of_the_cells_and_shows_nothing_or_another_rows_cell(masked_by):
    """The hidden share of 20,000 cells has a standard deviation of .003; .02 is more than six of them."""
    rows = 5000
    numbers_NF, codes_NG = torch.arange(2.0 * rows).view(rows, 2) + 1, torch.arange(2 * rows).view(rows, 2) + 2
    settings = SSVFLConfig(method="ss-vfl", masked=0.2, masked_by=masked_by)
    how = self_supervision.SelfSupervision(settings=settings, name="label")
    view = how.view(Features(numeric_NF=numbers_NF, categorical_NG=codes_NG), torch.Generator().manual_seed(1))
    for seen, cells, missing in ((view.numeric_NF, numbers_NF, 0), (view.categorical_NG, codes_NG, MISSING)):
        hidden = seen != cells
        assert hidden.float().mean().item() == pytest.approx(0.2, abs=0.02)
        if masked_by == "missing":
            assert (seen[hidden] == missing).all()
        else:  # one column has the odd values, the other the even ones
            assert torch.isin(seen, cells).all()
            assert (seen % 2 == cells % 2).all()


@pytest.mark.parametrize("name", ["ss-vfl", "fedhssl"])
def test_self_supervision_takes_its_own_rate_and_a_tenth_of_the_passes(name, tmp_path, monkeypatch):
    """Adam's first step moves a weight by its rate, so one step moves the bottom three times as far at three times the rate."""
    steps = []
    for rate in (1.0, 3.0):
        method, own = step_rule(name, epochs=19, self_supervision_rate=rate), own_columns(40 + 40)
        model = model_of(method)
        before = copied(model)
        method.prepare(model, Unread(), own_part(own, tmp_path, learning_rate=1e-4, batch_size=64))
        steps.append(moved(before, model, "bottom.layers"))
    for key, by in steps[0].items():
        torch.testing.assert_close(steps[1][key], 3 * by, rtol=0.02, atol=1e-6)
        assert by.abs().max().item() == pytest.approx(1e-4, rel=0.02)


def test_fedhssls_cross_party_cosines_by_hand():
    method, own, index_B = step_rule("fedhssl"), own_columns(6), torch.arange(6)
    model, cut_BD = model_of(method), torch.randn(6, CUT).requires_grad_()
    loss, _ = method.loss(model, supervised(own), a_batch(index_B), [cut_BD], own)
    own_BW, by_hand = model.bottom(own), 0.0
    for row in range(6):
        said, back = model.generator.own_to_cut(own_BW)[row], model.generator.cut_to_own(cut_BD)[row]
        by_hand -= (said @ cut_BD[row]) / (said.norm() * cut_BD[row].norm()) / 12
        by_hand -= (back @ own_BW[row]) / (back.norm() * own_BW[row].norm()) / 12
    torch.testing.assert_close(loss, by_hand)
    # Nothing that is sent depends on a label: it is the same for other labels.
    other = Supervised("binary", 1 - (own.numeric_NF.sum(dim=1) > 0).float())
    again, _ = method.loss(model, other, a_batch(index_B), [cut_BD], own)
    assert torch.equal(torch.autograd.grad(loss, cut_BD)[0], torch.autograd.grad(again, cut_BD)[0])
    plain, _ = method.loss(model, supervised(own), a_batch(index_B, epoch=1), [cut_BD], own)
    torch.testing.assert_close(plain, supervised(own)(model([cut_BD], own), index_B)[0])


# --- other targets, more parties


@pytest.mark.parametrize("how", [{"parties": ("club", "shop")}, {"kind": "multiclass"}, {"kind": "regression"}])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "none"])
def test_a_joint_and_a_local_step_for_each_target_and_number_of_parties_or_a_refusal(name, how):
    """Every feature party gets a gradient, a local step moves the bottom, and the model of single rows has the target's width."""
    setting = Setting(**how)
    settings = CLASSES[name](method=name, **{"evaluations": 2} if name == "diffu-at" else {})
    problems = unaligned_problems(
        settings, alignment="intersection", target=setting.kind, feature_parties=len(setting.parties), wide=False
    )
    if name == "fedcvt":
        wanted = "needs two classes" if "kind" in how else "is for one feature party, found 2"
        assert [wanted in problem for problem in problems] == [True]
        return
    assert problems == []
    method = method_of(settings, batch_size=32, seed=1, columns=("user",))
    bottoms, _ = setting.modules()
    widths, outputs = [bottom.width for bottom in bottoms.values()], 3 if setting.kind == "multiclass" else 1
    parts = BranchParts(model=setting.model, party="bank", own=setting.own_shape, cut_width=sum(widths), outputs=outputs, seed=1)
    model, index_B = method.model(parts), torch.arange(32)
    own, objective = setting.own_source, setting.objective
    cuts_BD = [bottoms[party](setting.source_of(party)(index_B)).detach() for party in setting.parties]
    if settings.facts.embeds:
        fitting = method_of(settings.model_copy(update={"epochs": 1} if name != "heuristic" else {}), batch_size=32, seed=1)
        fitting.fit(model, objective, own, index_B, torch.cat(cuts_BD, dim=1))
    before = copied(model)
    grads_BD = one_step(method, model, objective, SGD, a_batch(index_B, epoch=1), own, cuts_BD)
    assert [grad_BD.shape for grad_BD in grads_BD] == [cut_BD.shape for cut_BD in cuts_BD]
    assert all(torch.isfinite(grad_BD).all() and grad_BD.any() for grad_BD in grads_BD)
    if settings.steps_beside:
        between = copied(model)
        one_step(method, model, objective, SGD, a_batch(index_B + 32, is_local=True), own)
        bottom = "second.bottom." if hasattr(model, "second") else "bottom."
        assert any(by.any() for by in moved(between, model, bottom).values())
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    assert any(by.any() for by in moved(before, model).values())
    assert model.local(own(index_B)).shape == ((32, 3) if outputs == 3 else (32,))
