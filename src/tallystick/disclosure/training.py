"""State what a training discloses, and a search, which trains several times."""

from tallystick.config.contract import Contract
from tallystick.config.sections import FULL, LEAST_FOLDED
from tallystick.disclosure.disclosure import Disclosure, RunFacts, parties_of, stated
from tallystick.disclosure.protection import UNPROTECTED, protection
from tallystick.imputation.imputer_table import label_strategy
from tallystick.results import Learnt


def _embeddings(contract: Contract) -> list[str]:
    if not contract.sends_gradients:
        return []
    label, features = parties_of(contract)
    return [
        f"{label} gets a cut embedding for each training row and epoch, and for validation rows. If it knows some rows, it can "
        f"rebuild columns of {features} from them; {protection(contract, of='features')}",
    ]


def _gradients(contract: Contract) -> list[str]:
    if not contract.sends_gradients:
        return []
    label, features = parties_of(contract)
    other_columns = " and of the other feature parties" if len(contract.feature_parties) > 1 else ""
    clock = f", and the last one from {label}'s clock (training.minutes)" if contract.training.minutes is not None else ""
    several = f"all {contract.target.outputs} labels" if contract.target.type == "multilabel" else "the label"
    return [
        f"to {features}: a cut gradient per training row and epoch. It depends on {several} of that row, and on its weight, if "
        "rows have any. Without a guarantee for labels attacks read the label off it; "
        f"{protection(contract, of='labels')}",
        f"to {features}: after each validation whether the weights are the best so far, and after each epoch whether training "
        f"stops. These bits follow from the validation labels{clock}",
        f"to {features}: cut gradients also tell something about the columns of {label}{other_columns}, because they depend on "
        "the score, which is computed from all columns; no defence of labels promises anything for columns",
    ]


def _training_learnt(contract: Contract, facts: RunFacts) -> list[Learnt]:
    """Say what crosses the cut in training. It follows from the contract, so every party says the same of every party."""
    state = facts.training
    if state is None or not contract.sends_gradients:
        return []
    training, validation, folds = facts.rows["training"], facts.rows["validation"], facts.networks
    rows = training + validation
    peers = ", ".join(contract.feature_parties)
    both = f"{training} training and {validation} validation rows" if validation else f"{training} training rows"
    embedded = f"A cut embedding per row and epoch from {peers}: {both}, {state.first_epochs or state.epoch} epochs."
    answered = (
        f"A cut gradient per training row and epoch ({training} rows, {state.first_epochs or state.epoch} epochs), from which "
        "labels can be estimated, and after each validation whether the weights are the best so far."
    )
    resolved = contract.training.model_copy(update={"folds": folds}).resolved(training)
    times = contract.validations(resolved) if validation else 1
    if times > 1:
        embedded += f" Of validation rows up to {times} in an epoch (training.validations)."
    if state.refit_epochs:
        embedded += f" The same of {state.refit_epochs} more epochs, in which training began anew with the validation rows."
        answered += f" The same of {rows} rows, the validation rows among them, for {state.refit_epochs} epochs more."
    if folds > 1:
        embedded = (
            f"From {peers}, {folds} cut embeddings for each row, one for each network: {rows} training and validation "
            f"rows, up to {1 + times} times in each of {state.epoch} epochs."
        )
        answered = (
            f"{folds} cut gradients for each row and epoch, one from each network ({rows} training and validation rows, "
            f"{state.epoch} epochs). The gradient of the network that does not train on the row is zero; labels can be "
            "estimated from the others. After each validation: which networks have their best weights so far."
        )
    of_labels, of_columns = protection(contract, of="labels"), protection(contract, of="features")
    items = [Learnt(step="training", party=contract.label_party, what=embedded, guarantee=of_columns)]
    items += [Learnt(step="training", party=name, what=answered, guarantee=of_labels) for name in contract.feature_parties]
    for name in contract.feature_parties:
        owners = " and ".join([contract.label_party, *(other for other in contract.feature_parties if other != name)])
        what = f"Something about the columns of {owners}: cut gradients depend on the score, which is computed from all columns."
        items.append(Learnt(step="training", party=name, what=what, guarantee=UNPROTECTED))
    return items


def _once(contract: Contract) -> list[str]:
    if not contract.embeds_once:
        return []
    label, features = parties_of(contract)
    epsilon = contract.promotion.epsilon
    but = f", except which run is promoted (promotion.epsilon = {epsilon:g})" if epsilon is not None else ""
    return [
        f"nothing that depends on a label is sent to {features} (training.gradients = none){but}: no gradient, no decision of "
        f"training, no figure; each row's embedding crosses once, and {label} then trains, stops and evaluates alone",
        f"these embeddings show {label} the columns of {features}: nearly all of them if it knows some rows and no defence of "
        "columns is set",
    ]


def _once_learnt(contract: Contract, facts: RunFacts) -> list[Learnt]:
    """Say what crosses in a training without gradients."""
    if not contract.embeds_once or not facts.rows:
        return []
    peers, label = ", ".join(contract.feature_parties), contract.label_party
    rows = ", ".join(f"{count} {part}" for part, count in facts.rows.items())
    embedded = f"One cut embedding per row from {peers} ({rows} rows), by bottom models that know no label."
    nothing = f"Nothing about labels: {label} sent no cut gradient, no decision, no figure. The time of messages tells none."
    return [
        Learnt(step="training", party=label, what=embedded, guarantee=protection(contract, of="features")),
        *(
            Learnt(step="training", party=name, what=nothing, guarantee="what is sent does not depend on labels")
            for name in contract.feature_parties
        ),
    ]


def start_lines(contract: Contract) -> list[str]:
    """Say what public starting weights cost both sides, if the contract asks for them."""
    if contract.training.starts == "secret":
        return []
    label, features = parties_of(contract)
    return [
        f"every party can make all first models (training.starts = public). With these and the first batches {label} can compute "
        f"columns of {features} without knowing a row, and {features} can try {label}'s labels one by one"
    ]


def validation_lines(contract: Contract) -> list[str]:
    """Say what is disclosed by validating more than once in an epoch."""
    times = contract.validations(contract.training) if contract.split.validation else 1
    if times == 1 or not contract.sends_gradients:
        return []
    label, features = parties_of(contract)
    return [
        f"{label} gets the embedding of each validation row up to {times} times in an epoch (training.validations), and tells "
        f"{features} each time whether the weights are the best so far: a bit that follows from the validation labels"
    ]


def _refit(contract: Contract) -> list[str]:
    if not (contract.refits and contract.sends_gradients):
        return []
    label, features = parties_of(contract)
    why = "true" if contract.training.refit is True else "auto, where the split is by time"
    return [
        f"when {label}'s validation has found the best number of passes, training begins anew for that number, with the "
        f"validation rows (training.refit: {why}): further gradients go to {features}, which depend on the validation rows' "
        f"labels too, and {label} gets further embeddings of every row"
    ]


def _folds(contract: Contract) -> list[str]:
    most = max(contract.folds(rows) for rows in (1, LEAST_FOLDED))
    if most == 1 or not contract.sends_gradients:
        return []
    label, features = parties_of(contract)
    setting = contract.training.folds
    when = f" with {LEAST_FOLDED} to {FULL - 1:,} training rows" if setting == "auto" else ""
    return [
        f"{most} networks train together{when} (training.folds: {setting}). For each training and validation row {label} gets "
        f"{most} embeddings in each epoch, and again at each validation. {label} sends {features} as many gradients, which "
        f"depend on the validation rows' labels too. The row's id decides which of its gradients is zero. At each validation it "
        f"tells {features} which networks have their best weights so far: {most} bits, which depend on the labels of the "
        f"rows that judge them"
    ]


def screening_line(contract: Contract) -> str:
    """Say what is disclosed when a feature party with many columns closes those that do not help."""
    return (
        f"nothing is sent for encoding.screening. But from embeddings after the first epoch {contract.label_party} can tell how "
        "many columns are open, and it rebuilds open columns more easily than it would rebuild all columns"
    )


def _search_learnt(contract: Contract, facts: RunFacts) -> list[Learnt]:
    """Say what a search discloses beyond one training: as much again with every trial."""
    if facts.search is None:
        return []
    search, peers = facts.search, ", ".join(contract.feature_parties)
    embedded = (
        f"A cut embedding per row and epoch from {peers}, by another network in each of {search.trials} trials: "
        f"{search.training} training "
        f"and {search.validation} validation rows, {search.epochs} epochs in all."
    )
    answered = (
        f"A cut gradient per training row and epoch in each of {search.trials} trials ({search.training} rows, {search.epochs} "
        "epochs "
        "in all), from which labels can be estimated; per epoch whether validation improved; the values that were tried, which "
        "follow "
        "from the validation losses of the trials before, and which of them were best."
    )
    of_labels = protection(contract, of="labels")
    protected = of_labels if of_labels == UNPROTECTED else f"each trial a release of its own: {of_labels}"
    return [
        Learnt(step="training", party=contract.label_party, what=embedded, guarantee=protection(contract, of="features")),
        *(Learnt(step="training", party=name, what=answered, guarantee=protected) for name in contract.feature_parties),
    ]


def draws_labels_first(contract: Contract) -> bool:
    """Tell whether labels of a union's rows are drawn before training, from embeddings sent for that purpose."""
    return contract.linkage.imputes and label_strategy(contract.union.labels)[0].settles_first


def _embedded_once_more(contract: Contract) -> list[str]:
    """Say what feature parties also send, for unaligned rows or for labels that are drawn before training."""
    if draws_labels_first(contract):
        return [f"the training rows' cut embeddings once more to {contract.label_party}, before epoch 1"]
    if not contract.unaligned.facts.embeds:
        return []
    after = f"after epoch {contract.unaligned.epochs_before}"
    return [f"the training rows' cut embeddings once more to {contract.label_party}, {after}"]


def _unaligned(contract: Contract) -> list[str]:
    _, features = parties_of(contract)
    settles = draws_labels_first(contract)
    why = f"union.labels = {contract.union.labels}" if settles else f"unaligned.method = {contract.unaligned.method}"
    lines = [f"{features}: {sentence} ({why})" for sentence in _embedded_once_more(contract)]
    if not contract.unaligned.facts.dispensable:
        return lines
    derived = contract.without_unaligned()
    screened = [screening_line(contract)] if any(derived.screens(name) for name in contract.feature_parties) else []
    where = f"if every id of {contract.label_party} is common, the run trains as with unaligned.method = none"
    return lines + [f"{where}: {sentence}" for sentence in _refit(derived) + _folds(derived) + screened]


def _unaligned_learnt(contract: Contract, facts: RunFacts) -> list[Learnt]:
    """Say what is sent for unaligned rows, what a feature party learns about them, and how they change later cut gradients."""
    if facts.training is None or not contract.sends_gradients:
        return []
    peers, label, method = ", ".join(contract.feature_parties), contract.label_party, contract.unaligned.method
    of_columns = protection(contract, of="features")
    items = [
        Learnt(step="training", party=label, what=f"From {peers}: {sentence}.", guarantee=of_columns)
        for sentence in _embedded_once_more(contract)
    ]
    if not contract.unaligned.used:
        return items
    steps = (
        "how many steps they take follows from the contract" if contract.unaligned.steps_beside else "they have no training step"
    )
    what = (
        f"Nothing is sent about {label}'s rows without a partner's row (unaligned.method = {method}): {steps}. Their labels "
        "shape the weights behind later cut gradients, as aligned rows' do; a defence that replaces labels replaces theirs too. "
        f"Their number follows from two counts that the alignment tells a feature party: {label}'s ids, and how many of these "
        "all parties have."
    )
    of_labels = protection(contract, of="labels")
    return items + [Learnt(step="training", party=name, what=what, guarantee=of_labels) for name in contract.feature_parties]


_CROSSING = ("CutWidth.width", "CutEmbedding.step", "CutEmbedding.values")

TRAINING = (
    Disclosure(
        name="training: embeddings",
        label_party="a cut embedding per training row and epoch; up to `training.validations` (by default 4) per validation row "
        "and epoch. They rebuild columns",
        feature_party="nothing",
        guarantee="none; [noise](defenses.md) has a guarantee for one release of a row",
        fields=_CROSSING,
        sentences=lambda contract: [*_embeddings(contract), *validation_lines(contract)],
    ),
    Disclosure(
        name="training: gradients",
        label_party="nothing",
        feature_party="a cut gradient per training row and epoch. It tells the row's label and weight, and something of the "
        "other parties' columns; after each validation, whether it is the best so far; after each epoch, whether training stops",
        guarantee="none; if a method with an ε replaces labels, differential privacy of training and validation "
        "labels for all that is sent; none for columns",
        fields=(
            *("CutGradient.step", "CutGradient.values", "Pace.staleness"),
            *("ValidationDecision.step", "ValidationDecision.improved", "ValidationDecision.stop"),
        ),
        sentences=_gradients,
        learnt=_training_learnt,
    ),
    Disclosure(
        name="a refit (`training.refit`; a split by time turns it on)",
        label_party="a cut embedding per training and validation row and epoch, for the number of passes that validated best",
        feature_party="cut gradients of these rows",
        guarantee="as for training",
        fields=("CutEmbedding.values", "CutGradient.values"),
        sentences=_refit,
    ),
    Disclosure(
        name="networks side by side (`training.folds`, k of them)",
        label_party="k cut embeddings per training and validation row and epoch, and k more at each validation",
        feature_party="k cut gradients of these rows; one of the k is zero and tells the row's fold, which its id tells too; "
        "after each validation, which of the k networks have their best weights so far",
        guarantee="as for training",
        fields=("CutEmbedding.values", "CutGradient.values", "ValidationDecision.improved"),
        sentences=_folds,
    ),
    Disclosure(
        name="training with `gradients: none`",
        label_party="one cut embedding per row. It rebuilds columns",
        feature_party="that it arrived",
        guarantee="what is sent depends on no label, if the label party runs this program; none for embeddings",
        fields=(*_CROSSING, "Finished.rows"),
        sentences=_once,
        learnt=_once_learnt,
    ),
    Disclosure(
        name="`training.starts: public`",
        label_party="the feature parties' first weights, and from them columns of the first batches",
        feature_party="the label party's first weights, with which labels can be tried one by one",
        guarantee="none",
        sentences=start_lines,
    ),
    Disclosure(
        name="unaligned rows",
        label_party="with `heuristic`, `regressor` and `diffu-at`, the training rows' embeddings once more",
        feature_party="how many there are, from the counts of the alignment",
        guarantee="none",
        fields=("CutEmbedding.values",),
        sentences=_unaligned,
        learnt=_unaligned_learnt,
    ),
    Disclosure(
        name="`tune`",
        label_party="what a training tells, once per trial; which keys may be tuned",
        feature_party="the same; which values were tried and which were best, which depends on validation losses",
        guarantee="as for training; each trial is charged",
        fields=("TuningTerms.keys", "TuningTerms.trials", "NextTrial.number", "NextTrial.values", "NextTrial.over"),
        sentences=stated(
            lambda contract: bool(contract.tuning.keys),
            "`tallystick tune`, if you use it: each of up to {contract.tuning.trials} trials discloses as much as a training, "
            "and the search tells {features} which values were tried and which were best (tuning.keys)",
        ),
        learnt=_search_learnt,
    ),
)
