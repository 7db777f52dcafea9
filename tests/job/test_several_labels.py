"""Jobs that predict several labels of a row: compared with scikit-learn, plain loops, and a run for each label alone."""

import json
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import polars as pl
import pytest
import similar
import torch
from hypothesis import given
from hypothesis import strategies as st
from lanes import short_lane_of
from serving_job import Served, predicted
from sklearn.metrics import log_loss
from test_label_flip import assert_others_see_the_same, everything_for_others, files_of
from test_serve import bits, in_several_requests
from tiny import columns, contract_values, lay_out, seed_system, tables

from tallystick.attacks.view import StepView, View
from tallystick.audit.labels import BY_PATTERN, audit_labels
from tallystick.audit.recorded_labels import RecordedLabels, RecordedSeat, flip_of
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.config.party_checks import check_party
from tallystick.config.sections import EvaluationConfig, MultilabelTarget
from tallystick.config.unaligned import METHODS
from tallystick.defenses.label_dp import WORDS, LabelDP, other_words
from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.boosting import Boosted
from tallystick.evaluation.decisions import decide
from tallystick.evaluation.measure import compare_models
from tallystick.export.half import meaning_of
from tallystick.export.student import make_student
from tallystick.job.phases.defense import RunDefense, check_charged_labels
from tallystick.job.prediction_output import check_columns
from tallystick.metrics import label_bits, metric
from tallystick.privacy.ledger import Ledger
from tallystick.report.compare import compare_results
from tallystick.report.leaks import leak_headline
from tallystick.report.page import to_html
from tallystick.report.summary import headline, too_good
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import create_ledger
from tallystick.scoring.explain import check_explained
from tallystick.scoring.predict import score_columns
from tallystick.simulation import Silent, simulate
from tallystick.tables.features import Features
from tallystick.tables.target import LabelCoder
from tallystick.tables.target_leakage import telling
from tallystick.training.objective import Supervised, label_columns, label_loss
from tallystick.trials.trials import sweep_defenses

PARTIES = ("bank", "shop")
NAMES = ("click", "install", "buy")
TARGET = {"type": "multilabel", "labels": list(NAMES)}
ROWS = 3000


def struct(**labels):
    return pl.DataFrame(labels).to_struct("label")


def coder_of(names=NAMES):
    return LabelCoder(type="multilabel", labels=dict.fromkeys(names, ("0", "1")))


# --- labels as one number


@given(st.integers(2, 16).flatmap(lambda k: st.lists(st.lists(st.booleans(), min_size=k, max_size=k), min_size=2, max_size=20)))
def test_the_labels_of_a_row_are_one_number_and_come_back(rows):
    """Bit k is label k, as in a plain loop. Every way of splitting the number gives the labels."""
    names = [f"label-{k}" for k in range(len(rows[0]))]
    coder = coder_of(names)
    patterns = coder.encode(struct(**{name: [int(row[k]) for row in rows] for k, name in enumerate(names)}))
    assert patterns.tolist() == [sum(1 << k for k, positive in enumerate(row) if positive) for row in rows]
    assert (
        label_bits(patterns, len(names)).tolist()
        == label_columns(patterns, len(names)).tolist()
        == [[*map(float, r)] for r in rows]
    )
    apart = [numbers.tolist() for _, numbers in coder.each_label(patterns)]
    assert apart == [[int(row[k]) for row in rows] for k in range(len(names))]


def test_each_label_has_two_classes_of_its_own_and_the_larger_is_positive():
    column = struct(buy=[1, 0, 1, 1], click=["no", "yes", "no", "no"], install=[False, True, True, False])
    coder = LabelCoder.fit(column, MultilabelTarget(type="multilabel", labels=NAMES), np.arange(4))
    assert coder.labels == {"click": ("no", "yes"), "install": ("false", "true"), "buy": ("0", "1")}, "in the contract's order"
    assert coder.encode(column).tolist() == [0b100, 0b011, 0b110, 0b100]
    assert coder.score_names == ["score_click", "score_install", "score_buy"]
    assert LabelCoder.from_json(coder.to_json()) == coder


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"click": [0, 1, None]}, "label column 'click': missing .* in 1"),
        ({"install": [0, 1, 2]}, "label column 'install' has 3 distinct values; target.type = multilabel needs exactly 2"),
        ({"buy": [1, 1, 1]}, "label column 'buy' has 1 distinct value; target.type = multilabel needs exactly 2"),
        ({"buy": [1, 1, 0]}, "label column 'buy' is constant on the training rows"),
    ],
)
def test_a_label_that_cannot_be_learnt_is_refused_by_name(labels, message):
    column = struct(**{name: [0, 1, 1] for name in NAMES} | labels)
    with pytest.raises(DataError, match=message):
        LabelCoder.fit(column, MultilabelTarget(type="multilabel", labels=NAMES), np.arange(2))


def test_a_new_class_of_a_label_is_refused_by_name():
    with pytest.raises(DataError, match="label column 'install': values never seen before in 1"):
        coder_of().encode(struct(click=[0, 1], install=[0, 7], buy=[0, 1]))


def test_a_column_that_tells_one_of_the_labels_is_named_with_it():
    rng = np.random.default_rng(1)
    label = struct(click=rng.integers(0, 2, 200), buy=(buy := rng.integers(0, 2, 200)))
    assert telling(pl.Series(buy * 2), label) == "all but equals the label (label 'buy')"
    assert telling(pl.Series(rng.normal(size=200)), label) is None


# --- loss and metrics


def test_the_loss_is_the_mean_of_scikit_learns():
    rng = np.random.default_rng(1)
    patterns, logits = rng.integers(0, 8, 60), rng.normal(size=(60, 3))
    expected = np.mean([log_loss((patterns >> k) & 1, 1 / (1 + np.exp(-logits[:, k]))) for k in range(3)])
    assert label_loss(torch.from_numpy(logits), torch.from_numpy(patterns)).item() == pytest.approx(expected, rel=1e-6)


def test_the_loss_of_an_ensemble_is_the_mean_of_its_members_losses():
    generator, index_B = torch.Generator().manual_seed(1), torch.arange(20)
    target_N, weight_N = torch.randint(0, 8, (20,), generator=generator), torch.rand(20, generator=generator)
    logits = torch.randn(20, 4, 3, generator=generator)
    objective = Supervised("multilabel", target_N, weight_N)
    each = [objective(logits[:, member], index_B)[0].item() for member in range(4)]
    assert objective(logits, index_B)[0].item() == pytest.approx(np.mean(each), rel=1e-5)
    assert objective(logits, index_B)[1].tolist() == target_N.tolist()


def test_labels_mixed_with_another_models_chances_have_the_losses_of_both_mixed():
    generator, index_B = torch.Generator().manual_seed(2), torch.arange(30)
    target_N, prior, logits = torch.randint(0, 8, (30,)), torch.randn(30, 3), torch.randn(30, 3, generator=generator)
    mixed = Supervised("multilabel", target_N).towards(logits, index_B, prior, share=0.4)[0].item()
    by_labels, by_prior = label_loss(logits, target_N).item(), label_loss(logits, torch.sigmoid(prior)).item()
    assert mixed == pytest.approx(0.6 * by_labels + 0.4 * by_prior, rel=1e-5)


def test_deviations_are_those_of_each_label():
    target_N = torch.tensor([0b001, 0b011, 0b100, 0b000])
    deviations = Supervised("multilabel", target_N).deviations(torch.arange(4))
    expected = label_columns(target_N, 3)
    torch.testing.assert_close(deviations, expected - expected.mean(dim=0))


def test_a_label_without_a_value_is_left_out_of_the_mean():
    patterns, logits = np.array([0b01, 0b01, 0b11]), np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    assert metric("multilabel", "auc", patterns, logits) == 1.0
    with pytest.raises(DataError, match="a multilabel target needs"):
        metric("multilabel", "auc", patterns, logits[:, 0])
    with pytest.raises(DataError, match=r"labels range over 1\.\.5; 4 classes are numbered 0\.\.3"):
        metric("multilabel", "auc", [1, 1, 5], logits)


def test_each_label_is_compared_as_if_it_were_alone_and_their_mean_has_an_interval():
    rng = np.random.default_rng(4)
    patterns, joint, own = rng.integers(0, 8, 400), rng.normal(size=(400, 3)), rng.normal(size=(400, 3))
    how = {"evaluation": EvaluationConfig(bootstrap=50), "weights": rng.random(400)}
    whole = compare_models("multilabel", patterns, joint, own, labels=NAMES, generator=np.random.default_rng(7), **how)
    for k, name in enumerate(NAMES):
        alone = compare_models("binary", (patterns >> k) & 1, joint[:, k], own[:, k], generator=np.random.default_rng(7), **how)
        assert whole["labels"][name] == alone
    for model in ("joint", "local_baseline", "difference"):
        values = [whole["labels"][name][model]["auc"]["value"] for name in NAMES]
        mean = whole[model]["auc"]
        assert mean["value"] == pytest.approx(np.mean(values))
        assert mean["low"] < mean["value"] < mean["high"]
        widths = [whole["labels"][name][model]["auc"]["high"] - whole["labels"][name][model]["auc"]["low"] for name in NAMES]
        assert mean["high"] - mean["low"] < np.mean(widths), "the mean of independent labels varies less than each"
    assert whole["label_mean"] is None
    json.dumps(whole, allow_nan=False)


def test_boosting_fits_a_model_of_each_label():
    rng = np.random.default_rng(5)
    numbers = torch.from_numpy(rng.normal(size=(600, 2))).float()
    features = Features(numeric_NF=numbers, categorical_NG=torch.zeros(600, 0, dtype=torch.int64))
    each = [(numbers[:, k] > 0).long() for k in range(2)]
    index_N = torch.arange(600)
    together = Boosted("multilabel", features, each[0] | each[1] << 1, outputs=2, seed=1)
    logits = together.logits(features.rows, index_N, classes=2)
    for k, label_N in enumerate(each):
        alone = Boosted("binary", features, label_N.float(), seed=1).logits(features.rows, index_N, classes=2)
        assert torch.equal(logits[:, k], alone)


def test_scores_are_the_probability_of_each_label():
    logits = torch.randn(5, 3)
    scores = score_columns(coder_of(), logits)
    assert list(scores) == ["score_click", "score_install", "score_buy"]
    np.testing.assert_allclose(np.stack(list(scores.values()), axis=1), torch.sigmoid(logits).numpy(), rtol=1e-6)
    assert meaning_of(coder_of())["labels"]["install"] == ["0", "1"]


# --- what does not go with it


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"type": "multilabel", "labels": ["a"]}}, r"target\.labels"),
        ({"target": {"type": "multilabel"}}, r"target\.labels"),
        ({"target": {"type": "multilabel", "labels": ["a", "b", "a"]}}, r"target\.labels.*must have each column once"),
        ({"target": {"type": "multilabel", "labels": [f"l{k}" for k in range(17)]}}, r"target\.labels"),
        ({"target": {"type": "binary", "labels": ["a", "b"]}}, r"target\.labels"),
        ({"defense": [{"method": "marvell", "power": 1.0}]}, r"target\.type = multilabel; use isotropic or label-dp"),
        (
            {"defense": [{"method": "distance-correlation", "weight": 1.0}]},
            r"is for binary or multiclass targets; target\.type = multilabel",
        ),
        ({"unaligned": {"method": "warm-start"}}, r"takes? one label of a row; target\.type = multilabel has several; use none"),
        ({"alignment__method": "union"}, r"labels can be imputed for binary targets only"),
        ({"evaluation__privacy": {"epsilon": 1.0}}, r"releases an AUC, which target\.type = multilabel does not have"),
        ({"evaluation__share_metrics": ["gini"]}, r"is not a metric of multilabel targets; allowed: auc, nll, ace, ap"),
        ({"serving": {"ways": ["embedding"]}}, r"give one number for a row, and target\.type = multilabel has several"),
    ],
)
def test_what_has_no_way_for_several_labels_is_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse_contract(contract_values(PARTIES, **{"target": TARGET, **changes}))


def test_no_method_for_unaligned_rows_takes_several_labels():
    for method in sorted(METHODS.keys() - {"none"}):
        unaligned = {"method": method, **({"group": "kind"} if method == "heuristic" else {})}
        with pytest.raises(ConfigError, match="multilabel has several; use none"):
            parse_contract(contract_values(PARTIES, target=TARGET, unaligned=unaligned))


def test_a_head_on_shares_takes_one_label():
    values = contract_values((*PARTIES, "helper"), target=TARGET, training={"gradients": "shared"})
    values["parties"]["helper"]["role"] = "helper"
    with pytest.raises(ConfigError, match=r"target\.type = multilabel: a head on shares"):
        parse_contract(values)


@pytest.mark.parametrize(
    ("target", "label", "message"),
    [
        (TARGET, ["click", "install"], r'label = \["click", "install"\]: the contract.s target\.labels are'),
        (TARGET, "click", r'label = \["click"\]: the contract.s target\.labels are'),
        (TARGET, None, "label: is missing"),
        ({"type": "binary"}, ["click", "install"], r"target\.type = binary in the contract has one label; name one"),
    ],
)
def test_a_party_file_names_the_labels_of_the_contract(target, label, message, tmp_path):
    values = {"party": "bank", "table": {"path": "bank.csv"}, "keys": {"id": "id"}, "label": label}
    party = parse_party(values, folder=tmp_path)
    with pytest.raises(ConfigError, match=message):
        check_party(parse_contract(contract_values(PARTIES, target=target)), party, network=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": ["click", "click"]}, r"^party file: label = [^\n]*: must have each column once[^\n]*$"),
        ({"label": ["click"]}, r'^party file: label = \["click"\]: must be a list of at least 2$'),
        ({"label": ["click", 1]}, r"^party file: label\.1 = 1: must be text[^\n]*$"),
        ({"label": 1}, r"^party file: label = 1: must be text[^\n]*$"),
        ({"weight": "install"}, r'weight = "install": is also the label'),
        ({"keys": {"id": "buy"}}, r'label = "buy": is also a key column'),
        ({"features": {"numeric": ["click"]}}, r'column "click" is the label; a feature would give it away'),
        ({"report": {"subgroups": ["buy"]}}, r'column "buy" is the label'),
        ({"repeats": {"latest": "day", "aggregate": {"install": ["mean"]}}}, r"repeats\.aggregate\.install: is the label"),
        ({"sequences": {"seen": {"target": "buy"}}}, r"is the label; name the column of the row's item"),
    ],
)
def test_a_label_column_has_no_second_use(changes, message, tmp_path):
    values = {"party": "bank", "table": {"path": "bank.csv"}, "keys": {"id": "id"}, "label": list(NAMES), **changes}
    with pytest.raises(ConfigError, match=message):
        parse_party(values, folder=tmp_path)


@pytest.mark.parametrize(
    ("target", "label", "costs", "message"),
    [
        (TARGET, list(NAMES), {"clik": {}}, r"report\.costs\.clik: is not one of several labels of the contract"),
        ({"type": "binary"}, "buy", {"buy": {}}, r"report\.costs\.buy: is not one of several labels of the contract"),
        (TARGET, list(NAMES), {"buy": {"false_positive": 0.0, "false_negative": 0.0}}, "are both 0"),
        (TARGET, list(NAMES), {"buy": {"false_positive": -1.0}}, r"report\.costs\.buy\.false_positive = -1"),
    ],
)
def test_costs_are_of_labels_that_there_are(target, label, costs, message, tmp_path):
    values = {"party": "bank", "table": {"path": "b.csv"}, "keys": {"id": "id"}, "label": label, "report": {"costs": costs}}
    with pytest.raises(ConfigError, match=message):
        check_party(parse_contract(contract_values(PARTIES, target=target)), parse_party(values, folder=tmp_path), network=False)


def test_a_key_column_with_the_name_of_a_score_is_refused(tmp_path):
    party = parse_party(
        {"party": "bank", "table": {"path": "bank.csv"}, "keys": {"id": "score_buy"}, "label": list(NAMES)}, folder=tmp_path
    )
    with pytest.raises(ConfigError, match="keys: column 'score_buy' has a name that the file of scores needs itself"):
        check_columns(
            parse_contract(contract_values(PARTIES, target=TARGET)),
            party,
            pl.DataFrame({"score_buy": ["a"]}),
            tmp_path / "s.parquet",
        )


def test_commands_that_take_one_label_refuse_several(tmp_path):
    contract = parse_contract(contract_values(PARTIES, target=TARGET))
    values = {"party": "bank", "table": {"path": "bank.csv"}, "keys": {"id": "id"}, "label": list(NAMES)}
    party = parse_party(values, folder=tmp_path)
    with pytest.raises(ConfigError, match="--explain: several labels have no single output"):
        check_explained(contract, "bank")
    with pytest.raises(ConfigError, match=r"target\.type = multilabel: a student learns one label"):
        make_student(contract, party, scores=tmp_path / "scores.csv", to=tmp_path / "student", watcher=Silent())
    with pytest.raises(ConfigError, match=r"target\.type = multilabel: a sweep compares how well one label's classes"):
        sweep_defenses(contract, None, watcher=Silent())


def test_a_run_goes_on_with_the_labels_that_it_was_charged_for_in_any_order(tmp_path):
    """Another label, or a missing one, is reported in a line that shows no label."""
    contract = parse_contract(contract_values(PARTIES, target=TARGET, defense=[{"method": "label-dp", "epsilon": 1.0}]))
    values = {"party": "bank", "table": {"path": "b.csv"}, "keys": {"id": "id"}, "label": list(NAMES)}
    budget = {"privacy": {"ledger": str(tmp_path / "ledger.sqlite"), "dataset": "clicks"}}
    party, folder = parse_party(values | budget, folder=tmp_path), RunFolder.new(tmp_path, contract, "bank", key=None)
    create_ledger(party)
    labels = {"click": ["no", "yes", "no"], "install": [1, 0, 1], "buy": [True, True, False]}
    RunDefense.of(contract, folder).spend(
        contract, party, folder, torch.tensor([5, 6, 1]), what="training", column=struct(**labels)
    )
    check_charged_labels(contract, folder, struct(**dict(reversed(labels.items()))))
    for change in ({"install": [1, 1, 1]}, {"install": [1, None, 1]}, {"install": labels["buy"], "buy": labels["install"]}):
        with pytest.raises(DataError, match=r"the labels are not those that this run was charged for"):
            check_charged_labels(contract, folder, struct(**labels | change))


def test_one_label_has_the_hash_that_it_had_before_there_were_several():
    assert "labels" not in json.loads(parse_contract(contract_values(PARTIES)).canonical_json())["target"]
    several = parse_contract(contract_values(PARTIES, target=TARGET))
    assert json.loads(several.canonical_json())["target"] == {"type": "multilabel", "classes": 2, "labels": list(NAMES)}
    assert parse_contract(json.loads(several.canonical_json())).hash == several.hash


# --- replaced labels


@pytest.mark.parametrize("labels", [2, 3, 4])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_no_two_patterns_of_labels_give_a_replaced_one_with_chances_further_apart_than_epsilon(labels, epsilon):
    """All labels of a row may differ at the same time. Counted exactly, in words of 2^64."""
    each = other_words(1 << labels, epsilon)
    stays = WORDS - ((1 << labels) - 1) * each
    with localcontext() as context:
        context.prec = 60
        assert Decimal(stays) / Decimal(each) <= Decimal(epsilon).exp()
        assert stays > each


def test_replaced_labels_are_kept_as_often_as_epsilon_lets_them(monkeypatch):
    """40,000 rows: a deviation of .0025 of the unchanged share, and a chance of 2e-5 beyond 4 of them."""
    rng = np.random.default_rng(6)
    patterns_N = torch.from_numpy(rng.integers(0, 8, 40_000))
    replaced_N = LabelDP(epsilon=2.0)(patterns_N, classes=8, random_bytes=rng.bytes)
    assert (replaced_N == patterns_N).double().mean().item() == pytest.approx(np.exp(2) / (np.exp(2) + 7), abs=0.01)


@pytest.mark.parametrize("labels", [1, 2, 4])
def test_an_audit_knows_the_chance_by_which_each_label_is_replaced(labels):
    """Counted over all patterns if a row's own is 0: those whose first bit is set."""
    target = {"type": "multilabel", "labels": list("abcd")[:labels]} if labels > 1 else {"type": "binary"}
    contract = parse_contract(contract_values(PARTIES, target=target, defense=[{"method": "label-dp", "epsilon": 1.5}]))
    replaced = sum(other_words(1 << labels, 1.5) for pattern in range(1, 1 << labels) if pattern & 1)
    assert flip_of(contract) == pytest.approx(replaced / WORDS, rel=1e-12)


def test_more_labels_than_label_dp_can_keep_are_refused():
    target = {"type": "multilabel", "labels": list("abcde")}
    with pytest.raises(ConfigError, match="would keep hardly any of 5 labels; use at most 4 labels"):
        parse_contract(contract_values(PARTIES, target=target, defense=[{"method": "label-dp", "epsilon": 1.0}]))


def test_under_label_dp_nothing_that_leaves_hangs_on_an_exact_label(tmp_path, monkeypatch):
    """Flip one label of one row, and change all labels of all rows, with the same replaced labels."""
    frames = tables(PARTIES, rows=160)
    bank = frames["bank"].sort("id").with_columns(day=pl.int_range(pl.len()))
    rng = np.random.default_rng(1)
    first = bank.drop("y").with_columns(**{name: pl.Series(rng.integers(0, 2, len(bank))) for name in NAMES})
    linked = first["id"].is_in(frames["shop"]["id"].to_list()).arg_true()[0]
    flipped = first.with_columns(
        install=pl.when(pl.int_range(pl.len()) == linked).then(1 - pl.col("install")).otherwise("install")
    )
    other = first.with_columns(**{name: pl.Series(rng.integers(0, 2, len(bank))) for name in NAMES})
    label_dp = [{"method": "label-dp", "epsilon": 1.0}]
    contract = contract_values(PARTIES, target=TARGET, defense=label_dp, split__method="time", training__epochs=1)
    names = columns(PARTIES)
    names["bank"] |= {"label": list(NAMES), "time": "day"}
    replaced = rng.integers(0, 8, len(bank))
    assert_others_see_the_same(
        [
            everything_for_others(tmp_path / str(k), {**frames, "bank": each}, monkeypatch, replaced, contract, names)
            for k, each in enumerate((first, flipped, other))
        ]
    )


# --- jobs


@pytest.fixture(scope="module")
def labelled():
    """Make tables of three labels: by one of both parties' columns, by their difference, and by chance."""
    frames = tables(PARTIES, rows=ROWS)
    joined = (
        frames["bank"].select("id", "x").join(frames["shop"].select("id", shop="x"), on="id", how="left", maintain_order="left")
    )
    own_R, other_R = joined["x"].to_numpy(), joined["shop"].fill_null(0).to_numpy()
    rng = np.random.default_rng(5)
    frames["bank"] = (
        frames["bank"]
        .drop("y")
        .with_columns(
            click=pl.Series(np.where(own_R + other_R + 0.3 * rng.normal(size=len(own_R)) > 0, "yes", "no")),
            install=pl.Series((own_R - other_R + 0.3 * rng.normal(size=len(own_R)) > 0.5).astype(np.int64)),
            buy=pl.Series(rng.random(len(own_R)) < 0.3),
        )
    )
    return frames


def run(folder, frames, target=TARGET, label=NAMES, party_changes=None, **changes):
    names = columns(PARTIES)
    names["bank"] |= {"label": label if isinstance(label, str) else list(label), **(party_changes or {})}
    values = contract_values(PARTIES, **{"target": target, "evaluation__own_columns_baseline": True, **changes})
    return simulate(values, frames, names, watcher=Silent(), folder=folder)


WAYS = [
    {},
    {"model__ensemble": 4},
    {"training__gradients": "none"},
    {"training__folds": 3},
    {"training__refit": True},
    {"evaluation__own_columns_boosting": True},
    {"party_changes": {"weight": "weight"}},
    {"split__method": "time", "party_changes": {"time": "day"}},
]


@pytest.mark.parametrize("changes", short_lane_of(WAYS, 1), ids=str)
def test_each_label_is_learnt(changes, labelled, tmp_path):
    """600 test rows: an AUC of .5 by chance has a deviation of .025, and .12 is more than four of these."""
    result = run(tmp_path, labelled, training__epochs=12, **changes)
    by_label = {
        name: (part["joint"]["auc"]["value"], part["local_baseline"]["auc"]["value"])
        for name, part in result.evaluation["labels"].items()
    }
    assert list(by_label) == list(NAMES)
    for name in ("click", "install"):
        joint, own = by_label[name]
        assert joint > 0.95
        assert own < joint - 0.1
    assert by_label["buy"][0] == pytest.approx(0.5, abs=0.12)
    assert result.evaluation["joint"]["auc"]["value"] == pytest.approx(np.mean([joint for joint, _ in by_label.values()]))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_label_is_learnt_about_as_well_as_by_a_run_of_its_own(name, labelled, tmp_path):
    together = run(tmp_path / "together", labelled, training__epochs=15)
    alone = run(tmp_path / "alone", labelled, {"type": "binary"}, name, training__epochs=15)
    several, one = (each["joint"]["auc"]["value"] for each in (together.evaluation["labels"][name], alone.evaluation))
    assert several == pytest.approx(one, abs=0.02 if name != "buy" else 0.12)


def test_without_gradients_other_labels_send_the_same_bytes(tmp_path, to_shop, monkeypatch):
    """Turn each label, or make one of them random: nothing of it shows, and nothing of it is in the other's folder."""
    frames, seen = tables(PARTIES, rows=160), []
    bank = frames["bank"].drop("y")
    draws = np.random.default_rng(3).integers(0, 2, (4, len(bank)))
    first = dict(zip(NAMES, draws, strict=False))
    for number, labels in enumerate((first, {name: 1 - each for name, each in first.items()}, first | {"install": draws[3]})):
        seed_system(monkeypatch)
        to_shop.clear()
        given_frames = {**frames, "bank": bank.with_columns(**{name: pl.Series(each) for name, each in labels.items()})}
        run(
            tmp_path / str(number),
            given_frames,
            **{"training__gradients": "none", "training__epochs": 3, "training__patience": 1, "audit": "quick"},
        )
        seen.append((list(to_shop), files_of(tmp_path / str(number), "shop")))
    (sent, files), *others = seen
    assert len(sent) > 5
    for other_sent, other_files in others:
        assert other_sent == sent
        assert [name for name in files if files[name] != other_files[name]] == []


def test_the_ledger_is_charged_once_for_all_labels_of_a_row(labelled, tmp_path):
    label_dp = [{"method": "label-dp", "epsilon": 1.5}]
    frames = {name: frame.head(600) for name, frame in labelled.items()}
    budget = {"privacy": {"ledger": str(tmp_path / "ledger.sqlite"), "dataset": "clicks", "cap": 2.0}}
    result = run(tmp_path, frames, training__epochs=1, defense=label_dp, audit="quick", party_changes=budget)
    (entry,) = Ledger(tmp_path / "ledger.sqlite", party="bank").entries("clicks")
    assert entry.event.epsilon == 1.5
    assert result.sections.privacy.spent_epsilon == 1.5
    assert {attack.label for attack in result.sections.leakage.attacks} == set(NAMES)


def planted(bit, *, rows=600, together=False):
    """Return what shop was sent, with gradients that show one of three labels and nothing of the others.

    With ``together`` they show the first label, and whether the second one equals it.
    """
    generator = torch.Generator().manual_seed(1)
    label_N = torch.randint(0, 8, (rows,), generator=generator)
    gradient_ND = torch.randn(rows, 6, generator=generator)
    if together:
        gradient_ND[:, 3] += 6.0 * ((label_N & 1) == ((label_N >> 1) & 1))
    gradient_ND[:, 2] += 6.0 * ((label_N >> bit) & 1)
    rows_B = torch.arange(rows)
    step = StepView(
        epoch=0,
        rows_B=rows_B,
        own_B=torch.ones(rows, dtype=torch.bool),
        received_BD=gradient_ND,
        sent_BD=torch.randn(rows, 6, generator=generator),
    )
    view = View(received="cut_gradient", steps=(step,))
    seat = RecordedSeat(peer="shop", view=view, by_epoch=((0, view),))
    contract = parse_contract(contract_values(PARTIES, target=TARGET, audit="quick"))
    return RecordedLabels(contract=contract, label_N=label_N, own_N=torch.ones(rows, dtype=torch.bool), seats=(seat,), trained=1)


@pytest.mark.parametrize("bit", [0, 2])
def test_an_audit_finds_a_planted_leak_of_one_label_and_names_it(bit):
    """No attack that one could run finds more than .62 of the others: 600 rows, a deviation of .025, some twenty attacks."""
    audit = audit_labels(planted(bit), watcher=Silent())
    strongest = {
        name: max(each.auc for each in audit.attacks if each.label == name and each.auc is not None and not each.upper_bound)
        for name in NAMES
    }
    assert strongest.pop(NAMES[bit]) > 0.99
    assert max(strongest.values()) < 0.62
    line = next(line for line in leak_headline(audit) if line.startswith("Through cut gradients, yes"))
    assert f"of label {NAMES[bit]}" in line
    assert "Each label was attacked as if it were the only one, but by unmixed, which tells them apart, and by" in audit.summary


def test_a_label_that_only_shows_beside_another_one_is_found_by_pattern():
    """One row in two has equal labels, so that the second label alone is in no direction of the gradients."""
    audit = audit_labels(planted(0, together=True), watcher=Silent())
    aucs = {(each.name, each.label): each.auc for each in audit.attacks}
    assert aucs["completion-gradient", "install"] < 0.65
    assert aucs["completion-gradient-by-pattern", "install"] > 0.95
    assert aucs["completion-gradient-by-pattern", "buy"] == pytest.approx(0.5, abs=0.1)
    assert {name for name, _ in aucs if name.endswith("by-pattern")} >= {f"completion-both-{BY_PATTERN}"}


def test_more_patterns_than_known_rows_are_left_out_and_said():
    audit = audit_labels(planted(0), auxiliary_labels=7, watcher=Silent())
    assert not any(BY_PATTERN in each.name for each in audit.attacks)
    assert "attacks by-pattern: 3 labels have 8 patterns, and 7 rows' labels are known" in audit.not_measured


def test_an_audit_says_of_which_label_it_could_not_measure_something():
    recorded = planted(0)
    audit = audit_labels(replace(recorded, label_N=recorded.label_N & 0b011), watcher=Silent())
    assert {attack.label for attack in audit.attacks} == {"click", "install"}
    reasons = [line for line in audit.not_measured if "one class only" in line]
    assert reasons
    assert all(line.endswith("the training rows have one class only (buy)") for line in reasons)


@pytest.fixture(scope="module")
def audited_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("audited")


@pytest.fixture(scope="module")
def audited(labelled, audited_folder):
    frames = {name: frame.head(1200) for name, frame in labelled.items()}
    changes = {"training__epochs": 6, "evaluation__importance": {"own_columns": True, "repeats": 1}}
    report = {"subgroups": ["kind"], "costs": {"buy": {"false_negative": 5.0}}}
    return run(audited_folder, frames, audit="quick", party_changes={"report": report}, **changes)


def test_each_label_has_decisions_of_its_own(audited, audited_folder):
    """As if it were alone: the same figures follow from the scores and labels that the run keeps."""
    by_label = audited.sections.decisions_by_label
    assert (list(by_label), audited.sections.decisions) == (list(NAMES), None)
    (path,) = audited_folder.glob("bank/*/scores.parquet")
    kept = pl.read_parquet(path)
    assert kept.columns == [*(f"score_{name}" for name in NAMES), *(f"label_{name}" for name in NAMES)]
    for name, each in by_label.items():
        costs = {"cost_false_positive": 1.0, "cost_false_negative": 5.0 if name == "buy" else 1.0}
        assert each["chosen_on"] == "validation rows", "importance had scored them"
        alone = decide(kept[f"label_{name}"], kept[f"score_{name}"], **costs)
        assert {what: each[what] for what in costs} == costs
        assert each["rows"] == kept.height
        for what in ("flag_none", "flag_all"):
            assert each[what]["cost"] == pytest.approx(alone[what]["cost"])
        assert [one["observed"] for one in each["deciles"]] == pytest.approx([one["observed"] for one in alone["deciles"]])


def test_the_page_and_a_comparison_have_the_chosen_threshold_of_each_label(audited):
    page = to_html(audited)
    section = page[page.index('id="decisions"') :].partition("</section>")[0]
    best = audited.sections.decisions_by_label["install"]["best"]
    for name in NAMES:
        assert f'<tr><th scope="row">{name}</th>' in section
        assert f"Decisions on label {name}" in section
    facts = {row.name: row.values for row in compare_results(["one", "two"], [audited, audited]).facts}
    assert facts["cost of 1,000 rows at the chosen threshold of label install"] == 2 * [1000 * best["cost"]]


def test_an_audit_of_a_run_attacks_each_label(audited):
    leakage = audited.sections.leakage
    assert {attack.label for attack in leakage.attacks} == set(NAMES)
    best = {name: max(each.auc for each in leakage.attacks if each.label == name and each.auc is not None) for name in NAMES}
    assert min(best.values()) > 0.75, "gradients tell also the label that no column tells"


def test_labels_that_gradients_mix_are_told_apart_by_an_attack_that_knows_none(audited):
    """An attack on one label alone confuses it with the others: one that knows no label finds .81 of two of these."""
    unaided = [each for each in audited.sections.leakage.attacks if each.view.endswith("knowing no label")]
    assert {each.label: each.symmetric_auc > 0.95 for each in unaided if each.name == "unmixed"} == dict.fromkeys(NAMES, True)


def test_the_page_has_a_row_and_curves_for_each_label(audited):
    page = to_html(audited)
    assert "Mean AUC over labels" in page
    for name in NAMES:
        assert f'<tr><th scope="row">{name}</th>' in page
        assert f"Curves of label {name}" in page
        assert f"of label {name}" in page, "attacks"
        assert f"the positive class of &#39;{name}&#39;" in page
    assert all(f"{name} from 0." in headline(audited).text for name in NAMES)
    (grouping,) = audited.sections.groups
    assert grouping["metric"] == "auc"
    assert grouping["groups"][0]["label_mean"]["value"] is None
    assert audited.sections.importance[0].metric == "Mean AUC over labels"


def test_a_label_that_is_predicted_too_well_is_named(labelled, tmp_path):
    frames = {name: frame.head(800) for name, frame in labelled.items()}
    frames["bank"] = frames["bank"].with_columns(noise=pl.col("buy").cast(pl.Float64))
    result = run(tmp_path, frames, training__epochs=12)
    assert any(line.startswith("Label buy: The AUC of bank's own columns alone is nearly perfect") for line in too_good(result))
    assert not any(line.startswith("Label install:") for line in too_good(result))
    notes = [note for note in result.data.notes if "'noise'" in note]
    assert any("all but equals the label (label 'buy')" in note for note in notes)


def test_runs_are_compared_label_by_label(audited, labelled, tmp_path):
    other = run(tmp_path, {name: frame.head(1200) for name, frame in labelled.items()}, training__epochs=1)
    comparison = compare_results(["one", "two"], [audited, other])
    rows = {row.name: row.values for row in comparison.metrics}
    assert rows["AUC of label install"][0] == audited.evaluation["labels"]["install"]["joint"]["auc"]["value"]
    assert "Mean AUC over labels" in rows
    assert "AUC of label buy, own columns only" in rows


@pytest.mark.long
def test_scores_of_labels_are_predicted_in_a_column_each_served_with_the_same_bits(labelled, tmp_path):
    frames = {name: frame.head(400) for name, frame in labelled.items()}
    job = lay_out(tmp_path, PARTIES, contract_values(PARTIES, target=TARGET, serving={"ways": ["key"]}), frames)
    job.change("bank", label=list(NAMES))
    job.run_all()
    scores = predicted(job)
    names = [f"score_{name}" for name in NAMES]
    assert [name for name in scores.columns if name in names] == names
    served = Served(job)
    try:
        served.start().until_ready()
        answers = in_several_requests(served, scores, ["id"])
    finally:
        served.close()
    for name in names:
        assert bits([answer[name] for answer in answers]) == bits(scores[name].to_numpy())


def test_a_run_goes_on_from_another_and_keeps_what_labels_mean(labelled, tmp_path):
    frames = {name: frame.head(400) for name, frame in labelled.items()}
    names = columns(PARTIES)
    names["bank"] |= {"label": list(NAMES)}
    values = contract_values(PARTIES, target=TARGET, training__epochs=1)
    first = simulate(values, frames, names, watcher=Silent(), folder=tmp_path)
    later = simulate(values, frames, names, watcher=Silent(), folder=tmp_path, start_from=first.run_id)
    assert later.run_id != first.run_id
    frames["bank"] = frames["bank"].with_columns(click=pl.lit("perhaps"))
    with pytest.raises(DataError, match=r"label column 'click': values never seen before .* knows click: no, yes"):
        simulate(values, frames, names, watcher=Silent(), folder=tmp_path, start_from=later.run_id)


@pytest.mark.long
@pytest.mark.parametrize("gradients", ["sent", "none"])
def test_rows_linked_by_similar_keys_have_several_labels(gradients, tmp_path):
    frames = similar.tables(target="binary")
    x_R = frames["bank"]["x"]
    frames["bank"] = frames["bank"].rename({"y": "click"}).with_columns(buy=(x_R > 0.5).cast(pl.Int64))
    names = similar.columns()
    names["bank"] |= {"label": ["click", "buy"]}
    changes = {"training__gradients": gradients, "training__epochs": 15, "audit": "quick"}
    values = similar.contract_values(target="binary", **changes) | {"target": {"type": "multilabel", "labels": ["click", "buy"]}}
    result = simulate(values, frames, names, watcher=Silent(), folder=tmp_path)
    assert result.evaluation["labels"]["buy"]["joint"]["auc"]["value"] > 0.9
    assert result.evaluation["labels"]["click"]["joint"]["auc"]["value"] > 0.75
