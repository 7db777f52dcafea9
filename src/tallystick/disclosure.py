"""What a contract lets leave, and what stands against it, in plain sentences: for check, before a job, for the report after."""

from typing import Literal

from tallystick.config.contract import Contract
from tallystick.config.sections import FULL, LEAST_FOLDED
from tallystick.defenses.read_by import READ_BY
from tallystick.imputation.registry import label_strategy


def disclosure_lines(contract: Contract) -> list[str]:
    """Everything that is disclosed by a key of the contract, and to whom; no formal guarantee covers any of it."""
    label, features = contract.label_party, " and ".join(contract.feature_parties)
    evaluation = contract.evaluation
    lines = [*gradient_lines(contract), *start_lines(contract), *validation_lines(contract), *refit_lines(contract)]
    lines += folds_lines(contract)
    lines += serving_lines(contract)
    if evaluation.share_metrics:
        lines.append(
            f"{label} sends {features} the exact {', '.join(evaluation.share_metrics)} of the test rows "
            "(evaluation.share_metrics); not private"
        )
    if contract.tuning.keys:
        lines.append(
            f"`tallystick tune`, if it is run: as much as a training in each of up to {contract.tuning.trials} trials, and to "
            f"{features} which values were tried and which were best (tuning.keys); a run tells none of it"
        )
    settles = draws_labels_first(contract)
    why = f"union.labels = {contract.union.labels}" if settles else f"unaligned.method = {contract.unaligned.method}"
    lines += [f"{features}: {sentence} ({why})" for sentence in embedded_once_more(contract)]
    columns = evaluation.importance.feature_columns
    if columns != "none":
        lines.append(f"{features}: {shuffled_embeddings(contract)} to {label} (evaluation.importance.feature_columns)")
        lines.append(f"{label} learns by how much the metric falls without each column of {features}, by its number")
    if columns == "both":
        lines.append(
            f"{label} sends {features} these falls, exact figures of the validation labels "
            "(evaluation.importance.feature_columns: both); not private"
        )
    return lines


def serving_lines(contract: Contract) -> list[str]:
    """What `tallystick serve` discloses, a sentence for each way of asking that the contract allows; nothing without any."""
    if contract.serving is None:
        return []
    label, features, window = contract.label_party, " and ".join(contract.feature_parties), contract.serving.window
    rows = "rows of the union" if contract.linkage.imputes else "common rows"
    has = f", and that {features} has it" if contract.linkage.imputes else ""
    ways = {
        "key": f"{label} shows {features} the key of each row that it asks for, and when, also of rows that {features} lacks",
        "position": f"{label} shows {features} which of the common rows it asks for, and when; of other keys nothing crosses",
        "window": f"{label} shows {features} a window of at least {window} common rows, one or more of which it wants, and when; "
        "the window of a row changes only by rows that come or go, and what else is known of these rows can tell which one it "
        "was; no formal guarantee",
        "ahead": f"the embeddings of all {rows} cross to {label} when the sides meet; of a request {features} learns nothing, "
        "not even that there was one",
        "embedding": f"{features} shows {label} the embedding of each row that it asks for, and when, and no id; but a row that "
        "was embedded before, in training, evaluation, a prediction or an earlier request, can be known again by it, and where "
        f"{label} then knew the row, it knows it now{has}; no formal guarantee",
        "agreed-batch": f"{features} shows {label} which batch of at least {window} {rows} holds a row that it asks for, the "
        "embeddings of all its rows, and when, once while the sessions stand; what else is known of these rows can tell which "
        "one it was; no formal guarantee",
    }
    lines = [f"`tallystick serve`: {ways[way]} (serving.ways: {way})" for way in contract.serving.ways]
    lines.append(
        f"`tallystick serve`: {label} keeps embeddings that it was sent and can see when a row of {features} has changed; "
        f"with enough of them it can rebuild columns, as after a training; each side journals what was asked"
    )
    if contract.serving.feature_party_asks:
        return lines + _score_lines(contract)
    lines.append(
        f"`tallystick serve`: a row that is asked of two versions has two embeddings, which tell {label} more of it than one; so "
        "has a row that a candidate scores beside (`tallystick runs ... shadow`, on all sides). Both count in questions_a_day "
        "and questions_a_day_per_row, and with gaussian-embeddings each version is charged. By ahead, all rows cross once more"
    )
    return lines


def _score_lines(contract: Contract) -> list[str]:
    """What scores teach a feature party that asks for them."""
    assert contract.serving is not None
    label, feature = contract.label_party, contract.feature_parties[0]
    batched = "agreed-batch" in contract.serving.ways
    which = "each row that it asks for" + (" and of all others in its batch" if batched else "")
    if batched and contract.linkage.imputes:
        which += f", rows that only {label} has included, by pseudonym"
    a_day, a_row = contract.serving.questions_a_day, contract.serving.questions_a_day_per_row
    bounds = [f"{a_day} rows a day (serving.questions_a_day)"] if a_day is not None else []
    bounds += [f"{a_row} times a day for a row (serving.questions_a_day_per_row)"] if a_row is not None else []
    probing = f"scores of embeddings of {feature}'s own choice teach it {label}'s top model"
    probing += f", and what the columns of {label} do to the score of a row" if batched else ""
    return [
        f"`tallystick serve`: {feature} gets the score of {which}: that estimates a label as well as the model does, and whoever "
        "has the row; no formal guarantee",
        f"`tallystick serve`: {probing}; {label} answers {' and '.join(bounds) or 'any number of them: set a budget'}",
    ]


def gradient_lines(contract: Contract) -> list[str]:
    """What is left to be learnt where no cut gradient is sent."""
    if contract.training.gradients == "sent":
        return []
    label, features = contract.label_party, " and ".join(contract.feature_parties)
    return [
        f"{features} are sent nothing that depends on a label (training.gradients = none): no gradient, no decision, no figure; "
        f"each row's embedding crosses once, and {label} then trains, stops and evaluates alone",
        f"these embeddings show {label} columns of {features}: with known rows about all of them, without a defence of columns",
    ]


def validation_lines(contract: Contract) -> list[str]:
    """What it costs that the weights are compared on validation rows more than once in an epoch."""
    times = contract.validations(contract.training) if contract.split.validation else 1
    if times == 1 or not contract.sends_gradients:
        return []
    label, features = contract.label_party, " and ".join(contract.feature_parties)
    return [
        f"{label} gets the embedding of each validation row up to {times} times in an epoch (training.validations), and tells "
        f"{features} each time whether the weights are the best so far: a bit that follows from the validation labels"
    ]


def refit_lines(contract: Contract) -> list[str]:
    """What it costs that training begins anew with the validation rows."""
    if not (contract.refits and contract.sends_gradients):
        return []
    label, features = contract.label_party, " and ".join(contract.feature_parties)
    why = "true" if contract.training.refit is True else "auto, where the split is by time"
    return [
        f"once {label}'s validation has said how many passes are best, training begins anew with the validation rows for as many "
        f"(training.refit: {why}): {features} get further gradients, of the validation rows' labels too, and {label} "
        "further embeddings of every row"
    ]


def folds_lines(contract: Contract) -> list[str]:
    """What it costs that several networks train side by side, each without one fold of the rows."""
    most = max(contract.folds(rows) for rows in (1, LEAST_FOLDED))
    if most == 1:
        return []
    label, features = contract.label_party, " and ".join(contract.feature_parties)
    asked = contract.training.folds
    when = f" with {LEAST_FOLDED} to {FULL - 1:,} training rows" if asked == "auto" else ""
    return [
        f"{most} networks train side by side{when} (training.folds: {asked}): of each training and validation row {label} gets "
        f"{most} embeddings side by side in each epoch, and again at each validation; {features} get as many gradients, of the "
        "validation rows' labels too. Which of a row's gradients is 0 follows from its id. At each validation they hear which of "
        "the networks were never better: as many bits, which follow from the labels of the fold that each one judges"
    ]


def screening_line(contract: Contract) -> str:
    """What it tells that a feature party, which has many columns, may close those that say nothing."""
    return (
        f"nothing is sent for encoding.screening; but from embeddings after the first epoch {contract.label_party} can tell how "
        "many columns are open, and it rebuilds these more easily than all of them"
    )


def draws_labels_first(contract: Contract) -> bool:
    """Whether labels of a union's rows are drawn before training, from embeddings that are sent for it."""
    return contract.linkage.imputes and label_strategy(contract.union.labels)[0].settles_first


def start_lines(contract: Contract) -> list[str]:
    """What public starting weights cost both sides, where the contract asks for them."""
    if contract.training.starts == "secret":
        return []
    label, features = contract.label_party, " and ".join(contract.feature_parties)
    return [
        f"every party can make all first models (training.starts = public): from these and the first batches {label} can solve "
        f"for columns of {features}, knowing no row, and they can try {label}'s labels one by one"
    ]


def membership_lines(contract: Contract, *, own_columns: bool | None) -> list[str]:
    """What no filling of a union's rows hides from a label party with columns of its own (docs/explanation/unions.md).

    ``own_columns`` says whether it has any that are of use; None where that is not known, as at its peers.
    """
    if not contract.linkage.imputes or own_columns is False:
        return []
    label, features = contract.label_party, " and ".join(contract.feature_parties)
    having = f"{label} has columns of its own, and" if own_columns else f"if {label} has columns of its own,"
    return [
        f"{having} whether a row's embedding goes with them can tell most made-up rows from real ones: take it as known to "
        f"{label} which rows of the union {features} has, whatever fills the others (union.features = {contract.union.features})"
    ]


def repeats_lines(contract: Contract) -> list[str]:
    """What is disclosed where the label party has several rows for one id."""
    if contract.alignment.duplicates != "all":
        return []
    label, features = contract.label_party, " and ".join(contract.feature_parties)
    return [
        f"{features} learns how many rows {label} has for each common id, and which steps these are in "
        "(alignment.duplicates: all); an id's rows are in one part of a split by hash, and each by its own time in one by time",
    ]


def protects_a_row(contract: Contract) -> list[str]:
    """What a guarantee of labels is about where the label party has several rows for one id."""
    labels = any(entry.covers_labels for entry in contract.defense) or contract.evaluation.privacy is not None
    if contract.alignment.duplicates != "all" or not labels:
        return []
    return [
        f"what is protected is one row's label, or one row: an id with k rows of {contract.label_party} has k of them, each with "
        "the whole epsilon"
    ]


def embedded_once_more(contract: Contract) -> list[str]:
    """What feature parties send besides, for unaligned rows or for labels that are drawn before training, in a sentence each."""
    if draws_labels_first(contract):
        return [f"the training rows' cut embeddings once more to {contract.label_party}, before epoch 1"]
    if not contract.unaligned.facts.embeds:
        return []
    epoch = contract.unaligned.joint_epochs
    return [f"the training rows' cut embeddings once more to {contract.label_party}, after epoch {epoch}"]


def unaligned_lines(contract: Contract) -> list[str]:
    """What a feature party learns of unaligned rows, and what these add to what cut gradients tell."""
    if not contract.unaligned.used:
        return []
    label, method = contract.label_party, contract.unaligned.method
    steps = "how many steps they take follows from the contract" if contract.unaligned.facts.local_steps else "they have no step"
    return [
        f"Of {label}'s rows without a partner's row nothing crosses (unaligned.method = {method}): {steps}. Their labels shape "
        "the weights behind later cut gradients, as aligned rows' do; a defence that replaces labels replaces theirs too. "
        f"How many they are follows from two counts that the alignment tells a feature party: {label}'s ids, and how many of "
        "these all parties have."
    ]


def shuffled_embeddings(contract: Contract) -> str:
    """What a feature party sends where its columns are measured."""
    wanted = contract.evaluation.importance
    embeddings = "1 embedding" if wanted.repeats == 1 else f"{wanted.repeats} embeddings"
    return (
        f"the number of columns, and for each of them {embeddings} of at most {wanted.rows:,} validation rows "
        "with its cells shuffled"
    )


def shared_with_feature_parties(contract: Contract) -> str:
    """What a feature party is sent after evaluation by the contract's keys; empty where it is nothing."""
    evaluation = contract.evaluation
    parts = [f"the exact {', '.join(evaluation.share_metrics)} with intervals"] if evaluation.share_metrics else []
    if evaluation.importance.feature_columns == "both":
        parts.append("by how much the metric falls without each own column")
    return " and ".join(parts)


def defense_lines(contract: Contract, *, of: Literal["labels", "features", "both"] = "both") -> list[str]:
    """One line per defence of a contract: method, strength, guarantee and what reads it; one that says so where there is none.

    ``of`` leaves out what hides the other side's secret.
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
    return lines or ["none; no formal guarantee"]


def deviation_of(contract: Contract) -> str:
    """Say what a peer gains that does not follow the protocol of this contract's alignment."""
    linkage = contract.linkage
    several = len(contract.feature_parties) > 1
    return linkage.deviation_of_several if several and linkage.deviation_of_several is not None else linkage.deviation
