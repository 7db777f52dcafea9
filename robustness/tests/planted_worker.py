"""A campaign whose cases are over at once, so that the cost of one that hangs or dies shows without a long preparation."""

from tallystick_robustness.outcome import Campaign, CaseOutcome


class Planted(Campaign):
    name = "planted"

    def facts(self):
        return {}

    def case(self, number):
        return CaseOutcome(case=number, what="planted", how="", ended="refused", seconds=0.0)
