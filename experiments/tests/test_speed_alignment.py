"""What the benchmark of alignment refuses, before it starts a process of its own."""

import sys

import pytest

from tallystick.errors import ConfigError
from tallystick_experiments.speed import alignment, secretflow


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rows": 10, "protocol": "guess"}, "expected one of intersection"),
        ({"rows": 10, "others": 1}, "expected both sides to share some"),
        (
            {"rows": 10, "peer_python": sys.executable, "peer_protocols": ["RR22", "RSA"]},
            "'RSA': expected some of RR22,KKRT,ECDH",
        ),
        ({"rows": 10, "peer_python": "/no/such/python"}, "pip install spu"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        alignment.run(**options)


def test_a_python_without_spu_is_told_what_to_install():
    with pytest.raises(ConfigError, match=r"No module named .*FOLDER/bin/pip install spu.*--peer-python") as error:
        secretflow.check_peer(sys.executable, ["RR22"])
    assert "\n" not in str(error.value)


def test_tables_of_unequal_sizes_share_the_common_customers():
    for rows, others in ((10, 1000), (1000, 10)):
        job = {"rows": rows, "others": others, "common": 5}
        label, feature = (set(alignment._ids(name, job)) for name in (alignment.LABEL, alignment.FEATURE))
        assert (len(label), len(feature), len(label & feature)) == (rows, others, 5)
