"""Linking by similar keys through a helper, over channels, compared with brute force; bad keys, and a helper that cheats."""

import math
import re

import numpy as np
import pytest
from scipy.special import erf

from tallystick.alignment.distances import block_distance
from tallystick.alignment.encoding import encode_keys
from tallystick.alignment.federal import Pivots, text_bits, text_filters
from tallystick.alignment.nearest import PAD, rank_distance
from tallystick.alignment.psu_helper import HelperOutcome
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.similarity import Scale, link_feature_party, link_helper, link_label_party, seen_by_helper
from tallystick.alignment.similarity_noise import sigma_of_tau, smallest_tau
from tallystick.alignment.terms import SimilarityConfig
from tallystick.errors import DataError, PeerStopped, ProtocolError
from tallystick.network.channel import memory_channels

from .roles import Recording, Tampering, in_threads

RNG = SecureRandom(source=np.random.default_rng(1).bytes)
PLACES = [
    {"name": "lon", "unit": "degree", "low": 103.0, "high": 104.0, "metres": 111_320.0},
    {"name": "lat", "unit": "degree", "low": 1.0, "high": 1.5, "metres": 110_574.0},
]
SMALL = {"deviation": 0.3, "failure": 0.3, "window": 0.02}


def terms_of(dimensions=PLACES, neighbors=5, **values):
    return SimilarityConfig.model_validate({"dimensions": dimensions, "neighbors": neighbors, **SMALL, **values})


def places(rows, *, seed=1):
    return SimilarKeys(numbers_RD=np.random.default_rng(seed).uniform((103.1, 1.1), (103.9, 1.4), (rows, 2)))


def link(label_keys, feature_keys, terms, *, of_helper=lambda c: c, of_label=lambda c: c, label_terms=None, scales=None):
    """Run all three roles over channels in memory. Return what each returned or raised."""
    label_feature, feature_label = memory_channels("bank", "shop", timeout_s=3)
    label_helper, helper_label = memory_channels("bank", "helper", timeout_s=3)
    feature_helper, helper_feature = memory_channels("shop", "helper", timeout_s=3)
    return in_threads(
        lambda: link_label_party(
            label_keys, [label_feature], of_label(label_helper), terms=label_terms or terms, rng=RNG, scales=scales
        ),
        lambda: link_feature_party(feature_keys, feature_label, feature_helper, name="shop", terms=terms, rng=RNG),
        lambda: link_helper(of_helper(helper_label), [of_helper(helper_feature)], terms=terms, rng=RNG),
    )


def links_of(label, feature):
    """Return links between the two tables' own rows, {label row: its feature rows in the label party's order}."""
    own, other = label.candidates["shop"], feature.candidates["shop"]
    return {
        int(row): [int(other.own_rows[number]) for number in own.numbers_NK[position] if number != PAD]
        for position, row in enumerate(label.rows_N)
    }


# --- filters


def test_ranks_give_the_distances_of_true_filters_bit_for_bit():
    terms = terms_of(deviation=0.2, failure=0.2)
    values = np.random.default_rng(2).uniform(103, 104, 60)
    values[:4] = (103.0, 104.0, values[5], 103.5)
    pivots = Pivots.of(terms, terms.dimensions[0], b"secret")
    bits_NP = np.unpackbits(pivots.filters(values), axis=1).astype(bool)
    np.testing.assert_array_equal(
        bits_NP, (pivots.pivot_P >= values[:, None] - terms.window) & (pivots.pivot_P <= values[:, None] + terms.window)
    )
    ranks_ND2 = pivots.ranks(values)[:, None]
    np.testing.assert_array_equal(
        rank_distance(ranks_ND2[:, None], ranks_ND2[None], weights_D=np.ones(1)),
        (bits_NP[:, None] ^ bits_NP[None]).sum(axis=2),
    )


def test_a_filter_has_the_published_number_of_bits():
    house = {"name": "lon", "low": 0.0, "high": 2.0}
    assert terms_of([house], window=0.01, deviation=0.03, failure=0.03).pivots(terms_of([house]).dimensions[0]) == 8 * math.ceil(
        2 * 2.0 * math.log(1 / 0.03) / (0.01 * 0.03**2) / 8
    )
    assert text_bits(threshold=10, hashes=50, mean_grams=40.17, rate=0.03, failure=0.03) == 21_952


def test_text_filters_are_keyed_and_alike_texts_differ_in_few_bits():
    terms = terms_of([{"name": "title", "kind": "text"}])
    title = terms.dimensions[0]
    texts = ["command and conquer", "command and conquer 3", "farming simulator"]
    one, same, other = (text_filters(texts, terms=terms, dimension=title, secret=s) for s in (b"a", b"a", b"b"))
    np.testing.assert_array_equal(one, same)
    bits_NP = np.unpackbits(one, axis=1).astype(int)
    near, far = (np.abs(bits_NP[0] - bits_NP[row]).sum() for row in (1, 2))
    assert near < far / 3
    assert (one != other).mean() > 0.1


# --- the protocol


def brute_force(bank, shop, terms):
    """Return the distances of all pairs by true filters, or in the clear, weighted by dimension."""
    if terms.helper_sees == "clear":
        return block_distance(*(encode_keys(keys, terms, b"") for keys in (bank, shop)), terms, slice(0, len(bank)))
    encoded = [encode_keys(keys, terms.model_copy(update={"helper_sees": "filters"}), SECRET) for keys in (bank, shop)]
    return sum(
        dimension.weight
        * np.array([[int(np.unpackbits(a ^ b).sum()) for b in encoded[1].filters[name]] for a in encoded[0].filters[name]])
        for name, dimension in ((dimension.name, dimension) for dimension in terms.dimensions)
    )


def check_links(label, feature, distance_NM, neighbors):
    """Return the K nearest of every row, ties by number, with similarities that are standardised negative distances."""
    own, other = label.candidates["shop"], feature.candidates["shop"]
    by_number_NM = distance_NM[label.rows_N][:, other.own_rows]
    order_NK = np.argsort(by_number_NM, axis=1, kind="stable")[:, :neighbors]
    np.testing.assert_array_equal(own.numbers_NK, order_NK)
    np.testing.assert_array_equal(np.sort(own.numbers_NK, axis=1), other.numbers_NK)
    distance_NK = np.take_along_axis(by_number_NM, order_NK, axis=1)
    np.testing.assert_allclose(own.similarity_NK, (-distance_NK + distance_NK.mean()) / distance_NK.std(), rtol=1e-4, atol=1e-5)


@pytest.fixture
def known_secret(monkeypatch):
    monkeypatch.setattr("tallystick.alignment.similarity.agree_on_key", lambda *_: SECRET)


SECRET = bytes(range(32))
WORDS = [
    "annas bistro",
    "anna's bistro",
    "bistro anna",
    "harbour grill",
    "harbor grill",
    "the grill",
    "noodle bar",
    "noodles bar",
]
MIXED = [*PLACES, {"name": "title", "kind": "text", "weight": 0.5}]


@pytest.mark.parametrize("sees", ["ranks", "filters", "clear"])
@pytest.mark.parametrize("dimensions", [PLACES, MIXED], ids=["places", "places and text"])
def test_links_are_those_of_brute_force_over_true_filters(known_secret, sees, dimensions):
    terms = terms_of(dimensions, helper_sees=sees, text_bits=256, hashes=4)
    bank, shop = places(60), places(30, seed=2)
    if dimensions is MIXED:
        words = np.random.default_rng(3).choice(WORDS, 90)
        bank, shop = (
            SimilarKeys(numbers_RD=keys.numbers_RD, texts=(tuple(map(str, some)),))
            for keys, some in ((bank, words[:60]), (shop, words[60:]))
        )
    label, feature, helper = link(bank, shop, terms)
    assert isinstance(helper, HelperOutcome), helper
    check_links(label, feature, brute_force(bank, shop, terms), 5)
    assert sorted(label.rows_N) == list(range(60))
    assert (feature.rows_N == -1).all()
    assert sorted(feature.candidates["shop"].own_rows) == list(range(30))
    assert label.sizes == {"own": 60, "shop": 30, "intersection": 60}
    assert feature.sizes == {"own": 30, "bank": 60, "intersection": 60}


def test_equal_places_are_linked_in_order_of_their_numbers(known_secret):
    spots = places(6)
    bank, shop = (SimilarKeys(numbers_RD=spots.numbers_RD[np.arange(rows) % 6]) for rows in (30, 40))
    terms = terms_of(neighbors=9)
    label, feature, _ = link(bank, shop, terms)
    check_links(label, feature, brute_force(bank, shop, terms), 9)


def test_blocks_leave_pads_where_too_few_texts_begin_alike():
    terms = terms_of([{"name": "title", "kind": "text"}], neighbors=4, block=3, text_bits=256, hashes=4)
    bank = SimilarKeys(numbers_RD=np.empty((4, 0)), texts=(("anna one", "harbour two", "zebra", "annex"),))
    shop = SimilarKeys(numbers_RD=np.empty((6, 0)), texts=(("anna", "anna bar", "harbour", "ann", "noodles", "noodle bar"),))
    label, feature, _ = link(bank, shop, terms)
    found = {row: set(links) for row, links in links_of(label, feature).items()}
    assert found == {0: {0, 1, 3}, 1: {2}, 2: set(), 3: {0, 1, 3}}
    own = label.candidates["shop"]
    assert sorted((own.numbers_NK != PAD).sum(axis=1)) == [0, 1, 3, 3]
    assert not own.similarity_NK[own.numbers_NK == PAD].any()
    assert label.sizes["intersection"] == 3


def test_kept_links_are_those_of_highest_noisy_similarity():
    terms = terms_of(neighbors=20, keep=4, noise={"tau": 0.02})
    label, feature, _ = link(places(50), places(40, seed=2), terms)
    own = label.candidates["shop"]
    assert own.numbers_NK.shape == (50, 4)
    assert own.scale.sigma == pytest.approx(sigma_of_tau(0.02, own.scale.deviation))
    assert (np.diff(own.similarity_NK, axis=1) <= 0).all()
    np.testing.assert_array_equal(np.sort(own.numbers_NK, axis=1), feature.candidates["shop"].numbers_NK)


@pytest.mark.parametrize("noise", [{}, {"tau": 0.5}])
def test_of_one_row_a_feature_party_is_told_both_distances_to_the_bit(noise):
    """Mean and deviation cross. With one row and two links they reveal its distances, whatever noise is on similarities."""
    terms = terms_of(neighbors=2, helper_sees="clear", noise={**noise, "resolution": 1e-4} if noise else {})
    row, others = SimilarKeys(numbers_RD=np.array([[103.5, 1.25]])), places(40, seed=2)
    _, feature, _ = link(row, others, terms)
    scale = feature.candidates["shop"].scale
    told = sorted([-scale.mean - scale.deviation, -scale.mean + scale.deviation])
    true = np.sort(np.linalg.norm(others.numbers_RD - row.numbers_RD, axis=1))[:2]
    np.testing.assert_allclose(told, true, rtol=1e-12)
    assert any(f"The mean ({-scale.mean:.6g})" in line and "nearly give each distance" in line for line in feature.learnt)


def test_the_helper_sees_which_texts_begin_alike_and_says_so():
    terms = terms_of([{"name": "street", "kind": "text"}], neighbors=1, block=3)
    texts = (("alder 1", "alder 2", "birch 3"), ("alder 9", "birch 8", "cedar 7"))
    label, shop = (SimilarKeys(numbers_RD=np.empty((3, 0)), texts=(each,)) for each in texts)
    tags = [encode_keys(keys, terms, b"secret").blocks_N16.tobytes() for keys in (label, shop)]
    own, others = ([tag[start : start + 16] for start in (0, 16, 32)] for tag in tags)
    assert own[0] == own[1] == others[0]
    assert own[2] == others[1]
    assert len({*own, *others}) == 3
    *_, helper = link(label, shop, terms)
    assert "rows whose street has the same first 3 characters" in helper.learnt[0]
    assert "tags" not in seen_by_helper(terms_of())


def test_similarities_of_noisy_keys_are_not_called_exact():
    noise = {"keys": "planar-laplace", "epsilon": 1.0, "radius": 0.01}
    for given, said in (({}, "with exact similarities"), (noise, "with similarities of keys under noise")):
        label, *_ = link(places(9), places(9, seed=2), terms_of(neighbors=2, noise=given))
        assert any(said in line for line in label.learnt)


def test_noise_has_the_variance_that_tau_asks_for():
    terms = terms_of(neighbors=30, noise={"tau": 0.05})
    bank, shop = places(400), places(30, seed=2)
    label, _, _ = link(bank, shop, terms)
    exact, _, _ = link(bank, shop, terms_of(neighbors=30))
    scale = label.candidates["shop"].scale
    assert scale.sigma == pytest.approx(sigma_of_tau(0.05, scale.deviation))
    assert scale.sigma > 0.1
    # 12,000 links: the variance of all is 1 to within 5 standard deviations, sqrt(2 / 12000); chance of failing below 1e-6.
    assert label.candidates["shop"].similarity_NK.var() == pytest.approx(1, abs=5 * math.sqrt(2 / 12_000))
    assert exact.candidates["shop"].scale.sigma == 0


def test_new_rows_are_measured_by_the_scale_of_training(known_secret):
    terms = terms_of()
    label, _, _ = link(places(60), places(30, seed=2), terms)
    scale = label.candidates["shop"].scale
    one, _, _ = link(places(1, seed=9), places(30, seed=2), terms, scales={"shop": scale})
    assert one.candidates["shop"].scale == scale
    distance_NM = brute_force(places(1, seed=9), places(30, seed=2), terms)
    expected = (-np.sort(distance_NM, axis=1)[:, :5] - scale.mean) / scale.deviation
    np.testing.assert_allclose(one.candidates["shop"].similarity_NK, expected, rtol=1e-5)


def test_several_feature_parties_have_links_of_their_own():
    terms, bank = terms_of(), places(40)
    tables = {"shop": places(30, seed=2), "rail": places(20, seed=3)}
    ends = {name: (memory_channels("bank", name), memory_channels(name, "helper")) for name in tables}
    label_helper, helper_label = memory_channels("bank", "helper")

    def feature(name):
        return lambda: link_feature_party(tables[name], ends[name][0][1], ends[name][1][0], name=name, terms=terms, rng=RNG)

    label, shop, rail, helper = in_threads(
        lambda: link_label_party(bank, [ends[name][0][0] for name in tables], label_helper, terms=terms, rng=RNG),
        feature("shop"),
        feature("rail"),
        lambda: link_helper(helper_label, [ends[name][1][1] for name in tables], terms=terms, rng=RNG),
    )
    assert isinstance(helper, HelperOutcome), helper
    for name, found in (("shop", shop), ("rail", rail)):
        assert label.candidates[name].rows == len(tables[name])
        assert list(found.candidates) == [name]
        np.testing.assert_array_equal(np.sort(label.candidates[name].numbers_NK, axis=1), found.candidates[name].numbers_NK)


def test_the_helper_sees_neither_keys_nor_the_order_of_a_table(known_secret):
    seen = []

    def keep(channel):
        seen.append(Recording(channel))
        return seen[-1]

    bank = places(50)
    link(bank, places(30, seed=2), terms_of(), of_helper=keep)
    ranks_N22 = seen[0].view["ranks"].reshape(-1)[: 50 * 4 * 4].view(np.int32).reshape(50, 2, 2)
    expected = encode_keys(bank, terms_of(), SECRET).ranks_ND2
    assert not np.array_equal(ranks_N22, expected)  # equal by chance: 1 / 50!
    np.testing.assert_array_equal(np.sort(ranks_N22[:, 0, 0]), np.sort(expected[:, 0, 0]))
    assert set(seen[0].view) == {"ranks"}


# --- noise from tau


@pytest.mark.parametrize("deviation", [4.0, 300.0, 40_000.0])
@pytest.mark.parametrize("tau", [0.9, 0.3, 0.12])
def test_sigma_is_what_makes_the_greedy_attacker_hit_with_probability_tau(deviation, tau):
    sigma = sigma_of_tau(tau, deviation)
    error = deviation * sigma / math.sqrt(1 + sigma**2)  # of the posterior mean, in bits
    assert erf(0.5 / (math.sqrt(2) * error)) == pytest.approx(tau)


def test_the_papers_tau_of_house():
    # facts: sigma 4 gives 1.94e-5 where .4 gives 5.07e-5, which fits a deviation of some 21,200 bits.
    ratio = (4 / math.sqrt(17)) / (0.4 / math.sqrt(1.16))
    assert pytest.approx(ratio, rel=0.01) == 5.07e-5 / 1.94e-5
    deviation = 1 / (math.sqrt(8) * (1.94e-5 * math.sqrt(math.pi) / 2) * (4 / math.sqrt(17)))
    assert sigma_of_tau(1.94e-5, deviation) == pytest.approx(4, rel=0.01)
    assert sigma_of_tau(5.07e-5, deviation) == pytest.approx(0.4, rel=0.05)


def test_a_tau_that_is_not_feasible_names_the_smallest_that_is():
    least = smallest_tau(300.0)
    assert sigma_of_tau(least * 1.001, 300.0) > 10
    with pytest.raises(DataError, match=f"above {least:.4g}"):
        sigma_of_tau(least * 0.999, 300.0)
    found = link(places(50), places(40, seed=2), terms_of(noise={"tau": 1e-9}))
    for error in found:
        assert isinstance(error, DataError | PeerStopped), error
    assert sum("is not feasible" in str(error) and "it must be above" in str(error) for error in found) == 3


# --- bad input


def test_keys_of_another_kind_unit_or_number_of_dimensions_are_named():
    for other in (
        [{**PLACES[0], "unit": "metre"}, PLACES[1]],
        PLACES[:1],
        [PLACES[0], {"name": "lat", "kind": "text"}],
    ):
        label, feature, _ = link(places(20), places(20, seed=2), terms_of(), label_terms=terms_of(other))
        assert isinstance(feature, ProtocolError)
        assert "bank links by other keys" in str(feature)
        assert isinstance(label, ProtocolError)
        assert "shop links by other keys" in str(label)


def test_more_neighbours_than_the_other_side_has_rows_is_said_on_every_side():
    label, feature, helper = link(places(20), places(4, seed=2), terms_of(neighbors=5))
    assert isinstance(label, DataError)
    assert "neighbors = 5: shop has 4 rows" in str(label)
    assert isinstance(feature, DataError)
    assert "neighbors = 5: shop has 4 rows" in str(feature)
    # The helper, which has no key yet, is told which side and which key of the contract, and that resuming does not help.
    assert isinstance(helper, PeerStopped)
    assert helper.final
    assert "alignment.similarity.neighbors = 5: shop has fewer rows to link to" in str(helper)


def test_keys_that_are_all_equal_tell_nothing_and_are_refused():
    terms = terms_of([{"name": "title", "kind": "text"}], neighbors=2, text_bits=256, hashes=4)
    same = SimilarKeys(numbers_RD=np.empty((5, 0)), texts=(("one",) * 5,))
    for error in link(same, same, terms):
        assert isinstance(error, DataError), error
        assert "all have the same distance" in str(error)


@pytest.mark.parametrize(
    ("sees", "said"), [("ranks", "not among the same pivots"), ("filters", "set the same bits no more often than by chance")]
)
def test_the_helper_tells_that_secrets_differ(monkeypatch, sees, said):
    monkeypatch.setattr("tallystick.alignment.similarity.agree_on_key", lambda channel, _: channel.peer.encode())
    _, _, helper = link(places(80), places(80, seed=2), terms_of(helper_sees=sees))
    assert isinstance(helper, ProtocolError)
    assert said in str(helper)


def test_filters_of_another_size_are_refused(known_secret):
    _, _, helper = link(
        places(80), places(80, seed=2), terms_of(helper_sees="filters"), label_terms=terms_of(helper_sees="filters", window=0.04)
    )
    assert isinstance(helper, ProtocolError)
    assert "bank" in str(helper)


def change_links(change):
    """Change the list of links, which crosses in pieces, as int32."""

    def changed(pieces):
        flat = pieces.reshape(-1).view(np.int32).copy()
        change(flat)
        return flat.view(np.uint8).reshape(pieces.shape)

    return changed


def out_of_range(flat):
    flat[7] = 30


def repeated(flat):
    flat[1] = flat[0]


def pad_before(flat):
    flat[0] = PAD


def swapped(flat):
    flat[0], flat[1] = flat[1], flat[0]


def one_other(flat):
    flat[0] = next(number for number in range(30) if number not in flat[:5])


@pytest.mark.parametrize(
    ("change", "at", "said"),
    [
        (out_of_range, "label", "outside 0 to 29"),
        (out_of_range, "feature", "outside 0 to 29"),
        (repeated, "label", "repeat a number"),
        (repeated, "feature", "repeat a number|not in the order"),
        (pad_before, "label", "behind one that is none"),
        (swapped, "feature", "not in the order of their numbers"),
        (one_other, "label", "differ from those that it sent shop"),
    ],
)
def test_a_helper_that_sends_wrong_links_is_found(change, at, said):
    role = 0 if at == "label" else 1
    tampered = []

    def tamper(channel):
        tampered.append(channel)
        return Tampering(channel, "links", change_links(change)) if len(tampered) == role + 1 else channel

    found = link(places(40), places(30, seed=2), terms_of(), of_helper=tamper)
    assert isinstance(found[role], ProtocolError), found
    assert found[role].peer == "helper"
    assert re.search(said, str(found[role])), found[role]


@pytest.mark.parametrize(
    ("value", "said"), [(np.nan, "NaN, infinite or over"), (9.0, "not sorted"), (np.inf, "NaN, infinite or over")]
)
def test_a_helper_that_sends_wrong_similarities_is_found(value, said):
    def changed(pieces):
        flat = pieces.reshape(-1).view(np.float32).copy()
        flat[3] = value
        return flat.view(np.uint8).reshape(pieces.shape)

    found = link(places(40), places(30, seed=2), terms_of(), of_helper=lambda c: Tampering(c, "similarities", changed))
    assert isinstance(found[0], ProtocolError)
    assert said in str(found[0])


def test_a_helper_whose_scale_is_no_number_is_found():
    class Lying:
        def __init__(self, channel):
            self._channel, self.peer = channel, channel.peer

        def send(self, message):
            self._channel.send(Scale(mean=math.nan, deviation=1.0) if isinstance(message, Scale) else message)

        def receive(self, kind):
            return self._channel.receive(kind)

    found = link(places(40), places(30, seed=2), terms_of(), of_helper=Lying)
    assert isinstance(found[0], ProtocolError)
    assert "scale of similarities" in str(found[0])


# --- a least similarity


def alike(bank, shop, terms):
    """Return how alike all pairs are (N, M): Dice of all filters, weighted by dimension; in the clear the similarity
    defined there.
    """
    distance_NM = brute_force(bank, shop, terms)
    if terms.helper_sees == "clear":
        return 1 - distance_NM / (2 * terms.window + 2.0)
    encoded = [encode_keys(keys, terms.model_copy(update={"helper_sees": "filters"}), SECRET) for keys in (bank, shop)]
    ones_N, ones_M = (
        sum(d.weight * np.unpackbits(side.filters[d.name], axis=1).sum(axis=1) for d in terms.dimensions) for side in encoded
    )
    return 1 - distance_NM / (ones_N[:, None] + ones_M)


@pytest.mark.parametrize("sees", ["ranks", "filters", "clear"])
@pytest.mark.parametrize("least", [0.3, 0.8, 1.0])
@pytest.mark.usefixtures("known_secret")
def test_links_that_are_less_alike_are_left_out(sees, least):
    rng = np.random.default_rng(4)
    cities = ["berlin", "berlim", "bern", "paris", "parys", "rome", "roma"]
    sides = [
        SimilarKeys(numbers_RD=rng.integers(0, 4, (rows, 1)) * 0.01 + 1.2, texts=(tuple(rng.choice(cities, rows).tolist()),))
        for rows in (12, 40)
    ]
    dimensions = [{**PLACES[1]}, {"name": "city", "kind": "text", "weight": 2.0}]
    terms = terms_of(dimensions, helper_sees=sees, least_similarity=least, text_bits=256)
    label, feature, helper = link(*sides, terms)
    assert isinstance(helper, HelperOutcome)
    every = links_of(*link(*sides, terms.model_copy(update={"least_similarity": None}))[:2])
    alike_NM = alike(*sides, terms)
    found = links_of(label, feature)
    numbers = {row: {other for other in others if alike_NM[row, other] >= least - 1e-9} for row, others in every.items()}
    # which of equal ones are among the K depends on numbers
    ties = {row: np.sort(alike_NM[row])[-terms.neighbors] for row in every}
    for row, others in found.items():
        assert all(alike_NM[row, other] >= least - 1e-9 for other in others)
        assert len(others) == len(numbers[row]) == min(terms.neighbors, int((alike_NM[row] >= least - 1e-9).sum()))
        assert {other for other in others if alike_NM[row, other] > ties[row] + 1e-9} <= set(every[row])
    lost = sum(map(len, every.values())) - sum(map(len, found.values()))
    assert (lost > 0) is (least > 0.3)
    none = sum(not others for others in found.values())
    said = f"That the keys of every link are alike by {least:g} or more; {none} of this side's 12 rows have none."
    assert said in label.learnt
