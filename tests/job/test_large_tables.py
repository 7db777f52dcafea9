"""A run whose table and encoded rows are in files has the bits of one that holds them in memory."""

import pytest
from lanes import short_lane_of
from tiny import columns, contract_values, seed_system, tables, weights

from tallystick import simulation
from tallystick.simulation import simulate
from tallystick.tables import columns as training_columns
from tallystick.tables import records
from tallystick.tables.lazy_table import store

PARTIES = ("bank", "shop")


def _run(folder, monkeypatch, **changes):
    seed_system(monkeypatch)  # a union has another order under other keys
    contract = contract_values(PARTIES, training__epochs=1, model__numeric="piecewise-linear", **changes)
    result = simulate(contract, tables(PARTIES, rows=500), columns(PARTIES), folder=folder, secret_seed=3)
    models = {path.relative_to(folder).parts[0]: weights(path) for path in folder.rglob("model.safetensors")}
    return result, models


@pytest.mark.parametrize("method", short_lane_of(["intersection", "union"], 1))
def test_wherever_rows_lie_a_run_has_the_same_bits(tmp_path, monkeypatch, method):
    held, held_models = _run(tmp_path / "held", monkeypatch, alignment__method=method)
    with monkeypatch.context() as patch:
        written = []
        patch.setattr(simulation, "as_frame", lambda table, **_: store(table.lazy()))
        patch.setattr(training_columns, "CELLS_HELD", 100)
        patch.setattr(records, "IN_MEMORY_BYTES", 0)
        patch.setattr(records, "PIECE_BYTES", 1)
        patch.setattr(records, "LEAST_ROWS", 100)
        mapped = records.mapped
        patch.setattr("tallystick.tables.encoder.mapped", lambda *args, **more: written.append(1) or mapped(*args, **more))
        in_files, models = _run(tmp_path / "files", monkeypatch, alignment__method=method)
    assert len(written) >= len(PARTIES)
    assert set(models) == {*PARTIES}
    assert models == held_models
    assert in_files.evaluation == held.evaluation
