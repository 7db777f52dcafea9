"""Define the parts of FedSim's experiments: the runs of each table and figure, and the figures that it shows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tallystick_experiments.fedsim import paper
from tallystick_experiments.fedsim.located import FINE_TAUS, WIDE_FILTERS, noise_settings
from tallystick_experiments.fedsim.methods import BY_CONTRACT, TREES

LINKED = ("house", "hdb", "bike")
PLACES = ("hdb",)
"""Sets whose keys are one longitude and latitude. Attackers locate them in metres."""


class Compared(NamedTuple):
    """List methods that are compared at each of these values of the part's setting. A set may have its own values."""

    methods: Sequence[str]
    values: Sequence[Any] | Mapping[str, Sequence[Any]] = (None,)  # None: the set's own value


@dataclass(frozen=True, kw_only=True)
class PaperPart:
    """Define a table or figure.

    Args:
        title: the title of its table; empty if it has no runs.
        runs: its runs; empty if it is measured without training.
        varies: the setting that varies in addition to the method.
        sets: its sets.
        always: settings that differ from those of a plain run.
        at_papers_k: whether it uses the paper's K and not ours.
        figures: the figures that it shows; by default the set's metric, with R-squared if that is RMSE.
    """

    title: str = ""
    runs: Sequence[Compared] = ()
    varies: str = ""
    sets: Sequence[str] = LINKED
    always: Mapping[str, Any] = field(default_factory=dict)
    at_papers_k: bool = False
    figures: Sequence[str] = ()

    @property
    def needs_files(self) -> bool:
        """Tell whether all its sets need files."""
        return self.sets == LINKED or self.sets == PLACES

    def figures_of(self, name: str) -> Sequence[str]:
        """Return the figures that it shows for a set. Methods are compared by the first."""
        metric = paper.METRIC[name]
        return self.figures or ((metric, "r2") if metric == "rmse" else (metric,))

    def settings(self, sets: Sequence[str]) -> Iterator[tuple[str, dict[str, Any], Sequence[str]]]:
        """Yield a set, its differences from a plain run, and the methods, for ``sets`` and for sets that need no files."""
        for compared in self.runs:
            for name in [*(each for each in sets if each in self.sets), *(each for each in self.sets if "synthetic" in each)]:
                always = dict(self.always) | ({"neighbors": paper.NEIGHBORS[name]} if self.at_papers_k else {})
                values = compared.values[name] if isinstance(compared.values, Mapping) else compared.values
                for value in values:
                    yield name, always | ({} if value is None else {self.varies: value}), compared.methods


PARTS: Mapping[str, PaperPart] = {
    "table-1": PaperPart(
        title="Table 1: methods and ablations",
        runs=[
            Compared(
                [
                    *("Solo", "Top1Sim", "AvgSim", "FeatureSim", "FedSim", "attention", TREES),
                    *(f"FedSim without {what}" for what in ("weight gate", "sort gate", "CNN")),
                ]
            )
        ],
    ),
    "table-2": PaperPart(
        title="Table 2: either side alone",
        runs=[Compared(("Solo", "Solo with the keys", "Secondary"))],
    ),
    "table-6": PaperPart(
        title="Table 6: three feature parties that share the columns out, and fewer of them",
        runs=[Compared(("FedSim", "attention"), ("1+2+3", "1+2", "1+3", "2+3", "1", "2", "3"))],
        varies="parties",
        figures=("r2", "rmse"),
    ),
    "table-8": PaperPart(
        title="Table 8: an epoch's training",
        runs=[Compared(("Top1Sim", "FeatureSim", "AvgSim", "FedSim", "FedSim averaging", "attention"))],
        always={"timed": True},
        at_papers_k=True,
    ),
    "neighbors": PaperPart(
        title="Figure 9: by the number of links K",
        runs=[
            Compared(("Top1Sim",)),  # at any K
            Compared(
                ("AvgSim", "FeatureSim", "FedSim", "attention"),
                {"house": (5, 10, 20, 40), "hdb": (3, 5, 10, 20), "bike": (1, 5, 10, 20, 50)},
            ),
        ],
        varies="neighbors",
    ),
    "tau": PaperPart(
        title="Figure 6: noise on the similarities of filters, from tau",
        runs=[Compared(("FedSim", "Top1Sim"), tuple(noise_settings(FINE_TAUS, ())))],
        varies="noise",
    ),
    "table-11": PaperPart(
        title="Table 11: distances of keys, or of their filters",
        runs=[Compared(("FedSim", "attention"), ("", "tau 1"))],
        varies="noise",
    ),
    "windows": PaperPart(
        title="Why filters cost: how far they reach",
        runs=[Compared(("FedSim",), ("", "tau 1", WIDE_FILTERS))],
        varies="noise",
    ),
    "gains": PaperPart(
        title="Figure 5 ii: what FedSim brings over the most similar link",
        runs=[Compared(("Top1Sim", "FedSim"))],
        at_papers_k=True,
    ),
    "merges": PaperPart(
        title="Why attention is ahead: its merge, width and activation apart",
        runs=[
            Compared(
                [
                    *("FedSim", "attention", "attention, width 10", "attention, width 10, sigmoid"),
                    *("attention, FedSim's links", "FedSim's merge, attention's links"),
                ]
            )
        ],
    ),
    "recipes": PaperPart(
        title="FedSim by how it is trained",
        runs=[Compared(("FedSim",), ("ours", "the paper's"))],
        varies="recipe",
        figures=("rmse", "r2", "dead"),
    ),
    "contract": PaperPart(
        title="What a contract does by default, beside boosted trees",
        runs=[Compared((TREES, "attention", BY_CONTRACT))],
    ),
    "frontier": PaperPart(
        title="What noise costs and what it hides",
        runs=[Compared(("Top1Sim", "FedSim", "attention"), tuple(noise_settings()))],
        varies="noise",
        sets=PLACES,
        always={"locates": True},
    ),
    "synthetic": PaperPart(
        title="Figure 5: noise on the keys of one table split by columns",
        runs=[Compared(("Solo", "Top1Sim", "AvgSim", "FedSim averaging", "attention", "Combine"), values=paper.KEY_NOISE)],
        varies="key_noise",
        sets=("frogs", "synthetic"),
    ),
    "table-10": PaperPart(
        title="Table 10: keys that tell nothing but which rows are one thing",
        runs=[
            Compared(("Solo", "Top1Sim", "FedSim", "attention", "Combine"), (30,)),
            Compared(("FedSim", "attention"), (50,)),
        ],
        varies="neighbors",
        sets=("synthetic-random",),
    ),
    "table-7": PaperPart(sets=()),
    "table-9": PaperPart(sets=()),
    "cut": PaperPart(),
    "delta": PaperPart(),
}
