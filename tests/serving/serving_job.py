"""A tiny job that is trained once, and its parties as processes that serve."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import polars as pl
from tiny import PATIENCE_S

from tallystick.config.contract import load_contract
from tallystick.config.party import load_party
from tallystick.job.versions import Versions
from tallystick.network.addresses import free_port

TOKEN = "a-token-of-some-length"


def in_threads(job, work):
    """Return what each party's call returns, in a thread of its own."""
    with ThreadPoolExecutor(len(job.parties)) as pool:
        futures = {name: pool.submit(work, name) for name in job.parties}
        return {name: future.result(PATIENCE_S) for name, future in futures.items()}


def files(job, name):
    """Return a party's contract and party file."""
    return load_contract(job.home(name) / "contract.yaml"), load_party(job.home(name) / "party.yaml")


def versions(job, name):
    """Return a party's promotions."""
    contract, party = files(job, name)
    return Versions(contract=contract, party=party)


def promote(job, run_id, *names):
    """Promote a run, on all sides unless some are named."""
    for name in names or job.parties:
        versions(job, name).promote(run_id)


class Served:
    """Parties that serve a trained job."""

    def __init__(self, job, *, asks=None, host="127.0.0.1", **options):
        self.job, self.asks = job, asks or job.parties[0]
        self.port = free_port()
        (job.home(self.asks) / "tokens").write_text(f"{TOKEN}\n")
        job.change(self.asks, serving={"listen": f"{host}:{self.port}", "token_file": "tokens", "deadline_ms": 2000.0, **options})
        self.running = {}
        self.client = httpx.Client(
            base_url=f"http://{host}:{self.port}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20
        )

    def start(self, *parties):
        for name in parties or self.job.parties:
            self.running[name] = self.job.start(name, "serve", json=False)
        return self

    def until_ready(self, word="ready\n", seconds=60):
        """Wait until partners answer."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if self.client.get("/readyz").text == word:
                    return self
            except httpx.TransportError:
                pass
            said = [(name, process.said) for name, process in self.running.items() if process.process.exitcode is not None]
            assert not said, said
            time.sleep(0.05)
        raise AssertionError([(name, process.said, process.events[-5:]) for name, process in self.running.items()])

    def ask(self, *rows, **more):
        """Call POST /v1/score."""
        return self.client.post("/v1/score", json={"rows": list(rows), **more})

    def close(self):
        self.client.close()
        for process in self.job.started:
            process.close()


@contextmanager
def clients(served, count, ask):
    """Let so many clients call ``ask(client, number, over)`` at the same time, each until ``over`` is set, at the end
    of this block.
    """
    over = threading.Event()

    def work(number):
        with httpx.Client(base_url=served.client.base_url, headers=dict(served.client.headers), timeout=20) as client:
            ask(client, number, over)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def predicted(job, *, shared=False):
    """Return the scores that `predict` writes for all rows of the label party's table."""
    label = job.parties[0]
    both = ("--output", "scores.parquet") if shared else ()
    others = {name: job.start(name, "predict", *both) for name in job.parties[1:]}
    own = job.start(label, "predict", "--output", "scores.parquet")
    for name, process in {label: own, **others}.items():
        assert process.end() == 0, (name, process.said)
    return pl.read_parquet(job.home(label) / "scores.parquet")
