"""Under label DP nothing that leaves hangs on an exact label: one is flipped, the replaced labels stay, and all that a feature
party gets stays to the bit: messages, their number and order, what it is told at the end, its folder and its result."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from tiny import columns, contract_values, seed_system, tables

from tallystick.config.unaligned import UnalignedConfig
from tallystick.data.target import LabelCoder
from tallystick.dataset.intersection import check_classes
from tallystick.errors import DataError, TallystickError
from tallystick.job.phases import defense
from tallystick.network.channel import MemoryChannel
from tallystick.network.messages import encode
from tallystick.simulation import simulate

PARTIES = ("bank", "shop")
ROWS = 160
KEEP, FLIP = (2**64 - 1).to_bytes(8, "little"), bytes(8)
OF_THE_CLOCK = {"started", "seconds", "steps_per_s", "phases", "seal"}


def frames(positives=None):
    """Tables in order of time: the bank's rows with a partner's row first, but for the tests'; positive are these rows alone."""
    made = tables(PARTIES, rows=ROWS)
    bank = made["bank"].sort("id").with_columns(day=pl.int_range(pl.len()))
    if positives is not None:
        bank = bank.with_columns(y=bank["id"].is_in([bank["id"][int(row)] for row in positives]).cast(pl.Int64))
    return {"bank": bank, "shop": made["shop"]}


def linked_rows():
    """Rows of the bank's table that the shop has, in order of time: training ones first, tests last."""
    made = frames()
    return np.flatnonzero(made["bank"]["id"].is_in(made["shop"]["id"].to_list()).to_numpy())


def key_stream_with(replaced):
    """The key stream of a secret, but for labels: a function of what labels they are, so that the replaced ones are these."""

    def key_stream(secret, use):
        return replaced if use == b"labels" else original(secret, use)

    original = defense.key_stream
    return key_stream


def everything_for_shop(folder, given, monkeypatch, target, **changes):
    """Run it, with ``target`` as the replaced labels by row of the bank's table; gives all that shop has of the run."""
    sent = []
    send = MemoryChannel.send
    with monkeypatch.context() as patch:
        seed_system(patch)

        def kept(channel, message):
            if channel.peer == "shop":
                sent.append(bytes(encode(message)))
            send(channel, message)

        def aborted(channel, reason):
            if channel.peer == "shop":
                sent.append(reason.encode())
            abort(channel, reason)

        abort = MemoryChannel.abort
        patch.setattr(MemoryChannel, "send", kept)
        patch.setattr(MemoryChannel, "abort", aborted)
        replace_labels(patch, target)
        ended = "whole"
        try:
            simulate(contract_values(PARTIES, **changes), given, given_columns(), folder=folder)
        except TallystickError as error:
            ended = type(error).__name__
    return sent, ended, shops_files(folder)


def given_columns():
    found = columns(PARTIES)
    return {**found, "bank": {**found["bank"], "time": "day"}}


def replace_labels(patch, target):
    """Have the coins of randomised response come out such that row i trains with label target(i)."""
    respond = defense.RunDefense.defended

    def defended(self, dataset):
        true_N = dataset.known_labels.true_N
        wanted_N = target[: len(true_N)]
        words = b"".join(KEEP if is_kept else FLIP for is_kept in (wanted_N == true_N.long().numpy()))
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(defense, "key_stream", key_stream_with(lambda count: words[:count]))
            found = respond(self, dataset)
        assert (found.known_labels.training_labels_N.long().numpy() == wanted_N).all()
        return found

    patch.setattr(defense.RunDefense, "defended", defended)


def shops_files(folder):
    """What lies in shop's run folder, without what the clock and the machine put there."""
    (run,) = (folder / "shop").glob("tiny-*")
    found = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir() or name in ("report.html", "run.log"):  # the page is made of the result
            continue
        found[name] = path.read_bytes()
        if path.suffix == ".safetensors":  # which writes its metadata in any order
            with safe_open(path, framework="pt") as file:  # random is of the process, which both parties' threads share here
                names = file.keys()
                found[name] = {each: file.get_tensor(each).numpy().tobytes() for each in names if each != "random"}
    for name in ("result.json", "training.json"):
        if name in found:
            text = found[name].decode()
            found[name] = without_times(json.JSONDecoder().raw_decode(text)[0])
    return found


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key not in OF_THE_CLOCK}
    return [without_times(each) for each in value] if isinstance(value, list) else value


CONTRACTS = {
    "early stopping, audit, an own baseline with boosting": {
        **{"training__patience": 1, "training__epochs": 4, "audit": True, "evaluation__own_columns_boosting": True},
    },
    "unaligned rows, columns that are measured": {
        **{"unaligned": {"method": "heuristic"}, "training__epochs": 1},
        **{"evaluation__importance": {"own_columns": True, "feature_columns": "label-party", "repeats": 1}},
    },
}


@pytest.mark.parametrize("changes", CONTRACTS.values(), ids=CONTRACTS)
def test_nothing_that_leaves_hangs_on_an_exact_label(changes, tmp_path, monkeypatch):
    """With the label flipped that is the only positive one among training rows, and with all labels changed."""
    first, last = linked_rows()[[0, -1]]
    replaced = np.random.default_rng(5).integers(0, 2, size=ROWS)
    changes = {"defense": [{"method": "label-dp", "epsilon": 1.0}], "split__method": "time", **changes}
    found = [
        everything_for_shop(tmp_path / str(number), frames(positives), monkeypatch, replaced, **changes)
        for number, positives in enumerate(([first, last], [last], None))
    ]
    sent, ended, files = found[0]
    assert ended == "whole"
    assert len(sent) > 10
    assert "model.safetensors" in files
    for other_sent, other_ended, other_files in found[1:]:
        assert other_ended == ended
        assert other_sent == sent
        assert other_files.keys() == files.keys()
        assert [name for name in files if files[name] != other_files[name]] == []


def test_without_label_dp_a_class_that_no_training_row_has_ends_the_run(tmp_path):
    """The flip that the test above makes is one that shows where labels are exact."""
    for number, (positives, refusal) in enumerate((([-1], "is constant on the training rows"), ([0, -1], None))):
        contract = contract_values(PARTIES, split__method="time", training__epochs=1)
        rows = frames(linked_rows()[positives])
        if refusal is None:
            simulate(contract, rows, given_columns(), folder=tmp_path / str(number))
            continue
        with pytest.raises(DataError, match=refusal):
            simulate(contract, rows, given_columns(), folder=tmp_path / str(number))


def test_classes_are_counted_among_the_labels_that_train():
    """Exact labels lack a class, replaced ones do not, and the other way round; targets between the classes teach both."""
    coder, settings = LabelCoder(type="binary", classes=("no", "yes")), UnalignedConfig(method="heuristic")
    check_classes(settings, coder, torch.tensor([0.0, 1.0, 0.0]))
    check_classes(settings, coder, torch.tensor([0.2, 0.3, 0.4]))
    check_classes(UnalignedConfig(), coder, torch.zeros(3))
    with pytest.raises(DataError, match=r"unaligned\.method = heuristic: no aligned training row is of class \"yes\""):
        check_classes(settings, coder, torch.zeros(3))
