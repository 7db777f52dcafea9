"""Declare FedSim's experiments: the runs of each table and figure, made one by one, with a log from which a sweep resumes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from tallystick.alignment.improvement import estimated_improvement
from tallystick.alignment.nearest import nearest
from tallystick.alignment.outcome import Candidates
from tallystick.errors import ConfigError, DataError
from tallystick_experiments.catalogue.pairs import GENERATED, GENERATED_ROWS, READERS, Pair, recognise
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.fedsim import cut, paper
from tallystick_experiments.fedsim.located import link_places
from tallystick_experiments.fedsim.methods import METHODS, TREES
from tallystick_experiments.fedsim.page import fedsim_page
from tallystick_experiments.fedsim.parts import PARTS
from tallystick_experiments.fedsim.runs import (
    RECIPES,
    LinkedPair,
    RecipeKind,
    SplitKind,
    boosted_trees,
    epoch_cost,
    link_pair,
    recipe_of,
    train_method,
)
from tallystick_experiments.fedsim.sizes import table_9
from tallystick_experiments.fedsim.table_7 import table_7
from tallystick_experiments.grid import Latest
from tallystick_experiments.options import seeds_option, several
from tallystick_experiments.stats import Row


@dataclass(frozen=True, kw_only=True)
class FedSimRun:
    """Identify a run among the others of a sweep."""

    set: str
    method: str
    neighbors: int
    seed: int
    key_noise: float = 0.0
    split: SplitKind = "varied"
    noise: str = ""  # name in located.noise_settings, linked as in a job; "" links by the distances of the keys
    locates: bool = False  # whether attackers locate the keys under a noise
    parties: str = ""  # numbers of the feature parties, out of three that divide the columns; "" is one with all columns
    timed: bool = False  # measures an epoch's time and trains no further
    recipe: RecipeKind = "ours"


def fedsim_experiment(
    *,
    data: Annotated[list[Path] | None, Option(help="Folder of a set's files (house, hdb, bike, frogs); may be repeated.")] = None,
    seeds: Annotated[Sequence[int], seeds_option()] = range(1, 6),
    only: Annotated[Sequence[str], several(f"Parts, with commas: {', '.join(PARTS)}.")] = (),
    methods: Annotated[Sequence[str], several("Of the methods that a part compares, with commas; all if empty.")] = (),
    rows: Annotated[int, Option(help="Of the synthetic tables; the paper has 60,000.", min=100)] = GENERATED_ROWS,
    neighbors: Annotated[int | None, Option(help="K of table-1 and table-10, in place of ours.", min=1)] = None,
    fixed_split: Annotated[bool, Option("--fixed-split", help="The paper's one split for every seed.")] = False,
) -> Experiment:
    """Declare the runs of the requested parts.

    Raises ConfigError for an unknown part or method, DataError for a folder that holds no known set.
    """
    for what, given, allowed in (("part", only, PARTS), ("method", methods, (*METHODS, TREES))):
        if unknown := sorted(set(given) - set(allowed)):
            raise ConfigError(f"bench fedsim: unknown {what} {', '.join(unknown)}; expected some of {', '.join(allowed)}")
    started = time.perf_counter()
    split: SplitKind = "fixed" if fixed_split else "varied"
    folders = {recognise(folder): folder for folder in data or []}
    parts = [part for part in PARTS if part in only] or [name for name, part in PARTS.items() if folders or not part.needs_files]
    plans = {
        part: [
            FedSimRun(
                set=name, method=method, seed=seed, split=split, **{"neighbors": RECIPES[name].neighbors, **changed, **asked}
            )
            for seed in seeds  # seed by seed, so that an interrupted sweep has all methods of some seeds
            for name, changed, compared in PARTS[part].settings(list(folders))
            for method in compared
            if not methods or method in methods
        ]
        for part in parts
        for asked in [{"neighbors": neighbors} if neighbors is not None and part in ("table-1", "table-10") else {}]
    }
    keys = list(dict.fromkeys(key for plan in plans.values() for key in plan))  # parts share runs
    usual = {setting.name: setting.default for setting in fields(FedSimRun) if setting.default is not MISSING}
    trial = _Trials(folders, rows)
    trial.check(keys)
    size = {} if rows == GENERATED_ROWS else {"rows": rows}

    def about() -> Row:
        return {
            "sets": sorted({key.set for key in keys}),
            **size,
            "seeds": list(seeds),
            "split": split,
            "parts": {part: [keys.index(key) for key in plan] for part, plan in plans.items() if plan},
            "cut": cut.measure_cut(folders["hdb"], name="hdb", neighbors=50, steps=100)
            if "cut" in parts and "hdb" in folders
            else [],
            "delta": _deltas(folders) if "delta" in parts else [],
            "linkage": table_7() if "table-7" in parts else [],
            "sizes": table_9() if "table-9" in parts else [],
            "seconds": time.perf_counter() - started,
        }

    return Experiment(
        name="fedsim",
        cases=[asdict(key) for key in keys],
        trial=trial,
        page=fedsim_page,
        setting={"benchmark": "fedsim", **size},
        usual=usual,
        about=about,
    )


class _Trials:
    """Make a case's row. Methods with the same linking share it."""

    def __init__(self, folders: Mapping[str, Path], rows: int) -> None:
        self.folders, self.rows, self.pairs = folders, rows, dict[str, Pair]()
        self.linked = Latest(self._link)

    def __call__(self, **case: Any) -> Row:
        """Link, unless the last case had the same linking, and train."""
        key = FedSimRun(**case)
        try:
            linked = self.linked(replace(key, method="", recipe="ours"))
        except DataError as error:  # no noise gives a tau that is too small for these distances
            if not key.noise:
                raise
            return {"problem": str(error)}
        located = {"located": dict(linked.located)} if linked.located else {}
        if key.method == TREES:
            return boosted_trees(linked, seed=key.seed) | located
        if key.timed:
            return epoch_cost(linked, key.method, RECIPES[key.set], seed=key.seed)
        return train_method(linked, key.method, recipe_of(key.set, key.recipe), seed=key.seed).figures | located

    def check(self, keys: Sequence[FedSimRun]) -> None:
        """Raise ConfigError if a run wants more links than there are rows to link to."""
        for key in keys:
            if key.neighbors > (rows := len(self._read(key.set).theirs)):
                raise ConfigError(
                    f"bench fedsim: {key.set} has {rows} rows to link to, and K = {key.neighbors} is asked for; give the whole "
                    "files of the set, or name other parts with --only"
                )

    def _read(self, name: str) -> Pair:
        if name not in self.pairs:
            self.pairs[name] = GENERATED[name](rows=self.rows) if name in GENERATED else READERS[name](self.folders[name])
        return self.pairs[name]

    def _link(self, key: FedSimRun) -> LinkedPair:
        pair = self._read(key.set)
        if key.parties:
            pair = pair.shared_out([int(number) for number in key.parties.split("+")])
        if key.noise:
            return link_places(pair, key.noise, neighbors=key.neighbors, seed=key.seed, kind=key.split, locates=key.locates)
        return link_pair(pair, neighbors=key.neighbors, seed=key.seed, kind=key.split, key_noise=key.key_noise)


def _deltas(folders: Mapping[str, Path]) -> list[Row]:
    """Compute FedSim's definition 1, with the K nearest rows by the keys in the clear, with K as in the paper's Table 1."""
    rows = []
    for name in (name for name in folders if name in paper.DELTA):
        pair = READERS[name](folders[name])
        neighbors = paper.NEIGHBORS[name]
        neighbors_of_keys = nearest(pair.own_key_NP, pair.their_key_MP, neighbors=neighbors)
        similarity_NK = (-neighbors_of_keys.distance_NK).astype("float32")
        links = Candidates(numbers_NK=neighbors_of_keys.numbers_NK, rows=len(pair.theirs), similarity_NK=similarity_NK)
        base_row = {"set": name, "neighbors": neighbors, "rows": len(pair.own), "paper": paper.DELTA[name]}
        rows.append(base_row | {"delta": estimated_improvement(links)})
    return rows
