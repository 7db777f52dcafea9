"""Compare the intersection by any of several keys with a slow join in the clear, each role in a thread."""

import threading
from functools import partial

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import short_lane_of

from tallystick.alignment import psi_malicious, psi_oprf
from tallystick.alignment.any_key import link_by_any_key_feature_party, link_by_any_key_label_party
from tallystick.alignment.exchange import Size
from tallystick.alignment.ids import Ids
from tallystick.alignment.key_ids import KeyIds
from tallystick.alignment.pairwise import LocalOptions
from tallystick.alignment.psi_malicious import StoreSeed, most_ids
from tallystick.alignment.psi_oprf import Table
from tallystick.config.alignment import IntersectionConfig
from tallystick.errors import IdError, PeerLost, PeerStopped, ProtocolError
from tallystick.network.channel import memory_channels
from tallystick.tables.keys import read_keys

from .roles import RNG, Tampering, Watching, in_threads
from .test_table_order import Lines

ONE = LocalOptions(threads=1)
NAMES = ("mail", "phone", "card")


def slow_join(label, feature, *, drop=False):
    """Link rows by the first key that both have, if it is equal there, the most trusted key first.

    If several rows have one value, the first counts, or none.
    """

    def counts(rows, row, number):
        having = [other for other in range(len(rows)) if rows[other][number] == rows[row][number]]
        return having[0] == row and (len(having) == 1 or not drop)

    pairs = {}
    for number in range(len(label[0])):
        for row, values in enumerate(label):
            for other, others in enumerate(feature):
                common = [place for place in range(len(values)) if None not in (values[place], others[place])]
                is_equal = common and common[0] == number and values[number] == others[number]
                is_open = all(row != mine and other != theirs for mine, theirs in pairs)
                if is_equal and is_open and counts(label, row, number) and counts(feature, other, number):
                    pairs[row, other] = number
    return pairs


def keys_of(rows, *, duplicates="first"):
    names = NAMES[: len(rows[0])]
    alignment = IntersectionConfig.model_validate(
        {"keys": [{"name": name} for name in names], "alternatives": [[name] for name in names], "duplicates": duplicates}
    )
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")
    return read_keys(frame, columns={name: name for name in names}, alignment=alignment)


def link(label, feature, *, watch=lambda channel: channel, **options):
    """Run both roles on rows, or on keys. Return what each returned, or its error."""
    mine, theirs = memory_channels("label", "feature", timeout_s=20)
    given = [keys_of(rows) if isinstance(rows, list) else rows for rows in (label, feature)]
    options = {"rng": RNG, "local": ONE, **options}
    return in_threads(
        *(
            lambda role=role, keys=keys, channel=channel: role(keys.by_key, len(keys.ids), watch(channel), **options)
            for role, keys, channel in zip(
                (link_by_any_key_label_party, link_by_any_key_feature_party), given, (mine, theirs), strict=True
            )
        )
    )


def pairs_of(ours, theirs, label, feature):
    """Return the linked rows of the tables, and by which key."""
    assert np.array_equal(ours.key_N, theirs.key_N)
    rows = zip(label.rows_R[ours.rows_N].tolist(), feature.rows_R[theirs.rows_N].tolist(), strict=True)
    return dict(zip(rows, ours.key_N.tolist(), strict=True))


def tables(keys):
    """Make rows of few values, so that people share them, form chains and contradict each other."""
    value = st.none() | st.sampled_from("abcd")
    return st.lists(st.tuples(*[value] * keys), min_size=1, max_size=8).filter(lambda rows: any(any(row) for row in rows))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 3).flatmap(lambda keys: st.tuples(tables(keys), tables(keys))), st.sampled_from(["first", "drop"]))
def test_links_what_a_slow_join_links(rows, duplicates):
    try:
        label, feature = (keys_of(side, duplicates=duplicates) for side in rows)
    except IdError:
        assert duplicates == "drop"
        return
    expected = slow_join(*rows, drop=duplicates == "drop")
    ours, theirs = link(label, feature)
    if not expected:
        assert isinstance(ours, IdError)
        assert isinstance(theirs, IdError)
        return
    assert pairs_of(ours, theirs, label, feature) == expected
    assert len(set(ours.rows_N)) == len(set(theirs.rows_N)) == len(expected)
    for number, name in enumerate(NAMES[: len(rows[0][0])]):
        assert ours.sizes[f"intersection by {name}"] == list(expected.values()).count(number)
    # both sides give a linked row the same id, and no two rows of a side have one
    names = [list(keys.linked_ids(np.arange(len(keys.ids)), found)) for keys, found in ((label, ours), (feature, theirs))]
    assert [names[0][row] for row in ours.rows_N] == [names[1][row] for row in theirs.rows_N]
    assert all(len(set(each)) == len(each) for each in names)


def test_people_who_share_a_telephone_and_have_other_addresses_stay_apart():
    household = [("anna@x", "555"), ("ben@x", "556")]
    ours, theirs = link(household, [("carl@y", "555"), ("ben@x", "999"), (None, "555")])
    assert ours.sizes["intersection"] == 1, "anna's and carl's mails differ, and 555 is carl's row's at the other side"
    assert (ours.rows_N.tolist(), theirs.rows_N.tolist()) == ([1], [1])
    ours, theirs = link(household, [("ben@x", "999"), (None, "555")])
    assert (ours.rows_N.tolist(), theirs.rows_N.tolist(), ours.key_N.tolist()) == ([1, 0], [0, 1], [0, 1])
    assert ours.learnt == [
        "feature has 2 rows with a key.",
        "of each key, how many ids feature brings of rows that no earlier key linked.",
        "which 2 of this side's 2 rows all parties hold, and which key links each: 1 by mail, 1 by phone.",
        "of each of the 1 rows that a later key links: which earlier keys feature's row has, of those that this side's lacks.",
    ]
    assert theirs.learnt[-1].endswith("that label's row has none of the earlier keys that this side's row has.")


def test_keys_that_chain_a_thousand_people_link_each_once():
    """Person n shares one value with n - 1 and another with n + 1."""
    rows = [(f"m{number // 2}", f"p{(number + 1) // 2}") for number in range(1000)]
    ours, theirs = link(rows, rows[::-1], protocol="oblivious-transfer")
    expected = slow_join(rows[:40], rows[:40][::-1])
    assert len(expected) == 20
    assert len(set(ours.rows_N)) == len(ours) == len(set(theirs.rows_N)) == 500


@pytest.mark.parametrize("security", short_lane_of(["semi-honest", "malicious"], 1))
def test_three_keys_of_many_rows_by_oblivious_transfer(security):
    rng = np.random.default_rng(5)
    people = [(f"{n}@x", f"+{n}", f"c{n}") for n in range(1000)]

    def side(numbers):
        """Make some keys of each person, and sometimes another address."""
        has = rng.random((len(numbers), 3)) < 0.7
        other = rng.random(len(numbers)) < 0.1
        rows = [list(people[number]) for number in numbers]
        for row, having, moved in zip(rows, has, other, strict=True):
            row[0] = f"moved-{row[0]}-{rng.integers(1 << 40)}" if moved else row[0]
            row[:] = [value if kept else None for value, kept in zip(row, having, strict=True)]
        return [tuple(row) for row in rows if any(row)]

    rows = side(rng.permutation(1000)[:700]), side(rng.permutation(1000)[:700])
    label, feature = map(keys_of, rows)
    ours, theirs = link(label, feature, security=security)
    # values are unique here, so a join by dictionaries is the slow reference
    expected, places = {}, [{row[k]: n for n, row in enumerate(rows[1]) if row[k]} for k in range(3)]
    for row, values in enumerate(rows[0]):
        for number, value in enumerate(values):
            other = places[number].get(value) if value else None
            if other is not None and not any(values[j] and rows[1][other][j] for j in range(number)):
                expected[row, other] = number
    assert pairs_of(ours, theirs, label, feature) == expected
    assert min(np.bincount(ours.key_N)) > 10
    cheating = [line for line in ours.learnt if "by cheating" in line]
    assert len(cheating) == (3 if security == "malicious" else 0)
    if cheating:
        assert f"it could have asked for {most_ids(len(feature.by_key[0].ids), len(label.by_key[0].ids))}" in cheating[0]


def view_sizes(label, feature):
    """Return what each side receives: kinds and sizes of messages, in order."""
    watched = {}

    def watch(channel):
        watched[threading.current_thread().name] = seen = Watching(channel)
        return seen

    outcomes = link(label, feature, watch=watch)
    return outcomes, [watched[name].sizes for name in sorted(watched)]


def test_an_equal_later_key_beside_a_different_earlier_one_tells_neither_side_anything():
    """In one case Anna's telephone belongs to another person on the other side, and in the other case to nobody. All views are
    alike.
    """
    common = [("ben@x", "1")]
    label = [("anna@x", "555"), *common]
    shared, sizes_shared = view_sizes(label, [("carl@y", "555"), *common])
    apart, sizes_apart = view_sizes(label, [("carl@y", "777"), *common])
    assert sizes_shared == sizes_apart
    for one, other in zip(shared, apart, strict=True):
        assert (one.sizes, one.learnt, one.rows_N.tolist()) == (other.sizes, other.learnt, other.rows_N.tolist())


@pytest.mark.parametrize(
    "by",
    short_lane_of([{"protocol": "diffie-hellman"}, {"security": "malicious"}, {"protocol": "oblivious-transfer"}], 2),
    ids=str,
)
def test_a_permuted_table_leaves_every_message_as_it_was(by):
    """Equal to the byte, with the same draws. Values of several rows link nobody, because which row is first is an order, too."""
    rng = np.random.default_rng(4)
    values = [[f"{kind}{rng.integers(50)}" if rng.random() < 0.7 else None for kind in "mpc"] for _ in range(160)]
    rows = {"bank": [each for each in values[:80] if any(each)], "shop": [each for each in values[80:] if any(each)]}

    def linked(rows):
        lines, keys = Lines(("bank", "shop")), {name: keys_of(table, duplicates="drop") for name, table in rows.items()}
        roles = (("bank", "shop", link_by_any_key_label_party), ("shop", "bank", link_by_any_key_feature_party))
        found = in_threads(
            *(
                partial(role, keys[own].by_key, len(keys[own].rows_R), lines[own, other], rng=RNG, local=ONE, **by)
                for own, other, role in roles
            )
        )
        at = [[rows[own][keys[own].rows_R[row]] for row in each.rows_N] for (own, _, _), each in zip(roles, found, strict=True)]
        return lines.sent, at, found

    sent, at, (ours, _) = linked(rows)
    assert min(np.bincount(ours.key_N, minlength=3)) > 0
    for order in (str, lambda row: str(row[::-1])):
        again, at_again, _ = linked({name: sorted(table, key=order) for name, table in rows.items()})
        assert again == sent
        assert at_again == at


def test_no_message_depends_on_the_order_of_a_table():
    rng = np.random.default_rng(3)
    label = [(f"{n}@x" if n % 3 else None, f"+{n}") for n in range(40)]
    feature = [(f"{n}@x" if n % 4 else None, f"+{n}") for n in range(20, 60)]
    permuted = [label[row] for row in rng.permutation(40)]
    (ours, theirs), sizes = view_sizes(label, feature)
    (ours_again, theirs_again), sizes_again = view_sizes(permuted, feature)
    assert sizes == sizes_again
    assert theirs.rows_N.tolist() == theirs_again.rows_N.tolist()
    assert [label[row] for row in ours.rows_N] == [permuted[row] for row in ours_again.rows_N]


@pytest.mark.parametrize("empty", ["label", "feature"])
def test_a_key_that_a_side_has_in_no_open_row_is_passed_over(empty):
    full, lacking = [("a", "1"), ("b", "2")], [("a", None), ("c", None)]
    ours, theirs = link(*((lacking, full) if empty == "label" else (full, lacking)))
    assert ours.sizes == {"own": 2, "feature": 2, "intersection": 1, "intersection by mail": 1, "intersection by phone": 0}
    assert theirs.sizes["label"] == 2


def test_a_feature_party_that_brings_a_value_twice_is_refused():
    """With one id for a row with a mail and for a row without, two of its rows would be linked to one."""
    label = keys_of([(None, "555")])
    feature = keys_of([("carl@y", "1"), (None, "2")])
    phone = KeyIds(name="phone", ids=Ids.of([b"555"] * 2), row_U=np.array([0, 1]), earlier_U=np.array([1, 0]))
    object.__setattr__(feature, "by_key", (feature.by_key[0], phone))
    ours, _ = link(label, feature)
    assert isinstance(ours, ProtocolError)
    assert "feature sent 'ids by phone' that link a row twice" in str(ours)


def test_more_ids_than_agreed_are_refused_by_key():
    label, feature = [("a", "1")], [("a", "2"), *((None, str(number)) for number in range(3, 12))]
    ours, _ = link(label, feature, max_rows=4)
    assert "feature announced 10 rows of 'ids'" in str(ours)
    mine, theirs = memory_channels("label", "feature", timeout_s=5)

    def cheat():
        theirs.send(Size(of="ids", rows=4))
        theirs.receive(Size)
        theirs.send(Size(of="ids by mail", rows=5))
        theirs.receive(Size)

    ours, _ = in_threads(
        lambda: link_by_any_key_label_party(keys_of(label).by_key, 1, mine, rng=RNG, max_rows=4, local=ONE), cheat
    )
    assert "feature announced 5 rows of 'ids by mail'; this side takes at most 4" in str(ours)


class Kept:
    """A side's buckets in memory, by the name of their store, and how often each was computed."""

    def __init__(self):
        self.stores, self.put = {}, []

    def of(self, name):
        return self.stores.setdefault(name, _Store(name, self.put))


class _Store:
    def __init__(self, name, put):
        self.name, self.noted, self.buckets, self.puts = name, b"", {}, put

    def note(self):
        return self.noted

    def write_note(self, note):
        self.noted = note

    def done(self, alignment):
        return next((n for n in range(len(self.buckets)) if self.buckets[n][0] != alignment), len(self.buckets))

    def put(self, alignment, bucket, arrays):
        self.buckets[bucket] = alignment, dict(arrays)
        self.puts.append((self.name, bucket))

    def get(self, bucket):
        return self.buckets[bucket][1]

    def drop(self, first):
        self.buckets = {bucket: each for bucket, each in self.buckets.items() if bucket < first}


@pytest.mark.parametrize("security", short_lane_of(["malicious", "semi-honest"], 1))
def test_an_alignment_that_breaks_in_a_later_key_takes_up_the_buckets_of_all(monkeypatch, security):
    monkeypatch.setattr(psi_oprf, "BUCKET_IDS", 50)
    monkeypatch.setattr(psi_malicious, "BUCKET_IDS", 50)
    begins = Table if security == "semi-honest" else StoreSeed
    label = keys_of([(f"{n}@x" if n % 2 else None, f"+{n}") for n in range(240)])
    feature = keys_of([(f"{n}@x" if n % 3 else None, f"+{n}") for n in range(120, 360)])
    options = {"protocol": "auto" if security == "malicious" else "oblivious-transfer", "security": security}
    kept = {"label": Kept(), "feature": Kept()}

    def run(watch=lambda channel: channel):
        mine, theirs = memory_channels("label", "feature", timeout_s=20)
        return in_threads(
            lambda: link_by_any_key_label_party(
                label.by_key, 240, watch(mine), rng=RNG, local=LocalOptions(threads=1, stored=kept["label"].of), **options
            ),
            lambda: link_by_any_key_feature_party(
                feature.by_key, 240, theirs, rng=RNG, local=LocalOptions(threads=1, stored=kept["feature"].of), **options
            ),
        )

    class Dying(Tampering):
        """The label party's channel. It breaks when the second key's second bucket begins."""

        begun = 0

        def send(self, message):
            if isinstance(message, begins):
                self.begun += message.bucket == 0
                if self.begun == 2 and message.bucket == 1:
                    raise PeerLost("somebody", "killed")  # so the peer is told, and need not wait
            super().send(message)

    assert all(isinstance(each, PeerLost | PeerStopped) for each in run(lambda channel: Dying(channel, None, None)))
    before = set(kept["label"].put)
    assert {name for name, _ in before} == {"feature.key1", "feature.key2"}
    kept["label"].put.clear()
    ours, theirs = run()
    by_mail = {n for n in range(120, 240) if n % 2 and n % 3}
    by_phone = {n for n in range(120, 240) if not (n % 2 and n % 3)}
    assert pairs_of(ours, theirs, label, feature) == {(n, n - 120): int(n in by_phone) for n in by_mail | by_phone}
    assert not before & set(kept["label"].put), "what was done is not done again"
