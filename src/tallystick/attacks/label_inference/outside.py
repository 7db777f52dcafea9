"""Attacks on labels that come from other packages: an entry point names a row of the table."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from tallystick.attacks.label_inference.table import LABEL_INFERENCE_ATTACKS, LabelInferenceAttack

GROUP = "tallystick.label_attacks"


def outside_attacks() -> tuple[Mapping[str, LabelInferenceAttack], Mapping[str, str]]:
    """The attacks that installed packages name in the entry point group ``tallystick.label_attacks``, and the unusable ones.

    Threat model: whoever installs a package trusts its code, which runs with all rights of this process. It is handed a view and
    the labels that its row declares, no others. No guarantee.

    Returns:
        rows by name, and by name why one cannot be used: it cannot be loaded, is no row, or has the name of another.
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
        row = point.load()
    except Exception as error:
        return f"it cannot be loaded: {type(error).__name__}: {error}"
    if not isinstance(row, LabelInferenceAttack):
        return f"it is a {type(row).__name__}, and a LabelInferenceAttack was expected"
    return row
