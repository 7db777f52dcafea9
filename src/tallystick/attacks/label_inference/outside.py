"""Run label attacks of other packages. An entry point names a row of the table, and a separate process runs the attack."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS, LabelInferenceAttack
from tallystick.attacks.label_inference.outside_worker import KNOWN, answered_scores, points, unframed, view_message
from tallystick.attacks.view import Scores, View
from tallystick.errors import DataError

LIMIT_S = 600.0  # limit for loading all rows, and for each attack


def outside_attacks() -> tuple[Mapping[str, LabelInferenceAttack], Mapping[str, str]]:
    """Load the attacks in the entry point group ``tallystick.label_attacks`` of installed packages, and say which are unusable.

    Threat model: whoever installs a package trusts its code, which runs with all rights of this user. Its process gets a view
    and the labels that its row declares, never others, and is stopped after ten minutes. No guarantee.

    Returns:
        usable rows by name, and reasons by name for the others: it cannot be loaded, is not a row, has a wrong entry, or has the
        name of another attack.
    """
    attacks: dict[str, LabelInferenceAttack] = {}
    unusable: dict[str, str] = {}
    every = points()
    # If a process ends, the entry point that it was loading is unusable, and a new process continues with the next
    answers: list[dict[str, Any]] = []
    while len(answers) < len(every):
        output, ended = _answer(b"", str(len(answers)))
        answers += [json.loads(line) for line in output.split(b"\n")[:-1]]
        if len(answers) < len(every):
            answers.append({"unusable": f"it cannot be loaded: {ended or 'its process ended'}"})
    for number, (point, answer) in enumerate(zip(every, answers, strict=True)):
        if point.name in LABEL_INFERENCE_ATTACKS or point.name in attacks:
            unusable[f"{point.name} ({point.value})"] = "another attack has this name; give it a different name"
        elif "unusable" in answer:
            unusable[f"{point.name} ({point.value})"] = answer["unusable"]
        else:
            kinds, knowledge = {each.__name__: each for each in KNOWN}, dict(answer["knows"])
            knows: Any = kinds[knowledge.pop("kind")](**knowledge)
            attacks[point.name] = LabelInferenceAttack(attack=OutsideAttack(number=number), knows=knows, **answer["row"])
    return attacks, unusable


@dataclass(frozen=True, kw_only=True)
class OutsideAttack:
    """Send a view to the process of an attack of another package, and receive its scores.

    Args:
        number: place of the attack among the entry points.
    """

    number: int

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Return the attack's scores. Raises DataError with the reason if it raises, does not end, or returns none."""
        message = view_message(view, self.number, seed=generator.initial_seed(), threads=torch.get_num_threads())
        answer, ended = _answer(message)
        if ended:
            raise DataError(ended)
        try:
            facts, tensors = unframed(answer)
            scores = None if "error" in facts else answered_scores(facts, tensors)
        except Exception as error:  # foreign code may have written anything
            raise DataError(f"it gave no scores: {type(error).__name__}: {error}") from None
        if scores is None:
            raise DataError(str(facts["error"]))
        return scores


def _answer(message: bytes, *arguments: str) -> tuple[bytes, str]:
    """Return the process's answer to a message and, if it ended too early, the reason."""
    command = [sys.executable, "-m", "tallystick.attacks.label_inference.outside_worker", *arguments]
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=surroundings,
        start_new_session=True,
    )
    why = ""
    try:
        answer, _ = process.communicate(message, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as late:
        answer, why = late.output or b"", f"it was ended after {LIMIT_S:g} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
    return answer, why or (f"its process ended with code {process.returncode}" if process.returncode else "")
