"""A small split network, its data, and both ways of training it: by the parties, and in one process."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import torch

from tallystick.config.sections import NetworkModel, TrainingConfig
from tallystick.cut.forward import no_columns
from tallystick.errors import PeerStopped
from tallystick.models.folds import build_folded_bottom, build_folded_label_model
from tallystick.models.split import CentralizedModel
from tallystick.network.channel import memory_channels
from tallystick.tables.features import Features, FeatureShape, SequenceShape
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.feature_party import train_feature_party
from tallystick.training.folds import FoldedObjective
from tallystick.training.label_party import FeaturePeer, train_label_party
from tallystick.training.objective import Supervised
from tallystick.training.plan import Schedule, ignore_commit
from tallystick.training.refit import train_and_refit
from tallystick.training.run import TrainingRun
from tallystick.training.screening import Screening

ROWS, BATCH = 330, 32  # the last batch of an epoch is smaller
SHAPES = {"club": FeatureShape(numeric=2, cardinalities=(7,)), "shop": FeatureShape(numeric=3, cardinalities=(4, 9))}
OWN = FeatureShape(numeric=2, cardinalities=(5,))
SEQUENCES = (SequenceShape(codes=9, length=4, has_target=True), SequenceShape(codes=6, length=3, has_target=False))


def features(shape, generator):
    codes = [torch.randint(0, size, (ROWS,), generator=generator) for size in shape.codes]
    return Features(numeric_NF=torch.randn(ROWS, shape.numeric, generator=generator), categorical_NG=torch.stack(codes, dim=1))


def training(**changes):
    given = {"epochs": 3, "batch_size": BATCH, "learning_rate": 0.01, "patience": None, "checkpoint_every": 4}
    given |= {"optimizer": "adam", "schedule": "constant", "ema": None}
    return TrainingConfig(**{**given, **changes})


@dataclass
class Setting:
    """One network over some feature parties; modules() returns the same fresh weights each time."""

    parties: tuple = ("shop",)
    kind: str = "binary"
    own: bool = True
    weights: bool = False
    wide: bool = False
    sequences: bool = False
    normalization: str = "none"
    ensemble: int = 1
    validation: int = 0
    validations: int = 1
    screening: Screening | None = None
    folds: int = 1

    def __post_init__(self):
        generator = torch.Generator().manual_seed(5)
        how = {"wide": self.wide, "normalization": self.normalization, "ensemble": self.ensemble}
        self.model = NetworkModel(embedding_width=2, hidden=(8, 6), cut_after=1, **how)
        more = {"sequences": SEQUENCES if self.sequences else ()}
        self.shapes = {name: replace(SHAPES[name], **more) for name in self.parties}
        self.own_shape = replace(OWN, **more) if self.own else None
        self.columns = {name: features(shape, generator) for name, shape in self.shapes.items()}
        self.own_columns = features(self.own_shape, generator) if self.own else None
        score_N = sum(columns.numeric_NF.sum(dim=1) for columns in self.columns.values())
        score_N = score_N + 0.5 * torch.randn(ROWS, generator=generator)
        target_N = {
            "binary": (score_N > 0).float(),
            "multiclass": (score_N > -1).long() + (score_N > 1).long(),
            "regression": score_N,
        }[self.kind]
        weight_N = torch.rand(ROWS, generator=generator) if self.weights else None
        self.objective = Supervised(self.kind, target_N, weight_N)
        order_N = torch.arange(ROWS)
        train_N, validation_N = order_N[self.validation :], order_N[: self.validation]
        if self.folds > 1:
            train_N = validation_N = order_N
            self.fold_N = torch.randint(0, self.folds, (ROWS,), generator=generator)
            self.objective = FoldedObjective(self.objective, self.fold_N, members=self.folds)
        self.schedule = Schedule(
            train_N=train_N,
            validation_N=validation_N,
            batch_size=BATCH,
            seed=3,
            validations=self.validations,
        )

    def modules(self):
        several = {"seed": 1, "folds": self.folds}
        bottoms = {name: build_folded_bottom(self.model, name, shape, **several) for name, shape in self.shapes.items()}
        outputs = 3 if self.kind == "multiclass" else 1
        widths = [bottom.width for bottom in bottoms.values()]
        return bottoms, build_folded_label_model(self.model, "bank", self.own_shape, widths, outputs=outputs, **several)

    def joined(self):
        bottoms, label = self.modules()
        return CentralizedModel(list(bottoms.values()), label)

    @property
    def anew(self):
        """Return the batches of a refit."""
        first = self.schedule
        return replace(first, train_N=torch.cat([first.train_N, first.validation_N]), validation_N=first.validation_N[:0])

    @property
    def sources(self):
        return [self.source_of(name) for name in self.parties]

    def source_of(self, name):
        return self.columns[name].rows

    @property
    def own_source(self):
        return self.own_columns.rows if self.own else no_columns

    def train(
        self,
        how,
        folder,
        *,
        resume_from=0,
        committed=None,
        wrap=lambda channel: channel,
        modules=None,
        defense=None,
        observers=None,
        refit=False,
    ):
        """Train with one thread per party over channels in memory. Return (modules, what each party returned)."""
        bottoms, label = modules or self.modules()
        folder.mkdir(exist_ok=True)
        pairs = {name: memory_channels("bank", name, timeout_s=20) for name in self.parties}
        told, watching = committed or {}, observers or {}
        anew = self.anew if refit else None

        def run_of(name):
            return TrainingRun(
                training=how,
                schedule=self.schedule,
                store=CheckpointStore(folder / name),
                resume_from=resume_from,
                committed=told.get(name, ignore_commit),
                screening=self.screening,
            )

        def label_party():
            peers = [
                FeaturePeer(
                    channel=wrap(pairs[name][0]),
                    width=bottoms[name].width,
                    observer=watching.get("bank"),
                    compression=how.compression,
                )
                for name in self.parties
            ]
            train = partial(train_label_party, label, self.own_source, self.objective, peers, defense=defense)
            return train_and_refit(label, run_of("bank"), anew, train)

        def feature_party(name):
            bottom, observer = bottoms[name], watching.get(name)
            train = partial(train_feature_party, bottom, self.source_of(name), pairs[name][1], observer=observer)
            return train_and_refit(bottom, run_of(name), anew, train)

        with ThreadPoolExecutor(1 + len(self.parties)) as pool:
            at_label = pool.submit(telling, label_party, [pair[0] for pair in pairs.values()])
            others = [pool.submit(telling, partial(feature_party, name), [pairs[name][1]]) for name in self.parties]
            results = [at_label, *others]
            if errors := [result.exception() for result in results if result.exception()]:
                raise next((error for error in errors if not isinstance(error, PeerStopped)), errors[0])
        return (bottoms, label), [result.result() for result in results]


def telling(party, channels):
    """Run a party. If it fails, tell its peers, so that they do not wait."""
    try:
        return party()
    except Exception:
        for channel in channels:
            channel.abort("failed")
        raise


def weights_of(modules):
    bottoms, label = modules
    found = {f"{name}/{key}": tensor for name, bottom in bottoms.items() for key, tensor in bottom.state_dict().items()}
    return found | {f"bank/{key}": tensor for key, tensor in label.state_dict().items()}


def weights_of_joined(model, parties):
    bottoms = dict(zip(parties, model.bottoms, strict=True))
    return weights_of((bottoms, model.label))


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    assert {name: (one[name] - other[name]).abs().max().item() for name in one if not torch.equal(one[name], other[name])} == {}
