"""bench: the commands that measure seconds, bytes and memory, and one process beside two."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.errors import ConfigError
from tallystick_experiments.command import experiment, measurement

if TYPE_CHECKING:
    from tallystick.network.channel import Progress
    from tallystick_experiments.page import ExperimentResult

Figures = dict[str, Any]


@measurement
def training(
    scenario: Annotated[str, typer.Option(help="small, criteo or all.")] = "all",
    turns: Annotated[int | None, typer.Option(help="Repetitions; if left out, as many as the scenario needs.", min=1)] = None,
    unaligned: Annotated[
        str | None,
        typer.Option(help="Instead: an epoch beside four times as many unaligned rows, by this method, beside one without."),
    ] = None,
) -> Figures:
    """Steps per second over mutual TLS beside the same model in one process."""
    from tallystick_experiments.speed import training as benchmark

    if unaligned is not None:
        from tallystick_experiments.speed import unaligned as epochs

        if scenario not in ("all", "small"):
            raise ConfigError("--unaligned: goes by itself, with the scenario small; leave the others out")
        return epochs.run(method=unaligned, turns=turns)
    names = list(benchmark.SCENARIOS) if scenario == "all" else [scenario]
    found: dict[str, Any] = {}
    for name in names:
        measured = benchmark.run(scenario=name, turns=turns)
        found |= measured if name == names[0] else {name: measured}
    return found


@experiment
def serve(
    parts: Annotated[str, typer.Option(help="load, faults or memory, with commas between.")] = "load",
    rows: Annotated[int, typer.Option(help="Rows of each side's table.", min=1000)] = 20_000,
    seconds: Annotated[int, typer.Option(help="Length of each load.", min=2)] = 20,
    rates: Annotated[str, typer.Option(help="Requests a second, with commas between.")] = "100,500",
    way: Annotated[str, typer.Option(help="How the partner is asked: key, position, window or ahead.")] = "key",
    minutes: Annotated[float, typer.Option(help="Length of the part memory.", min=0.5)] = 20.0,
    *,
    progress: "Progress",
) -> "ExperimentResult":
    """Scores online under the load of hey and wrk: times, CPU per request, faults, memory."""
    from tallystick_experiments.speed import serving as benchmark

    wanted = [int(rate) for rate in rates.split(",") if rate.strip().isdecimal() and int(rate)]
    if not wanted:
        raise ConfigError(f"--rates {rates}: must be whole numbers above 0, with commas between")
    named = [part.strip() for part in parts.split(",")]
    if not set(named) <= set(benchmark.PARTS):
        raise ConfigError(f"--parts {parts}: must be of {', '.join(benchmark.PARTS)}, with commas between")
    return benchmark.run(parts=named, rows=rows, seconds=seconds, rates=wanted, way=way, minutes=minutes, progress=progress)


@measurement
def lossless(
    seed: Annotated[int, typer.Option(help="Seed of data and weights.")] = 1,
) -> Figures:
    """The largest difference of any weight between two processes and one, after 200 steps."""
    from tallystick_experiments.speed import lossless as benchmark

    return benchmark.run(seed=seed)


@measurement
def alignment(
    rows: Annotated[int, typer.Option(help="Rows of the label party.", min=1)] = 100_000,
    others: Annotated[int | None, typer.Option(help="Rows of the feature party; as many if left out.", min=1)] = None,
    protocol: Annotated[
        str, typer.Option(help="intersection, diffie-hellman, malicious, union or union-with-helper.")
    ] = "intersection",
    turns: Annotated[int | None, typer.Option(help="Repetitions; 3 if left out, 1 above 400,000 rows in all.", min=1)] = None,
    peer: Annotated[str | None, typer.Option(help="spu: SecretFlow's intersections in the same run, too.")] = None,
    peer_python: Annotated[str, typer.Option(help="The Python that has the peer installed.")] = sys.executable,
    peer_protocols: Annotated[str, typer.Option(help="Which of the peer's.")] = "RR22,KKRT,ECDH",
    link_mbit: Annotated[
        float | None, typer.Option(help="Mbit/s each way of a slow line between the parties; loopback if left out.", min=0.1)
    ] = None,
    link_ms: Annotated[float, typer.Option(help="Milliseconds of its round trip.", min=0)] = 0.0,
) -> Figures:
    """Seconds, processor time, bytes and memory of a private alignment, from tables to written alignments."""
    from tallystick_experiments.speed import alignment as benchmark

    if peer not in (None, "spu"):
        raise ConfigError(f"--peer = {peer!r}: expected spu")
    return benchmark.run(
        rows=rows,
        others=others,
        protocol=protocol,
        turns=turns,
        peer_python=None if peer is None else peer_python,
        peer_protocols=peer_protocols.split(","),
        link_mbit=link_mbit,
        link_ms=link_ms,
    )


@measurement
def linkage(
    rows: Annotated[int, typer.Option(help="Rows of the label party.", min=2)] = 141_000,
    others: Annotated[int, typer.Option(help="Rows of the feature party.", min=2)] = 28_000,
    neighbors: Annotated[int, typer.Option(help="Links of a row.", min=1)] = 100,
    sample: Annotated[int, typer.Option(help="Rows to check by brute force.", min=1)] = 1000,
    texts: Annotated[
        Path | None, typer.Option(help="Folder of dblp_acm and fodors_zagats: recall of true matches instead.")
    ] = None,
    places: Annotated[Path | None, typer.Option(help="Folder of FedSim's hdb: what attackers locate instead.")] = None,
) -> Figures:
    """Linking by similar keys: seconds and memory through a helper, recall of texts, and what attackers locate by noise."""
    if places is not None:
        from tallystick_experiments.fedsim.located import run as locate

        return locate(places, neighbors=neighbors)
    from tallystick_experiments.fedsim.linkage import linkage_speed, text_recall

    if texts is not None:
        return {"texts": text_recall(texts)}
    return linkage_speed(rows=rows, others=others, neighbors=neighbors, sample=sample)


@measurement
def memory(
    rows: Annotated[list[int] | None, typer.Option(help="Of the generated file; repeat it for bytes per row.", min=1000)] = None,
    leakage: Annotated[bool, typer.Option(help="Measure bench label-leakage, one epoch of one scenario.")] = True,
    job: Annotated[bool, typer.Option(help="Measure all parties of a run.")] = True,
    alignment: Annotated[str, typer.Option(help="Of the run: intersection, union or union-with-helper.")] = "intersection",
    aligned: Annotated[float, typer.Option(help="Share of rows that the run's feature party has; the others train too.")] = 1.0,
) -> Figures:
    """Peak memory of a Criteo-shaped file, generated, and bytes per row."""
    from tallystick_experiments.speed import memory as benchmark

    sizes = sorted(rows or [100_000, 400_000])
    return benchmark.run(sizes=sizes, leakage=leakage, job=job, alignment=alignment, aligned=aligned)


@measurement
def defenses(
    rows: Annotated[int, typer.Option(help="Rows of a batch.", min=2)] = 8_192,
    width: Annotated[int, typer.Option(help="Width of the cut.", min=1)] = 128,
    turns: Annotated[int, typer.Option(help="Repetitions; medians are shown.", min=1)] = 5,
) -> Figures:
    """Milliseconds per batch of every defence beside the training step, and distance correlation against its definition."""
    from tallystick_experiments.speed import defenses as benchmark

    return benchmark.run(rows=rows, width=width, turns=turns)
