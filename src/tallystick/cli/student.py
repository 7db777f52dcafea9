"""Implement student and score-alone: a network of the label party's own columns that learns from joint scores, and its scores."""

from pathlib import Path
from typing import Annotated

import typer

from tallystick.cli.options import ContractPath, JsonFlag, PartyPath, StyleFlag, read_files
from tallystick.cli.output import LIBRARIES, finish, guarded
from tallystick.watcher import Style


def student(
    contract: ContractPath,
    party: PartyPath,
    scores: Annotated[Path, typer.Option("--scores", help="Scores that `predict` wrote for the run's table, .csv or .parquet.")],
    to: Annotated[Path, typer.Option("--to", help="The folder to make.")],
    run: Annotated[str | None, typer.Option("--run", help="Run that scored: its id, folder name or path.")] = None,
    onnx: Annotated[bool, typer.Option("--onnx/--no-onnx", help="Write ONNX in addition to safetensors, or not.")] = True,
    progress: StyleFlag = Style.auto,
    as_json: JsonFlag = False,
) -> None:
    """Train a network on the label party's own columns by the joint scores. It then scores alone. Nothing is sent."""

    def work() -> None:
        from tallystick.export.student import make_student
        from tallystick.export.student_card import kept_line

        agreed, own, watcher = read_files(contract, party, progress)
        figures = make_student(agreed, own, scores=scores, to=to, run=run, onnx=onnx, watcher=watcher)
        finish(dict(figures), as_json=as_json, show=lambda console: console.print(kept_line(figures), markup=False))

    guarded(work, as_json=as_json, loads=(*LIBRARIES, "tallystick.export.student"))


def score_alone(
    folder: Annotated[Path, typer.Argument(help="The folder that `student` made.")],
    party: PartyPath,
    output: Annotated[Path, typer.Option(help="File for the scores, .csv or .parquet.")],
    table: Annotated[str | None, typer.Option(help="New rows, by path or address. Default: the party file's table.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Score rows with a student, by own columns alone. Nothing is sent."""

    def work() -> None:
        from tallystick.config.party import load_party
        from tallystick.export.score_alone import score_by_student

        finish(score_by_student(folder, load_party(party), table=table, output=output), as_json=as_json)

    guarded(work, as_json=as_json, loads=(*LIBRARIES, "tallystick.export.score_alone"))
