"""Jobs that link rows by similar keys: over TLS with a helper, killed, resumed, three parties, new rows, bad keys, noisy keys."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
import yaml
from tiny import contract_values, few_places, free_port, lay_out, seed_system

from tallystick.alignment.outcome import Alignment, Candidates, SimilarityScale
from tallystick.check import check_party_file
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.config.party_checks import check_party
from tallystick.demo.homes import move_in
from tallystick.errors import ConfigError, DataError, IdError, PeerLost
from tallystick.job.job import Job
from tallystick.job.log import Logbook
from tallystick.job.phases.align import with_noise
from tallystick.job.phases.audit import audit_links
from tallystick.privacy.events import PureDP
from tallystick.privacy.ledger import BudgetExceeded, Ledger
from tallystick.report.page import to_html
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import create_ledger, with_ledger_named
from tallystick.simulation import simulate
from tallystick.tables.frame import as_frame
from tallystick.tables.keys import fingerprint, read_keys
from tallystick.watcher import Silent

PLACES = [
    {"name": "lon", "unit": "degree", "low": 103.0, "high": 104.0, "metres": 111_320.0},
    {"name": "lat", "unit": "degree", "low": 1.0, "high": 1.5, "metres": 110_574.0},
]
UNITS = {"lon": "degree", "lat": "degree"}


def similarity_contract(parties=("bank", "shop"), *, neighbors=4, dimensions=PLACES, terms=None, **changes):
    similarity = {
        "dimensions": dimensions,
        "neighbors": neighbors,
        "window": 0.1,
        "deviation": 0.1,
        "failure": 0.1,
        **(terms or {}),
    }
    values = contract_values(parties, alignment={"method": "similarity", "similarity": similarity}, **changes)
    values["parties"]["helper"] = {"role": "helper"}
    return values


def similar_tables(parties=("bank", "shop"), *, rows=300, others=60, seed=1):
    """Make rows at places. The label says whether the nearest rows of the others and the own column are high together."""
    rng = np.random.default_rng(seed)
    spots = {name: rng.uniform((103.1, 1.1), (103.9, 1.4), (rows if name == parties[0] else others, 2)) for name in parties}
    frames, score = {}, np.zeros(rows)
    for name in parties:
        x = rng.normal(size=len(spots[name]))
        frames[name] = pl.DataFrame(
            {"lon": spots[name][:, 0], "lat": spots[name][:, 1], "x": x, "noise": rng.normal(size=len(x))}
        )
        apart = np.abs(spots[parties[0]][:, None] - spots[name][None]).sum(axis=2)
        score += x if name == parties[0] else x[apart.argmin(axis=1)]
    frames[parties[0]] = frames[parties[0]].with_columns(y=(score > 0).astype(np.int64))
    return frames


def similar_columns(parties=("bank", "shop")):
    features = {"numeric": ["x", "noise"]}
    keys = {"keys": {"lon": "lon", "lat": "lat"}, "units": UNITS, "features": features}
    return {name: {**keys, **({"label": "y"} if name == parties[0] else {})} for name in parties}


@pytest.fixture(scope="module")
def exact():
    """Make a run without noise on keys. Its attacks look for enough places to say how near they come."""
    with pytest.MonkeyPatch.context() as patch:
        seed_system(patch)
        few_places(patch)
        return simulate(similarity_contract(), similar_tables(), similar_columns())


def test_a_run_shows_links_estimates_and_what_each_attack_located(exact):
    linkage = exact.sections.linkage
    assert linkage.links == {"shop": 1200}
    assert linkage.improvement["shop"]["AvgSim"] > 0
    assert {(attack.name, attack.attacker, attack.located) for attack in linkage.attacks} == {
        ("trilateration", "bank", "shop"),
        ("greedy", "bank", "shop"),
        ("cells", "shop", "bank"),
        ("rank-geometry", "helper", "bank"),
        ("rank-geometry", "helper", "shop"),
    }
    by_name = {attack.name: attack for attack in linkage.attacks}
    # At most a tenth of the 40 km by which a guess is off: 300 rows with four links each.
    assert by_name["trilateration"].unit == "m"
    assert by_name["trilateration"].median < by_name["trilateration"].chance / 10
    assert by_name["cells"].median < by_name["cells"].chance / 4
    assert "rows with a link" in exact.alignment.sizes
    _shows_each_sides_links_in_metres(linkage, to_html(exact))


def _shows_each_sides_links_in_metres(linkage, page):
    """Make two maps, each of what one party knows; distances in metres."""
    true = {name: frame.select("lon", "lat").to_numpy() for name, frame in similar_tables().items()}
    assert [(map.party, map.peer, map.attack) for map in linkage.maps] == [
        ("bank", "shop", "trilateration"),
        ("shop", "bank", "cells"),
    ]
    for map in linkage.maps:
        own, theirs = ({tuple(row) for row in true[name].round(9).tolist()} for name in (map.party, map.peer))
        drawn = {tuple(round(value, 9) for value in point) for point in map.own}
        assert drawn <= own
        assert map.links
        assert not {tuple(round(value, 9) for value in point) for point in map.located} & theirs
    histogram = linkage.similarities["shop"]
    assert histogram.unit == "m"
    assert 1_000 < histogram.typical < 100_000
    for said in ("Links on a map", "As shop sees it", "where trilateration places them", " km</td>", "No noise was added"):
        assert said in page


def test_noise_on_keys_is_charged_to_both_ledgers_once_and_kept(exact, tmp_path):
    terms = {"noise": {"keys": "planar-laplace", "epsilon": 0.5, "radius": 0.005}}
    result = simulate(similarity_contract(terms=terms), similar_tables(), similar_columns(), folder=tmp_path)
    assert "geo-indistinguishability" in result.sections.linkage.guarantee
    for party in ("bank", "shop"):
        name = "privacy-ledger.sqlite" if party == "bank" else "shop-privacy-ledger.sqlite"
        (entry,) = Ledger(tmp_path / name, party=party).entries("labels-keys")
        assert entry.event.unit == "key"
        assert entry.event.epsilon == 0.5
        (folder,) = (RunFolder.open(path) for path in (tmp_path / party).glob("tiny-*"))
        assert (folder.path / "noisy-keys.safetensors").exists()
        assert folder.load_noisy_keys(of="another table") is None
    located = [
        next(attack.median for attack in one.sections.linkage.attacks if attack.name == "trilateration")
        for one in (exact, result)
    ]
    assert located[1] > located[0]


@pytest.mark.parametrize("party", ["shop", "bank"])
def test_a_cap_binds_for_noise_on_keys_before_anybody_is_called(tmp_path, party):
    """Look at the feature party, whose ledger is charged for keys alone, and at the label party, whose labels have no
    bound here.
    """
    terms = {"noise": {"keys": "planar-laplace", "epsilon": 0.5, "radius": 0.005}}
    job = on_disk(tmp_path / "job", ("bank", "shop"), similarity_contract(terms=terms), similar_tables())
    home = job.home(party)
    path = home / "privacy-ledger.sqlite"
    ledger = Ledger(path, party=party) if path.exists() else Ledger.create(path, party=party)
    ledger.spend("labels-keys", PureDP(epsilon=0.25, unit="key"), what="an earlier run")

    def checked(cap):
        job.change(party, privacy={"cap": cap, "allow": ["gradients"]})
        return check_party_file(home / "party.yaml", home / "contract.yaml")

    (problem,) = checked(0.7)["problems"]
    assert problem.startswith("privacy.cap = 0.7: a new run of this contract would bring the epsilon of linking keys of data set")
    assert "from 0.25 to 0.75 at delta 0, over the cap" in problem
    started = job.start(party)  # nobody else is up
    assert started.end() == 2
    assert problem in started.error
    assert job.runs(party) == []
    assert len(ledger.entries()) == 1
    found = checked(0.75)
    assert found["problems"] == []
    assert found["budget"] == ("epsilon of linking keys of data set 'labels-keys': 0.25 spent, 0.75 after this run, cap 0.75")


def test_noise_on_keys_that_the_ledger_refuses_is_not_drawn(tmp_path):
    """Another process has spent the rest since the look at it: the charge itself also holds the cap."""
    contract = parse_contract(
        similarity_contract(terms={"noise": {"keys": "gaussian", "epsilon": 0.5, "delta": 1e-6, "radius": 0.01}})
    )
    values = {"party": "shop", "table": {"path": "t.csv"}, **similar_columns()["shop"], "privacy": {"cap": 0.4, "delta": 1e-6}}
    party = parse_party(values, folder=tmp_path, source="shop")
    create_ledger(party)
    party = with_ledger_named(party)
    folder = RunFolder.new(party.runs, contract, "shop", key=None)
    keys = read_keys(similar_tables()["shop"], columns=party.keys, alignment=contract.alignment, is_label=False)
    with pytest.raises(BudgetExceeded, match=r"epsilon of linking keys from 0 to 0\.5 .*over the cap of 0\.4"):
        with_noise(contract, party, folder, keys, what="run 1")
    assert not (folder.path / "noisy-keys.safetensors").exists()
    assert Ledger(party.privacy.ledger, party="shop").entries() == []


def on_disk(tmp_path, parties, contract, frames):
    """Lay out a job with a helper: the label party and the helper listen, the others dial both."""
    tmp_path.mkdir(exist_ok=True)
    job = lay_out(tmp_path, parties, contract, frames)
    everyone, address = [*parties, "helper"], f"127.0.0.1:{free_port()}"
    for name, home in move_in(tmp_path, everyone).items():
        if name == "helper":
            tls = {"ca": "ca.pem", "certificate": "own.pem", "key": "own.key"}
            (home / "party.yaml").write_text(yaml.safe_dump({"party": "helper", "tls": tls, "listen": address}))
            shutil.copy(tmp_path / parties[0] / "contract.yaml", home)
            continue
        values = yaml.safe_load((home / "party.yaml").read_text())
        job.change(name, **similar_columns(parties)[name], peers={**values.get("peers", {}), "helper": {"address": address}})
    job.parties = tuple(everyone)
    return job


@pytest.fixture
def lay_out_similar(tmp_path):
    jobs = []

    def make(parties=("bank", "shop"), **changes):
        jobs.append(on_disk(tmp_path / f"{len(jobs)}", parties, similarity_contract(parties, **changes), similar_tables(parties)))
        return jobs[-1]

    yield make
    for job in jobs:
        for party in job.started:
            party.close()


@pytest.mark.long
def test_three_parties_over_tls_are_killed_resumed_checked_and_predict(lay_out_similar):
    job = lay_out_similar(("bank", "shop", "rail"), training__epochs=10)
    running = job.start_all()
    running["shop"].phase("training")
    running["shop"].kill()
    assert running["bank"].end() != 0
    for name in ("rail", "helper"):
        running[name].end()
    aligned = (job.runs("bank")[0] / "alignment.safetensors").read_bytes()
    job.run_all("run", "--resume")
    assert (job.runs("bank")[0] / "alignment.safetensors").read_bytes() == aligned
    assert len(job.runs("bank")) == 1
    result = json.loads((job.runs("bank")[0] / "result.json").read_bytes())
    assert set(result["sections"]["linkage"]["improvement"]) == {"shop", "rail"}
    found = check_party_file(job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")
    assert [line.split(":")[0] for line in found["linkage"]] == ["links with rail", "links with shop"]
    fresh = similar_tables(("bank",), rows=25, seed=9)["bank"].drop("y")
    fresh.write_parquet(job.home("bank") / "new.parquet")
    running = {
        "bank": job.start("bank", "predict", "--table", "new.parquet", "--output", "scores.csv"),
        **{name: job.start(name, "predict") for name in ("shop", "rail", "helper")},
    }
    for name, party in running.items():
        assert party.end() == 0, f"{name}: {party.said}"
    assert pl.read_csv(job.home("bank") / "scores.csv").height == 25


# --- bad keys


def keys_of(frame, *, terms=None, columns=None, nulls="drop"):
    contract = parse_contract(similarity_contract(terms=terms))
    alignment = contract.alignment.model_copy(update={"nulls": nulls})
    return read_keys(frame, columns=columns or {"lon": "lon", "lat": "lat"}, alignment=alignment)


@pytest.mark.parametrize(
    ("lon", "said"),
    [
        ([103.5, float("nan")], "key lon .column lon.: NaN or infinite in 1 .* rows"),
        ([103.5, float("inf")], "NaN or infinite"),
        ([103.5, 11_568_000.0], "outside the contract's range, 103 to 104, in 1 .* check the unit"),
        (["103.5", "east"], "not a number in 1 .* of unit degree"),
        ([None, None], "all 2 rows are null or empty"),
    ],
)
def test_coordinates_that_are_none_are_named_by_row(lon, said):
    with pytest.raises(IdError, match=said):
        keys_of(pl.DataFrame({"lon": lon, "lat": [1.2, 1.3]}, strict=False))


def test_rows_without_a_key_are_left_out_or_refused_and_equal_keys_stay():
    frame = pl.DataFrame({"lon": [103.5, None, 103.5], "lat": [1.2, 1.3, 1.2]})
    keys = keys_of(frame)
    assert keys.report.used == 2
    assert keys.report.null_rows == 1
    assert list(keys.ids) == [b"row 0", b"row 2"]
    with pytest.raises(IdError, match=r"alignment.nulls is error"):
        keys_of(frame, nulls="error")
    moved = keys_of(frame.with_columns(lat=pl.Series([1.2, 1.3, 1.4])))
    assert fingerprint(keys) != fingerprint(moved)


def test_empty_texts_have_no_key():
    contract = parse_contract(similarity_contract(dimensions=[{"name": "title", "kind": "text", "normalise": ["trim", "lower"]}]))
    keys = read_keys(pl.DataFrame({"t": [" ", "A b", "", None, "c"]}), columns={"title": "t"}, alignment=contract.alignment)
    assert keys.similar.texts == (("a b", "c"),)
    assert keys.report.null_rows == 3


def test_a_unit_that_differs_or_is_missing_is_refused(tmp_path):
    contract = parse_contract(similarity_contract())
    party = {"party": "bank", "table": {"path": "t.parquet"}, **similar_columns()["bank"]}
    check_party(contract, parse_party(party, folder=tmp_path), network=False)
    for units, said in (
        ({"lon": "metre", "lat": "degree"}, 'units.lon = "metre": differs from the contract\'s "degree"'),
        ({"lat": "degree"}, "units.lon: is missing"),
        ({**UNITS, "lot": "degree"}, "units.lot: is not a key with a unit"),
    ):
        with pytest.raises(ConfigError) as error:
            check_party(contract, parse_party({**party, "units": units}, folder=tmp_path), network=False)
        assert said in str(error.value)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"keep": 9}, "keep = 9: must be at most neighbors = 4"),
        ({"block": 3}, "block = 3: only works with text"),
        ({"noise": {"epsilon": 2.0}}, "noise.epsilon: only works with noise.keys"),
        ({"noise": {"tau": 0.1}, "helper_sees": "clear"}, "noise.resolution: is missing"),
        ({"noise": {"keys": "gaussian", "delta": 0.0}}, "noise.delta = 0"),
        ({"window": 1e-6, "deviation": 0.001}, "bits is more than"),
        ({"dimensions": [PLACES[0], PLACES[0]]}, "each name must be given once"),
        ({"dimensions": [{"name": "lon"}]}, "low and high must be given"),
        ({"dimensions": [{"name": "title", "kind": "text", "unit": "m"}]}, "unit only works with kind = number"),
        ({"dimensions": PLACES[:1], "noise": {"keys": "planar-laplace"}}, "is for places of 2 dimensions"),
    ],
)
def test_terms_that_do_not_go_together_are_named(terms, said):
    with pytest.raises(ConfigError) as error:
        parse_contract(similarity_contract(terms=terms))
    assert said in str(error.value)


def test_the_contract_has_keys_or_similarity_as_its_method_asks():
    values = similarity_contract()
    values["alignment"]["keys"] = [{"name": "id"}]
    with pytest.raises(
        ConfigError,
        match=r"alignment.keys: only works with alignment.method = intersection, union or .*; leave it",
    ):
        parse_contract(values)
    del values["alignment"]["keys"], values["alignment"]["similarity"]
    with pytest.raises(ConfigError, match=r"alignment.similarity: is missing"):
        parse_contract(values)
    with pytest.raises(ConfigError, match=r"alignment.keys: is missing"):
        parse_contract(contract_values(("bank", "shop"), alignment={"method": "intersection"}))


def test_a_feature_party_with_fewer_rows_than_neighbours_is_told_by_check_before_it_calls_anybody(tmp_path):
    job = on_disk(tmp_path, ("bank", "shop"), similarity_contract(neighbors=70), similar_tables())
    problems = {
        name: check_party_file(job.home(name) / "party.yaml", job.home(name) / "contract.yaml")["problems"]
        for name in ("bank", "shop", "helper")
    }
    assert problems["bank"] == problems["helper"] == []
    (line,) = problems["shop"]
    assert line.startswith("alignment.similarity.neighbors = 70: this side has 60 rows with a key to link to; agree on at most")


def test_more_neighbours_than_rows_ends_the_job_with_the_reason():
    with pytest.raises(DataError, match=r"neighbors = 70: .* has 60 rows"):
        simulate(similarity_contract(neighbors=70), similar_tables(), similar_columns())


def test_a_linkage_of_texts_shows_examples_and_what_attacks_named():
    rng = np.random.default_rng(3)
    parts = ("kala", "miren", "tasul", "dover", "nipa", "grohe", "brizu", "walste", "oru", "fenti")
    own = [" ".join(rng.choice(parts, 3)) for _ in range(150)]
    theirs = [text.replace("a", "e", 1) for text in own[:60]]
    x = rng.normal(size=60)
    bank = pl.DataFrame({"name": own, "x": rng.normal(size=150), "y": (np.concatenate([x, rng.normal(size=90)]) > 0).astype(int)})
    shop = pl.DataFrame({"name": theirs, "x": x})
    columns = {name: {"keys": {"name": "name"}, "features": {"numeric": ["x"]}} for name in ("bank", "shop")}
    columns["bank"]["label"] = "y"
    contract = similarity_contract(dimensions=[{"name": "name", "kind": "text"}], neighbors=3)
    result = simulate(contract, {"bank": bank, "shop": shop}, columns)
    linkage = result.sections.linkage
    named = {(attack.name, attack.attacker, attack.located): attack for attack in linkage.named}
    assert set(named) == {
        ("filter-graph", "helper", "bank"),
        ("filter-graph", "helper", "shop"),
        ("neighbor-fit", "shop", "bank"),
        ("similarity-fit", "bank", "shop"),
    }
    assert named["filter-graph", "helper", "bank"].right > 0.8
    assert linkage.notes == []
    for example in linkage.examples:
        texts = own if example.party == "bank" else theirs
        assert example.own in texts if example.party == "bank" else set(example.linked) <= set(texts)
    assert {example.party for example in linkage.examples} == {"bank", "shop"}
    page = to_html(result)
    assert "What each attack named" in page
    assert "Links, for example" in page


class Lost:
    """A channel to a helper that died after its part. Nothing more is received from it, so only check() shows it."""

    peer = "helper"

    def check(self):
        raise PeerLost(self.peer, "helper fell silent")


def test_a_helper_that_dies_during_the_linkage_audit_ends_it(tmp_path):
    contract, frame = parse_contract(similarity_contract()), similar_tables()["bank"]
    party = parse_party({"party": "bank", "table": {"path": "table.parquet"}, **similar_columns()["bank"]}, folder=tmp_path)
    keys = read_keys(as_frame(frame, source="bank"), columns=party.keys, alignment=contract.alignment)
    scale = SimilarityScale(mean=0.0, deviation=1.0, sigma=0.0)
    numbers_NK = np.arange(len(frame))[:, None] % 60 + np.zeros((1, 4), dtype=np.int64) + np.arange(4) * 60
    links = Candidates(numbers_NK=numbers_NK, rows=240, similarity_NK=np.tile(-np.arange(4.0), (len(frame), 1)), scale=scale)
    alignment = Alignment(
        method="similarity", rows_N=np.arange(len(frame)), sizes={"own": len(frame)}, learnt=[], candidates={"shop": links}
    )
    job = Job(
        contract=contract,
        party=party,
        frame=as_frame(frame, source="bank"),
        keys=keys,
        channels={"helper": Lost()},
        folder=RunFolder.new(tmp_path / "runs", contract, "bank", key=None),
        logbook=Logbook(party="bank", watcher=Silent()),
    )
    with pytest.raises(PeerLost, match="helper fell silent"):
        audit_links(job, keys, alignment)
