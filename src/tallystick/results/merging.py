"""Join the results of all parties of one run, for a demo or a simulation, which owns them all."""

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from tallystick.errors import DataError
from tallystick.results.leaks import Audit
from tallystick.results.parts import DataSummary, ImportanceSummary
from tallystick.results.result import Result, Sections

T = TypeVar("T")


def merge(results: Sequence[Result]) -> Result:
    """Join the results of the parties of one run into one that covers them all.

    A part that only one party has (evaluation, training) comes from the first party that has it, the label party before the
    others. Raises DataError if the results are not of one run of one contract.
    """
    if not results:
        raise DataError("there are no results to merge; give one per party")
    for field, found in {
        "run": {result.run_id for result in results},
        "contract": {result.contract.hash for result in results},
    }.items():
        if len(found) > 1:
            raise DataError(f"the results are of more than one {field}: {', '.join(sorted(found))}; merge the parties of one run")
    ordered = sorted(results, key=lambda result: result.role != "label")
    first, began = ordered[0], min(_instant(result) for result in ordered)
    # Put one summary per party together: the party's own has the names of its columns, and its peer's has the metric before
    # shuffling
    merged: dict[str, ImportanceSummary] = {}
    for one in [one for result in ordered for one in result.sections.importance]:
        before = merged.get(one.party)
        merged[one.party] = one if before is None else msgspec.structs.replace(before, columns=one.columns)
    learnt_lines = _unique([learnt for result in ordered for learnt in result.learnt])
    steps = [learnt.step for learnt in learnt_lines]
    summaries = [result.data for result in ordered if result.data is not None]
    data = None
    if summaries:
        data = DataSummary(
            rows=summaries[0].rows,
            columns=_unique([columns for each in summaries for columns in each.columns]),
            notes=_unique([note for each in summaries for note in each.notes]),
        )
    # Each party's findings about its own exposure are added to the label party's summary of the linkage
    linkages = [one for one in (result.sections.linkage for result in ordered) if one is not None]
    linkage = None
    if linkages:
        linkage = msgspec.structs.replace(
            max(linkages, key=lambda one: len(one.improvement)),
            attacks=[attack for one in linkages for attack in one.attacks],
            named=[each for one in linkages for each in one.named],
            maps=[each for one in linkages for each in one.maps],
            examples=[each for one in linkages for each in one.examples],
            notes=_unique([note for one in linkages for note in one.notes]),
        )
    audits = [audit for audit in [result.sections.membership for result in ordered] if audit is not None]
    return msgspec.structs.replace(
        first,
        party=None,
        parties=_unique([party for result in ordered for party in result.parties]),
        started=min(ordered, key=_instant).started,
        seconds=max(result.seconds for result in ordered),
        phases=[
            phase if phase.started is None else msgspec.structs.replace(phase, started=phase.started + (_instant(result) - began))
            for result in ordered
            for phase in result.phases
        ],
        alignment=_first([result.alignment for result in ordered]),
        learnt=sorted(learnt_lines, key=lambda learnt: steps.index(learnt.step)),
        data=data,
        model=_unique([part for result in ordered for part in result.model]),
        training=_first([result.training for result in ordered]),
        local_baseline_training=_first([result.local_baseline_training for result in ordered]),
        evaluation=_first([result.evaluation for result in ordered]),
        versions={name: version for result in reversed(ordered) for name, version in result.versions.items()},
        sections=Sections(
            membership=(
                None
                if not audits
                else Audit(
                    summary=" ".join(_unique([audit.summary for audit in audits])),
                    defense=audits[0].defense,
                    attacks=[attack for audit in audits for attack in audit.attacks],
                    not_measured=_unique([line for audit in audits for line in audit.not_measured]),
                )
            ),
            leakage=_first([result.sections.leakage for result in ordered]),
            linkage=linkage,
            features=[audit for result in ordered for audit in result.sections.features],
            told=[told for result in ordered for told in result.sections.told],
            sample=_first([result.sections.sample for result in ordered]),
            sweep=_first([result.sections.sweep for result in ordered]),
            tuning=_first([result.sections.tuning for result in ordered]),
            privacy=_first([result.sections.privacy for result in ordered]),
            decisions=_first([result.sections.decisions for result in ordered]),
            decisions_by_label=_first([result.sections.decisions_by_label or None for result in ordered]) or {},
            link_weights=[one for result in ordered for one in result.sections.link_weights],
            groups=[grouping for result in ordered for grouping in result.sections.groups],
            importance=list(merged.values()),
            notes=_unique([note for result in ordered for note in result.sections.notes]),
        ),
    )


def _instant(result: Result) -> float:
    try:
        return datetime.fromisoformat(result.started).timestamp()
    except ValueError:
        raise DataError(
            f"started is {result.started!r}; it must be an ISO 8601 time, such as 2026-01-31T09:30:00+00:00"
        ) from None


def _first(values: list[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def _unique(values: list[T]) -> list[T]:
    return [value for i, value in enumerate(values) if value not in values[:i]]
