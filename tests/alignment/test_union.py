"""Compare both union methods with Python's sets, over memory channels with each role in a thread."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tallystick.alignment import exchange
from tallystick.alignment.matching import sorted_order
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.psu_helper import HelperOutcome, KeyShare, union_helper, union_with_helper_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.union import with_dummies
from tallystick.errors import DataError, PeerStopped, ProtocolError
from tallystick.network.channel import memory_channels

from .roles import Tampering, error_of, in_threads

RNG = SecureRandom(source=np.random.default_rng(1).bytes)
SETS = st.sets(st.binary(max_size=6), min_size=1, max_size=30)
METHODS = ["union", "union-with-helper"]


def unite(method, label_ids, feature_ids, **options):
    """Run both parties, and the helper if there is one. Return the parties' outcomes, and the helper's."""
    label, feature = memory_channels("label", "feature", timeout_s=20)
    if method == "union":
        return in_threads(
            lambda: union_label_party(label_ids, label, rng=RNG, threads=1, **options),
            lambda: union_feature_party(feature_ids, feature, rng=RNG, threads=1, **options),
        )
    label_up, label_down = memory_channels("label", "helper", timeout_s=20)
    feature_up, feature_down = memory_channels("feature", "helper", timeout_s=20)
    return in_threads(
        lambda: union_with_helper_party(label_ids, label, label_up, rng=RNG, **options),
        lambda: union_with_helper_party(feature_ids, feature, feature_up, rng=RNG, **options),
        lambda: union_helper(label_down, feature_down, rng=RNG),
    )


def assert_aligned(ours, theirs, label, feature):
    """Every id has one position, the same for both sides, and every position belongs to an id."""
    assert len(ours) == len(theirs) == len({*label, *feature})
    at_position = []
    for outcome, table in ((ours, label), (theirs, feature)):
        assert sorted(outcome.rows_N[outcome.rows_N >= 0]) == list(range(len(table)))
        at_position.append([table[row] if row >= 0 else None for row in outcome.rows_N])
    for own, others in zip(*at_position, strict=True):
        assert own is None or others is None or own == others
        assert own is not None or others is not None
    both = len({*label} & {*feature})
    assert ours.sizes == {"own": len(label), "feature": len(feature), "intersection": both, "union": len(ours)}
    assert theirs.sizes == {"own": len(feature), "label": len(label), "intersection": both, "union": len(ours)}


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=40, deadline=None)
@given(label=SETS, feature=SETS, common=SETS)
def test_gives_every_id_of_the_union_one_position(method, label, feature, common):
    assume(label - feature - common and feature - label - common)
    label, feature = list(label | common), list(feature | common)
    ours, theirs, *_ = unite(method, label, feature)
    assert_aligned(ours, theirs, label, feature)


@pytest.mark.parametrize(("label", "feature"), [(60, 25), (25, 60), (40, 40)])
@pytest.mark.parametrize("method", METHODS)
def test_several_chunks_and_unequal_sizes(monkeypatch, method, label, feature):
    monkeypatch.setattr(exchange, "CHUNK_ROWS", 7)
    label, feature = [b"%d" % n for n in range(label)], [b"theirs", *(b"%d" % n for n in range(10, 10 + feature))]
    ours, theirs, *_ = unite(method, label, feature)
    assert_aligned(ours, theirs, label, feature)
    if method == "union":
        few, many = sorted((len(label), len(feature)))
        assert ours.multiplications + theirs.multiplications == 5 * few + 2 * many + len(ours)
        assert np.array_equal(ours.uids_N16, theirs.uids_N16)
        assert len({uid.tobytes() for uid in ours.uids_N16}) == len(ours)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("label", "feature"), [([], [b"x"]), ([b"x"], []), ([], [])])
def test_an_empty_side_ends_all(method, label, feature):
    ours, theirs, *helper = unite(method, label, feature)
    for outcome in (ours, theirs):
        assert isinstance(outcome, DataError)
        assert "needs ids on every side" in str(outcome)
    assert all(isinstance(outcome, PeerStopped) for outcome in helper)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("label", "feature", "message"),
    [
        ([b"a", b"b"], [b"c"], "no id is common"),
        ([b"a", b"b"], [b"b", b"a"], "both sides hold the same ids"),
        ([b"a", b"b"], [b"a"], "every id of one side is held by the other"),
        ([b"a"], [b"b", b"a"], "every id of one side is held by the other"),
    ],
)
def test_sizes_that_tell_all_end_both_sides_before_any_position_is_known(method, label, feature, message):
    ours, theirs, *helper = unite(method, label, feature)
    for outcome in (ours, theirs):
        assert isinstance(outcome, DataError)
        assert message in str(outcome)
    assert all(isinstance(outcome, DataError) for outcome in helper)


@pytest.mark.parametrize("method", METHODS)
def test_duplicate_and_reserved_ids_end_all(method):
    for label, message in (([b"a", b"a"], "1 of this side's 2 ids are duplicates"), ([b"\x00tallystick/x"], "reserved")):
        ours, *others = unite(method, label, [b"a", b"b"])
        assert isinstance(ours, DataError)
        assert message in str(ours)
        assert all(isinstance(outcome, PeerStopped) for outcome in others)


@pytest.mark.parametrize("method", METHODS)
def test_a_side_over_the_limit_ends_all(method):
    ours, theirs, *_ = unite(method, [b"a", b"b"], [b"a", b"c", b"d"], max_rows=2)
    assert isinstance(theirs, DataError)
    assert "max_rows = 2" in str(theirs)
    assert isinstance(ours, PeerStopped)


@pytest.mark.parametrize("method", METHODS)
def test_dummies_blur_the_sizes_and_are_nobodys_rows(method):
    label, feature = [b"%d" % n for n in range(20)], [b"%d" % n for n in range(15, 40)]
    announced = set()
    for _ in range(12):
        ours, theirs, *_ = unite(method, label, feature, dummies=30)
        announced.add((ours.sizes["own"], ours.sizes["feature"], ours.sizes["intersection"]))
        both = (ours.rows_N >= 0) & (theirs.rows_N >= 0)
        assert [label[row] for row in ours.rows_N[both]] == [feature[row] for row in theirs.rows_N[both]]
        assert both.sum() == 5
        assert (ours.rows_N >= 0).sum() == 20
        assert (theirs.rows_N >= 0).sum() == 25
        assert len(ours) == len(theirs) == ours.sizes["union"]
        assert ours.sizes["own"] >= 20
    # Twelve draws of two numbers below 31 are all alike with a chance of 961^-11.
    assert len(announced) > 1


def test_dummies_are_drawn_from_one_pool():
    drawn = [set(with_dummies([b"a"], 5, rng=RNG)) for _ in range(200)]
    assert len(set.union(*drawn)) == 6  # a dummy is never drawn with a chance of 2^-200
    assert {len(ids) for ids in drawn} == set(range(1, 7))  # a count is never drawn with a chance below 6 * (5/6)^200 < 1e-14


def with_row(row, content):
    def change(rows):
        rows[row] = np.frombuffer(content, dtype=np.uint8)[: rows.shape[1]]
        return rows

    return change


def twice_the_first(rows):
    rows[1] = rows[0]
    return rows


def float_rows(rows):
    return rows.astype(np.float32)


IDENTITY, NOT_CANONICAL = bytes(32), b"\xff" * 32
LABEL_LISTS, FEATURE_LISTS = ["blinded ids", "merged union"], ["blinded ids", "mixed ids", "own ids under both keys"]
LISTS = [("label", of) for of in LABEL_LISTS] + [("feature", of) for of in FEATURE_LISTS]
SHORT_LISTS = [("label", "returned ids"), ("feature", "universal ids")]


@pytest.mark.parametrize(("liar", "of"), LISTS)
@pytest.mark.parametrize("element", [IDENTITY, NOT_CANONICAL])
def test_invalid_elements_are_refused_at_every_step(liar, of, element):
    error = error_against(liar, of, with_row(1, element))
    assert of in str(error)
    # The merged union is shuffled: one of the honest side's own ids may be overwritten, which is noticed first.
    assert "canonical" in str(error) or (of == "merged union" and "left 1 of this side's ids out" in str(error))


@pytest.mark.parametrize(("liar", "of"), LISTS + SHORT_LISTS)
@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: np.repeat(rows, 2, axis=0), float_rows])
def test_the_wrong_number_or_kind_of_elements_is_refused_at_every_step(liar, of, change):
    assert repr(of) in str(error_against(liar, of, change))


@pytest.mark.parametrize(("liar", "of"), SHORT_LISTS)
def test_a_tag_that_belongs_to_nobody_is_refused(liar, of):
    # The label party holds three of four universal ids, so only changing two of them is sure to hit one of its own.
    def change(rows):
        rows = with_row(0, b"x" * 16)(with_row(1, b"y" * 16)(rows))
        return rows[sorted_order(rows)] if of == "universal ids" else rows

    error = error_against(liar, of, change)
    assert "of this side's ids out of" in str(error)
    assert of in str(error)


@pytest.mark.parametrize(
    ("liar", "of"),
    [
        ("label", "blinded ids"),
        ("label", "returned ids"),
        ("label", "merged union"),
        ("feature", "blinded ids"),
        ("feature", "mixed ids"),
        ("feature", "own ids under both keys"),
        ("feature", "universal ids"),
    ],
)
def test_repeated_elements_are_refused(liar, of):
    error = error_against(liar, of, twice_the_first)
    assert "duplicates" in str(error)
    assert of in str(error)


def error_against(liar, of, change):
    """Return the honest side's ProtocolError, which blames the liar."""
    label, feature = memory_channels("label", "feature", timeout_s=20)
    if liar == "label":
        label = Tampering(label, of, change)
    else:
        feature = Tampering(feature, of, change)
    ours, theirs = in_threads(
        lambda: union_label_party([b"a", b"b", b"c"], label, rng=RNG, threads=1),
        lambda: union_feature_party([b"b", b"c", b"d"], feature, rng=RNG, threads=1),
    )
    error, others = (theirs, ours) if liar == "label" else (ours, theirs)
    assert isinstance(error, ProtocolError)
    assert error.peer == liar
    assert others is not None  # it ended too
    return error


@pytest.mark.parametrize("share", [b"short", bytes(33)])
def test_a_key_share_of_another_length_is_refused(share):
    helper, _ = memory_channels("label", "helper", timeout_s=5)

    def cheat(channel):
        exchange.send_size(channel, "ids", 1)
        channel.send(KeyShare(share=share))

    error = error_of(lambda channel: union_with_helper_party([b"a"], channel, helper, rng=RNG), cheat)
    assert isinstance(error, ProtocolError)
    assert "key share" in str(error)


@pytest.mark.parametrize(("positions", "union"), [([0, 0], 3), ([0, 3], 3), ([-1, 0], 3), ([0, 1], 1), ([0, 1], 5)])
def test_a_helper_that_makes_no_sense_is_refused(positions, union):
    label, feature = memory_channels("label", "feature", timeout_s=5)

    def cheat(channel):
        exchange.send_size(channel, "positions in the union", union)
        exchange.send_list(channel, "positions in the union", np.array(positions, dtype=np.int64))

    helper, helper_end = memory_channels("label", "helper", timeout_s=5)
    other, other_end = memory_channels("feature", "helper", timeout_s=5)
    cheat(helper_end)
    cheat(other_end)
    ours, theirs = in_threads(
        lambda: union_with_helper_party([b"a", b"b"], label, helper, rng=RNG),
        lambda: union_with_helper_party([b"b", b"c"], feature, other, rng=RNG),
    )
    for outcome in (ours, theirs):
        assert isinstance(outcome, ProtocolError)
        assert outcome.peer == "helper"
        assert "'positions in the union'" in str(outcome)


def test_the_helper_learns_sizes_only_and_refuses_repeated_hashes():
    label, feature, helper = [b"a", b"b", b"c"], [b"b", b"d"], None
    *_, helper = unite("union-with-helper", label, feature)
    assert isinstance(helper, HelperOutcome)
    assert helper.sizes == {"label": 3, "feature": 2, "intersection": 1, "union": 4}
    ends = [memory_channels(name, "helper", timeout_s=5) for name in ("label", "feature")]
    for (end, _), tags in zip(ends, (b"abc", b"bb"), strict=True):
        exchange.send_size(end, "keyed hashes", len(tags))
        exchange.send_list(end, "keyed hashes", np.repeat(np.frombuffer(tags, dtype=np.uint8)[:, None], 16, axis=1))
    with pytest.raises(ProtocolError, match="feature sent, among 'keyed hashes', 1 duplicates"):
        union_helper(ends[0][1], ends[1][1], rng=RNG)
