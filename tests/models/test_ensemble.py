"""Networks side by side above the cut are compared with as many separate ones, and their loss with one by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tallystick.attacks.label_inference.enumeration import agreement
from tallystick.config.sections import NetworkModel
from tallystick.cut.forward import no_columns
from tallystick.models.build import build_label_model, top_at_start
from tallystick.models.ensemble import EnsembleTop
from tallystick.models.tabular import TabularTop
from tallystick.tables.features import Features, FeatureShape
from tallystick.training.objective import Supervised, mean_cross_entropy

WIDTH, ROWS, MEMBERS = 12, 64, 3


def separate(top, member, outputs):
    """Return the member as a network of its own."""
    wide = top.first.out_features // top.members
    first = nn.Linear(WIDTH, wide)
    rows = slice(member * wide, (member + 1) * wide)
    first.weight.data, first.bias.data = top.first.weight[rows], top.first.bias[rows]
    layers = [first, nn.ReLU()]
    for layer in [*top.layers, top.output]:
        linear = nn.Linear(*layer.weight.shape[1:])
        linear.weight.data, linear.bias.data = layer.weight[member].t(), layer.bias[member, 0]
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("hidden", [(32,), (32, 48, 17)])
@pytest.mark.parametrize("outputs", [1, 4])
def test_members_are_networks_of_their_own_and_their_mean_predicts(hidden, outputs):
    torch.manual_seed(0)
    top = EnsembleTop(WIDTH, hidden=hidden, outputs=outputs, members=MEMBERS)
    joined_BD = torch.randn(ROWS, WIDTH)
    by_hand = torch.stack([separate(top, member, outputs)(joined_BD) for member in range(MEMBERS)], dim=1)
    torch.testing.assert_close(top(joined_BD), by_hand)
    torch.testing.assert_close(top.eval()(joined_BD), by_hand.mean(dim=1))
    assert by_hand.std(dim=1).min() > 0  # they begin apart


def test_a_row_has_the_same_bits_in_any_whole_tiles():
    torch.manual_seed(0)
    top = EnsembleTop(256, hidden=(256, 256), outputs=1, members=8).eval()
    joined_BD = torch.randn(160, 256)
    with torch.no_grad():
        together = top(joined_BD)
        assert torch.equal(together, torch.cat([top(part) for part in torch.split(joined_BD, 32)]))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_an_ensembles_loss_is_the_mean_of_its_members(kind, weighted):
    generator = torch.Generator().manual_seed(1)
    target_N = torch.randint(0, 3 if kind == "multiclass" else 2, (ROWS,), generator=generator)
    target_N = target_N if kind == "multiclass" else target_N.float()
    objective = Supervised(kind, target_N, torch.rand(ROWS, generator=generator) if weighted else None)
    index_B = torch.randperm(ROWS, generator=generator)[:20]
    logits = torch.randn(20, MEMBERS, *([3] if kind == "multiclass" else []), generator=generator)
    loss, targets_B = objective(logits, index_B)
    alone = [objective(logits[:, member], index_B)[0] for member in range(MEMBERS)]
    torch.testing.assert_close(loss, torch.stack(alone).mean())
    assert torch.equal(targets_B, target_N[index_B])


def test_the_cross_entropy_of_an_ensemble_by_hand():
    logits, target_B = torch.randn(20, MEMBERS), torch.rand(20)
    by_hand = torch.stack([functional.binary_cross_entropy_with_logits(each, target_B) for each in logits.unbind(1)]).mean()
    torch.testing.assert_close(mean_cross_entropy(logits, target_B), by_hand)
    torch.testing.assert_close(
        mean_cross_entropy(logits[:, 0], target_B), functional.binary_cross_entropy_with_logits(logits[:, 0], target_B)
    )


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_wide_part_is_added_to_each_member(outputs):
    own = Features(numeric_NF=torch.randn(ROWS, 2), categorical_NG=torch.randint(0, 5, (ROWS, 1)))
    model = build_label_model(
        NetworkModel(wide=True, ensemble=8), "bank", FeatureShape(numeric=2, cardinalities=(5,)), [4], outputs=outputs, seed=1
    )
    cuts_BD, classes = [torch.randn(ROWS, 4)], (3,) if outputs == 3 else ()
    training = model(cuts_BD, own)
    assert training.shape == (ROWS, 8, *classes)
    model.eval()
    torch.testing.assert_close(model(cuts_BD, own), training.mean(dim=1))
    wide, model.wide = model.wide(own), None
    torch.testing.assert_close(training.mean(dim=1) - model(cuts_BD, own), wide.view(ROWS, *classes))


@pytest.mark.parametrize(("members", "kind"), [(1, TabularTop), (8, EnsembleTop)])
def test_who_knows_the_seed_has_the_top_too(members, kind):
    settings = NetworkModel(ensemble=members)
    model = build_label_model(settings, "bank", None, [4], outputs=1, seed=1).eval()
    assert type(model.top) is kind
    at_start = top_at_start(settings, "bank", [4], own_width=0, outputs=1, seed=1)
    cut_BD = torch.randn(ROWS, 4)
    assert torch.equal(model([cut_BD], None), at_start(cut_BD)[:, 0])


def test_who_knows_the_seed_reads_labels_off_the_first_gradients_of_an_ensemble_too():
    """Like a single network: what each label would have sent back is known, and the labels are the nearest ones."""
    settings = NetworkModel(ensemble=8)
    model = build_label_model(settings, "bank", None, [16], outputs=1, seed=1)
    start = top_at_start(settings, "bank", [16], own_width=0, outputs=1, seed=1)
    generator = torch.Generator().manual_seed(2)
    cut_BD, label_N = torch.randn(ROWS, 16, generator=generator).requires_grad_(), torch.arange(ROWS) % 2
    loss, _ = Supervised("binary", label_N.float())(model([cut_BD], no_columns(label_N)), torch.arange(ROWS))
    (grad_BD,) = torch.autograd.grad(loss, cut_BD)
    like_BC = agreement(start, cut_BD, grad_BD, 2)
    assert torch.equal(like_BC.argmax(dim=1), label_N)
