"""The same protocols over mutual TLS: one network per role, each in a thread of its own."""

import pytest

from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.network.certificates import load_identity, write_test_certificates
from tallystick.network.endpoint import Endpoint
from tallystick.network.session import Limits

from .roles import RNG, in_threads

LABEL, FEATURE = [b"%d" % n for n in range(1500)], [b"%d" % n for n in range(600, 1800)]

ROLES = {
    "intersection": (
        lambda channel: intersect_label_party(LABEL, [channel], rng=RNG),
        lambda channel: intersect_feature_party(FEATURE, channel, rng=RNG),
    ),
    "intersection against cheaters": (
        lambda channel: intersect_label_party(LABEL, [channel], rng=RNG, security="malicious"),
        lambda channel: intersect_feature_party(FEATURE, channel, rng=RNG, security="malicious"),
    ),
    "union": (
        lambda channel: union_label_party(LABEL, channel, rng=RNG, protocol="oblivious-transfer"),
        lambda channel: union_feature_party(FEATURE, channel, rng=RNG, protocol="oblivious-transfer"),
    ),
}


@pytest.mark.parametrize("method", ROLES)
def test_rows_meet(tmp_path, method):
    write_test_certificates(tmp_path, ["label", "feature"])

    def network(name, listen):
        pem = {"ca": tmp_path / "ca.pem", "certificate": tmp_path / f"{name}.pem", "key": tmp_path / f"{name}.key"}
        return Endpoint(load_identity(name, **pem), limits=Limits(), listen=listen)

    label, feature = network("label", "127.0.0.1:0"), network("feature", None)
    address = f"127.0.0.1:{label.port}"

    def run(own, peer, address, role):
        try:
            return role(own.connect({peer: address})[peer])
        finally:
            own.close()

    ours, theirs = in_threads(
        lambda: run(label, "feature", None, ROLES[method][0]), lambda: run(feature, "label", address, ROLES[method][1])
    )
    both = (ours.rows_N >= 0) & (theirs.rows_N >= 0)
    assert both.sum() == 900
    assert [LABEL[row] for row in ours.rows_N[both]] == [FEATURE[row] for row in theirs.rows_N[both]]
    assert len(ours) == len(theirs) == (1800 if method == "union" else 900)
