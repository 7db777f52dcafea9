"""Define Result: everything that a run's report shows, as frozen structs that go to JSON and back.

The code that runs a job fills these in. The report renders them and computes nothing. A party enters only what it knows. The page
leaves out missing facts, or says that the other side keeps them.
"""

import html
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from tallystick.errors import DataError
from tallystick.evaluation.decisions import Decisions, Grouping
from tallystick.evaluation.measure import Comparison, MetricValue
from tallystick.msgspec_threads import prepared
from tallystick.reading import Role
from tallystick.results.leaks import Audit, ColumnsFromGradients, FeatureAudit, LinkageSummary, Sweep
from tallystick.results.parts import (
    AlignmentSummary,
    ContractInfo,
    DataSummary,
    ImportanceSummary,
    Learnt,
    LinkWeights,
    ModelPart,
    PartyInfo,
    PhaseRecord,
    PrivacySummary,
    SampleSummary,
    Shared,
    TrainingSummary,
    Tuning,
)
from tallystick.storage import SEAL, unsealed

RESULT_VERSION = 2


class Sections(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold parts that only some runs have. Each is shown if it is present."""

    sample: SampleSummary | None = None  # sample of an exploration
    decisions: Decisions | None = None
    decisions_by_label: dict[str, Decisions] = {}  # for a multilabel target
    groups: list[Grouping] = []
    importance: list[ImportanceSummary] = []
    shared: Shared | None = None
    link_weights: list[LinkWeights] = []

    membership: Audit | None = None
    leakage: Audit | None = None
    linkage: LinkageSummary | None = None
    features: list[FeatureAudit] = []  # one per feature party whose result this is
    told: list[ColumnsFromGradients] = []  # what gradients reveal about this party's columns, or about each one's
    sweep: Sweep | None = None
    tuning: Tuning | None = None
    privacy: PrivacySummary | None = None
    notes: list[str] = []


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold one run, as one party saw it, or as all did."""

    version: int = RESULT_VERSION
    run_id: str
    party: str | None  # the party whose result this is; None: all parties'
    parties: list[PartyInfo]
    contract: ContractInfo
    started: str  # ISO 8601 with time zone
    seconds: float
    phases: list[PhaseRecord] = []
    alignment: AlignmentSummary | None = None
    learnt: list[Learnt] = []
    data: DataSummary | None = None
    model: list[ModelPart] = []
    training: TrainingSummary | None = None
    local_baseline_training: TrainingSummary | None = None
    evaluation: Comparison | None = None  # None if it stays with the label party
    versions: dict[str, str] = {}  # such as {"tallystick": "0.1.0", "python": "3.11.2"}
    sections: Sections = Sections()

    @property
    def role(self) -> Role | None:
        """Return the role of the party whose result this is, or None if it is all parties'."""
        return next((party.role for party in self.parties if party.name == self.party), None)

    @property
    def joint(self) -> Mapping[str, MetricValue]:
        """Return the joint model's metrics. They are empty if they stay with the label party."""
        return self.evaluation["joint"] if self.evaluation is not None else {}

    @property
    def local_baseline(self) -> Mapping[str, MetricValue]:
        """Return the metrics of the label party's own columns alone.

        They are empty if there is no such model, or if they stay with the label party.
        """
        return (self.evaluation["local_baseline"] if self.evaluation is not None else None) or {}

    @property
    def label_audit(self) -> Audit:
        """Return the findings of the attacks on labels. The audit is empty if none was made."""
        return self.sections.leakage or Audit()

    def __repr__(self) -> str:
        """Write one line per metric. ``to_dict()`` has everything."""
        head = f"Result of {self.contract.name!r}, run {self.run_id}: {self._told()}"
        return "\n".join([head, *(f"  {name:<9} " + "   ".join(cells) for name, cells in self._metrics())])

    def _repr_html_(self) -> str:
        """Render the metrics as a table, for a notebook."""
        escape = html.escape
        head = f"<b>{escape(self.contract.name)}</b>, run {escape(self.run_id)}: {escape(self._told())}"
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
            for name, cells in self._metrics()
        )
        return f"<p>{head}</p>" + (f"<table><tbody>{rows}</tbody></table>" if rows else "")

    def _told(self) -> str:
        """Say who took part, and the number of rows."""
        parts = [", ".join(f"{party.name} ({party.role})" for party in self.parties)]
        if self.data is not None:
            parts.append(", ".join(f"{count:,} {part}" for part, count in self.data.rows.items()) + " rows")
        if self.evaluation is not None and self.evaluation.get("weighted"):
            parts.append("metrics weighted by the sample weights")
        return "; ".join([*parts, f"{self.seconds:.1f} s"])

    def _metrics(self) -> list[tuple[str, list[str]]]:
        """Return each metric of the joint model, and the one of the label party's own columns."""
        rows = []
        for name, joint, own in paired_metrics(self):
            cells = [f"joint {metric_in_words(joint)}"] + (
                [f"own columns only {metric_in_words(own)}"] if own is not None else []
            )
            rows.append((name, cells))
        return rows

    def to_json(self) -> str:
        """Return the result as indented JSON. Numbers that are not finite become null."""
        return msgspec.json.format(msgspec.json.encode(self, enc_hook=_plain), indent=2).decode()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, as json.loads(to_json()) gives them."""
        values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self, enc_hook=_plain))
        return values


def paired_metrics(result: Result) -> list[tuple[str, MetricValue, MetricValue | None]]:
    """List each metric of the joint model with that of own columns, and for several labels the AUC of each."""
    rows = [(name, joint, result.local_baseline.get(name)) for name, joint in result.joint.items()]
    parts = result.evaluation.get("labels", {}) if result.evaluation is not None else {}
    for label, part in parts.items():
        rows.append((f"auc of {label}", part["joint"]["auc"], (part["local_baseline"] or {}).get("auc")))
    return rows


def metric_in_words(metric: MetricValue) -> str:
    """Return a metric's value and its interval, if it has one, or the reason why there is no value."""
    if metric["value"] is None:
        return f"none: {metric['reason']}"
    low, high = metric["low"], metric["high"]
    interval = f" [{written_metric(low)}, {written_metric(high)}]" if low is not None and high is not None else ""
    return f"{written_metric(metric['value'])}{interval}"


def written_metric(value: float) -> str:
    """Write a metric's value with four decimals, or as a power of ten if these are all 0 or the value is very large."""
    return f"{value:.4f}" if value == 0 or 0.5e-4 <= abs(value) < 1e9 else f"{value:.4g}"


def read_result(source: str | bytes | dict[str, Any]) -> Result:
    """Read a result from JSON or from its dictionary. Raises DataError that names the field that does not fit."""
    try:
        written = (
            msgspec.convert(source, prepared(_Versioned))
            if isinstance(source, dict)
            else msgspec.json.decode(source, type=prepared(_Versioned))
        )
        if written.version != RESULT_VERSION:
            which = "an earlier" if written.version < RESULT_VERSION else "a later"
            raise DataError(
                f"this is a result of {which} version of tallystick (format {written.version}; this one reads {RESULT_VERSION}); "
                "use that version for it"
            )
        if isinstance(source, dict):
            return msgspec.convert({name: value for name, value in source.items() if name != SEAL}, prepared(Result))
        return msgspec.json.decode(unsealed(source.encode() if isinstance(source, str) else source), type=Result)
    except msgspec.MsgspecError as error:
        raise DataError(f"this is not a result of tallystick: {error}") from None


class _Versioned(msgspec.Struct, frozen=True):
    """Hold the version, which every result states first."""

    version: int = RESULT_VERSION


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a result holds {value!r} of {type(value)}; give plain numbers, texts, lists and dictionaries")
