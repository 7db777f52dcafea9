"""Networks side by side (``training.folds``): their default number, what excludes them, what they disclose."""

import math

import numpy as np
import pytest
from tiny import contract_values

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.config.party_checks import check_party
from tallystick.config.sections import SplitConfig
from tallystick.disclosure.table import disclosure_lines
from tallystick.errors import ConfigError
from tallystick.tables.split import TEST, VALIDATION, folds_by_hash, split_by_hash

PARTIES = ("bank", "shop")
REFUSED = {
    "split.validation = 0": {"split__validation": 0.0},
    "split.method = time": {"split__method": "time"},
    "training.refit = true": {"training__refit": True},
    "training.starts = public": {"training__starts": "public"},
    "alignment.method = union": {"alignment__method": "union"},
    "unaligned.method = heuristic": {"unaligned": {"method": "heuristic"}},
    "defense.0.method = gaussian-embeddings": {
        "defense": [{"method": "gaussian-embeddings", "epsilon": 1.0, "delta": 1e-6, "clip": 1.0}]
    },
    "model.bottoms.shop": {"model__bottoms": {"shop": "own:Bottom"}},
    "model.top": {"model__top": "own:Top"},
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_folds_do_not_go_with(problem):
    with pytest.raises(ConfigError) as error:
        parse_contract(contract_values(PARTIES, training__folds=4, **REFUSED[problem]))
    assert f"training.folds = 4, {problem}" in str(error.value)
    left = parse_contract(contract_values(PARTIES, training__folds="auto", **REFUSED[problem]))
    assert left.folds(500) == 1
    assert not any("training.folds" in line for line in disclosure_lines(left, own_columns=None))


def test_by_itself_a_small_table_has_some():
    contract = parse_contract(contract_values(PARTIES, training__folds="auto"))
    assert [contract.folds(rows) for rows in (1, 199, 200, 1999, 2000)] == [1, 1, 4, 4, 1]
    (line,) = [line for line in disclosure_lines(contract, own_columns=None) if "training.folds" in line]
    assert "with 200 to 1,999 training rows (training.folds: auto)" in line
    asked = parse_contract(contract_values(PARTIES, training__folds=3))
    assert [asked.folds(rows) for rows in (1, 10**6)] == [3, 3]
    assert any("validation rows' labels too" in line for line in disclosure_lines(asked, own_columns=None))


@pytest.mark.parametrize("folds", [0, 17, 2.0, "many"])
def test_a_number_out_of_range_is_refused(folds):
    with pytest.raises(ConfigError, match=r"training\.folds"):
        parse_contract(contract_values(PARTIES, training__folds=folds))


def test_a_party_that_wants_several_processes_is_refused(tmp_path):
    contract = parse_contract(contract_values(PARTIES, training__folds=2))
    values = {"party": "shop", "table": {"path": "a.csv"}, "keys": {"id": "id"}, "training_workers": 2}
    party = parse_party(values | {"features": {"numeric": ["x"]}}, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"training_workers = 2: with training\.folds = 2 a party trains in one process"):
        check_party(contract, party, network=False, source="shop")


@pytest.mark.parametrize("validation", [0.05, 0.1, 0.4])
def test_fold_0_has_the_validation_rows_and_the_others_equal_shares(validation):
    rows, split = 40_000, SplitConfig(validation=validation, test=0.2)
    ids = [f"customer-{number}".encode() for number in range(rows)]
    parts_N = split_by_hash(ids, split, seed=5)
    fold_N = folds_by_hash(ids, split, count=4, seed=5)
    assert (fold_N[parts_N == VALIDATION] == 0).all()
    first = max(validation, 0.2)
    for fold, share in enumerate([first, *[(0.8 - first) / 3] * 3]):
        count = ((parts_N != TEST) & (fold_N == fold)).sum()
        # Six standard deviations of a binomial: chance of failing below 1e-8 for another seed or set of ids.
        assert abs(count - rows * share) < 6 * math.sqrt(rows * share * (1 - share))
    np.testing.assert_array_equal(folds_by_hash(ids[:100], split, count=4, seed=5), fold_N[:100])
