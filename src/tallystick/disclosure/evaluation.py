"""State what an evaluation discloses."""

from tallystick.config.contract import Contract
from tallystick.disclosure.disclosure import Disclosure, RunFacts, parties_of, stated
from tallystick.disclosure.protection import UNPROTECTED, protection
from tallystick.results import Learnt


def _test_rows(contract: Contract) -> list[str]:
    if not contract.sends_gradients:
        return []
    label, features = parties_of(contract)
    lines = []
    if contract.split.test:
        lines.append(f"{label} gets the cut embeddings of the test rows")
    if contract.measures_columns:
        most = contract.evaluation.importance.rows
        lines.append(f"{label} gets the cut embeddings of at most {most:,} validation rows once more, to measure columns")
    return [*lines, f"to {features}: how many test rows there are"]


def _evaluation_learnt(contract: Contract, facts: RunFacts) -> list[Learnt]:
    if facts.training is None or not contract.sends_gradients:
        return []
    peers, finished = ", ".join(contract.feature_parties), facts.finished
    embedded = "The cut embeddings of the test rows."
    if contract.measures_columns:
        by = "the weights before the refit" if facts.training.refit_epochs else "the final weights"
        embedded += (
            f" Those of at most {contract.evaluation.importance.rows:,} validation rows once more, by {by}, to measure columns."
        )
    whats = [embedded]
    if contract.evaluation.importance.feature_columns != "none":
        whats.append(
            f"From {peers}: {shuffled_embeddings(contract)}; so by how much the metric falls without each of these columns."
        )
    of_columns = protection(contract, of="features")
    items = [Learnt(step="evaluation", party=contract.label_party, what=what, guarantee=of_columns) for what in whats]

    answered, released = f"Nothing but the number of test rows; the metrics stay with {contract.label_party}.", "not sent"
    if finished.epsilon is not None:
        what = "a noisy AUC" if finished.auc is not None else "that the noise left no AUC to release"
        answered = f"The number of test rows, and {what}, from {contract.label_party}."
        released = f"{finished.epsilon:g}-DP for {finished.protects}"
    if shared := shared_with_feature_parties(contract):
        answered, released = f"The number of test rows, {shared}, from {contract.label_party}.", UNPROTECTED
    if finished.epsilon is not None and shared:  # columns in addition to a private AUC
        answered = f"{answered[:-1]}, and {'a noisy AUC' if finished.auc is not None else 'that the noise left no AUC'}."
        released = f"{UNPROTECTED}; the AUC: {finished.epsilon:g}-DP for {finished.protects}"
    return items + [Learnt(step="evaluation", party=name, what=answered, guarantee=released) for name in contract.feature_parties]


def _shared_metrics(contract: Contract) -> list[str]:
    if not contract.evaluation.share_metrics:
        return []
    label, features = parties_of(contract)
    return [
        f"{label} sends {features} the exact {', '.join(contract.evaluation.share_metrics)} of the test rows "
        "(evaluation.share_metrics); not private"
    ]


def _importance(contract: Contract) -> list[str]:
    columns = contract.evaluation.importance.feature_columns
    if columns == "none":
        return []
    label, features = parties_of(contract)
    lines = [
        f"{features}: {shuffled_embeddings(contract)} to {label} (evaluation.importance.feature_columns)",
        f"{label} learns by how much the metric falls without each column of {features}, by its number",
    ]
    if columns == "both":
        lines.append(
            f"{label} sends {features} these falls, exact figures of the validation labels "
            "(evaluation.importance.feature_columns: both); not private"
        )
    return lines


def shuffled_embeddings(contract: Contract) -> str:
    """Say what a feature party sends if its columns are measured."""
    importance = contract.evaluation.importance
    embeddings = "1 embedding" if importance.repeats == 1 else f"{importance.repeats} embeddings"
    return (
        f"the number of columns, and for each of them {embeddings} of at most {importance.rows:,} validation rows "
        "with its cells shuffled, which discloses these columns: each cell of these rows can be rebuilt, with no row known"
    )


def shared_with_feature_parties(contract: Contract) -> str:
    """Say what the contract's keys send to a feature party after evaluation. Return an empty text if they send nothing."""
    evaluation = contract.evaluation
    parts = [f"the exact {', '.join(evaluation.share_metrics)} with intervals"] if evaluation.share_metrics else []
    if evaluation.importance.feature_columns == "both":
        parts.append("by how much the metric falls without each own column")
    return " and ".join(parts)


EVALUATION = (
    Disclosure(
        name="evaluation",
        label_party="cut embeddings of test rows, and of some validation rows once more",
        feature_party="the number of test rows",
        guarantee="none",
        fields=("CutEmbedding.step", "CutEmbedding.values", "Finished.rows"),
        sentences=_test_rows,
        learnt=_evaluation_learnt,
    ),
    Disclosure(
        name="`evaluation.privacy`",
        label_party="nothing more",
        feature_party="one AUC with noise",
        guarantee="ε-DP of test labels, or of rows",
        fields=(
            *("Finished.auc", "Finished.low", "Finished.high", "Finished.epsilon", "Finished.mechanism", "Finished.protects"),
            "Finished.reveals",
        ),
        sentences=stated(
            lambda contract: contract.evaluation.privacy is not None,
            "{label} sends {features} one AUC of the test rows with noise, {contract.evaluation.privacy.epsilon:g}-DP "
            "(evaluation.privacy)",
        ),
    ),
    Disclosure(
        name="`evaluation.share_metrics`",
        label_party="nothing more",
        feature_party="exact metrics of the test rows",
        guarantee="none",
        fields=("SharedResults.rows", "SharedResults.metrics"),
        sentences=_shared_metrics,
    ),
    Disclosure(
        name="`importance.feature_columns`",
        label_party="embeddings of validation rows with one column shuffled, [which disclose that "
        "column](../reference/report.md#which-columns-matter); how much the metric falls without each column",
        feature_party="with `both`, these falls",
        guarantee="none",
        fields=("ShuffledColumns.columns", "CutEmbedding.values", "SharedResults.falls"),
        sentences=_importance,
    ),
    Disclosure(
        name="a private AUC of many clients (`release_private_auc` among them)",
        label_party="the server: a noisy sum of all clients' counts, or noisy scores with labels",
        feature_party="a client: the released AUC",
        guarantee="ε-DP of labels, or of rows",
        fields=(
            *("Join.public_key", "Roster.public_keys", "Roster.position", "Term.values"),
            *("PublicBins.edges", "PublicBins.totals", "PublicResult.auc", "PublicResult.low", "PublicResult.high"),
            *("NoisyScoreRows.scores", "NoisyScoreRows.labels"),
        ),
    ),
    Disclosure(
        name="audit",
        label_party="nothing",
        feature_party="that it was made",
        guarantee="nothing is sent for it",
    ),
    Disclosure(
        name="an early end",
        label_party="one of a few fixed sentences; if the peer did something wrong, a line that says what, such as how many ids "
        "it announced",
        feature_party="the same; if another feature party broke the protocol, that it did, but not how",
        guarantee="nothing else of an error is sent",
        fields=("Stopped.reason", "Stopped.final"),
    ),
)
