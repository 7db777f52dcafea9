"""Jobs with an ensemble above the cut: what is trained and what crosses, on an intersection and on a union."""

import pytest
from safetensors.torch import load_file
from tiny import columns, contract_values, tables

from tallystick.simulation import Silent, simulate

PARTIES = ("bank", "shop")
QUICKLY = {"calibration_bins": 5, "bootstrap": 0, "own_columns_baseline": False}


def run(folder, **changes):
    values = contract_values(PARTIES, evaluation=QUICKLY, **changes)
    result = simulate(values, tables(PARTIES, rows=400), columns(PARTIES), watcher=Silent(), folder=folder)
    (path,) = (folder / "bank").glob("*/model.safetensors")
    return result, load_file(path)


def crossed(result):
    return {phase.party: (phase.bytes_sent, phase.messages) for phase in result.phases if phase.name == "training"}


@pytest.mark.parametrize("target", ["binary", "regression"])
def test_no_byte_more_crosses_than_with_a_single_network(target, tmp_path):
    """No message contains the time that an epoch took, so the counts are equal."""
    changes = {"target": {"type": target}, "training__epochs": 3}
    (single, one), (several, many) = (run(tmp_path / str(members), model__ensemble=members, **changes) for members in (1, 3))
    assert crossed(single) == crossed(several)
    assert one["top.layers.0.weight"].shape == (8, 16)
    assert many["top.first.weight"].shape == (3 * 4, 16)  # a quarter of 8, in multiples of four
    assert several.evaluation["joint"]


@pytest.mark.parametrize("labels", ["settled", "random-pred"])
def test_a_union_trains_an_ensemble(labels, tmp_path):
    """Absent labels are drawn from the mean of its logits, or by a copy of it that is trained first."""
    changes = {"alignment__method": "union", "union": {"labels": labels}, "training__epochs": 4}
    result, trained = run(tmp_path, model__ensemble=3, **changes)
    assert trained["top.output.weight"].shape[0] == 3
    assert result.evaluation["joint"]["auc"]["value"] > 0.6
