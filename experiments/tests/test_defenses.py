"""bench defenses on a small batch: every defence is timed, and the closed form is the definition."""

import pytest

from tallystick.defenses.defense_table import DEFENSES, installed_methods
from tallystick_experiments.speed import defenses


@pytest.fixture(scope="module")
def found() -> dict:  # type: ignore[type-arg]
    return defenses.measure_defenses(rows=1_024, width=16, turns=1)


def test_every_method_has_a_case() -> None:
    assert {entry["method"] for entry, _ in defenses.CASES.values()} == {*DEFENSES, *installed_methods()}


@pytest.mark.long
def test_every_method_is_timed_beside_the_step(found: dict) -> None:  # type: ignore[type-arg]
    assert set(found["defenses"]) == set(defenses.CASES)
    for measured in found["defenses"].values():
        assert measured["ms_per_batch"] > 0
        assert measured["share_of_step"] == pytest.approx(measured["ms_per_batch"] / found["training_step_ms"])
    assert found["defenses"]["label-dp"]["applied"] == "once per run"


@pytest.mark.long
def test_the_closed_form_is_compared_with_the_definition(found: dict) -> None:  # type: ignore[type-arg]
    compared = found["distance_correlation"]
    assert set(compared["ms"]) == set(defenses.WAYS)
    assert compared["value_difference"] < 1e-3  # float32 on both sides
    assert compared["gradient_difference"] < 1e-2
    assert compared["time_ratio"] > 0


@pytest.mark.long
def test_peak_memory_is_that_of_a_fresh_process(found: dict) -> None:  # type: ignore[type-arg]
    """At 1,024 rows the definition needs some matrices of 4 MiB; the closed form no more than a few tiles of 2 MiB."""
    peaks = found["distance_correlation"]["peak_mib"]
    if peaks is None:
        pytest.skip("peak memory is measured on Linux only")
    assert peaks["matrix_product"] > 8
    assert 0 <= peaks["closed_form"] < peaks["matrix_product"]
