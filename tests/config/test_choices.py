"""Sections in which one key decides which other keys exist: each choice has its own, in the reader, the schema and the
messages.
"""

import json
from typing import Any

import jsonschema
import pytest
from tiny import contract_values

from tallystick.alignment.linkages import LINKAGES
from tallystick.config.alignment import AlignmentKeys
from tallystick.config.compute import ComputeKeys, LocalCompute, RayCompute
from tallystick.config.contract import Contract, parse_contract
from tallystick.config.merge import MergeKeys
from tallystick.config.party import PartyFile, parse_party
from tallystick.config.sections import TargetKeys, TrainingChoice
from tallystick.config.unaligned import CLASSES, UnalignedKeys
from tallystick.errors import ConfigError
from tallystick.models.similarity.merges import MERGES
from tallystick.reading import Model, Variant

PARTIES = ("bank", "shop")
NEAREST = {"dimensions": [{"name": "id"}], "neighbors": 1, "helper_sees": "clear"}
HELPED = {"bank": {"role": "label"}, "shop": {"role": "feature"}, "aide": {"role": "helper"}}
KEYS = [{"name": "id"}]
FAMILIES = [family for family in Variant.__subclasses__() if family is not ComputeKeys]  # which is a party file's
WRITTEN: dict[type[Variant], list[dict[str, Any]]] = {
    AlignmentKeys: [
        {"alignment": {"keys": KEYS}},
        {"alignment": {"method": "union", "keys": KEYS}},
        {"alignment": {"method": "union-with-helper", "keys": KEYS}, "parties": HELPED},
        {"alignment": {"method": "similarity", "similarity": NEAREST}, "parties": HELPED},
    ],
    UnalignedKeys: [{"unaligned": {"method": method}} for method in CLASSES],
    TargetKeys: [
        {"target": {}},
        {"target": {"type": "multiclass", "classes": 3}},
        {"target": {"type": "regression"}},
        {"target": {"type": "count"}},
        {"target": {"type": "survival"}},
        {"target": {"type": "quantile"}},
        {"target": {"type": "multilabel", "labels": ["click", "buy"]}},
    ],
    TrainingChoice: [
        {"training": {}},
        {"training": {"mode": "pipelined"}},
        {"training": {"gradients": "none"}},
        {
            "training": {"gradients": "shared"},
            "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}, "aid": {"role": "helper"}},
            "model": {},
        },
    ],
    MergeKeys: [{"model": {"merge": {"method": method}}} for method in MERGES],
}
"""Return a contract of each choice of a section, with only what it needs."""
SECTIONS = {
    AlignmentKeys: "alignment",
    UnalignedKeys: "unaligned",
    TargetKeys: "target",
    TrainingChoice: "training",
    MergeKeys: "model.merge",
}


def section_of(family: type[Variant], contract: Contract) -> Any:
    place: Any = contract
    for key in SECTIONS[family].split("."):
        place = getattr(place, key)
    return place


def values_at(family: type[Variant], values: Any) -> dict[str, Any]:
    for key in SECTIONS[family].split("."):
        values = values[key]
    return values


def parsed(changes: dict[str, Any]) -> Contract:
    return parse_contract(contract_values(PARTIES) | changes)


def test_each_family_is_tried() -> None:
    assert set(FAMILIES) == set(WRITTEN) == set(SECTIONS)
    for family in FAMILIES:
        assert {type(section_of(family, parsed(changes))) for changes in WRITTEN[family]} == set(family.choices())


def test_every_way_of_linking_has_its_class() -> None:
    tags = [tag for choice in AlignmentKeys.choices() for tag in choice.model_fields["method"].annotation.__args__]
    assert tags == list(LINKAGES)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_canonical_form_of_all_choices_has_the_same_keys_and_is_read_again(family: type[Variant]) -> None:
    contracts = [parsed(changes) for changes in WRITTEN[family]]
    forms = [json.loads(contract.canonical_json()) for contract in contracts]
    later = {"labels"}  # of a multilabel target alone: contracts keep their hash from before that target existed
    assert len({tuple(key for key in values_at(family, form) if key not in later) for form in forms}) == 1
    for contract, form in zip(contracts, forms, strict=True):
        again = parse_contract(form)
        assert again == contract
        assert again.canonical_json() == contract.canonical_json()
        assert parse_contract(contract.model_dump(mode="json", exclude_unset=True)) == contract


@pytest.mark.parametrize("family", FAMILIES)
def test_a_key_of_another_choice_is_refused_by_the_reader_and_by_the_schema(family: type[Variant]) -> None:
    schema = jsonschema.Draft202012Validator(Contract.model_json_schema())
    for changes in WRITTEN[family]:
        contract = parsed(changes)
        assert schema.is_valid(contract_values(PARTIES) | changes)
        for key in section_of(family, contract).absent():
            values = contract.model_dump(mode="json", exclude_unset=True)
            assert schema.is_valid(values)
            values_at(family, values)[key] = 12345
            assert not schema.is_valid(values)
            with pytest.raises(ConfigError) as refused:
                parse_contract(values)
            (line,) = str(refused.value).splitlines()
            assert line.startswith(f"contract: {SECTIONS[family]}.{key} = 12345: only works with {SECTIONS[family]}.")
            assert line.endswith("; leave it out")


def test_an_engine_of_a_party_has_its_own_keys_in_the_reader_and_in_the_schema(tmp_path) -> None:
    schema = jsonschema.Draft202012Validator(PartyFile.model_json_schema())
    base = {"party": "shop", "table": {"path": "shop.csv"}, "keys": {"id": "id"}}
    for engine, written in ((LocalCompute, {"workers": 2}), (RayCompute, {"engine": "ray", "workers": 2, "address": "auto"})):
        assert type(parse_party({**base, "compute": written}, folder=tmp_path, source="shop.yaml").compute) is engine
        assert schema.is_valid({**base, "compute": written})
    assert set(ComputeKeys.choices()) == {LocalCompute, RayCompute}
    wrong = {**base, "compute": {"workers": 2, "address": "auto"}}
    assert not schema.is_valid(wrong)
    with pytest.raises(ConfigError, match=r'compute\.address = "auto": only works with compute\.engine = ray; leave it out'):
        parse_party(wrong, folder=tmp_path, source="shop.yaml")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"training": {"mode": "pipelind"}}, 'training.mode = "pipelind": is not known; did you mean pipelined?'),
        ({"training": {"gradients": "nne"}}, 'training.gradients = "nne": is not known; did you mean none?'),
        ({"training": {"staleness": 4}}, "training.staleness = 4: only works with training.mode = pipelined; leave it out"),
        (
            {"training": {"gradients": "none", "compression": "int8"}},
            'training.compression = "int8": only works with training.gradients = sent; leave it out',
        ),
        (
            {"training": {"gradients": "none", "mode": "pipelined"}},
            'training.mode = "pipelined": only works with training.gradients = sent; here it must be synchronous or auto',
        ),
        (
            {"training": {"gradients": "none", "folds": 4}},
            "training.folds = 4: only works with training.gradients = sent; here it must be auto or 1; it says: number of",
        ),
        ({"target": {"type": "multiclass"}}, "target.classes: is missing; target.type = multiclass needs it; it says: number of"),
        ({"target": {"type": "multiclass", "classes": 2}}, "target.classes = 2: must be at least 3"),
        ({"target": {"classes": 3}}, "target.classes = 3: only works with target.type = multiclass; leave it out"),
        (
            {"model": {"merge": {"method": "top1", "sort": False}}},
            "model.merge.sort = false: only works with model.merge.method = attention, cnn, mlp or average; leave it out",
        ),
        (
            {"model": {"merge": {"weight": "similarity"}}},
            'model.merge.weight = "similarity": only works with model.merge.method = cnn or mlp; here it must be learnt or equal',
        ),
        (
            {"unaligned": {"method": "average", "sampling": "ddpm"}},
            'unaligned.sampling = "ddpm": only works with unaligned.method = diffu-at; leave it out',
        ),
    ],
)
def test_a_choice_that_is_not_open_is_named_with_what_opens_it(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_contract(contract_values(PARTIES) | changes)
    assert str(refused.value).startswith(f"contract: {line}")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("alignment", "line"),
    [
        ({"method": "unon", "keys": KEYS}, 'alignment.method = "unon": is not known; did you mean union?'),
        ({"method": None}, "alignment.method = null: is not known; known here: intersection, similarity, union"),
        ({"method": ["union"]}, 'alignment.method = ["union"]: is not known; did you mean union?'),
        ({}, "alignment.keys: is missing; alignment.method = intersection needs it; it says: key columns"),
        ({"method": "similarity"}, "alignment.similarity: is missing; alignment.method = similarity needs it; it says: how rows"),
        ({"keys": KEYS, "similarty": 1}, "alignment.similarty: is not a known key; did you mean similarity?"),
        ({"keys": []}, "alignment.keys = []: must be a list of at least 1"),
        (3, "alignment = 3: must be a mapping of `key: value`"),
        (None, "alignment = null: must be a mapping of `key: value`"),
        (
            {"method": "union", "keys": KEYS, "duplicates": "all"},
            'alignment.duplicates = "all": only works with alignment.method = intersection; here it must be first, drop or '
            "error; it says: rows with the same key",
        ),
        (
            {"method": "similarity", "similarity": NEAREST, "duplicates": "drop"},
            'alignment.duplicates = "drop": only works with alignment.method = intersection, union or union-with-helper',
        ),
        (
            {"method": "similarity", "similarity": {**NEAREST, "dimensions": [{"name": "id", "knd": 1}]}},
            "alignment.similarity.dimensions.0.knd: is not a known key; did you mean kind?",
        ),
        ({"keys": [{"name": "id", "normalise": ["trm"]}]}, 'alignment.keys.0.normalise.0 = "trm": must be trim, lower'),
    ],
)
def test_a_message_names_the_key_its_value_and_what_to_do(alignment: Any, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_contract(contract_values(PARTIES) | {"alignment": alignment})
    assert str(refused.value).startswith(f"contract: {line}")
    assert len(str(refused.value).splitlines()) == 1


def test_no_problem_has_pydantics_own_words() -> None:
    values = contract_values(PARTIES, defense=[{"method": "marvel", "power": 1.0}, {}, {"method": "label-dp", "power": 1.0}])
    with pytest.raises(ConfigError) as refused:
        parse_contract(values)
    assert str(refused.value).splitlines() == [
        'contract: defense.0.method = "marvel": is not known, nor an installed entry point of tallystick.defenses; '
        "did you mean marvell?",
        "contract: defense.1: method is missing",
        "contract: defense.2.epsilon: is missing; defense.2.method = label-dp needs it; it says: label-DP budget of the run, "
        "1e-6 to 100",
        "contract: defense.2.power = 1.0: only works with defense.2.method = marvell or isotropic; leave it out",
    ]


def test_a_class_without_a_value_for_a_key_of_another_choice_takes_its_default() -> None:
    class Family(Variant):
        pass

    class First(Family):
        kind: int = 1
        extra: tuple[int, ...] = ()

    class Second(Family):
        kind: int = 2

    class Holder(Model):
        section: First | Second

    assert Second().absent() == {"extra": []}
    assert Second.model_validate({"extra": []}).model_dump(mode="json") == {"kind": 2, "extra": []}
    assert First.choices() == (First, Second)
