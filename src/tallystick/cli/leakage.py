"""Show an audit's findings, for a job and for an audit by itself."""

from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tallystick.report.leaks import (
    by_strength,
    column_promise,
    columns_by_name,
    feature_headline,
    gradients_headline,
    leak_headline,
    row_groups,
)
from tallystick.results import Audit, ColumnsFromGradients, FeatureAudit


def leakage_values(audit: Audit) -> dict[str, Any]:
    """Return an audit as plain values for JSON, with its attacks in the order in which they ran."""
    attacks = [{field: getattr(attack, field) for field in attack.__struct_fields__} for attack in audit.attacks]
    growth = [{field: getattr(each, field) for field in each.__struct_fields__} for each in audit.growth]
    return {
        "headline": leak_headline(audit),
        "summary": audit.summary,
        "defense": audit.defense,
        "attacks": attacks,
        "growth": growth,
        "not_measured": audit.not_measured,
    }


def show_leakage(console: Console, audit: Audit) -> None:
    """Print whether labels leak, and a line per attack, the strongest first."""
    for line in leak_headline(audit):
        console.print(line, markup=False, style="bold")
    console.print(audit.summary, markup=False)
    console.print(f"defence: {audit.defense}", markup=False)
    if audit.attacks:
        numbers = any(attack.spearman is not None for attack in audit.attacks)
        table = Table(box=None)
        figures = ("Spearman", "", "a guess", "R²") if numbers else ("AUC", "", "symmetric", "a guess", "found at 0.1 %")
        for name in ("attack, and in whose seat", *figures):
            table.add_column(name)
        for attack in by_strength(audit.attacks):
            name = attack.title
            if numbers:
                within = _within(attack.spearman_low, attack.spearman_high)
                cells = [_number(attack.spearman), within, _number(attack.spearman_chance), _number(attack.r_squared)]
            else:
                others = (attack.symmetric_auc, attack.symmetric_chance, attack.tpr_at_fpr_001)
                cells = [_number(attack.auc), _within(attack.low, attack.high), *map(_number, others)]
                name += " (needs what no attacker has)" if attack.upper_bound else ""
            table.add_row(f"{name}\n{escape(attack.view)}", *cells)
        console.print(table)
    for each in audit.growth:
        points = ", ".join(f"{auc:.3f} by epoch {epoch}" for epoch, auc in zip(each.epochs, each.symmetric_auc, strict=True))
        console.print(f"{each.name} grew: {points}", markup=False)
    for line in audit.not_measured:
        console.print(f"not measured: {line}", markup=False)


def feature_values(audit: FeatureAudit) -> dict[str, Any]:
    """Return a feature party's audit as plain values for JSON."""
    plain: dict[str, Any] = msgspec.to_builtins(audit)
    return {"headline": feature_headline(audit), **plain}


def show_features(console: Console, audit: FeatureAudit) -> None:
    """Print whether columns can be rebuilt, and a line per column."""
    console.print(feature_headline(audit), markup=False, style="bold")
    console.print(audit.summary, markup=False)
    console.print(f"defence: {audit.defense}", markup=False)
    if promise_text := column_promise(audit):
        console.print(promise_text, markup=False)
    for group in row_groups(audit):
        counts = sorted({column.known for column in group.columns})
        table = Table(box=None, title=group.rows, title_justify="left")
        for name in ("column", *(f"knowing {count} rows" for count in counts)):
            table.add_column(name)
        for name, used, by_count in columns_by_name(group):
            cells = []
            for column in (by_count.get(count) for count in counts):
                cell = f"{column.value:.3f} ({column.attack})" if column is not None else ""
                if column is not None and column.auc is not None:
                    cell += f", AUC of a category {column.auc:.3f}"
                if column is not None and column.cosine is not None:
                    cell += f", cosine {column.cosine:.3f}"
                if column is not None and column.accuracy is not None:
                    cell += f", accuracy {column.accuracy:.3f} for {column.majority:.3f}"
                cells.append(cell)
            table.add_row(escape(name if used else f"{name} (not used)"), *cells)
        if group.columns:
            console.print(table)
    for line in audit.not_measured:
        console.print(f"not measured: {line}", markup=False)


def gradients_values(from_gradients: ColumnsFromGradients) -> dict[str, Any]:
    """Return what gradients reveal about columns as plain values for JSON."""
    plain: dict[str, Any] = msgspec.to_builtins(from_gradients)
    return {"headline": gradients_headline(from_gradients), **plain}


def show_gradients(console: Console, from_gradients: ColumnsFromGradients) -> None:
    """Print in one line what cut gradients reveal about a party's columns, and what could not be measured."""
    console.print(gradients_headline(from_gradients), markup=False, style="bold")
    console.print(from_gradients.summary, markup=False)
    for line in from_gradients.not_measured:
        console.print(f"not measured: {line}", markup=False)


def _within(low: float | None, high: float | None) -> str:
    return rf"\[{low:.3f}, {high:.3f}]" if low is not None and high is not None else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
