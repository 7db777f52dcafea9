"""FedSim's experiments: which runs each of its tables and figures needs, made one by one, with a log that resumes."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tallystick.benchmark.fedsim.data import READERS
from tallystick.benchmark.fedsim.methods import METHODS
from tallystick.benchmark.fedsim.runs import RECIPES, SplitKind, boosted_trees, link, train
from tallystick.benchmark.shared import SweepLog, one_thread
from tallystick.errors import ConfigError
from tallystick.network.channel import Progress, no_progress

TREES = "boosted trees, K nearest"


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """What tells a run from the others of a sweep."""

    set: str
    method: str
    neighbors: int
    seed: int
    sigma: float = 0.0
    split: SplitKind = "varied"


def planned(
    sets: Sequence[str], methods: Sequence[str], seeds: Sequence[int], neighbors: Sequence[int], split: SplitKind
) -> list[RunKey]:
    """The runs of a table, seed after seed, so that an interrupted sweep has all methods of some seeds."""
    return [
        RunKey(set=name, method=method, neighbors=count, seed=seed, split=split)
        for seed in seeds
        for name in sets
        for method in methods
        for count in neighbors or [RECIPES[name].neighbors]
    ]


def make(
    folders: dict[str, Path], keys: Sequence[RunKey], log: SweepLog | None, *, progress: Progress = no_progress
) -> Iterator[dict[str, Any]]:
    """Make the runs, or take them from the log."""
    known = {tuple(each[name] for name in RunKey.__dataclass_fields__): each for each in (log.runs if log is not None else [])}
    pairs: dict[str, Any] = {}
    kept: tuple[Any, Any] = (None, None)
    with one_thread():
        for done, key in enumerate(keys):
            found = known.get(tuple(asdict(key).values()))
            if found is None:
                if key.set not in pairs:
                    pairs[key.set] = READERS[key.set](folders[key.set])
                linking = (key.set, key.neighbors, key.seed, key.split, key.sigma)
                if kept[0] != linking:
                    kept = linking, link(pairs[key.set], neighbors=key.neighbors, seed=key.seed, kind=key.split, sigma=key.sigma)
                figures = (
                    boosted_trees(kept[1], seed=key.seed)
                    if key.method == TREES
                    else train(kept[1], key.method, RECIPES[key.set], seed=key.seed).figures
                )
                found = asdict(key) | figures
                if log is not None:
                    log.add(found)
            yield found
            progress(f"{key.set}, seed {key.seed}: {key.method}, K = {key.neighbors}", done + 1, len(keys))


def check_methods(methods: Sequence[str]) -> None:
    """Raise ConfigError for a method that there is not."""
    if unknown := sorted(set(methods) - {*METHODS, TREES}):
        raise ConfigError(f"bench fedsim: unknown methods {', '.join(unknown)}; expected some of {', '.join([*METHODS, TREES])}")
