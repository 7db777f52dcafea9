"""A side finds the alignment that it kept only for the same keys."""

import numpy as np

from tallystick.alignment.outcome import Alignment
from tallystick.serving.kept_alignment import FILE, KeptAlignment
from tallystick.storage import Origin


def test_an_alignment_is_found_again_for_the_same_keys_and_a_damaged_one_is_said(tmp_path):
    said = []

    def kept(keys):
        origin = Origin(folder=tmp_path, only="serving")
        return KeptAlignment(folder=tmp_path, origin=origin, keys=keys, say=said.append)

    uids_N16 = np.arange(48, dtype=np.uint8).reshape(3, 16)
    rows_N = np.array([1, -1, 0])
    assert kept("keys").load() is None
    kept("keys").save("name", Alignment(method="union", rows_N=rows_N, sizes={"own": 2}, learnt=["x"], uids_N16=uids_N16))
    name, found = kept("keys").load()
    assert (name, found.method, found.sizes, found.learnt) == ("name", "union", {"own": 2}, ["x"])
    assert found.rows_N.tolist() == [1, -1, 0]
    assert np.array_equal(found.uids_N16, uids_N16)
    assert kept("others").load() is None
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert kept("keys").load() is None
    assert "aligned anew" in said[-1]
