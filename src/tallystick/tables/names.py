"""Check the names of a table's columns, for any reader."""

import re
from collections import Counter
from collections.abc import Sequence

from tallystick.errors import DataError
from tallystick.reading import looks_of

PATTERN = re.compile(r"\^.*\$", re.DOTALL)  # Polars reads this as a pattern of names


def require_usable(names: Sequence[str], *, source: str) -> None:
    """Raise DataError, naming the source, for a column name that occurs twice, or that is a pattern of names."""
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise DataError(f"{source}: more than one column is called {', '.join(map(repr, twice))}; rename or remove one")
    seen: dict[str, str] = {}
    for name in names:
        if (twin := seen.setdefault(looks_of(name), name)) != name:
            raise DataError(
                f"{source}: the columns {twin!a} and {name!a} look the same but have different character codes; rename or "
                "remove one"
            )
    if pattern := next((name for name in names if PATTERN.fullmatch(name)), None):
        raise DataError(
            f"{source}: a column is called {pattern!r}; a name that begins with ^ and ends with $ is read as a pattern, so "
            "rename it"
        )
