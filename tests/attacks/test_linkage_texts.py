"""Attacks on text keys: each names what can be named, and nothing if the view shows nothing."""

import numpy as np
import pytest

from tallystick.alignment.federal import grams, text_filters
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.terms import DimensionConfig, SimilarityConfig
from tallystick.attacks.linkage.texts import (
    TEXT_ATTACKS,
    FeaturePartyTexts,
    FilterGraph,
    HelperTexts,
    LabelPartyTexts,
    evaluate_texts,
)
from tallystick.attacks.linkage.view import DistanceModel
from tallystick.audit.named_keys import grams_behind, texts_named_by_helper
from tallystick.errors import ConfigError
from tallystick.network.channel import no_progress

SYLLABLES = ("ka", "lo", "mi", "ren", "ta", "sul", "do", "ver", "ni", "pa", "gro", "he", "bri", "zu", "wal", "ste")


def names(count, *, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    while len(found) < count:
        found["".join(rng.choice(SYLLABLES, rng.integers(3, 6)))] = None
    return tuple(found)


TERMS = SimilarityConfig(dimensions=(DimensionConfig(name="name", kind="text"),), neighbors=4, text_bits=2048, hashes=15)


def test_a_helper_that_knows_no_key_names_filters():
    keys = SimilarKeys(numbers_RD=np.empty((300, 0)), texts=(names(300),))
    (found,) = texts_named_by_helper(keys, TERMS, party="bank", helper="helper", progress=no_progress)
    assert (found.name, found.attacker, found.located) == ("filter-graph", "helper", "bank")
    assert found.named == 300
    assert found.right > 0.9
    assert found.low < found.right
    assert found.chance == pytest.approx(1 / 300)


def view_of(filters, listed):
    """Return the helper's view of filters, with a list that may have more texts than these."""
    vocabulary = sorted({gram for text in listed for gram in grams(text, TERMS.gram)})
    has_SG = np.array([[gram in grams(text, TERMS.gram) for gram in vocabulary] for text in listed], dtype=np.float64)
    likeness_TT = grams_behind(filters, bits=TERMS.text_bits, hashes=TERMS.hashes)
    return HelperTexts(likeness_SS=has_SG @ has_SG.T, likeness_TT=likeness_TT)


@pytest.mark.parametrize("targets", [60, 200])
def test_a_list_with_many_more_texts_names_as_many(targets):
    listed = names(400)
    truth_T = np.random.default_rng(3).permutation(400)[:targets]
    (dimension,) = TERMS.dimensions
    filters = text_filters([listed[place] for place in truth_T], terms=TERMS, dimension=dimension, secret=bytes(32))
    assert evaluate_texts(view_of(filters, listed), truth_T)["filter-graph"].right > 0.9


@pytest.mark.parametrize("seed", [0, 3])
def test_few_filters_among_many_texts_are_named_by_the_start_that_fits(seed):
    listed = names(400)
    truth_T = np.random.default_rng(seed).permutation(400)[:25]
    (dimension,) = TERMS.dimensions
    filters = text_filters([listed[place] for place in truth_T], terms=TERMS, dimension=dimension, secret=bytes(32))
    assert evaluate_texts(view_of(filters, listed), truth_T)["filter-graph"].right > 0.9


@pytest.mark.parametrize(("targets", "listed"), [(1, 1), (1, 5), (2, 2), (3, 40)])
def test_very_few_filters_break_nothing(targets, listed):
    texts = names(listed)
    (dimension,) = TERMS.dimensions
    filters = text_filters(list(texts[:targets]), terms=TERMS, dimension=dimension, secret=bytes(32))
    guess_T = FilterGraph()(view_of(filters, texts))
    assert guess_T.shape == (targets,)
    assert ((guess_T >= 0) & (guess_T < listed)).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_numbers_beside_the_texts_change_nothing_that_filters_tell(count):
    numbers = tuple(DimensionConfig(name=f"number-{place}", kind="number", low=0.0, high=1.0) for place in range(count))
    terms = TERMS.model_copy(update={"dimensions": (*numbers, *TERMS.dimensions)})
    alone = SimilarKeys(numbers_RD=np.empty((60, 0)), texts=(names(60),))
    mixed = alone.with_numbers(np.random.default_rng(1).random((60, count)))
    found = [
        texts_named_by_helper(keys, each, party="bank", helper="helper", progress=no_progress)
        for keys, each in ((alone, TERMS), (mixed, terms))
    ]
    assert found[0] == found[1]


def test_filters_each_under_a_secret_of_their_own_tell_nothing():
    texts = names(120)
    (dimension,) = TERMS.dimensions
    filters = [text_filters([text], terms=TERMS, dimension=dimension, secret=bytes([row]) * 32) for row, text in enumerate(texts)]
    # 120 guesses, each right with a chance of about 1/120: more than 10 right ones have a chance below 1e-7.
    assert evaluate_texts(view_of(np.concatenate(filters), texts), np.arange(120))["filter-graph"].right < 10 / 120


def linked(*, told=True, seed=1):
    """Make rows and keys on a line instead of texts: own keys know how far they are from each listed one."""
    rng = np.random.default_rng(seed)
    own_N, listed_S = rng.random(200), np.sort(rng.random(50))
    distance_NS = np.abs(own_N[:, None] - listed_S)
    truth_T = rng.permutation(50)
    behind_NT = distance_NS[:, truth_T if told else rng.permutation(50)]
    return rng, distance_NS, truth_T, behind_NT


def test_similarities_name_a_key_through_noise_and_nothing_if_they_are_of_others():
    metric = DistanceModel(bits_per_unit_D=None, window=1.0, mean=-0.3, deviation=0.2, sigma=0.3)
    right = []
    for told in (True, False):
        rng, distance_NS, truth_T, behind_NT = linked(told=told)
        numbers_NK = np.argsort(behind_NT, axis=1)[:, :10]
        distance_NK = np.take_along_axis(behind_NT, numbers_NK, axis=1)
        view = LabelPartyTexts(
            targets=50,
            distance_NS=distance_NS,
            numbers_NK=numbers_NK,
            similarity_NK=metric.similarity(distance_NK, rng.normal(size=distance_NK.shape)),
            metric=metric,
        )
        right.append(evaluate_texts(view, truth_T)["similarity-fit"].right)
    # 50 keys on a line, separated by a third of the noise of a single similarity; by chance 12 right ones never happen.
    assert right[0] > 0.25
    assert right[1] < 12 / 50


def test_links_alone_name_a_row():
    _, distance_MS, truth_T, behind_MT = linked()
    numbers_TK = np.argsort(behind_MT, axis=0)[:8].T
    view = FeaturePartyTexts(distance_NS=distance_MS, numbers_TK=np.sort(numbers_TK))
    assert evaluate_texts(view, truth_T)["neighbor-fit"].right > 0.8


def test_every_seat_has_an_attack_and_settings_out_of_range_are_refused():
    assert {row.seat for row in TEXT_ATTACKS.values()} == {"helper", "label party", "feature party"}
    for wrong in ({"rounds": 0}, {"ridge": 0.0}):
        with pytest.raises(ConfigError, match="filter-graph attack"):
            FilterGraph(**wrong)
