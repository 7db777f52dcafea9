"""Compare what a party sees of a union with what the simulator of alignment/psu.py would show it.

The sides' tables have the worst layout: the intersection comes first in both.
"""

import numpy as np
import pytest

from tallystick.alignment.group import hash_to_group, multiply
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.network.channel import memory_channels

from .roles import Recording, in_threads

pytestmark = pytest.mark.unseeded
COMMON = [b"common %d" % n for n in range(300)]
LABEL = COMMON + [b"label only %d" % n for n in range(200)]
FEATURE = COMMON + [b"feature only %d" % n for n in range(300)]

LISTS = [("label", of) for of in ("blinded ids", "mixed ids", "own ids under both keys", "universal ids")]
LISTS += [("feature", of) for of in ("blinded ids", "returned ids", "merged union")]


class Remembering(SecureRandom):
    """Draws as the real one does, and lets the test see the keys."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "keys", [])

    def scalar(self):
        self.keys.append(super().scalar())
        return self.keys[-1]


class Run:
    """One union, with both views and all keys."""

    def __init__(self):
        label, feature = (Recording(channel) for channel in memory_channels("label", "feature"))
        label_rng, feature_rng = Remembering(), Remembering()
        self.ours, self.theirs = in_threads(
            lambda: union_label_party(LABEL, label, rng=label_rng),
            lambda: union_feature_party(FEATURE, feature, rng=feature_rng),
        )
        self.views = {"label": label.view, "feature": feature.view}
        (a, a2), (b, b2) = label_rng.keys, feature_rng.keys
        # (who received the list, its name): the key its elements are under, and whose elements they are
        self.lists = {
            ("label", "blinded ids"): (b, FEATURE),
            ("label", "mixed ids"): (a * b, LABEL),
            ("label", "own ids under both keys"): (a * b * b2, LABEL),
            ("label", "universal ids"): (a * a2 * b * b2, [*LABEL, *FEATURE[300:]]),
            ("feature", "blinded ids"): (a, LABEL),
            ("feature", "returned ids"): (a * a2 * b, FEATURE),
            ("feature", "merged union"): (a * a2 * b, [*LABEL, *FEATURE[300:]]),
        }

    def received(self, name):
        return [row.tobytes() for row in self.views[name[0]][name[1]]]

    def members(self, name):
        """Return the id behind each row, which only someone with all keys can compute."""
        key, ids = self.lists[name]
        width = self.views[name[0]][name[1]].shape[1]
        names = {row.tobytes()[:width]: member for row, member in zip(multiply(hash_to_group(ids), key), ids, strict=True)}
        return [names[row] for row in self.received(name)]


@pytest.fixture(scope="module")
def runs():
    return Run(), Run()


def test_a_view_holds_these_lists_and_nothing_else(runs):
    """This holds unless two of 800 elements begin with the same 16 bytes: a chance below 1e-32 in each run."""
    for run in runs:
        assert {(role, of) for role, view in run.views.items() for of in view} == set(run.lists) == set(LISTS)
        for name, (_, ids) in run.lists.items():
            assert sorted(run.members(name)) == sorted(ids)


def test_two_runs_on_the_same_sets_share_no_element(runs):
    """Two of 4,300 and 4,300 elements begin with the same 127 bits (the last of 128 is 0) with a chance of 1.1e-31."""
    rows = [{row[:16] for name in run.lists for row in run.received(name)} for run in runs]
    assert rows[0].isdisjoint(rows[1])


def test_no_element_appears_in_two_lists_of_a_view_but_own_ids_in_the_merged_union(runs):
    """Two of a view's 2,400 elements begin with the same 127 bits with a chance below 1e-31."""
    run = runs[0]
    for role in ("label", "feature"):
        names = [name for name in run.lists if name[0] == role]
        for index, first in enumerate(names):
            for second in names[index + 1 :]:
                shared = {row[:16] for row in run.received(first)} & {row[:16] for row in run.received(second)}
                expected = len(FEATURE) if {first[1], second[1]} == {"returned ids", "merged union"} else 0
                assert len(shared) == expected


def test_received_elements_look_like_random_group_elements(runs):
    """Every free bit of an encoding is a fair coin: off by 6.5 standard deviations with a chance of 508 * 8e-11 < 1e-7."""
    for role in ("label", "feature"):
        elements = [rows for run in runs for rows in run.views[role].values() if rows.shape[1] == 32]
        bits = np.unpackbits(np.concatenate(elements), axis=1, bitorder="little")
        assert not bits[:, 0].any()  # canonical: even ...
        assert not bits[:, 255].any()  # ... and below 2^255 - 19
        deviations = (bits[:, 1:255].mean(axis=0) - 0.5) * 2 * np.sqrt(len(bits))
        assert np.abs(deviations).max() < 6.5


@pytest.mark.parametrize("name", LISTS, ids=lambda name: f"{name[1]} seen by {name[0]}")
def test_order_does_not_tell_members_of_the_intersection(runs, name):
    """The rank sum of the intersection's places over two runs is beyond 5.5 standard deviations with a chance below
    4e-8 per list.
    """
    common, z = set(COMMON), 0.0
    for run in runs:
        inside = np.array([member in common for member in run.members(name)])
        inner, outer = int(inside.sum()), int((~inside).sum())
        ranks = np.flatnonzero(inside).sum() - inner * (inner - 1) / 2
        z += (ranks - inner * outer / 2) / np.sqrt(inner * outer * (inner + outer + 1) / 12)
    assert abs(z) / np.sqrt(2) < 5.5


@pytest.mark.parametrize("name", LISTS, ids=lambda name: f"{name[1]} seen by {name[0]}")
def test_order_does_not_tell_the_order_of_the_tables(runs, name):
    """The Spearman correlation of place and table row over two runs is beyond 5.5 standard deviations with a chance
    below 4e-8.
    """
    _, ids = runs[0].lists[name]
    row_of = {member: row for row, member in enumerate(ids)}
    z = 0.0
    for run in runs:
        places = np.array([row_of[member] for member in run.members(name)])
        z += np.corrcoef(places, np.arange(len(places)))[0, 1] * np.sqrt(len(places) - 1)
    assert abs(z) / np.sqrt(2) < 5.5


def test_positions_do_not_tell_rows():
    """The same statistic on the outcome, with a chance below 1e-7: own rows have random positions."""
    run = Run()
    for outcome in (run.ours, run.theirs):
        rows = outcome.rows_N[outcome.rows_N >= 0]
        assert abs(np.corrcoef(rows, np.arange(len(rows)))[0, 1]) * np.sqrt(len(rows) - 1) < 5.5
