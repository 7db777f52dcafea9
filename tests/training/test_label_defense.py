"""Defences in the training loop change what is sent, over all cuts together, and nothing else."""

from dataclasses import dataclass

import pytest
import torch
from loops import ROWS, Setting, assert_same_bits, training, weights_of

from tallystick.config.contract import parse_contract
from tallystick.defenses.chain import NO_DEFENSE, Defenses
from tallystick.training.label_defense import CutDefense

SECRET = bytes(range(32))
TWO = Setting(parties=("club", "shop"))


def defenses(*entries):
    values = {
        "name": "job",
        "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
        "alignment": {"keys": [{"name": "id"}]},
        "defense": list(entries),
    }
    return parse_contract(values).defenses()


def cut_defense(chosen, setting=TWO):
    return CutDefense(defenses=chosen, secret=SECRET, steps_per_epoch=setting.schedule.steps_per_epoch)


@dataclass(frozen=True)
class Centred:
    """A defence that treats all columns alike only if it sees them together."""

    def __call__(self, grad_BD, labels_B, *, generator):  # noqa: ARG002
        return grad_BD - grad_BD.mean(dim=1, keepdim=True)

    def guarantee(self):
        raise NotImplementedError


def test_no_defence_changes_no_bit(tmp_path):
    plain, _ = TWO.train(training(), tmp_path / "plain")
    defended, _ = TWO.train(training(), tmp_path / "defended", defense=cut_defense(NO_DEFENSE))
    assert_same_bits(weights_of(plain), weights_of(defended))


def test_the_cuts_of_all_feature_parties_are_defended_together():
    generator = torch.Generator().manual_seed(2)
    grads_BD = [torch.randn(6, width, generator=generator) for width in (2, 3)]
    cuts_BD = [torch.randn(6, width, generator=generator) for width in (2, 3)]
    sent_BD = cut_defense(Defenses(gradients=(Centred(),)))(cuts_BD, grads_BD, torch.zeros(6), step=1)
    joined_BD = torch.cat(grads_BD, dim=1)
    expected_BD = joined_BD - joined_BD.mean(dim=1, keepdim=True)
    assert torch.equal(torch.cat(sent_BD, dim=1), expected_BD)
    assert [part_BD.shape[1] for part_BD in sent_BD] == [2, 3]


def test_a_penaltys_gradient_is_added_before_the_gradient_defences():
    """Compared with autograd on the sum of both losses."""
    chosen = defenses({"method": "distance-correlation", "weight": 0.3})
    generator = torch.Generator().manual_seed(3)
    cuts_BD = [torch.randn(40, width, generator=generator).requires_grad_() for width in (2, 3)]
    labels_B = (torch.rand(40, generator=generator) < 0.4).float()
    weight_D = torch.randn(5, generator=generator)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(torch.cat(cuts_BD, dim=1) @ weight_D, labels_B)
    grads_BD = torch.autograd.grad(loss, cuts_BD, retain_graph=True)
    expected_BD = torch.autograd.grad(loss + chosen.penalty(torch.cat(cuts_BD, dim=1), labels_B), cuts_BD)
    sent_BD = cut_defense(chosen)(cuts_BD, list(grads_BD), labels_B, step=1)
    for sent, expected in zip(sent_BD, expected_BD, strict=True):
        torch.testing.assert_close(sent, expected)
    centred = Defenses(penalties=chosen.penalties, gradients=(Centred(),))
    together_BD = torch.cat(expected_BD, dim=1)
    sent_BD = torch.cat(cut_defense(centred)(cuts_BD, list(grads_BD), labels_B, step=1), dim=1)
    torch.testing.assert_close(sent_BD, together_BD - together_BD.mean(dim=1, keepdim=True))


@pytest.mark.parametrize(
    "entries",
    [({"method": "marvell", "power": 4.0},), ({"method": "distance-correlation", "weight": 0.1},), ({"method": "mixpro"},)],
    ids=["marvell", "distance correlation", "mixpro"],
)
def test_the_own_model_learns_from_the_loss_alone(tmp_path, entries):
    one_step = Setting(parties=("club", "shop"))
    one_step.schedule = one_step.schedule.__class__(
        train_N=torch.arange(ROWS), validation_N=torch.arange(0), batch_size=ROWS, seed=3
    )
    how = training(epochs=1, batch_size=ROWS, optimizer="sgd")
    plain, _ = one_step.train(how, tmp_path / "plain")
    defended, _ = one_step.train(how, tmp_path / "defended", defense=cut_defense(defenses(*entries), one_step))
    one, other = weights_of(plain), weights_of(defended)
    bank = {name for name in one if name.startswith("bank/")}
    assert_same_bits({name: one[name] for name in bank}, {name: other[name] for name in bank})
    for party in ("club", "shop"):
        assert any(not torch.equal(one[name], other[name]) for name in one if name.startswith(f"{party}/"))


@pytest.mark.parametrize("mode", [{}, {"mode": "pipelined", "staleness": 4}], ids=["synchronous", "pipelined"])
def test_a_resumed_run_sends_the_same_noise(tmp_path, mode):
    chosen = defenses({"method": "distance-correlation", "weight": 0.05, "warm_up": 2.0}, {"method": "marvell", "power": 4.0})
    how = training(checkpoint_every=4, **mode)
    whole, _ = TWO.train(how, tmp_path, defense=cut_defense(chosen))
    steps = sorted(int(path.stem.removeprefix("step-")) for path in (tmp_path / "bank").glob("step-*"))
    assert 0 < steps[0] < how.epochs * TWO.schedule.steps_per_epoch
    resumed, _ = TWO.train(how, tmp_path, resume_from=steps[0], defense=cut_defense(chosen))
    assert_same_bits(weights_of(whole), weights_of(resumed))
    other = CutDefense(defenses=chosen, secret=bytes(32), steps_per_epoch=TWO.schedule.steps_per_epoch)
    different, _ = TWO.train(how, tmp_path / "other", defense=other)
    assert any(not torch.equal(weights_of(whole)[name], tensor) for name, tensor in weights_of(different).items())


def test_no_two_gradients_share_noise():
    """Otherwise a peer that changed its columns between a kill and a resume could subtract the noise."""
    defense = cut_defense(defenses({"method": "isotropic", "power": 4.0}))
    generator = torch.Generator().manual_seed(5)
    cut_BD, grad_BD = torch.randn(40, 3, generator=generator), torch.randn(40, 3, generator=generator)
    labels_B = (torch.rand(40, generator=generator) < 0.5).float()

    def sent(grad_BD):
        return defense([cut_BD], [grad_BD], labels_B, step=7)[0]

    assert torch.equal(sent(grad_BD), sent(grad_BD.clone()))
    changed_BD = grad_BD.clone()
    changed_BD[0, 0] += 1e-6
    assert (sent(changed_BD) - sent(grad_BD)).abs().max() > 0.1
