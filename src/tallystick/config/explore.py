"""Declare the exploration of a partner: the size of the sample that `tallystick explore` may draw."""

import math

from pydantic import Field

from tallystick.reading import Model

LEAST_TEST_ROWS = 100
"""Least number of test rows of a sample. With fewer an interval is too narrow (``evaluation/intervals.py``)."""

MOST_TEST_SHARE = 0.5
"""With a larger share of test rows, a small sample has too few rows to learn from."""


class ExploreConfig(Model):
    """Sample on which `tallystick explore` may estimate what joining brings. A contract without this section allows none."""

    rows: int = Field(
        default=4_000,
        strict=True,
        ge=LEAST_TEST_ROWS,
        le=100_000,
        description="about how many ids of the smaller table are drawn",
    )


def least_common(test: float) -> int:
    """Return the least number of common ids of a sample, if this share of them are test rows."""
    return math.ceil(LEAST_TEST_ROWS / test)
