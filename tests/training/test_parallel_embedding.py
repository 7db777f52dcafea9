"""Embedding tables side by side: the bits of PyTorch's own passes, and threads that do share the work."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from loops import Setting, assert_same_bits, telling, training
from torch import nn

from tallystick.models.tabular import Columns
from tallystick.network.channel import memory_channels
from tallystick.tables.features import Features, FeatureShape
from tallystick.training import parallel_embedding as tables
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.feature_party import train_feature_party
from tallystick.training.label_party import FeaturePeer, train_label_party
from tallystick.training.parallel_embedding import parallel_embedding_lookup
from tallystick.training.run import TrainingRun

SHAPE = FeatureShape(numeric=3, cardinalities=(2_000, 7, 500))
FEW = FeatureShape(numeric=1, cardinalities=(100, 7))


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    monkeypatch.setattr(tables, "WORTH_LOOKUPS", 300)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def meetings(monkeypatch):
    """Notes how many places each piece of shared work has."""
    noted, share = [], tables._share

    def noting(pool, do, places):
        noted.append(len(places := list(places)))
        share(pool, do, places)

    monkeypatch.setattr(tables, "_share", noting)
    return noted


class Net(nn.Module):
    """Use columns in all the ways that a user's module may use them."""

    def __init__(self):
        super().__init__()
        self.plain, self.thrice, self.frozen, self.tied, self.learnt, self.ignored = (
            Columns(SHAPE, embedding_width=4) for _ in range(6)
        )
        self.frozen.embeddings[0].weight.requires_grad_(requires_grad=False)
        self.tied.embeddings = nn.ModuleList([self.tied.embeddings[0]] * 3)
        self.norm = nn.BatchNorm1d(3)
        self.ids_only = Columns(FeatureShape(numeric=0, cardinalities=SHAPE.cardinalities), embedding_width=4)
        self.few = Columns(FEW, embedding_width=4)
        self.mlp = nn.Sequential(nn.Linear(7 * 15 + 12 + 9, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, given, few):
        self.ignored(given)
        size, numbers, codes = len(given), given.numeric_NF, given.categorical_NG
        rows = [self.thrice(given.rows(torch.arange(size).roll(shift))) for shift in range(3)]
        rows += [self.plain(given).relu_(), self.frozen(given), self.tied(given), self.few(few)]
        rows.append(self.learnt(Features(numeric_NF=self.norm(numbers), categorical_NG=codes)))
        rows.append(self.ids_only(Features(numeric_NF=torch.empty(size, 0), categorical_NG=codes)))
        return self.mlp(torch.cat(rows, dim=1))


def batch(shape, rows):
    codes = [torch.randint(0, min(size, 50), (rows,)) for size in shape.cardinalities]  # rows meet, so the order of sums shows
    return Features(numeric_NF=torch.randn(rows, shape.numeric), categorical_NG=torch.stack(codes, dim=1))


def test_rows_and_gradients_have_the_bits_of_the_ordinary_passes(meetings):
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    given = batch(SHAPE, 300), batch(FEW, 300)
    grad = torch.randn(300, 4)
    reference = theirs(*given)
    with parallel_embedding_lookup(ours):
        out = ours(*given)
        assert meetings == [3] * 7 + [2, 3, 3]
        assert torch.equal(out, reference)
        for _ in range(2):
            reference.backward(grad, retain_graph=True)
            out.backward(grad, retain_graph=True)
    assert sorted(meetings[10:]) == [2] * 4 + [3] * 14  # not for what is ignored, and two of the three where one is frozen
    assert ours.plain.table(0).grad.count_nonzero() > 0
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None), name
        assert mine.grad is None or torch.equal(mine.grad, other.grad), name


@pytest.mark.parametrize("how", [training(), training(mode="pipelined", staleness=2)], ids=["synchronous", "pipelined"])
def test_a_party_trains_to_the_same_bits(how, tmp_path, meetings, monkeypatch):
    """The label party trains once, and its messages are sent again: threads of one process share the number of threads, on which
    the bits of its sums may depend.
    """
    sent = []

    def train(worth):
        monkeypatch.setattr(tables, "WORTH_LOOKUPS", worth)
        setting, folder = Setting(sequences=True), tmp_path / str(worth)
        folder.mkdir()
        bottoms, label = setting.modules()
        mine, theirs = memory_channels("bank", "shop", timeout_s=20)
        runs = {
            name: TrainingRun(training=how, schedule=setting.schedule, store=CheckpointStore(folder / name))
            for name in ("bank", "shop")
        }
        peers = [FeaturePeer(channel=mine, width=bottoms["shop"].width)]
        given = (label, setting.own_source, setting.objective, peers, runs["bank"])
        if sent:
            for payload in sent:
                mine._outbox.put(bytearray(payload))
            train_feature_party(bottoms["shop"], setting.columns["shop"].rows, theirs, runs["shop"])
        else:
            put = mine._outbox.put
            monkeypatch.setattr(mine, "_outbox", SimpleNamespace(put=lambda payload: [sent.append(bytes(payload)), put(payload)]))
            party = threading.Thread(target=telling, args=(lambda: train_label_party(*given), [mine]))
            party.start()
            train_feature_party(bottoms["shop"], setting.columns["shop"].rows, theirs, runs["shop"])
            party.join()
        return {"steps": how.epochs * setting.schedule.steps_per_epoch}, bottoms["shop"].state_dict()

    _, ordinary = train(10**9)
    assert meetings == []
    run, shared = train(1)
    assert meetings == [2] * (2 * run["steps"])
    assert_same_bits(shared, ordinary)


def test_a_failing_pass_leaves_nothing_behind():
    columns, wrong = Columns(SHAPE, embedding_width=4), batch(SHAPE, 300)
    wrong.categorical_NG[0, 1] = 7
    with pytest.raises(IndexError), parallel_embedding_lookup(columns):
        columns(wrong)
    before = torch.get_num_threads()
    columns(batch(SHAPE, 300)).sum().backward()
    assert before == torch.get_num_threads() == 3
    assert columns.table(0).grad is not None


def test_threads_meet_and_an_error_in_any_comes_out_once_all_have_stopped(pool):
    meeting, came = threading.Barrier(3), []

    def meet(place):
        meeting.wait(timeout=30)
        came.append((place, threading.get_ident(), torch.get_num_threads()))

    tables._share(pool, meet, range(6))
    assert sorted(place for place, _, _ in came) == list(range(6))
    assert len({thread for _, thread, _ in came}) == 3
    assert {threads for _, _, threads in came} == {1}
    done = []

    def fail_elsewhere(place):
        meeting.wait(timeout=30)
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no room")
        done.append(place)

    with pytest.raises(MemoryError, match="no room"):
        tables._share(pool, fail_elsewhere, range(3))
    assert len(done) == 1


def test_its_threads_end_with_it():
    before = set(threading.enumerate())
    columns = Columns(SHAPE, embedding_width=4)
    with parallel_embedding_lookup(columns):
        columns(batch(SHAPE, 300))
        started = set(threading.enumerate()) - before
        assert started
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize("why", ["one thread", "a party that is a thread", "a small batch", "another precision", "other columns"])
def test_pytorch_does_it_all_where_sharing_does_not_pay_or_fit(why, meetings):
    columns = Columns(SHAPE, embedding_width=4)
    given = batch(SHAPE, 90 if why == "a small batch" else 300)
    if why == "another precision":
        columns.double()
    if why == "other columns":
        given = batch(FeatureShape(numeric=1, cardinalities=SHAPE.cardinalities), 300)
    widths = []

    def train():
        with parallel_embedding_lookup(columns):
            out = columns(given)
            out.sum().backward()
        widths.append(out.shape[1])

    if why == "one thread":
        torch.set_num_threads(1)
        train()
        torch.set_num_threads(3)
    elif why == "a party that is a thread":
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    else:
        train()
    assert meetings == []
    assert widths == [13 if why == "other columns" else 15]
    assert columns.table(0).grad is not None
