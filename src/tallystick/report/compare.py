"""Compare the results of several runs: the differences in their contracts, and in their outcomes."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from tallystick.errors import ConfigError, DataError, StorageError
from tallystick.evaluation.decisions import Decisions
from tallystick.evaluation.measure import MetricValue
from tallystick.metrics import METRICS, Metric
from tallystick.report import formats
from tallystick.report.leaks import leak_headline, of_form, promise, reported_auc, strength
from tallystick.report.templating import render_template, script_json, write_page
from tallystick.results import Result, read_result
from tallystick.storage import ORIGIN, Origin, check_digest, check_sealed, refuse_pipe, unsealed

MAX_RESULT_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One figure of every run. ``values`` are None for runs without it."""

    name: str
    values: list[float | int | str | None]
    within: list[tuple[float, float] | None]
    best: list[bool]  # for a metric: which run's value is best, if several have one


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Several runs as columns."""

    runs: list[str]
    contracts: list[str]  # hashes
    settings: list[ComparisonRow]  # contract keys that differ
    metrics: list[ComparisonRow]
    facts: list[ComparisonRow]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def read_run(path: Path) -> Result:
    """Read the result of a run: its folder, or its result.json. Raises ConfigError, StorageError (damaged) or DataError."""
    file = path / "result.json" if path.is_dir() else path
    if not file.exists():
        raise ConfigError(
            f"{path}: holds no result.json; give the folder of a finished run (runs/NAME-HASH-N), or its result.json"
        )
    refuse_pipe(file)
    origin = Origin.of(file.parent) if (file.parent / ORIGIN).exists() else None
    try:
        if file.stat().st_size > MAX_RESULT_BYTES:
            raise ConfigError(f"{file}: is larger than {MAX_RESULT_BYTES >> 20} MiB; it is not a result of a run")
        content = file.read_bytes()
        result = read_result(content)
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror or error}") from None
    if unsealed(content) != content:  # from a run folder; a file from `to_json` carries no digest
        if origin is not None:
            check_sealed(file, origin=origin)
        else:  # sent by another person
            check_digest(file)
    return result


def compare_results(names: Sequence[str], results: Sequence[Result]) -> RunComparison:
    """Compare results in the given order. Raises ConfigError for fewer than two."""
    if len(results) < 2:
        raise ConfigError(f"{len(results)} run to compare; give at least two")
    flat, joint, targets = [], [], []
    for result in results:
        try:
            values_of_contract = yaml.safe_load(result.contract.yaml)
        except yaml.YAMLError:
            values_of_contract = None
        # A run that kept no contract has its summary instead
        is_kept = isinstance(values_of_contract, Mapping)
        flat.append(_leaves(values_of_contract if is_kept else dict(result.contract.summary)))
        shared = result.sections.shared
        joint.append(shared.metrics if result.evaluation is None and shared is not None else result.joint)
        targets.append(result.evaluation["target"] if result.evaluation is not None else shared.target if shared else "binary")
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = []
    own = [result.local_baseline for result in results]
    for metrics_of_runs, suffix in ((joint, ""), (own, ", own columns only")):
        for name in dict.fromkeys(name for each in metrics_of_runs for name in each):
            target = next(target for target, each in zip(targets, metrics_of_runs, strict=True) if name in each)
            rows.append(_metric_row(METRICS[target][name], suffix, [each.get(name) for each in metrics_of_runs]))
    parts = [result.evaluation.get("labels", {}) if result.evaluation is not None else {} for result in results]
    for label in dict.fromkeys(label for each in parts for label in each):
        of_runs = [each.get(label) for each in parts]
        of_joint = [part["joint"]["auc"] if part is not None else None for part in of_runs]
        of_own = [(part["local_baseline"] or {}).get("auc") if part is not None else None for part in of_runs]
        rows.append(_metric_row(METRICS["binary"]["auc"], f" of label {label}", of_joint))
        rows.append(_metric_row(METRICS["binary"]["auc"], f" of label {label}, own columns only", of_own))
    decisions = [_decisions(result) for result in results]
    costs = [
        _row(
            f"cost of 1,000 rows at the chosen threshold{f' of label {label}' if label else ''}",
            [1000 * each[label]["best"]["cost"] if label in each else None for each in decisions],
        )
        for label in dict.fromkeys([label for each in decisions for label in each] or [""])
    ]
    facts = [
        _row("party", [result.party or "all" for result in results]),
        _row("began", [formats.moment(result.started) for result in results]),
        _row("test rows", [result.evaluation["rows"] if result.evaluation is not None else None for result in results]),
        _row("training rows", [result.data.rows.get("train") if result.data is not None else None for result in results]),
        _row("steps", [result.training.steps if result.training is not None else None for result in results]),
        _row("whole run", [f"{formats.duration(result.seconds)}{_since(result)}" for result in results]),
        _row(
            "bytes sent and received",
            [
                f"{formats.size(sum(phase.bytes_sent + phase.bytes_received for phase in result.phases))}{_since(result)}"
                for result in results
            ],
        ),
        *costs,
        _row("strongest label attack, AUC", [_leak(result) for result in results]),
        _row(
            "epsilon of labels, this run",
            [
                sum(release.epsilon for release in result.sections.privacy.releases)
                if result.sections.privacy is not None and result.sections.privacy.releases
                else None  # a run without a guarantee has no epsilon: 0 would be the perfect one
                for result in results
            ],
        ),
    ]
    return RunComparison(
        runs=list(names),
        contracts=[result.contract.hash for result in results],
        settings=[_row(key, [each.get(key) for each in flat]) for key in keys if len({str(each.get(key)) for each in flat}) > 1],
        metrics=rows,
        facts=[row for row in facts if any(value is not None for value in row.values)],
        notes=_notes(names, results),
    )


def compare_html(comparison: RunComparison) -> str:
    """Return the page of ``comparison``."""
    return render_template(
        "compare.html.j2",
        c=comparison,
        text=text,
        json=script_json(json.dumps(comparison.to_dict(), allow_nan=False, separators=(",", ":"))),
    )


def render_comparison(comparison: RunComparison, path: str | os.PathLike[str]) -> Path:
    """Write the page of ``comparison``. Raises StorageError."""
    return write_page(compare_html(comparison), path)


def text(value: float | int | str | None) -> str:
    """Format a figure for people."""
    if value is None or isinstance(value, str):
        return formats.NOTHING if value is None else value
    return f"{value:,}" if isinstance(value, int) else formats.number(value)


def _metric_row(metric: Metric, suffix: str, cells: Sequence[MetricValue | None]) -> ComparisonRow:
    """Compare one metric of each run."""
    values = [cell["value"] if cell is not None else None for cell in cells]
    within = [
        (cell["low"], cell["high"]) if cell is not None and cell["low"] is not None and cell["high"] is not None else None
        for cell in cells
    ]
    numbers = [value for value in values if value is not None]
    top = (max if metric.higher_is_better else min)(numbers) if len(numbers) > 1 else None
    best = [value is not None and value == top and len(set(numbers)) > 1 for value in values]
    return ComparisonRow(name=f"{metric.title}{suffix}", values=list(values), within=within, best=best)


def _row(name: str, values: Sequence[float | int | str | None]) -> ComparisonRow:
    return ComparisonRow(name=name, values=list(values), within=[None] * len(values), best=[False] * len(values))


def _leaves(value: Any, path: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        parts = value.items()
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        parts = dict(enumerate(value)).items()
    else:
        return {
            path: ", ".join(map(str, value)) or "none" if isinstance(value, list) else "null" if value is None else str(value)
        }
    return {key: found for name, item in parts for key, found in _leaves(item, f"{path}.{name}" if path else str(name)).items()}


def _since(result: Result) -> str:
    """Say from which step a resumed run counts its time and bytes: its report does not include earlier steps."""
    step = result.training.resumed_from if result.training is not None else None
    return f", from step {step} on only" if step else ""


def _leak(result: Result) -> float | None:
    attacks = [attack for attack in result.label_audit.attacks if not attack.upper_bound]
    worst = max(attacks, key=strength, default=None)
    return None if worst is None or worst.auc is None else reported_auc(worst)[0]


def _decisions(result: Result) -> dict[str, Decisions]:
    """Return decisions by label. A single label has no name."""
    single = result.sections.decisions
    return result.sections.decisions_by_label | ({"": single} if single is not None else {})


def _notes(names: Sequence[str], results: Sequence[Result]) -> list[str]:
    """List what makes a comparison unfair, and other remarks on its figures."""
    notes = []
    if len({result.contract.name for result in results}) > 1:
        names_text = ", ".join(dict.fromkeys(result.contract.name for result in results))
        notes.append(f"These are runs of contracts with different names: {names_text}.")
    measured = [result.evaluation for result in results if result.evaluation is not None]
    if len({(each["rows"], each["label_mean"]) for each in measured}) > 1:
        notes.append("The runs have different test rows, by number or mean label: a difference may come from the rows alone.")
    costs: dict[str, set[tuple[float, float]]] = {}
    for result in results:
        for label, decisions in _decisions(result).items():
            costs.setdefault(label, set()).add((decisions["cost_false_positive"], decisions["cost_false_negative"]))
    if any(len(of_label) > 1 for of_label in costs.values()):
        notes.append("The runs have different costs per error, so their least costs cannot be compared.")
    notes.append(
        "Intervals are each run's own, over its test rows; another seed would change the figures too. Intervals that do not "
        "overlap show a difference; intervals that overlap leave it open."
    )
    for name, result in zip(names, results, strict=True):
        if result.sections.leakage is not None and (promise_text := promise(result)):
            headline = " ".join(leak_headline(result.sections.leakage)) + of_form(result.sections.leakage)
            notes.append(f"{name}: {headline} {promise_text}")
    return notes
