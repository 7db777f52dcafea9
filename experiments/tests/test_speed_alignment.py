"""The benchmark of alignment refuses wrong options before it starts a process."""

import socket
import sys

import pytest

from tallystick.errors import ConfigError
from tallystick_experiments.speed import alignment, secretflow
from tallystick_experiments.speed.slow_link import SlowLink


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rows": 10, "protocol": "guess"}, "expected one of intersection"),
        ({"rows": 10, "others": 1}, "expected both sides to share some"),
        (
            {"rows": 10, "peer": "spu", "peer_python": sys.executable, "peer_protocols": ["RR22", "RSA"]},
            "'RSA': expected some of RR22,KKRT,ECDH",
        ),
        ({"rows": 10, "peer": "spu", "peer_python": "/no/such/python"}, "pip install spu"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        alignment.measure_alignment(**options)


def test_a_python_without_spu_is_told_what_to_install():
    with pytest.raises(ConfigError, match=r"No module named .*FOLDER/bin/pip install spu.*--peer-python") as error:
        secretflow.check_peer(sys.executable, ["RR22"])
    assert "\n" not in str(error.value)


def test_tables_of_unequal_sizes_share_the_common_customers():
    for rows, others in ((10, 1000), (1000, 10)):
        job = {"rows": rows, "others": others, "common": 5, "keys": 1}
        label, feature = (set(alignment._table(name, job)["id"]) for name in (alignment.LABEL, alignment.FEATURE))
        assert (len(label), len(feature), len(label & feature)) == (rows, others, 5)


def test_a_slow_line_carries_every_byte_both_ways():
    sent = bytes(range(256)) * 1000
    with (
        SlowLink(mbit_per_s=1000, round_trip_ms=2).running() as link,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(("127.0.0.1", link.to(listener.getsockname()[1])), timeout=30) as caller,
        listener.accept()[0] as called,
    ):
        called.settimeout(30)
        caller.sendall(sent)
        caller.shutdown(socket.SHUT_WR)
        arrived = b"".join(iter(lambda: called.recv(1 << 16), b""))
        called.sendall(arrived[::-1])
        called.shutdown(socket.SHUT_WR)
        answered = b"".join(iter(lambda: caller.recv(1 << 16), b""))
    assert arrived == sent
    assert answered == sent[::-1]


@pytest.mark.long
def test_parties_of_an_alignment_over_a_slow_line_dial_the_line(monkeypatch):
    lines, to = [], SlowLink.to
    monkeypatch.setattr(SlowLink, "to", lambda link, port: lines.append(link) or to(link, port))
    alignment.measure_alignment(rows=200, protocol="union-with-helper", turns=1, link_mbit=100, link_ms=2)
    assert [(line.mbit_per_s, line.round_trip_ms) for line in lines] == [(100, 2)] * 2  # the helper and the label party listen
