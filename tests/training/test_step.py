"""The steps of both roles: one process and two parties over channels take the same ones, with every defence and every imputer."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from defense_rows import DEFENSE_ROWS
from lanes import by_turns, short_lane_of
from loops import ROWS, SHAPES, Setting, assert_same_bits, features, training, weights_of
from test_label_defense import cut_defense, defenses

from tallystick.cut.cut_messages import CutEmbedding, CutGradient
from tallystick.dataset.imputed import ImputingBottom, ImputingObjective, ImputingSource
from tallystick.defenses.defense_table import defense_named
from tallystick.imputation.draws import Draws
from tallystick.imputation.feature_imputers import SamplingFeatures
from tallystick.imputation.imputer_table import FEATURE_IMPUTERS, LABEL_IMPUTERS
from tallystick.imputation.label_imputers import MajorityLabels
from tallystick.models.build import build_bottom
from tallystick.training.calibration import Calibration, LogitShift
from tallystick.training.single_process import SplitNetwork

CUT_DEFENSES = {
    "none": [],
    **{
        f"{method} {number}": [{"method": method, **keys}]
        for method, rows in DEFENSE_ROWS.items()
        for number, keys in enumerate(rows)
        if (of_class := defense_named(method)) is not None
        and of_class.stage in ("penalties", "gradients")  # the others are applied before any step, or by a bottom
    },
    "two at once": [{"method": "distance-correlation", "weight": 0.01}, {"method": "marvell", "power": 4.0}],
}


def in_process(setting, how, *, modules=None, defense=None, sources=None, steps=None, averaged=False):
    """Train all parties in one process. Return their modules."""
    bottoms, label = modules or setting.modules()
    network = SplitNetwork(
        bottoms=list(bottoms.values()),
        sources=sources or setting.sources,
        model=label,
        own=setting.own_source,
        objective=setting.objective,
        training=how,
        schedule=setting.schedule,
        defense=defense,
        screening=setting.screening,
    )
    taken = [step for epoch in range(how.epochs) for step in network.epoch(epoch)]
    assert len(taken) == (how.epochs * setting.schedule.steps_per_epoch if steps is None else steps)
    if averaged:
        with network.averaged():
            bottoms, label = deepcopy((bottoms, label))
    return bottoms, label


@pytest.mark.parametrize("setting", [Setting(), Setting(parties=("club", "shop"), kind="multiclass", weights=True)])
def test_one_process_takes_the_same_steps(setting, tmp_path):
    networked, _ = setting.train(training(), tmp_path)
    assert_same_bits(weights_of(networked), weights_of(in_process(setting, training())))


@pytest.mark.parametrize("entries", short_lane_of(CUT_DEFENSES.values(), 3), ids=CUT_DEFENSES.keys())
def test_with_every_defence(entries, tmp_path):
    setting = Setting(parties=("club", "shop"))
    defense = cut_defense(defenses(*entries), setting) if entries else None
    networked, _ = setting.train(training(), tmp_path, defense=defense)
    alone = in_process(setting, training(), defense=defense)
    assert_same_bits(weights_of(networked), weights_of(alone))
    if entries:
        bare = weights_of(in_process(setting, training()))
        assert any(not torch.equal(bare[name], tensor) for name, tensor in weights_of(alone).items())


class United(Setting):
    """Make a union in which each side lacks every third position, with fresh imputation each time it is asked."""

    def with_imputation(self, label_imputer, feature_imputer, when, redraw):
        generators = [torch.Generator().manual_seed(seed) for seed in (11, 12, 13)]
        position_U = torch.arange(ROWS)
        own, theirs = (torch.where(position_U % 3 != absent, position_U, -1) for absent in (0, 1))
        columns = features(SHAPES["shop"], torch.Generator().manual_seed(6))
        draws = Draws.of(rows=ROWS, k=1, redraw=redraw, generator=generators[0])
        source = ImputingSource.of(columns, theirs, imputer=feature_imputer, draws=draws, generator=generators[0])
        plain = build_bottom(self.model, "shop", SHAPES["shop"], seed=1)
        bottom = ImputingBottom(plain, feature_imputer, generator=generators[1])
        labels_N = (columns.numeric_NF.sum(dim=1) > 0).float()
        self.objective = ImputingObjective(
            labels_N,
            own,
            imputer=label_imputer,
            draws=Draws.of(rows=ROWS, k=max(1, label_imputer.draws), redraw=redraw, generator=generators[2]),
            calibration=Calibration(shift=LogitShift(shared=0.6, positive=0.1, negative=0.3), when=when),
            positive_rate=labels_N[own[own >= 0]].mean().item(),
        )
        return source, ({"shop": bottom}, self.modules()[1])


DRAWN_IN_STEPS = {name: made for name, made in LABEL_IMPUTERS.items() if name != "settled"}  # drawn before the first step


IMPUTERS = {
    **{f"labels {name}": (made(), SamplingFeatures()) for name, made in DRAWN_IN_STEPS.items()},
    **{f"features {name}": (MajorityLabels(), made()) for name, made in FEATURE_IMPUTERS.items()},
}


@pytest.mark.parametrize(("imputer", "redraw"), by_turns(IMPUTERS, ["once", "step"]))
@pytest.mark.parametrize("when", short_lane_of(["never", "training"], 1))
def test_with_every_imputer(imputer, when, redraw, tmp_path):
    label_imputer, feature_imputer = IMPUTERS[imputer]
    setting = United()
    source, modules = setting.with_imputation(label_imputer, feature_imputer, when, redraw)
    setting.columns = {"shop": replace_rows(setting.columns["shop"], source)}
    networked, _ = setting.train(training(epochs=2), tmp_path, modules=modules)
    again = United()
    source, modules = again.with_imputation(label_imputer, feature_imputer, when, redraw)
    alone = in_process(again, training(epochs=2), modules=modules, sources=[source])
    one, other = weights_of(networked), weights_of(alone)
    for found in (one, other):
        found.pop("shop/_extra_state")  # the generator's state, checked by its bits
    assert_same_bits(one, other)


def replace_rows(columns, source):
    """Columns whose rows come from an imputing source."""

    class Imputed(type(columns)):
        def rows(self, index_B):
            return source(index_B)

    return Imputed(numeric_NF=columns.numeric_NF, categorical_NG=columns.categorical_NG)


class Wire:
    """An oracle to compare observers with: a channel that notes the tensors that pass through it."""

    def __init__(self, channel):
        self.channel, self.embeddings, self.gradients = channel, {}, {}

    def __getattr__(self, name):
        return getattr(self.channel, name)

    def send(self, message):
        self.channel.send(message)
        if isinstance(message, CutGradient):
            self.gradients[message.step] = torch.from_numpy(message.values.numpy().copy())

    def receive(self, kind):
        message = self.channel.receive(kind)
        if isinstance(message, CutEmbedding) and message.step not in self.embeddings:
            self.embeddings[message.step] = torch.from_numpy(message.values.numpy().copy())
        return message


class Kept:
    """An observer that keeps everything."""

    def __init__(self):
        self.steps, self.ends = [], []

    def crossed(self, batch, embedding_BD, gradient_BD):
        self.steps.append((batch.step, embedding_BD.clone(), gradient_BD.clone()))

    def epoch_ended(self, epoch):
        self.ends.append((epoch, len(self.steps)))


@pytest.mark.parametrize("how", [training(), training(mode="pipelined", staleness=5)], ids=["synchronous", "pipelined"])
def test_both_parties_observers_see_what_crosses(how, tmp_path):
    setting = Setting()
    wires, kept = [], {"bank": Kept(), "shop": Kept()}

    def wrapped(channel):
        wires.append(Wire(channel))
        return wires[-1]

    setting.train(how, tmp_path, wrap=wrapped, observers=kept)
    (wire,) = wires
    assert kept["bank"].ends == kept["shop"].ends == [(e, (e + 1) * setting.schedule.steps_per_epoch) for e in range(how.epochs)]
    for (step, embedding_BD, gradient_BD), (other, *theirs) in zip(kept["bank"].steps, kept["shop"].steps, strict=True):
        assert step == other
        assert torch.equal(embedding_BD, theirs[0])
        assert torch.equal(gradient_BD, theirs[1])
    for what, number in ((wire.embeddings, 1), (wire.gradients, 2)):
        on_wire_RD = torch.cat([what[step] for step in sorted(what)])
        assert torch.equal(on_wire_RD, torch.cat([each[number] for each in kept["bank"].steps]))


def test_positions_and_answers_of_a_step_belong_together():
    setting = Setting()
    bottoms, label = setting.modules()
    network = SplitNetwork(
        bottoms=list(bottoms.values()),
        sources=setting.sources,
        model=label,
        own=setting.own_source,
        objective=setting.objective,
        training=training(),
        schedule=replace(setting.schedule, batch_size=ROWS),
        defense=None,
    )
    expected = network.logits([torch.arange(ROWS)])
    (step,) = network.epoch(0)
    assert sorted(step.batch.index_B.tolist()) == list(range(ROWS))
    loss, targets_B = setting.objective(expected[step.batch.index_B], step.batch.index_B)
    assert torch.equal(step.answer.loss, loss.detach())
    assert torch.equal(step.answer.targets_B, targets_B)
