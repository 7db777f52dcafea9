"""A worker whose cases are over at once: what a case that hangs or dies costs is seen without a campaign's long preparation."""

import sys
from pathlib import Path

from tallystick_robustness.outcome import CaseOutcome
from tallystick_robustness.worker import CAMPAIGNS, main


class Planted:
    """A campaign with nothing in it."""

    def __init__(self, scratch, *, seed):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def facts(self):
        return {}

    def case(self, number):
        return CaseOutcome(case=number, what="planted", how="", ended="refused", seconds=0.0)


if __name__ == "__main__":
    CAMPAIGNS["planted"] = Planted
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
