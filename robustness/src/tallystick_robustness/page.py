"""What the campaigns found, as a page: a table per campaign, and every way to fail with how to see it again."""

from typing import Any

from tallystick_experiments.page import Benchmark, Cell, ResultTable

Figures = dict[str, Any]

TITLES = {
    "messages": "Mutated messages",
    "methods": "Mutated messages of similarity, importance, tuning and unaligned rows",
    "files": "Damaged files",
    "folders": "Swapped and damaged files of run folders",
    "kills": "Kills, then --resume",
    "network": "Network faults between two processes",
}
COLUMNS = ("withstood", "refused", "accepted", "failed")
_OF_MESSAGES = (
    "refused: an error of ours and nothing else. withstood: the change is none, and so is the result's. accepted: a message "
    "that the peer might as well have meant; in the decoder's rows, one that has its type's schema. failed: anything else, "
    "such as another exception, a malformed message that went unnoticed, weights that are not finite, words that drive a "
    "terminal."
)
MEANING = {
    "messages": _OF_MESSAGES,
    "methods": _OF_MESSAGES,
    "files": (
        "refused: an error of ours. withstood: to the bits of the undamaged run, prediction or total. accepted: a file that a "
        "person might as well have written. failed: anything else, such as another exception, other weights or scores without a "
        "word, or a run that ends over what `check` had passed."
    ),
    "folders": (
        "refused: an error of ours. withstood: to the undisturbed run's weights, or its scores, as the file is not read by this "
        "command, is made again, or an earlier step serves. failed: anything else, such as a file that is used silently."
    ),
    "kills": (
        "withstood: after the --resume (or new start) that the surviving side advised both sides' weights are the undisturbed "
        "run's, bit for bit; every process that was not killed ended in time with one clean line. slowest: seconds from the "
        "death to the other side's exit, or of the whole case."
    ),
    "network": (
        "withstood: ridden out, to the undisturbed run's weights. refused: both sides ended in time, each with one clean line; "
        "only faults that leave no way may. slowest: seconds from the fault to the last exit."
    ),
}


def page_of(found: Figures, *, command: str) -> Benchmark:
    """Give the page of what campaign.run() found."""
    campaigns = found["campaigns"]
    tables = []
    for name, figures in campaigns.items():
        tables.append(_outcomes(name, figures))
        if figures["failures"]:
            tables.append(_failures(name, figures, found["seed"]))
    return Benchmark(
        title="Faults: what hostile peers, broken disks, kills and bad networks can do",
        command=command,
        tables=tables,
        notes=[note for name, figures in campaigns.items() for note in _notes(name, figures)],
        seconds=sum(figures["seconds"] for figures in campaigns.values()),
    )


def _outcomes(name: str, figures: Figures) -> ResultTable:
    rows: list[list[Cell]] = []
    for what, counts in figures["table"].items():
        shown: list[Cell] = [counts.get(column, 0) for column in COLUMNS]
        rows.append([what, sum(counts.get(column, 0) for column in COLUMNS), *shown, counts["slowest_s"]])
    total: list[Cell] = [figures["ended"].get(column, 0) for column in COLUMNS]
    slowest = max((counts["slowest_s"] for counts in figures["table"].values()), default=0.0)
    rows.append(["all", figures["cases"], *total, slowest])
    columns = ["what was hit", "cases", *COLUMNS, "slowest, s"]
    return ResultTable(name=TITLES[name], columns=columns, rows=rows, note=MEANING[name])


def _failures(name: str, figures: Figures, seed: int) -> ResultTable:
    rows: list[list[Cell]] = []
    for failure, known in figures["failures"].items():
        first = known["examples"][0] if known["examples"] else {"case": "", "what": "", "how": ""}
        again = f"tallystick bench faults --campaign {name} --seed {seed} --case {first['case']}"
        rows.append([failure, known["cases"], f"{first['what']}: {first['how']}"[:160], again])
    columns = ["failure", "cases", "the first of them", "to see it again"]
    return ResultTable(name=f"{TITLES[name]}: what failed", columns=columns, rows=rows)


def _notes(name: str, figures: Figures) -> list[str]:
    notes = [f"{TITLES[name]}: {figures['cases']:,} cases in {figures['seconds']:,.0f} s."]
    if "memory_mib" in figures:
        memory = figures["memory_mib"]
        notes.append(
            f"{TITLES[name]}: a worker's resident memory was at most {memory['highest']:,} MiB, {memory['most_grown']:,} MiB "
            "more than after its first 200 cases."
        )
    if figures["cases"] == 1:
        notes += [example["detail"] for known in figures["failures"].values() for example in known["examples"]]
    plain = {key: value for key, value in figures["facts"].items() if isinstance(value, int | float)}
    if plain:
        notes.append(f"{TITLES[name]}: " + ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in plain.items()) + ".")
    return notes
