"""Measure the lower bound of a served request: a bare round trip of the parties' session, at the pace of requests.

In two processes over mutual TLS, one sends an empty message at random times and waits for an empty answer.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.demo.localhost import FEATURE, LABEL, PAIR, PartyContext, run_parties
from tallystick.network.line_speed import LineProbe, ProbeAnswer
from tallystick.storage import scratch_folder

TRIPS = 500


def round_trips(rates: Sequence[int]) -> dict[int, float]:
    """Measure CPU milliseconds of both sides together for a round trip, at each rate."""
    with scratch_folder() as folder:
        results = run_parties(Path(folder), serving_floor_party, PAIR, {"rates": list(rates)}, timeout_s=300).results
    return {rate: results[LABEL][place] + results[FEATURE][place] for place, rate in enumerate(rates)}


def serving_floor_party(stage: PartyContext, arguments: dict[str, Any]) -> list[float]:
    """Run one party's process."""
    (channel,) = stage.channels.values()
    rng, times = np.random.default_rng(0), []
    for rate in arguments["rates"]:
        began = time.process_time()
        for _ in range(TRIPS):
            if stage.name == LABEL:
                time.sleep(rng.exponential(1 / rate))
                channel.send(LineProbe(data=b""))
                channel.receive(ProbeAnswer)
            else:
                channel.receive(LineProbe)
                channel.send(ProbeAnswer())
        times.append(1000 * (time.process_time() - began) / TRIPS)
    return times
