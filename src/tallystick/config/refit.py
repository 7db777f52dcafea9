"""Decide whether training begins anew with the validation rows (``training.refit``), and where a contract can have that."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.config.contract import Contract


def refits(contract: "Contract") -> bool:
    """Tell whether it does: if it is asked to, and by itself if the split is by time and nothing rules it out."""
    setting = contract.training.refit
    return contract.split.method == "time" and not _against(contract) if setting == "auto" else setting


def own_refits(contract: "Contract") -> bool:
    """Tell whether the training of own columns alone does: no method for rows without a partner's row rules it out there."""
    setting = contract.training.refit
    return contract.split.method == "time" and not _without_rows(contract) if setting == "auto" else setting


def refit_problems(contract: "Contract") -> list[str]:
    """List what a contract has that a refit cannot go with."""
    return [f"training.refit = true, {problem}" for problem in _against(contract)] if contract.training.refit is True else []


def _against(contract: "Contract") -> list[str]:
    problems = _without_rows(contract)
    if contract.unaligned.used:
        problems.append(
            f"unaligned.method = {contract.unaligned.method}: its models are fitted to each other on validation rows, which a "
            "refit does not have; leave training.refit out"
        )
    return problems


def _without_rows(contract: "Contract") -> list[str]:
    """List what rules it out at the rows: none to train on, or made-up ones."""
    problems = []
    if not contract.split.validation:
        problems.append("split.validation = 0: there are no validation rows to train on; leave training.refit out")
    if contract.linkage.imputes:
        problems.append(
            f"alignment.method = {contract.alignment.method}: what stands in for a union's absent rows would be drawn a "
            "second time, and what changes between the two trainings shows which rows they are; leave training.refit out"
        )
    return problems
