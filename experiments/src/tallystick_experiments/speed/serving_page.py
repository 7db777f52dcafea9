"""The page of what serving was measured to do."""

from collections.abc import Mapping, Sequence

from tallystick_experiments.page import Benchmark, ResultTable, Shown
from tallystick_experiments.speed.serving_clients import CLIENTS
from tallystick_experiments.stats import Row

_TITLES = {
    "far": "Scores online with a partner far away, measured",
    "flood": "Scores online beside clients that ask and never read, measured",
}
AIMS_MS = {100: 15.0, 500: 25.0}


def page_of(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Build a table for each part that was measured."""
    parts = {name: [row for row in rows if row["part"] == name] for name in _TABLES}
    tables = [make(parts[name]) for name, make in _TABLES.items() if parts[name]]
    facts = {
        "rows of each table": f"{about['rows']:,}",
        "asked by": about["way"],
        "cores, for all processes and the client": str(about["cores"]),
        "load of the machine in the minute before": f"{about['load']:.1f}",
    }
    title = next((title for part, title in _TITLES.items() if parts[part]), "Scores online, measured")
    return Benchmark(title=title, tables=tables, notes=_NOTES, facts=facts)


_NOTES = (
    "hey has a worker for ten requests a second, and all workers ask in the same moment: at 500 a second 50 requests come at "
    "once. wrk asks from many connections at times that have nothing to do with each other.",
    "One process at a rate pauses between two scores, as a server does, and finds its caches full of others' data; without a "
    "pause it has them to itself.",
    "A partner is asked for every request that serve answers; its round trip, the journal of both sides and HTTP are part of "
    "what is measured.",
)


def _load(rows: Sequence[Row]) -> ResultTable:
    return ResultTable.of(
        "Times and CPU of a request",
        rows,
        {
            "server": lambda row: f"{row['what']}, {row['rate']}/s, {CLIENTS[row['client']]} ({row['client']})",
            "requests a second": "per_second",
            "failed": "failed",
            "p50, ms": "p50_ms",
            "p99, ms": "p99_ms",
            "aim, p99, ms": lambda row: AIMS_MS.get(row["rate"]) if row["what"].startswith("serve") else None,
            "CPU of the label party, ms": "label_cpu_ms",
            "CPU of the feature party, ms": "feature_cpu_ms",
            "CPU together, ms": "cpu_ms",
        },
    )


def _one_process(rows: Sequence[Row]) -> ResultTable:
    columns: Mapping[str, Shown] = {"one row at a time": _pace, "CPU, ms": "cpu_ms"}
    return ResultTable.of("The same network in one process", rows, columns)


def _round_trip(rows: Sequence[Row]) -> ResultTable:
    columns: Mapping[str, Shown] = {"empty messages at random times": _pace, "CPU of both parties, ms": "cpu_ms"}
    note = (
        "A request costs at least this, the scoring of one process at its pace, and a constant answer: what is asked of a "
        "partner for one row alone cannot cost less."
    )
    return ResultTable.of("A bare round trip of the session", rows, columns, note=note)


def _pace(row: Row) -> str:
    return f"{row['rate']} a second" if row["rate"] else "without a pause"


def _faults(rows: Sequence[Row]) -> ResultTable:
    return ResultTable.of(
        "Faults under a load of 100 a second",
        rows,
        {
            "fault": "fault",
            "requests": "requests",
            "failed": "failed",
            "p50, ms": "p50_ms",
            "p99, ms": "p99_ms",
            "slowest, ms": "slowest_ms",
            "by own columns while it lasts": "alone",
            "seconds until joint scores are back": "back_s",
        },
        note="The deadline of a request is 200 ms. Seconds count from the moment in which the fault is over: the partner's "
        "process goes on, or is started and has to load first.",
    )


def _far(rows: Sequence[Row]) -> ResultTable:
    return ResultTable.of(
        "A partner 80 ms away, in trouble every other minute",
        rows,
        {
            "trouble": "fault",
            "seconds": "lasts_s",
            "joint while it lasts": "joint",
            "seconds until joint scores are back": "back_s",
            "joint from then on": "joint_afterwards",
        },
        note="A row for each trouble, in their order; the deadline of a request is 400 ms, 20 requests come a second. A share is "
        "of the rows that are scored; own columns score the others.",
    )


def _far_whole(rows: Sequence[Row]) -> ResultTable:
    return ResultTable.of(
        "The whole time with a partner 80 ms away",
        rows,
        {
            "minutes": "minutes",
            "requests": "requests",
            "failed": "failed",
            "joint": "joint",
            "p50, ms": "p50_ms",
            "p99, ms": "p99_ms",
            "slowest, ms": "slowest_ms",
        },
    )


_HELD: Mapping[str, Shown] = {
    "process": "process",
    "minutes": "minutes",
    "MiB, first": "mib_first",
    "MiB, last": "mib_last",
    "MiB a minute": "mib_a_minute",
}


def _far_held(rows: Sequence[Row]) -> ResultTable:
    return ResultTable.of("What the processes hold with a partner 80 ms away", rows, {**_HELD, **_counts()})


def _flood(rows: Sequence[Row]) -> ResultTable:
    return ResultTable.of(
        "480 connections without a token that ask and read nothing",
        rows,
        {
            "an honest client": lambda row: row["what"] + (f", by {row['code']}" if "code" in row else ""),
            "descriptors, of 512": "descriptors",
            "MiB": "mib",
            "requests": "requests",
            "failed": "failed",
            "joint": "joint",
            "p50, ms": "p50_ms",
            "p99, ms": "p99_ms",
        },
        note="Each request of the honest client has a connection of its own. Descriptors and memory are the most that the label "
        "party's process held.",
    )


def _memory(rows: Sequence[Row]) -> ResultTable:
    return ResultTable.of(
        "What the processes hold",
        rows,
        {**_HELD, **_counts()},
        note=f"{rows[0]['requests']:,.0f} requests at 100 a second, {rows[0]['failed']:g} failed; the partner is restarted "
        "midway.",
    )


def _counts() -> Mapping[str, Shown]:
    return {
        "descriptors: first, last, most": _first_last_most("descriptors"),
        "threads: first, last, most": _first_last_most("threads"),
    }


def _first_last_most(what: str) -> Shown:
    return lambda row: ", ".join(f"{row[f'{what}_{which}']:g}" for which in ("first", "last", "most"))


_TABLES = {
    "load": _load,
    "one process": _one_process,
    "round trip": _round_trip,
    "faults": _faults,
    "memory": _memory,
    "far whole": _far_whole,
    "far": _far,
    "far held": _far_held,
    "flood": _flood,
}
