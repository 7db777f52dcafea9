"""Extend an encoder for a later training: old values keep their numbers and codes, and the old network's output stays."""

import numpy as np
import polars as pl
import pytest
import torch

from tallystick.config.party import parse_party
from tallystick.config.sections import NetworkModel
from tallystick.errors import FeatureError
from tallystick.models.build import build_label_model
from tallystick.models.growth import grown
from tallystick.tables.categories import UNSEEN
from tallystick.tables.encoder import Encoder
from tallystick.tables.extension import extended

FEATURES = {"numeric": ["x", "skewed", "full"], "categorical": ["kind", "city"]}


def party(tmp_path, **changes):
    values = {
        "party": "bank",
        "table": {"path": "t.parquet"},
        "keys": {"id": "id"},
        "features": FEATURES,
        "encoding": {"min_count": 1},
        "sequences": {"words": {"length": 3}},
    }
    return parse_party({**values, **changes}, folder=tmp_path, source="test")


def table(rows, *, kinds, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    x = scale * rng.normal(size=rows)
    return pl.DataFrame(
        {
            "x": np.where(rng.random(rows) < 0.1, np.nan, x),
            "skewed": np.exp(3 * x),
            "full": rng.normal(size=rows),
            "kind": rng.choice(kinds, size=rows),
            "city": rng.choice(["here", "there"], size=rows),
            "words": [list(rng.choice(kinds, size=rng.integers(0, 5))) for _ in range(rows)],
        }
    ).with_columns(pl.col("x").fill_nan(None))


OLD, NEW = [f"k{number}" for number in range(7)], [f"k{number}" for number in range(20)]  # beyond where auto widens embeddings


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return an encoder, the same for a later table with more categories and a wider range, and both tables."""
    then, now = table(1_500, kinds=OLD, seed=1), table(1_500, kinds=NEW, seed=2, scale=3.0)
    who = party(tmp_path_factory.mktemp("party"))
    before = Encoder.of_party(then, who, np.arange(then.height), numbers="auto")
    return before, extended(before, now, who, np.arange(1_000)), then, now


def same(one, other):
    return torch.equal(one.numeric_NF, other.numeric_NF) and torch.equal(one.categorical_NG, other.categorical_NG)


def test_what_was_known_keeps_its_numbers_and_codes(found):
    before, after, then, _ = found
    assert before.numbers == after.numbers == "piecewise-linear"
    assert same(before.encode(then).unpacked(), after.encode(then).unpacked())
    assert Encoder.from_json(after.to_json()) == after


def test_new_categories_get_codes_behind_the_old_ones_and_numbers_reach_further(found):
    before, after, _, now = found
    for place in (0, 1):
        old, new = before.categorical[place].categories, after.categorical[place].categories
        assert new[: len(old)] == old
    assert set(after.categorical[0].categories) == set(NEW)
    assert after.sequences[0].items[:7] == before.sequences[0].items
    codes_N = after.encode(now).unpacked().categorical_NG[:, 0]
    assert (codes_N == UNSEEN).sum() == 0 < (before.encode(now).unpacked().categorical_NG[:, 0] == UNSEEN).sum()
    # An oracle of the reach: the training rows' own extremes on the old scale; ranks end where they ended.
    column, later = before.numeric[0], after.numeric[0]
    assert later.high == pytest.approx((now["x"][:1000].max() - column.mean) / column.deviation, rel=1e-12)
    assert (after.numeric[1].transform, after.numeric[1].high) == ("rank", before.numeric[1].high)


@pytest.mark.parametrize("wide", [False, True])
def test_before_its_first_step_the_grown_network_says_what_the_old_one_said(found, wide):
    before, after, _, now = found
    model = NetworkModel(hidden=(8, 4), cut_after=1, wide=wide)
    old, new = (
        build_label_model(model, "bank", each.feature_shape, [3], outputs=1, seed=seed).eval()
        for each, seed in ((before, 1), (after, 2))
    )
    for weight in old.parameters():
        weight.data.normal_(generator=torch.Generator().manual_seed(weight.numel()))
    new.load_state_dict(grown(new, old.state_dict()))
    # Rows whose numbers the old encoder did not clip; new categories and items were unseen ones to it.
    inside = now.filter(pl.col("x").is_null() | pl.col("x").abs().le(2.0), pl.col("full").abs() <= 2.0)
    cut_BD = torch.randn(inside.height, 3, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        said, says = (each([cut_BD], enc.encode(inside).unpacked()) for each, enc in ((old, before), (new, after)))
    assert inside.height > 500
    assert torch.equal(said, says)


def test_a_network_of_ones_own_is_given_no_further_codes(found, tmp_path):
    before, _, _, now = found
    kept = extended(before, now, party(tmp_path), np.arange(1_000), grows=False)
    assert kept.feature_shape.tables == before.feature_shape.tables
    assert kept.numeric[0].high > before.numeric[0].high


def test_columns_that_are_new_are_left_out_and_said(found, tmp_path):
    before, _, _, now = found
    now = now.with_columns(more=pl.col("full") * 2, full=pl.when(pl.col("full") > 0).then(pl.col("full")))
    who = party(tmp_path, features={**FEATURES, "numeric": [*FEATURES["numeric"], "more"]})
    after = extended(before, now, who, np.arange(1_000))
    assert after.numeric_names == before.numeric_names
    assert any(note.startswith("column 'more' is left out") for note in after.notes)
    assert any(note.startswith("column 'full': some numbers are missing now") for note in after.notes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"features": {"numeric": ["x"], "categorical": ["kind", "city"]}}, "column 'skewed' is a numeric input"),
        ({"features": {**FEATURES, "categorical": ["kind"]}}, "column 'city' is a categorical input"),
        ({"sequences": {"words": {"length": 4}}}, "sequences.words: the run to start from read it in another way"),
    ],
)
def test_columns_that_are_gone_or_read_otherwise_are_refused(found, tmp_path, changes, said):
    before, _, _, now = found
    with pytest.raises(FeatureError, match=said):
        extended(before, now, party(tmp_path, **changes), np.arange(1_000))
