"""Runs side by side: in the terminal, as JSON and as a page."""

import json

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.config.sections import EvaluationConfig
from tallystick.errors import ConfigError, DamagedFile, DataError
from tallystick.evaluation.decisions import decide
from tallystick.evaluation.measure import compare_models
from tallystick.report.compare import compare_html, compare_results, read_run
from tallystick.results import AttackResult, Audit, PrivacySummary, Release, Sections
from tallystick.storage import Origin, write_json


def evaluation(shift: float, rows: int = 500):
    rng = np.random.default_rng(1)
    labels = (rng.random(rows) < 0.4).astype(float)
    logits = rng.normal(size=rows) + shift * labels
    return (
        compare_models("binary", labels, logits, logits - labels, evaluation=EvaluationConfig(bootstrap=20), generator=rng),
        labels,
        logits,
    )


@pytest.fixture
def runs(make):
    weak, labels, logits = evaluation(0.5)
    strong = evaluation(1.5)[0]
    first = msgspec.structs.replace(
        make(party="carrier"),
        evaluation=weak,
        sections=Sections(decisions=decide(labels, 1 / (1 + np.exp(-logits)), cost_false_negative=3)),
    )
    contract = msgspec.structs.replace(first.contract, hash="ab" * 32, yaml=first.contract.yaml.replace("epochs: 8", "epochs: 9"))
    released = Release(what="labels of the training rows", mechanism="label-dp", protects="labels", epsilon=3.0)
    attack = AttackResult(name="norm", view="weather, from cut gradients, knowing no label", auc=0.95)
    sections = Sections(leakage=Audit(attacks=[attack]), privacy=PrivacySummary(releases=[released], spent_epsilon=3.0))
    return first, msgspec.structs.replace(first, evaluation=strong, contract=contract, sections=sections)


def test_a_run_without_a_promise_has_no_epsilon(runs) -> None:
    bare = msgspec.structs.replace(runs[1].sections.privacy, releases=[], not_private=["training"])
    other = msgspec.structs.replace(runs[1], sections=msgspec.structs.replace(runs[1].sections, privacy=bare))
    facts = {row.name: row.values for row in compare_results(["a", "b"], [runs[1], other]).facts}
    assert facts["epsilon of labels, this run"] == [3.0, None]


def test_metrics_stand_beside_each_other_and_the_best_is_marked(runs) -> None:
    found = compare_results(["a", "b"], runs)
    metrics = {row.name: row for row in found.metrics}
    assert metrics["AUC"].values == [run.evaluation["joint"]["auc"]["value"] for run in runs]
    assert metrics["AUC"].best == [False, True]
    assert metrics["Negative log-likelihood"].best in ([True, False], [False, True])
    assert metrics["AUC"].within[0] == (runs[0].evaluation["joint"]["auc"]["low"], runs[0].evaluation["joint"]["auc"]["high"])
    assert "AUC, own columns only" in metrics


def test_settings_facts_and_notes_stand_beside_each_other(runs) -> None:
    found = compare_results(["a", "b"], runs)
    assert [(row.name, row.values) for row in found.settings] == [("training.epochs", ["8", "9"])]
    facts = {row.name: row.values for row in found.facts}
    assert facts["strongest label attack, AUC"] == [None, 0.95]
    assert facts["epsilon of labels, this run"] == [None, 3.0]
    assert facts["cost of 1,000 rows at the chosen threshold"] == [1000 * runs[0].sections.decisions["best"]["cost"], None]
    assert any(note.startswith("b: ") and "ε = 3 bounds" in note and "0.950" in note for note in found.notes)
    assert not any("different test rows" in note for note in found.notes)


def test_a_comparison_of_other_rows_or_contracts_says_so(runs) -> None:
    other = msgspec.structs.replace(runs[1], evaluation=evaluation(1.0, rows=400)[0])
    other = msgspec.structs.replace(other, contract=msgspec.structs.replace(other.contract, name="another"))
    notes = compare_results(["a", "b"], [runs[0], other]).notes
    assert any("different test rows" in note for note in notes)
    assert any("different names" in note for note in notes)
    with pytest.raises(ConfigError, match="at least two"):
        compare_results(["a"], runs[:1])


def test_the_page_escapes_and_holds_what_it_shows(runs) -> None:
    found = compare_results(["<b>a</b>", "b"], runs)
    page = compare_html(found)
    assert "<b>a</b>" not in page
    assert "&lt;b&gt;a&lt;/b&gt;" in page
    inside = page.split('id="result">')[1].split("</script>")[0]
    assert json.loads(inside) == json.loads(json.dumps(found.to_dict()))
    assert "http://" not in page
    assert "https://" not in page


def test_the_command(runs, tmp_path) -> None:
    for name, run in zip(("one", "two"), runs, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(run.to_json())
    paths = [str(tmp_path / "one"), str(tmp_path / "two" / "result.json")]
    done = CliRunner().invoke(app, ["compare", *paths, "--html", str(tmp_path / "c.html"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["runs"] == ["one", "two"]
    assert (tmp_path / "c.html").read_text().count("<section") == 4
    shown = CliRunner().invoke(app, ["compare", *paths])
    assert shown.exit_code == 0
    assert "training.epochs" in shown.stdout
    assert " *" in shown.stdout
    assert "* marks the best value of a row, however small its lead." in shown.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "holds no result.json"), ("{}", "not a result"), ("\x00", "not a result"), ("[" * 9999, "not a")],
)
def test_what_is_no_run_is_named(tmp_path, content, words) -> None:
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    done = CliRunner().invoke(app, ["compare", str(tmp_path), str(tmp_path)])
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_read_run_takes_a_folder_or_its_file(runs, tmp_path) -> None:
    (tmp_path / "result.json").write_text(runs[0].to_json())
    assert read_run(tmp_path).to_dict() == read_run(tmp_path / "result.json").to_dict() == runs[0].to_dict()


def test_a_received_result_does_not_act_on_the_terminal(runs, tmp_path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    for number, run in enumerate(runs):
        attack = AttackResult(name=f"norm{evil}", view=evil, auc=0.9 + number / 100)
        audit = Audit(summary=evil, defense=evil, attacks=[attack])
        written = run.contract.yaml.replace(f"epochs: {8 + number}", f"epochs: {json.dumps(evil + str(number))}")
        told = msgspec.structs.replace(run.contract, yaml=written, name=evil)
        sections = msgspec.structs.replace(run.sections, leakage=audit)
        sent = msgspec.structs.replace(run, party=evil, contract=told, sections=sections)
        (tmp_path / f"{number}.json").write_text(sent.to_json())
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["compare", str(tmp_path / "0.json"), str(tmp_path / "1.json")])
    assert done.exit_code == 0, done.output
    assert "owned" in done.stdout
    assert all(character.isprintable() or character == "\n" for character in done.stdout)


def test_another_runs_result_in_a_run_folder_is_named(runs, tmp_path) -> None:
    for number, run in enumerate(runs):
        (tmp_path / str(number)).mkdir()
        origin = Origin.create(tmp_path / str(number), party="carrier", contract=run.contract.hash, key=None)
        write_json(tmp_path / str(number) / "result.json", run.to_json().encode(), origin=origin)
    (tmp_path / "0" / "result.json").write_bytes((tmp_path / "1" / "result.json").read_bytes())
    with pytest.raises(DamagedFile, match="it is another file"):
        read_run(tmp_path / "0")
    assert read_run(tmp_path / "1").to_dict() == runs[1].to_dict()


def test_a_result_with_a_flipped_bit_is_damaged_not_another_result(runs, tmp_path) -> None:
    path = tmp_path / "result.json"
    write_json(path, runs[0].to_json().encode(), origin=Origin(folder=tmp_path))
    whole = path.read_bytes()
    place = whole.index(b'"auc"') + whole[whole.index(b'"auc"') :].index(b"0.") + 2  # the first digit of a figure
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(DamagedFile, match=r"result\.json is damaged: its content does not match its digest"):
        read_run(tmp_path)
    path.write_bytes(whole.replace(b'"seal"', b'"sead"', 1))
    with pytest.raises(DataError, match="not a result"):
        read_run(tmp_path)
    path.write_bytes(whole)
    assert read_run(tmp_path).to_dict() == runs[0].to_dict()


def test_a_resumed_run_says_from_where_its_time_and_bytes_count(runs) -> None:
    resumed = msgspec.structs.replace(runs[1], training=msgspec.structs.replace(runs[1].training, resumed_from=40))
    facts = {row.name: row.values for row in compare_results(["a", "b"], [runs[0], resumed]).facts}
    for name in ("whole run", "bytes sent and received"):
        whole, since = facts[name]
        assert since == f"{whole}, from step 40 on only"
