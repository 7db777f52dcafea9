"""Swap or damage files of run folders, for each way of linking rows, and read them back with another command.

A case replaces a file of a run folder with that of another run of the same contract, another party, step or kind, or damages or
removes it. ``run --resume`` or ``predict`` must then refuse the file, or give the same result as without the fault.
"""

import math
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from tallystick_robustness.both import copy_of_homes, interrupted, predicted, ran, undisturbed
from tallystick_robustness.files import spoil_sealed
from tallystick_robustness.fixture_job import (
    FEATURE,
    HELPER,
    HELPER_LISTENS,
    LABEL,
    PARTIES,
    Homes,
    Values,
    contract,
    lay_out,
    tables,
)
from tallystick_robustness.outcome import Campaign, CaseOutcome, broken_weights, outcome_of

_ROWS = 120
TOLERANCE = 1e-5  # tolerance of the mean difference of scores, if each linking gives the same rows
_AGAIN = 4  # undisturbed predictions, if linking draws at random: scores may differ three times as much as theirs
_SIMILAR: Values = {
    "dimensions": [{"name": "place", "unit": "metre", "low": 0.0, "high": 100.0}],
    "neighbors": 3,
    "window": 20.0,
    "deviation": 0.03,
    "failure": 0.1,
}
LINKAGES: dict[str, Values] = {
    "intersection": {},
    "union": {"alignment__method": "union", "union": {"audit": False}},
    "similarity": {
        "alignment": {"method": "similarity", "similarity": _SIMILAR},
        "model__merge": {"width": 8, "heads": 2, "top": [8]},
        "parties__helper": {"role": "helper"},
    },
    "unaligned": {"unaligned": {"method": "warm-start", "epochs": 2}},
}
FAULTS = ("another run's", "another party's", "another step's", "another kind's", "damaged", "missing")
_UNREAD = ("contract.json", "result.json")  # neither command reads them


@dataclass(frozen=True, kw_only=True)
class _Linked:
    """Keep one linkage's run, interrupted and finished, another run of it, and the results of the first one."""

    half: Homes
    done: Homes
    other: Homes
    weights: dict[str, str]
    scores: dict[str, float]
    slack: float  # how far scores may differ


class Folders(Campaign):
    """Campaign of run folders. For each way of linking rows, its fixture has two runs of one contract on different tables."""

    name, count, chunk = "folders", 1_000, 10
    title = "Swapped and damaged files of run folders"
    meaning = (
        "refused: an error of ours. withstood: to the undisturbed run's weights, or its scores, as the file is not read by this "
        "command, is made again, or an earlier step serves. failed: anything else, such as a file that is used silently."
    )

    def __init__(self, scratch: Path, *, seed: int) -> None:
        """Make the undamaged run folders once."""
        super().__init__(scratch, seed=seed)
        self._linked = {name: self._prepare(name) for name in LINKAGES}

    def facts(self) -> dict[str, Any]:
        """Return the facts of the campaign for its page."""
        return {"rows": _ROWS, "kinds": [f"{linkage}, {fault}" for linkage in LINKAGES for fault in FAULTS]}

    def case(self, number: int) -> CaseOutcome:
        """Run one case. Linkages and faults take turns."""
        draw = self.draw(number)
        linkage, fault = list(LINKAGES)[number % len(LINKAGES)], FAULTS[number // len(LINKAGES) % len(FAULTS)]
        linked, resumes, party = self._linked[linkage], draw.random() < 0.5, draw.choice(PARTIES)
        began = time.monotonic()
        homes = copy_of_homes(linked.half if resumes else linked.done, self._scratch / f"case-{number}")
        try:
            how = _spoil(homes, linked.other, party, fault, draw)
            ended = ran(homes, resume=True, first=party) if resumes else predicted(homes, scored=_scored(linkage), first=party)
            failure = ended.failure or (broken_weights(homes.root) if resumes and not ended.errors else "")
            if not failure and not ended.errors:
                same = homes.digests() == linked.weights if resumes else _distance(_scores(homes), linked.scores) <= linked.slack
                failure = "" if same else f"{fault} file is used silently: {how.partition(' ')[0]}"
        finally:
            shutil.rmtree(homes.root, ignore_errors=True)
        how = f"{'run --resume' if resumes else 'predict'}, {party}: {how}"
        seconds, as_owed = time.monotonic() - began, ended.ended
        return outcome_of(number, f"{linkage}, {fault}", how, as_owed, seconds=seconds, failure=failure, detail=ended.detail)

    def _prepare(self, linkage: str) -> _Linked:
        changes = {**LINKAGES[linkage], "network": {"heartbeat_s": 0.5, "deadline_s": 10.0, "wait_s": 20.0}}
        values = contract(training__epochs=3, training__checkpoint_every=2, evaluation__bootstrap=2, **changes)
        halves, wholes = [], []
        for which in ("one", "other"):
            frames = frames_of(linkage, other=which == "other")
            fresh = lay_out(self._scratch / f"{linkage}, {which}", values, frames, listen="127.0.0.1:7443")
            if linkage == "similarity":
                by_place(fresh)
            half = copy_of_homes(fresh, self._scratch / f"{linkage}, {which}, half")
            interrupted(half)
            resumed = copy_of_homes(half, self._scratch / f"{linkage}, {which}, done")
            undisturbed(ran(resumed, resume=True))
            halves.append(half)
            wholes.append(resumed)
        scores = []
        for number in range(_AGAIN if linkage == "similarity" else 1):
            scored = copy_of_homes(wholes[0], self._scratch / f"{linkage}, scored {number}")
            undisturbed(predicted(scored, scored=_scored(linkage)))
            scores.append(_scores(scored))
        slack = 3 * max((_distance(scores[0], again) for again in scores[1:]), default=TOLERANCE / 3)
        weights = wholes[0].digests()
        return _Linked(half=halves[0], done=wholes[0], other=wholes[1], weights=weights, scores=scores[0], slack=slack)


def frames_of(linkage: str, *, other: bool = False) -> dict[str, pl.DataFrame]:
    """Make the tables of a job that links its rows this way. With ``other``, labels and columns are different."""
    frames = tables(_ROWS)
    if linkage == "similarity":
        for shift, name in enumerate(PARTIES):
            places = frames[name]["id"].str.strip_prefix("id-").cast(pl.Float64) * (95 / _ROWS) + 0.3 * shift
            frames[name] = frames[name].with_columns(place=places)
    if linkage == "unaligned":
        frames[FEATURE] = frames[FEATURE].filter(pl.col("id") < f"id-{_ROWS * 2 // 3:06}")
    if other:
        frames[LABEL] = frames[LABEL].with_columns(y=1 - pl.col("y"), x=2 - pl.col("x"))
        frames[FEATURE] = frames[FEATURE].with_columns(x=2 * pl.col("x") + 1)
    return frames


def by_place(homes: Homes) -> None:
    """Link rows by place, with a helper that both other parties call."""
    for name in PARTIES:
        values = yaml.safe_load((homes.home(name) / "party.yaml").read_text())
        values |= {"keys": {"place": "place"}, "units": {"place": "metre"}}
        values.setdefault("peers", {})[HELPER] = {"address": HELPER_LISTENS}
        homes.write_party(name, values)


def _scored(linkage: str) -> tuple[str, ...]:
    return PARTIES if linkage == "union" else (LABEL,)


def _scores(homes: Homes) -> dict[str, float]:
    """Return the label party's scores of rows that both sides have. On a union, other rows are imputed differently each time."""
    frame = pl.read_csv(homes.home(LABEL) / "scores.csv")
    partner_table = pl.read_parquet(homes.home(FEATURE) / "table.parquet")
    if "row" in frame.columns:
        return {str(row): score for row, score in frame.select("row", "score").iter_rows()}
    common = frame if "scored_by" in frame.columns else frame.join(partner_table, on="id", how="semi")
    return dict(common.select("id", "score").iter_rows())


def _distance(found: dict[str, float], expected: dict[str, float]) -> float:
    """Return the mean absolute difference of scores. It is infinite if the rows are not the same."""
    if found.keys() != expected.keys():
        return math.inf
    return sum(abs(found[key] - expected[key]) for key in expected) / len(expected)


# --- what a fault does to a file


def _spoil(homes: Homes, other: Homes, party: str, fault: str, draw: random.Random) -> str:
    """Spoil a file of the party's newest run, and say which and how. If a run has no file for a fault, use another fault."""
    run, other_run = homes.latest(party), other.latest(party)
    peer = homes.latest(LABEL if party == FEATURE else FEATURE)
    assert run is not None
    assert other_run is not None
    assert peer is not None
    # List the files of a run folder that a command may read back
    kinds = (".json", ".safetensors")
    files = sorted(path for path in run.rglob("*") if path.suffix in kinds and path.name not in _UNREAD)
    path = draw.choice(files)
    place = path.relative_to(run)
    sources = {
        "another run's": [other_run / place],
        "another party's": [peer / place],
        "another step's": [each for each in files if each.parent == path.parent and each.stem[:4] == path.stem[:4]],
        "another kind's": [each for each in files if each.suffix == path.suffix],
    }
    if fault == "missing":
        path.unlink()
        return f"{_kind(path)} is missing: {place}"
    if fault == "damaged":
        return f"{_kind(path)} is damaged: {place}, {spoil_sealed(path, draw)}"
    candidates = [each for each in sources[fault] if each.exists() and each != path]
    if not candidates:
        return _spoil(homes, other, party, fault, draw)
    source = draw.choice(candidates)
    shutil.copy(source, path)
    return f"{_kind(path)} is {fault}: {place} is {source.name}"


def _kind(path: Path) -> str:
    return path.stem.partition("-")[0]
