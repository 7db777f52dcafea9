"""The pages for a risk committee: what they have, what they leave out, and the sentence beside epsilon."""

import math

import msgspec
import numpy as np
import pytest

from tallystick.evaluation.decisions import ScoredRows, Subgroups, by_group, decide
from tallystick.evaluation.measure import MetricValue
from tallystick.report import to_html
from tallystick.report.formats import number
from tallystick.report.leaks import most_auc, promise
from tallystick.report.summary import headline
from tallystick.results import (
    AttackResult,
    Audit,
    ColumnFall,
    ImportanceSummary,
    PrivacySummary,
    Release,
    Result,
    Sections,
    Shared,
    merge,
)


def released(epsilon: float, delta: float = 0.0) -> PrivacySummary:
    what = "labels of the training and validation rows, in all that training sends"
    return PrivacySummary(
        releases=[Release(what=what, mechanism="label-dp", protects="labels", epsilon=epsilon, delta=delta)],
        spent_epsilon=epsilon,
    )


@pytest.fixture
def full(make) -> Result:
    rng = np.random.default_rng(2)
    labels = (rng.random(600) < 0.3).astype(float)
    logits = rng.normal(size=600) + labels
    groups = by_group(
        "binary",
        Subgroups(column="<script>", names=["<i>a</i>", "tiny"], codes_N=np.repeat([0, 1], [580, 20])),
        ScoredRows(labels_N=labels, logits=logits),
        resamples=10,
        generator=rng,
    )
    sections = Sections(
        decisions=decide(labels, 1 / (1 + np.exp(-logits)), cost_false_negative=7),
        groups=[groups],
        importance=[
            ImportanceSummary(
                party="carrier",
                metric="AUC",
                rows=50,
                repeats=3,
                before=0.8,
                columns=[
                    ColumnFall(number=1, name="<b>hour</b>", mean=0.01, deviation=0.002),
                    ColumnFall(number=2, name="month", mean=0.2, deviation=0.01),
                    ColumnFall(number=3, name="noise", mean=-0.003, deviation=0.0),
                ],
            )
        ],
        leakage=Audit(attacks=[AttackResult(name="norm", view="weather, from cut gradients, knowing no label", auc=0.95)]),
        privacy=released(3.0),
    )
    return msgspec.structs.replace(make(party="carrier"), sections=sections)


def test_decisions_columns_and_groups_stand_on_the_page_escaped(full) -> None:
    page = to_html(full)
    for title in (
        "Decisions by score, and their costs",
        "Which columns matter",
        "Groups of rows",
        "Precision and recall",
    ):
        assert title in page
    assert "7.00 for each false negative" in page
    assert "&lt;b&gt;hour&lt;/b&gt;" in page
    assert "<b>hour</b>" not in page
    assert "&lt;i&gt;a&lt;/i&gt;" in page
    assert page.count("<script") == 1  # the result as JSON
    assert page.index(">month<") < page.index("hour&lt;")  # the column that matters most comes first
    assert "fewer than 100 rows" in page


def test_groups_say_which_model_scores_them(full) -> None:
    assert "The joint model on groups of test rows, by columns that carrier named." in to_html(full)
    (group,) = full.sections.groups
    sections = msgspec.structs.replace(full.sections, groups=[{**group, "column": "all test rows"}])
    page = to_html(msgspec.structs.replace(full, sections=sections)).replace("&#39;", "'")
    assert "those without by carrier's own columns" in page
    assert "The joint model on groups of test rows" not in page


@pytest.mark.parametrize(("target", "columns"), [("binary", 6), ("multiclass", 3), ("multilabel", 3), ("regression", 6)])
def test_groups_have_a_cell_for_each_column_of_their_table(full, target, columns) -> None:
    """A group of too few rows has one cell over all but its name and its rows."""
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(600, 2)) if target in ("multiclass", "multilabel") else rng.normal(size=600)
    groups = by_group(
        target,
        Subgroups(column="c", names=["many", "tiny"], codes_N=np.repeat([0, 1], [580, 20])),
        ScoredRows(labels_N=rng.integers(0, 2, 600), logits=logits),
        resamples=10,
        generator=rng,
    )
    page = to_html(msgspec.structs.replace(full, sections=msgspec.structs.replace(full.sections, groups=[groups])))
    head, many, tiny = page[page.index('id="groups"') :].partition("</table>")[0].split("<tr>")[1:]
    assert [row.count("</th>") + row.count("</td>") for row in (head, many)] == [columns, columns]
    assert f'colspan="{columns - 1}"' in tiny


def test_a_page_without_them_has_no_such_sections(make) -> None:
    page = to_html(msgspec.structs.replace(make(party="weather"), sections=Sections()))
    for name in ("decisions", "columns", "groups", "shared"):
        assert f'id="{name}"' not in page


def test_epsilon_and_an_attacks_auc_are_reconciled_beside_both(full) -> None:
    page = to_html(full)
    said = promise(full)
    assert "ε = 3 bounds how much a change of one label can change what is sent" in said
    assert "e^ε = 20.1 times" in said
    assert "up to 0.953" in said
    assert "does not bound what the features reveal about the label" in said
    escaped = "ε = 3 bounds how much a change of one label"
    leakage, privacy = (page.split(f'id="{name}"')[1].split("</section>")[0] for name in ("leakage", "privacy"))
    assert escaped in leakage
    assert escaped in privacy
    without = msgspec.structs.replace(full, sections=msgspec.structs.replace(full.sections, privacy=None))
    assert promise(without) == ""
    assert "bounds how much a change" not in to_html(without)


def test_a_released_auc_alone_promises_nothing_of_training_labels(full) -> None:
    auc = PrivacySummary(
        releases=[Release(what="AUC 0.7, 95 % interval 0.6 to 0.8", mechanism="m", protects="labels", epsilon=1.0)]
    )
    assert promise(msgspec.structs.replace(full, sections=Sections(privacy=auc))) == ""


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 0.0), (3.0, 0.0), (1.0, 0.1), (3.0, 1e-6), (2.0, 0.9)])
def test_the_bound_on_the_auc_is_the_area_under_the_best_roc(epsilon: float, delta: float) -> None:
    """Compared with the integral of min(1, e^ε x + δ, 1 - e^-ε (1 - δ - x)); the trapezoid rule is off by less than 1e-9."""
    x = np.linspace(0, 1, 1_000_001)
    best = np.minimum(1, np.minimum(math.exp(epsilon) * x + delta, 1 - math.exp(-epsilon) * np.maximum(1 - delta - x, 0)))
    assert most_auc(epsilon, delta) == pytest.approx(np.trapezoid(best, x), abs=1e-8)


def test_randomised_response_reaches_the_bound() -> None:
    kept = math.exp(3) / (1 + math.exp(3))
    assert most_auc(3.0) == pytest.approx((1 + kept - (1 - kept)) / 2)
    assert most_auc(1e6) == pytest.approx(1.0)


def test_the_feature_partys_page_shows_what_was_shared(make) -> None:
    value = MetricValue(value=0.7812, low=0.77, high=0.79, reason=None)
    shared = Shared(party="carrier", target="binary", rows=900, metrics={"auc": value})
    result = msgspec.structs.replace(make(party="weather"), sections=Sections(shared=shared))
    assert headline(result).title == "The joint model reaches AUC 0.781"
    assert "carrier on 900 test rows" in headline(result).text
    page = to_html(result)
    assert "What carrier shared" in page
    assert "Metrics stay with the label party" not in page
    nothing = msgspec.structs.replace(result, sections=Sections())
    assert "Metrics stay with the label party" in to_html(nothing)


def test_merged_results_take_a_columns_name_from_its_own_party(make) -> None:
    def importance(party: str, name: str | None, before: float | None) -> ImportanceSummary:
        columns = [ColumnFall(number=1, name=name, mean=0.1, deviation=0.0)]
        return ImportanceSummary(party=party, metric="AUC", rows=9, repeats=1, before=before, columns=columns)

    carrier = msgspec.structs.replace(
        make(party="carrier"),
        sections=Sections(importance=[importance("carrier", "hour", 0.8), importance("weather", None, 0.8)]),
    )
    weather = msgspec.structs.replace(make(party="weather"), sections=Sections(importance=[importance("weather", "rain", None)]))
    found = merge([weather, carrier]).sections.importance
    assert [(one.party, one.columns[0].name, one.before) for one in found] == [("carrier", "hour", 0.8), ("weather", "rain", 0.8)]


def test_a_threshold_that_others_beat_is_called_chosen_and_not_cheapest(full) -> None:
    rng = np.random.default_rng(3)
    labels, scores = (rng.random(400) < 0.4).astype(float), rng.random(400)
    few = (np.array([0.0, 1.0]), np.array([0.2, 0.9]), None)
    decisions = decide(labels, scores, cost_false_negative=3, threshold_rows=few)
    least = min(each["cost"] for each in (decisions["flag_none"], decisions["flag_all"], *decisions["thresholds"]))
    assert least < decisions["best"]["cost"]
    page = to_html(msgspec.structs.replace(full, sections=msgspec.structs.replace(full.sections, decisions=decisions)))
    assert ">cheapest<" not in page
    assert (
        f"another line of the table costs less, {number(1000 * least)} instead of {number(1000 * decisions['best']['cost'])}"
        in page
    )
