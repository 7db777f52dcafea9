"""The value of scores for decisions, compared with brute force and scikit-learn; groups, and those too small to show."""

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as oracle

from tallystick.errors import DataError
from tallystick.evaluation.decisions import ScoredRows, Subgroups, by_group, decide
from tallystick.metrics import UndefinedMetric, auc, sigmoid
from tallystick.tables.groups import MISSING, MOST_GROUPS, OTHERS, groups_of

CLOSE = pytest.approx


def drawn(seed: int, rows: int = 600) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < 0.3).astype(float)
    return labels, sigmoid(np.round(rng.normal(size=rows) + 1.5 * labels - 1, 1)), rng.integers(0, 4, rows) * rng.random(rows)


def cost_of(labels, scores, weights, threshold, false_positive, false_negative) -> float:
    flagged = np.zeros(len(scores), bool) if threshold is None else scores >= threshold
    wrong = false_positive * (flagged & (labels == 0)) + false_negative * (~flagged & (labels == 1))
    return float((weights * wrong).sum() / weights.sum())


@settings(deadline=None)
@given(
    arrays(np.int8, 12, elements=st.integers(0, 1)),
    arrays(np.int8, 12, elements=st.integers(0, 4)),
    arrays(np.int8, 12, elements=st.integers(0, 3)),
    st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(any),
)
def test_the_cheapest_threshold_is_the_cheapest_of_all(labels, codes, weights, costs) -> None:
    labels, scores, weights = labels.astype(float), codes / 4, weights.astype(float)
    if not (weights[labels == 1].any() and weights[labels == 0].any()):
        with pytest.raises(UndefinedMetric):
            decide(labels, scores, weights=weights)
        return
    found = decide(labels, scores, weights=weights, cost_false_positive=costs[0], cost_false_negative=costs[1])
    every = [None, *np.unique(scores)]
    least = min(cost_of(labels, scores, weights, threshold, *costs) for threshold in every)
    assert found["best"]["cost"] == CLOSE(least, abs=1e-12)
    for each in (found["best"], found["flag_none"], found["flag_all"], *found["thresholds"]):
        assert each["cost"] == CLOSE(cost_of(labels, scores, weights, each["threshold"], *costs), abs=1e-12)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_thresholds_match_scikit_learn() -> None:
    labels, scores, weights = drawn(1)
    found = decide(labels, scores, weights=weights)
    assert [each["flagged"] for each in found["thresholds"]] == sorted(each["flagged"] for each in found["thresholds"])
    for each in found["thresholds"]:
        flagged = scores >= each["threshold"]
        assert each["precision"] == CLOSE(oracle.precision_score(labels, flagged, sample_weight=weights))
        assert each["recall"] == CLOSE(oracle.recall_score(labels, flagged, sample_weight=weights))
        assert each["flagged"] == CLOSE(np.average(flagged, weights=weights))
        assert each["false_positive_rate"] == CLOSE(1 - oracle.recall_score(1 - labels, ~flagged, sample_weight=weights))
    assert found["flag_none"]["precision"] is None
    assert found["flag_all"]["recall"] == 1


def test_the_threshold_chosen_on_other_rows_is_measured_on_these() -> None:
    labels, scores, weights = drawn(2)
    others = drawn(3)
    chosen = decide(*others[:2], weights=others[2], cost_false_negative=4)["best"]["threshold"]
    found = decide(labels, scores, weights=weights, cost_false_negative=4, threshold_rows=others)
    here = decide(labels, scores, weights=weights, cost_false_negative=4)
    assert (found["chosen_on"], here["chosen_on"]) == ("validation rows", "test rows")
    assert found["best"]["threshold"] == chosen
    assert found["best"]["cost"] == CLOSE(cost_of(labels, scores, weights, chosen, 1, 4))
    assert found["best"]["cost"] >= here["best"]["cost"]


def test_deciles_hold_what_sorting_gives() -> None:
    rng = np.random.default_rng(4)
    scores = rng.permutation(np.linspace(0.001, 0.999, 1000))
    labels = (rng.random(1000) < scores).astype(float)
    tenths = labels[np.argsort(-scores)].reshape(10, 100)
    found = decide(labels, scores)
    assert [each["observed"] for each in found["deciles"]] == CLOSE(tenths.mean(axis=1))
    assert [each["lift"] for each in found["deciles"]] == CLOSE(tenths.mean(axis=1) / labels.mean())
    assert [each["gain"] for each in found["deciles"]] == CLOSE(np.cumsum(tenths.sum(axis=1)) / labels.sum())
    assert sum(found["positives"]) == CLOSE(1)
    assert sum(found["negatives"]) == CLOSE(1)
    gap = [abs((scores[labels == 1] >= t).mean() - (scores[labels == 0] >= t).mean()) for t in scores]
    assert found["ks_threshold"] == scores[int(np.argmax(gap))]


def measured(target, names, codes, labels, logits, **given):
    groups = Subgroups(column="kind", names=names, codes_N=codes)
    return by_group(target, groups, ScoredRows(labels_N=labels, logits=logits), **given)


def groups(rows: int = 1000, **given):
    rng = np.random.default_rng(5)
    labels = (rng.random(rows) < 0.3).astype(float)
    logits = rng.normal(size=rows) + labels - 1
    codes = np.repeat([0, 1, 2], [rows - 130, 99, 31]) if "codes" not in given else given.pop("codes")
    names = given.pop("names", ["many", "few", "rare"])
    found = measured("binary", names, codes, labels, logits, resamples=50, generator=rng, **given)
    return found, labels, logits, codes


def test_groups_are_measured_apart() -> None:
    found, labels, logits, codes = groups()
    many, _, _ = found["groups"]
    inside = codes == 0
    assert many["rows"] == inside.sum()
    assert many["metric"]["value"] == CLOSE(auc(labels[inside], logits[inside]))
    assert many["label_mean"]["value"] == CLOSE(labels[inside].mean())
    assert many["score_mean"]["value"] == CLOSE(sigmoid(logits[inside]).mean())
    assert many["gap"]["value"] == CLOSE(sigmoid(logits[inside]).mean() - labels[inside].mean())
    assert many["gap"]["low"] < many["gap"]["value"] < many["gap"]["high"]


def test_groups_of_few_rows_are_refused() -> None:
    _, few, rare = groups()[0]["groups"]
    for small in (few, rare):
        assert small["rows"] is None
        assert {each["value"] for each in small.values() if isinstance(each, dict)} == {None}
        assert small["metric"]["reason"] == "fewer than 100 rows"
    assert groups(smallest=31)[0]["groups"][2]["rows"] == 31


def test_a_group_of_nearly_one_class_has_no_auc() -> None:
    labels = np.array([1.0] * 5 + [0.0] * 195)
    found = measured("binary", ["all"], np.zeros(200, int), labels, labels, generator=np.random.default_rng(0))
    (only,) = found["groups"]
    assert only["label_mean"]["value"] == CLOSE(5 / 200)
    assert (only["metric"]["value"], only["metric"]["reason"]) == (None, "fewer than 10 rows of one class")


def test_groups_of_other_targets() -> None:
    rng = np.random.default_rng(6)
    values = rng.normal(size=300)
    codes = np.arange(300) % 2
    regression = measured("regression", ["a", "b"], codes, values, values + 1, generator=rng)["groups"][0]
    assert regression["gap"]["value"] == CLOSE(1)
    assert regression["metric"]["value"] == CLOSE(1)
    classes = rng.integers(0, 3, 300)
    multiclass = measured("multiclass", ["a", "b"], codes, classes, np.eye(3)[classes], generator=rng)["groups"][1]
    assert (multiclass["metric"]["value"], multiclass["gap"]["value"]) == (1.0, None)
    with pytest.raises(DataError, match="one per row"):
        measured("regression", ["a"], codes, values, values, generator=rng)


def test_columns_make_groups() -> None:
    names, codes = groups_of(pl.Series("k", ["b", None, "a", "b"]))
    assert [names[code] for code in codes] == ["b", MISSING, "a", "b"]
    names, codes = groups_of(pl.Series("k", [1, 2, 1]))
    assert [names[code] for code in codes] == ["1", "2", "1"]
    names, codes = groups_of(pl.Series("age", [*range(100), None]))
    assert [int((codes == code).sum()) for code in range(5)] == [25, 25, 25, 25, 1]
    assert names[-1] == MISSING
    many = pl.Series("k", [f"c{i:02}" for i in range(30) for _ in range(i + 1)])
    names, codes = groups_of(many)
    assert len(names) == MOST_GROUPS + 1
    assert (codes == names.index(OTHERS)).sum() == sum(range(1, 11))
    assert (codes == names.index("c29")).sum() == 30
