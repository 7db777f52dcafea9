"""Build the page of the measurements of serving."""

from collections.abc import Callable, Mapping, Sequence

from tallystick_experiments.page import Benchmark, ResultTable, Shown
from tallystick_experiments.speed.serving_clients import CLIENTS
from tallystick_experiments.stats import Row

AIMS_MS = {100: 15.0, 500: 25.0}


def serving_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Build a table for each part that was measured."""
    parts = {name: [row for row in rows if row["part"] == name] for name in TABLES}
    beside = {"far": " with a partner far away", "flood": " beside clients that ask and never read"}
    return Benchmark(
        title=f"Scores online{next((words for part, words in beside.items() if parts[part]), '')}, measured",
        tables=[
            ResultTable.of(title, parts[name], columns, note=note if isinstance(note, str) else note(parts[name][0]))
            for name, (title, columns, note) in TABLES.items()
            if parts[name]
        ],
        notes=[
            "hey has a worker for ten requests a second, and all workers ask in the same moment: at 500 a second 50 requests "
            "come at once. wrk asks from many connections at times that have nothing to do with each other.",
            "One process at a rate pauses between two scores, as a server does, and finds its caches full of others' data; "
            "without a pause it has them to itself.",
            "A partner is asked for every request that serve answers; its round trip, the journal of both sides and HTTP are "
            "part of what is measured.",
        ],
        facts={
            "rows of each table": f"{about['rows']:,}",
            "asked by": about["way"],
            "cores, for all processes and the client": str(about["cores"]),
            "load of the machine in the minute before": f"{about['load']:.1f}",
        },
    )


def _pace(row: Row) -> str:
    return f"{row['rate']} a second" if row["rate"] else "without a pause"


def _first_last_most(what: str) -> Shown:
    return lambda row: ", ".join(f"{row[f'{what}_{which}']:g}" for which in ("first", "last", "most"))


TIMES: Mapping[str, Shown] = {"p50, ms": "p50_ms", "p99, ms": "p99_ms"}
COUNTS: Mapping[str, Shown] = {"requests": "requests", "failed": "failed"}
HELD: Mapping[str, Shown] = {
    "process": "process",
    "minutes": "minutes",
    "MiB, first": "mib_first",
    "MiB, last": "mib_last",
    "MiB a minute": "mib_a_minute",
    "descriptors: first, last, most": _first_last_most("descriptors"),
    "threads: first, last, most": _first_last_most("threads"),
}
TABLES: Mapping[str, tuple[str, Mapping[str, Shown], str | Callable[[Row], str]]] = {
    "load": (
        "Times and CPU of a request",
        {
            "server": lambda row: f"{row['what']}, {row['rate']}/s, {CLIENTS[row['client']]} ({row['client']})",
            "requests a second": "per_second",
            "failed": "failed",
            **TIMES,
            "aim, p99, ms": lambda row: AIMS_MS.get(row["rate"]) if row["what"].startswith("serve") else None,
            "CPU of the label party, ms": "label_cpu_ms",
            "CPU of the feature party, ms": "feature_cpu_ms",
            "CPU together, ms": "cpu_ms",
        },
        "",
    ),
    "one process": ("The same network in one process", {"one row at a time": _pace, "CPU, ms": "cpu_ms"}, ""),
    "round trip": (
        "A bare round trip of the session",
        {"empty messages at random times": _pace, "CPU of both parties, ms": "cpu_ms"},
        "A request costs at least this, the scoring of one process at its pace, and a constant answer: what is asked of a "
        "partner for one row alone cannot cost less.",
    ),
    "faults": (
        "Faults under a load of 100 a second",
        {
            "fault": "fault",
            **COUNTS,
            **TIMES,
            "slowest, ms": "slowest_ms",
            "by own columns while it lasts": "alone",
            "seconds until joint scores are back": "back_s",
        },
        "The deadline of a request is 200 ms. Seconds count from the moment in which the fault is over: the partner's process "
        "goes on, or is started and has to load first.",
    ),
    "memory": (
        "What the processes hold",
        HELD,
        lambda row: (
            f"{row['requests']:,.0f} requests at 100 a second, {row['failed']:g} failed; the partner is restarted midway."
        ),
    ),
    "far whole": (
        "The whole time with a partner 80 ms away",
        {"minutes": "minutes", **COUNTS, "joint": "joint", **TIMES, "slowest, ms": "slowest_ms"},
        "",
    ),
    "far": (
        "A partner 80 ms away, in trouble every other minute",
        {
            "trouble": "fault",
            "seconds": "lasts_s",
            "joint while it lasts": "joint",
            "seconds until joint scores are back": "back_s",
            "joint from then on": "joint_afterwards",
        },
        "A row for each trouble, in their order; the deadline of a request is 400 ms, 20 requests come a second. A share is of "
        "the rows that are scored; own columns score the others.",
    ),
    "far held": ("What the processes hold with a partner 80 ms away", HELD, ""),
    "flood": (
        "480 connections without a token that ask and read nothing",
        {
            "an honest client": lambda row: row["what"] + (f", by {row['code']}" if "code" in row else ""),
            "descriptors, of 512": "descriptors",
            "MiB": "mib",
            **COUNTS,
            "joint": "joint",
            **TIMES,
        },
        "Each request of the honest client has a connection of its own. Descriptors and memory are the most that the label "
        "party's process held.",
    ),
}
"""By part: the table's name, its columns, and its note, or a function that makes the note from the first row."""
