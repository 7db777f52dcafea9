"""Compare methods that make up the missing cut embedding with values computed by hand and with known maps."""

import math

import pytest
import torch
from branched import CODES, CUT, a_batch, model_of, own_columns, step_rule
from torch.nn.functional import binary_cross_entropy_with_logits as entropy

from tallystick.tables.features import Features
from tallystick.training.objective import Supervised
from tallystick.training.unaligned.diffu_at import SCHEDULE
from tallystick.training.unaligned.fedcvt import KEPT, AlignedRows
from tallystick.training.unaligned.jpl import rank_alignment

ROWS = 320


def fitted(method, own, cuts_ND, target_N, *, outputs=1):
    """Return the method's model, with its generator fitted to these rows."""
    model = model_of(method, cut_width=cuts_ND.shape[1], outputs=outputs).train()
    objective = Supervised("binary" if outputs == 1 else "multiclass", target_N)
    method.fit(model, objective, own.rows, torch.arange(len(cuts_ND)), cuts_ND)
    return model


def made(method, model, own, targets_B):
    with torch.no_grad():
        return method.made(model, own, targets_B, generator=torch.Generator().manual_seed(4))


# --- the mean of a group


@pytest.mark.parametrize("group", ["user", None])
def test_a_groups_mean_embedding_and_that_of_all_for_a_group_without_aligned_rows(group):
    method = step_rule("heuristic", group=group, batch_size=2)  # the groups are gathered over several batches
    users = torch.tensor([[1], [3], [1], [1]])
    cuts_ND = torch.tensor([[1.0, 2.0], [10.0, 0.0], [3.0, 6.0], [2.0, 1.0]])
    own = Features(numeric_NF=torch.zeros(4, 2), categorical_NG=users)
    model = fitted(method, own, cuts_ND, torch.tensor([0.0, 1.0, 0.0, 1.0]))
    asked = Features(numeric_NF=torch.zeros(CODES, 2), categorical_NG=torch.arange(CODES)[:, None])
    of_all, of_1, of_3 = [4.0, 2.25], [2.0, 3.0], [10.0, 0.0]
    by_hand = [of_all, of_1, of_all, of_3, of_all] if group else [of_all] * CODES
    torch.testing.assert_close(made(method, model, asked, torch.zeros(CODES)), torch.tensor(by_hand))


# --- a regression and a diffusion


def linear_map(own):
    return own.numeric_NF @ torch.tensor([[1.0, -2.0], [0.5, 1.0]]) + torch.tensor([3.0, -1.0])


def test_a_regression_recovers_a_linear_map_from_own_columns_to_the_cut():
    """On new rows within five deviations of the fitted ones, an eighth of the variance is left; a mean would leave all of it."""
    method, own, new = step_rule("regressor", epochs=30), own_columns(ROWS), own_columns(ROWS, seed=2)
    model = fitted(method, own, linear_map(own), torch.zeros(ROWS))
    condition_BC = model.generator.condition(model.bottom(new), torch.zeros(ROWS))
    new = new.rows(torch.nonzero(condition_BC.abs().amax(dim=1) < 5)[:, 0])
    assert len(new) > 0.9 * ROWS
    wanted_BD = linear_map(new)
    found_BD = made(method, model, new, torch.zeros(len(new)))
    assert ((found_BD - wanted_BD).square().mean(dim=0) / wanted_BD.var(dim=0)).max().item() < 1 / 8
    # The model's own bottom continues to learn; made-up embeddings use the weights of the fit.
    with torch.no_grad():
        for weight in model.bottom.parameters():
            weight.add_(1.0)
    assert torch.equal(made(method, model, new, torch.zeros(len(new))), found_BD)


def test_a_unit_that_aligned_rows_hardly_switch_on_is_no_louder_than_the_others():
    """By hand: deviations 0 and 2 have the mean 1, so a row that switches the first unit on by 3 is 3 out, not 3,000."""
    found = model_of(step_rule("regressor")).generator
    width = len(found.condition_mean_W)
    embedded_NW = torch.zeros(4, width)
    embedded_NW[:, : width // 2] = torch.tensor([1.0, 1.0, 4.0, 4.0])[:, None] * 2 / math.sqrt(3)  # the deviation is 2
    found.take_moments(torch.randn(4, CUT, generator=torch.Generator().manual_seed(1)), embedded_NW)
    fresh_W = embedded_NW.mean(dim=0) + 3.0
    by_hand = [3.0 / 2] * (width // 2) + [3.0 / 1] * (width - width // 2)
    torch.testing.assert_close(found.condition(fresh_W[None], torch.zeros(1)), torch.tensor([by_hand]))
    found.take_moments(torch.ones(4, CUT), torch.zeros(4, width))
    assert torch.isfinite(found.condition(fresh_W[None], torch.zeros(1))).all()


@pytest.mark.parametrize("prediction", ["epsilon", "x0", "v"])
def test_a_diffusions_samples_lie_at_the_one_point_that_goes_with_the_own_columns(prediction):
    """The sign of the first column says which of two points, 5.7 apart: samples are there, and the loss is halved."""
    method = step_rule("diffu-at", epochs=60, prediction=prediction, batch_size=64)
    points = torch.tensor([[2.0, -1.0], [-2.0, 3.0]])
    own, new = own_columns(2 * ROWS), own_columns(ROWS, seed=2)
    cuts_ND = points[(own.numeric_NF[:, 0] > 0).long()]
    model = fitted(method, own, cuts_ND, torch.zeros(2 * ROWS))
    before, after = (loss_of(each.generator, own, cuts_ND, prediction) for each in (model_of(method), model))
    assert after < before / 2
    clear = new.rows(torch.nonzero(new.numeric_NF[:, 0].abs() > 0.5)[:, 0])
    distance_B2 = torch.cdist(made(method, model, clear, torch.zeros(len(clear))), points)
    right_B = (clear.numeric_NF[:, 0] > 0).long()
    assert (distance_B2.argmin(dim=1) == right_B).float().mean().item() > 0.85
    assert distance_B2.gather(1, right_B[:, None]).median().item() < 1.5


@torch.no_grad()
def loss_of(found, own, cuts_ND, prediction):
    """Compute DDPM's simplified loss, of what the network is asked for at the steps that sampling takes."""
    generator = torch.Generator().manual_seed(3)
    clean_BD = (cuts_ND - cuts_ND.mean(dim=0)) / cuts_ND.std(dim=0)
    step_B = torch.randint(SCHEDULE.steps, (len(clean_BD),), generator=generator)
    noise_BD = torch.randn(clean_BD.shape, generator=generator)
    kept_B1 = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0)[step_B][:, None]
    noisy_BD = kept_B1.sqrt() * clean_BD + (1 - kept_B1).sqrt() * noise_BD
    wanted_BD = {
        "epsilon": noise_BD,
        "x0": clean_BD,
        "v": kept_B1.sqrt() * noise_BD - (1 - kept_B1).sqrt() * clean_BD,
    }[prediction]
    condition_BC = found.condition(found.bottom(own), torch.zeros(len(clean_BD)))
    return (found.predict(condition_BC, noisy_BD, step_B) - wanted_BD).square().mean().item()


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("with_label", [False, True])
@pytest.mark.parametrize("name", ["regressor", "diffu-at"])
def test_the_label_is_in_the_condition_where_the_contract_says_so(name, with_label, outputs, monkeypatch):
    """Return what the network is given in the fit: standardised own embeddings, and the labels, one-hot for classes."""
    method, own = step_rule(name, epochs=1, label_condition=with_label), own_columns(40)
    target_N = torch.arange(40) % max(outputs, 2)
    given, generator = [], type(model_of(method, outputs=outputs).generator)
    network = generator.train  # every fit first switches the model to training, so the test listens there

    def listening(module, mode=True):
        if not given:
            module.network.register_forward_hook(lambda _, inputs, __: given.append(inputs[-1].detach()))
            given.append(torch.empty(0, module.width))
        return network(module, mode)

    monkeypatch.setattr(generator, "train", listening)
    model = fitted(method, own, own.numeric_NF, target_N.float() if outputs == 1 else target_N, outputs=outputs)
    embedded_NW = model.bottom(own).detach()
    deviation_W = embedded_NW.std(dim=0)
    deviation_W = torch.maximum(deviation_W, deviation_W.mean())
    by_hand_NC = (embedded_NW - embedded_NW.mean(dim=0)) / deviation_W
    if with_label:
        label_NC = target_N.float()[:, None] if outputs == 1 else torch.eye(3)[target_N]
        by_hand_NC = torch.cat([by_hand_NC, label_NC], dim=1)
    given_NC = torch.cat(given)
    assert given_NC.shape == by_hand_NC.shape
    apart_NN = torch.cdist(given_NC, by_hand_NC, compute_mode="donot_use_mm_for_euclid_dist")
    assert max(apart_NN.amin(dim=0).max(), apart_NN.amin(dim=1).max()).item() < 1e-4
    classes = [torch.full((40,), label).float() for label in (0, 1)]
    one, other = (made(method, model, own, targets_B) for targets_B in classes)
    assert torch.equal(one, other) is not with_label


# --- attention over aligned rows (FedCVT)


def test_attention_over_the_kept_rows_by_hand():
    rows = AlignedRows(4, 2, 1, torch.nn.Identity())
    rows.keep(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[10.0], [20.0]]))
    found = rows(torch.tensor([[3.0, 1.0]])).item()
    first, second = math.exp(3 / math.sqrt(2)), math.exp(2 / math.sqrt(2))
    assert found == pytest.approx((10 * first + 20 * second) / (first + second), rel=1e-5)
    # more rows than there is room for
    rows.keep(torch.zeros(9, 2), torch.arange(9.0)[:, None])
    assert rows(torch.ones(1, 2)).item() == pytest.approx((0 + 1 + 2 + 3) / 4)
    assert KEPT == 1024


def test_fedcvts_losses_by_hand_and_its_local_batch_sees_the_latest_joint_one():
    method, own, target_N = step_rule("fedcvt"), own_columns(6), torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    model, objective = model_of(method), Supervised("binary", target_N)
    joint, local = torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])
    cut_BD = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])
    loss, _ = method.loss(model, objective, a_batch(joint), [cut_BD], own.rows(joint))
    own_BW = model.bottom(own.rows(joint))
    by_hand = entropy(model.top(torch.cat([cut_BD, own_BW], dim=1))[:, 0], target_N[joint])
    by_hand += entropy(model.local_top(own_BW)[:, 0], target_N[joint])
    by_hand += entropy(model.generator.feature_top(cut_BD)[:, 0], target_N[joint])
    by_hand += 0.1 * sum((cut_BD[row, 0] - own_BW[row, 0]) ** 2 for row in range(3)) / 3  # halves of one unit each
    by_hand += 0.01 * sum((part[row, 0] * part[row, 1]) ** 2 for part in (cut_BD, own_BW) for row in range(3)) / 3
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)
    loss, _ = method.loss(model, objective, a_batch(local, is_local=True), [], own.rows(local))
    query_BW = model.bottom(own.rows(local))
    weights_BA = torch.exp(query_BW @ own_BW.T / math.sqrt(8))
    made_BD = weights_BA @ cut_BD / weights_BA.sum(dim=1, keepdim=True)
    by_hand = entropy(model.top(torch.cat([made_BD, query_BW], dim=1))[:, 0], target_N[local])
    by_hand += entropy(model.local_top(query_BW)[:, 0], target_N[local])
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)


# --- a mapping learnt beside the model (JPL)


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def test_the_cross_entropy_of_pairwise_orders_by_hand():
    logits, teacher = [0.5, -1.0, 2.0], [1.0, 1.5, -0.5]
    by_hand = 0.0
    for row, before in ((0, 2), (1, 0), (2, 1)):
        wanted, said = sigmoid(teacher[row] - teacher[before]), sigmoid(logits[row] - logits[before])
        by_hand -= (wanted * math.log(said) + (1 - wanted) * math.log(1 - said)) / 3
    assert rank_alignment(torch.tensor(logits), torch.tensor(teacher)).item() == pytest.approx(by_hand, rel=1e-5)


def test_jpls_losses_by_hand_and_the_mapping_sends_no_gradient():
    method, own, target_N = step_rule("jpl"), own_columns(6), torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    model, objective = model_of(method), Supervised("binary", target_N)
    index_B, cut_BD = torch.arange(4), torch.randn(4, 2).requires_grad_()
    loss, _ = method.loss(model, objective, a_batch(index_B), [cut_BD], own.rows(index_B))
    own_BW = model.bottom(own.rows(index_B))
    logits = model.top(torch.cat([cut_BD, own_BW], dim=1))[:, 0]
    made_BD = model.generator(own_BW)
    plain = entropy(logits, target_N[index_B])
    squared = sum((made_BD[row, unit] - cut_BD[row, unit]) ** 2 for row in range(4) for unit in range(2)) / 8
    ranks = rank_alignment(model.synthetic_top(torch.cat([made_BD, own_BW], dim=1))[:, 0], logits)
    assert loss.item() == pytest.approx((plain + squared + 0.1 * ranks).item(), rel=1e-5)
    assert ranks.item() > 0.1
    (sent_BD,) = torch.autograd.grad(loss, cut_BD, retain_graph=True)
    torch.testing.assert_close(sent_BD, torch.autograd.grad(plain, cut_BD, retain_graph=True)[0])
    local, _ = method.loss(model, objective, a_batch(index_B, is_local=True), [], own.rows(index_B))
    stand_in = entropy(model.synthetic_top(torch.cat([made_BD, own_BW], dim=1))[:, 0], target_N[index_B])
    alone = entropy(model.local_top(own_BW)[:, 0], target_N[index_B])
    assert local.item() == pytest.approx((stand_in + alone).item(), rel=1e-5)
