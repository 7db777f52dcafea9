"""The party file: paths, secrets, errors, and whether it fits the contract."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tallystick.config.contract import parse_contract
from tallystick.config.party import PartyFile, load_party, parse_party
from tallystick.config.party_checks import check_party, dialled
from tallystick.config.templates import FileRequest, contract_text, party_text
from tallystick.errors import ConfigError
from tallystick.reading import did_you_mean, redacted

LABEL: dict[str, Any] = {
    "party": "carrier",
    "table": {"path": "flights.parquet"},
    "keys": {"flight": "flight_id"},
    "label": "late",
    "features": {"numeric": ["distance"], "categorical": ["origin"]},
    "tls": {"ca": "ca.pem", "certificate": "carrier.pem", "key": "carrier.key"},
    "listen": "0.0.0.0:7443",
}
FEATURE: dict[str, Any] = {
    "party": "weather",
    "table": {"query": "select * from 'w.csv'"},
    "keys": {"flight": "id"},
    "tls": {"ca": "ca.pem", "certificate": "w.pem", "key": "w.key"},
    "peers": {"carrier": {"address": "localhost:7443"}},
}
PARTIES = {"carrier": {"role": "label"}, "weather": {"role": "feature"}}


def contract(**more: Any) -> Any:
    alignment = {"method": more.pop("method", "intersection"), "keys": [{"name": "flight"}]}
    return parse_contract({"name": "job", "parties": PARTIES | more.pop("parties", {}), "alignment": alignment} | more)


def party(base: dict[str, Any], **changes: Any) -> Any:
    data = {key: value for key, value in (copy.deepcopy(base) | changes).items() if value != "absent"}
    return parse_party(data, folder=Path("/home/me"), source="party.yaml")


def error(base: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        party(base, **changes)
    return str(caught.value)


def test_paths_start_from_the_party_file(tmp_path: Path) -> None:
    (tmp_path / "party.yaml").write_text("party: a\ntable: {path: sub/t.csv}\nkeys: {k: c}\n", encoding="utf-8")
    loaded = load_party(tmp_path / "party.yaml")
    assert loaded.table is not None
    assert loaded.table.path == tmp_path / "sub/t.csv"
    assert loaded.table.folder == loaded.runs.parent == tmp_path
    absolute = party(LABEL, table={"path": "/data/t.csv"})
    assert absolute.table.path == Path("/data/t.csv")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"compute": {"workers": 0}}, "party.yaml: compute.workers = 0: must be at least 1"),
        (
            {"compute": {"engine": "spark", "workers": 2}},
            'party.yaml: compute.engine = "spark": is not known; known here: local, ray',
        ),
        (
            {"compute": {"workers": 2, "address": "auto"}},
            'party.yaml: compute.address = "auto": only works with compute.engine = ray; leave it out',
        ),
        (
            {"compute": {"engine": "ray", "workers": 2, "address": "http://head:1"}},
            'party.yaml: compute.address = "http://head:1": must be auto, host:port or ray://host:port',
        ),
        ({"report": {"smallest_group": 3}}, "report.smallest_group = 3: must be at least 20"),
        (
            {"report": {"cost_false_positive": 0, "cost_false_negative": 0}},
            "cost_false_positive, cost_false_negative: are both 0",
        ),
        ({"report": {"cost_false_positive": -1}}, "report.cost_false_positive = -1: must be at least 0"),
        (
            {"report": {"subgroups": ["late"]}, "label": "late"},
            'report.subgroups: column "late" is the label; name another column',
        ),
        ({"label": "late", "time": "late"}, 'party.yaml: time = "late": is also the label'),
        ({"label": "late", "overlap_groups": "late"}, 'overlap_groups = "late": is the label'),
        ({"party": "absent"}, "party.yaml: party: is missing; it says: this party's name in the contract"),
        ({"partys": "x"}, "party.yaml: partys: is not a known key; did you mean party?"),
        ({"party": "\u202egnihtyna"}, r'party.yaml: party = "\u202egnihtyna": must be 1 to 63 of'),
        ({"\u202eytrap": "x"}, r"party.yaml: \u202eytrap: is not a known key"),
        ({"table": {}}, "party.yaml: table.path, query: exactly one of the two must be given"),
        (
            {"table": {"path": "a.csv", "query": "select 1"}},
            "party.yaml: table.path, query: exactly one of the two must be given",
        ),
        ({"table": {"path": f"{'a' * 300}.xlsx"}}, "must end in .csv, .csv.gz"),
        ({"table": {"path": "a.xlsx"}}, 'party.yaml: table.path = "/home/me/a.xlsx": must end in .csv, .csv.gz'),
        ({"table": {"pth": "a.csv"}}, "party.yaml: table.pth: is not a known key; did you mean path?"),
        ({"features": "all"}, 'party.yaml: features = "all": must be auto or a mapping with numeric and categorical'),
        ({"features": {"numeric": "distance"}}, 'party.yaml: features.numeric = "distance": must be a list'),
        ({"features": {"numeric": ["late"]}}, 'party.yaml: features: column "late" is the label; a feature would give it away'),
        ({"features": {"numeric": ["a"], "categorical": ["a"]}}, 'party.yaml: features: column "a" is given twice'),
        ({"label": "flight_id"}, 'party.yaml: label = "flight_id": is also a key column'),
        ({"drop": ["a"]}, "party.yaml: drop: only works with features: auto"),
        ({"listen": 7443}, "party.yaml: listen = 7443: must be text; put it in quotes if it looks like a number"),
        ({"listen": "0.0.0.0"}, 'party.yaml: listen = "0.0.0.0": must be "host:port"'),
        ({"listen": "host:70000"}, 'party.yaml: listen = "host:70000": must be "host:port"'),
        (
            {"peers": {"weather": {"adress": "a:1"}}},
            "party.yaml: peers.weather.adress: is not a known key; did you mean address?",
        ),
        (
            {"peers": {"weather": "a:1"}},
            'party.yaml: peers.weather = "a:1": must be a mapping of `key: value`, with address',
        ),
        ({"table": "a.csv"}, 'party.yaml: table = "a.csv": must be a mapping of `key: value`, such as path'),
        ({"device": "gpu"}, 'party.yaml: device = "gpu": must be cpu, cuda or cuda:N'),
        ({"threads": 0}, "party.yaml: threads = 0: must be at least 1"),
        ({"encoding": {"numeric": "minmax"}}, 'party.yaml: encoding.numeric = "minmax": must be auto, standard, log or rank'),
        ({"tls": {"ca": "ca.pem"}}, "party.yaml: tls.certificate: is missing"),
    ],
)
def test_error_names_key_value_and_what_is_allowed(changes: dict[str, Any], line: str) -> None:
    assert line in error(LABEL, **changes)


@pytest.mark.parametrize(
    "table",
    [
        {"query": "select 1", "database": "mysql://me:hunter2@h/db"},
        {"query": "select 1", "databse": "postgresql://me:hunter2@h/db"},
        {"path": "a.csv", "database": "postgresql://me:hunter2@h/db"},
        {"path": "postgresql://me:hunter2@h/db"},
        {"query": "", "database": "host=h password=hunter2"},
        {"query": 1, "database": ["postgresql://me:hunter2@h/db"]},
        "postgresql://me:hunter2@h/db",
    ],
)
def test_password_is_never_shown(table: Any) -> None:
    assert "hunter2" not in error(LABEL, table=table)


def test_password_is_not_shown_by_broken_yaml(tmp_path: Path) -> None:
    path = tmp_path / "party.yaml"
    path.write_text('party: a\ntable: {query: q, database: "postgresql://me:hunter2@h/db"\nkeys: {}\n', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_party(path)
    assert "hunter2" not in str(caught.value)


def test_redaction_keeps_the_rest() -> None:
    assert redacted("postgresql://me:p@ss/w@host/db") == "postgresql://me:***@host/db"
    assert redacted("postgresql://me@host/db") == "postgresql://me@host/db"
    assert redacted("host=h password='a b' user=u") == "host=h password=*** user=u"


def check_error(agreed: Any, given: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_party(agreed, given, source="party.yaml", **options)
    return str(caught.value)


def test_fitting_parties_pass() -> None:
    check_party(contract(), party(LABEL))
    check_party(contract(), party(FEATURE))
    check_party(contract(), party(FEATURE, tls="absent", peers="absent"), network=False)


@pytest.mark.parametrize(
    ("base", "changes", "line"),
    [
        (LABEL, {"party": "carier"}, 'party.yaml: party = "carier": is not in the contract; did you mean carrier?'),
        (LABEL, {"keys": {}}, "party.yaml: keys.flight: is missing"),
        (
            LABEL,
            {"keys": {"flight": "a", "fligth": "b"}},
            "party.yaml: keys.fligth: is not a key of the contract; did you mean flight?",
        ),
        (LABEL, {"label": "absent"}, "party.yaml: label: is missing"),
        (LABEL, {"listen": "absent"}, "party.yaml: listen: is missing"),
        (LABEL, {"tls": "absent"}, "party.yaml: tls: is missing"),
        (LABEL, {"table": "absent"}, "party.yaml: table: is missing"),
        (FEATURE, {"label": "x"}, 'party.yaml: label = "x": only the label party has one'),
        (FEATURE, {"weight": "x"}, 'party.yaml: weight = "x": only the label party has one'),
        (FEATURE, {"report": {"subgroups": ["x"]}}, "party.yaml: report: only the label party's report has these; leave it out"),
        (FEATURE, {"peers": {}}, "party.yaml: peers.carrier.address: is missing; weather dials carrier"),
        (
            FEATURE,
            {"peers": {"carrie": {"address": "a:1"}}},
            "party.yaml: peers.carrie: is not another party of the contract; did you mean",
        ),
    ],
)
def test_misfits_are_named(base: dict[str, Any], changes: dict[str, Any], line: str) -> None:
    assert line in check_error(contract(), party(base, **changes))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"weight": "w"}, "weight: imputed rows of a union have none; leave it out"),
        ({"device": "cuda"}, 'device = "cuda": a union is trained on the CPU; leave it out'),
    ],
)
def test_what_a_union_does_not_use_is_refused(changes: dict[str, Any], line: str) -> None:
    union = contract(method="union")
    assert line in check_error(union, party(LABEL, **changes))
    check_party(contract(), party(LABEL, **changes))


def test_time_split_needs_the_label_partys_time() -> None:
    agreed = contract(split={"method": "time"})
    assert "time: is missing" in check_error(agreed, party(LABEL))
    check_party(agreed, party(LABEL, time="when"))
    check_party(agreed, party(FEATURE))


def test_helper_is_dialled_and_has_no_rows() -> None:
    agreed = contract(method="union-with-helper", parties={"aide": {"role": "helper"}})
    assert {name: dialled(agreed, name) for name in agreed.parties} == {
        "carrier": ("aide",),
        "weather": ("carrier", "aide"),
        "aide": (),
    }
    assert "peers.aide.address: is missing; carrier dials aide" in check_error(agreed, party(LABEL))
    helper = {"party": "aide", "listen": "0.0.0.0:1", "tls": LABEL["tls"]}
    check_party(agreed, party(helper))
    assert "table: a helper sees no rows" in check_error(agreed, party(helper, table={"path": "a.csv"}))


@pytest.mark.parametrize("role", ["label", "feature"])
def test_templates_load_and_fit_together(tmp_path: Path, role: Any) -> None:
    from tallystick.config.contract import load_contract

    request = FileRequest(role=role, parties=("bank", "shop"), method="intersection")
    (tmp_path / "contract.yaml").write_text(contract_text(request), encoding="utf-8")
    (tmp_path / "party.yaml").write_text(party_text(request), encoding="utf-8")
    agreed = load_contract(tmp_path / "contract.yaml")
    check_party(agreed, load_party(tmp_path / "party.yaml"))
    yours = {"name": agreed.name, "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}}}
    keys = {"alignment": {"keys": [{"name": "customer", "normalise": ["trim", "lower"]}]}}
    best = {"unaligned": {"method": "warm-start"}, "training": {"mode": "auto"}}
    assert agreed == parse_contract(yours | keys | best), "the template says every other key's default"


def test_the_default_ledger_lies_beside_the_party_file(tmp_path: Path) -> None:
    for values in ({"party": "aide"}, {"party": "aide", "privacy": {"cap": 2.0}}):
        assert parse_party(values, folder=tmp_path, source="test").privacy.ledger == tmp_path / "privacy-ledger.sqlite"


@pytest.mark.parametrize(
    ("word", "meant"), [("lable", "label"), ("tabel", "table"), ("labels", "label"), ("featuers", "features")]
)
def test_a_mistyped_key_is_told_from_its_neighbours(word, meant):
    assert did_you_mean(word, PartyFile.model_fields) == f"did you mean {meant}?"


def test_a_name_is_quoted_where_one_would_not_see_what_it_is():
    assert did_you_mean("id", [" id "]) == "did you mean ' id '?"
    assert did_you_mean("total", ["a, b", "c\nd", "e"]) == "known here: 'a, b', 'c\\nd', e"
