"""State in sentences which defences protect a secret from what crosses."""

from typing import Literal

from tallystick.config.contract import Contract
from tallystick.defenses.known_attacks import READ_BY

UNPROTECTED = "no formal guarantee"


def defense_lines(contract: Contract, *, of: Literal["labels", "features", "both"] = "both") -> list[str]:
    """Describe each defence of a contract: method, strength, guarantee and known attacks. If there is none, one line says so.

    ``of`` selects the defences of labels or of columns.
    """
    lines = []
    for entry in contract.defense:
        if of != "both" and entry.defense.hides_features() != (of == "features"):
            continue
        values = {key: value for key, value in entry.model_dump().items() if key != "method" and value is not None}
        strength = ", ".join(f"{key} {value}" for key, value in values.items())
        line = f"{entry.defense.method} ({strength}): {entry.make().guarantee().text}"
        reader = READ_BY.get(entry.defense.method)
        lines.append(line if reader is None else f"{line}; {reader.sentence}")
    return lines or [f"none; {UNPROTECTED}"]


def protection(contract: Contract, *, of: Literal["labels", "features"]) -> str:
    """Say which defences protect one side's secret from what crosses, and what they guarantee."""
    lines = "; ".join(defense_lines(contract, of=of))
    return UNPROTECTED if lines.startswith("none") else lines


def protects_a_row(contract: Contract) -> list[str]:
    """Say what a guarantee for labels covers if the label party has several rows for one id."""
    labels = any(entry.covers_labels for entry in contract.defense) or contract.evaluation.privacy is not None
    if contract.alignment.duplicates != "all" or not labels:
        return []
    return [
        f"the guarantee protects a row, or its label: an id with k rows of {contract.label_party} is released k times, each with "
        "the whole epsilon"
    ]


def deviation_of(contract: Contract) -> str:
    """Say what a peer gains if it does not follow the protocol of this contract's alignment."""
    linkage = contract.linkage
    several = len(contract.feature_parties) > 1
    return linkage.deviation_of_several if several and linkage.deviation_of_several is not None else linkage.deviation
