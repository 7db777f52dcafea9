"""The two lanes of the tests: slow ones run in ``make test-all`` alone."""

from itertools import product

import pytest
from _pytest.mark import ParameterSet


def short_lane_of(cases, count):
    """Return the cases of a test.

    ``count`` of them, evenly spread, are in the short lane; the others are marked long. A case that is a tuple is the values of
    several arguments.
    """
    cases = list(cases)
    short = {round(place * (len(cases) - 1) / max(1, count - 1)) for place in range(count)}
    return [case if number in short else _long(case) for number, case in enumerate(cases)]


def but_costly(cases, costly):
    """Return the cases of a test, with the costly ones marked long, because a cheaper test shows the same."""
    return [_long(case) if case in costly else case for case in cases]


def by_turns(*choices):
    """Return each value with each value of the others. The short lane has each value of each once, as often as the longest has
    values.
    """
    choices = [list(each) for each in choices]
    short = [tuple(each[turn % len(each)] for each in choices) for turn in range(max(map(len, choices)))]
    return [case if case in short else _long(case) for case in product(*choices)]


def _long(case):
    if not isinstance(case, ParameterSet):
        case = pytest.param(*(case if isinstance(case, tuple) else (case,)))
    return case._replace(marks=(*case.marks, pytest.mark.long))
