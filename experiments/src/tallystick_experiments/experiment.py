"""An experiment is a declaration: its cases, the trial that makes a row of each, and the page that shows the rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallystick_experiments.grid import NOWHERE, Keeping, Trial, run_cases
from tallystick_experiments.page import ExperimentResult, PageOf
from tallystick_experiments.stats import Row


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment whose options are chosen: nothing of it has run yet.

    Args:
        name: among results.PAGES, where committed rows find their page.
        cases: what tells each run from the others, as plain data: the first fields of its row; all have the same.
        trial: takes a case's fields by their names and makes the rest of its row.
        page: makes the page of what no row says, and of the rows.
        setting: what the rows of one log have to agree on.
        usual: values of fields that older logs leave out.
        about: what no row says, as plain data; a function of nothing, where it is measured once the rows are made.
    """

    name: str
    cases: Sequence[Row]
    trial: Trial
    page: PageOf
    setting: Row
    usual: Mapping[str, Any] = field(default_factory=dict)
    about: Row | Callable[[], Row] = field(default_factory=dict)

    def run(self, keeping: Keeping = NOWHERE) -> ExperimentResult:
        """Make the rows that the log lacks, on one thread each. Raises as ``run_cases`` and the trial do."""
        rows = run_cases(self.cases, self.trial, keeping, self.setting, usual=self.usual)
        about = self.about() if callable(self.about) else self.about
        return ExperimentResult(experiment=self.name, about=about, rows=rows, page_of=self.page)
