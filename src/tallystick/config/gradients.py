"""List what a contract without cut gradients (``training.gradients: none``) cannot have beside it."""

from typing import TYPE_CHECKING

from tallystick.reading import shown

if TYPE_CHECKING:
    from tallystick.config.contract import Contract
    from tallystick.config.sections import NetworkModel

WIDE_CUT = 512
"""The default cut width where bottom models stay as they are: what a random layer misses, a wide one does not."""
STILL_SCALE = 0.3
"""Of the embeddings of all categories there, for none of them grows in training (docs/results/no-gradients-price.md)."""


def still(model: "NetworkModel") -> "NetworkModel":
    """Return the network for a feature party whose bottom model stays as it is."""
    scale = STILL_SCALE if model.embedding_scale == "auto" else model.embedding_scale
    return model.model_copy(update={"cut_width": model.cut_width or WIDE_CUT, "embedding_scale": scale})


def no_gradient_problems(contract: "Contract") -> list[str]:
    """List what a contract has that needs a gradient, or that tells the feature parties of labels in another way."""
    training, evaluation, where = contract.training, contract.evaluation, "training.gradients = none"
    if training.gradients == "sent":
        return []
    problems = _defense_problems(contract, where)
    if contract.linkage.imputes:
        problems.append(
            f"{where}, alignment.method = {contract.alignment.method}: what stands in for a union's absent rows is drawn anew in "
            "each epoch, and here each row crosses once; align by intersection, or send gradients"
        )
    if contract.unaligned.facts.teaches_bottoms:
        problems.append(
            f"{where}, unaligned.method = {contract.unaligned.method}: trains the feature parties' bottom models by cut "
            "gradients; choose another method, or send gradients"
        )
    if training.mode == "pipelined":
        problems.append(f"{where}, training.mode = {training.mode}: nobody waits for a gradient; leave training.mode out")
    if training.compression != "none":
        problems.append(f"{where}, training.compression = {training.compression}: each row crosses once, whole; leave it out")
    if contract.tuning.keys:
        problems.append(
            f"{where}, tuning.keys: the values that a search tries next hang on validation labels, and every party is told them; "
            "leave tuning.keys out"
        )
    if evaluation.privacy is not None:
        problems.append(f"{where}, evaluation.privacy: sends a figure of the test labels; set it to null")
    if evaluation.share_metrics:
        problems.append(
            f"{where}, evaluation.share_metrics = {shown(list(evaluation.share_metrics))}: are figures of the test labels; "
            "leave them out"
        )
    if evaluation.importance.feature_columns != "none":
        problems.append(
            f"{where}, evaluation.importance.feature_columns = {evaluation.importance.feature_columns}: has feature parties "
            "embed rows again after training, and here each row crosses once; set it to none"
        )
    if contract.serving is not None and contract.serving.feature_party_asks:
        problems.append(
            f"{where}, serving.ways = {shown(list(contract.serving.ways))}: answers a feature party with scores, by a model that "
            "labels trained; give ways in which the label party asks, or send gradients"
        )
    return problems


def _defense_problems(contract: "Contract", where: str) -> list[str]:
    """Defences of what is never sent: of labels all, of columns those that act while a bottom model is trained."""
    problems = []
    for number, entry in enumerate(contract.defense):
        entry_key = f"{where}, defense.{number}.method = {entry.defense.method}"
        if not entry.defense.hides_features():
            problems.append(
                f"{entry_key}: hides labels in what the label party sends, and nothing that it sends depends on one; leave it out"
            )
        elif entry.defense.stage == "embedding penalties":
            problems.append(
                f"{entry_key}: acts while a bottom model learns from cut gradients, and none come; leave it out, or take one "
                "that changes the embeddings themselves"
            )
    return problems
