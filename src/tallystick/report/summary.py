"""Write the first sentences of the page: what joining brought, and whether there is a clear difference."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tallystick.evaluation.measure import Comparison, MetricValue
from tallystick.metrics import METRICS, Metric
from tallystick.report.formats import interval, number
from tallystick.results import (
    Result,
    TrainingSummary,
)

PERFECT = 0.005  # largest error of an AUC or an accuracy that only a column with the answer explains
ENOUGH_OF_A_CLASS = 100  # test rows, so that an interval has its stated level
REMAINS = 0.1  # largest share of own columns' error that may remain: honest columns hardly ever gain more


@dataclass(frozen=True, kw_only=True)
class Names:
    """The parties in words."""

    all: str
    label: str
    feature: str


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Headline of the page."""

    title: str
    text: str


def headline(result: Result) -> Headline:
    """Say what joining brought, as far as the result knows it."""
    names, evaluation = party_names(result), result.evaluation
    if result.sections.sweep is not None:
        return Headline(
            title=f"What {names.feature} could learn of {names.label}'s labels, and what hiding them costs",
            text=f"A partner on {names.label}'s own rows and columns. No partner was involved, and nothing left.",
        )
    if result.sections.tuning is not None:
        best, trials = result.sections.tuning.best, result.sections.tuning.trials
        return Headline(
            title=f"{len(trials)} trials" + (f", the best is number {best}" if best is not None else ""),
            text=f"What {names.all} tried before a run, and what each side learnt from it.",
        )
    if result.role == "helper":
        return Headline(title=f"{result.party} helped {names.all}", text=f"This page shows what {result.party} knows of it.")
    if evaluation is None and result.sections.sample is not None:
        return Headline(
            title=f"{names.all} explored what joining brings",
            text=f"The estimate is computed from {names.label}'s labels, and {names.label} keeps it.",
        )
    if evaluation is None:
        # The first metric that the label party shared, if it shared one that has a value
        shared = result.sections.shared
        shared_metrics = shared.metrics if shared is not None else {}
        first = next((name for name, each in shared_metrics.items() if each["value"] is not None), None)
        if shared is not None and first is not None:
            figure = shared_metrics[first]
            return Headline(
                title=f"The joint model reaches {_words(first, METRICS[shared.target][first])} {_short(figure['value'])}",
                text=(
                    f"Measured by {shared.party} on {shared.rows:,} test rows{_within(figure)} and shared with "
                    f"{result.party or names.feature}, as the contract says. "
                    f"Everything else that is computed from labels stayed with {shared.party}."
                ),
            )
        return Headline(
            title=f"{names.all} trained one network",
            text=(
                f"This page shows what {result.party or 'each side'} knows of the run. "
                f"Metrics are computed from labels, and {names.label} kept them."
            ),
        )
    whole = _headline(result, evaluation)
    parts = [f"{label} {_change(part)}" for label, part in evaluation.get("labels", {}).items()]
    return replace(whole, text=f"{whole.text} By label: {', '.join(parts)}.") if parts else whole


def _change(part: Comparison) -> str:
    """Say how joining changed one label's AUC."""
    own, joint = (part["local_baseline"] or {}).get("auc"), part["joint"]["auc"]
    return (f"from {_short(own['value'])} to " if own is not None else "") + _short(joint["value"])


def _headline(result: Result, evaluation: Comparison) -> Headline:
    names = party_names(result)
    name, metric = next(iter(METRICS[evaluation["target"]].items()))
    short = _words(name, metric)
    joint, rows = evaluation["joint"][name], f"{evaluation['rows']:,} test rows"
    if result.contract.summary.get("unaligned rows", "none") != "none":
        rows += " with a partner's row"
    if joint["value"] is None:
        return Headline(title=f"The joint model has no {short}", text=f"On {rows}: {joint['reason']}.")
    own = (evaluation["local_baseline"] or {}).get(name)
    difference = (evaluation["difference"] or {}).get(name)
    if own is None or own["value"] is None or difference is None or difference["value"] is None:
        return Headline(
            title=f"The joint model reaches {short} {_short(joint['value'])}",
            text=(
                f"Measured on {rows}{_within(joint)}. "
                + (
                    f"There is no model of {names.label}'s own columns to compare it with."
                    if own is None
                    else f"The model of {names.label}'s own columns has none: {own['reason']}."
                )
            ),
        )
    outcome = verdict(difference, metric)
    assert difference["value"] is not None
    joining = "Joining" if result.sections.sample is None else "On a sample, joining"
    change = f"from {_short(own['value'])} to {_short(joint['value'])}"
    alone = f"the baseline, a model of {names.label}'s own columns alone,"
    unseen = f"On {rows} that training never saw,"
    if outcome in ("better", "worse"):
        by = _short(abs(difference["value"]))
        verb = "beat" if outcome == "better" else "fall behind"
        return Headline(
            title=f"{joining} {'raised' if difference['value'] > 0 else 'lowered'} {short} {change}",
            text=f"{unseen} {names.all} together {verb} {alone} by {by}{_within(difference, size=True)}.",
        )
    if outcome == "equal":
        return Headline(
            title=f"{joining} did not change {short}",
            text=f"{unseen} {names.all} together and {alone} have the same {short}.",
        )
    article = "a" if short.startswith("mean") else "an"
    beside = "higher" if difference["value"] > 0 else "lower"
    return Headline(
        title=f"{joining} made no clear difference to {short}",
        text=(
            f"{unseen} {names.all} together have {article} {short} that is {_short(abs(difference['value']))} {beside} than "
            f"that of {alone.removesuffix(',')}{_within(difference, signed=True)}. The interval contains 0, so this may be "
            "chance."
        ),
    )


def made_it(outcome: str) -> str:
    """Say in a table how joining changed a metric, by its verdict."""
    return {"better": "▲ better", "worse": "▼ worse", "equal": "= the same"}.get(outcome, "no clear difference")


def too_good(result: Result) -> list[str]:
    """Say if a score is too good to be true, and whose columns to check: one of them may already contain the answer."""
    if result.evaluation is None:
        return []
    parts = result.evaluation.get("labels") or {"": result.evaluation}
    return [f"Label {label}: {line}" if label else line for label, part in parts.items() for line in _too_good(result, part)]


def _too_good(result: Result, evaluation: Comparison) -> list[str]:
    names = party_names(result)
    name, metric = next(iter(METRICS[evaluation["target"]].items()))
    joint = _error(evaluation["joint"][name], metric)
    own = _error((evaluation["local_baseline"] or {}).get(name), metric)
    if joint is None:
        return []
    perfect = metric.higher_is_better and joint <= PERFECT
    if metric.higher_is_better and own is not None and own <= PERFECT:
        return [
            f"The {metric.words} of {names.label}'s own columns alone is nearly perfect, which is rarely true: look for a "
            f"column that already contains the answer.{_strongest_column(result, (names.label,))}"
        ]
    if not perfect and (own is None or joint > REMAINS * own):
        return []
    partners = tuple(party.name for party in result.parties if party.role == "feature")
    what = (
        f"The joint model's {metric.words} is nearly perfect" if perfect else "Joining took away nine tenths of the error or more"
    )
    advice = f"{what}, which is rarely true: look for a column of {names.feature} that already contains the answer"
    return [f"{advice}, such as one written after it was known.{_strongest_column(result, partners)}"]


def few_of_a_class(result: Result) -> list[str]:
    """Say if an exploration's test rows of the rarer class are too few for its interval (``evaluation/intervals.py``)."""
    evaluation = result.evaluation
    if result.sections.sample is None or evaluation is None or evaluation["target"] != "binary":
        return []
    mean, rows = evaluation["label_mean"], evaluation["rows"]
    rare = round(min(mean, 1 - mean) * rows) if mean is not None else rows
    if rare >= ENOUGH_OF_A_CLASS:
        return []
    return [
        f"Only {rare} of {rows:,} test rows are of the rarer class, so the figures may be chance, and the interval too narrow: "
        f"raise explore.rows until there are {ENOUGH_OF_A_CLASS}."
    ]


def _error(value: MetricValue | None, metric: Metric) -> float | None:
    if value is None or value["value"] is None:
        return None
    return round(1 - value["value"], 9) if metric.higher_is_better else value["value"]  # 1 - 0.995 is 0.005


def _strongest_column(result: Result, parties: Sequence[str]) -> str:
    """Name the column without which the model loses most, if this was measured."""
    falls = [(fall.mean, one, fall) for one in result.sections.importance if one.party in parties for fall in one.columns]
    if not falls:
        return ""
    mean, one, fall = max(falls, key=lambda each: each[0])
    column = f"column {fall.number}" if fall.name is None else f"{fall.name!r}"
    return f" Begin with {column} of {one.party}: shuffled, it changes the {one.metric} most, by {_short(mean)}."


def _words(name: str, metric: Metric) -> str:
    """Return a metric's name for use in a sentence: an abbreviation if it is well known."""
    return "RMSE" if name == "rmse" else metric.words


def _short(value: float | None) -> str:
    return number(value, digits=3)


def _within(value: MetricValue, *, signed: bool = False, size: bool = False) -> str:
    """Put the interval in brackets, or return nothing. ``size`` drops the sign that both ends share."""
    low, high = value["low"], value["high"]
    if low is None or high is None:
        return ""
    if size:
        low, high = sorted((abs(low), abs(high)))
    return f" (95 % interval {interval(low, high, signed=signed, digits=3)})"


def verdict(difference: MetricValue, metric: Metric) -> str:
    """Say better, worse, equal, or unclear if the interval contains zero. Without an interval the value decides."""
    value, low, high = difference["value"], difference["low"], difference["high"]
    if value is None:
        return "unclear"
    if value == 0:
        return "equal"
    if low is not None and high is not None and low <= 0 <= high:
        return "unclear"
    return "better" if (value > 0) == metric.higher_is_better else "worse"


def kept_weights_line(training: TrainingSummary) -> str:
    """Say after which step the weights were kept, and what happened to them."""
    if training.folds > 1:
        last = f", the last of them after step {training.best_step}" if training.best_step is not None else ""
        return (
            f"{training.folds} networks, each at its own best step{last}. Each was trained without one fold of the training and "
            "validation rows, and judged on that fold. The model predicts with the mean of their logits. Thresholds and column "
            "importance come from the network that was trained without the validation rows"
        )
    step = f", step {training.best_step}" if training.best_step else ""
    refit = ""
    if training.refit_epochs:
        refit = (
            f": epoch {training.refit_epochs} validated best, and training then began anew with the validation rows for that "
            f"many passes ({training.refit_steps:,} steps). Thresholds and column importance come from the model before that"
        )
    return f"epoch {training.best_epoch}{step}{refit}"


def dropout_line(training: TrainingSummary) -> str:
    """Explain why training loss is above validation loss, if it is at the kept epoch and dropout is part of the reason."""
    best = next((each for each in training.history if each.epoch == training.best_epoch), None)
    best = best or (training.history[-1] if training.history else None)
    if not training.dropout or best is None or best.train_loss is None or best.validation_loss is None:
        return ""
    if best.train_loss <= best.validation_loss:
        return ""
    return (
        f"Training loss lies above validation loss at epoch {best.epoch}. They are measured differently. Training loss is a "
        f"mean over the epoch, while weights change and dropout leaves out {100 * training.dropout:g} % of its inputs. "
        "Validation loss is measured between two steps, with nothing left out."
    )


def party_names(result: Result) -> Names:
    """Name the parties of a run."""
    label = [party.name for party in result.parties if party.role == "label"]
    feature = [party.name for party in result.parties if party.role == "feature"]
    return Names(all=_joined(label + feature), label=_joined(label), feature=_joined(feature))


def _joined(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
