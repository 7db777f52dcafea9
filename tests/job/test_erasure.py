"""`tallystick forget`: nothing of a row stays, and a new training has the bits of one that never had the person."""

import json
import re
import shutil
from fnmatch import fnmatch

import msgspec
import numpy as np
import polars as pl
import pytest
import similar
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import short_lane_of
from test_chosen_runs import PARTIES, Watching, both
from tiny import OnDisk, columns, contract_values, files_of, lay_out, tables
from typer.testing import CliRunner

from tallystick import predict
from tallystick.audit.run import audit_recorded
from tallystick.cli.app import app
from tallystick.config.contract import load_contract
from tallystick.config.party import load_party, parse_party
from tallystick.config.serving import AnswersConfig
from tallystick.erasure import BY_ROW, erase_persons, persons_by_key
from tallystick.errors import ConfigError, StorageError
from tallystick.evaluation.decisions import Group, Grouping
from tallystick.evaluation.measure import without_value
from tallystick.job.process import run_process
from tallystick.job.start_from import run_to_start_from
from tallystick.monitoring.drift import MUCH, numeric_drift
from tallystick.privacy.events import PureDP
from tallystick.privacy.ledger import Ledger, OpenedScores
from tallystick.results import read_result
from tallystick.run_folder.answer_journal import AnsweredRow, AnswerLog, read_answers, serving_secret
from tallystick.run_folder.folder import ALIGNMENT, ERASED, RunFolder
from tallystick.run_folder.ledger import LABELS, LEDGER_NOTE, charged, known_ledger
from tallystick.run_folder.profile import FEWEST, kept_profile
from tallystick.run_folder.score_count import _digests
from tallystick.run_folder.shared_head import (
    RowScores,
    enter_scored,
    keep_row_scores,
    keep_score_shares,
    kept_score_shares,
    require_unscored,
)
from tallystick.scoring.journal import Journal
from tallystick.serving.serving_folder import ServingHome
from tallystick.simulation import simulate
from tallystick.watcher import Silent

MADE_OF_ALL_ROWS = (
    *("contract.json", "format", "origin.json", "lock", "run.log*", "result.json", "report.html", "audit.json", "linkage.json"),
    *(
        "model.safetensors",
        "model-before-refit.safetensors",
        "encoder.json",
        "label.json",
        "training.json",
        "profile.json",
        "key-spelling.json",
    ),
    *("start.json", "drawn.json", "defense.json", "imputation.json", "workers.json", "pace.json", "ledger.json", "arrived.json"),
    *("charge-taken-up.json", "embeddings-sent.json", "release.json", "order of an id's rows.json", f"{ERASED}.json"),
    *("starting-point.safetensors", "own-network.safetensors", "own-network-spread.safetensors"),
)
"""Files with statistics, weights, counts or secrets. Erasure does not draw the last ones anew, because they hold no row."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Make a run with an audit, a model of own columns and a baseline. One side's folders are encrypted."""
    changes = {"audit": "quick", "training__epochs": 1, "evaluation": {"own_columns_baseline": True, "bootstrap": 0}}
    changes |= {"unaligned": {"method": "warm-start"}}
    job = lay_out(tmp_path_factory.mktemp("erased"), PARTIES, contract_values(PARTIES, **changes), rows=150)
    (job.home("shop") / "run.key").write_text(bytes(range(32)).hex() + "\n")
    job.change("shop", encryption={"key": {"file": "run.key"}})
    both(lambda name: run_process(*files_of(job, name), watcher=Watching()))
    return job


@pytest.fixture
def job(trained, tmp_path):
    """Return a copy of it, to be changed."""
    return OnDisk(shutil.copytree(trained.root, tmp_path / "job"), PARTIES)


def party_of(job, name):
    return load_party(job.home(name) / "party.yaml")


def folder_of(job, name):
    (path,) = job.runs(name)
    return RunFolder.open(path, key=party_of(job, name).run_key)


def erase(job, name, *keys, do=True):
    party = party_of(job, name)
    return erase_persons(party, persons_by_key(party, keys), do=do)


def known_key(job, name):
    return str(pl.read_parquet(job.home(name) / "table.parquet")["id"][0])


def is_by_row(path):
    return len(path.parts) > 1 or path.name in BY_ROW


def test_every_file_of_a_run_is_by_row_or_made_of_all_rows(job):
    for name in PARTIES:
        (folder,) = job.runs(name)
        files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        assert any(map(is_by_row, files))
        for path in files:
            made_of_all = len(path.parts) == 1 and any(fnmatch(path.name, pattern) for pattern in MADE_OF_ALL_ROWS)
            assert is_by_row(path) != made_of_all or path.name == ALIGNMENT, path
        erase(job, name, known_key(job, name))
        left = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        assert not any(map(is_by_row, left)), left
        saved, alignment = folder_of(job, name).load_alignment()
        assert (saved.run_id, saved.table, len(alignment.rows_N)) == (folder_of(job, name).run_id, "", 0)


def test_what_is_done_and_said_is_the_same_for_a_person_who_was_never_known(trained, tmp_path):
    said, left = [], []
    for number, key in enumerate((known_key(trained, "bank"), "nobody")):
        job = OnDisk(shutil.copytree(trained.root, tmp_path / str(number) / "job"), PARTIES)
        home = job.home("bank")
        arguments = ["forget", "--party", str(home / "party.yaml"), "--yes", "--json", key]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        said.append(done.stdout.replace(str(job.root), ""))
        assert key not in done.output
        (folder,) = job.runs("bank")
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        # safetensors orders its header anew each time
        left.append(files | {ALIGNMENT: len(files[ALIGNMENT])})
    assert said[0] == said[1]
    assert left[0] == left[1]
    assert json.loads(said[0])["done"] is True


def test_a_key_that_a_column_of_numbers_would_write_otherwise_is_said_and_taken_as_it_is_written(job):
    (line,) = erase(job, "bank", "1.50", "2.0", "3.5", do=False).doubts
    assert "key column 'id': 1 of these keys ends in a zero behind a point, as 1.50" in line
    assert not erase(job, "bank", "1.5", "7", do=False).doubts


def test_without_yes_nothing_changes_and_the_plan_is_shown(job):
    (folder,) = job.runs("bank")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    arguments = ["forget", "--party", str(job.home("bank") / "party.yaml"), "id-000001"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert f"would be deleted, with all rows: {folder / 'view'}" in done.stdout
    assert done.stdout.endswith("Nothing was changed. Add --yes to erase.\n")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_run_predicts_as_before_and_nothing_takes_up_its_rows(job, tmp_path):
    def predicted(file):
        def work(name):
            home = job.home(name)
            output = tmp_path / file if name == "bank" else None
            return predict(home / "contract.yaml", home / "party.yaml", output=output, watcher=Watching())

        both(work)
        return (tmp_path / file).read_bytes()

    before = predicted("before.csv")
    for name in PARTIES:
        erase(job, name, known_key(job, name))
        erase(job, name, known_key(job, name))  # once more, as after a crash
    assert predicted("after.csv") == before
    words = r"persons were erased from it on \d{4}-\d\d-\d\d, and with them everything that it kept by row; begin a new run"
    for name in PARTIES:
        with pytest.raises(ConfigError, match=words):
            run_process(*files_of(job, name), resume=True, watcher=Watching())
    (folder,) = job.runs("bank")
    with pytest.raises(ConfigError, match=words):
        audit_recorded(folder, watcher=Silent())
    contract = load_contract(job.home("bank") / "contract.yaml")
    with pytest.raises(ConfigError, match="its weights still hold what training learnt of them; start from scratch"):
        run_to_start_from(contract, party_of(job, "bank"), folder_of(job, "bank").run_id)


def test_a_retraining_without_the_row_has_the_bits_of_one_that_never_had_it(tmp_path):
    contract = contract_values(PARTIES, training__epochs=1)
    frames = tables(PARTIES, rows=300)
    persons = sorted(set(frames["bank"]["id"]) & set(frames["shop"]["id"]))[:20]  # some of them are training rows
    without = {name: frame.filter(~pl.col("id").is_in(persons)) for name, frame in frames.items()}

    def train(folder, rows):
        simulate(contract, rows, columns(PARTIES), folder=folder, watcher=Silent(), secret_seed=7)
        return {name: tiny.weights(max(folder.glob(f"{name}/*/model.safetensors"))) for name in PARTIES}

    with_them = train(tmp_path / "had", frames)
    for name in PARTIES:
        values = {"party": name, **columns(PARTIES)[name], "table": {"path": "none.csv"}, "runs": name}
        party = parse_party(values, folder=tmp_path / "had", source=name)
        erase_persons(party, persons_by_key(party, persons), do=True)
    again, never = train(tmp_path / "had", without), train(tmp_path / "never", without)
    assert again == never
    assert not any(with_them[name] == never[name] for name in PARTIES)


NAMES = [
    f"{first} {last}" for first in ("kala", "miren", "tasul", "dover", "nipa") for last in ("grohe", "brizu", "walste", "oru")
]


@pytest.mark.parametrize("keys", short_lane_of(["places", "texts"], 1))
def test_a_linkage_by_similarity_shows_no_row_any_more_and_links_new_rows_as_before(keys, tmp_path):
    """The scale of similarities comes from training, and a helper with another scale would show it to the others.

    By accident a figure has the digits of a place with a chance below 1e-5, over some thousand figures.
    """
    frames, parties, contract = similar.tables(rows=200), similar.columns(), similar.contract_values(training__epochs=1)
    if keys == "texts":
        rng = np.random.default_rng(1)
        frames = {name: frame.with_columns(name=rng.choice(NAMES, size=frame.height)) for name, frame in frames.items()}
        parties = {name: {**values, "keys": {"name": "name"}, "units": {}} for name, values in parties.items()}
        contract["alignment"]["similarity"] |= {"dimensions": [{"name": "name", "kind": "text"}]}
    simulate(contract, frames, parties, folder=tmp_path)
    shown = []
    for name, frame in frames.items():
        values = {"party": name, **parties[name], "table": {"path": "none.csv"}, "runs": name}
        party = parse_party(values, folder=tmp_path, source=name)
        (path,) = (each.parent for each in party.runs.glob("*/contract.json"))
        folder = RunFolder.open(path)
        before = folder.load_alignment()[1].candidates

        def values_in(file, frame=frame):
            numbers = [] if keys == "texts" else [f"{number:.12f}"[:-1] for number in frame["lon"]]
            texts = NAMES if keys == "texts" else []
            return sum(value in file.read_text(errors="replace") for value in (*numbers, *texts))

        files = [file for file in sorted(path.glob("*")) if file.suffix in (".json", ".html") and file.name != "encoder.json"]
        shown += [file.name for file in files if values_in(file)]
        erase_persons(party, frame.head(1), do=True)
        assert not [file.name for file in files if file.exists() and values_in(file)]
        assert json.loads((path / "result.json").read_text())["sections"]["linkage"]["attacks"] or keys == "texts"
        after = folder.load_alignment()[1].candidates
        assert {each: found.scale for each, found in after.items()} == {each: found.scale for each, found in before.items()}
        assert all(found.scale is not None for found in after.values())
        assert not any(found.numbers_NK.size or found.own_rows is not None for found in after.values())
    assert {"linkage.json", "result.json", "report.html"} <= set(shown)


def test_no_name_of_a_small_group_stays_in_a_report(job):
    folder = folder_of(job, "bank")
    result = read_result(folder.read_json(folder.result))
    none = without_value("fewer than 100 rows")
    small = Group(name="Ada's bakery", rows=None, label_mean=none, score_mean=none, gap=none, metric=none)
    large = Group(name="all others", rows=120, label_mean=none, score_mean=none, gap=none, metric=none)
    grouping = Grouping(column="employer", target="binary", metric="auc", smallest=100, groups=[small, large])
    sections = msgspec.structs.replace(result.sections, groups=[grouping])
    folder.write(folder.result, msgspec.structs.replace(result, sections=sections).to_json())
    assert str(folder.result) in erase(job, "bank", "id-000001").coarsened
    for path in (folder.result, folder.report):
        assert "bakery" not in path.read_text()
        assert "all others" in path.read_text()


def test_a_trial_of_a_search_keeps_what_it_knows_of_the_ledger(job):
    party = party_of(job, "bank")
    folder = RunFolder.new(party.runs, load_contract(job.home("bank") / "contract.yaml"), "bank", use="tune", key=party.run_key)
    trial, older = folder.trial(1), party.privacy.ledger.read_bytes()
    with charged(party, trial, LABELS) as ledger:
        ledger.spend("labels", PureDP(epsilon=1.0), what="a trial")
    (trial.path / "checkpoints").mkdir()
    erase(job, "bank", "id-000001")
    assert [path.name for path in trial.path.iterdir()] == [f"{LEDGER_NOTE}.json"]
    known_ledger(party)
    party.privacy.ledger.write_bytes(older)
    with pytest.raises(StorageError, match="an older copy of itself"):
        known_ledger(party)


@pytest.mark.parametrize("name", PARTIES)
def test_no_value_of_few_rows_stays_in_a_profile_and_no_second_erasure_changes_it(name, job):
    folder = folder_of(job, name)
    frame = pl.read_parquet(job.home(name) / "table.parquet")
    before = kept_profile(folder)
    numbers = {column.name: set(frame[column.name].to_list()) for column in before.numeric}
    assert all(set(column.points) <= numbers[column.name] for column in before.numeric)  # each has few rows
    erase(job, name, "nobody")
    after = kept_profile(folder)
    for column, former in zip(after.numeric, before.numeric, strict=True):
        assert not set(column.points) & numbers[column.name]
        drift = numeric_drift(former, np.array(column.points))
        assert drift.stability < MUCH  # each has a hundred rows
        assert drift.chance == 1.0
    for column, former in zip(after.categorical, before.categorical, strict=True):
        assert all(rows >= FEWEST for _, rows in column.counts)
        assert sum(rows for _, rows in column.counts) + column.others == sum(rows for _, rows in former.counts) + former.others
    erase(job, name, "somebody")
    assert kept_profile(folder) == after


def test_what_a_kill_left_beside_a_served_alignment_is_deleted_and_journals_of_runs_that_are_gone_lose_all_names(job):
    party, contract = party_of(job, "bank"), load_contract(job.home("bank") / "contract.yaml")
    homes = [ServingHome.of(contract.model_copy(update={"name": name}), party) for name in (contract.name, "long ago")]
    for home in homes:
        asked = Journal(origin=home.origin, secret=home.secret())
        for run_id in (folder_of(job, "bank").run_id, "0123456789abcdef"):
            asked.allowed([b"id-000001", b"id-000002"], run=run_id)
        asked.close()
        (home.path / ".alignment-of-serving.safetensors.partial").write_bytes(b"rows")
    ServingHome.of(contract, party.model_copy(update={"party": "other"}))
    erasure = erase(job, "bank", "id-000001")
    assert sum(".partial" in path for path in erasure.deleted) == len(homes)
    named = []
    for home in homes:
        assert not list(home.path.glob(".*.partial"))
        (journal,) = home.path.glob("*.jsonl")
        named.append([[bool(row) for row in json.loads(line)["rows"]] for line in journal.read_bytes().splitlines()])
    assert named == [[[False, True], [False, False]], [[False, False], [False, False]]]


@pytest.mark.parametrize("name", PARTIES)
def test_journals_of_serving_lose_a_person_s_rows_and_keep_the_day_s_count(name, job):
    party, folder = party_of(job, name), folder_of(job, name)
    contract = load_contract(job.home(name) / "contract.yaml")
    log = AnswerLog(origin=folder.origin, secret=serving_secret(folder), config=AnswersConfig())
    log.keep([AnsweredRow(row=log.digest(key), by="joint", scores=(0.5,)) for key in (b"id-000001", b"id-000002")], {"all": 1.0})
    log.close()
    home = ServingHome.of(contract, party)

    def journal():
        return Journal(origin=home.origin, secret=home.secret(), a_day=4, a_day_per_row=2)

    asked = journal()
    assert asked.allowed([b"id-000001", b"id-000001", b"id-000002"], run=folder.run_id).all()
    asked.close()
    erase(job, name, "id-000001")
    (answer,) = read_answers(folder)
    assert [row.row for row in answer.rows] == [log.digest(b"id-000002")]
    asked = journal()
    # four a day are allowed: three were used, one is left
    assert list(asked.allowed([b"id-000001", b"id-000001"], run="r")) == [True, False]
    asked.close()
    whole = b"".join(path.read_bytes() for path in home.path.rglob("*.jsonl") if party.run_key is None)
    assert whole.count(asked.digest(b"id-000001").encode()) == (1 if party.run_key is None else 0)


def test_no_second_score_comes_of_an_erasure_on_shares(job):
    party = party_of(job, "shop")
    folder = RunFolder.new(party.runs, load_contract(job.home("shop") / "contract.yaml"), "shop", key=party.run_key)
    sets = ([b"id-000001", b"id-000002"], [b"id-000003"])
    for ids in sets:
        keep_score_shares(folder, ids, np.zeros((len(ids), 1), dtype=np.uint64))
        enter_scored(folder, ids)
        keep_row_scores(folder, ids, np.array([[int(each[-1:])] for each in ids], dtype=np.float64))
    erase(job, "shop", "id-000001")
    remaining = RowScores.load(folder, outputs=1)
    assert remaining.places([b"id-000001", *sets[1]]).tolist()[0] == -1
    assert remaining.scores_NC[remaining.places([b"id-000003", b"id-000002"]), 0].tolist() == [3.0, 2.0]
    require_unscored(folder, [b"id-000001"])
    for key in (b"id-000002", b"id-000003"):
        with pytest.raises(ConfigError, match="have a score by the head of"):
            require_unscored(folder, [key])
    assert [kept_score_shares(folder, ids) is None for ids in sets] == [True, False]


@given(
    st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=20), st.sets(st.binary(min_size=1, max_size=4), max_size=5)
)
@settings(max_examples=30)
def test_counts_of_opened_scores_lose_these_rows_and_no_others(tmp_path_factory, rows, gone):
    ledger = Ledger.create(tmp_path_factory.mktemp("ledger") / "ledger.sqlite", party="shop")
    digests_N = _digests(ledger, rows)
    opened = OpenedScores(shares="s", scores=1, key="id", rows=digests_N.tobytes())
    data_sets = ("rows-scores", "another-scores")  # a party file may have named others before
    for name in data_sets:
        ledger.enter_scores(name, opened, judge=lambda _: "opened")
    head = ledger.head()
    ledger.forget_rows(_digests(ledger, sorted(gone)))
    for name in data_sets:
        (left,) = ledger.scores(name)
        assert left.rows == _digests(ledger, [row for row in rows if row not in gone]).tobytes()
    assert ledger.head() == head
    content = ledger.path.read_bytes()
    assert not any(digest.tobytes() in content for row, digest in zip(rows, digests_N, strict=True) if row in gone)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name persons by their keys, or by a file with --table"),
        (["id-1", "--table", "persons.csv"], "name persons by their keys, or by a file with --table"),
        (["--table", "none.csv"], "none.csv"),
        (["--table", "other.csv"], "column 'id'"),
        (["id-1", " "], "1 of 2 persons have a blank key, which names nobody"),  # as of a shell's variable that is not set
        (["--table", "blank.csv"], "2 of 3 persons have a blank key"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_erased(arguments, message, job, monkeypatch):
    monkeypatch.chdir(job.home("bank"))
    (job.home("bank") / "other.csv").write_text("name\nAda\n")
    (job.home("bank") / "blank.csv").write_text('id,name\nid-1,Ada\n,Bea\n"",Cleo\n')
    done = CliRunner().invoke(app, ["forget", "--party", "party.yaml", "--yes", *arguments])
    assert done.exit_code == 2
    assert re.search(message, done.stderr)
    assert not folder_of(job, "bank").noted(ERASED)


def test_what_a_run_writes_until_its_folder_is_free_is_erased_too(job, monkeypatch):
    folder, locked = folder_of(job, "bank"), RunFolder.locked

    def ends_first(folder):
        (folder.path / "checkpoints").mkdir(exist_ok=True)
        (folder.path / "checkpoints" / "late").write_bytes(b"rows")
        return locked(folder)

    shutil.rmtree(folder.path / "checkpoints")
    monkeypatch.setattr(RunFolder, "locked", ends_first)
    assert str(folder.path / "checkpoints") in erase(job, "bank", "id-000001").deleted
    assert not (folder.path / "checkpoints").exists()


def test_a_run_that_another_process_works_in_is_left_alone(job):
    with folder_of(job, "bank").locked(), pytest.raises(ConfigError, match="works in this run folder"):
        erase(job, "bank", "id-000001")
    assert not folder_of(job, "bank").noted(ERASED)
    assert np.size(folder_of(job, "bank").load_alignment()[1].rows_N)
