"""The page needs no other file, harms nobody and says what the numbers say."""

import json
import re
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from html_page import Page

from tallystick import results as r
from tallystick.attacks.scoring import AttackEvaluator, Bootstrap
from tallystick.attacks.view import Scores
from tallystick.errors import DataError, StorageError
from tallystick.metrics import METRICS
from tallystick.report import Result, render, to_html
from tallystick.report.formats import duration, number, size
from tallystick.report.leaks import by_strength, leak_headline, leak_lines, next_steps
from tallystick.report.summary import dropout_line, headline, too_good
from tallystick.report.templating import with_code
from tallystick.report.trials import LETTER, LINE, outdone, place_labels, strongest, sweep_plots
from tallystick.results import AttackResult, Audit, EpochRecord, Estimate, Leak, Learnt, PartyInfo, Sweep, TrainingSummary


def words(page: str) -> str:
    return re.sub(r"\s+", " ", " ".join(Page(page).text))


@pytest.fixture(params=["binary", "multiclass", "regression", "count", "feature party", "audited", "sweep", "bare"])
def shown(request, make, make_audited, make_sweep) -> Result:
    bare = Result(
        run_id="r", party=None, parties=[PartyInfo(name="a", role="label")], contract=make().contract, started="soon", seconds=0.0
    )
    return {
        "audited": make_audited,
        "sweep": make_sweep,
        "feature party": lambda: make(party="weather"),
        "bare": lambda: bare,
    }.get(request.param, lambda: make(request.param))()


def test_page_nests_and_stands_alone(shown: Result) -> None:
    page = to_html(shown)
    assert len(page) < 200_000
    assert "default-src 'none'" in page
    parsed = Page(page)
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"link", "img", "iframe", "object", "embed", "form", "base"}
    assert [attributes["type"] for tag, attributes in parsed.tags if tag == "script"] == ["application/json"]
    for _, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "action", "xlink:href")]
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"https?:|//[a-z]|url\(|@import", page.split('<script type="application/json"')[0])


def test_embedded_json_is_the_result(shown: Result) -> None:
    found = json.loads(Page(to_html(shown)).result)
    assert found == shown.to_dict()
    assert to_html(found) == to_html(shown)


def test_links_and_labels_lead_somewhere(shown: Result) -> None:
    parsed = Page(to_html(shown))
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in parsed.tags:
        if tag == "a":
            assert attributes["href"][1:] in ids
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or attributes.get("aria-label")


def scored(make, target: str, joint: float, own: float | None, importance: Any = ()) -> Result:
    """Return a result with these values of its first metric."""
    found = make(target)
    (name, *_) = found.evaluation["joint"]
    models = {
        model: None if value is None else {**found.evaluation[model], name: {**found.evaluation["joint"][name], "value": value}}
        for model, value in (("joint", joint), ("local_baseline", own))
    }
    sections = msgspec.structs.replace(found.sections, importance=list(importance))
    return msgspec.structs.replace(found, evaluation={**found.evaluation, **models}, sections=sections)


@pytest.mark.parametrize(
    ("target", "joint", "own", "says"),
    [
        ("binary", 1.0, 0.7, "The joint model's AUC is nearly perfect, which is rarely true: look for a column of weather"),
        ("binary", 0.995, None, "look for a column of weather that already contains the answer"),
        ("binary", 0.971, 0.7, "Joining took away nine tenths of the error or more"),
        ("binary", 0.96, 0.7, None),
        ("binary", 0.99, 0.98, None),
        ("binary", 0.9, None, None),
        ("binary", 0.999, 0.998, "carrier's own columns alone is nearly perfect, which is rarely true: look for a column"),
        ("multiclass", 0.996, 0.6, "The joint model's accuracy is nearly perfect"),
        ("regression", 9.0, 100.0, "Joining took away nine tenths of the error or more"),
        ("regression", 11.0, 100.0, None),
    ],
)
def test_a_score_too_good_to_be_true_says_whose_columns_to_look_at(make, target: str, joint: float, own: Any, says: Any) -> None:
    shown = scored(make, target, joint, own)
    assert [says in line for line in too_good(shown)] == ([] if says is None else [True])
    assert ("rarely true" in words(to_html(shown))) == (says is not None)


def test_the_column_to_begin_with_is_the_partners_that_matters_most(make) -> None:
    falls = [
        r.ImportanceSummary(
            party=party,
            metric="AUC",
            rows=100,
            repeats=5,
            columns=[r.ColumnFall(number=n, name=name, mean=mean, deviation=0.01) for n, mean in ((1, 0.01), (2, fall))],
        )
        for party, name, fall in (("carrier", "x", 0.4), ("weather", None, 0.3))
    ]
    (line,) = too_good(scored(make, "binary", 1.0, 0.7, falls))
    assert line.endswith("Begin with column 2 of weather: shuffled, it changes the AUC most, by 0.300.")
    (line,) = too_good(scored(make, "binary", 1.0, 1.0, falls))
    assert line.endswith("Begin with 'x' of carrier: shuffled, it changes the AUC most, by 0.400.")
    assert too_good(make(party="weather")) == []


def test_hostile_text_is_shown_not_run(make_audited) -> None:
    """Replace every text of the result by one that tries to leave its element or attribute."""
    evil = "</script><script>alert('x')</script>\"><img src=x onerror=alert(1)>{{ 7 * 7 }}&"
    keep = {"binary", "label", "feature", "joint", "local_baseline", "roc", "reliability"}

    def poison(value: Any) -> Any:
        if isinstance(value, str):
            return value if value in keep else evil + value
        if isinstance(value, list):
            return [poison(each) for each in value]
        return {key: poison(each) for key, each in value.items()} if isinstance(value, dict) else value

    given = make_audited().to_dict()
    for table, part in (("data", "rows"), ("alignment", "sizes"), ("contract", "summary")):
        given[table][part] = {evil + key: value for key, value in given[table][part].items()}
    given["versions"] = {evil: "1"}
    poisoned = poison(given)
    page = to_html(poisoned)
    parsed = Page(page)
    assert not {tag for tag, _ in parsed.tags} & {"img"}
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    assert json.loads(parsed.result) == poisoned
    assert "49" + "&amp;" not in page
    assert "{{ 7 * 7 }}" in " ".join(parsed.text)


def test_a_headline_says_by_which_metric_joining_helped_and_who_knows(make) -> None:
    assert headline(make()).title.startswith("Joining raised AUC from 0.6")
    assert headline(make("multiclass")).title.startswith("Joining raised accuracy from ")
    assert headline(make("regression")).title.startswith("Joining lowered RMSE from ")
    assert headline(make("count")).title.startswith("Joining lowered mean Poisson deviance from ")
    assert "carrier kept them" in headline(make(party="weather")).text


@pytest.mark.parametrize(
    ("difference", "words_of_it"),
    [
        ((0.004, -0.001, 0.009), "made no clear difference to AUC"),
        ((0.004, -0.001, 0.009), "AUC that is 0.004 higher than that of the baseline"),
        ((-0.004, -0.009, 0.001), "The interval contains 0, so this may be chance."),
        ((-0.02, -0.03, -0.01), "fall behind"),
        ((-0.02, -0.03, -0.01), "by 0.020 (95 % interval 0.010 to 0.030)"),
        ((0.0, None, None), "did not change AUC"),
        ((0.004, None, None), "beat"),
    ],
)
def test_a_headline_says_what_the_interval_says(make, difference, words_of_it) -> None:
    result = make()
    value, low, high = difference
    found = {**result.evaluation["difference"], "auc": {"value": value, "low": low, "high": high, "reason": None}}
    told = headline(msgspec.structs.replace(result, evaluation={**result.evaluation, "difference": found}))
    assert words_of_it in f"{told.title}: {told.text}"


@pytest.mark.parametrize(
    ("target", "said"),
    [("binary", "an AUC"), ("multiclass", "an accuracy"), ("regression", "an RMSE"), ("count", "a mean Poisson")],
)
def test_no_metric_has_a_capital_or_a_wrong_article_within_a_sentence(make, target, said) -> None:
    result = make(target)
    first = next(iter(METRICS[target]))
    unclear = {**result.evaluation["difference"], first: {"value": 0.1, "low": -1.0, "high": 1.0, "reason": None}}
    told = headline(msgspec.structs.replace(result, evaluation={**result.evaluation, "difference": unclear}))
    assert f"together have {said}" in told.text
    for metric in METRICS[target].values():
        assert metric.words[0].islower() or not metric.title[1].islower() or metric.words.startswith(("Gini", "Kolmogorov"))


@pytest.mark.parametrize("target", list(METRICS))
def test_calibration_bins_are_of_a_report_that_has_a_calibration_error(make, target) -> None:
    assert ("Calibration uses" in words(to_html(make(target)))) == ("ace" in METRICS[target])


@pytest.mark.parametrize(
    ("target", "curve", "said"),
    [("quantile", "quantiles", "between (should be 0.8)"), ("survival", "brier", "Brier score until each time")],
)
@pytest.mark.parametrize("has_baseline", [True, False])
def test_curves_of_numbers_are_drawn_with_a_baseline_and_without(make, target, curve, said, has_baseline) -> None:
    result = make(target)
    evaluation = result.evaluation
    if not has_baseline:
        evaluation = {
            **evaluation,
            "local_baseline": None,
            "difference": None,
            "curves": {"joint": evaluation["curves"]["joint"]},
        }
    page = to_html(msgspec.structs.replace(result, evaluation=evaluation))
    assert said in page
    assert evaluation["curves"]["joint"][curve] is not None


@pytest.mark.parametrize("has_baseline", [True, False])
def test_several_labels_have_a_row_and_curves_each_with_a_baseline_and_without(make, has_baseline) -> None:
    result = make("multilabel")
    if not has_baseline:
        alone = {"local_baseline": None, "difference": None}
        parts = {
            name: {**part, **alone, "curves": {"joint": part["curves"]["joint"]}}
            for name, part in result.evaluation["labels"].items()
        }
        result = msgspec.structs.replace(result, evaluation={**result.evaluation, **alone, "labels": parts})
    page = to_html(result)
    for name in ("click", "install"):
        assert f'<tr><th scope="row">{name}</th>' in page
        assert f"Curves of label {name}" in page
        assert (f"{name} from 0." in headline(result).text) == has_baseline
    assert ("joining made it" in words(page)) == has_baseline


def test_a_headline_says_which_rows_it_is_of(make) -> None:
    result = make()
    info = msgspec.structs.replace(result.contract, summary={**result.contract.summary, "unaligned rows": "warm-start"})
    told = headline(msgspec.structs.replace(result, contract=info))
    assert "test rows with a partner's row that training never saw" in told.text


def test_without_a_baseline_a_headline_has_the_joint_model_alone(make) -> None:
    result = make()
    alone = msgspec.structs.replace(result, evaluation={**result.evaluation, "local_baseline": None, "difference": None})
    assert headline(alone).title.startswith("The joint model reaches AUC 0.7")
    assert "carrier alone" not in words(to_html(alone))


def test_metrics_without_a_value_are_explained(make) -> None:
    result = make()
    nothing = {"value": None, "low": None, "high": None, "reason": "only one class occurs"}
    for models in (("joint",), ("local_baseline", "difference"), ("joint", "local_baseline", "difference")):
        evaluation = dict(result.evaluation)
        for model in models:
            evaluation[model] = dict.fromkeys(evaluation[model], nothing)
        evaluation["curves"] = {"joint": {"roc": None, "reliability": None}}
        text = words(to_html(msgspec.structs.replace(result, evaluation=evaluation)))
        assert "only one class occurs" in text


def test_feature_party_sees_no_curve_and_no_metric(make) -> None:
    text = words(to_html(make(party="weather")))
    assert "as weather saw it" in text
    assert "Metrics stay with the label party" in text
    for hidden in ("ROC", "Reliability", "Every metric", "validation loss"):
        assert hidden not in text


def test_audits_and_budget_are_shown_when_present(make, make_audited) -> None:
    plain, audited = words(to_html(make())), words(to_html(make_audited()))
    for section in ("Who is in the intersection?", "Do the labels leak?", "Privacy budget"):
        assert section not in plain
        assert section in audited
    assert "25.6 %" in audited
    assert "41.2 %" in audited
    assert "a guess: 0.521" in audited
    assert "no formal guarantee" in plain


@pytest.mark.parametrize(
    "change",
    [
        {"training": TrainingSummary(mode="synchronous", steps=0)},
        {
            "training": TrainingSummary(
                mode="m", steps=1, best_epoch=1, history=[EpochRecord(epoch=1, train_loss=0.5, validation_loss=0.5)]
            )
        },
        {"training": TrainingSummary(mode="m", steps=1, history=[EpochRecord(epoch=1, train_loss=None)])},
        {"phases": [], "learnt": [], "data": None, "alignment": None},
        {"seconds": 0, "parties": [PartyInfo(name=n, role="feature") for n in "bcdef"]},
        {"learnt": [Learnt(step="s", party="a stranger", what="w", guarantee="No formal guarantee")]},
    ],
)
def test_unusual_results_render(make, change) -> None:
    Page(to_html(msgspec.structs.replace(make(), **change)))


def test_attacks_outside_the_scale_stay_on_it(make_audited) -> None:
    result = make_audited()
    audit = msgspec.structs.replace(
        result.sections.leakage, attacks=[AttackResult(name="a", view="v", auc=0.4, low=0.3, high=1.2)]
    )
    page = to_html(msgspec.structs.replace(result, sections=msgspec.structs.replace(result.sections, leakage=audit)))
    assert not re.search(r'(?:width|x)="-', page)


def test_the_leakage_section_answers_its_own_question_first(make_audited) -> None:
    """The strongest attack that somebody could run, per kind of view. The probe needs half of all labels, so it does
    not count.
    """
    audit = make_audited().sections.leakage
    gradients, embeddings = leak_headline(audit)
    assert gradients.startswith(
        "Through cut gradients, yes: weather, knowing no label, can tell the classes apart with AUC 0.972;"
    )
    assert "a guess gives 0.500 (norm: a row with a longer gradient" in gradients
    assert "(clusters)" in embeddings  # no attack of the table has that name, so there is nothing to explain
    text = words(to_html(make_audited()))
    assert gradients in text
    assert "undefended trial" not in text
    assert (
        text.index("norm a row with a longer gradient")
        < text.index("clusters of three classes")
        < text.index("probe a linear model")
    )


@pytest.mark.parametrize(
    ("value", "low", "says"),
    [
        (0.7, 0.69, "yes: "),
        (0.7, 0.54, "a little: "),  # 2.2 standard errors, which occur by luck once in 70 times
        (0.58, 0.55, "a little: "),
        (0.58, 0.5, "no attack here found more than a guess would"),
        (0.45, 0.39, "no attack here found more than a guess would"),
        (0.3, 0.29, "yes: "),  # its scores only need to be inverted
    ],
)
def test_a_leak_is_called_what_it_is(value, low, says) -> None:
    attack = AttackResult(
        name="norm",
        view="w, from cut gradients, knowing no label",
        auc=value,
        low=low,
        chance=0.52,
        symmetric_auc=max(value, 1 - value),
        symmetric_low=max(value, 1 - value) - (value - low),
    )
    (line,) = leak_headline(Audit(attacks=[attack]))
    assert line.startswith(f"Through cut gradients, {says}")


def test_the_best_of_many_attacks_has_to_be_further_above_a_guess() -> None:
    """Two and a half standard errors are no luck of one attack, and normal among twenty."""
    view = "w, from cut gradients, knowing no label"

    def told(attacks: int) -> str:
        best = AttackResult(name="norm", view=view, auc=0.55, low=0.5108)
        others = [AttackResult(name=f"a{n}", view=view, auc=0.5, low=0.45) for n in range(attacks - 1)]
        (line,) = leak_headline(Audit(attacks=[best, *others]))
        return line

    assert told(1).startswith("Through cut gradients, a little: ")
    assert told(20).startswith("Through cut gradients, no attack here found more than a guess would")


def test_of_attacks_that_guess_hardly_any_is_called_a_leak() -> None:
    """The best of ten, each with its own noise: 3 of 60 runs may say "a little", and .6 "yes". Seeded."""
    rng, once = np.random.default_rng(10), AttackEvaluator(replicates=1)
    said = {"yes: ": 0, "a little: ": 0, "no attack": 0}
    for _ in range(60):
        truth_N, attacks = torch.from_numpy((rng.random(200) < 0.25).astype(int)), []
        for name in range(10):
            scores = Scores(rows=(torch.arange(200),), values=(torch.from_numpy(rng.normal(size=200)),))
            found = once(scores, truth_N, bootstrap=Bootstrap(0)).auc
            view = "w, from cut gradients, knowing no label"
            attacks.append(AttackResult(name=str(name), view=view, auc=found.mean, low=found.low, high=found.high))
        (line,) = leak_headline(Audit(attacks=attacks))
        said[next(word for word in said if word in line)] += 1
    assert said["yes: "] <= 1
    assert said["a little: "] <= 5


def test_an_attack_that_turns_its_scores_the_wrong_way_is_the_strongest_and_says_what_it_must_know() -> None:
    """The attacker would have reported .348; knowing the direction, .652."""
    view = "w, from cut gradients, knowing no label"
    wrong = AttackResult(name="norm", view=view, auc=0.348, low=0.33, high=0.366, symmetric_auc=0.652)
    right = AttackResult(name="spectral-averaged", view=view, auc=0.55, low=0.54, high=0.56, symmetric_auc=0.55)
    (line,) = leak_headline(Audit(attacks=[wrong, right]))
    assert "knowing no label (told the direction of its scores), can tell the classes apart with AUC 0.652" in line
    assert "(norm: " in line


def test_of_attacks_that_find_as_much_the_one_that_knows_least_comes_first_whichever_way_round_its_scores_are() -> None:
    """An AUC of 0 is a perfect attack with the sign inverted; the table has the order of the headline."""
    view = "w, from cut gradients, knowing"
    attacks = [
        AttackResult(name="direction-5", view=f"{view} 5 labels in every batch", auc=1.0, low=1.0, symmetric_auc=1.0),
        AttackResult(name="completion-gradient", view=f"{view} 40 labels", auc=1.0, low=1.0, symmetric_auc=1.0),
        AttackResult(name="norm", view=f"{view} no label", auc=0.7, low=0.69, symmetric_auc=0.7),
        AttackResult(name="spectral-averaged", view=f"{view} no label", auc=0.0, symmetric_auc=0.999, symmetric_low=0.998),
    ]
    (line,) = leak_headline(Audit(attacks=attacks))
    assert line.startswith("Through cut gradients, yes: w, knowing no label (told the direction of its scores),")
    assert "AUC 0.999" in line
    assert "(spectral-averaged: " in line
    ordered = ["spectral-averaged", "completion-gradient", "direction-5", "norm"]
    assert [each.name for each in by_strength(attacks)] == ordered


def test_chance_in_small_batches_is_not_taken_for_an_attack_that_is_turned_round() -> None:
    """The better side of each batch is above .5 by luck, as it is for a guess."""
    view = "w, from cut gradients, knowing no label"
    guess = AttackResult(name="norm", view=view, auc=0.5, low=0.49, symmetric_auc=0.56, symmetric_chance=0.555)
    (line,) = leak_headline(Audit(attacks=[guess]))
    assert line.startswith("Through cut gradients, no attack here found more than a guess would")


def test_what_embeddings_alone_may_have_told_is_not_laid_on_gradients() -> None:
    view = "w, from cut gradients and cut embeddings, knowing 40 labels"
    (line,) = leak_headline(Audit(attacks=[AttackResult(name="completion-both", view=view, auc=0.8, symmetric_auc=0.8)]))
    assert line.startswith("Through cut gradients and embeddings together, yes: w, knowing 40 labels,")


def test_what_needs_no_label_is_said_beside_a_stronger_attack_that_does() -> None:
    views = {"completion": "w, from cut embeddings, knowing 40 labels", "clusters": "w, from cut embeddings, knowing no label"}

    def told(unaided: float) -> str:
        values = {"completion": 0.9, "clusters": unaided}
        attacks = [
            AttackResult(name=name, view=view, auc=values[name], symmetric_auc=values[name]) for name, view in views.items()
        ]
        (line,) = leak_headline(Audit(attacks=attacks))
        return line

    assert told(0.8).endswith(" Without knowing any label: AUC 0.800 (clusters).")
    assert "Without knowing" not in told(0.55)
    assert "Without knowing" not in told(0.95)  # the strongest, and named as such


def test_what_a_probe_finds_beyond_every_attack_is_said_beside_the_strongest() -> None:
    def told(probe: float) -> str:
        attacks = [
            AttackResult(name="completion", view="w, from cut embeddings, knowing 40 labels", auc=0.6, symmetric_auc=0.6),
            AttackResult(
                name="probe",
                view="w, from cut embeddings, knowing 50% of all labels",
                auc=probe,
                symmetric_auc=probe,
                upper_bound=True,
            ),
        ]
        (line,) = leak_headline(Audit(attacks=attacks))
        return line

    assert told(0.7).endswith(" More can be found: AUC 0.700 by somebody who knows 50% of all labels (probe).")
    assert "More can be found" not in told(0.61)


def test_a_view_that_could_not_be_attacked_is_never_passed_over_in_silence() -> None:
    attack = AttackResult(name="norm", view="w, from cut gradients, knowing no label", auc=0.9, symmetric_auc=0.9)
    _, embeddings = leak_headline(Audit(attacks=[attack], not_measured=["probe, in w's seat: NaN"]))
    assert embeddings == "Through cut embeddings: not measured, so nothing is known about it; the reasons are below."


def test_attacks_come_by_strength_and_upper_bounds_last() -> None:
    def attack(name: str, folded: float | None, chance: float = 0.5, **more: Any) -> AttackResult:
        return AttackResult(name=name, view="w", auc=folded, chance=chance, **more)

    attacks = [attack("bound", 0.9, upper_bound=True), attack("none", None), attack("high", 0.7, 0.65), attack("strong", 0.6)]
    assert [each.name for each in by_strength(attacks)] == ["strong", "high", "none", "bound"]
    # nearly all of the way from a guess to certainty is more than most of it, though the distance is shorter
    assert [each.name for each in by_strength([attack("most", 0.9, 0.51), attack("all", 0.97, 0.6)])] == ["all", "most"]
    assert [each.name for each in by_strength([attack("certain", 1.0, 1.0), attack("some", 0.6)])] == ["some", "certain"]
    assert leak_headline(Audit(attacks=attacks[:2])) == []


def test_a_sweeps_page_is_of_the_label_partys_leak(make_sweep) -> None:
    text = words(to_html(make_sweep()))
    assert "What weather could learn of carrier's labels" in text
    assert "Metrics stay with the label party" not in text
    assert "Do the labels leak without a defence? This is the sweep's undefended trial" in text
    assert text.count("needs labels nobody has") == 3


def test_a_sweep_sets_utility_beside_leakage(make_sweep) -> None:
    """Left is less leakage, up is a better model; a picture's y grows downward."""
    gradients, embeddings = sweep_plots(make_sweep().sections.sweep)
    none, one, sixteen = gradients.spots
    assert none.x > one.x > sixteen.x
    assert none.y < one.y < sixteen.y < gradients.floor
    assert none.left < none.x < none.right
    assert none.top < none.y < none.bottom
    assert [series.name for series in gradients.series] == ["none", "marvell"]
    assert len(gradients.series[1].points) == 2
    # An attack that needs labels nobody has is no attacker's: it does not count as the strongest.
    assert embeddings.spots[0].x == embeddings.x.at(0.71)


def test_no_sweep_has_no_picture() -> None:
    assert sweep_plots(Sweep()) == []


def test_a_sweep_shows_what_comes_back_of_columns(make_sweep) -> None:
    result = make_sweep()
    sweep = result.sections.sweep
    assert "columns rebuilt" not in words(to_html(result)).lower()
    known = [None, Estimate(mean=0.4, low=0.3, high=0.5), Estimate(mean=0.2, low=0.1, high=0.3)]
    trials = [msgspec.structs.replace(trial, columns=value) for trial, value in zip(sweep.trials, known, strict=True)]
    sweep = msgspec.structs.replace(sweep, trials=trials, known=200, columns_not_measured=["column 'x' is constant"])
    (_, _, plot) = sweep_plots(sweep)
    assert [spot.x for spot in plot.spots] == [plot.x.at(0.4), plot.x.at(0.2)]  # what was not measured is no point at 0
    assert (plot.x.low, plot.x.high) == (0.0, 1.0)
    text = words(to_html(msgspec.structs.replace(result, sections=msgspec.structs.replace(result.sections, sweep=sweep))))
    assert "if you know 200 of its rows" in text
    assert "Of columns not measured: column 'x' is constant." in text


def test_the_strongest_attack_is_furthest_above_its_guess_and_a_higher_number_is_shown_beside_it(make_sweep) -> None:
    sections = make_sweep().sections
    trial = sections.sweep.trials[0]
    clusters = Leak(attack="clusters", reads="cut embeddings", auc=Estimate(mean=0.74, low=0.73, high=0.75), chance=0.73)
    trial = msgspec.structs.replace(trial, leaks=[*trial.leaks, clusters])
    assert strongest(trial, "cut embeddings").attack == "spectral-embedding"
    assert outdone(trial, "cut embeddings") == clusters
    assert outdone(trial, "cut gradients") is None
    both = Leak(attack="both", reads="cut gradients and cut embeddings", auc=Estimate(mean=0.99, low=0.98, high=1.0))
    read_together = msgspec.structs.replace(trial, leaks=[*trial.leaks, both])
    assert (strongest(read_together, "cut gradients"), strongest(read_together, "cut embeddings")) == (both, trial.leaks[1])
    sections = msgspec.structs.replace(sections, sweep=msgspec.structs.replace(sections.sweep, trials=[trial]))
    text = words(to_html(msgspec.structs.replace(make_sweep(), sections=sections)))
    assert "furthest above that of its own guess" in text
    assert "spectral-embedding; a guess: 0.520 highest: 0.740 clusters; a guess: 0.730" in text


def test_a_sweep_without_trials_renders(make_sweep) -> None:
    result = make_sweep()
    empty = msgspec.structs.replace(result.sections, sweep=Sweep(summary="Nothing was tried."), leakage=None)
    assert "Nothing was tried." in words(to_html(msgspec.structs.replace(result, sections=empty)))


def test_same_contract_same_stick(make) -> None:
    def stick(result: Result) -> str:
        return to_html(result).split('class="stock"')[1].split("</svg>")[0]

    other = msgspec.structs.replace(make(), contract=msgspec.structs.replace(make().contract, hash="another"))
    assert stick(make()) == stick(make(party="weather")) != stick(other)


def test_render_writes_whole_pages_only(make, tmp_path) -> None:
    path = render(make(), tmp_path / "report.html")
    before = path.read_text(encoding="utf-8")
    assert before == to_html(make())
    with pytest.raises(DataError, match="run_id"):
        render({"party": None}, path)
    assert path.read_text(encoding="utf-8") == before
    with pytest.raises(StorageError, match="cannot be written"):
        render(make(), tmp_path / "absent" / "report.html")
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_numbers_for_people() -> None:
    minus = "\N{MINUS SIGN}"
    assert [number(x) for x in (0.76543, 12.345, 123.45, 1234.5, None)] == ["0.7654", "12.35", "123.5", "1,234", "\N{EN DASH}"]
    assert number(-0.05, signed=True) == minus + "0.0500"
    assert number(0.05, signed=True, digits=3) == "+0.050"
    assert [duration(x) for x in (0.421, 12.34, 59.99, 192, 7500)] == ["0.42 s", "12.3 s", "1 min 0 s", "3 min 12 s", "2 h 5 min"]
    assert [size(x) for x in (0, 999, 1000, 20.9e6, 241e6, 3e9)] == ["0 B", "999 B", "1.0 kB", "20.9 MB", "241 MB", "3.0 GB"]


def test_an_error_that_grows_is_called_a_rise_and_an_unspent_budget_is_said(make):
    falls = r.ImportanceSummary(
        party="carrier",
        metric="Root mean squared error",
        rows=100,
        repeats=3,
        columns=[r.ColumnFall(number=1, name="distance", mean=0.2, deviation=0.01)],
    )
    privacy = r.PrivacySummary(not_private=["exact labels"], cap_epsilon=3.0, summary="Data set: labels.")
    page = to_html(msgspec.structs.replace(make(), sections=r.Sections(importance=[falls], privacy=privacy)))
    assert "Rise of root mean squared error" in page
    assert "Fall of" not in page
    assert "Spent: not bounded. By private releases alone: ε = 0 of at most 3." in page


def spent(make, **values) -> str:
    privacy = r.PrivacySummary(summary="Data set: labels.", **values)
    return words(to_html(msgspec.structs.replace(make(), sections=r.Sections(privacy=privacy))))


def test_nothing_counted_beside_what_is_not_private_is_not_called_nothing_spent(make):
    assert "Spent: not bounded." in spent(make, not_private=["exact labels"])
    assert "Spent: ε = 2." in spent(make, not_private=["exact labels"], spent_epsilon=2.0)
    assert "Spent: ε = 0." in spent(make)


def test_the_leak_stands_beside_the_gain(make, make_audited, make_sweep) -> None:
    audited = make_audited()
    (labels, columns) = leak_lines(audited)
    strongest = by_strength(audited.sections.leakage.attacks)[0]
    assert labels.startswith("What weather could read of carrier's labels: the classes, with AUC")
    assert strongest.name in labels
    assert columns == "What carrier could rebuild of weather's columns: not measured, so nothing is known about it."
    page = to_html(audited)
    assert page.index("What weather could read of carrier") < page.index("<nav")
    assert leak_lines(make(party="carrier")) == [
        "What weather could read of carrier's labels: not measured, so nothing is known about it."
    ]
    assert leak_lines(make(party="weather")) == [columns]
    assert leak_lines(make_sweep()) == []


def test_beside_a_leak_stands_what_can_be_done_about_it(make, make_audited, make_sweep) -> None:
    (line,) = next_steps(make_audited())
    assert line.startswith("About labels: `training.gradients: none` sends nothing")
    assert "label-dp" in line
    page = to_html(make_audited())
    assert "About labels: <code>training.gradients: none</code> sends nothing" in page
    assert with_code("`<b>` & c") == "<code>&lt;b&gt;</code> &amp; c"
    union = make_audited()
    union.contract.summary["alignment"] = "union"  # where gradients cannot be left out
    assert next_steps(union) == ["About labels: `label-dp` among `defense` bounds what is sent."]
    assert next_steps(make()) == next_steps(make_sweep()) == []


def test_columns_that_leak_have_their_line_and_noise_is_not_advised_twice(make) -> None:
    column = r.RebuiltColumn(name="age", used=True, kind="numeric", known=20, value=0.4, low=0.3, high=0.5, attack="ridge")
    audit = r.FeatureAudit(party="weather", by="carrier", columns=[column])
    told = [
        next_steps(msgspec.structs.replace(make(), sections=r.Sections(features=[each])))
        for each in (audit, msgspec.structs.replace(audit, epsilon=8.0), msgspec.structs.replace(audit, columns=[]))
    ]
    assert ["gaussian-embeddings" in " ".join(each) for each in told] == [True, False, False]
    assert [len(each) for each in told] == [1, 1, 0]


@pytest.mark.parametrize(
    ("alignment", "gradients", "said"),
    [
        ("intersection", "sent", "`training.gradients: shared` hides columns in training"),
        ("union", "sent", "`gaussian-embeddings` among `defense`"),
        ("intersection", "shared", "`privacy.scores_per_row` in the party file bound how many scores"),
    ],
)
def test_training_on_shares_is_advised_where_it_can_be_had(make, alignment, gradients, said) -> None:
    column = r.RebuiltColumn(name="age", used=True, kind="numeric", known=20, value=0.4, low=0.3, high=0.5, attack="ridge")
    audited = msgspec.structs.replace(
        make(), sections=r.Sections(features=[r.FeatureAudit(party="weather", by="carrier", columns=[column])])
    )
    audited.contract.summary.update({"alignment": alignment, "cut gradients": gradients})
    (line,) = next_steps(audited)
    assert said in line
    assert ("gradients: shared" in line) == ((alignment, gradients) == ("intersection", "sent"))


def test_no_name_in_a_picture_of_trials_lies_over_another() -> None:
    rng = np.random.default_rng(3)
    for count in (1, 11, 40):
        crowd = [(390.0 - abs(x), 200.0 + y) for x, y in rng.normal(0, 4, (count, 2))]
        labels = [("0.1", "1", "16", "cut-after", "label-dp 3")[i % 5] for i in range(count)]
        boxes = []
        for (x, y, anchor), label in zip(place_labels(crowd, labels, left=50.0, right=396.0), labels, strict=True):
            width = LETTER * len(label)
            left = x if anchor == "start" else x - width
            assert left + width <= 396.0
            assert all(left >= b[1] or left + width <= b[0] or y - LINE >= b[3] or y <= b[2] for b in boxes)
            boxes.append((left, left + width, y - LINE, y))


@pytest.mark.parametrize(
    ("dropout", "best", "losses", "says"),
    [
        (0.5, 1, [(0.6, 0.5), (0.4, 0.5)], "at epoch 1"),
        (0.5, None, [(0.4, 0.5), (0.6, 0.5)], "at epoch 2"),
        (0.5, 2, [(0.6, 0.5), (0.4, 0.5)], ""),  # not at the epoch whose weights were kept
        (0.5, 1, [(0.5, 0.5)], ""),
        (0.0, 1, [(0.6, 0.5)], ""),
        (0.5, 1, [(0.6, None)], ""),
        (0.5, None, [], ""),
    ],
)
def test_training_loss_above_validation_loss_is_explained_where_dropout_has_a_part_in_it(make, dropout, best, losses, says):
    history = [EpochRecord(epoch=i, train_loss=train, validation_loss=val) for i, (train, val) in enumerate(losses, start=1)]
    training = TrainingSummary(mode="synchronous", steps=9, best_epoch=best, history=history, dropout=dropout)
    line = dropout_line(training)
    assert (f"Training loss lies above validation loss {says}." in line) if says else line == ""
    page = words(to_html(msgspec.structs.replace(make(), training=training)))
    assert ("leaves out 50 % of its inputs" in page) == bool(says)


def styles(page: str, media: str) -> dict[str, str]:
    """Return selector to declarations in one media block of a page, each selector of a list separately."""
    css = re.sub(r"/\*.*?\*/", "", page[page.index("<style>") : page.index("</style>")], flags=re.DOTALL)
    block = css[css.index(media) + len(media) :]
    depth, end = 1, block.index("{") + 1
    begin = end
    while depth:
        depth += {"{": 1, "}": -1}.get(block[end], 0)
        end += 1
    found: dict[str, str] = {}
    for selectors, rules in re.findall(r"([^{}]+)\{([^{}]*)\}", block[begin : end - 1]):
        for selector in re.split(r",(?![^(]*\))", selectors):
            found[selector.strip()] = found.get(selector.strip(), "") + rules
    return found


def test_a_table_that_may_be_wider_than_its_place_says_so(shown: Result) -> None:
    page = to_html(shown)
    places = [attrs for _, attrs in Page(page).tags if attrs.get("class") == "scroll"]
    lines = re.findall(r'<div class="scroll"[^>]*><p class="wider">[^<]*scroll it sideways\.</p>\s*<table', page)
    assert len(places) == len(lines) == page.count('class="wider"')
    known = styles(page, "@supports (animation-timeline: scroll())")[".scroll > .wider"]
    assert "max-height: 0" in known  # a table that fits shows no such line
    assert "animation-timeline: scroll(nearest inline)" in known
    assert ".scroll caption, .scroll > .wider { position: sticky; left: 0;" in page


def test_paper_keeps_a_table_with_what_leads_to_it_and_gives_attacks_their_room(make_audited) -> None:
    page = to_html(make_audited())
    paper = styles(page, "@media print")
    for leads in ("h2", "h3", "caption", "thead", "p:has(+ .scroll)"):
        assert "break-after: avoid" in paper[leads], leads
    for whole in ("caption", "thead", "tr", "figure", "section:has(> h2 + .columns)"):
        assert "break-inside: avoid" in paper[whole], whole
    assert paper[".columns:has(table)"].strip() == "grid-template-columns: 1fr;"
    assert "display: none" in paper[".scroll > .wider"]  # paper does not scroll
    assert "overflow: visible" in paper[".scroll"]
    assert "position: static" in paper[".scroll caption"]
    for bar in (".attacks .bar", ".attacks td:has(> .strip)"):
        assert "display: none" in paper[bar]
    attacks = re.findall(r'<table class="attacks">.*?</table>', page, re.DOTALL)
    assert len(attacks) == 2  # labels and membership
    for table in attacks:
        assert table.count('class="bar"') == 1
        assert re.search(r'<td>\s*<svg class="strip"', table)
