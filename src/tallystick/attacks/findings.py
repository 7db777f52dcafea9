"""Define the findings of attacks, a class for each kind. An evaluation makes them, an audit adds the parties, a report shows
them.
"""

from typing import Literal, get_args

import msgspec

CutReads = Literal["cut gradients and cut embeddings", "cut gradients", "cut embeddings"]


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what attacks find."""


def above_guess(auc: float, chance: float) -> float:
    """Return how far an AUC is above a guess, rescaled so that a guess is 0 and certainty 0.5."""
    return (auc - chance) / (2 * max(1 - chance, 1e-9))


class AttackResult(Finding, frozen=True, kw_only=True):
    """Success of one attack in telling one class from the other: AUC 0.5 is guessing, 1 is certainty.

    ``auc`` takes the scores as the attacker orients them. ``symmetric_auc`` is max(a, 1 - a) per batch, for an attacker who
    cannot tell which end of the scores is the positive one. ``balanced_accuracy`` is (TPR + TNR) / 2 of hard guesses. If the
    label is a number, ``spearman``, the absolute rank correlation, and ``r_squared`` of the best straight line replace them.
    """

    name: str
    view: str  # in whose seat, such as "weather, from cut gradients"
    auc: float | None
    low: float | None = None
    high: float | None = None
    symmetric_auc: float | None = None
    symmetric_low: float | None = None
    symmetric_high: float | None = None
    symmetric_chance: float = 0.5  # symmetric_auc of a guess
    balanced_accuracy: float | None = None
    chance: float = 0.5  # auc of a guess; above 0.5 if the evaluator had to name clusters
    spearman: float | None = None
    spearman_low: float | None = None  # may be below 0, for the opposite order
    spearman_high: float | None = None
    spearman_chance: float = 0.0  # spearman of a guess
    r_squared: float | None = None
    rows: int | None = None  # number of ranked rows
    tpr_at_fpr_0: float | None = None  # share of positives found without a false alarm
    tpr_at_fpr_001: float | None = None  # share found with one false alarm in a thousand negatives
    upper_bound: bool = False  # needs labels that no attacker has
    note: str = ""
    label: str = ""  # which of several labels it attacks

    @property
    def title(self) -> str:
        """Return its name, with the label if there are several."""
        return f"{self.name} of label {self.label}" if self.label else self.name

    @property
    def reads(self) -> CutReads:
        """Return which messages of the cut it reads."""
        of_cut: CutReads = next(reads for reads in get_args(CutReads) if f"from {reads}" in self.view)
        return of_cut


class RebuiltColumn(Finding, frozen=True, kw_only=True):
    """Reconstruction of one column by the strongest attack on it, measured on rows that the attacker did not know.

    Figures are means over several draws of the known rows.

    Args:
        name: of the column.
        kind: numeric, categorical, or a vector of numbers.
        known: number of rows that the attacker knows.
        attack: name of the strongest attack; "a guess" if no attack beat a guess.
        value: success, from 0 for a guess to 1 for the whole column. For a numeric column it is R², the explained share of the
            variance; for a vector, R² of all its numbers together. For a categorical column it is the greater of two figures:
            (accuracy - a) / (1 - a), where a is the accuracy of guessing the most frequent category; and 2 AUC - 1 of the
            category whose rows are ranked best, if that exceeds luck.
        low, high: the smallest and the largest value of a draw.
        auc: AUC of the best-ranked category of a categorical column; None if no category exceeds luck.
        accuracy, majority: for a categorical column, the accuracy of the attack and of guessing the most frequent category.
        cosine: for a vector, the mean cosine between rebuilt and true vectors, both minus the mean vector. 0 is a guess.
        luck: threshold of chance: if embeddings told nothing, one audit in a hundred would find more than this for some of its
            columns. A smaller ``value`` does not count as a finding.
        used: whether the model gets the column; the table has it in any case.
    """

    name: str
    kind: Literal["numeric", "categorical", "vector"]
    known: int
    attack: str
    value: float
    low: float
    high: float
    auc: float | None = None
    accuracy: float | None = None
    majority: float | None = None
    cosine: float | None = None
    luck: float = 0.0
    used: bool = True


class LocatedKeys(Finding, frozen=True, kw_only=True):
    """Distances by which one attack missed keys that were linked by similarity, in ``unit``.

    Args:
        name: of the attack.
        attacker: party that could make the attack.
        located: party whose keys are located.
        placed: number of placed targets.
        median, low, high: median distance from the truth, with a 95 % bootstrap interval.
        tenth: the best tenth of the targets are placed within this distance.
        chance: median distance of a guess that takes another key of that side at random.
        unit: of the distances, such as m.
        dimensions: dimensions of the keys that the distance covers.
        bounds: number of placed targets that got only a bound, because similarity saturates there.
        note: says what stood in for data that only the other side has; empty if nothing did.
    """

    name: str
    attacker: str = ""
    located: str = ""
    placed: int
    median: float
    low: float
    high: float
    tenth: float
    chance: float
    unit: str = ""
    dimensions: list[str] = []
    bounds: int = 0
    note: str = ""


class NamedKeys(Finding, frozen=True, kw_only=True):
    """Counts of text keys that one attack named correctly. The attacker has a list of texts that holds all of them.

    Args:
        name: of the attack.
        attacker: party that could make the attack.
        located: party whose keys are named.
        named: number of named keys.
        right: share of the named keys with the right text.
        low, high: 95 % interval of the share (Wilson's).
        chance: the share if every key were given the most frequent text.
        note: says what stood in for data that only the other side has; empty if nothing did.
    """

    name: str
    attacker: str = ""
    located: str = ""
    named: int
    right: float
    low: float
    high: float
    chance: float
    note: str = ""
