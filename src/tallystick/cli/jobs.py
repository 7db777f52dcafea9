"""Implement run, align, train, evaluate, predict, tune and others: this party's side of a job."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tallystick.cli.options import ContractPath, JsonFlag, PartyPath, RunName, StyleFlag, read_files
from tallystick.cli.output import ALIGN_LIBRARIES, LIBRARIES, finish, guarded
from tallystick.watcher import Style

if TYPE_CHECKING:
    from tallystick.results import Result
    from tallystick.run_folder.folder import RunFolder

ALIGN_LOADS = (*ALIGN_LIBRARIES, "tallystick.job.process", "tallystick.cli.watch", "tallystick.cli.leakage")
LOADS = (*LIBRARIES, *ALIGN_LOADS, "tallystick.job.run", "tallystick.job.predict")
_INTERRUPTED = "interrupted; the peers that had joined were told"


def run_command(
    contract: ContractPath,
    party: PartyPath,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the latest run. All parties must give it.")] = False,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--start-from",
            metavar="RUN",
            help="Begin with the weights of the finished run of this id. All parties must give it.",
        ),
    ] = None,
    progress: StyleFlag = Style.auto,
    as_json: JsonFlag = False,
) -> None:
    """Run this party's side of the whole job: align, train, evaluate, report."""
    _run("run", contract, party, progress, as_json, resume=resume, start_from=start_from)


def align(
    contract: ContractPath,
    party: PartyPath,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the latest alignment. All parties must give it.")] = False,
    progress: StyleFlag = Style.auto,
    as_json: JsonFlag = False,
) -> None:
    """Align the parties' tables privately, and keep the alignment for `train`."""
    _run("align", contract, party, progress, as_json, resume=resume, phases=("alignment",))


def overlap(contract: ContractPath, party: PartyPath, progress: StyleFlag = Style.auto, as_json: JsonFlag = False) -> None:
    """Count the ids that both parties have, as the contract's overlap section allows. Sizes cross too, and no ids."""

    def work() -> None:
        from tallystick.job.overlap import run_overlap

        agreed, own, watcher = read_files(contract, party, progress)
        finish(run_overlap(agreed, own, watcher=watcher), as_json=as_json)

    guarded(work, as_json=as_json, loads=(*ALIGN_LOADS, "tallystick.job.overlap"), interrupted=_INTERRUPTED)


def explore(contract: ContractPath, party: PartyPath, progress: StyleFlag = Style.auto, as_json: JsonFlag = False) -> None:
    """Estimate what joining brings, on a sample, by a head on secret shares."""

    def work() -> None:
        from tallystick.job.explore import run_explore
        from tallystick.report.summary import few_of_a_class, headline

        agreed, own, watcher = read_files(contract, party, progress)
        result, folder = run_explore(agreed, own, watcher=watcher)
        values: dict[str, object] = {
            "folder": str(folder.path),
            "report": str(folder.report),
            "result": str(folder.result),
            "run_id": result.run_id,
            "contract_hash": result.contract.hash,
            "seconds": round(result.seconds, 3),
            "estimate": _estimate_of(result),
            "warnings": few_of_a_class(result),
            "learnt": [f"{one.party}: {one.what}" for one in result.learnt],
        }

        def show(console: Console) -> None:
            first = headline(result)
            console.print(first.title, markup=False, style="bold")
            for line in (first.text, *few_of_a_class(result)):
                console.print(line, markup=False)
            console.print(f"one page: {folder.report}", markup=False)

        finish(values, as_json=as_json, show=show)

    guarded(work, as_json=as_json, loads=(*LOADS, "tallystick.job.explore"), interrupted=_INTERRUPTED)


def train(contract: ContractPath, party: PartyPath, progress: StyleFlag = Style.auto, as_json: JsonFlag = False) -> None:
    """Train on the latest alignment. It goes on where an interrupted training stopped."""
    _run("train", contract, party, progress, as_json, phases=("training",))


def evaluate(contract: ContractPath, party: PartyPath, progress: StyleFlag = Style.auto, as_json: JsonFlag = False) -> None:
    """Measure the latest trained network on the test rows, and write the report."""
    _run("evaluate", contract, party, progress, as_json, phases=("evaluation",))


def predict_command(
    contract: ContractPath,
    party: PartyPath,
    table: Annotated[str | None, typer.Option(help="New rows, by path or address. Default: the party file's table.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="File for the scores, .csv or .parquet: at the label party; on a union at both.")
    ] = None,
    explain: Annotated[
        Path | None, typer.Option(help="File for what moved the first scores, .csv or .parquet: at the label party.")
    ] = None,
    explain_rows: Annotated[int, typer.Option(help="Number of scores to explain.", min=1, max=10_000)] = 20,
    run: RunName = None,
    progress: StyleFlag = Style.auto,
    as_json: JsonFlag = False,
) -> None:
    """Score new ids in batches, with all parties online, by the saved model and encoders."""

    def work() -> None:
        from tallystick.job.predict import predict_rows

        agreed, own, watcher = read_files(contract, party, progress)
        outcome = predict_rows(
            agreed, own, table=table, output=output, run=run, watcher=watcher, explained=explain, most_explained=explain_rows
        )
        finish(outcome, as_json=as_json)

    guarded(work, as_json=as_json, loads=LOADS, interrupted=_INTERRUPTED)


def tune(
    contract: ContractPath,
    party: PartyPath,
    alone: Annotated[
        bool, typer.Option("--alone", help="Search on the label party's own columns. Default if the party file names no partner.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the latest search. All parties must give it.")] = False,
    progress: StyleFlag = Style.auto,
    as_json: JsonFlag = False,
) -> None:
    """Search the contract's tuning.keys for the lowest validation loss. Each trial discloses as much as a training."""
    again = f"tallystick tune {shlex.quote(str(contract))} --party {shlex.quote(str(party))}"

    def work() -> None:
        from tallystick.job.phases.tuning import TUNED
        from tallystick.job.tune import has_no_partner, run_tuning

        agreed, own, watcher = read_files(contract, party, progress)
        by_itself = alone or has_no_partner(own)
        if by_itself and not alone:
            watcher.say("the party file names no partner: tuning own columns alone")
        result, folder = run_tuning(
            agreed,
            own,
            watcher=watcher,
            alone=by_itself,
            resume=resume,
            how_to_resume=f"{again} --resume, and the same on the other side",
        )
        tuning = result.to_dict()["sections"]["tuning"]
        summary = {
            "folder": str(folder.path),
            "report": str(folder.report),
            "result": str(folder.result),
            "tuned_contract": str(folder.path / TUNED),
            "seconds": round(result.seconds, 3),
            **tuning,
        }
        finish(summary, as_json=as_json, show=lambda console: _show_tuning(console, result, summary))

    loads = (*LOADS, "tallystick.job.tune")
    guarded(work, as_json=as_json, loads=loads, interrupted=f"interrupted; to go on: {again} --resume")


def _show_tuning(console: Console, result: "Result", values: dict[str, object]) -> None:
    tuning = result.sections.tuning
    assert tuning is not None
    for trial in tuning.trials:
        loss = "cannot be" if trial.problem else f"loss {trial.loss:.5g}" if trial.loss is not None else ""
        star = "*" if trial.number == tuning.best else " "
        console.print(f"{star}{trial.number:>4}  {loss:<16} {trial.epochs:>3} epochs  {trial.values}", markup=False)
    console.print(tuning.summary, markup=False)
    console.print(f"the contract with the best values: {values['tuned_contract']}", markup=False)
    console.print(f"report: {values['report']}", markup=False)


def _run(
    command: str,
    contract: Path,
    party: Path,
    progress: Style,
    as_json: bool,
    *,
    resume: bool = False,
    start_from: str | None = None,
    phases: tuple[str, ...] | None = None,
) -> None:
    def work() -> None:
        from tallystick.job.job import ALL_PHASES
        from tallystick.job.process import run_process

        agreed, own, watcher = read_files(contract, party, progress)
        again = f"tallystick {command} {shlex.quote(str(contract))} --party {shlex.quote(str(party))}"
        result, folder = run_process(
            agreed,
            own,
            watcher=watcher,
            command=command,
            resume=resume,
            start_from=start_from,
            phases=ALL_PHASES if phases is None else phases,
            how_to_resume=f"{again}{' --resume' if command in ('run', 'align') else ''}, and the same on the other side",
        )
        started_from: dict[str, object] = {}
        if folder.starts_from_a_run:
            from tallystick.run_folder.initial_weights import StartingPoint

            if (point := StartingPoint.of(folder)) is not None:
                started_from["started_from"] = point.run_id
        finish(
            {"folder": str(folder.path), "report": str(folder.report), "result": str(folder.result), **key_figures(result)}
            | started_from,
            as_json=as_json,
            show=lambda console: show_run(console, result, folder),
        )

    loads = LOADS if phases != ("alignment",) else ALIGN_LOADS
    guarded(work, as_json=as_json, loads=loads, interrupted=_INTERRUPTED)


def key_figures(result: "Result") -> dict[str, object]:
    """Return the numbers that programs usually need first. The whole result is in result.json."""
    from tallystick.cli.leakage import feature_values, gradients_values, leakage_values

    evaluation = result.evaluation
    figures: dict[str, object] = {
        "run_id": result.run_id,
        "contract_hash": result.contract.hash,
        "seconds": round(result.seconds, 3),
        "rows": result.alignment.sizes if result.alignment is not None else None,
        "steps": result.training.steps if result.training is not None else None,
    }
    for suffix, values in (("joint", evaluation["joint"]), ("label_only", evaluation["local_baseline"])) if evaluation else ():
        for name, metric in (values or {}).items():
            figures[f"{name}_{suffix}"] = metric["value"]
    if evaluation is not None and "labels" in evaluation:
        figures["labels"] = {
            label: {
                f"{name}_{suffix}": metric["value"]
                for suffix, values in (("joint", part["joint"]), ("label_only", part["local_baseline"]))
                for name, metric in (values or {}).items()
            }
            for label, part in evaluation["labels"].items()
        }
    if evaluation is not None and evaluation.get("weighted"):
        figures["weighted"] = True
    if result.sections.privacy is not None:
        figures["not_private"] = result.sections.privacy.not_private
        figures["private_releases"] = [release.what for release in result.sections.privacy.releases]
        figures["spent_epsilon"] = result.sections.privacy.spent_epsilon
    if result.sections.shared is not None:
        figures["shared"] = {name: each["value"] for name, each in result.sections.shared.metrics.items()}
    if result.sections.leakage is not None:
        figures["leakage"] = leakage_values(result.sections.leakage)
    if result.sections.features:
        figures["features"] = [feature_values(audit) for audit in result.sections.features]
    if result.sections.told:
        figures["told"] = [gradients_values(told) for told in result.sections.told]
    return figures


def _estimate_of(result: "Result") -> dict[str, object] | None:
    """Return the gain on a sample as plain values, with its paired interval, or None if the label party keeps it."""
    evaluation, sample = result.evaluation, result.sections.sample
    if evaluation is None or sample is None or not evaluation["local_baseline"] or not evaluation["difference"]:
        return None
    name = next(iter(evaluation["joint"]))
    gain = evaluation["difference"][name]
    return {
        "metric": name,
        "own": evaluation["local_baseline"][name]["value"],
        "joint": evaluation["joint"][name]["value"],
        "gain": gain["value"],
        "gain_low": gain["low"],
        "gain_high": gain["high"],
        "common": sample.common,
        "test_rows": evaluation["rows"],
    }


def show_run(console: Console, result: "Result", folder: "RunFolder") -> None:
    """Print what each phase took, what came of them, and where the report is."""
    from tallystick.report.leaks import next_steps, promise

    for phase in result.phases:
        console.print(f"  {phase.name:<12} {phase.seconds:8.1f} s   {(phase.bytes_sent + phase.bytes_received) / 1e6:9.1f} MB")
    if result.training is None and result.alignment is not None:
        for name, count in result.alignment.sizes.items():
            console.print(f"  {name}: {count:,}", markup=False)
    show_headline(console, result)
    for line in [*next_steps(result), promise(result)]:
        if line:
            console.print(f"  {line}", markup=False)
    console.print(f"report: {folder.report}", markup=False)


def show_headline(console: Console, result: "Result") -> None:
    """Print what joining brought, in one line per metric, and what it cost."""
    from tallystick.report.leaks import leak_lines
    from tallystick.report.summary import too_good
    from tallystick.results import metric_in_words, paired_metrics

    if result.sections.privacy is not None:
        for what in result.sections.privacy.not_private:
            console.print(f"  not private: {what}", markup=False)
        if result.sections.privacy.columns:
            console.print(f"  {result.sections.privacy.columns}", markup=False)
        for released in result.sections.privacy.releases:
            console.print(f"  for epsilon {released.epsilon:g}: {released.what}", markup=False)
    if result.sections.shared is not None:
        for name, value in result.sections.shared.metrics.items():
            if value["value"] is not None:
                told_by = result.sections.shared.party
                console.print(f"  {name:<9} joint {metric_in_words(value)}   as {told_by} says", markup=False)
    if result.evaluation is not None and result.evaluation.get("weighted"):
        console.print("  each test row counts by its sample weight:")
    for name, joint, own in paired_metrics(result):
        if joint["value"] is None:
            continue
        beside = f"   own columns only {metric_in_words(own)}" if own is not None and own["value"] is not None else ""
        console.print(f"  {name:<9} joint {metric_in_words(joint)}{beside}", markup=False)
    for line in [*too_good(result), *leak_lines(result)]:
        console.print(f"  {line}", markup=False)
