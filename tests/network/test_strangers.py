"""Callers who are nobody's peer: without a certificate, with one of another CA, with one that is no party's."""

import contextlib
import resource
import socket
from pathlib import Path

import pytest

from tallystick.network import tls

DESCRIPTORS = 1_024
STRANGERS = 1_500


@pytest.fixture
def many_descriptors():
    """This process may hold all the strangers' ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = STRANGERS + 1_000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this test needs {wanted} file descriptors; the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Strangers:
    """TCP connections that say nothing and hang up only when the other side has."""

    def __init__(self):
        self.held = []

    def call(self, port, *, within_s):
        """Try once more to be let in, or at least into the kernel's queue."""
        with contextlib.suppress(TimeoutError):
            self.held.append(socket.create_connection(("127.0.0.1", port), timeout=within_s))

    def close(self):
        for end in self.held:
            end.close()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can lower a running process's limits")
def test_many_strangers_while_it_trains_leave_a_job_its_descriptors(lay_out_job, many_descriptors):
    job = lay_out_job(training__epochs=10_000, training__checkpoint_every=20)
    running = job.start_all()
    bank = running["bank"]
    bank.phase("training")
    resource.prlimit(bank.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    port = int((job.home("bank") / "party.yaml").read_text().partition("listen: 127.0.0.1:")[2].split()[0])
    files = Path(f"/proc/{bank.process.pid}/fd")
    before = most = len(list(files.iterdir()))
    strangers = Strangers()
    try:
        while len(strangers.held) < STRANGERS and bank.process.is_alive():
            strangers.call(port, within_s=0.1)
            if len(strangers.held) % 20 == 0:
                most = max(most, len(list(files.iterdir())))
        assert len(strangers.held) == STRANGERS, bank.said
        done = max(event["done"] for event in bank.events if event.get("what") == "training")
        bank.wait_for(lambda event: event.get("what") == "training" and event["done"] > done + 60)  # and some checkpoints
        bank.process.terminate()
        assert bank.end() == 130, bank.said
        assert running["shop"].end() == 3
    finally:
        strangers.close()
    assert most <= before + tls.STRANGERS + 10  # files that a checkpoint opens
    assert not any("Traceback" in line for party in running.values() for line in party.said)
