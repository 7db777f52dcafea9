"""Decide how many networks a contract trains side by side, one for each fold of the rows (``training.folds``)."""

from typing import TYPE_CHECKING, Literal

from tallystick.config.sections import FULL_ALONE, fitting_folds

if TYPE_CHECKING:
    from tallystick.config.contract import Contract


def folds(contract: "Contract", rows: int) -> int:
    """Return how many there are for so many training rows: as asked, or several by itself if rows are few and nothing rules it
    out.
    """
    training = contract.training
    return 1 if training.folds == "auto" and _against(contract) else training.resolved(rows).folds


def own_folds(contract: "Contract", rows: int) -> int:
    """Return how many networks of own columns alone score rows without a partner's row, for so many own training rows.

    They cost no bytes at a cut, so they are several for more rows than joint networks are.
    """
    model, plain = contract.model, contract.split.method == "hash" and contract.split.validation
    is_own = bool(model.bottoms) or model.top is not None
    return 1 if contract.training.folds != "auto" or not plain or is_own else fitting_folds(rows, full=FULL_ALONE)


def folds_notes(asked: int | Literal["auto"], count: int) -> list[str]:
    """Say what several networks side by side are; nothing for a single one."""
    if count == 1:
        return []
    return [
        f"training.folds = {asked}: {count} networks side by side, each trained on the training and validation rows but one fold"
    ]


def folds_problems(contract: "Contract") -> list[str]:
    """List what a contract has that folds cannot go with."""
    folds = contract.training.folds
    return [
        f"training.folds = {folds}, {problem}; leave training.folds out"
        for problem in _against(contract)
        if folds not in ("auto", 1)
    ]


def _against(contract: "Contract") -> list[str]:
    training, model = contract.training, contract.model
    problems = []
    if not contract.split.validation:
        problems.append("split.validation = 0: the first fold is the validation rows, and there are none")
    if contract.split.method == "time":
        problems.append(
            "split.method = time: the newest rows judge the network, and folds would have later rows teach earlier ones"
        )
    if training.refit is True:
        problems.append("training.refit = true: with folds the validation rows already train all networks but one")
    if training.gradients == "none":
        problems.append("training.gradients = none: an embedding crosses once there, and would be several times as wide")
    if training.starts == "public":
        problems.append("training.starts = public: the audit makes the first models anew, and knows one network only")
    if contract.alignment.method != "intersection":
        problems.append(f"alignment.method = {contract.alignment.method}: folds go with alignment.method = intersection only")
    if contract.unaligned.used:
        problems.append(f"unaligned.method = {contract.unaligned.method}: it brings networks of its own")
    if contract.defense:
        problems.append(
            f"defense.0.method = {contract.defense[0].defense.method}: it is about one network's embeddings and gradients"
        )
    if model.bottoms or model.top is not None:
        key = "model.top" if model.top is not None else f"model.bottoms.{next(iter(model.bottoms))}"
        problems.append(f"{key}: folds are of the built-in networks")
    return problems
