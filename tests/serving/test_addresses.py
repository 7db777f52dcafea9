"""Where `serve` listens for clients: at an IPv6 address, and at one that is taken. Each test serves by itself."""

import socket

import pytest
from serving_job import Served

from tallystick.cli.output import EXIT_USAGE


def test_clients_are_answered_over_ipv6(trained):
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    job, scores = trained
    served = Served(job, host="[::1]", way="key").start()
    try:
        served.until_ready()
        for host in (f"[::1]:{served.port}", "[::1]", "localhost", "[2001:db8::7]:80", "two:one:many"):
            got = served.client.post("/v1/score", json={"rows": scores[:3].select("id").to_dicts()}, headers={"Host": host})
            assert [row["score"] for row in got.json()["scores"]] == scores["score"][:3].to_list(), host
        said = [*served.running["bank"].said, *map(str, served.running["bank"].events)]
        assert any(f"answering clients on http://[::1]:{served.port}/" in line for line in said), said
    finally:
        served.close()


def test_an_address_that_is_taken_is_one_line(trained):
    """Earlier this was a line of another library, with exit code 1."""
    job, _ = trained
    served = Served(job, way="key")
    try:
        with socket.create_server(("127.0.0.1", served.port)):
            bank = served.start("bank").running["bank"]
            assert bank.end() == EXIT_USAGE
        assert bank.error.startswith(
            f"error: serving.listen = 127.0.0.1:{served.port}: cannot listen there (Address already in use)"
        )
    finally:
        served.close()
