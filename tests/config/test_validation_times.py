"""How often in an epoch weights are compared: the values of auto, and what is refused and said."""

import pytest
from tiny import contract_values

from tallystick.config.contract import parse_contract
from tallystick.disclosure.training import validation_lines
from tallystick.errors import ConfigError

PARTIES = ("bank", "shop")
NOISE = {"method": "gaussian-embeddings", "clip": 1.0, "epsilon": 1.0, "delta": 1e-6}


def contract_of(**changes):
    return parse_contract(contract_values(PARTIES, **{"training__validations": "auto", **changes}))


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({}, 4),
        ({"training__mode": "pipelined"}, 1),
        ({"training__gradients": "none", "audit": False}, 4),
        ({"alignment__method": "union"}, 1),
        ({"defense": [NOISE]}, 1),
        ({"defense": [{"method": "quantized-embeddings", "levels": 5}]}, 1),
        ({"model__cut_width": 4}, 1),
        ({"model__cut_width": 8}, 4),  # as wide as the layer before it
        ({"training__validations": 4, "model__cut_width": 4}, 4),
        ({"training__validations": 3, "training__mode": "pipelined"}, 3),
        ({"training__validations": 2, "defense": [NOISE]}, 2),
    ],
)
def test_what_a_contract_comes_to(changes, times):
    contract = contract_of(**changes)
    assert contract.validations(contract.training) == times
    assert contract.validations(contract.training.resolved(1_000)) == times


def test_a_line_that_turns_out_long_has_one_and_a_long_epoch_two():
    contract = contract_of(training__mode="auto")
    settled = contract.training.resolved(1_000)
    modes = [settled.model_copy(update={"mode": mode}) for mode in ("synchronous", "pipelined")]
    assert [contract.validations(each) for each in modes] == [4, 1]
    assert [contract_of().validations(contract_of().training.resolved(rows)) for rows in (99 * 128, 99 * 128 + 1)] == [4, 2]


def test_they_need_validation_rows():
    with pytest.raises(ConfigError, match=r"training.validations = 2: split.validation is 0, .* leave it out"):
        contract_of(training__validations=2, split__validation=0.0)
    assert contract_of(split__validation=0.0).training.validations == "auto"


@pytest.mark.parametrize("times", [0, -1, 65, True, 1.5, "often"])
def test_another_number_is_refused(times):
    with pytest.raises(ConfigError, match=r"training\.validations"):
        contract_of(training__validations=times)


def test_more_than_one_is_disclosed():
    assert validation_lines(contract_of(training__validations=1)) == []
    assert validation_lines(contract_of(split__validation=0.0)) == []
    assert validation_lines(contract_of(training__gradients="none", audit=False)) == []
    (line,) = validation_lines(contract_of())
    assert "validation row up to 4 times in an epoch (training.validations)" in line
