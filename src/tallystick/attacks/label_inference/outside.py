"""Attacks on labels that come from other packages: an entry point names a row of the table."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from typing import get_args

import torch

from tallystick.attacks.label_inference.auxiliary import (
    ClassOrder,
    FewLabels,
    LabelsPerBatch,
    NoLabels,
    ShareOfLabels,
    TheseLabels,
)
from tallystick.attacks.label_inference.table import LABEL_INFERENCE_ATTACKS, LabelInferenceAttack
from tallystick.attacks.view import Received

GROUP = "tallystick.label_attacks"
KNOWN = (NoLabels, ClassOrder, LabelsPerBatch, FewLabels, TheseLabels, ShareOfLabels)


def outside_attacks() -> tuple[Mapping[str, LabelInferenceAttack], Mapping[str, str]]:
    """The attacks that installed packages name in the entry point group ``tallystick.label_attacks``, and the unusable ones.

    Threat model: whoever installs a package trusts its code, which runs with all rights of this process. It is handed a view and
    the labels that its row declares, no others. No guarantee.

    Returns:
        rows by name, and by name why one cannot be used: it cannot be loaded, is no row or one with a wrong entry, or has the
        name of another.
    """
    found: dict[str, LabelInferenceAttack] = {}
    unusable: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
        if point.name in LABEL_INFERENCE_ATTACKS or point.name in found:
            unusable[f"{point.name} ({point.value})"] = "another attack has this name; give it one of its own"
            continue
        row = _loaded(point)
        if isinstance(row, str):
            unusable[f"{point.name} ({point.value})"] = row
        else:
            found[point.name] = row
    return found, unusable


def _loaded(point: EntryPoint) -> LabelInferenceAttack | str:
    try:
        with settings_kept():
            row = point.load()
    except (Exception, SystemExit) as error:
        return f"it cannot be loaded: {type(error).__name__}: {error}"
    if type(row) is not LabelInferenceAttack:  # a class derived from it might override what the audit relies on
        return f"it is a {type(row).__name__}, and a LabelInferenceAttack itself was expected"
    return _wrong_entry(row) or row


def _wrong_entry(row: LabelInferenceAttack) -> str:
    """What of a row no report could show, or the audit could not do; empty if all is well."""
    if type(row.description) is not str or not row.description.isprintable():
        return "its description is no line of plain text"
    if type(row.reads) is not str or row.reads not in get_args(Received):
        return f"what it reads is none of {', '.join(get_args(Received))}"
    if type(row.knows) not in KNOWN:
        return f"what it knows is none of {', '.join(each.__name__ for each in KNOWN)}"
    for name in (field.name for field in fields(row) if field.type is bool):
        if type(getattr(row, name)) is not bool:
            return f"its {name} is neither True nor False"
    return ""


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put back, afterwards, whether torch records gradients and its default dtype: a later training relies on both."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
