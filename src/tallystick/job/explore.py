"""Run `tallystick explore`: estimate on a sample, by a head on shares, what a partner's columns would add. Nothing else is
opened.

It is a run of the contract on a sample of ids (``alignment/sample.py``, ``job/run.py: explore_party``).
"""

from tallystick.config.contract import Contract
from tallystick.config.explore import ExploreConfig
from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError, DataError
from tallystick.job.job import EXPLORE
from tallystick.job.process import run_process
from tallystick.results import Result
from tallystick.run_folder.folder import RunFolder
from tallystick.watcher import Watcher

LEAST_OF_A_CLASS = 20
"""The fewest test rows of a class. With fewer, an interval is much too narrow (``evaluation/intervals.py``)."""


def run_explore(contract: Contract, party: PartyFile, *, watcher: Watcher) -> tuple[Result, RunFolder]:
    """Explore with the other party and the helper, over the network. Return the result and its folder.

    Raises ConfigError if the contract allows no exploration, what run_process raises, and DataError at the label party if the
    sample gives no estimate. The others do not learn that.
    """
    require_explore(contract)
    again = "run `tallystick explore` again on all sides"
    result, folder = run_process(contract, party, watcher=watcher, command=EXPLORE, how_to_resume=again)
    require_estimate(result)
    return result, folder


def require_explore(contract: Contract) -> ExploreConfig:
    """Return the contract's terms of exploration. Raises ConfigError if it has none."""
    if contract.explore is None:
        raise ConfigError("explore: the contract has no such section, so nobody may explore; agree on one, such as explore: {}")
    return contract.explore


def require_estimate(result: Result) -> None:
    """Raise DataError if a label party's sample gave no gain, or one without a usable interval."""
    if (evaluation := result.evaluation) is None:
        return
    name, rows = next(iter(evaluation["joint"])), evaluation["rows"]
    if (mean := evaluation["label_mean"]) is not None and evaluation["target"] == "binary":
        rare = round(min(mean, 1 - mean) * rows)
        if rare < LEAST_OF_A_CLASS:
            raise DataError(
                f"explore: {rare} of {rows:,} test rows are of the rarer class, and an interval takes at least "
                f"{LEAST_OF_A_CLASS}; raise explore.rows"
            )
    if evaluation["difference"] is None:
        raise DataError(f"party {result.party}: has no column of its own, so there is nothing to compare both sides' {name} with")
    gain = evaluation["difference"][name]
    if gain["value"] is None or gain["low"] is None:
        raise DataError(f"explore: no estimate of {name} on {rows:,} test rows: {gain['reason']}; raise explore.rows")
