"""Hold what attacks found, with a class for each kind of fact. An evaluation measures it, an audit adds the parties, a report
shows it.
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

    ``auc`` is that of scores as the attacker orients them; ``symmetric_auc`` is max(a, 1 - a) per batch, for an attacker who
    cannot orient them; ``balanced_accuracy`` is (TPR + TNR) / 2 of hard guesses. If the label is a number, they are replaced by
    ``spearman``, the absolute rank correlation, and ``r_squared`` of the best straight line.
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
    rows: int | None = None  # that were ranked
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
    """Reconstruction of one column by its strongest attack, on rows that it did not know.

    Figures are means over draws of the known rows.

    Args:
        name: of the column.
        kind: numeric, categorical, or a vector of numbers.
        known: rows that the attacker knows.
        attack: the strongest attack here; "a guess" if none beat one.
        value: of a numeric column R², the share of its variance that is told, of a vector that of all its numbers together; of
            a categorical one the greater of two: how far
            accuracy rises from that of guessing the most frequent category towards 1, and 2 AUC - 1 of the category whose rows
            are ranked best, if that is beyond luck. 0 is a guess, 1 all of it.
        low, high: the smallest and the largest draw.
        auc: of a categorical column, how well the rows of the category that is ranked best are told from others; None where no
            category's is beyond luck.
        accuracy, majority: of a categorical column, the attack's accuracy and that of a guess.
        cosine: of a vector, the mean cosine of the rebuilt and the true one, both less the mean vector. 0 is a guess.
        luck: what the best of all attacks finds of some column of as many, but in one of a hundred audits, where embeddings have
            nothing to do with columns: ``value`` less than that is no finding.
        used: whether the model was given it; if not, the table has it all the same.
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
        attacker: who could make it.
        located: whose keys.
        placed: number of placed targets.
        median, low, high: median distance from the truth, with a 95 % bootstrap interval.
        tenth: the best tenth of the targets are placed within this distance.
        chance: median distance of a guess that knows no more than where keys of that side lie in general: another key at random.
        unit: of the distances, such as m.
        dimensions: of the keys, in which the distance is taken.
        bounds: number of placed targets with only a bound, because similarity saturates there.
        note: what replaced data that only the other side has; empty if nothing had to.
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
    """Counts of text keys that one attack named rightly, with a list that they are all on.

    Args:
        name: of the attack.
        attacker: who could make it.
        located: whose keys.
        named: number of named keys.
        right: share of the named keys with the right text.
        low, high: 95 % interval of the share (Wilson's).
        chance: the share if every key were given the most frequent text.
        note: what replaced data that only the other side has; empty if nothing had to.
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
