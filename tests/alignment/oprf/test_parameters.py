"""Add up the chances that the sizes rest on: of code words, tables, outputs."""

from itertools import product
from math import lgamma, log

import numpy as np
import pytest
from scipy.stats import binom, poisson

from tallystick.alignment.buckets import Buckets
from tallystick.alignment.matching import TAG_BYTES
from tallystick.alignment.oprf.cuckoo import bins_per_region, place
from tallystick.alignment.psi_oprf import BUCKET_IDS, Shape
from tallystick.alignment.switching.network import Network
from tallystick.alignment.switching.programmed import Bins


def test_code_words_differ_in_128_places():
    """With 2^30 ids on either side, a code word meets the bins of three others: 2^63 pairs, each with a chance of 2^-98
    or less.
    """
    assert binom.logcdf(127, 512, 0.5) / log(2) < -98


@pytest.mark.parametrize("label", [1, 1000, 2**20, 2**30])
def test_a_wrong_match_has_a_chance_of_two_to_the_minus_forty(label):
    for feature in (1, 10**3, 2**20, 2**30):
        assert label * feature * 2.0 ** (-8 * Shape(label_ids=label, feature_ids=feature).output_bytes) <= 2.0**-40


MOST = 50_000_000
"""Ids of either side, for which the bounds below are computed."""
SIZES = [*range(1, 20), *np.unique(np.geomspace(20, MOST, 60).astype(int)).tolist()]


def test_no_size_of_two_lists_makes_a_wrong_match_of_an_intersection_likelier():
    """All outputs of a bucket against all ids of a table, over all buckets; and tags of 128 bits against tags."""
    for label in SIZES:
        for feature in SIZES:
            shape = Shape.of(Buckets(label_ids=label, feature_ids=feature, per_bucket=BUCKET_IDS))
            pairs = shape.buckets * shape.label_ids * shape.feature_ids
            assert pairs * 2.0 ** (-8 * shape.output_bytes) <= 2.0**-40
    assert MOST * MOST * 2.0 ** (-8 * TAG_BYTES) < 2.0**-76  # malicious, by Diffie-Hellman, and fingerprints


def test_a_union_takes_an_id_for_a_common_one_by_the_chance_that_is_stated():
    """Each place compares 64 bits, which are random except for common ids, and then 96 bits of a function of them."""
    for ids in SIZES:
        for programmed in (1, ids, MOST):
            if programmed < ids:
                continue
            bins = Bins(table_ids=ids, programmed_ids=programmed)
            chance = Network(least=bins.count).size * (2.0**-64 + 2.0**-96)
            assert chance < (2.0**-40 if ids <= 10**7 else 2.0**-37.9)
    assert (2 * MOST) ** 2 / 2 * 2.0**-128 < 2.0**-74  # two ids with one pseudonym


def test_no_store_of_a_union_overflows():
    for programmed in SIZES:
        for table in (1, 1000, programmed):
            if table > programmed:
                continue
            bins = Bins(table_ids=table, programmed_ids=programmed)
            widest = max(bins.spans(), key=lambda span: span.stop - span.start)
            mean, room = programmed * (widest.stop - widest.start) / bins.per_region, bins.store(widest).keys
            assert room == programmed or 3 * bins.pieces * poisson.sf(room, mean) < 2.0**-40


@pytest.mark.parametrize("ids", [1, 1000, 2**16, 2**18, 266_000, 10**6, MOST])
def test_a_table_has_no_fewer_bins_than_public_code_gives_it(ids):
    """yacl/utils/cuckoo_index.cc and cryptoTools' CuckooIndex for three hashes without a stash, from 512 ids on."""
    assert 3 * bins_per_region(ids) >= (40 + 256 + log(ids, 2)) / 240 * ids


def log_choose(n, k):
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def log_onto(ids, bins):
    """Return the logarithm of the number of ways to put ids into bins so that each holds two or more, by the recurrence on the
    last bin.
    """
    ways = [[0] * (ids + 1) for _ in range(bins + 1)]
    ways[0][0] = 1
    for b, i in product(range(1, bins + 1), range(1, ids + 1)):
        # The last id shares its bin with several others, or with exactly one.
        ways[b][i] = b * ways[b][i - 1] + (b * (i - 1) * ways[b - 1][i - 2] if i >= 2 else 0)
    return log(ways[bins][ids]) if ways[bins][ids] else -np.inf


@pytest.mark.parametrize("ids", [4, 10, 50, 300, 1000, 3000, 10_000, 2**20, 10**7])
def test_small_sets_find_bins(ids):
    """Sets of up to 24 ids with one bin fewer than ids, and two ids for each bin: every smallest obstacle is one of these."""
    per_region, total = bins_per_region(ids), 0.0
    onto = {(s, b): log_onto(s, b) for s in range(4, min(ids, 24) + 1) for b in range(1, s)}
    for s in range(4, min(ids, 24) + 1):
        for a in range(1, s - 2):
            for b in range(1, s - 1 - a):
                c = s - 1 - a - b
                bins = [x for x in (a, b, c) if x <= per_region]
                if len(bins) == 3 and c >= 1:
                    ways = sum(log_choose(per_region, x) + onto[s, x] for x in bins)
                    total += np.exp(log_choose(ids, s) + ways - 3 * s * log(per_region))
    assert total <= 2.0**-40


def test_no_table_of_many_is_missing():
    """600 tables of few ids, where large obstacles would be most likely. None is missing."""
    generator = np.random.default_rng(1)
    for ids in (200, 600, 2000):
        per_region = bins_per_region(ids)
        for _ in range(200):
            place(generator.integers(0, per_region, (3, ids), dtype=np.int32), per_region=per_region, generator=generator)
