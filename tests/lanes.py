"""The two lanes of the tests: what takes long runs in ``make test-all`` alone."""

from itertools import product

import pytest
from _pytest.mark import ParameterSet


def short_lane_of(cases, count):
    """Return the cases of a test, of which ``count``, evenly spread, are in the short lane and the others are marked long.

    A case that is a tuple is the values of several arguments.
    """
    cases = list(cases)
    short = {round(place * (len(cases) - 1) / max(1, count - 1)) for place in range(count)}
    return [case if number in short else _long(case) for number, case in enumerate(cases)]


def but_costly(cases, costly):
    """Return the cases of a test, of which the costly ones are marked long: a cheaper test shows the same."""
    return [_long(case) if case in costly else case for case in cases]


def by_turns(*choices):
    """Return each value with each value of the others. In the short lane each value of each has its turn, the longest once."""
    choices = [list(each) for each in choices]
    short = [tuple(each[turn % len(each)] for each in choices) for turn in range(max(map(len, choices)))]
    return [case if case in short else _long(case) for case in product(*choices)]


def _long(case):
    if not isinstance(case, ParameterSet):
        case = pytest.param(*(case if isinstance(case, tuple) else (case,)))
    return case._replace(marks=(*case.marks, pytest.mark.long))
