"""Decide how often in an epoch the weights are compared on validation rows that cross (``training.validations``)."""

from typing import TYPE_CHECKING

from tallystick.config.sections import WITHIN

if TYPE_CHECKING:
    from tallystick.config.contract import Contract
    from tallystick.config.sections import TrainingSettings


def validations(contract: "Contract", training: "TrainingSettings") -> int:
    """Return how often, or how often at most if ``training``, the contract's, is not settled for its rows and its line yet.

    By itself only once where a further embedding of a row costs more than time: behind a defence of columns or a narrowed cut
    each one is another look at what these hide (noise is charged for each), on a union one at made-up rows; a pipeline runs empty
    for each, and with folds all rows cross for each.
    """
    setting = contract.training.validations
    if setting != "auto":
        return setting
    hidden = contract.model.narrowed or any(entry.defense.hides_features() for entry in contract.defense)
    if hidden or contract.linkage.imputes or training.mode == "pipelined" or training.folds not in ("auto", 1):
        return 1
    return WITHIN if training.validations == "auto" else training.validations


def validations_problems(contract: "Contract") -> list[str]:
    """List what is wrong with the contract's number."""
    setting = contract.training.validations
    if setting in ("auto", 1) or contract.split.validation:
        return []
    return [f"training.validations = {setting}: split.validation is 0, so there are no validation rows; leave it out"]
