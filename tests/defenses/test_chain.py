"""A contract's list of defences: what it makes, in which order it applies, and what is refused."""

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import numpy as np
import pytest
import torch
from defense_rows import DEFENSE_ROWS

from tallystick.config.contract import Contract, parse_contract
from tallystick.defenses import defense_table
from tallystick.defenses.chain import NO_DEFENSE, chain
from tallystick.defenses.defense import Defense
from tallystick.defenses.defense_table import DEFENSES, GROUP, defense_named, installed_methods
from tallystick.defenses.distance_correlation import DistanceCorrelation
from tallystick.defenses.noise import NoiseStream
from tallystick.errors import ConfigError

ENTRIES = {method: keys[0] for method, keys in DEFENSE_ROWS.items()}
BINARY, MULTICLASS = {"type": "binary"}, {"type": "multiclass", "classes": 4}


def contract(*entries: dict[str, Any], target: dict[str, Any] = BINARY, **keys: Any) -> Contract:
    return parse_contract(
        {
            "name": "job",
            "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
            "alignment": {"keys": [{"name": "id"}]},
            "target": target,
            "defense": list(entries),
        }
        | keys,
        source="contract.yaml",
    )


def entry(method: str, **keys: Any) -> dict[str, Any]:
    return {"method": method} | (keys or ENTRIES[method])


def problem(*entries: dict[str, Any], **keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        contract(*entries, **keys)
    return str(caught.value)


def test_the_tables_know_the_same_methods() -> None:
    assert {*DEFENSES, *installed_methods()} == set(ENTRIES)
    assert not {*DEFENSES} & {*installed_methods()}


@pytest.mark.parametrize("method", ENTRIES)
@pytest.mark.parametrize(("target", "classes"), [(BINARY, 2), (MULTICLASS, 4), ({"type": "regression"}, 2)])
def test_every_method_works_for_its_targets_and_is_refused_for_others(method: str, target: dict[str, Any], classes: int) -> None:
    of_class = defense_named(method)
    assert of_class is not None
    if target["type"] not in of_class.targets:
        line = f"contract.yaml: defense.0.method = {method}: is for {' or '.join(of_class.targets)} targets; "
        assert line + f"target.type = {target['type']}" in problem(entry(method), target=target)
        with pytest.raises(ConfigError, match=f"defense {method} is for"):
            chain([each.make() for each in _parsed(method)], target=target["type"])
        return
    job = contract(entry(method), target=target)
    defenses = job.defenses()
    labels_B = torch.randint(0, classes, (64,), generator=torch.Generator().manual_seed(1))
    labels_B = labels_B if target["type"] == "multiclass" else labels_B.float()
    defended_B = defenses.defend_labels(labels_B, classes, np.random.default_rng(1).bytes)
    assert defended_B.shape == labels_B.shape
    cut_BD = torch.randn(64, 5, generator=torch.Generator().manual_seed(2), requires_grad=True)
    if of_class.hides_features():
        assert defenses == NO_DEFENSE
        hidden = job.embedding_defenses()
        assert len(hidden.guarantees()) == 1
        assert hidden.guarantees()[0].text.startswith("no formal guarantee")
        return
    assert not job.embedding_defenses()
    penalty = defenses.penalty(cut_BD, labels_B)
    assert (penalty is not None) == (method == "distance-correlation")
    grad_BD = torch.randn(64, 5, generator=torch.Generator().manual_seed(3)) / 64
    sent_BD = defenses.defend_gradients(grad_BD, labels_B, NoiseStream(bytes(16), step=1))
    assert torch.equal(sent_BD, grad_BD) == (not defenses.gradients)
    assert len(defenses.guarantees()) == 1
    formal = method in ("label-dp", "label-dp-prior", "gaussian-labels")
    assert len(defenses.events()) == formal
    assert defenses.guarantees()[0].text.startswith("no formal guarantee") != formal


def _parsed(method: str) -> Any:
    of_class = defense_named(method)
    assert of_class is not None
    allowed = of_class.targets[0]
    return contract(entry(method), target=BINARY if allowed == "binary" else MULTICLASS).defense


def test_a_chain_applies_labels_then_the_penalty_then_gradients_in_order() -> None:
    agreed = contract(
        entry("mixpro", goal=0.5),
        entry("isotropic", power=1),
        entry("distance-correlation", weight=2, form="plain"),
        entry("label-dp"),
    )
    defenses = agreed.defenses()
    assert [type(part).__name__ for part in (*defenses.labels, *defenses.penalties, *defenses.gradients)] == [
        "LabelDP",
        "DistanceCorrelation",
        "MixPro",
        "Isotropic",
    ]
    labels_B = (torch.arange(32) % 4 == 0).float()
    grad_BD = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    sent_BD = defenses.defend_gradients(grad_BD, labels_B, torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(7)
    by_hand_BD = defenses.gradients[0](grad_BD, labels_B, generator=generator)
    assert torch.equal(sent_BD, defenses.gradients[1](by_hand_BD, labels_B, generator=generator))
    expected = DistanceCorrelation(weight=2, form="plain")(grad_BD, labels_B)
    penalty = defenses.penalty(grad_BD, labels_B)
    assert penalty is not None
    assert torch.equal(penalty, expected)


def test_no_defense_changes_nothing() -> None:
    labels_N, grad_BD = torch.zeros(3), torch.ones(3, 2)
    assert NO_DEFENSE.defend_labels(labels_N, 2, bytes) is labels_N
    assert NO_DEFENSE.defend_gradients(grad_BD, labels_N, torch.Generator()) is grad_BD
    assert NO_DEFENSE.penalty(grad_BD, labels_N) is None
    assert NO_DEFENSE.guarantees() == NO_DEFENSE.events() == ()
    assert chain(()) == NO_DEFENSE


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ([{}], "contract.yaml: defense.0: method is missing"),
        (
            [{"method": "marvel"}],
            'contract.yaml: defense.0.method = "marvel": is not known, nor an installed entry point of tallystick.defenses; '
            "did you mean marvell?",
        ),
        (
            [{"method": "dp"}],
            'contract.yaml: defense.0.method = "dp": is not known, nor an installed entry point of tallystick.defenses; ',
        ),
        ([{"method": "marvell", "powr": 1}], "contract.yaml: defense.0.powr: is not a known key; did you mean power?"),
        ([{"method": "marvell"}], "contract.yaml: defense.0.power, max_sum_kl: give exactly one of the two"),
        ([{"method": "marvell", "power": -1}], "contract.yaml: defense.0.power = -1: must be at least 1e-06"),
        ([{"method": "marvell", "max_sum_kl": 9}], "contract.yaml: defense.0.max_sum_kl = 9: must be at most 4"),
        ([{"method": "mixpro", "goal": 1}], "contract.yaml: defense.0.goal = 1: must be below 1"),
        (
            [{"method": "label-dp"}],
            "defense.0.epsilon: is missing; defense.0.method = label-dp needs it; it says: label-DP budget of the run",
        ),
        ([{"method": "label-dp", "epsilon": 0}], "contract.yaml: defense.0.epsilon = 0: must be at least 1e-06"),
        ([{"method": "label-dp", "epsilon": float("nan")}], "contract.yaml: defense.0.epsilon = NaN: must be a finite number"),
        (["marvell"], 'contract.yaml: defense.0 = "marvell": must be a mapping of `key: value`'),
    ],
)
def test_errors_name_key_and_value_and_what_is_allowed(entries: list[Any], line: str) -> None:
    assert line in problem(*entries)


@pytest.mark.parametrize("given", [{"method": "marvell", "power": 4}, "marvell"])
def test_what_is_no_list_is_shown_an_entry(given: Any) -> None:
    assert "must be a list, with a `- ` before each entry, such as `- {method: label-dp, epsilon: 1}`" in problem(defense=given)


def test_what_does_not_go_together_is_refused() -> None:
    assert "defense.0, defense.1: 2 entries are marvell; give one" in problem(entry("marvell"), entry("marvell"))
    both = problem(entry("label-dp"), entry("isotropic"), entry("gaussian-labels"))
    assert "defense.0, defense.2: 2 entries replace the labels (label-dp, label-dp-prior, gaussian-labels); give one" in both
    soft = problem(entry("gaussian-labels"), entry("marvell"))
    assert (
        "defense.1.method = marvell: needs a class per row, but defense.0.method = gaussian-labels makes labels numbers between"
        in soft
    )
    union = {"alignment": {"method": "union", "keys": [{"name": "id"}]}}
    assert "defense.0.method = label-dp: labels are replaced once, but a union" in problem(entry("label-dp"), **union)
    assert "use isotropic or label-dp" in problem(entry("marvell"), target=MULTICLASS)


@pytest.mark.parametrize("method", ["union", "union-with-helper"])
def test_gaussian_noise_is_refused_beside_imputation_by_which_one_label_sets_many_targets(method: str) -> None:
    parties = {"bank": {"role": "label"}, "shop": {"role": "feature"}}
    if method == "union-with-helper":
        parties["club"] = {"role": "helper"}
    union = {"alignment": {"method": method, "keys": [{"name": "id"}]}, "parties": parties}
    said = problem(entry("gaussian"), union={"labels": "neighbors"}, **union)
    assert (
        "defense.0.method = gaussian, union.labels = neighbors: a label sets the targets of other rows, so a step would tell "
        "more of it than the noise covers; choose one of majority, majority-tr, majority-te, majority-fit, minority, random-pos, "
    ) in said
    for labels in ("random-pred", "majority"):
        assert contract(entry("gaussian"), union={"labels": labels}, **union).defense
    assert contract(entry("gaussian"), union={"labels": "neighbors"}).defense  # an intersection imputes nothing
    assert contract(entry("isotropic"), union={"labels": "neighbors"}, **union).defense


def test_both_sides_compare_the_list() -> None:
    with_defense, without = contract(entry("label-dp")), contract()
    assert with_defense.hash != without.hash
    assert contract(entry("label-dp", epsilon=1.0)).hash == with_defense.hash
    assert [entry.model_dump() for entry in with_defense.defense] == [{"method": "label-dp", "epsilon": 1.0}]


def installed(monkeypatch: pytest.MonkeyPatch, *values: str, name: str = "mine") -> None:
    """Install packages with an entry point of this name."""
    points = EntryPoints(EntryPoint(name=name, value=value, group=GROUP) for value in values)
    monkeypatch.setattr(defense_table, "entry_points", lambda **of: points.select(**of))


class Mine(Defense):
    """Made by a package of its own."""

    method = "mine"


def test_a_defence_that_no_package_has_is_named_with_the_entry_point_and_what_is_near() -> None:
    said = problem(entry("lasdg", soft=0.5))
    assert 'defense.0.method = "lasdg": is not known, nor an installed entry point of tallystick.defenses' in said
    assert "did you mean ladsg?" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((f"{__name__}:Mine", f"{__name__}:Defense"), "2 packages have one"),
        (("nowhere_at_all:Mine",), "nowhere_at_all:Mine cannot be loaded: ModuleNotFoundError"),
        ((f"{__name__}:entry",), "is not a class of a Defense whose method is mine"),
        (("tallystick.defenses.marvell:Marvell",), "is not a class of a Defense whose method is mine"),
    ],
)
def test_an_entry_point_that_is_no_defence_is_named(monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...], said: str) -> None:
    installed(monkeypatch, *values)
    assert said in problem(entry("mine", weight=1))


def test_the_keys_of_an_installed_defence_are_checked_as_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "defense.0.soft = 5: must be below 1" in problem(entry("ladsg", soft=5))
    assert "defense.0.hard: is not a known key; known here: limit, method, soft" in problem(entry("ladsg", soft=0.5, hard=1))
    agreed = contract(entry("ladsg", soft=0.5))
    again = parse_contract(agreed.model_dump(mode="json"), source="contract.yaml")
    assert (again.hash, [each.defense for each in again.defense]) == (agreed.hash, [each.defense for each in agreed.defense])
    installed(monkeypatch)
    assert "is not known, nor an installed entry point" in problem(entry("ladsg", soft=0.5))
