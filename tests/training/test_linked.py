"""Several candidate rows for one: distinct rows cross the cut, with the numbers of one process and of sending all links."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from defense_rows import DEFENSE_ROWS
from hypothesis import given
from hypothesis import strategies as st
from lanes import short_lane_of
from loops import OWN, ROWS, SHAPES, Setting, assert_same_bits, training, weights_of, weights_of_joined
from test_resume import Unplugged, Until
from test_step import in_process

from tallystick.config.merge import AttentionMergeConfig, AverageMergeConfig, CNNMergeConfig, MergeConfig
from tallystick.dataset.similarity import AllCandidates, CandidateSource, DistinctCandidates, LinkedSource, no_features
from tallystick.defenses.chain import chain
from tallystick.defenses.defense_table import DEFENSES
from tallystick.models.build import build_bottom, build_label_model
from tallystick.tables.linked_columns import distinct_candidates
from tallystick.training.centralized import train_joined
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.label_defense import CutDefense

CANDIDATES = {"club": 3, "shop": 5}
PUBLISHED = {"width": 4, "activation": "sigmoid", "own_columns": False, "similarity_input": False, "top": ()}
MERGES = {
    "attention": AttentionMergeConfig(width=6, heads=2, top=(8,), dropout=0.1),
    "cnn": CNNMergeConfig(method="cnn", channels=6, kernel=3, hidden=40, **PUBLISHED),
    "average": AverageMergeConfig(method="average", weight="equal", **PUBLISHED),
}


@dataclass
class LinkedSetting(Setting):
    """Return the label party's rows, to which rows of other tables are linked. Some have fewer than K links, some none."""

    merge: MergeConfig = MERGES["attention"]
    crossing: type = DistinctCandidates

    def __post_init__(self):
        super().__post_init__()
        generator = torch.Generator().manual_seed(9)
        self.model = self.model.model_copy(update={"merge": self.merge})
        self.crossings, self.similarities = {}, {}
        for name in self.parties:
            numbers_NK = torch.stack([torch.randperm(40, generator=generator)[: CANDIDATES[name]] for _ in range(ROWS)])
            numbers_NK[torch.rand(numbers_NK.shape, generator=generator) < 0.2] = -1
            numbers_NK[:4] = -1
            similarity_NK = torch.randn(numbers_NK.shape, generator=generator)
            self.similarities[name] = similarity_NK.masked_fill(numbers_NK < 0, 0)
            self.crossings[name] = self.crossing(numbers_NK=numbers_NK, rows=ROWS)
        self.schedule = replace(self.schedule, cut_rows=self.cut_rows)

    def cut_rows(self, index_B, peer):
        return len(self.crossings[self.parties[peer]].numbers(index_B))

    def source_of(self, name):
        return CandidateSource(features=self.columns[name], crossing=self.crossings[name])

    @property
    def own_source(self):
        return LinkedSource(
            features=self.own_columns if self.own else no_features(ROWS, torch.device("cpu")),
            crossings=list(self.crossings.values()),
            similarities_NK=list(self.similarities.values()),
        )

    def modules(self):
        bottoms = {name: build_bottom(self.model, name, SHAPES[name], seed=1) for name in self.parties}
        label = build_label_model(
            self.model,
            "bank",
            OWN if self.own else None,
            [bottom.width for bottom in bottoms.values()],
            outputs=3 if self.kind == "multiclass" else 1,
            seed=1,
            candidates=[CANDIDATES[name] for name in self.parties],
        )
        return bottoms, label


@given(st.lists(st.lists(st.integers(-1, 9), min_size=3, max_size=3), min_size=1, max_size=8))
def test_distinct_candidates_are_those_of_numpy(numbers):
    numbers_BK = torch.tensor(numbers)
    numbers_R, place_BK = distinct_candidates(numbers_BK, rows=10)
    expected = np.unique(numbers_BK[numbers_BK >= 0].numpy())
    assert numbers_R.tolist() == (expected.tolist() or [0])
    assert torch.equal(place_BK < 0, numbers_BK < 0)
    assert torch.equal(numbers_R[place_BK[place_BK >= 0]], numbers_BK[numbers_BK >= 0])


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"parties": ("club", "shop"), "kind": "multiclass"},
        {"own": False, "kind": "regression"},
        {"parties": ("club", "shop"), "merge": MERGES["cnn"], "wide": True},
        {"merge": MERGES["average"], "kind": "regression"},
    ],
    ids=["attention", "two feature parties", "no own columns", "cnn", "average"],
)
def test_what_two_parties_train_is_what_one_process_trains(how, tmp_path):
    setting, plan = LinkedSetting(**how), training(optimizer="adamw", schedule="cosine")
    modules, _ = setting.train(plan, tmp_path)
    joined = setting.joined()
    before = {name: tensor.clone() for name, tensor in weights_of_joined(joined, setting.parties).items()}
    train_joined(
        joined,
        [*setting.sources, setting.own_source],
        setting.objective,
        training=plan,
        schedule=setting.schedule,
        steps=plan.epochs * setting.schedule.steps_per_epoch,
    )
    after = weights_of_joined(joined, setting.parties)
    assert_same_bits(weights_of(modules), after)  # the largest difference is 0.0
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert_same_bits(after, weights_of(in_process(setting, plan)))
    assert moved >= {name for name in after if "weight" in name and after[name].is_floating_point()}


def test_sending_all_links_gives_the_same_up_to_the_order_of_sums(tmp_path):
    plan = training(optimizer="sgd", learning_rate=0.1)
    few, all_links = LinkedSetting(parties=("club", "shop")), LinkedSetting(parties=("club", "shop"), crossing=AllCandidates)
    index_B = few.schedule.train_N[:32]
    assert few.cut_rows(index_B, 1) < all_links.cut_rows(index_B, 1) == 32 * CANDIDATES["shop"]
    begun = weights_of(few.modules())
    found, expected = (weights_of(setting.train(plan, tmp_path / setting.crossing.__name__)[0]) for setting in (few, all_links))
    numbers = [name for name in found if found[name].is_floating_point()]
    worst = max((found[name] - expected[name]).abs().max().item() for name in numbers)
    moved = max((found[name] - begun[name]).abs().max().item() for name in numbers)
    # Float32 carries 6e-8 of a number; whether sums in two orders differ at all depends on the processor.
    assert worst < 1e-5 < 1e-2 < moved


@pytest.mark.parametrize("sends", [3, 13])
def test_a_run_that_was_cut_goes_on_to_the_same_bits(sends, tmp_path):
    setting, plan = LinkedSetting(parties=("club", "shop"), validation=40), training(checkpoint_every=2)  # with dropout
    whole, _ = setting.train(plan, tmp_path / "whole")
    with pytest.raises(Unplugged):
        setting.train(plan, tmp_path / "cut", wrap=lambda channel: Until(channel, sends))
    common = set.intersection(*(set(CheckpointStore(tmp_path / "cut" / name).steps()) for name in ("bank", "club", "shop")))
    again, _ = setting.train(plan, tmp_path / "cut", resume_from=max(common, default=0))
    assert_same_bits(weights_of(again), weights_of(whole))


def test_pipelined_and_with_validation(tmp_path):
    setting = LinkedSetting(parties=("club", "shop"), validation=60)
    _, (state, *_) = setting.train(training(mode="pipelined", staleness=4, epochs=6), tmp_path)
    assert (
        state.history[-1]["train_loss"] < state.history[0]["train_loss"]
    )  # links are drawn at random: there is no more to learn
    assert all(np.isfinite(epoch["validation_loss"]) for epoch in state.history)


def test_a_rows_gradient_is_the_sum_over_its_links(tmp_path):
    setting = LinkedSetting(merge=MERGES["cnn"])
    bottoms, label = setting.modules()
    index_B = setting.schedule.train_N[:20]
    own, features = setting.own_source(index_B), setting.source_of("shop")(index_B)
    cut_RD = bottoms["shop"](features).detach().requires_grad_()
    setting.objective(label([cut_RD], own), index_B)[0].backward()
    (cut_BKD,) = label.by_example([cut_RD.detach()], own)
    leaf_BKD = cut_BKD.requires_grad_()
    setting.objective(label.finish([leaf_BKD], own), index_B)[0].backward()
    expected_RD = torch.zeros_like(cut_RD)
    for place_K, grad_KD in zip(own.linked[0].place_BK.tolist(), leaf_BKD.grad, strict=True):
        for place, grad_D in zip(place_K, grad_KD, strict=True):
            if place >= 0:
                expected_RD[place] += grad_D
    torch.testing.assert_close(cut_RD.grad, expected_RD)


ON_LINKS = [name for name, kind in DEFENSES.items() if kind.stage in ("penalties", "gradients")]


@pytest.mark.parametrize("method", short_lane_of(ON_LINKS, 2))
def test_defences_take_an_example_with_all_its_links_as_one(method, tmp_path):
    defenses = chain([DEFENSES[method](**DEFENSE_ROWS[method][0])], target="binary")
    defense = CutDefense.of(defenses, secret=bytes(32), steps_per_epoch=3)
    seen = []

    class Watching:
        def __call__(self, cuts_BD, grads_BD, targets_B, *, step):
            seen.append(([cut_BD.shape for cut_BD in cuts_BD], [grad_BD.shape for grad_BD in grads_BD], len(targets_B)))
            return defense(cuts_BD, grads_BD, targets_B, step=step)

    setting = LinkedSetting(parties=("club", "shop"))
    plain, _ = setting.train(training(epochs=1), tmp_path / "plain")
    defended, _ = setting.train(training(epochs=1), tmp_path / "defended", defense=Watching())
    shapes = [torch.Size([32, 3 * 8]), torch.Size([32, 5 * 8])]
    assert seen[0] == (shapes, shapes, 32)
    changed = {name for name, weight in weights_of(defended).items() if not torch.equal(weight, weights_of(plain)[name])}
    assert any(name.startswith("shop/") for name in changed)
