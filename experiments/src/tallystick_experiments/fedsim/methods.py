"""Define the methods that FedSim's tables compare. A row is a way of linking and a way of merging.

All get the same columns, the same optimizer and the same number of epochs. Shapes: N rows, K candidates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.config.merge import (
    AttentionMergeConfig,
    AverageMergeConfig,
    CNNMergeConfig,
    MergeConfig,
    MLPMergeConfig,
    Top1MergeConfig,
)

_PLAIN: dict[str, Any] = {
    "weight": "equal",
    "width": 10,
    "activation": "none",
    "similarity_input": False,
    "own_columns": False,
    "top": (),
}
"""Settings of the baselines: one prediction from each link, linear in the aggregator's last layer as in the paper."""
_PUBLISHED: dict[str, Any] = {"width": 10, "activation": "sigmoid", "similarity_input": False, "own_columns": False, "top": ()}


@dataclass(frozen=True, kw_only=True)
class ComparedMethod:
    """Define one row of the paper's tables.

    Args:
        merge: how links are merged; None if nothing is linked.
        links: which rows to link: the K most similar, the most similar alone, the row that is the same thing, or none.
        own_columns: whether the label party's own columns take part.
        shuffles: whether an example's links come in random order, as without the sort gate.
        sees_keys: whether the label party's keys are also its columns, as in the paper.
        by_contract: whether to train with a contract's defaults of network and training, and not by the set's recipe.
        paper: its name in the paper's tables, if it is there.
    """

    merge: MergeConfig | None
    links: str = "candidates"
    own_columns: bool = True
    shuffles: bool = False
    sees_keys: bool = False
    by_contract: bool = False
    paper: str | None = None

    def merged(self, published: CNNMergeConfig) -> MergeConfig | None:
        """Return the merge with the paper's sizes for a set."""
        if self.merge is None:
            return None
        if not isinstance(self.merge, CNNMergeConfig | MLPMergeConfig):
            return self.merge
        names = [name for name in ("channels", "kernel", "hidden", "dropout") if name in type(self.merge).model_fields]
        return self.merge.model_copy(update={name: getattr(published, name) for name in names})


TREES = "boosted trees on K nearest"  # no network
BY_CONTRACT = "the contract's default"
METHODS: Mapping[str, ComparedMethod] = {
    "Solo": ComparedMethod(merge=None, links="none", paper="Solo"),
    "Solo with the keys": ComparedMethod(merge=None, links="none", sees_keys=True),
    "Secondary": ComparedMethod(
        merge=Top1MergeConfig(method="top1", **_PLAIN), links="most similar", own_columns=False, paper="Secondary"
    ),
    "Top1Sim": ComparedMethod(merge=Top1MergeConfig(method="top1", **_PLAIN), links="most similar", paper="Top1Sim"),
    "AvgSim": ComparedMethod(merge=AverageMergeConfig(method="average", **_PLAIN), paper="AvgSim"),
    "FeatureSim": ComparedMethod(
        merge=AverageMergeConfig(method="average", **{**_PLAIN, "similarity_input": True}), paper="FeatureSim"
    ),
    "FedSim": ComparedMethod(merge=CNNMergeConfig(method="cnn", **_PUBLISHED), paper="FedSim"),
    "attention": ComparedMethod(merge=AttentionMergeConfig()),
    BY_CONTRACT: ComparedMethod(merge=AttentionMergeConfig(), by_contract=True),
    "FedSim without weight gate": ComparedMethod(
        merge=CNNMergeConfig(method="cnn", weight="similarity", **_PUBLISHED), paper="FedSim (w/o Weight)"
    ),
    "FedSim without sort gate": ComparedMethod(
        merge=CNNMergeConfig(method="cnn", sort=False, **_PUBLISHED), shuffles=True, paper="FedSim (w/o Sort)"
    ),
    "FedSim without CNN": ComparedMethod(merge=MLPMergeConfig(method="mlp", **_PUBLISHED), paper="FedSim (w/o CNN)"),
    "FedSim's merge, attention's links": ComparedMethod(merge=CNNMergeConfig(method="cnn")),
    "attention, width 10": ComparedMethod(merge=AttentionMergeConfig(width=10)),
    "attention, width 10, sigmoid": ComparedMethod(merge=AttentionMergeConfig(width=10, activation="sigmoid")),
    "attention, FedSim's links": ComparedMethod(merge=AttentionMergeConfig(**_PUBLISHED)),
    "FedSim averaging": ComparedMethod(merge=AverageMergeConfig(method="average", **_PUBLISHED)),
    "Combine": ComparedMethod(merge=Top1MergeConfig(method="top1", **_PLAIN), links="same row", paper="Combine"),
}
"""Each method by its name."""
