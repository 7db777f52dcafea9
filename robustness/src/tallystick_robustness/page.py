"""Show the results of the campaigns: a table per campaign, and every kind of failure with a command that repeats it."""

from collections.abc import Sequence
from typing import Annotated

from typer import Option

from tallystick.errors import ConfigError
from tallystick_experiments.grid import NOWHERE, Keeping, made_here
from tallystick_experiments.page import Benchmark, Cell, ExperimentResult, ResultTable
from tallystick_robustness.campaign import CAMPAIGNS, Figures, run_campaign
from tallystick_robustness.worker import WARM_CASES

COLUMNS = ("withstood", "refused", "accepted", "failed")


def faults(
    *,
    campaign: Annotated[str, Option(help=f"{', '.join(CAMPAIGNS)} or all.")] = "all",
    count: Annotated[
        int | None,
        Option(help=f"Cases; {' '.join(f'{name} {each.count:,},' for name, each in CAMPAIGNS.items())} if left out.", min=1),
    ] = None,
    seed: Annotated[int, Option(help="What the cases are drawn from.")] = 0,
    jobs: Annotated[int | None, Option(help="Cases at a time; one per core if left out.", min=1)] = None,
    case: Annotated[int | None, Option(help="Run this case alone, by its number.", min=0)] = None,
    keeping: Keeping = NOWHERE,
) -> ExperimentResult:
    """Run campaigns, and fail where a case did. Raises ConfigError for workers: a campaign has processes of its own."""
    if keeping.made is not made_here:
        raise ConfigError("--workers, --ray: a campaign makes its cases in processes of its own; use --jobs N")
    rows = run_campaign(campaign=campaign, count=count, seed=seed, jobs=jobs, case=case, keeping=keeping)
    failed = sum(figures["ended"].get("failed", 0) for figures in rows)
    failure_text = f"{failed} cases failed; the report of --out names each kind and how to see it again" if failed else ""
    return ExperimentResult(experiment="faults", about={"seed": seed}, rows=rows, page_of=faults_page, failed=failure_text)


def faults_page(about: Figures, rows: Sequence[Figures]) -> Benchmark:
    """Build the page of campaign.run()'s figures, with a row for each campaign."""
    tables = []
    for figures in rows:
        tables.append(_outcomes(figures["campaign"], figures))
        if figures["failures"]:
            tables.append(_failures(figures["campaign"], figures, about["seed"]))
    return Benchmark(
        title="Faults: what hostile peers, broken disks, kills and bad networks can do",
        tables=tables,
        notes=[note for figures in rows for note in _notes(figures["campaign"], figures)],
        seconds=sum(figures["seconds"] for figures in rows),
    )


def _outcomes(name: str, figures: Figures) -> ResultTable:
    slowest = max((counts["slowest_s"] for counts in figures["table"].values()), default=0.0)
    rows: list[list[Cell]] = []
    for what, counts in (*figures["table"].items(), ("all", {**figures["ended"], "slowest_s": slowest})):
        figures_shown = [counts.get(column, 0) for column in COLUMNS]
        rows.append([what, sum(figures_shown), *figures_shown, counts["slowest_s"]])
    columns = ["what was hit", "cases", *COLUMNS, "slowest, s"]
    return ResultTable(name=CAMPAIGNS[name].title, columns=columns, rows=rows, note=CAMPAIGNS[name].meaning)


def _failures(name: str, figures: Figures, seed: int) -> ResultTable:
    rows: list[list[Cell]] = []
    for failure, known in figures["failures"].items():
        first = known["examples"][0] if known["examples"] else {"case": "", "what": "", "how": ""}
        again = f"tallystick bench faults --campaign {name} --seed {seed} --case {first['case']}"
        rows.append([failure, known["cases"], f"{first['what']}: {first['how']}"[:160], again])
    columns = ["failure", "cases", "the first of them", "to see it again"]
    return ResultTable(name=f"{CAMPAIGNS[name].title}: what failed", columns=columns, rows=rows)


def _notes(name: str, figures: Figures) -> list[str]:
    sentences = [f"{figures['cases']:,} cases in {figures['seconds']:,.0f} s."]
    if "memory_mib" in figures:
        highest, most_grown = (figures["memory_mib"][each] for each in ("highest", "most_grown"))
        sentences.append(
            f"a worker held at most {highest:,} MiB, {most_grown:,} MiB more than after its first {WARM_CASES} cases."
        )
    numbers = {key.replace("_", " "): value for key, value in figures["facts"].items() if isinstance(value, int | float)}
    if numbers:
        sentences.append(", ".join(f"{key} {value:g}" for key, value in numbers.items()) + ".")
    examples = [example["detail"] for known in figures["failures"].values() for example in known["examples"]]
    return [f"{CAMPAIGNS[name].title}: {each}" for each in sentences] + (examples if figures["cases"] == 1 else [])
