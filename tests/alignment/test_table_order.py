"""No message of an alignment depends on the order of a table: if one side's is permuted, the others get the same.

Each role draws from a seeded stream. If a permuted table gives the same bytes in the same messages for any stream, their
distribution is the same, too. Two attacks on row numbers and on membership, from the feature party's view, are the oracle.
"""

from collections import defaultdict
from functools import partial
from itertools import product

import numpy as np
import pytest
from lanes import short_lane_of
from scipy.stats import chisquare, spearmanr
from sklearn.metrics import roc_auc_score

from tallystick.alignment import psi_malicious, psi_oprf
from tallystick.alignment.exchange import Chunk
from tallystick.alignment.matching import match, sorted_order
from tallystick.alignment.oprf.codes import fingerprints
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.pairwise import LocalOptions
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.psu_helper import union_helper, union_with_helper_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.repeats import repeat_feature_party, repeat_label_party
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.similarity import link_feature_party, link_helper, link_label_party
from tallystick.alignment.terms import SimilarityConfig
from tallystick.network.channel import memory_channels
from tallystick.network.messages import encode

from .roles import RNG, Recording, in_threads

ONE = LocalOptions(threads=1)
NAMES = ("bank", "shop", "dairy")
IDS = {"bank": range(30), "shop": range(10, 50), "dairy": range(5, 35)}
PLACE = {"name": "lon", "unit": "degree", "low": 103.0, "high": 104.0}
SIMILAR = {"neighbors": 3, "deviation": 0.3, "failure": 0.3, "window": 0.02, "noise": {"tau": 0.5}}
NAME = {"name": "title", "kind": "text"}
TERMS = {
    "ranks": {"dimensions": [PLACE], **SIMILAR},
    "filters, left out where unlike": {"dimensions": [PLACE], "helper_sees": "filters", "least_similarity": 0.5, **SIMILAR},
    "in the clear": {"dimensions": [PLACE], "helper_sees": "clear", **SIMILAR, "noise": {}},
    "text in blocks": {"dimensions": [NAME], "block": 1, **SIMILAR, "noise": {}},
}


class Overheard:
    """A channel that keeps every message that it sends, as bytes, in ``sent[from, to]``."""

    def __init__(self, channel, own, sent):
        self._channel, self._own, self._sent, self.peer = channel, own, sent, channel.peer

    def send(self, message):
        self._sent[self._own, self.peer].append(bytes(encode(message)))
        self._channel.send(message)

    def receive(self, kind):
        return self._channel.receive(kind)


class Lines:
    """Make channels between all of some parties, and record what they send."""

    def __init__(self, parties):
        self.sent, self._ends = defaultdict(list), {}
        for first in parties:
            for second in parties:
                if first < second:
                    mine, theirs = memory_channels(first, second, timeout_s=30)
                    self._ends[first, second] = Overheard(mine, first, self.sent)
                    self._ends[second, first] = Overheard(theirs, second, self.sent)

    def __getitem__(self, ends):
        return self._ends[ends]


def intersection(tables, *, features=1, **options):
    names = NAMES[1 : 1 + features]
    lines = Lines(NAMES[: 1 + features])
    found = in_threads(
        lambda: intersect_label_party(tables["bank"], [lines["bank", name] for name in names], rng=RNG, local=ONE, **options),
        *(
            partial(
                intersect_feature_party,
                tables[name],
                lines[name, "bank"],
                rng=RNG,
                local=ONE,
                one_of_several=features > 1,
                **options,
            )
            for name in names
        ),
    )
    return lines.sent, found


def union(tables, **options):
    lines = Lines(NAMES[:2])
    found = in_threads(
        lambda: union_label_party(tables["bank"], lines["bank", "shop"], rng=RNG, threads=1, dummies=3, **options),
        lambda: union_feature_party(tables["shop"], lines["shop", "bank"], rng=RNG, threads=1, dummies=3, **options),
    )
    return lines.sent, found


def union_with_helper(tables):
    lines = Lines(("bank", "shop", "helper"))
    *found, _ = in_threads(
        lambda: union_with_helper_party(tables["bank"], lines["bank", "shop"], lines["bank", "helper"], rng=RNG, dummies=3),
        lambda: union_with_helper_party(tables["shop"], lines["shop", "bank"], lines["shop", "helper"], rng=RNG, dummies=3),
        lambda: union_helper(lines["helper", "bank"], lines["helper", "shop"], rng=RNG),
    )
    return lines.sent, found


PROTOCOLS = {
    "diffie-hellman": partial(intersection, protocol="diffie-hellman"),
    "diffie-hellman, two feature parties": partial(intersection, protocol="diffie-hellman", features=2),
    "oblivious transfer": partial(intersection, protocol="oblivious-transfer"),
    "oblivious transfer, two feature parties": partial(intersection, protocol="oblivious-transfer", features=2),
    "malicious": partial(intersection, security="malicious"),
    "malicious, two feature parties": partial(intersection, security="malicious", features=2),
    "union by Diffie-Hellman": partial(union, protocol="diffie-hellman"),
    "union by oblivious transfer": partial(union, protocol="oblivious-transfer"),
    "union with a helper": union_with_helper,
}
ORDERS = {
    "by key": lambda ids: sorted(ids),
    "by a label": lambda ids: sorted(ids, key=lambda each: (int(each.split(b"-")[1]) * 7919 % 3, each)),
}


def drawn_table(name):
    return [b"id-%d" % number for number in np.random.default_rng([4, *name.encode()]).permutation(IDS[name])]


def ids_at(tables, found):
    """Return the ids at each party's positions, None where it has none."""
    return [
        [tables[name][row] if row >= 0 else None for row in alignment.rows_N]
        for name, alignment in zip(NAMES, found, strict=False)
    ]


@pytest.mark.parametrize("protocol", short_lane_of(PROTOCOLS, 5))
def test_a_permuted_table_leaves_every_message_as_it_was(protocol, monkeypatch):
    monkeypatch.setattr(psi_oprf, "BUCKET_IDS", 25)
    monkeypatch.setattr(psi_malicious, "BUCKET_IDS", 25)
    align = PROTOCOLS[protocol]
    tables = {name: drawn_table(name) for name in NAMES}
    sent, found = align(tables)
    assert all(isinstance(alignment, Alignment) for alignment in found), found
    for name, order in product(NAMES[: len(found)], ORDERS.values()):
        permuted = {**tables, name: order(tables[name])}
        assert permuted[name] != tables[name]
        other_sent, other_found = align(permuted)
        assert {ends: list(map(len, messages)) for ends, messages in other_sent.items()} == {
            ends: list(map(len, messages)) for ends, messages in sent.items()
        }
        assert other_sent == sent
        assert ids_at(permuted, other_found) == ids_at(tables, found)


class ByRows(SecureRandom):
    """Draws the permutation that places the rows of a permuted table like those of the other table.

    A uniform permutation after any other is uniform. So equal messages by these draws mean that their distribution is equal.
    """

    def __init__(self, source, rows):
        super().__init__(source=source)
        object.__setattr__(self, "rows", rows)

    def permutation(self, count):
        drawn = super().permutation(count)
        return self.rows[drawn] if count == len(self.rows) else drawn


@pytest.mark.parametrize("terms", TERMS)
def test_a_permuted_table_leaves_every_message_of_a_linking_by_similar_keys(terms):
    """To the helper, which sees keys in an order, and to the other party, which sees links."""
    rng, terms = np.random.default_rng(3), SimilarityConfig.model_validate(TERMS[terms])
    keys = {name: rng.uniform(103.1, 103.9, (len(IDS[name]), 1)).round(1) for name in NAMES}  # equal ones among them

    def keys_of(name, row_N):
        numbers_RD = keys[name][row_N]
        if not terms.texts:
            return SimilarKeys(numbers_RD=numbers_RD)
        texts = [f"{'ab'[int(10 * number) % 2]} row of {number:.1f}" for number in numbers_RD[:, 0]]
        return SimilarKeys(numbers_RD=np.empty((len(texts), 0)), texts=(texts,))

    def link(permuted):
        lines = Lines((*NAMES, "helper"))
        rows = {name: np.arange(len(keys[name])) for name in NAMES}
        if permuted is not None:
            rows[permuted] = np.argsort(keys[permuted][:, 0], kind="stable")
        back = {name: np.argsort(rows[name]) for name in NAMES}
        given = {name: keys_of(name, rows[name]) for name in NAMES}
        rngs = {name: ByRows(RNG.source, back[name]) for name in NAMES}
        *found, _ = in_threads(
            lambda: link_label_party(
                given["bank"],
                [lines["bank", name] for name in NAMES[1:]],
                lines["bank", "helper"],
                terms=terms,
                rng=rngs["bank"],
            ),
            *(
                partial(
                    link_feature_party,
                    given[name],
                    lines[name, "bank"],
                    lines[name, "helper"],
                    name=name,
                    terms=terms,
                    rng=rngs[name],
                )
                for name in NAMES[1:]
            ),
            lambda: link_helper(lines["helper", "bank"], [lines["helper", name] for name in NAMES[1:]], terms=terms, rng=RNG),
        )
        assert all(isinstance(alignment, Alignment) for alignment in found), found
        return lines.sent

    before = link(None)
    for name in NAMES:
        assert link(name) == before


# --- what the feature party makes of its view


def sorted_by_label(rng):
    """Make a label party's table sorted by its labels, these labels, and a feature party's with most of its ids and others."""
    people = rng.permutation(2000)
    label_N = np.sort(rng.random(800) < 0.3)
    own = rng.permutation(np.concatenate((people[:640], people[800:1300])))
    return [b"id-%d" % each for each in people[:800]], label_N, [b"id-%d" % each for each in own]


class Remembering(SecureRandom):
    """Remembers the permutations that it drew, which are this side's own secrets."""

    def permutation(self, count):
        drawn = super().permutation(count)
        _DRAWN.append(drawn)
        return drawn


_DRAWN = []


class Both(Recording):
    """Keeps what was sent, too."""

    def send(self, message):
        if isinstance(message, Chunk):
            before = self.view.get("sent: " + message.of, np.empty((0, *message.rows.numpy().shape[1:]), dtype=np.uint8))
            self.view["sent: " + message.of] = np.concatenate((before, message.rows.numpy()))
        super().send(message)


def places_by_own_id(label_ids, own_ids):
    """Return where each own common id is in the label party's list, as an honest feature party computes it from its view."""
    _DRAWN.clear()
    mine, theirs = memory_channels("bank", "shop", timeout_s=60)
    view = Both(theirs)
    by_hand = Remembering(source=RNG.source)
    _, found = in_threads(
        lambda: intersect_label_party(label_ids, [mine], rng=RNG, protocol="diffie-hellman", local=ONE),
        lambda: intersect_feature_party(own_ids, view, rng=by_hand, protocol="diffie-hellman", local=ONE),
    )
    at_K, place_K = match(view.view["feature party's tags"], view.view["sent: label party's tags"])
    assert len(at_K) == len(found)
    own_K = sorted_order(fingerprints(own_ids))[_DRAWN[0]][at_K]
    return dict(zip(own_K.tolist(), place_K.tolist(), strict=True)), found


def test_an_honest_feature_party_cannot_tell_row_numbers_or_labels_by_places():
    """640 ids are common. A table in order gave every row number away, and every label of one sorted by its labels."""
    label_ids, label_N, own_ids = sorted_by_label(np.random.default_rng(5))
    place_of, found = places_by_own_id(label_ids, own_ids)
    row_of = {name: row for row, name in enumerate(label_ids)}
    own_K = np.sort(found.rows_N)
    place_K = np.array([place_of[own] for own in own_K])
    row_K = np.array([row_of[own_ids[own]] for own in own_K])
    # Deviations of a rank correlation and of an AUC by chance; beyond 5.5 of them with a chance of 4e-8.
    assert abs(spearmanr(place_K, row_K).statistic) * np.sqrt(len(own_K) - 1) < 5.5
    positives = int(label_N[row_K].sum())
    deviation = np.sqrt((len(own_K) + 1) / (12 * positives * (len(own_K) - positives)))
    assert abs(roc_auc_score(label_N[row_K], place_K) - 0.5) < 5.5 * deviation
    # Nor by places that follow the public hash, between which other ids could be counted.
    rank_K = np.argsort(sorted_order(fingerprints([own_ids[own] for own in own_K])))
    assert abs(spearmanr(place_K, rank_K).statistic) * np.sqrt(len(own_K) - 1) < 5.5


def test_the_place_of_a_row_beside_others_of_its_id_tells_nothing_of_it():
    """Two to six rows of each of 600 ids, in order of time, the last of which has the label. The place alone gave an AUC of 1."""
    rng = np.random.default_rng(6)
    id_R = np.sort(rng.permutation(np.repeat(np.arange(600), rng.integers(2, 7, 600))))
    label_R = np.append(id_R[1:] != id_R[:-1], True)
    ids_N = rng.permutation(600)[:500]
    aligned = Alignment(method="intersection", rows_N=ids_N, sizes={"intersection": 500}, learnt=[])
    label, feature = memory_channels("bank", "shop")
    bank = repeat_label_party(aligned, id_R, [label], rng=RNG)
    shop = repeat_feature_party(aligned, feature, max_rows=len(id_R))
    begins_N = np.flatnonzero(np.append(True, shop.rows_N[1:] != shop.rows_N[:-1]))
    count_N = np.diff(np.append(begins_N, len(shop)))
    within_N = np.arange(len(shop)) - np.repeat(begins_N, count_N)
    labels_N = label_R[bank.rows_N]
    assert labels_N.sum() == 500
    # The one label of an id is at each place of k with a chance of 1 / k: chi-square over places, by number of rows.
    for rows in range(2, 7):
        of_ids = np.repeat(count_N, count_N) == rows
        counted = np.bincount(within_N[of_ids & labels_N], minlength=rows)
        assert chisquare(counted).pvalue > 1e-7
