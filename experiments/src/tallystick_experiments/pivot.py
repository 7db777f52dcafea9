"""Make tables of an experiment's rows: a line for each value of a field, with figures over seeds in the columns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallystick_experiments.page import Cell, ResultTable, Series
from tallystick_experiments.stats import Figure, Row, change, distinct, groups, over_seeds

Rows = Sequence[Row]
LineCell = str | Callable[[Rows], Cell]
"""The content of a column for a line's rows: a field's mean over seeds, or the result of a function."""


def mean(figure: Figure) -> Callable[[Rows], Cell]:
    """Show the mean of a figure over a line's seeds, with its interval."""
    return lambda rows: over_seeds(rows, figure)


def first(name: str) -> Callable[[Rows], Cell]:
    """Show a field that all rows of a line have in common."""
    return lambda rows: rows[0].get(name)


@dataclass(frozen=True, kw_only=True)
class Pivot:
    """Declare a table of rows.

    Args:
        name: the name of the table.
        rows: the field whose values each get a line, or several fields by the heads of their columns.
        apart: fields that also separate lines, but are not shown.
        order: the values of that field that get a line, in this order; by default all, in the order of the rows.
        shown: further columns by their heads.
        columns: a field whose values each get a column of ``figure``; by default none.
        figure: the figure of a row, shown over seeds.
        paired: the value of ``columns`` that the others are compared with, seed by seed; they show the difference in ``figure``.
        heads: the values of ``columns`` that get a column, with their heads; by default all, as their own heads.
        last: like ``shown``, but after the columns of ``figure``.
        note: the text under the table's name.
    """

    name: str
    rows: str | Mapping[str, str]
    apart: Sequence[str] = ()
    order: Iterable[Any] | None = None
    shown: Mapping[str, LineCell] = field(default_factory=dict)
    columns: str = ""
    figure: Figure = ""
    paired: Any = None
    heads: Mapping[Any, str] | None = None
    last: Mapping[str, LineCell] = field(default_factory=dict)
    note: str = ""

    def table(self, rows: Iterable[Row]) -> ResultTable:
        """Make the table of these rows."""
        rows = list(rows)
        fields = {self.rows: self.rows} if isinstance(self.rows, str) else self.rows
        heads = self.heads
        if heads is None:
            heads = {value: str(value) for value in distinct(rows, self.columns)} if self.columns else {}
        compared = {value: head for value, head in heads.items() if self.paired is None or value != self.paired}
        by_line, lines = groups(rows, *fields.values(), *self.apart), list[list[Cell]]()
        for of in (by_line[value] for value in (by_line if self.order is None else self.order) if value in by_line):
            by_column = groups(of, self.columns) if self.columns else {}
            base = by_column.get(self.paired, [])
            figures = [
                over_seeds(mine, self.figure) if self.paired is None else change(mine, base, self.figure)
                for mine in (by_column.get(value, []) for value in compared)
            ]
            lines.append(
                [
                    *(of[0][name] for name in fields.values()),
                    *(_cell(shown, of) for shown in self.shown.values()),
                    *figures,
                    *(_cell(shown, of) for shown in self.last.values()),
                ]
            )
        return ResultTable(
            name=self.name, columns=[*fields, *self.shown, *compared.values(), *self.last], rows=lines, note=self.note
        )


def line_of_means(name: str, rows: Iterable[Row], x: str, figure: Figure) -> Series:
    """Draw the mean of a figure over seeds against a field."""
    means = ((place, over_seeds(of, figure)) for place, of in groups(rows, x).items())
    return Series.of(name, ((place, None if each is None else each.value) for place, each in means))


def _cell(shown: LineCell, rows: Rows) -> Cell:
    return over_seeds(rows, shown) if isinstance(shown, str) else shown(rows)
