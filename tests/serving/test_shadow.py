"""A candidate beside the run in use: which rows it gets, what is counted, and what is left out."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

from tallystick.config.serving import ShadowOptions
from tallystick.scoring.answering import OPEN
from tallystick.scoring.asking import Answered, Refused
from tallystick.scoring.batching import MOST_ROWS
from tallystick.scoring.scoring_messages import ABSENT, HERE
from tallystick.scoring.stores.store import StoredRows
from tallystick.serving.served_runs import Users
from tallystick.serving.shadow import MOST_PIECES, Shadow
from tallystick.tables.encoder import Encoder, FeatureColumns

RUN = "c" * 16
FRAME = pl.DataFrame({"x": [0.0, 1.0, 2.0]})
ENCODER = Encoder.fit(FRAME, FeatureColumns(numeric=("x",)), np.arange(3))


class Told:
    def __init__(self):
        self.apart, self.changed, self.skipped = [], [], 0

    def observe_shadow(self, candidate, differences_B, changed):
        assert candidate == RUN
        self.apart += differences_B.tolist()
        self.changed.append(changed)

    def skip_shadow(self, candidate, rows):
        assert candidate == RUN
        self.skipped += rows


class Store:
    def find(self, keys):
        known = np.array([key != b"nobody" for key in keys])
        return StoredRows(is_found_B=known, features_E=ENCODER.encode(FRAME[[0] * int(known.sum())]).unpacked())


class Scores:
    """Returns what the asking thread put in."""

    def joint(self, cuts, own):
        assert len(own) == len(cuts[0])
        return {"score": cuts[0][:, 0].numpy()}


def candidate():
    reader = SimpleNamespace(encoder=ENCODER, own_columns=["x"])
    return SimpleNamespace(run_id=RUN, users=Users(), store=Store(), reader=reader, scorer=Scores())


def asking_for(scores):
    def asking(keys, _own):
        state_B = np.array([HERE if key in scores else ABSENT for key in keys], dtype=np.uint8)
        here = [[scores[key]] for key in keys if key in scores]
        return Answered(state_B=state_B, cuts_ED=[torch.tensor(here, dtype=torch.float32).reshape(-1, 1)])

    return asking


def shadow(told, *, draw=0.0, gate=OPEN, target="binary", **options):
    return Shadow(ShadowOptions(**options), target=target, gate=gate, comparisons=told, draw=lambda: draw)


def test_differences_and_changed_sides_are_those_of_counting_by_hand():
    told = Told()
    beside = shadow(told)
    beside.offer(candidate(), [b"a", b"nobody", b"absent", b"b"], None, {"score": [0.4, 0.9, 0.9, 0.7]})
    assert not beside({RUN: asking_for({b"a": 0.6, b"b": 0.9})})
    assert told.apart == pytest.approx([0.2, 0.2], abs=1e-6)
    assert told.changed == [1]
    assert told.skipped == 2


def test_rows_that_bring_their_columns_are_scored_by_these_and_without_a_column_it_reads_not_at_all():
    told = Told()
    beside = shadow(told)
    beside.offer(candidate(), [b"nobody"], FRAME[:1], {"score": [0.5]})
    beside.offer(candidate(), [b"nobody"], pl.DataFrame({"other": [1.0]}), {"score": [0.5]})
    assert beside({RUN: asking_for({b"nobody": 0.5})})
    assert not beside({RUN: asking_for({b"nobody": 0.5})})
    assert told.apart == [0.0]
    assert told.skipped == 1


def test_only_a_share_is_scored_and_what_comes_too_fast_is_left_out():
    told = Told()
    beside = shadow(told, draw=0.1, share=0.1)
    beside.offer(candidate(), [b"a"], None, {"score": [0.4]})
    assert not beside({})
    assert told.skipped == 0
    beside = shadow(told, draw=0.0999, share=0.1)
    rows = MOST_ROWS * (MOST_PIECES + 3)
    beside.offer(candidate(), [b"a"] * rows, None, {"score": [0.4] * rows})
    assert told.skipped == 3 * MOST_ROWS


@pytest.mark.parametrize(
    ("target", "threshold", "changed"), [("regression", None, None), ("regression", 0.5, 1), ("binary", 0.65, 0)]
)
def test_where_there_are_no_sides_none_is_changed(target, threshold, changed):
    told = Told()
    beside = shadow(told, target=target, threshold=threshold)
    beside.offer(candidate(), [b"a"], None, {"score": [0.4]})
    beside({RUN: asking_for({b"a": 0.6})})
    assert told.changed == [changed]


def test_budgets_count_it_and_a_refusal_or_a_run_that_is_gone_only_skips_rows():
    told, seen = Told(), []

    class Gate:
        def allowed(self, names_B, *, run):
            seen.append((list(names_B), run))
            return np.array([name == b"a" for name in names_B])

    def refusing(_keys, _own):
        raise Refused("shop", "run")

    beside = shadow(told, gate=Gate())
    for _ in range(3):
        beside.offer(candidate(), [b"a", b"b"], None, {"score": [0.4, 0.4]})
    beside({RUN: asking_for({b"a": 0.4, b"b": 0.4})})
    assert seen == [([b"a", b"b"], RUN)]
    assert told.apart == pytest.approx([0.0], abs=1e-6)
    beside({RUN: refusing})
    beside({})
    assert told.skipped == 1 + 2 + 2
