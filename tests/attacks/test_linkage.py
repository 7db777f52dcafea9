"""Attacks on linking by similarity: each finds keys that can be found, and none finds any if the view shows nothing."""

import numpy as np
import pytest

from tallystick.attacks.linkage.attack_table import LINKAGE_ATTACKS
from tallystick.attacks.linkage.cells import Cells, NearestKeys
from tallystick.attacks.linkage.evaluate import evaluate_linkage, locate, measure_located
from tallystick.attacks.linkage.geometry import FilterGeometry
from tallystick.attacks.linkage.greedy import Greedy
from tallystick.attacks.linkage.trilateration import Trilateration
from tallystick.attacks.linkage.view import DistanceModel, FeaturePartyView, FiltersView, LabelPartyView, Located, RanksView
from tallystick.errors import ConfigError

UNIT = np.ones(2)


def linked(*, sigma=0.0, told=True, bits=None, seed=0, rows=(800, 60), neighbors=8):
    """Make a linkage of uniform places; with ``told`` false its links and similarities are of other places than the
    attacker's.
    """
    rng = np.random.default_rng(seed)
    own_ND, other_MD = (rng.random((count, 2)) for count in rows)
    blank = DistanceModel(bits_per_unit_D=bits, window=10.0, mean=0.0, deviation=1.0, sigma=0.0)
    behind_ND = own_ND if told else rng.permutation(own_ND)
    behind_MD = other_MD if told else rng.permutation(other_MD)
    distance_NM = blank.distance(behind_ND[:, None], behind_MD[None])
    numbers_NK = np.argsort(distance_NM, axis=1)[:, :neighbors]
    distance_NK = np.take_along_axis(distance_NM, numbers_NK, axis=1)
    mean, deviation = -float(distance_NK.mean()), float(distance_NK.std())
    metric = DistanceModel(bits_per_unit_D=bits, window=10.0, mean=mean, deviation=deviation, sigma=sigma)
    similarity_NK = metric.similarity(distance_NK, rng.normal(size=distance_NK.shape))
    label = LabelPartyView(metric=metric, own_ND=own_ND, numbers_NK=numbers_NK, similarity_NK=similarity_NK)
    feature = FeaturePartyView(metric=metric, own_MD=other_MD, numbers_NK=np.sort(numbers_NK))
    return own_ND, other_MD, label, feature


@pytest.mark.parametrize("bits", [None, np.array([1000.0, 1000.0])], ids=["euclidean", "hamming"])
def test_trilateration_averages_noise_out(bits):
    _, other_MD, label, _ = linked(sigma=0.3, bits=bits)
    found = evaluate_linkage(label, other_MD, UNIT)
    single = 0.3 * label.metric.deviation / (1 if bits is None else 1000)
    assert found["trilateration"].median < single
    assert found["trilateration"].median < 0.05 * found["trilateration"].chance
    assert found["trilateration"].median < found["greedy"].median / 2
    assert found["greedy"].median < 0.5 * found["greedy"].chance


def test_cells_find_the_place_that_a_set_of_neighbours_leaves():
    own_ND, _, _, feature = linked()
    found = evaluate_linkage(feature, own_ND, UNIT)
    assert set(found) == {"cells"}
    assert found["cells"].median < 0.1 * found["cells"].chance


@pytest.mark.long
def test_nothing_is_found_in_links_of_other_places():
    """Links among shuffled places: at most a third below a guess's median, which the middle of the map alone may reach."""
    own_ND, other_MD, label, feature = linked(told=False)
    for found in (evaluate_linkage(label, other_MD, UNIT), evaluate_linkage(feature, own_ND, UNIT)):
        for name, error in found.items():
            assert error.median > 0.6 * error.chance, name


def encoded(rows=150, *, seed=0, one_secret=True):
    """Ranks and shuffled filters of uniform places among uniform pivots; each row has its own pivots unless there is
    one secret.
    """
    rng = np.random.default_rng(seed)
    keys_TD, window, count = rng.random((rows, 2)), 0.1, 4000
    pivots = [[rng.uniform(-window, 1 + window, count) for _ in range(1 if one_secret else rows)] for _ in range(2)]
    inside = [
        np.stack([np.abs(pivots[d][row % len(pivots[d])] - keys_TD[row, d]) <= window for row in range(rows)]) for d in range(2)
    ]
    ranks = np.stack(
        [[(pivots[d][row % len(pivots[d])] < keys_TD[row, d] - window).sum() for row in range(rows)] for d in range(2)],
        axis=1,
    )
    ones = np.stack([bits.sum(axis=1) for bits in inside], axis=1)
    known = np.arange(10)
    by_ranks = RanksView(
        ranks_ND2=np.stack((ranks, ranks + ones), axis=2),
        low_D=np.full(2, -window),
        bits_D=np.full(2, float(count)),
        extent_D=np.full(2, 1 + 2 * window),
    )
    by_filters = FiltersView(filters=tuple(np.packbits(bits, axis=1) for bits in inside), known_T=known, known_TD=keys_TD[known])
    return keys_TD, by_ranks, by_filters


def test_a_helper_recovers_the_map_from_ranks_and_from_shuffled_filters():
    keys_TD, by_ranks, by_filters = encoded()
    found = evaluate_linkage(by_ranks, keys_TD, UNIT) | evaluate_linkage(by_filters, keys_TD, UNIT)
    assert found["rank-geometry"].median < 0.02
    assert found["filter-geometry"].median < 0.05
    assert found["filter-geometry"].placed == 140


def test_filters_under_secrets_of_their_own_give_no_map():
    keys_TD, _, view = encoded(one_secret=False)
    assert evaluate_linkage(view, keys_TD, UNIT) == {}


def test_every_attack_reads_only_the_view_of_its_seat():
    keys_TD, by_ranks, by_filters = encoded()
    _, _, label, feature = linked()
    seats = (
        (label, {"greedy", "trilateration"}),
        (feature, {"cells"}),
        (by_ranks, {"rank-geometry"}),
        (by_filters, {"filter-geometry"}),
    )
    for view, attacks in seats:
        assert {name for name, row in LINKAGE_ATTACKS.items() if isinstance(view, row.view)} == attacks
    nothing = Located(targets_T=np.empty(0, dtype=np.int64), place_TD=np.empty((0, 2)))
    assert measure_located("none", nothing, keys_TD, UNIT, rng=np.random.default_rng(0)) is None
    assert len(Greedy()(label, rng=np.random.default_rng(0)).targets_T) == 60


@pytest.mark.parametrize("make", [lambda: Trilateration(numbers=0), lambda: Cells(grid=5), lambda: FilterGeometry(keys=1)])
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(ConfigError, match="expected at least"):
        make()


# --- where similarity saturates


@pytest.mark.parametrize("places", [None, 4])
def test_nearest_keys_by_saturated_distances_equal_brute_force(places):
    """With only four places many keys tie, like readings of one station; ties go by number."""
    rng = np.random.default_rng(5)
    for dimensions in (1, 2, 3):
        keys_MD, points_GD = rng.random((40, dimensions)), rng.random((500, dimensions))
        if places is not None:
            keys_MD = np.floor(keys_MD * places) / places
        metric = DistanceModel(
            bits_per_unit_D=rng.uniform(500, 2000, dimensions), window=0.05, mean=0.0, deviation=1.0, sigma=0.0
        )
        wanted_GM = metric.distance(points_GD[:, None], keys_MD[None])
        found_GK = NearestKeys(keys_MD, metric, 6)(points_GD)
        by_distance_GK = np.argsort(wanted_GM, axis=1, kind="stable")[:, :6]
        assert (np.sort(found_GK, axis=1) == np.sort(by_distance_GK, axis=1)).all()


def test_a_place_beyond_saturation_is_marked_as_a_bound_and_the_others_are_found():
    """Keys are in one corner, rows everywhere: of a distant row only the distance can be known."""
    rng = np.random.default_rng(6)
    keys_MD, rows_ND = 0.3 * rng.random((60, 2)), rng.random((300, 2))
    metric = DistanceModel(bits_per_unit_D=np.full(2, 1000.0), window=0.1, mean=0.0, deviation=1.0, sigma=0.0)
    numbers_NK = np.argsort(metric.distance(rows_ND[:, None], keys_MD[None]), axis=1, kind="stable")[:, :5]
    view = FeaturePartyView(metric=metric, own_MD=keys_MD, numbers_NK=np.sort(numbers_NK))
    located = Cells(positions=120, grid=10_000)(view, rng=np.random.default_rng(0))
    far_T = (rows_ND[located.targets_T] > 0.5).any(axis=1)
    near_T = (rows_ND[located.targets_T] < 0.3).all(axis=1)
    assert located.bound_T[far_T].mean() > 0.8
    assert not located.bound_T[near_T].any()
    error_T = np.linalg.norm(located.place_TD - rows_ND[located.targets_T], axis=1)
    assert np.median(error_T[near_T]) < 0.03
    assert measure_located("cells", located, rows_ND, UNIT, rng=rng).bounds == int(located.bound_T.sum())


def test_attacks_tell_how_far_they_are():
    seen = []
    _, _, label, _ = linked(rows=(200, 20))
    locate(label, progress=lambda *moved: seen.append(moved))
    assert ("attack on links: trilateration", 19, 20) in seen
