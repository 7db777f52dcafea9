"""Screening in a job: noise columns are closed and named at home only, and the model is better for it."""

import numpy as np
import polars as pl
import pytest
import yaml
from tiny import columns, contract_values, tables

from tallystick.check import check_party_file
from tallystick.config.contract import parse_contract
from tallystick.errors import ConfigError
from tallystick.simulation import simulate

PARTIES = ("bank", "shop")
NOISE = 60


def frames_and_columns():
    """Make both parties' tables with a useful column; the shop's also has 60 columns of noise."""
    frames, given = tables(PARTIES, rows=900), columns(PARTIES)
    rng = np.random.default_rng(7)
    drawn = {f"noise {number}": rng.normal(size=frames["shop"].height) for number in range(NOISE)}
    frames["shop"] = frames["shop"].with_columns(**{name: pl.Series(values) for name, values in drawn.items()})
    given["shop"]["features"] = {"numeric": ["x", "noise", *drawn], "categorical": ["kind"]}
    return frames, given


def run(encoding=None, **changes):
    frames, given = frames_and_columns()
    if encoding is not None:
        given["shop"]["encoding"] = encoding
    return simulate(contract_values(PARTIES, **{"training__epochs": 8, "model__numeric": "plain", **changes}), frames, given)


def notes_of(result):
    return [note for note in result.sections.notes if note.startswith("Screening:")]


def test_columns_of_noise_are_closed_and_named():
    """With the contract's seeds 1 to 3 the AUC gains .040, .014 and .035. The bits of the first are always the same."""
    screened, whole = run(), run({"screening": "off"})
    (note,) = notes_of(screened)
    assert "of 63 own columns stay open" in note
    assert "'noise 1'" in note
    assert "'x'" not in note
    assert notes_of(whole) == []
    auc = [result.evaluation["joint"]["auc"]["value"] for result in (screened, whole)]
    assert auc[0] > auc[1] + 0.01


@pytest.mark.parametrize(
    ("changes", "feature", "label"),
    [
        ({}, True, True),
        ({"defense": [{"method": "marvell", "power": 4.0}]}, False, True),
        ({"training__gradients": "none"}, False, True),
        ({"alignment__method": "union", "union": {"features": "sampling"}}, False, False),
        ({"model__bottoms": {"shop": "own:Bottom"}}, False, True),
    ],
    ids=["plain", "defended", "no gradients", "union", "own bottom"],
)
def test_where_a_contract_lets_columns_be_screened(changes, feature, label):
    contract = parse_contract(contract_values(PARTIES, **changes))
    assert (contract.screens("shop"), contract.screens("bank")) == (feature, label)


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match=r"encoding\.screening"):
        run({"screening": "always"})


def test_check_says_what_it_discloses_to_a_feature_party_with_many_columns(lay_out_job):
    """With few columns nothing is said."""
    frames, given = frames_and_columns()
    home = lay_out_job(PARTIES, frames=frames).home("shop")
    said = []
    for features in (columns(PARTIES)["shop"]["features"], given["shop"]["features"]):
        values = yaml.safe_load((home / "party.yaml").read_text()) | {"features": features}
        (home / "party.yaml").write_text(yaml.safe_dump(values))
        said.append(" ".join(check_party_file(home / "party.yaml", home / "contract.yaml").get("encoding", [])))
    assert "screening" not in said[0]
    assert "encoding.screening = auto: of 63 columns" in said[1]
    assert "bank can tell how many columns are open" in said[1]
