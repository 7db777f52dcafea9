"""Describe one thing that crosses between parties: who learns what from it, which messages carry it, and what limits it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psu_helper import HelperOutcome
from tallystick.config.contract import Contract
from tallystick.evaluation.evaluation_messages import Finished
from tallystick.results import Learnt, SampleSummary

if TYPE_CHECKING:
    from tallystick.training.checkpoint import TrainingState


@dataclass(frozen=True, kw_only=True)
class TrialFacts:
    """Facts about what a search sent in all its successful trials.

    Args:
        trials: how many there are.
        epochs: of all trials together.
        training: rows of that part.
        validation: rows of that part.
    """

    trials: int
    epochs: int
    training: int
    validation: int


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of a run that its report's sentences name. They are empty for a step that did not take place.

    Args:
        party: whose report it is.
        alignment: the alignment, as this party knows it.
        sample: the sample of ids, in an exploration.
        helper: what this party knows, if it is the helper.
        rows: training, validation and test rows, by the part's name; empty before the split.
        networks: how many were trained side by side.
        training: how the joint training went.
        search: what a search sent; None without a search, and for a search on own columns alone.
        finished: the last message of the run.
    """

    party: str
    alignment: Alignment | None = None
    sample: SampleSummary | None = None
    helper: HelperOutcome | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    networks: int = 1
    training: "TrainingState | None" = None
    search: TrialFacts | None = None
    finished: Finished = field(default_factory=lambda: Finished(rows=0))


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """A row of the table of disclosures, which ``check``, reports and pages are made of.

    Args:
        name: the row's name on pages, in Markdown.
        label_party: what the label party learns, for pages.
        feature_party: what a feature party learns, for pages.
        guarantee: what limits it, for pages.
        fields: the message fields that carry it, such as ``CutGradient.values``.
        sentences: what a contract will disclose by it, said before a run; none if the contract does not.
        learnt: what each party learnt by it in a run.
    """

    name: str
    label_party: str
    feature_party: str
    guarantee: str
    fields: tuple[str, ...] = ()
    sentences: Callable[[Contract], Sequence[str]] = lambda _: ()
    learnt: Callable[[Contract, RunFacts], Sequence[Learnt]] = lambda _contract, _facts: ()


def stated(applies: Callable[[Contract], bool], *texts: str) -> Callable[[Contract], Sequence[str]]:
    """Return a function that gives a row's sentences if they apply to the contract, and none otherwise.

    A text may contain ``{label}``, ``{features}`` and values of the ``{contract}``.
    """

    def sentences(contract: Contract) -> Sequence[str]:
        label, features = parties_of(contract)
        values = {"label": label, "features": features, "contract": contract}
        return [text.format_map(values) for text in texts] if applies(contract) else ()

    return sentences


def parties_of(contract: Contract) -> tuple[str, str]:
    """Return the label party's name, and the feature parties' names joined for a sentence."""
    return contract.label_party, " and ".join(contract.feature_parties)
