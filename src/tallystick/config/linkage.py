"""Ways of linking rows, as far as contract and party file have to know them; what each does is in dataset/table.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias


@dataclass(frozen=True, kw_only=True)
class LinkageFacts:
    """What the checks of a contract ask about a way of linking rows.

    Args:
        helper: a third party without rows takes part.
        several: there may be more than one feature party.
        imputes: a position may lack a party's row, and synthetic labels or features stand in for it.
        similar: keys are compared by similarity, and a position has several candidate rows of a feature party.
    """

    helper: bool
    several: bool
    imputes: bool
    similar: bool = False


LINKAGES: Mapping[str, LinkageFacts] = {
    "intersection": LinkageFacts(helper=False, several=True, imputes=False),
    "union": LinkageFacts(helper=False, several=False, imputes=True),
    "union-with-helper": LinkageFacts(helper=True, several=False, imputes=True),
    "similarity": LinkageFacts(helper=True, several=True, imputes=False, similar=True),
}
"""The contract's alignment.method to what it is; dataset/table.py has a row for each."""

if TYPE_CHECKING:
    Method: TypeAlias = str
else:
    Method = Literal[tuple(LINKAGES)]
