"""The page of what serving was measured to do."""

from collections.abc import Sequence

from tallystick_experiments.page import Benchmark, Cell, ResultTable
from tallystick_experiments.speed.serving_clients import CLIENTS
from tallystick_experiments.stats import Row

AIMS_MS = {100: 15.0, 500: 25.0}


def page_of(about: Row, rows: Sequence[Row]) -> Benchmark:
    """A table for each part that was measured."""
    parts = {name: [row for row in rows if row["part"] == name] for name in _TABLES}
    tables = [make(parts[name]) for name, make in _TABLES.items() if parts[name]]
    facts = {
        "rows of each table": f"{about['rows']:,}",
        "asked by": about["way"],
        "cores, for all processes and the client": str(about["cores"]),
        "load of the machine in the minute before": f"{about['load']:.1f}",
    }
    return Benchmark(title="Scores online, measured", tables=tables, notes=_NOTES, facts=facts)


_NOTES = (
    "hey has a worker for ten requests a second, and all workers ask in the same moment: at 500 a second 50 requests come at "
    "once. wrk asks from many connections at times that have nothing to do with each other.",
    "One process at a rate pauses between two scores, as a server does, and finds its caches full of others' data; without a "
    "pause it has them to itself.",
    "A partner is asked for every request that serve answers; its round trip, the journal of both sides and HTTP are part of "
    "what is measured.",
)


def _load(rows: Sequence[Row]) -> ResultTable:
    cells: list[list[Cell]] = [
        [
            f"{row['what']}, {row['rate']}/s, {CLIENTS[row['client']]} ({row['client']})",
            row["per_second"],
            row["failed"],
            row["p50_ms"],
            row["p99_ms"],
            AIMS_MS.get(row["rate"]) if row["what"].startswith("serve") else None,
            row["label_cpu_ms"],
            row.get("feature_cpu_ms"),
            row["cpu_ms"],
        ]
        for row in rows
    ]
    columns = ["server", "requests a second", "failed", "p50, ms", "p99, ms", "aim, p99, ms"]
    return ResultTable(
        name="Times and CPU of a request",
        columns=[*columns, "CPU of the label party, ms", "CPU of the feature party, ms", "CPU together, ms"],
        rows=cells,
    )


def _one_process(rows: Sequence[Row]) -> ResultTable:
    cells: list[list[Cell]] = [[f"{row['rate']} a second" if row["rate"] else "without a pause", row["cpu_ms"]] for row in rows]
    return ResultTable(name="The same network in one process", columns=["one row at a time", "CPU, ms"], rows=cells)


def _round_trip(rows: Sequence[Row]) -> ResultTable:
    return ResultTable(
        name="A bare round trip of the session",
        columns=["empty messages at random times", "CPU of both parties, ms"],
        rows=[[f"{row['rate']} a second", row["cpu_ms"]] for row in rows],
        note="A request costs at least this, the scoring of one process at its pace, and a constant answer: what is asked of a "
        "partner for one row alone cannot cost less.",
    )


def _faults(rows: Sequence[Row]) -> ResultTable:
    cells: list[list[Cell]] = [
        [
            row["fault"],
            row["requests"],
            row["failed"],
            row["p50_ms"],
            row["p99_ms"],
            row["slowest_ms"],
            row["alone"],
            row["back_s"],
        ]
        for row in rows
    ]
    columns = ["fault", "requests", "failed", "p50, ms", "p99, ms", "slowest, ms"]
    return ResultTable(
        name="Faults under a load of 100 a second",
        columns=[*columns, "by own columns while it lasts", "seconds until joint scores are back"],
        rows=cells,
        note="The deadline of a request is 200 ms. Seconds count from the moment in which the fault is over: the partner's "
        "process goes on, or is started and has to load first.",
    )


def _memory(rows: Sequence[Row]) -> ResultTable:
    cells: list[list[Cell]] = [
        [
            row["process"],
            row["minutes"],
            row["mib_first"],
            row["mib_last"],
            row["mib_a_minute"],
            f"{row['descriptors_first']:g}, {row['descriptors_last']:g}, {row['descriptors_most']:g}",
            f"{row['threads_first']:g}, {row['threads_last']:g}, {row['threads_most']:g}",
        ]
        for row in rows
    ]
    columns = ["process", "minutes", "MiB, first", "MiB, last", "MiB a minute", "descriptors: first, last, most"]
    asked = f"{rows[0]['requests']:,.0f} requests at 100 a second, {rows[0]['failed']:g} failed; the partner is restarted midway."
    return ResultTable(name="What the processes hold", columns=[*columns, "threads: first, last, most"], rows=cells, note=asked)


_TABLES = {"load": _load, "one process": _one_process, "round trip": _round_trip, "faults": _faults, "memory": _memory}
