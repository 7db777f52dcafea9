"""List everything that crosses between parties. ``check``, the report's "what each side learnt" and pages use this table."""

from tallystick.config.contract import Contract
from tallystick.disclosure.alignment import ALIGNMENT, membership_lines
from tallystick.disclosure.disclosure import Disclosure, RunFacts
from tallystick.disclosure.evaluation import EVALUATION
from tallystick.disclosure.explore import EXPLORE
from tallystick.disclosure.overlap import OVERLAP
from tallystick.disclosure.serving import SERVING
from tallystick.disclosure.shared_head import CHOSEN_LABELS, SHARED_HEAD
from tallystick.disclosure.training import TRAINING
from tallystick.results import Learnt

DISCLOSURES: tuple[Disclosure, ...] = (
    *CHOSEN_LABELS,
    *OVERLAP,
    *EXPLORE,
    *ALIGNMENT,
    *TRAINING,
    *SHARED_HEAD,
    *EVALUATION,
    *SERVING,
)
"""In the order of a job's steps, after the free choices of a party. A test compares it with every field of every message, and
with the data that crosses in real runs.
"""


def disclosure_lines(contract: Contract, *, own_columns: bool | None) -> list[str]:
    """List everything that a contract discloses, and to whom, one sentence each.

    ``own_columns`` says whether the label party has useful columns; None if that is not known.
    """
    lines = [line for row in DISCLOSURES for line in row.sentences(contract)]
    return list(dict.fromkeys([*lines, *membership_lines(contract, own_columns=own_columns)]))


def learnt_in_run(contract: Contract, facts: RunFacts) -> list[Learnt]:
    """List what each party learnt in a run, in the order of the table."""
    return [item for row in DISCLOSURES for item in row.learnt(contract, facts)]
