"""Run campaigns: spread their cases over several workers, log the outcomes so that a campaign resumes, and sum them up."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tallystick.errors import ConfigError, TallystickError
from tallystick.network.channel import Progress, no_progress
from tallystick_experiments.grid import NOWHERE, Keeping, SweepLog
from tallystick_robustness.files import Files
from tallystick_robustness.folders import Folders
from tallystick_robustness.kills import Kills
from tallystick_robustness.messages import Messages, MethodMessages
from tallystick_robustness.network import NetworkFaults
from tallystick_robustness.outcome import Campaign
from tallystick_robustness.waits import Waits
from tallystick_robustness.worker import Played, WorkerPool

Figures = dict[str, Any]

CAMPAIGNS: dict[str, type[Campaign]] = {
    kind.name: kind for kind in (Messages, MethodMessages, Files, Folders, Kills, NetworkFaults, Waits)
}
KEPT_EXAMPLES = 3  # number of kept examples of each kind of failure
MEMORY_MIB = 256  # limit for the growth of a worker's memory after its first cases


@dataclass(frozen=True, kw_only=True)
class CampaignSettings:
    """Settings that make a campaign repeatable: its name, the number of cases and the seed."""

    campaign: str
    count: int
    seed: int


def names(campaign: str) -> list[str]:
    """Name the requested campaigns. Raises ConfigError for an unknown one."""
    if campaign == "all":
        return list(CAMPAIGNS)
    if campaign not in CAMPAIGNS:
        raise ConfigError(f"--campaign {campaign}: must be {', '.join(CAMPAIGNS)} or all")
    return [campaign]


def run_campaign(
    *,
    campaign: str = "all",
    count: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    case: int | None = None,
    keeping: Keeping = NOWHERE,
) -> list[Figures]:
    """Run campaigns and return the figures of each, with the outcome of every case.

    Args:
        campaign: messages, methods, files, folders, kills, network, waits or all.
        count: cases of each campaign; by default the campaign's own number.
        seed: the seed from which the cases are drawn.
        jobs: cases at a time; by default one per core.
        case: the number of the only case to run.
        keeping: where finished cases are logged, one log for each campaign.

    Raises ConfigError for an unknown campaign, and for a log of other settings.
    """
    jobs = jobs or os.cpu_count() or 1
    figures: list[Figures] = []
    for name in names(campaign):
        setting = CampaignSettings(campaign=name, count=count or CAMPAIGNS[name].count, seed=seed)
        if case is not None:
            setting = CampaignSettings(campaign=name, count=case + 1, seed=seed)
            figures.append(_run(setting, [range(case, case + 1)], 1, None, no_progress))
            continue
        log = keeping.open({"campaign": name, "seed": seed}, mark=f"-{name}")
        size = CAMPAIGNS[setting.campaign].chunk
        first_cases = {line["first"] for line in log.runs} if log is not None else set()
        starts = range(0, setting.count, size)
        chunks = [range(start, min(start + size, setting.count)) for start in starts if start not in first_cases]
        figures.append(_run(setting, chunks, jobs, log, keeping.progress))
    return figures


def _run(setting: CampaignSettings, chunks: Sequence[range], jobs: int, log: SweepLog | None, progress: Progress) -> Figures:
    began = time.monotonic()
    lines = [line for line in (log.runs if log is not None else []) if line["first"] < setting.count]
    cases_done = sum(line["cases"] for line in lines)
    with tempfile.TemporaryDirectory(prefix="tallystick-faults-", ignore_cleanup_errors=True) as scratch:
        for line in _lines(setting, chunks, jobs, Path(scratch)):
            lines.append(line)
            if log is not None:
                log.add(line)
            cases_done += line["cases"]
            progress(setting.campaign, cases_done, setting.count)
    return campaign_figures(setting, lines, time.monotonic() - began)


def _lines(setting: CampaignSettings, chunks: Sequence[range], jobs: int, scratch: Path) -> Iterator[Figures]:
    """Run chunks of cases in worker processes, with a line for each. Cases that start processes run from this one's threads."""
    kind = CAMPAIGNS[setting.campaign]
    if not chunks:
        return
    with WorkerPool(kind, setting.seed, scratch) if kind.in_workers else kind(scratch, seed=setting.seed) as running:

        def played(chunk: range) -> Played:
            if isinstance(running, WorkerPool):
                return running.play(chunk)
            return Played(outcomes=[running.case(number) for number in chunk], facts=running.facts())

        with ThreadPoolExecutor(jobs) as pool:
            waiting = {pool.submit(played, chunk): chunk for chunk in chunks}
            try:
                for future in as_completed(waiting):
                    yield line_of(waiting[future], future.result())
            finally:
                for future in waiting:
                    future.cancel()


def line_of(chunk: range, played: Played) -> Figures:
    """Sum up a chunk of cases for the log: counts, and the cases that failed."""
    outcomes = played.outcomes
    if len(outcomes) != len(chunk):
        raise TallystickError(f"cases {chunk}: {len(outcomes)} outcomes for {len(chunk)} cases")
    table: dict[str, Counter[str]] = {}
    slowest: dict[str, float] = {}
    for outcome in outcomes:
        table.setdefault(outcome.what, Counter())[outcome.ended] += 1
        slowest[outcome.what] = max(slowest.get(outcome.what, 0.0), outcome.seconds)
    return {
        "first": chunk.start,
        "cases": len(chunk),
        "table": table,
        "slowest": slowest,
        "failures": [asdict(outcome) for outcome in outcomes if outcome.ended == "failed"],
        "facts": played.facts,
        "memory": played.memory_mib,
        "baseline": played.baseline_mib,
    }


def campaign_figures(setting: CampaignSettings, lines: Sequence[Figures], seconds: float) -> Figures:
    """Sum up a campaign's lines."""
    table: dict[str, Counter[str]] = {}
    slowest: dict[str, float] = {}
    failures: dict[str, Figures] = {}
    for line in sorted(lines, key=lambda line: line["first"]):
        for what, counts in line["table"].items():
            table.setdefault(what, Counter()).update(counts)
            slowest[what] = max(slowest.get(what, 0.0), line["slowest"][what])
        for failure in line["failures"]:
            group = failures.setdefault(failure["failure"], {"cases": 0, "examples": []})
            group["cases"] += 1
            if len(group["examples"]) < KEPT_EXAMPLES:
                group["examples"].append(failure)
    memory = [line["memory"] for line in lines if line["memory"]]
    grown = [line["memory"] - line["baseline"] for line in lines if line["baseline"]]
    figures = {
        "campaign": setting.campaign,
        "cases": sum(line["cases"] for line in lines),
        "seconds": seconds,
        "ended": dict(sum((counts for counts in table.values()), Counter())),
        "table": {what: {**counts, "slowest_s": round(slowest[what], 3)} for what, counts in sorted(table.items())},
        "failures": dict(sorted(failures.items(), key=lambda item: -item[1]["cases"])),
        "facts": lines[-1]["facts"] if lines else {},
    }
    if memory:
        figures["memory_mib"] = {"highest": max(memory), "most_grown": max(grown, default=0)}
        if max(grown, default=0) > MEMORY_MIB:
            why = f"memory that grows: by {max(grown)} MiB over the campaign"
            figures["failures"][why] = {"cases": 1, "examples": []}
            figures["ended"]["failed"] = figures["ended"].get("failed", 0) + 1
    return figures
