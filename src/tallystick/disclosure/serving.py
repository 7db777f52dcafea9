"""State what predictions and serving disclose."""

from tallystick.config.contract import Contract
from tallystick.config.serving import MOST_ALIGNMENTS
from tallystick.disclosure.disclosure import Disclosure, parties_of


def _prediction(contract: Contract) -> list[str]:
    label, features = parties_of(contract)
    if contract.linkage.imputes:
        return [
            f"`tallystick predict`: the ids of both tables are aligned as above; {label} gets an embedding for every position, "
            f"and {features} a score for every position, and knows which positions are its own rows. A second prediction of the "
            "same ids makes up other rows: if a row's embedding or score changed, the other side lacks that row"
        ]
    gets = "scores of each scored row once" if contract.shares_head else "a cut embedding per scored row"
    return [
        f"`tallystick predict`: the rows of all tables are aligned as above, so {features} can tell which of its own rows are "
        f"scored; {label} gets {gets}"
    ]


def serving_lines(contract: Contract) -> list[str]:
    """Say what `tallystick serve` discloses: a sentence for each way of asking that the contract allows, none without any."""
    if contract.serving is None:
        return []
    label, features, window = contract.label_party, " and ".join(contract.feature_parties), contract.serving.window
    if contract.shares_head:
        return [
            f"`tallystick serve`: {label} answers with scores that training and `tallystick predict` opened, and calls nobody: "
            f"neither {features} nor {contract.helper} learns that there was a request (serving.ways: ahead)",
            "`tallystick serve`: `predict` opens a score of every common row of the tables that it is given, whether or not it "
            f"is ever asked for: {label} and {features} choose by these tables which rows have one. {label} keeps the scores, "
            "and no party can take one back",
        ]
    rows = "rows of the union" if contract.linkage.imputes else "common rows"
    has = f", and that {features} has it" if contract.linkage.imputes else ""
    ways = {
        "key": f"{label} shows {features} the key of each row that it asks for, and when, also of rows that {features} lacks",
        "position": f"{label} shows {features} which of the common rows it asks for, and when; nothing is sent about other keys",
        "window": f"{label} shows {features} a window of at least {window} common rows, one or more of which it wants, and when; "
        "the window of a row changes only by rows that come or go, and other knowledge of these rows can tell which one it was; "
        "no formal guarantee",
        "ahead": f"{label} gets the embeddings of all {rows} when the sides meet; a request sends no message, so {features} does "
        "not learn from messages that there was one",
        "embedding": f"{features} shows {label} the embedding of each row that it asks for, and when, and no id; but "
        f"{label} recognises by it a row that was embedded before, in training, evaluation, a prediction or an earlier request; "
        f"if it knew which row that was, it knows it now{has}; no formal guarantee",
        "agreed-batch": f"{features} shows {label} which batch of at least {window} {rows} holds a row that it asks for, the "
        "embeddings of all its rows, and when, once while the sessions stand; other knowledge of these rows can tell which "
        "one it was; no formal guarantee",
    }
    lines = [f"`tallystick serve`: {ways[way]} (serving.ways: {way})" for way in contract.serving.ways]
    lines.append(
        f"`tallystick serve`: {label} keeps embeddings that it was sent and can see when a row of {features} has changed; "
        f"with enough of them it can rebuild columns, as after a training; each side journals what was asked"
    )
    if not {"key", "embedding"}.issuperset(contract.serving.ways):
        lines.append(
            "`tallystick serve`: sides that meet with other keys than before align anew, with all that an alignment tells; a "
            f"partner may bring another list each time, at most {MOST_ALIGNMENTS} times a day"
        )
    if contract.serving.feature_party_asks:
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
            *lines,
            f"`tallystick serve`: {feature} gets the score of {which}. A score estimates the row's label as well as the model "
            "does, whoever holds the row; no formal guarantee",
            f"`tallystick serve`: {probing}; {label} answers {' and '.join(bounds) or 'any number of them: set a budget'}",
        ]
    lines.append(
        f"`tallystick serve`: a row that is asked of two versions has two embeddings, which tell {label} more of it than one; so "
        "has a row that a candidate scores beside (`tallystick runs ... shadow`, on all sides). Both count in questions_a_day "
        "and questions_a_day_per_row, and with gaussian-embeddings each version is charged. By ahead, all rows cross once more"
    )
    return lines


_CHOICES = (
    "`--run` and `--start-from`, if they name another run than the one in use: {features} can see which run {label} chose, by "
    "exact figures perhaps; not private, and entered in the ledger"
)


def _promotion(contract: Contract) -> list[str]:
    label, features = parties_of(contract)
    epsilon = contract.promotion.epsilon
    if not contract.sends_gradients and epsilon is None:
        return [
            f"`tallystick runs ... promote`, `rollback`, `shadow`, `--run` and `--start-from`, if you use them: {features} can "
            f"see which run {label} chose. Choose by time alone: a choice by figures shows something of labels"
        ]
    if epsilon is not None:
        return [
            f"`tallystick compare --decide`, if you use it: {features} can see which run {label} promotes. That shows an "
            f"answer which may be turned at random: {epsilon:g}-DP of all labels for each decision (promotion.epsilon)",
            f"`tallystick runs ... promote` without that answer, `rollback`, `shadow`, if you use them: {features} can see which "
            f"run {label} chose, by exact figures perhaps. It is not private, and the ledger says so",
            _CHOICES.format(features=features, label=label),
        ]
    return [
        f"`tallystick compare --decide` and `tallystick runs ... promote`, `rollback`, `shadow`, if you use them: {features} can "
        f"see which runs {label} promotes, takes back or tries, and when, and so how exact figures of the test labels compare. "
        "One label can change that. It is not private, and the ledger says so (promotion.epsilon is null)",
        _CHOICES.format(features=features, label=label),
    ]


SERVING = (
    Disclosure(
        name="chosen runs: `promote`, `rollback`, `shadow`, `--run`, `--start-from`, `compare --decide`",
        label_party="which runs are promoted, tried or named",
        feature_party="which runs are promoted, taken back, tried or named: with gradients, how exact figures of test labels "
        "compare, month after month; "
        "with `gradients: none`, that embeddings arrived",
        guarantee="none, unless `promotion.epsilon`: then ε-DP of all labels for each decision of `compare --decide`",
        fields=("Greeting.promoted", "VersionsHeld.promoted", "VersionsWanted.runs"),
        sentences=_promotion,
    ),
    Disclosure(
        name="prediction, intersection",
        label_party="alignment of new ids as above; an embedding per scored row",
        feature_party="which of its rows were scored",
        guarantee="none",
        fields=("CutEmbedding.step", "CutEmbedding.values"),
        sentences=_prediction,
    ),
    Disclosure(
        name="prediction, union",
        label_party="alignment as above; an embedding per position; equal embeddings can show imputed rows",
        feature_party="alignment as above; a score for every position, and which are its own rows. To both: a row that changes "
        "between two predictions of the same ids is made up",
        guarantee="none",
        fields=("CutEmbedding.values", "UnionScores.scores"),
        sentences=_prediction,
    ),
    Disclosure(
        name="serving, the label party asks",
        label_party="embeddings of the rows asked for (`ahead`: of all common rows, or of the union)",
        feature_party="which rows, and when: a key, a position, a window that holds it, or nothing, as `serving.ways` says",
        guarantee="none",
        fields=(
            *("WayOfAsking.way", "RowQuestion.number", "RowQuestion.run", "RowQuestion.keys", "RowQuestion.positions"),
            *("RowQuestion.last", "RowQuestion.versions"),
            *("RowAnswer.number", "RowAnswer.state", "RowAnswer.values", "RowAnswer.refusal"),
            *("AlignmentKept.name", "AlignmentNext.name", "AlignmentNext.again", "VersionsWanted.runs"),
            *("VersionsHeld.promoted", "VersionsHeld.candidate", "VersionsHeld.loaded", "VersionsHeld.failed"),
        ),
        sentences=serving_lines,
    ),
    Disclosure(
        name="serving, the feature party asks",
        label_party="embeddings of the rows asked for, or of a whole batch; which batch; it recognises rows that "
        "it was sent before",
        feature_party="a score per embedding, which estimates the label; from embeddings of its own choice, the top model",
        guarantee="none; daily budgets bound how much",
        fields=(
            *("ScoreQuestion.number", "ScoreQuestion.values", "ScoreQuestion.run", "ScoreQuestion.batch", "ScoreQuestion.last"),
            *("ScoreAnswer.number", "ScoreAnswer.state", "ScoreAnswer.values", "ScoreAnswer.refusal"),
        ),
        sentences=serving_lines,
    ),
)
