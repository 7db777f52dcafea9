"""The clock of a machine may be set at any time: it dates what is written, and nothing waits or counts by it."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "src", ROOT / "experiments" / "src", ROOT / "robustness" / "src")
READINGS = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime", "mktime", "CLOCK_REALTIME"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
WHY = {
    "cli/watch.py": "lines of a log",
    "demo/flights.py": "the name of a folder",
    "demo/private_auc.py": "the name of a folder",
    "erasure.py": "the day of an erasure",
    "job/job.py": "when a run began, in its result",
    "job/log.py": "lines of a log",
    "job/loggers.py": "points of a figure at MLflow",
    "job/overlap.py": "when a count began",
    "job/versions.py": "when a run was promoted",
    "monitoring/monitor.py": "when a page was made",
    "monitoring/served.py": "when a page was made",
    "network/certificates.py": "certificates, which hold until a date: two where they are made, one where they are read",
    "privacy/ledger.py": "entries of a ledger, which are ordered by their numbers",
    "run_folder/answer_journal.py": "a file for each day",
    "run_folder/shared_head.py": "the day on which a score was opened",
    "scoring/journal.py": "a file for each day, and the budgets of that day",
    "trials/trials.py": "when trials began",
    "tallystick_experiments/outcomes.py": "when rows were made",
    "tallystick_experiments/output.py": "when rows were made",
    "tallystick_experiments/speed/table.py": "lines of a log",
    "tallystick_robustness/kills.py": "to compare with what the file system wrote down",
}
COUNTS = {"network/certificates.py": 3, "tallystick_experiments/speed/table.py": 2}


def modules(words: str) -> Iterator[tuple[str, ast.AST]]:
    """Return the modules with one of these words: no other can have what is looked for, and parsing them all takes seconds."""
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            if re.search(words, text := path.read_text(encoding="utf-8")):
                yield path.relative_to(source).as_posix().removeprefix("tallystick/"), ast.parse(text)


def readings(tree: ast.AST) -> list[str]:
    """Find readings of the clock that can be set, as calls or as functions that are passed on. Formatting a given time
    is none.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            of = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            found += [f"{of}.{node.attr}"] if node.attr in READINGS.get(of, set()) else []
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"time.{each.name}" for each in node.names if each.name in READINGS["time"]]
    return found


def test_the_clock_that_can_be_set_is_read_only_where_a_date_is_written_down():
    written = "|".join(["from time import", *(rf"{owner}\.{name}\b" for owner, names in READINGS.items() for name in names)])
    counts = Counter({name: len(found) for name, tree in modules(written) if (found := readings(tree))})
    assert counts == {name: COUNTS.get(name, 1) for name in WHY}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import time\nuntil = time.time() + 5", 1),
        ("from time import time", 1),
        ("import time\nclock = time.time_ns", 1),
        ("from datetime import datetime\nwhile datetime.now() < until: pass", 1),
        ("import datetime\nfield(default_factory=lambda: datetime.datetime.now(UTC))", 1),
        ("import time\nuntil = time.monotonic() + 5\nfrom time import monotonic", 0),
        ("def text(moment): return moment.strftime('%H'), moment.dt.strftime('%H')", 0),
    ],
)
def test_a_reading_is_found_however_it_is_written(code, found):
    assert len(readings(ast.parse(code))) == found


def test_no_file_is_older_or_younger_than_another_by_the_clock():
    """A changed file is recognised by a different time, because a clock that was set back gives no earlier one."""
    ordered = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    for name, tree in modules("st_mtime"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and any(isinstance(each, ordered) for each in node.ops):
                assert "st_mtime" not in ast.unparse(node), name
