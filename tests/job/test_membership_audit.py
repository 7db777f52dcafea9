"""The membership audit of a union run says what it could not measure, and why. It never gives a reassuring number instead."""

from types import SimpleNamespace

import pytest
import torch
from lanes import short_lane_of
from tiny import columns, contract_values, tables

from tallystick.attacks.view import StepView
from tallystick.audit.membership import audit_membership
from tallystick.audit.recording import AuditedRun, recording_plan
from tallystick.config.contract import parse_contract
from tallystick.report.page import to_html
from tallystick.results import merge
from tallystick.run_folder.recorder import Recorder, ViewStore
from tallystick.simulation import simulate
from tallystick.storage import Origin
from tallystick.training.plan import Schedule

ROWS, BATCH = 400, 50
PRESENT = torch.rand(ROWS, generator=torch.Generator().manual_seed(1)) < 0.5
EVERY = {
    "cut_gradient": {"spectral", "direction", "flips", "consistency", "agreement", "learned"},
    "cut_embedding": {
        *("spectral", "spectral-signed", "identical", "twins", "unique-cells", "unique-pairs", "consistency", "learned"),
    },
}


def audited(received="cut_embedding", *, epochs=2, lost=(), value=torch.nan, present_N=PRESENT, rows=ROWS):
    """Rows that are there lie apart. In the lost epochs one row of each step has that value."""
    generator, steps = torch.Generator().manual_seed(0), []
    for epoch in range(epochs):
        for rows_B in torch.randperm(rows, generator=generator).split(BATCH):
            x_BD = torch.randn(len(rows_B), 8, generator=generator) + 3 * present_N[rows_B, None]
            if epoch in lost:
                x_BD[0] = value
            own_B = torch.ones(len(rows_B), dtype=torch.bool)
            steps.append(StepView(epoch=epoch, rows_B=rows_B, own_B=own_B, received_BD=x_BD, sent_BD=x_BD.flip(0)))
    cells = torch.randn(rows, 3, generator=generator).__getitem__ if received == "cut_embedding" else None
    return audit_membership(steps, present_N, peer="shop", received=received, say=lambda _text: None, sent=cells)


def lines(audit, words):
    return [line for line in audit.not_measured if words in line]


@pytest.mark.parametrize("received", EVERY)
def test_every_attack_is_measured_or_said_not_to_be(received):
    two, one = audited(received), audited(received, epochs=1)
    across = "flips, consistency" if received == "cut_gradient" else "consistency"
    assert {attack.name for attack in two.attacks} == EVERY[received]
    assert {attack.name for attack in one.attacks} == EVERY[received] - set(across.split(", "))
    told = f"{across}, in shop's seat: it compares epochs, and only one epoch was recorded"
    assert set(one.not_measured) - set(two.not_measured) == {told}
    beyond = [line.partition(",")[0] for line in two.not_measured]
    other = {"cut_gradient": ["agreement of own columns"], "cut_embedding": ["agreement", "agreement-own", "one pass"]}
    assert beyond == other[received]
    assert "a floor, because another attack may find more" in two.summary


@pytest.mark.parametrize("value", short_lane_of([torch.nan, torch.inf, 1e30], 2))
@pytest.mark.parametrize("received", EVERY)
def test_steps_of_a_training_that_diverged_are_left_out_and_that_is_said(received, value):
    whole, cut, none = (audited(received, lost=lost, value=value) for lost in ((), (1,), (0, 1)))
    assert lines(
        cut, "8 of 16 recorded steps, in shop's seat: they hold NaN, infinite or huge values, as if training had diverged"
    )
    assert lines(cut, "consistency, in shop's seat: it compares epochs")
    assert max(attack.auc for attack in cut.attacks) > 0.95 < max(attack.auc for attack in whole.attacks)
    assert none.attacks == []
    assert none.summary.endswith("which rows of the union this side has? That was not measured.")
    assert lines(none, "16 of 16 recorded steps")
    (nothing,) = lines(none, "no step is left that could be attacked")
    assert EVERY[received] <= set(nothing.partition(", in ")[0].split(", "))


def test_rows_of_one_kind_and_too_few_known_rows_are_said():
    full = audited(present_N=torch.ones(ROWS, dtype=torch.bool))
    assert full.attacks == []
    assert lines(
        full,
        "learned, in shop's seat: the sending side has all of the recorded rows: there are no two kinds of rows to distinguish",
    )
    few = audited(present_N=torch.arange(ROWS) < 3, rows=6, epochs=1)  # a quarter of three rows is none
    assert "learned" not in {attack.name for attack in few.attacks}
    assert lines(few, "learned, in shop's seat: it learns from rows that the attacker knows, and there are too few")


def test_a_label_that_changes_late_in_training_is_found(tmp_path):
    """Of twenty epochs the first two and six later ones are kept, the last one among them."""
    contract = parse_contract(contract_values(("bank", "shop"), alignment__method="union", training__epochs=20))
    folder, dataset = SimpleNamespace(), SimpleNamespace(membership=PRESENT)
    first, later = AuditedRun(contract=contract, party="bank", folder=folder, dataset=dataset, run_id="r").kept_epochs
    schedule = Schedule(train_N=torch.arange(ROWS), validation_N=torch.arange(0), batch_size=BATCH, seed=1)
    plan = recording_plan(schedule, first=first, later=later, epochs=20, width=8)
    store = ViewStore(folder=tmp_path, contract="c", origin=Origin.create(tmp_path, party="bank", contract="c", key=None))
    recorder = Recorder(plan=plan, store=store)
    for epoch in range(20):
        for batch in schedule.epoch(epoch):
            flipped_B = ~PRESENT[batch.index_B] & (batch.index_B % 20 < epoch)
            sign_B1 = torch.where((batch.index_B % 5 == 0) ^ flipped_B, 1.0, -1.0)[:, None]
            recorder.crossed(batch, torch.zeros(BATCH, 8), sign_B1 * (1 + 0.1 * torch.rand(BATCH, 8)))
        recorder.epoch_ended(epoch)
    steps = store.load("cut_gradient")
    assert {0, 1, 19} < {step.epoch for step in steps}
    audit = audit_membership(steps, PRESENT, peer="shop", received="cut_gradient", say=lambda _text: None)
    (flips,) = [attack for attack in audit.attacks if attack.name == "flips"]
    assert flips.auc > 0.75  # by the first two epochs alone .53


def test_without_a_recorded_step_nothing_is_measured():
    audit = audited(epochs=0)
    assert audit.attacks == []
    assert audit.not_measured == ["any attack, in shop's seat: no step was recorded"]


def test_a_run_of_one_epoch_says_so_in_both_seats_and_in_the_report():
    contract = contract_values(("bank", "shop"), alignment__method="union", training__epochs=1)
    result = simulate(contract, tables(("bank", "shop"), rows=300), columns(("bank", "shop")))
    membership = result.sections.membership
    wanted = [
        "flips, consistency, in shop's seat: it compares epochs",
        "consistency, in bank's seat: it compares epochs",
        "agreement, in bank's seat: it needs the receiving party's labels",
        "one pass, in bank's seat: it compares embeddings of the whole union",
    ]
    assert [len(lines(membership, words)) for words in wanted] == [1] * 4
    assert {attack.name for attack in membership.attacks} >= {"spectral", "agreement", "learned"}
    assert merge([result]).sections.membership.not_measured == membership.not_measured
    page = to_html(result)
    section = page[page.index('<section id="membership"') :]
    assert "Not measured, so nothing is known about it:" in section[: section.index("</section>")]
