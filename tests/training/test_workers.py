"""Several processes share each batch: the bits are those of one process that takes the parts one after the other."""

import importlib
import os
import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from lanes import short_lane_of
from loops import BATCH, Setting, assert_same_bits, training, weights_of

from tallystick.compute.ray_cluster import RayEngine
from tallystick.dataset.imputed import ImputedFeatures, ImputingBottom
from tallystick.defenses.chain import chain
from tallystick.defenses.marvell import Marvell
from tallystick.errors import Diverged, WorkerLost
from tallystick.imputation.feature_imputers import GaussianFeatures
from tallystick.models.split import LabelModel
from tallystick.models.tabular import Columns, one_by_one
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.label_defense import CutDefense
from tallystick.training.plan import batches_per_message, staleness_of
from tallystick.training.updates import Updates
from tallystick.training.workers import cluster, own_machine
from tallystick.training.workers.plan import WorkerPlan
from tallystick.training.workers.team import Team


def plan_of(setting, how, name, workers):
    late = staleness_of(how) if name != "bank" else 0
    return WorkerPlan(
        network=setting.model.model_dump_json(),
        training=how.model_dump_json(),
        party=name,
        own=setting.own_shape if name == "bank" else setting.shapes[name],
        cut_widths=tuple(8 for _ in setting.parties) if name == "bank" else None,
        outputs=3 if setting.kind == "multiclass" else 1,
        batch_rows=BATCH,
        in_flight=late + batches_per_message(how) if late else 1,
        workers=workers,
        threads=1,
        late=late > 0,
    )


class InParts:
    """Within this block a module's layers take a batch in parts, in this process, and table rows are looked up for all of it at
    once.

    Autograd first goes back over what was computed last. So the last part goes forward first, and gradients add up in order.
    """

    def __init__(self, module, plan):
        self._module, self._plan = module, plan
        self._method = "finish" if isinstance(module, LabelModel) else "forward"
        (self._columns,) = [part for part in module.modules() if isinstance(part, Columns)]

    def __enter__(self):
        setattr(self._module, self._method, self._call)

    def __exit__(self, *error):
        delattr(self._module, self._method)

    def _call(self, *given):
        *cuts, own = given
        of_kind = getattr(type(self._module), self._method)
        if not torch.is_grad_enabled():
            return of_kind(self._module, *given)
        split = [self._split(tensor) for tensor in (one_by_one(self._columns, own), *(cuts[0] if cuts else ()))]
        outputs = []
        for index_P, joined, *of_cuts in reversed(list(zip(self._split(torch.arange(len(own))), *split, strict=True))):
            self._columns.embed = lambda *_, joined=joined: joined.clone()
            outputs.insert(0, of_kind(self._module, *([[cut.clone() for cut in of_cuts]] if cuts else []), own.rows(index_P)))
            self._columns.embed = one_by_one
        return torch.cat(outputs)

    def _split(self, tensor):
        parts = [self._plan.part(worker, len(tensor)) for worker in range(self._plan.workers)]
        return [tensor[part] for part in parts if part.start < part.stop]


class Here:
    """Replaces a cluster's processes: they answer in this process, from memories of their own."""

    def __init__(self, functions):
        self._functions, self._answers = functions, []

    @classmethod
    @contextmanager
    def begun(cls, _engine, prepare, shared):
        module, _, name = prepare.partition(":")
        yield cls([getattr(importlib.import_module(module), name)(each) for each in shared])

    def share(self, block):
        self._shared = block

    def ask(self, number, *blocks, shared=False):
        self._answers.append((number, self._functions[number](*blocks, *([self._shared] if shared else []))))

    def answers(self, read, **_):
        answers, self._answers = self._answers, []
        return (read(number, answer) for number, answer in answers)


class Rows:
    """Keeps how many rows crossed in each step."""

    def __init__(self):
        self.steps = []

    def crossed(self, batch, embedding_BD, gradient_BD):
        self.steps.append((len(batch.index_B), len(embedding_BD), len(gradient_BD)))

    def epoch_ended(self, epoch):
        pass


CASES = {
    "label party": (
        {"parties": ("club", "shop"), "wide": True},
        {"optimizer": "adamw", "clip": 0.1, "ema": 0.9, "schedule": "cosine"},
        {"bank": 2},
    ),
    "pipelined feature party": (
        {"sequences": True, "kind": "multiclass"},
        {"mode": "pipelined", "staleness": 4, "optimizer": "lamb", "ema": 0.9},
        {"shop": 3},
    ),
}


def trained(kind, setting, how, workers, folder, **options):
    """Return the weights, where these parties share their batches by a Team or InParts."""
    bottoms, label = modules = setting.modules()
    with ExitStack() as stack:
        for name, number in workers.items():
            stack.enter_context(kind(label if name == "bank" else bottoms[name], plan_of(setting, how, name, number)))
        setting.train(how, folder, modules=modules, **options)
    return weights_of(modules)


@pytest.mark.parametrize(("setting", "how", "workers"), short_lane_of(CASES.values(), 1), ids=CASES.keys())
def test_workers_have_the_bits_of_one_process_that_takes_their_parts(setting, how, workers, tmp_path):
    """Defences and observers of the cut see whole batches: Marvell's noise depends on all of a batch's gradients."""
    setting, how = Setting(**setting, validation=41), training(**how)  # the last batch has one row
    defenses, watching = chain([Marvell(power=1.0)] if setting.kind == "binary" else [], target=setting.kind), Rows()
    defense = CutDefense.of(defenses, secret=bytes(32), steps_per_epoch=setting.schedule.steps_per_epoch)
    options = {"defense": defense, "observers": {"bank": watching}, "refit": setting.kind == "multiclass"}
    found = [trained(kind, setting, how, workers, tmp_path / kind.__name__, **options) for kind in (Team, InParts)]
    assert_same_bits(*found)
    assert watching.steps
    assert all(rows == (rows[0],) * 3 for rows in watching.steps)
    if defense is not None:
        return  # other last bits of a gradient give other noise
    alone, _ = setting.train(how, tmp_path / "alone", refit=True)
    for name, weight in weights_of(alone).items():
        torch.testing.assert_close(found[0][name], weight, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("setting", "how", "workers"), CASES.values(), ids=CASES.keys())
def test_workers_with_memories_of_their_own_have_the_same_bits(setting, how, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "ray_processes", Here.begun)
    setting, how = Setting(**setting, validation=40), training(**how)
    kinds = {"cluster": lambda module, plan: Team(module, plan, RayEngine(workers=plan.workers - 1)), "parts": InParts}
    assert_same_bits(*(trained(kind, setting, how, workers, tmp_path / name) for name, kind in kinds.items()))


@pytest.mark.long
def test_what_replaces_the_embeddings_of_absent_rows_sees_whole_batches():
    setting, how, found = Setting(), training(), []
    rows_B, present_B = torch.arange(BATCH), torch.arange(BATCH) % 3 > 0
    picked = setting.columns["shop"].rows(rows_B)
    features = ImputedFeatures(numeric_NF=picked.numeric_NF, categorical_NG=picked.categorical_NG, present_B=present_B)
    for kind in (Team, InParts):
        bottom = setting.modules()[0]["shop"]
        whole = ImputingBottom(bottom, GaussianFeatures(), generator=torch.Generator().manual_seed(3))
        with kind(bottom, plan_of(setting, how, "shop", 2)):
            updates = Updates(how, whole, steps=2)
            for step in (1, 2):
                updates.zero_grad()
                cut_BD = whole(features)
                torch.autograd.backward(cut_BD, torch.ones_like(cut_BD))
                updates.step(step)
        found.append({**whole.state_dict(), "cut": cut_BD.detach()})
    assert_same_bits(*found)


def kill_workers(step):
    """Kill the other training processes of this one, after some steps are committed."""
    signal_workers(signal.SIGKILL)


def signal_workers(number):
    """Send a signal to the other training processes of this one."""
    children = [int(child) for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()]
    for child in children:
        if b"training.workers.process" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, number)


@pytest.mark.long
def test_a_worker_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    """It is stopped, for example: otherwise this side would wait for ever, and so would the peer."""

    def stop_workers(*_):
        monkeypatch.setattr(own_machine, "ANSWER_S", 1.0)  # only from here on, because a worker takes longer to start
        signal_workers(signal.SIGSTOP)

    setting, how = Setting(validation=40), training(epochs=2)
    with pytest.raises(WorkerLost, match="worker 1 of the 2 that train for shop has not answered for 1 s"):
        trained(Team, setting, how, {"shop": 2}, tmp_path / "cut", committed={"shop": stop_workers})


@pytest.mark.long
@pytest.mark.parametrize("victim", ["shop", pytest.param("bank", marks=pytest.mark.long)])
def test_training_whose_worker_was_killed_resumes_to_the_same_bits(victim, tmp_path):
    setting, how, workers = Setting(validation=40), training(epochs=2), {victim: 2}
    with pytest.raises(WorkerLost, match=f"worker 1 of the 2 that train for {victim} was ended by signal 9"):
        trained(Team, setting, how, workers, tmp_path / "cut", committed={victim: kill_workers})
    common = max(set.intersection(*(set(CheckpointStore(tmp_path / "cut" / party).steps()) for party in ("bank", "shop"))))
    assert common >= how.checkpoint_every
    again = trained(Team, setting, how, workers, tmp_path / "cut", resume_from=common)
    assert_same_bits(again, trained(InParts, setting, how, workers, tmp_path / "whole"))


def test_a_worker_of_a_cluster_that_sends_wrong_numbers_or_bytes_is_named(tmp_path, monkeypatch):
    """Its numbers are finite, and ruin the optimizer. Looking for extreme values among the columns would be in vain."""
    answers = Here.answers
    monkeypatch.setattr(cluster, "ray_processes", Here.begun)
    setting, how = Setting(validation=40), training()

    def on_a_cluster(module, plan):
        return Team(module, plan, RayEngine(workers=plan.workers - 1))

    def wrong(here, read, **_):
        return answers(here, lambda number, answer: read(number, np.full(len(answer) // 4, 1e25, np.float32).tobytes()))

    monkeypatch.setattr(Here, "answers", wrong)
    with pytest.raises(Diverged, match=r"the largest number that this party's workers sent: 1e\+25 from worker 1 of the 2 that"):
        trained(on_a_cluster, setting, how, {"shop": 2}, tmp_path / "numbers")
    monkeypatch.setattr(Here, "answers", lambda here, read, **_: answers(here, lambda number, answer: read(number, answer[:-1])))
    with pytest.raises(ValueError, match=r"\d+ bytes for \d+"):  # which an engine says of that machine
        trained(on_a_cluster, setting, how, {"shop": 2}, tmp_path / "bytes")
