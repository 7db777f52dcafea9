"""The size of an overlap is right, by group, withheld or noisy as agreed, and neither side's view has anything else."""

import math
import threading
from collections import Counter

import numpy as np
import pytest
from lanes import short_lane_of

from tallystick.alignment import overlap
from tallystick.alignment.exchange import Chunk
from tallystick.alignment.overlap import (
    IdGroups,
    OverlapCounts,
    OverlapGroups,
    OverlapNoise,
    OverlapTerms,
    overlap_comparing_side,
    overlap_permuting_side,
)
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import DataError, ProtocolError
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Array

from .roles import RNG, Watching, in_threads

EXACT = OverlapTerms()


def ids(start, stop):
    return [b"id %d" % number for number in range(start, stop)]


def both(permuting, comparing, *, terms=EXACT, rng=RNG, channels=None, **groups):
    ours, theirs = channels or memory_channels("permuting", "comparing", timeout_s=30)
    return in_threads(
        lambda: overlap_permuting_side(permuting, ours, rng=rng, terms=terms, **groups),
        lambda: overlap_comparing_side(comparing, theirs, rng=rng, terms=terms),
    )


@pytest.mark.parametrize(
    ("permuting", "comparing"),
    short_lane_of(
        [
            (ids(0, 1), ids(0, 1)),
            (ids(0, 7), ids(3, 50)),
            (ids(0, 1), ids(1, 2)),
            (ids(0, 2000), ids(1500, 5000)),
            (ids(0, 500), ids(100, 130)),
            (ids(0, 300), ids(0, 300)),
        ],
        4,
    ),
)
def test_both_learn_how_many_ids_they_have_in_common(permuting, comparing):
    first, second = both(permuting, comparing)
    common = len({*permuting} & {*comparing})
    assert first.counts == second.counts == (common,)
    assert (first.own, first.others) == (second.others, second.own) == (len(permuting), len(comparing))


def test_groups_are_counted_each():
    permuting, comparing = ids(0, 900), ids(450, 2000)
    group_M = (np.arange(900) % 3).astype(np.uint8)
    groups = IdGroups(names=("north", "south", "none here"), number_M=group_M)
    first, second = both(permuting, comparing, groups=groups)
    true = Counter(group for one, group in zip(permuting, group_M.tolist(), strict=True) if one in {*comparing})
    assert first.counts == second.counts == tuple(true[group] for group in range(3))
    assert first.groups == second.groups == ("north", "south", "none here")


@pytest.mark.parametrize(
    ("common", "told"),
    [(9, None), (10, 10), (190, 190), (191, None), (200, None)],
    ids=["few", "least", "most", "nearly all", "all"],
)
def test_a_count_of_few_ids_or_of_all_but_a_few_is_withheld_from_both(common, told):
    first, second = both(ids(0, 200), ids(200 - common, 500), terms=OverlapTerms(least=10))
    assert first.counts == second.counts == (told,)


def test_who_is_not_to_be_told_learns_no_count():
    first, second = both(ids(0, 50), ids(20, 90), terms=OverlapTerms(told=False))
    assert first.counts is None
    assert second.counts == (30,)


# --- noise


@pytest.mark.parametrize("groups", [("",), ("a", "b")])
def test_each_side_learns_the_count_with_the_other_side_s_noise(monkeypatch, groups):
    """So a side that subtracts what it knows still has noise that it does not know."""
    noise = OverlapNoise(epsilon=1.0, delta=1e-6)
    drawn = {}
    draw = OverlapNoise.draw

    def kept(self, rng):
        assert self.groups == len(groups)
        drawn[threading.current_thread().name] = noise_G = draw(self, rng)
        return noise_G

    monkeypatch.setattr(OverlapNoise, "draw", kept)
    group_M = (np.arange(400) % len(groups)).astype(np.uint8)
    numbered = IdGroups(names=tuple(groups), number_M=group_M)
    first, second = both(ids(0, 400), ids(100, 700), terms=OverlapTerms(noise=noise), groups=numbered)
    true_G = np.bincount(group_M[100:], minlength=len(groups))
    assert (np.array(first.counts) - true_G == drawn["role 1"]).all()
    assert (np.array(second.counts) - true_G == drawn["role 0"]).all()
    assert (first.own, first.others) == (400, 600)


NOISES = [
    OverlapNoise(epsilon=epsilon, delta=delta, groups=groups)
    for epsilon, delta, groups in [(0.5, 1e-3, 1), (1.0, 1e-9, 1), (3.0, 1e-2, 1), (0.5, 1e-3, 2), (3.0, 1e-2, 5)]
]


def chances(noise):
    """Return every value of one count's noise, and its chance by the formula."""
    values = np.arange(-noise.most, noise.most + 1)
    chance = np.exp(-noise.epsilon * np.abs(values) / (2 if noise.groups > 1 else 1))
    return values, chance / chance.sum()


@pytest.mark.parametrize("noise", short_lane_of(NOISES, 3), ids=repr)
def test_noise_is_a_discrete_laplace_number_within_its_bounds(noise):
    """6,000 draws are compared with the exact chances. Their chi-squared is 7 deviations above its mean with a chance
    below 1e-7.
    """
    values, chance = chances(noise)
    rng = SecureRandom(source=np.random.default_rng(5).bytes)
    drawn = np.concatenate([noise.draw(rng) for _ in range(6_000 // noise.groups)])
    assert np.abs(drawn).max() <= noise.most
    counts = np.array([(drawn == value).sum() for value in values])
    many = chance * len(drawn) >= 5
    cells = (counts[many] - chance[many] * len(drawn)) ** 2 / (chance[many] * len(drawn))
    assert cells.sum() < many.sum() + 7 * math.sqrt(2 * many.sum())


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_counts_tell_neighbours_apart_by_no_more_than_epsilon_and_delta(noise):
    """Replacing one id moves a count by 1, or two counts if the ids have different groups.

    Each count has its own noise, so the loss of two counts is the sum of both.
    """
    _, chance = chances(noise)
    before, after = np.append(chance, 0), np.insert(chance, 0, 0)  # the count, and the count less by 1, over the same values
    if noise.groups > 1:  # one group's count falls, and another's rises
        before, after = np.outer(before, before[::-1]).ravel(), np.outer(after, after[::-1]).ravel()
    for one, other in ((before, after), (after, before)):
        beyond = np.clip(one - math.exp(noise.epsilon) * (1 + 1e-9) * other, 0, None).sum()
        assert beyond <= noise.delta


# --- views


def watched(permuting, comparing):
    equal = []
    honest = overlap.learn_equal

    def kept(*args, **options):
        equal.append(honest(*args, **options))
        return equal[0]

    channels = tuple(Watching(channel) for channel in memory_channels("permuting", "comparing"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "learn_equal", kept)
        group_M = (np.arange(500) % 2).astype(np.uint8)
        both(permuting, comparing, rng=SecureRandom(), channels=channels, groups=IdGroups(names=("x", "y"), number_M=group_M))
    return channels, equal[0]


COMMON = [b"common %d" % number for number in range(300)]
PERMUTING = COMMON + [b"permuting only %d" % number for number in range(200)]
COMPARING = COMMON + [b"comparing only %d" % number for number in range(300)]
UNIFORM = {"slots of a store": 0, "differences at switches": 0, "corrections of places": 0}
UNIFORM |= {"corrections of bins": 1, "choices of switches": 1, "values of places": 1}


@pytest.fixture(scope="module")
def views():
    return watched(PERMUTING, COMPARING)


@pytest.mark.unseeded
@pytest.mark.parametrize("of", UNIFORM)
def test_received_bits_look_random(views, of):
    """Each bit is a fair coin: their mean is off by 6.5 standard deviations with a chance below 1e-10."""
    bits = np.unpackbits(np.frombuffer(views[0][UNIFORM[of]].lists[of], dtype=np.uint8))
    assert abs(bits.mean() - 0.5) * 2 * np.sqrt(len(bits)) < 6.5


@pytest.mark.unseeded
def test_a_view_holds_these_lists_and_no_other(views):
    """This holds for any draws."""
    transfers = {"seeds of transfers", "base transfers: the sender's key", "base transfers: the receiver's choices"}
    for side, channel in enumerate(views[0]):
        assert {of for of, at in UNIFORM.items() if at == side} <= set(channel.lists)
        assert (
            set(channel.lists)
            <= set(UNIFORM) | {"groups of places"} | {of for of in channel.lists if "transfers" in of} | transfers
        )


@pytest.mark.unseeded
def test_the_comparing_side_sees_equal_places_and_groups_in_a_uniform_arrangement(views):
    """Both have as many as the counts say. Ranks of either are beyond 5.5 standard deviations with a chance below 8e-8."""
    (_, comparing), equal_J = views
    group_J = np.frombuffer(comparing.lists["groups of places"], dtype=np.uint8)
    assert Counter(group_J[equal_J].tolist()) == {0: 150, 1: 150}
    for inside in (equal_J, group_J == 0):
        inner, outer = int(inside.sum()), int((~inside).sum())
        ranks = np.flatnonzero(inside).sum() - inner * (inner - 1) / 2
        assert abs(ranks - inner * outer / 2) / np.sqrt(inner * outer * (inner + outer + 1) / 12) < 5.5


@pytest.mark.unseeded
def test_messages_depend_on_sizes_alone(views):
    """Other ids, with another number of common ones and in another order, give messages of the same kinds and sizes."""
    (ours, theirs), _ = views
    (others, their_others), _ = watched(ids(0, 500)[::-1], ids(490, 1090))
    assert (others.sizes, their_others.sizes) == (ours.sizes, theirs.sizes)


def test_the_order_of_a_table_changes_no_message():
    """With the same draws each side sends the same bytes, whatever the order of its table and of its groups."""

    def lists(permuting, comparing):
        channels = tuple(Watching(channel) for channel in memory_channels("permuting", "comparing"))
        both(permuting, comparing, channels=channels)
        return [channel.lists for channel in channels]

    assert lists(PERMUTING, COMPARING) == lists(PERMUTING[::-1], sorted(COMPARING))


# --- a peer that does not follow the protocol


def cheated(role, kind, change):
    """Run both, and change one side's messages of a kind. Return the other side's error."""
    ours, theirs = memory_channels("permuting", "comparing", timeout_s=5)
    cheat = theirs if role == "comparing" else ours
    send = cheat.send
    cheat.send = lambda message: send(change(message) if isinstance(message, kind) else message)
    outcomes = both(ids(0, 300), ids(100, 400), channels=(ours, theirs))
    return outcomes[0 if role == "comparing" else 1]


def with_groups(chunk, *, group):
    """Set the groups of places to this one, also of empty places."""
    if chunk.of != "groups of places":
        return chunk
    return Chunk(of=chunk.of, rows=Array.of(np.full_like(chunk.rows.numpy(), group)))


@pytest.mark.parametrize(
    ("role", "kind", "change"),
    [
        ("comparing", OverlapCounts, lambda _: OverlapCounts(counts=[301])),
        ("comparing", OverlapCounts, lambda _: OverlapCounts(counts=[])),
        ("comparing", OverlapCounts, lambda _: OverlapCounts(counts=[1, 1])),
        ("permuting", OverlapGroups, lambda _: OverlapGroups(names=[])),
        ("permuting", OverlapGroups, lambda _: OverlapGroups(names=["a"] * 65)),
        ("permuting", OverlapGroups, lambda _: OverlapGroups(names=["a", "b"] * 32)),
        (
            "permuting",
            Chunk,
            lambda chunk: (
                Chunk(of=chunk.of, rows=Array.of(np.zeros_like(chunk.rows.numpy()))) if chunk.of == "groups of places" else chunk
            ),
        ),
        (
            "permuting",
            Chunk,
            lambda chunk: (
                Chunk(of=chunk.of, rows=Array.of(np.full_like(chunk.rows.numpy(), 7)))
                if chunk.of == "groups of places"
                else chunk
            ),
        ),
    ],
)
def test_what_the_protocol_does_not_allow_is_named(role, kind, change):
    error = cheated(role, kind, change)
    if isinstance(error, overlap.Overlap):  # 64 names for one group: the others are empty
        assert sum(error.counts) == 200
    else:
        assert isinstance(error, ProtocolError)
        assert role in str(error)


@pytest.mark.parametrize(
    ("permuting", "comparing"), [([], ids(0, 5)), ([b"a", b"a"], ids(0, 5)), ([b"\0tallystick/x"], ids(0, 5))]
)
def test_ids_that_cannot_be_counted_are_refused(permuting, comparing):
    first, second = both(permuting, comparing)
    assert isinstance(first, DataError)
    assert not isinstance(second, overlap.Overlap)
