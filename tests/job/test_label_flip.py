"""Under label DP nothing that leaves depends on an exact label. One label is flipped while the replaced labels stay. Then
everything that a feature party or a helper gets stays the same to the bit: messages, their number and order, the end, its folder,
its result.
"""

import json
import threading

import numpy as np
import polars as pl
import pytest
import similar
import torch
from safetensors import safe_open
from scipy.special import ndtr
from tiny import columns, contract_values, seed_system, tables

from tallystick.config.contract import parse_contract
from tallystick.config.unaligned import HeuristicConfig, NoneConfig
from tallystick.dataset.intersection import check_classes
from tallystick.defenses.gaussian_labels import GRID
from tallystick.defenses.label_dp import other_words
from tallystick.errors import DataError, TallystickError
from tallystick.evaluation.evaluation_messages import Finished
from tallystick.job import run
from tallystick.job.phases import defense, evaluate
from tallystick.network.channel import MemoryChannel
from tallystick.network.messages import encode
from tallystick.privacy.ledger import Ledger
from tallystick.simulation import simulate
from tallystick.tables.target import LabelCoder

PARTIES = ("bank", "shop")
ROWS = 160
OF_THE_CLOCK = {"started", "seconds", "steps_per_s", "phases", "seal"}


def frames(positives=None):
    """Make tables in order of time. The bank's rows with a partner's row come first, except for the tests'; only these
    are positive.
    """
    made = tables(PARTIES, rows=ROWS)
    bank = made["bank"].sort("id").with_columns(day=pl.int_range(pl.len()))
    if positives is not None:
        bank = bank.with_columns(y=bank["id"].is_in([bank["id"][int(row)] for row in positives]).cast(pl.Int64))
    return {"bank": bank, "shop": made["shop"]}


def linked_rows():
    """Return the rows of the bank's table that the shop has, in order of time: training rows first, test rows last."""
    made = frames()
    return np.flatnonzero(made["bank"]["id"].is_in(made["shop"]["id"].to_list()).to_numpy())


def key_stream_with(replaced):
    """Replace the key stream of a secret only for labels, by a function of these labels, so that the replaced labels
    are the same.
    """

    def key_stream(secret, use):
        return replaced if use == b"labels" else original(secret, use)

    original = defense.key_stream
    return key_stream


def everything_for_others(folder, given, monkeypatch, target, contract, names, *, runs=1):
    """Run it with ``target`` as the replaced labels by row of the bank's table.

    Return all that the others have of the run. With several ``runs`` each starts from the one before.
    """
    sent = {}
    send, abort = MemoryChannel.send, MemoryChannel.abort
    with monkeypatch.context() as patch:
        seed_system(patch)

        def keep(channel, words):
            if channel.peer != "bank":
                sent.setdefault((threading.current_thread().name, channel.peer), []).append(words)

        def kept(channel, message):
            keep(channel, bytes(encode(message)))
            send(channel, message)

        def aborted(channel, reason):
            keep(channel, reason.encode())
            abort(channel, reason)

        patch.setattr(MemoryChannel, "send", kept)
        patch.setattr(MemoryChannel, "abort", aborted)
        replace_labels(patch, target)
        ended = "whole"
        try:
            earlier = None
            for _ in range(runs):
                earlier = simulate(contract, given, names, folder=folder, start_from=earlier).run_id
        except TallystickError as error:
            ended = type(error).__name__
    return sent, ended, {name: files_of(folder, name) for name in contract["parties"] if name != "bank"}


def given_columns():
    found = columns(PARTIES)
    return {**found, "bank": {**found["bank"], "time": "day"}}


def replace_labels(patch, target):
    """Choose the coins so that row i trains with label target(i): a class, or a noisy label of ``gaussian-labels``."""
    respond = defense.RunDefense.defended

    def defended(self, dataset):
        true_N = dataset.known_labels.true_N.long().numpy()
        wanted_N = target[: len(true_N)]
        (part,) = self.defenses.labels
        words = (noise_for if part.soft_labels else coins_for)(part, true_N, wanted_N, self.classes).tobytes()
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(defense, "key_stream", key_stream_with(lambda count: words[:count]))
            found = respond(self, dataset)
        if part.soft_labels:
            noisy_N = part.noisy(torch.from_numpy(true_N), random_bytes=lambda count: words[:count])
            assert noisy_N.numpy() == pytest.approx(wanted_N * GRID * part.sigma, abs=1e-9)
        else:
            assert (found.known_labels.training_labels_N.long().numpy() == wanted_N).all()
        return found

    patch.setattr(defense.RunDefense, "defended", defended)


def coins_for(part, true_N, wanted_N, classes):
    """Return the words of randomised response that keep a label, or replace it by the wanted one."""
    step_N = (wanted_N - true_N) % classes
    each = other_words(classes, part.epsilon)
    return np.where(step_N == 0, np.uint64(2**64 - 1), (step_N - 1).astype(np.uint64) * np.uint64(each) + np.uint64(1))


def noise_for(part, true_N, wanted_N, classes):
    """Return the words whose Gaussian noise turns a label into the wanted one, which is given in steps of the grid."""
    del classes
    share_N = ndtr(wanted_N * GRID - true_N / part.sigma)
    return np.rint(share_N * 2.0**52 - 0.5).astype(np.uint64) << np.uint64(12)


def files_of(folder, name):
    """Return the content of a party's run folder, without what depends on the clock and the machine."""
    run = max((folder / name).glob("tiny-*"))
    found = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir() or name in ("report.html", "run.log"):  # the page is made of the result
            continue
        found[name] = path.read_bytes()
        if path.suffix == ".safetensors":  # which writes its metadata in any order
            # the random module belongs to the process, which both parties' threads share here
            with safe_open(path, framework="pt") as file:
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


LABEL_DP = {"defense": [{"method": "label-dp", "epsilon": 1.0}], "split__method": "time"}
GAUSSIAN = {"defense": [{"method": "gaussian-labels", "epsilon": 1.0, "delta": 1e-5}], "split__method": "time"}
MEASURED = {"evaluation__importance": {"own_columns": True, "feature_columns": "label-party", "repeats": 1}}
STOPPING = {"training__patience": 1, "training__epochs": 4, "audit": "quick", "evaluation__own_columns_boosting": True}
CONTRACTS = {
    "early stopping, audit, an own baseline with boosting": LABEL_DP | STOPPING,
    "unaligned rows, columns that are measured": {
        **LABEL_DP,
        "unaligned": {"method": "heuristic"},
        "training__epochs": 1,
        **MEASURED,
    },
    "gaussian labels, early stopping, unaligned rows": {
        **{**GAUSSIAN, "unaligned": {"method": "heuristic"}, "training__patience": 1, "training__epochs": 2},
    },
}


def flipped_frames():
    """Flip the label of one training row, the only positive one; then change all labels."""
    first, last = linked_rows()[[0, -1]]
    return [frames(positives) for positives in ([first, last], [last], None)]


def with_labels(given, labels):
    return {**given, "bank": given["bank"].with_columns(y=pl.Series(labels))}


def assert_others_see_the_same(found):
    sent, ended, files = found[0]
    assert ended == "whole"
    assert sum(map(len, sent.values())) > 10
    assert "model.safetensors" in files["shop"]
    for other_sent, other_ended, other_files in found[1:]:
        assert other_ended == ended
        assert other_sent == sent
        for name, held in files.items():
            assert other_files[name].keys() == held.keys()
            assert [each for each in held if held[each] != other_files[name][each]] == []


def replaced_labels(contract):
    """Return what rows train with: classes, or noisy labels in steps of their grid, up to two deviations from a label."""
    rng, classes = np.random.default_rng(5), contract["target"].get("classes", 2)
    is_soft = contract["defense"][0]["method"] == "gaussian-labels"
    return rng.integers(-7000, 7000, size=ROWS) if is_soft else rng.integers(0, classes, size=ROWS)


@pytest.mark.parametrize("changes", CONTRACTS.values(), ids=CONTRACTS)
def test_nothing_that_leaves_hangs_on_an_exact_label(changes, tmp_path, monkeypatch):
    """Flip the label that is the only positive one of the training rows; then change all labels."""
    contract = contract_values(PARTIES, **changes)
    replaced = replaced_labels(contract)
    assert_others_see_the_same(
        [
            everything_for_others(tmp_path / str(number), given, monkeypatch, replaced, contract, given_columns())
            for number, given in enumerate(flipped_frames())
        ]
    )


@pytest.mark.parametrize("unaligned", [{}, {"unaligned": {"method": "heuristic"}}], ids=["aligned", "unaligned"])
def test_nothing_that_leaves_hangs_on_which_of_three_classes_a_label_is(unaligned, tmp_path, monkeypatch):
    """Change the label of the only training row of its class; then change all labels. Test rows have every class."""
    contract = contract_values(
        PARTIES, target={"type": "multiclass", "classes": 3}, training__patience=1, **{**LABEL_DP, **MEASURED, **unaligned}
    )
    linked = linked_rows()
    alone = np.zeros(ROWS, dtype=np.int64)
    alone[linked[-3:]] = [0, 1, 2]
    alone[linked[1]], other = 1, alone.copy()
    alone[linked[0]] = 2
    labels = [alone[: frames()["bank"].height], other[: frames()["bank"].height]]
    labels.append((labels[0] + 1) % 3)
    replaced = replaced_labels(contract)
    assert_others_see_the_same(
        [
            everything_for_others(
                tmp_path / str(number), with_labels(frames(), each), monkeypatch, replaced, contract, given_columns()
            )
            for number, each in enumerate(labels)
        ]
    )


def test_nothing_that_leaves_a_run_that_starts_from_another_hangs_on_an_exact_label(tmp_path, monkeypatch):
    """First weights, epochs and the refit's epochs do not depend on it. Its flips are drawn and charged anew."""
    contract = contract_values(PARTIES, **{**LABEL_DP, "training__patience": 1, "training__epochs": 3})
    assert parse_contract(contract).refits
    replaced = replaced_labels(contract)
    assert_others_see_the_same(
        [
            everything_for_others(tmp_path / str(number), given, monkeypatch, replaced, contract, given_columns(), runs=2)
            for number, given in enumerate(flipped_frames())
        ]
    )
    ledger = Ledger(tmp_path / "0" / "privacy-ledger.sqlite", party="bank")
    assert ledger.total("labels", delta=0.0, unit="label") == pytest.approx(2.0)
    secrets = {json.loads(path.read_bytes())["secret"] for path in (tmp_path / "0").glob("bank/tiny-*/defense.json")}
    assert len(secrets) == 2


FIGURES = {
    "none": {},
    "exact": {"evaluation__share_metrics": ["auc"]},
    "private": {"evaluation__privacy": {"epsilon": 1.0}},
}


@pytest.mark.parametrize("figures", FIGURES)
def test_the_last_message_leaves_before_exact_labels_are_used_at_home(figures, monkeypatch):
    """How long the training of own columns and the audit take, and whether they succeed, depends on exact labels."""
    events, send = [], MemoryChannel.send

    def kept(channel, message):
        if isinstance(message, Finished):
            events.append("the last message")
        send(channel, message)

    def noting(module, name):
        original = getattr(module, name)

        def noted(*given, **named):
            events.append(name)
            return original(*given, **named)

        monkeypatch.setattr(module, name, noted)

    monkeypatch.setattr(MemoryChannel, "send", kept)
    noting(evaluate, "_baseline")
    noting(run, "audit_training")
    more = {"training__epochs": 1, "evaluation__own_columns_baseline": True, **FIGURES[figures]}
    simulate(contract_values(PARTIES, **LABEL_DP, **more), frames(), given_columns())
    own = events[events.index("the last message") + 1 :]  # the feature party audits after it has the last message
    assert sorted(own) == ["_baseline", "audit_training", "audit_training"]


@pytest.mark.long
def test_nothing_that_leaves_a_similarity_hangs_on_an_exact_label(tmp_path, monkeypatch):
    """Messages to the feature party or the helper: one label is changed, then all."""
    target = "multiclass"
    given = similar.tables(PARTIES, rows=60, places=12, target=target)
    contract = similar.contract_values(PARTIES, target=target, training__patience=1, defense=LABEL_DP["defense"])
    labels, classes = given["bank"]["y"].to_numpy(), contract["target"].get("classes", 2)
    other = labels.copy()
    other[0] = (other[0] + 1) % classes
    replaced = replaced_labels(contract)
    assert_others_see_the_same(
        [
            everything_for_others(
                tmp_path / str(number), with_labels(given, each), monkeypatch, replaced, contract, similar.columns(PARTIES)
            )
            for number, each in enumerate((labels, other, (labels + 1) % classes))
        ]
    )


def test_without_label_dp_a_class_that_no_training_row_has_ends_the_run(tmp_path):
    """Without a defence the flip of the test above shows."""
    for number, (positives, refusal) in enumerate((([-1], "is constant on the training rows"), ([0, -1], None))):
        contract = contract_values(PARTIES, split__method="time", training__epochs=1)
        rows = frames(linked_rows()[positives])
        if refusal is None:
            simulate(contract, rows, given_columns(), folder=tmp_path / str(number))
            continue
        with pytest.raises(DataError, match=refusal):
            simulate(contract, rows, given_columns(), folder=tmp_path / str(number))


def test_classes_are_counted_among_the_labels_that_train():
    """Exact labels lack a class that replaced ones have, and the other way round. Targets between the classes train both."""
    coder, settings = LabelCoder(type="binary", classes=("no", "yes")), HeuristicConfig(method="heuristic")
    check_classes(settings, coder, torch.tensor([0.0, 1.0, 0.0]))
    check_classes(settings, coder, torch.tensor([0.2, 0.3, 0.4]))
    check_classes(NoneConfig(), coder, torch.zeros(3))
    with pytest.raises(DataError, match=r"unaligned\.method = heuristic: no aligned training row is of class \"yes\""):
        check_classes(settings, coder, torch.zeros(3))
