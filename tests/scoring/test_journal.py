"""A day's budgets: requests beyond them are not answered, also after a crash; and what the journal holds."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.encryption import FolderKey
from tallystick.errors import StorageError
from tallystick.run_folder.line_file import read_lines
from tallystick.scoring import journal as journals
from tallystick.scoring.journal import Journal
from tallystick.storage import Origin

NOON = datetime(2025, 11, 25, 12, tzinfo=UTC)
SECRET, RUN = bytes(range(32)), "0123456789abcdef"


def journal(folder, *, at=NOON, **limits):
    return Journal(origin=Origin(folder=folder), secret=SECRET, clock=lambda: at, **limits)


@given(
    questions=st.lists(st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=5), max_size=8),
    a_day=st.none() | st.integers(1, 10),
    per_row=st.none() | st.integers(1, 4),
    crashes=st.sets(st.integers(0, 7)),
)
def test_the_budgets_are_those_of_counting_by_hand_across_crashes(tmp_path_factory, questions, a_day, per_row, crashes):
    folder = tmp_path_factory.mktemp("journal")
    one, answered = journal(folder, a_day=a_day, a_day_per_row=per_row), []
    for number, names in enumerate(questions):
        if number in crashes:
            one.close()
            one = journal(folder, a_day=a_day, a_day_per_row=per_row)
        expected = []
        for name in names:
            expected.append((a_day is None or len(answered) < a_day) and (per_row is None or answered.count(name) < per_row))
            answered += [name] if expected[-1] else []
        assert one.allowed(names, run=RUN).tolist() == expected
    one.close()


def test_a_new_day_has_new_budgets(tmp_path):
    one = journal(tmp_path, a_day_per_row=1)
    assert one.allowed([b"a", b"a"], run=RUN).tolist() == [True, False]
    one.clock = lambda: NOON + timedelta(days=1)
    assert one.allowed([b"a"], run=RUN).tolist() == [True]
    assert len(list(tmp_path.iterdir())) == 2
    one.clock = lambda: NOON  # a clock that is set back finds the former day unchanged
    assert one.allowed([b"a"], run=RUN).tolist() == [False]


def test_all_runs_share_a_days_budgets(tmp_path):
    one = journal(tmp_path, a_day=3, a_day_per_row=1)
    assert one.allowed([b"a"], run=RUN).tolist() == [True]
    assert one.allowed([b"a", b"b"], run="f" * 16).tolist() == [False, True]
    assert one.allowed([b"c", b"d"], run="e" * 16).tolist() == [True, False]


def test_the_journal_names_no_key_and_whoever_has_the_secret_finds_one(tmp_path):
    one = journal(tmp_path)
    one.allowed([b"customer-1", b"customer-2"], run=RUN)
    (path,) = tmp_path.iterdir()
    assert "customer" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    (line,) = map(json.loads, path.read_text().splitlines())
    assert line["rows"] == [one.digest(b"customer-1"), one.digest(b"customer-2")]
    assert Journal(origin=Origin(folder=tmp_path), secret=bytes(32)).digest(b"customer-1") not in line["rows"]


def test_a_line_that_was_cut_short_counts_nothing_and_any_other_damage_is_said(tmp_path):
    one = journal(tmp_path, a_day=2)
    one.allowed([b"a"], run=RUN)
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write('{"at":"2025')
    assert journal(tmp_path, a_day=2).allowed([b"b", b"c"], run=RUN).tolist() == [True, False]
    assert len(list(map(json.loads, path.read_text().splitlines()))) == 2
    path.write_text("{}\n")
    with pytest.raises(StorageError, match="move the file away"):
        journal(tmp_path, a_day=2).allowed([b"d"], run=RUN)


@pytest.mark.parametrize("line", ["[" * 100_000, "[]", '{"rows": 7}', '{"rows": [[]]}', "\udcff"])
def test_a_line_that_is_none_of_a_journal_is_a_named_error(line, tmp_path):
    journal(tmp_path).allowed([b"a"], run=RUN)
    (path,) = tmp_path.glob("serving-journal-*")
    with path.open("ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(StorageError, match="is not a journal's"):
        journal(tmp_path, a_day_per_row=3).allowed([b"a"], run=RUN)


@pytest.mark.parametrize("key", [None, FolderKey(bytes(32))], ids=["clear", "encrypted"])
def test_a_day_of_many_files_has_one_budget(key, tmp_path, monkeypatch):
    """Each file holds some lines. A process that begins during the day counts all of them."""
    monkeypatch.setattr(journals, "PART_BYTES", 300)
    limits = {"a_day": 20, "a_day_per_row": 2}

    def begun():
        return Journal(origin=Origin(folder=tmp_path, key=key), secret=SECRET, clock=lambda: NOON, **limits)

    names, one = [b"%d" % number for number in range(11)], begun()
    for name in names[:9]:
        assert one.allowed([name], run=RUN).all()
    parts = sorted(path.name for path in tmp_path.iterdir())
    assert parts[0] == "serving-journal-2025-11-25-2.jsonl"
    assert len(parts) >= 3
    assert all(path.stat().st_size < 900 for path in tmp_path.iterdir())
    one.close()
    for _ in range(2):  # the second asks for rows that the first has added
        one = begun()
        one.allowed([names[9]], run=RUN)
        one.close()
    one = begun()
    assert one.allowed(names, run=RUN).tolist() == [True] * 9 + [False, False]  # 20 of a day: 9, 2 and these 9
    lines = [line for path in tmp_path.iterdir() for line in read_lines(path, origin=one.origin)]
    assert sum(len(json.loads(line)["rows"]) for line in lines) == 20
