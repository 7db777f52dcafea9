"""bench null-audit: two settings through the product, and the book-keeping on made-up audits."""

from pathlib import Path

import pytest

from tallystick_experiments import null_audits
from tallystick_experiments.grid import Keeping
from tallystick_experiments.page import render_benchmark


def test_shuffled_truth_is_audited_once_each_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = null_audits.SETTINGS["quick form"]
    monkeypatch.setattr(null_audits, "SETTINGS", {"quick form": quick})
    log = tmp_path / "runs.jsonl"
    found = null_audits.null_audits_experiment(audits=1, rows=120, epochs=2, draws=2).run(Keeping(log=log))
    again = null_audits.null_audits_experiment(audits=2, rows=120, epochs=2, draws=2).run(Keeping(log=log, resume=True))
    assert [(each["setting"], each["training"], each["shuffle"]) for each in again.rows] == [
        ("quick form", 0, 0),
        ("quick form", 0, 1),
    ]
    first, second = again.rows
    assert found.rows == [first]
    assert first["intervals"].keys() >= {"norm-averaged", "completion"}
    assert first["intervals"] != second["intervals"]  # other labels
    assert "What they said" in render_benchmark(again.page(), tmp_path / "page.html").read_text()


def test_what_was_said_is_counted_by_audit() -> None:
    said = [(["no", "yes"], ["no"]), (["no", "no"], ["a little"]), (["a little"], ["no"]), (["no"], ["no"])]
    audits = [{"labels": labels, "columns": columns, "intervals": {"norm": [0.6, 0.4, 0.7]}} for labels, columns in said]
    assert null_audits.share_of(audits, "labels", "yes").value == 0.25
    assert null_audits.share_of(audits, "labels", "a little").value == 0.25
    assert null_audits.share_of(audits, "columns", "yes").value == 0
    assert null_audits.proportion(0, 200).high == pytest.approx(0.0183, abs=1e-4)  # 1 - 0.025 ** (1 / 200)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Through cut gradients, yes: shop, knowing no label, can tell the classes apart with AUC 1.", "yes"),
        ("Through cut embeddings, a little: bank, knowing the columns of 200 rows, can rebuild the columns.", "a little"),
        ("Through cut gradients, no attack here found more than a guess would: the strongest has AUC 0.51.", "no"),
        ("Through cut gradients: not measured, so nothing is known about it; the reasons are below.", "not measured"),
    ],
)
def test_a_headline_is_read(line: str, said: str) -> None:
    assert null_audits.headline_verdict(line) == said


def test_a_headline_of_other_words_is_an_error() -> None:
    with pytest.raises(ValueError, match="not enough values to unpack"):
        null_audits.headline_verdict("Through cut gradients, perhaps.")


def test_intervals_of_simulated_scores_cover_about_as_often_as_promised() -> None:
    """40 draws at 95 %: fewer than 30 contain the true AUC with a chance below 1e-5. Seeded."""
    assert null_audits.simulated_coverage(null_audits.SIMULATED[0], draws=40) >= 0.75


@pytest.mark.parametrize("name", null_audits.SETTINGS)
def test_every_setting_is_a_contract(name: str) -> None:
    contract = null_audits.contract_of_setting(null_audits.SETTINGS[name], 0, epochs=4)
    assert contract.audit
    assert contract.target.type == null_audits.SETTINGS[name].target
