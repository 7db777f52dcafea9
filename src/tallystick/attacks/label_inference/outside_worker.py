"""Run an attack of another package in this process: read its number and a view, and answer with scores.

Shapes: B rows of a step's batch, N scored rows.

A message is a line of JSON, then tensors in safetensors format. Neither side reads anything that can run code.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from typing import Any, BinaryIO, get_args

import safetensors.torch
import torch
from torch import Tensor

from tallystick.attacks.label_inference.attack_table import LabelInferenceAttack
from tallystick.attacks.label_inference.auxiliary import (
    ClassOrder,
    FewLabels,
    LabelsPerBatch,
    NoLabels,
    ShareOfLabels,
)
from tallystick.attacks.view import Received, Scores, StepView, View

GROUP = "tallystick.label_attacks"
KNOWN = (NoLabels, ClassOrder, LabelsPerBatch, FewLabels, ShareOfLabels)
FLAGS = tuple(field.name for field in fields(LabelInferenceAttack) if field.type is bool)
_STEP = tuple(field.name for field in fields(StepView) if field.init and field.name != "epoch")


def points() -> list[EntryPoint]:
    """List the entry points of all installed packages in the same order in every process."""
    return sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value))


def framed(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Write a message."""
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return json.dumps(facts).encode() + b"\n" + safetensors.torch.save(whole)


def unframed(message: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a message. Raises ValueError or a safetensors error for anything else."""
    line, _, rest = message.partition(b"\n")
    return json.loads(line), safetensors.torch.load(rest)


def view_message(view: View, number: int, *, seed: int, threads: int) -> bytes:
    """Write the view for the attack of that number among ``points``. Models in it are left out."""
    tensors = {
        f"{index}/{name}": value
        for index, step in enumerate(view.steps)
        for name in _STEP
        if (value := getattr(step, name)) is not None
    }
    tensors |= {f"{index}/known": label_B for index, label_B in enumerate(view.known_labels or ())}
    tensors |= {} if view.class_order is None else {"class_order": view.class_order}
    facts = {"number": number, "seed": seed, "threads": threads, "epochs": [step.epoch for step in view.steps]}
    return framed(facts | {"received": view.received, "classes": view.classes, "flip": view.flip}, tensors)


def answered_scores(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Scores:
    """Read the scores of an answer. Raises KeyError or TypeError if it holds none."""
    count = int(facts["groups"])
    rows, values = (tuple(tensors[f"{index}/{name}"] for index in range(count)) for name in ("rows", "values"))
    if any(each.dtype != torch.int64 or each.ndim != 1 or bool((each < 0).any()) for each in rows):
        raise TypeError("rows are whole numbers from 0 on, one dimension for each group")
    return Scores(rows=rows, values=values, named=bool(facts["named"]))


def main() -> None:
    """Describe the attacks from the given number on, or run the attack that the message on standard input names."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of foreign code is not an answer
    if len(sys.argv) > 1:
        for number, point in list(enumerate(points()))[int(sys.argv[1]) :]:
            answers.write(json.dumps({"number": number} | _described(point)).encode() + b"\n")
            answers.flush()
    else:
        _run(sys.stdin.buffer.read(), answers)
    answers.flush()
    os._exit(0)  # threads of foreign code must not delay the end


def _run(message: bytes, answers: BinaryIO) -> None:
    facts, tensors = unframed(message)
    torch.set_num_threads(facts["threads"])
    try:
        row = points()[facts["number"]].load()
        scores = row.attack(_view(facts, tensors), generator=torch.Generator().manual_seed(facts["seed"]))
        rows_by_name = {f"{index}/rows": rows for index, rows in enumerate(scores.rows)}
        rows_by_name |= {f"{index}/values": values for index, values in enumerate(scores.values)}
        answer = framed({"groups": len(scores.rows), "named": bool(scores.named)}, rows_by_name)
    except (Exception, SystemExit) as error:
        answer = framed({"error": f"it raised {_in_words(error)}"}, {})
    answers.write(answer)


def _view(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> View:
    steps = []
    for index, epoch in enumerate(facts["epochs"]):
        fields: dict[str, Any] = {name: tensors.get(f"{index}/{name}") for name in _STEP}
        steps.append(StepView(epoch=epoch, **fields))
    known_labels = tuple(tensors[f"{index}/known"] for index in range(len(steps)) if f"{index}/known" in tensors)
    return View(
        received=facts["received"],
        steps=tuple(steps),
        known_labels=known_labels or None,
        classes=facts["classes"],
        class_order=tensors.get("class_order"),
        flip=facts["flip"],
    )


def _described(point: EntryPoint) -> dict[str, Any]:
    """Describe a row, or say why it cannot be used: a report could not show it, or the audit could not run it."""
    try:
        row = point.load()
    except (Exception, SystemExit) as error:
        return {"unusable": f"it cannot be loaded: {_in_words(error)}"}
    if type(row) is not LabelInferenceAttack:  # a class derived from it might override what the audit relies on
        return {"unusable": f"it is a {type(row).__name__}; expected a LabelInferenceAttack"}
    if type(row.description) is not str or not row.description.isprintable():
        return {"unusable": "its description is not a line of plain text"}
    if type(row.reads) is not str or row.reads not in get_args(Received):
        return {"unusable": f"what it reads is none of {', '.join(get_args(Received))}"}
    if type(row.knows) not in KNOWN:
        return {"unusable": f"what it knows is none of {', '.join(each.__name__ for each in KNOWN)}"}
    if unclear := [name for name in FLAGS if type(getattr(row, name)) is not bool]:
        return {"unusable": f"its {unclear[0]} is neither True nor False"}
    if row.from_start or row.with_model:
        return {"unusable": "it needs a model of this run, but its process only gets a view"}
    knows = {"kind": type(row.knows).__name__} | vars(row.knows)
    flags = {name: getattr(row, name) for name in FLAGS}
    return {"row": {"description": row.description, "reads": row.reads} | flags, "knows": knows}


def _in_words(error: BaseException) -> str:
    """Write an error of foreign code in plain characters that a report can show."""
    return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()


if __name__ == "__main__":
    main()
