"""Collect what one party's run found. run.py fills it with what the phases return, and the report shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psu_helper import HelperOutcome
from tallystick.evaluation.decisions import Decisions, Grouping
from tallystick.evaluation.evaluation_messages import Finished
from tallystick.evaluation.measure import Comparison
from tallystick.results import Audited, ImportanceSummary, LinkageSummary, SampleSummary, Shared
from tallystick.tables.keys import KeyReport

if TYPE_CHECKING:
    from torch import nn

    from tallystick.dataset.dataset import Dataset
    from tallystick.training.checkpoint import TrainingState


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Findings of the evaluation, as far as this party knows them.

    Args:
        comparison: the joint model compared with the model of own columns.
        decisions: how good the scores are if a threshold decides, by label; a single label has no name.
        groups: the joint model on groups of rows.
        importance: of columns.
        shared: exact results that the label party sent.
        sent_shared: whether this party sent exact results.
        finished: the last message of the evaluation, with what was released.
        local_baseline: the training of own columns alone.
        notes: on that model.
    """

    comparison: Comparison | None = None
    decisions: dict[str, Decisions] = field(default_factory=dict)
    groups: Sequence[Grouping] = ()
    importance: Sequence[ImportanceSummary] = ()
    shared: Shared | None = None
    sent_shared: bool = False
    finished: Finished = field(default_factory=lambda: Finished(rows=0))
    local_baseline: "TrainingState | None" = None
    notes: Sequence[str] = ()


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One trial of a search. A feature party does not know its loss.

    Args:
        values: of the tuned keys; empty for the unchanged contract.
        loss: the best validation loss.
        epochs: how many it took.
        rows: numbers of training and validation rows.
        problem: why nothing was trained, if the contract cannot have these values together.
    """

    number: int
    values: dict[str, Any]
    loss: float | None = None
    epochs: int = 0
    rows: tuple[int, int] = (0, 0)
    seconds: float = 0.0
    problem: str = ""

    @property
    def is_open(self) -> bool:
        """Tell whether the trial's loss is not known yet."""
        return self.loss is None and not self.problem

    def ended(self, loss: float | None, *, epochs: int, rows: tuple[int, int], seconds: float) -> "TrialRecord":
        """Return the same trial with its outcome."""
        return msgspec.structs.replace(self, loss=loss, epochs=epochs, rows=rows, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class RunFindings:
    """Everything that a run found.

    Args:
        run_id: of the run, as all parties know it.
        resumed_from: the step that it was resumed from; 0 for a new run.
        version_notes: the differences between the parties' versions.
        keys: how many rows have a usable key.
        alignment: the common rows.
        match_notes: warnings about a poor match.
        linkage: what links by similarity gave away.
        sample: the sample of ids, in an exploration.
        helper: what this party learnt, if it is the helper.
        trials: those of a search.
        alone: whether the search used own columns alone and sent nothing.
        dataset: the rows used in training.
        modules: this party's part of the network, by name.
        training: how the joint training went.
        column_notes: own columns that tell the label.
        audited: findings of attacks on labels, columns and membership.
        evaluated: findings of the evaluation.
    """

    run_id: str
    resumed_from: int = 0
    version_notes: Sequence[str] = ()
    keys: KeyReport | None = None
    alignment: Alignment | None = None
    match_notes: Sequence[str] = ()
    linkage: LinkageSummary | None = None
    sample: SampleSummary | None = None
    helper: HelperOutcome | None = None
    trials: Sequence[TrialRecord] = ()
    alone: bool = False
    dataset: "Dataset | None" = None
    modules: "Mapping[str, nn.Module]" = field(default_factory=dict)
    training: "TrainingState | None" = None
    column_notes: Sequence[str] = ()
    audited: Audited = field(default_factory=Audited)
    evaluated: Evaluated = field(default_factory=Evaluated)
