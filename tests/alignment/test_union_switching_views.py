"""Compare what a party sees of a union by oblivious switching with what the simulator of psu_switching.py would show it.

The sides' tables have the worst layout: the intersection comes first in both.
"""

import numpy as np
import pytest

from tallystick.alignment import psu_switching
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.network.channel import memory_channels

from .roles import Watching, in_threads

pytestmark = pytest.mark.unseeded
COMMON = [b"common %d" % n for n in range(300)]
LABEL = COMMON + [b"label only %d" % n for n in range(200)]
FEATURE = COMMON + [b"feature only %d" % n for n in range(300)]

PERMUTES = {"slots of a store", "differences at switches", "corrections of places", "choices of rows", "universal ids"}
MERGES = {"corrections of bins", "choices of switches", "values of places", "hidden rows"}
SEEDS = "seeds of transfers"
PSEUDONYMS = {
    "base transfers: the sender's key",
    "base transfers: the receiver's choices",
    "corrections of the store",
    "hashes of columns",
}


class Run:
    """One union, with both views.

    The label party permutes and the feature party merges. Both draw from the operating system. The run would end if a table had
    no place for an id, or two ids had one hidden row: each has a chance below 2^-40, hence both together one below 6e-12 over the
    three runs here. Each test that looks at drawn values states its own chance; the others hold for any draws.
    """

    def __init__(self, label=LABEL, feature=FEATURE):
        ours, theirs = (Watching(channel) for channel in memory_channels("label", "feature"))
        self.label, self.feature, equal = label, feature, []
        honest = psu_switching.learn_equal, psu_switching.receive_programmed, psu_switching.send_hidden_rows

        def kept(*args, **options):
            equal.append(honest[0](*args, **options))
            return equal[0]

        def tabled(*args, **options):
            self.table, values = honest[1](*args, **options)
            return self.table, values

        def sent(channel, transfers, rows_J16):
            self.hidden_rows = rows_J16
            honest[2](channel, transfers, rows_J16)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psu_switching, "learn_equal", kept)
            patch.setattr(psu_switching, "receive_programmed", tabled)
            patch.setattr(psu_switching, "send_hidden_rows", sent)
            self.ours, self.theirs = in_threads(
                lambda: union_label_party(label, ours, rng=SecureRandom(), protocol="oblivious-transfer"),
                lambda: union_feature_party(feature, theirs, rng=SecureRandom(), protocol="oblivious-transfer"),
            )
        (self.equal,) = equal
        self.views, self.sizes = (ours.lists, theirs.lists), (ours.sizes, theirs.sizes)


@pytest.fixture(scope="module")
def runs():
    return Run(), Run()


def test_a_view_holds_these_lists_and_nothing_else(runs):
    """This holds for any draws. ``Run`` states the chance that the runs themselves end."""
    for run in runs:
        assert set(run.views[0]) == PERMUTES | PSEUDONYMS | {SEEDS}
        assert set(run.views[1]) == MERGES | PSEUDONYMS | {SEEDS}
        assert run.views[0]["universal ids"] == run.theirs.uids_N16.tobytes()


def test_messages_depend_on_sizes_alone(runs):
    """Other ids, with as many common ones, give messages of the same kinds and sizes, whatever is drawn."""
    other = Run([b"%d" % n for n in range(500)], [b"%d" % n for n in range(200, 800)])
    assert other.sizes == runs[0].sizes == runs[1].sizes


@pytest.mark.parametrize("of", [*sorted((PERMUTES | MERGES) - {"universal ids", "hidden rows"}), SEEDS])
def test_received_bits_look_random(runs, of):
    """Each bit is a fair coin: their mean is off by 6.5 standard deviations with a chance below 1e-10."""
    view = 0 if of in PERMUTES else 1
    bits = np.unpackbits(np.frombuffer(b"".join(run.views[view][of] for run in runs), dtype=np.uint8))
    assert abs(bits.mean() - 0.5) * 2 * np.sqrt(len(bits)) < 6.5


def test_two_runs_on_the_same_sets_share_no_pseudonym(runs):
    """800 and 800 numbers of 128 bits have one in common with a chance below 2e-33."""
    first, second = ({uid.tobytes() for uid in run.ours.uids_N16} for run in runs)
    assert first.isdisjoint(second)


def rank_sum(inside):
    """Return how far the places of those inside are from random ones, in standard deviations."""
    inner, outer = int(inside.sum()), int((~inside).sum())
    ranks = np.flatnonzero(inside).sum() - inner * (inner - 1) / 2
    return (ranks - inner * outer / 2) / np.sqrt(inner * outer * (inner + outer + 1) / 12)


def test_the_order_of_universal_ids_does_not_tell_who_is_common(runs):
    """Over two runs, beyond 5.5 standard deviations with a chance below 4e-8."""
    z = sum(rank_sum((run.ours.rows_N >= 0) & (run.theirs.rows_N >= 0)) for run in runs)
    assert abs(z) / np.sqrt(2) < 5.5


def test_the_merging_side_sees_as_many_equal_places_as_ids_are_common_at_random_places(runs):
    """Over two runs, beyond 5.5 standard deviations with a chance below 4e-8."""
    for run in runs:
        assert run.equal.sum() == len(COMMON)
    assert abs(sum(rank_sum(run.equal) for run in runs)) / np.sqrt(2) < 5.5


def test_positions_do_not_tell_rows(runs):
    """The correlation of place and row is beyond 5.5 standard deviations with a chance below 8e-8."""
    for outcome in (runs[0].ours, runs[0].theirs):
        rows = outcome.rows_N[outcome.rows_N >= 0]
        assert abs(np.corrcoef(rows, np.arange(len(rows)))[0, 1]) * np.sqrt(len(rows) - 1) < 5.5


def test_places_of_hidden_pseudonyms_tell_neither_rows_nor_bins(runs):
    """They have an order that the merging side does not know: a correlation is beyond 5.5 deviations with a chance of 8e-8."""
    run = runs[0]
    filled = np.flatnonzero(run.hidden_rows.any(axis=1))
    position = {uid.tobytes(): place for place, uid in enumerate(run.ours.uids_N16)}
    row_of_place = run.ours.rows_N[[position[row.tobytes()] for row in run.hidden_rows[filled]]]
    bin_of_row = np.empty(len(LABEL), dtype=np.int64)
    bins = np.flatnonzero(run.table >= 0)
    bin_of_row[run.table[bins]] = bins
    assert sorted(row_of_place) == list(range(len(LABEL)))
    for order in (row_of_place, bin_of_row[row_of_place]):
        assert abs(np.corrcoef(order, filled)[0, 1]) * np.sqrt(len(order) - 1) < 5.5
