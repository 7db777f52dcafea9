"""The command beside kept rows plans the cases of these rows, in their order."""

import json
from functools import cache
from pathlib import Path

import pytest

from tallystick.errors import DataError
from tallystick_experiments.again import declared_by
from tallystick_experiments.catalogue import clicks, pairs, public
from tallystick_experiments.results import RUNS, rounded

DATA = Path(__file__).parents[3] / "shared" / "data"
MANY_TABLES = ("quality", "quality-shared-public", "no-gradients", "far")  # whose tables take half a minute to read


KEPT = [  # every third in the short lane
    pytest.param(path, marks=[pytest.mark.long] * (path.stem in MANY_TABLES or number % 3 > 0), id=path.stem)
    for number, path in enumerate(sorted(RUNS.glob("*.jsonl")))
]


@pytest.fixture(autouse=True, scope="module")
def _read_once():
    """Read each file once, because many commands belong to the same one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_read_criteo", "_read_avazu"):
            patch.setattr(clicks, name, cache(getattr(clicks, name)))
        for table in (public.TABLES, pairs.READERS):
            for name, read in table.items():
                patch.setitem(table, name, cache(read))
        yield


@pytest.mark.parametrize("path", KEPT)
def test_the_command_plans_the_kept_rows_in_their_order(path):
    head, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    try:
        experiment = declared_by(head["command"], DATA)
    except DataError as error:
        pytest.skip(str(error))
    if not experiment.cases:
        pytest.skip(f"{head['command']}: makes no rows one by one")
    cases = [rounded(dict(case)) for case in experiment.cases]
    same_in_all = {name: value for name, value in cases[0].items() if all(case[name] == value for case in cases)}
    planned = iter(cases)
    for row in rows:  # rows that were planned after these were kept may be between them; older rows lack some fields
        kept = {name: row.get(name, same_in_all.get(name)) for name in cases[0]}
        assert kept in planned, f"{kept} is not planned, or not in this place"
