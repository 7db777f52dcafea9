"""State what a head on shares discloses: to the parties, and to the helper."""

from tallystick.config.contract import Contract
from tallystick.disclosure.disclosure import Disclosure, RunFacts, parties_of, stated
from tallystick.results import Learnt

ASSUMES = "all sides follow the protocol, the helper works with no party, and AES-256 is a pseudorandom generator"
CHOSEN_LABEL = (
    "a label party that takes a column it partly knows for the label, or several columns packed into one label, learns them from "
    "the scores"
)


def _scores_of_a_row(contract: Contract) -> str:
    """Say how many scores of a row the label party learns. Each score is one more number that depends on the columns."""
    if contract.target.type != "multiclass":
        return "one score"
    return f"{contract.scores_of_a_row} scores (one for each class)"


def _scores(contract: Contract) -> list[str]:
    if not contract.shares_head:
        return []
    label, features = parties_of(contract)
    lines = [
        f"{label} learns {_scores_of_a_row(contract)} for each validation row, test row and row of a prediction, and nobody else "
        f"learns any. Each score tells something about the columns of {features}. A model scores each row once, and another run "
        f"scores the same row again. In a prediction {label} says which common rows it has no score of yet",
    ]
    if contract.target.type == "multiclass":
        lines.append(
            f"the {contract.target.classes} scores of a row tell together much more than one: from few rows whose columns it "
            f"knows, {label} can rebuild most columns of {features} of all scored rows. Nobody should sign for columns with "
            "several classes"
        )
    if contract.target.type != "regression":
        lines.append(
            f"{label} learns, with the first scores, one whole number of each training: how often, over all rows and steps, "
            "training scores came near the edge of the range in which training on shares works. In a sound training it is 0 or "
            "a few"
        )
    return lines


def _training(contract: Contract) -> list[str]:
    if not contract.shares_head:
        return []
    label, features = parties_of(contract)
    several = (
        [
            f"neither {label} nor another feature party receives anything about the columns of one of {features}, even if all of "
            f"them work together: this holds as long as {contract.helper} works with none of them. Their messages go through "
            f"{label}, which passes on sums. Each learns how many features each party brings"
        ]
        if len(contract.feature_parties) > 1
        else []
    )
    return [
        f"in training, {label} receives nothing about the columns of {features}, and nothing about labels or columns of {label} "
        "goes to anybody: what crosses are secret shares, each of them uniform (training.gradients = shared). This "
        f"holds if {ASSUMES}. A party that does not follow the protocol can read columns",
        *several,
        f"{contract.helper} learns how many rows, columns and steps there are, and which rows are in a batch together. "
        "Together with one party it knows the others' columns, labels and weights, and later too if it kept the seeds",
        f"{features} and {contract.helper} learn whether rows have weights, but no weight",
    ]


def _shared_learnt(contract: Contract, facts: RunFacts) -> list[Learnt]:
    if not contract.shares_head or facts.training is None:
        return []
    label, features = parties_of(contract)
    scored = facts.rows.get("validation", 0) + facts.rows.get("test", 0)
    sentence = _scores_of_a_row(contract)
    return [
        Learnt(
            step="training",
            party=label,
            what=f"Labels are an input: {CHOSEN_LABEL}. {sentence[0].upper()}{sentence[1:]} for each of {scored:,} "
            f"validation and test rows, which tell something about the columns of {features}. Nothing else about them.",
            guarantee=f"of all but the scores, if {ASSUMES}",
        ),
        *(
            Learnt(
                step="training",
                party=party,
                what="Nothing about labels or columns of "
                f"{' and '.join([label, *(name for name in contract.feature_parties if name != party)])}: shares crossed, whose "
                "number and size do not depend on labels.",
                guarantee=f"holds if {ASSUMES}",
            )
            for party in contract.feature_parties
        ),
    ]


CHOSEN_LABELS = (
    Disclosure(
        name="labels of a head on shares",
        label_party="what scores of a label of its choice tell: a column of the feature party's, if that is the label",
        feature_party="nothing",
        guarantee="none: labels are an input",
        fields=(),
        sentences=stated(
            lambda contract: contract.shares_head,
            f"labels are an input of training.gradients = shared: {{label}} chooses them, and {CHOSEN_LABEL}. No protocol "
            "prevents it. {features} can choose whom to trust, and bound how many scores of a row are ever opened "
            "(privacy.scores_per_row)",
        ),
    ),
)
"""The label party's choice of a label, which no protocol can check. It comes first in the table."""

SHARED_HEAD = (
    Disclosure(
        name="training with `gradients: shared`",
        label_party="nothing",
        feature_party="whether the label party has columns, and whether its rows have weights",
        guarantee=f"holds if {ASSUMES}. The helper learns numbers of rows, columns and steps, and which rows are in a batch",
        fields=(
            *("FeatureCount.columns", "FeatureCounts.columns", "FeatureCounts.weighted"),
            *("HeadSizes.training", "HeadSizes.scored", "HeadSizes.columns", "HeadSizes.outputs", "HeadSizes.weighted"),
            *("MaskSeed.seed", "Correction.words"),
            *("MaskedFeatures.words", "MaskedWeights.words", "MaskedScores.words", "MaskedErrors.words", "MaskedSteps.words"),
        ),
        sentences=_training,
        learnt=_shared_learnt,
    ),
    Disclosure(
        name="scores of a head on shares",
        label_party="one score per row and model, or one per class: of validation, test and predicted rows; of classes one whole "
        "number per training, how often training scores came near the edge of the range",
        feature_party="of a prediction, which common rows have no score yet",
        guarantee="none for what scores tell about columns, first of all if the label party chose the label for that",
        fields=("ScoreShares.words", "SharesKept.kept", "EdgeShares.words", "UnscoredRows.rows"),
        sentences=_scores,
    ),
)
