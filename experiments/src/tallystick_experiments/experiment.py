"""Declare an experiment: its cases, the trial that makes a row of each, and the page that shows the rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallystick_experiments.grid import NOWHERE, Keeping, Trial, run_cases
from tallystick_experiments.page import ExperimentResult, PageOf
from tallystick_experiments.stats import Row


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Hold an experiment whose options are chosen, before any of it has run.

    Args:
        name: its key in results.PAGES, by which committed rows find their page.
        cases: the fields that distinguish the runs, as plain data; they come first in a row, and all cases have the same fields.
        trial: takes a case's fields by their names, and makes the rest of its row.
        page: makes the page from ``about`` and the rows.
        setting: what the rows of one log must agree on.
        usual: values of fields that older logs leave out.
        about: facts that are in no row, as plain data, or a function that measures them after the rows are made.
    """

    name: str
    cases: Sequence[Row]
    trial: Trial
    page: PageOf
    setting: Row
    usual: Mapping[str, Any] = field(default_factory=dict)
    about: Row | Callable[[], Row] = field(default_factory=dict)

    def run(self, keeping: Keeping = NOWHERE) -> ExperimentResult:
        """Make the rows that the log lacks, on one thread each. Raises the errors of ``run_cases`` and of the trial."""
        rows = run_cases(self.cases, self.trial, keeping, self.setting, usual=self.usual)
        about = self.about() if callable(self.about) else self.about
        return ExperimentResult(experiment=self.name, about=about, rows=rows, page_of=self.page)
