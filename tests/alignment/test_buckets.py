"""Compare buckets with the exact binomial tail and with lists in one piece, and resume alignments after the last kept bucket."""

import itertools
import threading
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
from lanes import short_lane_of
from scipy.stats import binom

from tallystick.alignment import buckets, psi_malicious, psi_oprf
from tallystick.alignment.buckets import Buckets, Split, Standing, TagsCommitment
from tallystick.alignment.coin_toss import Coin, CoinCommitment
from tallystick.alignment.exchange import Chunk, Size, send_size
from tallystick.alignment.pairwise import LocalOptions
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psi_malicious import StoreSeed
from tallystick.alignment.psi_oprf import Proof, Table
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import Contract
from tallystick.errors import DataError, PeerLost, PeerStopped, ProtocolError
from tallystick.network.channel import memory_channels
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.kept_buckets import KeptBuckets, forget_buckets

from .roles import RNG, Recording, Tampering, error_of, in_threads

LABEL, FEATURE = [b"%d" % n for n in range(300)], [b"%d" % n for n in range(200, 600)]
WAYS = {"oblivious-transfer": {"protocol": "oblivious-transfer"}, "malicious": {"security": "malicious"}}
BEGINS = {"oblivious-transfer": Table, "malicious": StoreSeed}
PLACES = "places of the joint rows"


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """Eight buckets of 50 ids for the larger side."""
    monkeypatch.setattr(psi_oprf, "BUCKET_IDS", 50)
    monkeypatch.setattr(psi_malicious, "BUCKET_IDS", 50)


@pytest.fixture(params=list(WAYS))
def way(request):
    return request.param


class Side:
    """A party with a run folder, and the lines that it got."""

    def __init__(self, root, name, ids):
        (root / name).mkdir()
        values = {"version": 1, "name": "t", "parties": {"label": {"role": "label"}, "feature": {"role": "feature"}}}
        values |= {"alignment": {"keys": [{"name": "id"}]}, "target": {"type": "binary"}, "seed": 1}
        self.folder = RunFolder.new(root / name, Contract.model_validate(values), name, key=None)
        self.ids, self.said = ids, []
        self.local = LocalOptions(stored=self.stored, say=self.said.append)

    def stored(self, peer):
        return KeptBuckets(self.folder, peer, say=self.said.append)

    def files(self):
        return sorted((self.folder.path / "buckets").glob("*.safetensors"), key=lambda path: int(path.stem.rpartition("-")[2]))


@pytest.fixture
def sides(tmp_path):
    return Side(tmp_path, "label", LABEL), Side(tmp_path, "feature", FEATURE)


def align(label, feature, way, *, label_wrap=lambda channel: channel, feature_wrap=lambda channel: channel, rng=RNG):
    """Run both roles with their stores."""
    ours, theirs = memory_channels("label", "feature", timeout_s=60)
    label.said.clear()
    feature.said.clear()
    options = {"rng": rng, **WAYS[way]}
    return in_threads(
        lambda: intersect_label_party(label.ids, [label_wrap(ours)], local=label.local, **options),
        lambda: intersect_feature_party(feature.ids, feature_wrap(theirs), local=feature.local, **options),
    )


class Dying(Tampering):
    """A channel that breaks before it sends a message of the kind that begins a bucket, or of another kind."""

    def __init__(self, channel, kind, *, bucket=None):
        super().__init__(channel, None, None)
        self._kind, self._bucket = kind, bucket

    def send(self, message):
        if isinstance(message, self._kind) and self._bucket in (None, getattr(message, "bucket", None)):
            raise PeerLost("somebody", "killed")  # so the peer is told, and need not wait
        super().send(message)


def broken(label, feature, way, *, bucket=4, **options):
    """Break an alignment off when this bucket begins."""
    outcomes = align(label, feature, way, label_wrap=lambda channel: Dying(channel, BEGINS[way], bucket=bucket), **options)
    assert all(isinstance(outcome, PeerLost | PeerStopped) for outcome in outcomes)


@cache
def in_one_piece():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psi_oprf, "BUCKET_IDS", 10_000)
        ours, theirs = memory_channels("label", "feature", timeout_s=60)
        return in_threads(
            lambda: intersect_label_party(LABEL, [ours], rng=RNG, protocol="oblivious-transfer"),
            lambda: intersect_feature_party(FEATURE, theirs, rng=RNG, protocol="oblivious-transfer"),
        )


def right(outcomes):
    """Check that both found the common ids, in the order of an alignment in one piece."""
    return all(
        np.array_equal(got.rows_N, want.rows_N)
        and got.sizes == want.sizes
        and [line for line in got.learnt if "by cheating" not in line] == want.learnt
        for got, want in zip(outcomes, in_one_piece(), strict=True)
    )


@pytest.mark.parametrize(
    ("label", "feature"), [(300, 400), (10**6, 10**6), (10**3, 10**7), (10**7, 10**7), (5 * 10**7, 1), (10**9, 10**9)]
)
@pytest.mark.parametrize("per_bucket", [50, 65_536, 262_144])
def test_a_bucket_overflows_by_a_chance_below_2_to_the_minus_40(label, feature, per_bucket):
    buckets = Buckets(label_ids=label, feature_ids=feature, per_bucket=per_bucket)
    chances = [buckets.count * binom.sf(buckets.room(ids), ids, 1 / buckets.count) for ids in (label, feature)]
    assert sum(chances) < 2.0**-40


def test_padding_is_small_where_buckets_are_large():
    room = Buckets(label_ids=10**7, feature_ids=10**7, per_bucket=262_144).room(10**7)
    assert 1 < room / (10**7 / 39) < 1.018


@pytest.mark.parametrize(("others", "binned"), [(10**6, 2.8), (10**7, 13.6)])
def test_a_label_party_with_few_ids_beside_many_has_so_many_bins(others, binned):
    """Return what a label party that deviates gets by oblivious transfer, as docs/reference/protocols.md says."""
    of_bins = Buckets(label_ids=1000, feature_ids=others, per_bucket=262_144)
    assert of_bins.count * 3 * psi_oprf.Shape.of(of_bins).per_region / 1000 == pytest.approx(binned, rel=0.01)


@pytest.mark.parametrize(
    ("label", "feature", "span", "count"),
    [(300, 400, 1, 8), (10, 400, 8, 8), (400, 50, 8, 8), (120, 400, 2, 8), (130, 800, 5, 20), (400, 400, 1, 8), (1, 1, 1, 1)],
)
def test_the_shorter_list_is_cut_no_further_than_it_has_to_be(label, feature, span, count):
    buckets = Buckets(label_ids=label, feature_ids=feature, per_bucket=50, nested=True)
    assert (buckets.span, buckets.count) == (span, count)
    assert buckets.parts(min(label, feature)) * span == buckets.parts(max(label, feature)) == count


def test_more_ids_than_room_end_the_alignment_before_anything_is_sent():
    with pytest.raises(DataError, match="5 ids of this side fell into a bucket that has room for 4"):
        Split.by(np.array([0, 1, 1, 1, 1, 1]), count=2, room=4)


def test_the_outcome_is_that_of_an_alignment_in_one_piece(sides, way):
    outcomes = align(*sides, way)
    assert right(outcomes)
    assert [len(side.files()) for side in sides] == [8, 8]


def test_several_feature_parties_in_buckets():
    other = [b"%d" % n for n in range(250, 270)]
    pairs = [memory_channels("label", name, timeout_s=60) for name in ("one", "two")]
    told = []
    outcomes = in_threads(
        lambda: intersect_label_party(
            LABEL,
            [mine for mine, _ in pairs],
            rng=RNG,
            protocol="oblivious-transfer",
            local=LocalOptions(progress=lambda *call: told.append(call)),
        ),
        *(
            lambda ids=ids, channel=channel: intersect_feature_party(
                ids, channel, rng=RNG, protocol="oblivious-transfer", one_of_several=True
            )
            for ids, (_, channel) in zip((FEATURE, other), pairs, strict=True)
        ),
    )
    aligned = [[ids[row] for row in found.rows_N] for ids, found in zip((LABEL, FEATURE, other), outcomes, strict=True)]
    assert aligned[0] == aligned[1] == aligned[2]
    assert set(aligned[0]) == set(other)
    assert told == [("private set intersection, buckets", done, 14) for done in range(1, 15)]


def test_lists_have_the_same_sizes_whatever_ids_there_are(way):
    """Bucket by bucket: there are as many places and tags as ids, and as common ids."""

    class Sizes(Recording):
        def receive(self, kind):
            message = super().receive(kind)
            if isinstance(message, Chunk) and message.of != PLACES:
                sizes.append((message.of, message.rows.shape))
            return message

    views = []
    for feature in (FEATURE, [b"other %d" % n for n in range(399)] + LABEL[:1]):
        sizes = []
        ours, theirs = memory_channels("label", "feature", timeout_s=60)
        in_threads(
            lambda: intersect_label_party(LABEL, [Sizes(ours)], rng=RNG, **WAYS[way]),  # noqa: B023 - run before the next
            lambda: intersect_feature_party(feature, Sizes(theirs), rng=RNG, **WAYS[way]),  # noqa: B023
        )
        views.append(sorted(sizes))
    assert views[0] == views[1]


@pytest.mark.parametrize("bucket", [pytest.param(0, marks=pytest.mark.long), 5])
def test_a_broken_alignment_goes_on_at_the_first_bucket_that_is_not_done(sides, way, bucket):
    broken(*sides, way, bucket=bucket)
    begun = []

    class Watching(Tampering):
        def send(self, message):
            if isinstance(message, BEGINS[way]):
                begun.append(message.bucket)
            super().send(message)

    assert right(align(*sides, way, label_wrap=lambda channel: Watching(channel, None, None)))
    assert begun == list(range(bucket, 8))
    assert any(f"goes on: {bucket} of 8 buckets are done on both sides" in line for line in sides[0].said)


def test_an_alignment_that_broke_after_its_last_bucket_runs_none_again(sides, way):
    """The label party dies before it says where the common rows are."""

    class Last(Tampering):
        def send(self, message):
            if isinstance(message, Size) and message.of == PLACES:
                raise PeerLost("somebody", "killed")
            super().send(message)

    align(*sides, way, label_wrap=lambda channel: Last(channel, None, None))
    kept = [[path.stat().st_mtime_ns for path in side.files()] for side in sides]
    assert right(align(*sides, way))
    assert "goes on: 8 of 8 buckets are done on both sides" in sides[0].said[0]
    assert kept == [[path.stat().st_mtime_ns for path in side.files()] for side in sides]


DAMAGES = {
    "missing": lambda files: files[2].unlink(),
    "cut": lambda files: files[2].write_bytes(files[2].read_bytes()[:-5]),
    "changed": lambda files: files[2].write_bytes(files[2].read_bytes()[:-1] + b"\xff"),
    "another bucket's": lambda files: files[2].write_bytes(files[1].read_bytes()),
}
SAID = {
    "missing": "it is missing; this bucket, and 2 kept ones after it, are done again",
    "cut": "does not match its digest",
    "changed": "does not match its digest",
    "another bucket's": "it is another file, written as buckets/feature-1.safetensors",
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_kept_bucket_that_is_of_no_use_is_named_and_done_again(sides, damage):
    broken(*sides, "oblivious-transfer", bucket=5)
    DAMAGES[damage](sides[0].files())
    assert right(align(*sides, "oblivious-transfer"))
    assert SAID[damage] in sides[0].said[0]
    assert "feature-2.safetensors" in sides[0].said[0]
    assert "goes on: 2 of 8" in sides[0].said[1]
    assert "; it runs 3 buckets again that were done here" in sides[1].said[0]


def test_a_bucket_of_another_alignment_is_named_and_done_again(sides):
    way = "oblivious-transfer"
    broken(*sides, way, bucket=3, rng=SecureRandom(source=np.random.default_rng(2).bytes))
    other = sides[1].files()[0].read_bytes()
    forget_buckets(sides[0].folder)
    broken(*sides, way, bucket=3)  # the label party has kept none: another alignment
    assert "starts again, although 3 of 8 buckets were done here: that side has saved none of them" in sides[1].said[0]
    sides[1].files()[0].write_bytes(other)
    assert right(align(*sides, way))
    assert "label-0.safetensors is damaged: it is a bucket of another alignment" in sides[1].said[0]


def test_a_damaged_note_begins_anew(sides):
    way = "oblivious-transfer"
    broken(*sides, way)
    note = sides[0].folder.path / "buckets" / "feature.json"
    note.write_bytes(note.read_bytes()[:-1])
    assert right(align(*sides, way))
    assert "feature.json is damaged: " in sides[0].said[0]
    assert "starts again" in sides[1].said[0]


def test_another_table_begins_anew(sides):
    way = "oblivious-transfer"
    broken(*sides, way)
    sides[0].ids = [*LABEL[1:], b"another"]
    ours, theirs = align(*sides, way)
    assert [sides[0].ids[row] for row in ours.rows_N] == [FEATURE[row] for row in theirs.rows_N]
    assert "are of other ids or other sizes: it starts again" in sides[0].said[0]


def test_the_same_ids_in_another_order_go_on(sides, way):
    """The alignment sorts them first, so another order is the same for the other side, too."""
    broken(*sides, way)
    sides[0].ids = LABEL[::-1]
    ours, theirs = align(*sides, way)
    assert [sides[0].ids[row] for row in ours.rows_N] == [FEATURE[row] for row in theirs.rows_N]
    assert "goes on: 4 of 8 buckets" in sides[0].said[0]


@pytest.mark.parametrize(("feature_ids", "breaks", "goes_on"), [(400, 5, 4), (3_000, 5, 0)])
def test_an_alignment_goes_on_at_the_first_bucket_of_a_part_of_the_shorter_list(
    tmp_path, monkeypatch, feature_ids, breaks, goes_on
):
    """Otherwise a peer could bring other ids into the remaining buckets of a part: more than it has room for."""
    monkeypatch.setattr(psi_malicious, "BUCKET_IDS", 50 if feature_ids == 400 else 200)
    label = Side(tmp_path, "label", LABEL[:120])
    feature = Side(tmp_path, "feature", [b"%d" % n for n in range(100, 100 + feature_ids)])
    outcomes = align(label, feature, "malicious", feature_wrap=lambda channel: Dying(channel, StoreSeed, bucket=breaks))
    assert all(isinstance(outcome, PeerLost | PeerStopped) for outcome in outcomes)
    outcomes = align(label, feature, "malicious")
    assert [len(outcome) for outcome in outcomes] == [20, 20]
    assert f"goes on: {goes_on} of " in label.said[0]


# After both have committed to tags.


class At(Tampering):
    """A channel that breaks before it sends a message for which ``here`` holds, or after it has received one."""

    def __init__(self, channel, here):
        super().__init__(channel, None, None)
        self._here = here

    def send(self, message):
        if self._here("sends", message):
            raise PeerLost("somebody", "killed")
        super().send(message)

    def receive(self, kind):
        message = super().receive(kind)
        if self._here("gets", message):
            raise PeerLost("somebody", "killed")
        return message


STEPS = {
    "before it settles": ("sends", TagsCommitment),
    "when the peer has settled": ("gets", TagsCommitment),
    "before it shows tags": ("sends", "{own} party's tags"),
    "when it has seen tags": ("gets", "{other} party's tags"),
    "before it opens": ("sends", Coin),
    "at the places": ("sends", PLACES),
}


def dying_at(step, own):
    """Wrap a party's channel so that it breaks at a step. A coin counts after a commitment to tags has crossed."""
    way, what = STEPS[step]
    if step == "at the places" and own == "feature":
        way = "gets"
    settled, other = [], {"label": "feature", "feature": "label"}[own]

    def here(which, message):
        settled.extend([1] if isinstance(message, TagsCommitment) else [])
        if isinstance(what, str):
            return which == way and getattr(message, "of", "") == what.format(own=own, other=other)
        return which == way and isinstance(message, what) and bool(settled)

    return lambda channel: At(channel, here)


@pytest.mark.parametrize(("step", "own"), short_lane_of(itertools.product(STEPS, ("label", "feature")), 3))
def test_a_side_that_was_killed_while_tags_crossed_goes_on_with_the_same(sides, own, step):
    outcomes = align(*sides, "malicious", **{f"{own}_wrap": dying_at(step, own)})
    assert isinstance(outcomes[["label", "feature"].index(own)], PeerLost)
    assert right(align(*sides, "malicious"))
    assert "goes on: 8 of 8 buckets are done on both sides" in sides[0].said[0]


@contextmanager
def other_tags(role):
    """Let one role, by the number of its thread, use random tags for half of its ids: it has chosen its matches."""
    tags = psi_malicious._tags

    def chosen(side, channel, size, *, leads):
        (label, feature), taken_up = tags(side, channel, size, leads=leads)
        if threading.current_thread().name == f"role {role}":
            own = label if leads else feature
            own[::2] = np.random.default_rng(5).integers(0, 256, own[::2].shape, dtype=np.uint8)
        return (label, feature), taken_up

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psi_malicious, "_tags", chosen)
        yield


@pytest.mark.parametrize(
    ("step", "own"), short_lane_of(itertools.product(("when it has seen tags", "at the places"), ("label", "feature")), 2)
)
def test_a_side_that_broke_off_when_it_knew_the_common_ids_cannot_show_other_tags(sides, own, step):
    """It has seen which ids both have, breaks off, and resumes with made-up tags for half of its ids."""
    align(*sides, "malicious", **{f"{own}_wrap": dying_at(step, own)})
    cheat = {"label": 0, "feature": 1}[own]
    with other_tags(cheat):
        honest = align(*sides, "malicious")[1 - cheat]
    assert isinstance(honest, ProtocolError)
    assert f"{own} committed to other tags than before the alignment was interrupted" in str(honest)
    assert "agree with all sides on a new run" in str(honest)


def lost_everything(side):
    forget_buckets(side.folder)


def lost_its_note(side):
    next((side.folder.path / "buckets").glob("*.json")).unlink()


def lost_a_bucket(side):
    side.files()[3].unlink()


def took_other_ids(side):
    side.ids = [*side.ids[:-1], b"another"]


def took_more_ids(side):
    side.ids = [*side.ids, b"another"]


@pytest.mark.parametrize(
    ("loses", "own"),
    short_lane_of(
        itertools.product([lost_everything, lost_its_note, lost_a_bucket, took_other_ids, took_more_ids], ("label", "feature")),
        2,
    ),
)
@pytest.mark.parametrize("guarded", [False, True], ids=["both follow the protocol", "the other alone"])
def test_no_alignment_begins_anew_once_a_side_has_seen_tags(sides, own, loses, guarded, monkeypatch):
    """This holds whatever a side claims to have lost. It could bring other ids, now that it knows the common ones."""
    align(*sides, "malicious", **{f"{own}_wrap": dying_at("when it has seen tags", own)})
    loser = {"label": 0, "feature": 1}[own]
    loses(sides[loser])
    if guarded:  # a peer that would go on: it omits its own check
        check = buckets._require_whole

        def none_of_its_own(channel, **facts):
            if threading.current_thread().name != f"role {loser}":
                check(channel, **facts)

        monkeypatch.setattr(buckets, "_require_whole", none_of_its_own)
    seen = []

    class Watching(Tampering):
        def send(self, message):
            seen.append(type(message))
            super().send(message)

    wrap = {f"{'feature' if own == 'label' else 'label'}_wrap": lambda channel: Watching(channel, None, None)}
    outcomes = align(*sides, "malicious", **wrap)
    assert isinstance(outcomes[1 - loser], DataError | ProtocolError | PeerStopped), outcomes
    assert isinstance(outcomes[loser], DataError | ProtocolError | PeerStopped)
    assert not {StoreSeed, CoinCommitment, Coin, TagsCommitment} & set(seen)
    if guarded and loses in (lost_everything, lost_its_note, lost_a_bucket):
        kept = 3 if loses is lost_a_bucket else "none"
        assert f"{own} has kept {kept} of 8 buckets of an alignment in which both had committed to tags" in str(
            outcomes[1 - loser]
        )


@pytest.mark.parametrize("own", ["label", "feature"])
def test_a_run_that_ended_is_not_aligned_anew(sides, own):
    """Its buckets are gone by then. A peer that knows the common ids claims to have lost its folder."""
    assert right(align(*sides, "malicious"))
    cheat = {"label": 0, "feature": 1}[own]
    forget_buckets(sides[1 - cheat].folder, notes=False)
    lost_everything(sides[cheat])
    honest = align(*sides, "malicious")[1 - cheat]
    assert isinstance(honest, ProtocolError)
    assert f"{own} has kept none of 8 buckets" in str(honest)


@pytest.mark.parametrize("claims", short_lane_of([lost_a_bucket, lost_its_note, lost_everything], 1))
def test_one_of_several_feature_parties_cannot_choose_its_matches_either(tmp_path, claims):
    """The label party is lost when it says where the joint rows are, and only to the first of two feature parties."""
    label, features = Side(tmp_path, "label", LABEL), [Side(tmp_path, name, FEATURE) for name in ("one", "two")]

    def run(wrap=lambda channel: channel):
        pairs = [memory_channels("label", name, timeout_s=60) for name in ("one", "two")]
        options = {"rng": RNG, "security": "malicious"}
        return in_threads(
            lambda: intersect_label_party(label.ids, [wrap(mine) for mine, _ in pairs], local=label.local, **options),
            *(
                lambda side=side, channel=channel: intersect_feature_party(
                    side.ids, channel, local=side.local, one_of_several=True, **options
                )
                for side, (_, channel) in zip(features, pairs, strict=True)
            ),
        )

    run(lambda channel: At(channel, lambda way, message: way == "sends" and isinstance(message, Proof) and channel.peer == "two"))
    with other_tags(1):
        ours, _, _ = run()
    assert isinstance(ours, ProtocolError)
    assert "one committed to other tags than before the alignment was interrupted" in str(ours)
    claims(features[0])
    ours, *_ = run()
    assert isinstance(ours, DataError | ProtocolError | PeerStopped)
    if claims is lost_a_bucket:
        assert isinstance(ours, ProtocolError)
        assert "one has kept 3 of 8 buckets" in str(ours)


@pytest.mark.parametrize("change", [-1, pytest.param(1, marks=pytest.mark.long)], ids=["repeated", "left out"])
def test_a_peer_that_repeats_or_leaves_out_a_bucket_is_refused(sides, way, change):
    class Skipping(Tampering):
        def send(self, message):
            if isinstance(message, BEGINS[way]) and message.bucket == 3:
                fields = {name: getattr(message, name) for name in type(message).__struct_fields__}
                message = type(message)(**fields | {"bucket": 3 + change})
            super().send(message)

    _, theirs = align(*sides, way, label_wrap=lambda channel: Skipping(channel, None, None))
    assert isinstance(theirs, ProtocolError)
    assert f"label began bucket {3 + change} of the alignment where bucket 3 is due" in str(theirs)
    assert len(sides[1].files()) == 3


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (Standing(alignment=b"", done=9, settled=False), "claims to have done 9 buckets of an alignment that has 8"),
        (Standing(alignment=bytes(17), done=0, settled=False), "broke the protocol"),
        (Standing(alignment=b"", done=-1, settled=False), "broke the protocol"),
    ],
)
def test_a_standing_out_of_range_is_refused(way, standing, words):
    def cheat(channel):
        send_size(channel, "ids", 300)
        channel.receive(Size)
        channel.send(standing)

    error = error_of(lambda channel: intersect_feature_party(FEATURE, channel, rng=RNG, **WAYS[way]), cheat)
    assert isinstance(error, ProtocolError)
    assert words in str(error)
    assert error.peer == "peer"


def test_a_place_that_only_fills_a_bucket_is_refused(sides):
    """Eight buckets have room for more places than the feature party has ids."""
    room = Buckets(label_ids=300, feature_ids=400, per_bucket=50).room(400)

    def every(places):
        return np.setdiff1d(np.arange(8 * room, dtype=np.int32), places)[: len(places)].astype(np.int32)

    _, theirs = align(*sides, "oblivious-transfer", label_wrap=lambda channel: Tampering(channel, PLACES, every))
    assert isinstance(theirs, ProtocolError)
    assert "at which this side has no id: they fill a bucket" in str(theirs)
