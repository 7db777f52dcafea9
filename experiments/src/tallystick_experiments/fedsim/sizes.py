"""Make FedSim's Table 9: the number of weights of each set's networks, counted in networks that are built and never trained.

If links are one to one, or predictions are averaged over links, the network is an ordinary split one: a bottom of two layers on
each side, and a layer and the output above. FeatureSim gets the similarity as one more number. FedSim gets its gates and its
merge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tallystick.config.merge import AttentionMergeConfig, CNNMergeConfig
from tallystick.config.sections import NetworkModel
from tallystick.models.build import build_bottom, build_label_model, width_of
from tallystick.tables.features import FeatureShape
from tallystick_experiments.fedsim import paper
from tallystick_experiments.fedsim.methods import METHODS
from tallystick_experiments.stats import Row

Widths = tuple[int, int, int]  # widths of a bottom's two layers, and of the layer above the cut
CHOICES = (50, 100, 200, 400)
"""Widths that the paper names: 100, 200 and 400 of hidden layers, 50 of a bottom's last layer."""


@dataclass(frozen=True, kw_only=True)
class PublishedSizes:
    """Describe the network of a set, as the paper and its authors' code have it.

    Args:
        columns: the number of the label party's columns and of the feature party's, without keys.
        neighbors: K.
        widths: the widths of the layers.
        merge: the sizes of FedSim's merge.
    """

    columns: tuple[int, int]
    neighbors: int
    widths: Widths
    merge: CNNMergeConfig


SETS = {
    "house": PublishedSizes(columns=(54, 22), neighbors=100, widths=(200, 100, 100), merge=CNNMergeConfig(method="cnn")),
    "taxi": PublishedSizes(columns=(960, 2), neighbors=50, widths=(100, 50, 100), merge=CNNMergeConfig(method="cnn", kernel=5)),
    "hdb": PublishedSizes(columns=(68, 8), neighbors=50, widths=(200, 100, 100), merge=CNNMergeConfig(method="cnn")),
    "game": PublishedSizes(columns=(37, 85), neighbors=50, widths=(100, 50, 100), merge=CNNMergeConfig(method="cnn")),
    "company": PublishedSizes(
        columns=(90, 156), neighbors=50, widths=(100, 50, 100), merge=CNNMergeConfig(method="cnn", channels=4, hidden=200)
    ),
}


def weights_of(of: PublishedSizes, method: str, widths: Widths) -> int:
    """Build both parties' modules of a method at these widths, and count their weights."""
    linked = method == "FedSim"
    merge = METHODS[method].merged(of.merge) if linked else None
    model = NetworkModel(
        numeric="plain", hidden=widths, cut_after=2, merge=merge if merge is not None else AttentionMergeConfig()
    )
    own, partner_columns = of.columns
    bottom = build_bottom(model, "feature", _numbers(partner_columns + (method == "FeatureSim")), seed=0)
    candidates = [of.neighbors] if linked else []
    label_model = build_label_model(model, "label", _numbers(own), [width_of(bottom)], outputs=1, seed=0, candidates=candidates)
    return sum(weight.numel() for module in (bottom, label_model) for weight in module.parameters())


def _numbers(count: int) -> FeatureShape:
    return FeatureShape(numeric=count, cardinalities=())


def table_9() -> list[Row]:
    """Return a row per printed number: ours at the set's widths and, if it differs, the widths that give the printed one."""
    rows: list[Row] = []
    for method, printed_by_set in paper.TABLE_9.items():
        for name, printed in printed_by_set.items():
            of = SETS[name]
            weights = weights_of(of, method, of.widths)
            other_widths: Sequence[Widths] = []
            if weights != printed:
                other_widths = [
                    widths for widths in product(CHOICES, CHOICES, CHOICES) if weights_of(of, method, widths) == printed
                ]
            base_row = {"set": name, "method": method, "paper": printed, "weights": weights, "widths": list(of.widths)}
            rows.append(base_row | {"others": [list(widths) for widths in other_widths]})
    return rows
