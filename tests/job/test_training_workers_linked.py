"""Training workers with rows that are no intersection: the scores are those of one process."""

import pytest
from test_similarity_job import similar_columns, similar_tables, similarity_contract
from test_unaligned_job import contract as unaligned_contract
from test_unaligned_job import frames, own_columns
from test_union_job import PARTIES, union_contract
from tiny import columns, seed_system, tables

from tallystick.simulation import simulate

SIMULATED = {
    "union": (union_contract(union__features="gaussian"), lambda: tables(PARTIES, rows=300), columns(PARTIES)),
    "candidates": (similarity_contract(), similar_tables, similar_columns()),
    "unaligned rows": (unaligned_contract("average"), frames, own_columns()),
}


@pytest.mark.long
@pytest.mark.parametrize(("contract", "given", "own"), SIMULATED.values(), ids=SIMULATED)
def test_a_feature_party_trains_in_several_processes_to_the_same_scores(contract, given, own):
    found = []
    for workers in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            seed_system(patch)
            files = own | {"shop": own["shop"] | {"training_workers": workers}}
            found.append(simulate(contract, given(), files).evaluation["joint"]["auc"]["value"])
    assert found[0] == pytest.approx(found[1], abs=0.01)
