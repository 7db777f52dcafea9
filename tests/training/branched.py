"""Single methods for unaligned rows: their label models, own columns, and single steps of the label party."""

import torch

from tallystick.config.sections import NetworkModel
from tallystick.config.unaligned import CLASSES
from tallystick.models.build import BranchParts
from tallystick.tables.features import Features, FeatureShape
from tallystick.training.plan import Batch
from tallystick.training.step import LabelLearner, absent_cuts, label_step
from tallystick.training.unaligned.method_table import method_of
from tallystick.training.updates import Updates

CUT, CODES = 2, 5


def step_rule(name, *, batch_size=32, ratio=1.0, **settings):
    """Return a method; the label party's one categorical column is called user."""
    return method_of(CLASSES[name](method=name, **settings), batch_size=batch_size, ratio=ratio, seed=1, columns=("user",))


def model_of(method, *, cut_width=CUT, outputs=1):
    shape = FeatureShape(numeric=2, cardinalities=(CODES,))
    model = NetworkModel(embedding_width=2, hidden=(8, 6), cut_after=1)
    parts = BranchParts(model=model, party="bank", own=shape, cut_width=cut_width, outputs=outputs, seed=1)
    return method.model(parts)


def own_columns(rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(rows, 2, generator=generator)
    return Features(numeric_NF=numbers, categorical_NG=torch.randint(0, CODES, (rows, 1), generator=generator))


def a_batch(index_B, *, epoch=0, is_local=False):
    return Batch(step=1, epoch=epoch, number=0, index_B=index_B, is_local=is_local)


def one_step(method, model, objective, how, batch, own, cuts_BD=()):
    """Take a step of the label party's weights. Return the cut gradients."""
    updates = Updates(how, model, steps=1, rates=method.rates)
    method.start(model, own, batch.index_B)
    learner = LabelLearner(model=model, updates=updates, objective=objective, step_rule=method)
    cuts_BD = absent_cuts(batch, [CUT]) if batch.is_local else cuts_BD
    found = label_step(learner, batch, cuts_BD, own(batch.index_B))
    updates.step(1)
    return found.grads_BD


def copied(module):
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


def moved(before, module, start=""):
    """Return how much each weight changed, for those whose names begin so."""
    now = dict(module.named_parameters())
    return {name: (now[name] - weight).detach() for name, weight in before.items() if name.startswith(start)}
