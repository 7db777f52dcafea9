"""The contract: what is accepted, what its errors say, and when two contracts are the same."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.config.contract import Contract, load_contract, parse_contract
from tallystick.config.differences import differences
from tallystick.config.secret import Secret
from tallystick.config.sections import ROLE_ALIASES
from tallystick.errors import ConfigError
from tallystick.reading import Model

BASE: dict[str, Any] = {
    "name": "job",
    "parties": {"carrier": {"role": "label"}, "weather": {"role": "feature"}},
    "alignment": {"keys": [{"name": "flight", "normalise": ["trim", "lower"]}]},
}

BASE_JSON = parse_contract(BASE).canonical_json()


def changed(**paths: Any) -> dict[str, Any]:
    """Return the base with keys set, a__b for a.b."""
    data = copy.deepcopy(BASE)
    for path, value in paths.items():
        *folders, last = path.split("__")
        place = data
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return data


def error(data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_contract(data, source="contract.yaml")
    return str(caught.value)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "contract.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("paths", "line"),
    [
        ({"training__batch_size": 0}, "contract.yaml: training.batch_size = 0: must be at least 1, or auto"),
        ({"training__batch_size": 1.5}, "contract.yaml: training.batch_size = 1.5: must be a whole number, or auto"),
        ({"training__batch_size": True}, "contract.yaml: training.batch_size = true: must be a whole number, or auto"),
        ({"training__learning_rate": "fast"}, 'contract.yaml: training.learning_rate = "fast": must be a number'),
        ({"training__learning_rate": float("nan")}, "contract.yaml: training.learning_rate = NaN: must be a finite number"),
        ({"audit": "quik"}, 'contract.yaml: audit = "quik": must be quick, true or false'),
        ({"training__optimizer": "lion"}, 'contract.yaml: training.optimizer = "lion": must be adam, adamw, lamb or sgd'),
        ({"training__ema": 1.0}, "contract.yaml: training.ema = 1.0: must be below 1"),
        ({"training__clip": 0.0}, "contract.yaml: training.clip = 0.0: must be at least 1e-09"),
        (
            {"training": {"warm_up": 0.1, "schedule": "constant"}},
            "contract.yaml: training.warm_up = 0.1: only works with training.schedule = cosine",
        ),
        ({"training__epoch": 3}, "contract.yaml: training.epoch: is not a known key; did you mean epochs?"),
        (
            {"network": {"transport": "grpc"}},
            "contract.yaml: network.transport: is not a known key; known here: deadline_s, heartbeat_s, max_message_mib, wait_s",
        ),
        ({"trainin": {}}, "contract.yaml: trainin: is not a known key; did you mean training?"),
        (
            {"parties__weather": {"role": "feature", "rol": 1}},
            "contract.yaml: parties.weather.rol: is not a known key; did you mean role?",
        ),
        ({"model__hidden": []}, "contract.yaml: model.hidden = []: must be a list of at least 1"),
        ({"model__hidden": [8, 0]}, "contract.yaml: model.hidden.1 = 0: must be at least 1"),
        ({"model__hidden": 8}, "contract.yaml: model.hidden = 8: must be a list, such as [a, b]"),
        ({"model__cut_after": 5}, "contract.yaml: model.cut_after = 5: must be at most 3, the number of layers in model.hidden"),
        ({"model__ensemble": 0}, "contract.yaml: model.ensemble = 0: must be at least 1"),
        ({"model__ensemble": 100_000}, "contract.yaml: model.ensemble = 100000: must be at most 64"),
        (
            {"model": {"ensemble": 8, "top": "mine:Top"}},
            "contract.yaml: model.ensemble = 8: model.top = mine:Top is everything above the cut",
        ),
        (
            {"model": {"ensemble": 8, "cut_after": 3}},
            "contract.yaml: model.ensemble = 8: no layer of model.hidden is above the cut",
        ),
        (
            {"model__ensemble": 8, "unaligned": {"method": "warm-start"}},
            "contract.yaml: model.ensemble = 8: unaligned.method = warm-start brings networks of its own",
        ),
        ({"model__normalization": "layer"}, 'contract.yaml: model.normalization = "layer": must be none or batch'),
        (
            {
                "model__normalization": "batch",
                "defense": [{"method": "gaussian-embeddings", "epsilon": 1.0, "delta": 1e-6, "clip": 1.0}],
            },
            "contract.yaml: model.normalization = batch: spreads a row's columns over the embeddings of its whole batch",
        ),
        ({"model__wide": "yes"}, 'contract.yaml: model.wide = "yes": must be true or false'),
        ({"model__top": "mine"}, 'contract.yaml: model.top = "mine": must be an import path, such as "package.module:Class"'),
        ({"model__bottoms": {"shop": "a:B"}}, "contract.yaml: model.bottoms.shop: is not a party with a table; allowed"),
        (
            {"target": {"type": "multiclass"}},
            "contract.yaml: target.classes: is missing; target.type = multiclass needs it; it says: number of classes",
        ),
        ({"target": {"classes": 3}}, "contract.yaml: target.classes = 3: only works with target.type = multiclass"),
        ({"split": {"validation": 0.5, "test": 0.5}}, "contract.yaml: split.validation + split.test = 1: must be below 1"),
        (
            {"training": {"schedule": "open-ended", "patience": None}},
            "contract.yaml: training.schedule = open-ended: validation has to end it; split.validation must be above 0, and "
            "training.patience not null",
        ),
        ({"training": {"minutes": 0}}, "contract.yaml: training.minutes = 0: must be above 0"),
        ({"split": {"validation": 0}}, "contract.yaml: split.validation = 0: must be above 0, or set training.patience to null"),
        (
            {"evaluation__share_metrics": ["auc", "rmse"]},
            'contract.yaml: evaluation.share_metrics.1 = "rmse": is not a metric of binary targets; allowed: auc, nll',
        ),
        (
            {"evaluation__share_metrics": ["auc", "auc"]},
            'evaluation.share_metrics = ["auc", "auc"]: each metric must be given once',
        ),
        (
            {"evaluation": {"share_metrics": ["auc"], "privacy": {"epsilon": 1.0}}},
            "evaluation.share_metrics, evaluation.privacy: exact metrics undo what the private AUC promises",
        ),
        (
            {"evaluation__importance": {"feature_columns": "both"}, "alignment__method": "union"},
            "evaluation.importance.feature_columns = both: embeddings sent again would tell which rows of a union are imputed",
        ),
        (
            {
                "evaluation__importance": {"feature_columns": "label-party"},
                "split": {"validation": 0.0},
                "training": {"patience": None},
            },
            "evaluation.importance.feature_columns = label-party: is measured on validation rows",
        ),
        (
            {
                "evaluation__importance": {"feature_columns": "label-party"},
                "defense": [{"method": "quantized-embeddings", "levels": 5}],
            },
            "evaluation.importance.feature_columns = label-party: embeddings with one column shuffled disclose that column",
        ),
        (
            {"evaluation__importance": {"feature_columns": "both"}, "defense": [{"method": "label-dp", "epsilon": 1.0}]},
            "evaluation.importance.feature_columns = both: exact figures of validation labels undo what the label defence",
        ),
        ({"network": {"heartbeat_s": 9, "deadline_s": 3}}, "network.heartbeat_s = 9: must be below network.deadline_s = 3"),
        ({"parties": {"a": {"role": "label"}, "b": {"role": "guest"}}}, "contract.yaml: parties: 2 label parties; exactly one"),
        ({"parties": {"a": {"role": "label"}}}, "contract.yaml: parties: no feature party; at least one"),
        ({"parties": {"a": {"role": "boss"}}}, 'contract.yaml: parties.a.role = "boss": must be label, feature or helper'),
        ({"parties": {"A b": {"role": "label"}}}, "contract.yaml: parties.A b"),
        ({"parties__h": {"role": "helper"}}, "only alignment.method = union-with-helper or similarity has one"),
        ({"alignment__method": "union-with-helper"}, "0 helpers; alignment.method = union-with-helper needs exactly one"),
        ({"alignment__method": "union", "parties__third": {"role": "host"}}, "takes exactly one feature party, found 2"),
        (
            {"alignment__method": "union", "alignment__security": "malicious"},
            'alignment.security = "malicious": only works with alignment.method = intersection; leave it out',
        ),
        (
            {"alignment__method": "union-with-helper", "alignment__protocol": "diffie-hellman"},
            'alignment.protocol = "diffie-hellman": only works with alignment.method = intersection or union; leave it out',
        ),
        (
            {"alignment__protocol": "diffie-hellman", "alignment__security": "malicious"},
            "alignment.security = malicious: is by oblivious transfer; leave alignment.protocol out",
        ),
        ({"alignment__security": "paranoid"}, 'alignment.security = "paranoid": must be semi-honest or malicious'),
        ({"alignment__keys": [{"name": "a"}, {"name": "a"}]}, 'alignment.keys: must have each name once, found ["a", "a"]'),
        (
            {"alignment__keys": {"name": "a"}},
            "contract.yaml: alignment.keys: must be a list, with a `- ` before each entry",
        ),
        (
            {"alignment__keys": [{"name": "a", "normalise": ["strip"]}]},
            'alignment.keys.0.normalise.0 = "strip": must be trim, lower',
        ),
        (
            {"union": {"labels": "majority-tr", "features": "sampling-te"}},
            "union.labels = majority-tr, union.features = sampling-te: they calibrate in different ways; choose one of ",
        ),
        ({"seed": -1}, "contract.yaml: seed = -1: must be at least 0"),
        ({"version": 2}, "contract.yaml: version = 2: must be 1"),
    ],
)
def test_error_names_key_value_and_what_is_allowed(paths: dict[str, Any], line: str) -> None:
    assert line in error(changed(**paths))


def test_all_problems_are_listed_at_once() -> None:
    lines = error(changed(training__batch_size=0, training__epochs=0, seed="x")).splitlines()
    assert [line.split(" = ")[0] for line in lines] == [
        "contract.yaml: training.epochs",
        "contract.yaml: training.batch_size",
        "contract.yaml: seed",
    ]


def test_missing_key_says_what_it_is() -> None:
    data = changed()
    del data["name"]
    assert "contract.yaml: name: is missing; it says: name of the job" in error(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold `key: value` lines, found nothing"),
        ("- a\n", "must hold `key: value` lines, found list"),
        ("name: a\nname: b\n", 'line 2: the key "name" is given twice'),
        ("name: [a\n", "line 2: expected ',' or ']'"),
        ("a: &x 1\nb: *x\n", "line 2: aliases (*name) are not read here"),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            'line 1: the tag "tag:yaml.org,2002:python/object/apply:os.system" is not read',
        ),
        ('seed: !!int ""\n', 'line 1: the tag "tag:yaml.org,2002:int" is not read here'),
        ("audit: !!bool x\n", 'line 1: the tag "tag:yaml.org,2002:bool" is not read here'),
        ("name: !!timestamp x\n", 'line 1: the tag "tag:yaml.org,2002:timestamp" is not read here'),
        ("parties: !!set {a, b}\n", 'line 1: the tag "tag:yaml.org,2002:set" is not read here'),
        ("parties: !!omap [a]\n", 'line 1: the tag "tag:yaml.org,2002:omap" is not read here'),
        ('? !!str name\n: "a"\n', 'line 1: the tag "tag:yaml.org,2002:str" is not read here'),
        ('name: "a\\0b"\n', "line 1: the character U+0000 is not read here"),
        ('name: "\\ud800"\n', "line 1: the character U+D800 is not read here"),
    ],
)
def test_unreadable_yaml(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_contract(write(tmp_path, text))
    assert message in str(caught.value)


def test_absent_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_contract(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_contract(tmp_path / "binary.yaml")


def test_yaml_scalars_mean_what_they_look_like(tmp_path: Path) -> None:
    text = yaml.safe_dump(changed()).replace("name: job", "name: no") + "training: {learning_rate: 1e-3, patience: null}\n"
    contract = load_contract(write(tmp_path, text))
    assert (contract.name, contract.training.learning_rate, contract.training.patience) == ("no", 0.001, None)


def test_aliases_layout_and_defaults_do_not_change_the_hash(tmp_path: Path) -> None:
    plain = parse_contract(BASE)
    for alias, role in ROLE_ALIASES.items():
        if role == "helper":
            continue
        name = "carrier" if role == "label" else "weather"
        assert parse_contract(changed(**{f"parties__{name}": {"role": alias}})).hash == plain.hash
    spelt = parse_contract(json.loads(plain.canonical_json()))
    turned = parse_contract(dict(reversed(BASE.items())))
    assert spelt.hash == turned.hash == plain.hash == load_contract(write(tmp_path, yaml.safe_dump(BASE))).hash
    assert parse_contract(changed(seed=2)).hash != plain.hash
    assert parse_contract(changed(training__learning_rate=1)).hash == parse_contract(changed(training__learning_rate=1.0)).hash


def test_parties_by_role() -> None:
    parties = {name: {"role": role} for name, role in (("z", "host"), ("l", "active"), ("a", "passive"))}
    contract = parse_contract(changed(parties=parties))
    assert (contract.label_party, contract.feature_parties, contract.helper) == ("l", ("a", "z"), None)
    assert contract.role_of("z") == "feature"
    helped = parse_contract(changed(parties__h={"role": "arbiter"}, alignment__method="union-with-helper"))
    assert helped.helper == "h"


def test_differences_name_the_key_and_both_values() -> None:
    own, theirs = parse_contract(BASE), parse_contract(changed(training__batch_size=256, model__hidden=[8, 8]))
    assert differences(own.canonical_json(), own.canonical_json()) == []
    assert differences(own.canonical_json(), theirs.canonical_json()) == [
        "model.hidden.0: ours 128, theirs 8",
        "model.hidden.1: ours 256, theirs 8",
        "model.hidden.2: ours 256, theirs absent",
        'training.batch_size: ours "auto", theirs 256',
    ]


@settings(max_examples=40)
@given(
    st.one_of(
        st.text(), st.recursive(st.none() | st.integers() | st.text(), lambda x: st.dictionaries(st.text(), x)).map(json.dumps)
    )
)
def test_differences_survive_whatever_a_peer_sends(theirs: str) -> None:
    lines = differences(BASE_JSON, theirs)
    assert 1 <= len(lines) <= 51
    assert all(line.isprintable() and len(line) < 400 for line in lines)


def test_deeply_nested_peer_contract_is_refused() -> None:
    lines = differences(parse_contract(BASE).canonical_json(), "[" * 100_000 + "]" * 100_000)
    assert lines == ["the peer's contract is not readable JSON; install the same tallystick on both sides"]


def keys_of(model: type[Model], prefix: str = "") -> list[str]:
    """Return every key path of a config model."""
    found = []
    for name, field in model.model_fields.items():
        assert field.description, f"{model.__name__}.{name} has no description"
        found.append(f"{prefix}{name}")
        for child in _models(field.annotation):
            if child is Secret:  # its keys stand once, under "Secrets"
                continue
            found += keys_of(child, f"{prefix}{name}.")
    return found


def _models(annotation: Any) -> list[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models(argument)]


def test_every_key_is_documented() -> None:
    from tallystick.config.party import PartyFile

    page = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
    text = re.sub(r"\[\]|\([a-z0-9:, -]+\)\.", "", page.read_text(encoding="utf-8"))  # defense[].(marvell).power is defense.power
    missing = [key for model in (Contract, PartyFile) for key in keys_of(model) if f"`{key}`" not in text]
    missing += [key for key in keys_of(Secret) if f"| `{key}` |" not in text.partition("## Secrets")[2]]
    assert missing == []


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs", "patience"),
    [
        *((0, 16, 60, 5), (50, 16, 60, 5), (500, 16, 60, 5), (5_000, 128, 60, 5), (8_000, 128, 60, 4), (21_000, 128, 36, 2)),
        *((234_000, 512, 13, 2), (5_000_000, 1024, 4, 2)),
    ],
)
def test_auto_goes_by_the_number_of_training_rows(rows: int, batch_size: int, epochs: int, patience: int) -> None:
    terms = parse_contract(BASE).training
    settled = terms.resolved(rows)
    assert (settled.batch_size, settled.epochs, settled.patience) == (batch_size, epochs, patience)
    assert settled.folds == (4 if rows == 500 else 1)
    assert settled.validations == (1 if rows == 500 else 4 if rows < 10_000 else 2)
    found = ("batch_size", "epochs", "validations", "patience", "folds")
    kept = {key: value for key, value in terms.model_dump().items() if key not in found}
    assert {key: getattr(settled, key) for key in kept} == kept
    given = parse_contract(changed(training={"batch_size": 100, "epochs": 7, "validations": 2})).training.resolved(rows)
    assert (given.batch_size, given.epochs, given.validations) == (100, 7, 2)


@pytest.mark.parametrize(
    ("rows", "epochs", "patience"),
    [*((rows, 400, 16) for rows in (0, 50, 500, 8_000)), (21_000, 242, 7), (234_000, 87, 3), (5_000_000, 20, 3)],
)
def test_an_open_ended_training_goes_on_at_one_rate_for_longer(rows: int, epochs: int, patience: int) -> None:
    settled = parse_contract(changed(training={"schedule": "open-ended"})).training.resolved(rows)
    assert (settled.schedule, settled.epochs, settled.patience) == ("constant", epochs, patience)
    said = {"schedule": "open-ended", "epochs": 9, "patience": 2, "learning_rate": 0.002}
    settled = parse_contract(changed(training=said)).training.resolved(rows)
    assert (settled.epochs, settled.patience, settled.learning_rate) == (9, 2, 0.002)
