"""Large embedding tables taken side by side: the bits of PyTorch's own passes, and threads that do share the work."""

import copy
import threading

import pytest
import torch
from torch import nn

from tallystick.benchmark import lossless
from tallystick.data.features import Features, FeatureShape
from tallystick.models.tabular import Columns
from tallystick.training.tables import LARGE_VALUES, Tables

LARGE = FeatureShape(numeric=3, cardinalities=(LARGE_VALUES // 4, 7, 5_000))
SMALL = FeatureShape(numeric=1, cardinalities=(100, 7))


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


class Net(nn.Module):
    """Columns in all the ways that a user's module may use them."""

    def __init__(self):
        super().__init__()
        self.plain, self.twice, self.frozen, self.ignored = (Columns(LARGE, embedding_width=4) for _ in range(4))
        self.frozen.embeddings[0].weight.requires_grad_(requires_grad=False)
        self.ids_only = Columns(FeatureShape(numeric=0, cardinalities=LARGE.cardinalities), embedding_width=4)
        self.small = Columns(SMALL, embedding_width=4)
        self.mlp = nn.Sequential(nn.Linear(4 * 15 + 12 + 9, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, large, small):
        self.ignored(large)
        ids = Features(numeric_NF=torch.empty(len(large), 0), categorical_NG=large.categorical_NG)
        rows = [self.plain(large).relu_(), self.twice(large), self.twice(large.rows(torch.arange(len(large)).flip(0)))]
        return self.mlp(torch.cat([*rows, self.frozen(large), self.ids_only(ids), self.small(small)], dim=1))


def batch(shape, rows):
    codes = [torch.randint(0, min(size, 50), (rows,)) for size in shape.cardinalities]  # rows meet, so an order of sums shows
    return Features(numeric_NF=torch.randn(rows, shape.numeric), categorical_NG=torch.stack(codes, dim=1))


def test_rows_and_gradients_have_the_bits_of_the_ordinary_passes():
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    tables = Tables(ours)
    given = batch(LARGE, 300), batch(SMALL, 300)
    grad = torch.randn(300, 4)
    reference = theirs(*given)
    reference.backward(grad)
    with tables.forward() as lookups:
        out = ours(*given)
    assert torch.equal(out, reference)
    out.backward(grad)
    put_off = [ours.ignored, ours.plain, ours.twice, ours.twice, ours.frozen, ours.ids_only]
    assert [lookup.columns for lookup in lookups] == put_off
    assert ours.plain.table(0).grad is None
    tables.backward(lookups)
    assert ours.plain.table(0).grad.count_nonzero() > 0
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None), name
        assert mine.grad is None or torch.equal(mine.grad, other.grad), name


def test_a_training_pass_leaves_nothing_behind():
    net, given = Net(), (batch(LARGE, 5), batch(SMALL, 5))
    tables = Tables(net)
    with pytest.raises(IndexError), tables.forward():
        net.plain(Features(numeric_NF=torch.zeros(1, 3), categorical_NG=torch.tensor([[LARGE_VALUES, 0, 0]])))
    net(*given).sum().backward()
    assert net.plain.table(0).grad is not None


def test_tables_are_taken_at_the_same_time(monkeypatch):
    columns = Columns(LARGE, embedding_width=4)
    tables, meeting, came = Tables(columns), threading.Barrier(3), []
    part = columns.part

    def meet(joined_BW, place):
        meeting.wait(timeout=30)
        came.append(threading.get_ident())
        return part(joined_BW, place)

    monkeypatch.setattr(columns, "part", meet)
    with tables.forward() as lookups:
        out = columns(batch(LARGE, 5))
    assert len(set(came)) == 3
    out.sum().backward()
    tables.backward(lookups)
    assert len(came) == 6
    assert len(set(came[3:])) == 3


def test_an_error_in_any_thread_comes_out(monkeypatch):
    columns = Columns(LARGE, embedding_width=4)
    tables, meeting = Tables(columns), threading.Barrier(3)

    def fail_elsewhere(joined_BW, place):
        meeting.wait(timeout=30)
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no room")
        return joined_BW[:, :4]

    monkeypatch.setattr(columns, "part", fail_elsewhere)
    with pytest.raises(MemoryError, match="no room"), tables.forward():
        columns(batch(LARGE, 5))


@pytest.mark.parametrize("why", ["one thread", "a party that is a thread", "small tables", "another precision"])
def test_pytorch_does_it_all_where_there_is_nothing_to_share(why):
    columns = Columns(SMALL if why == "small tables" else LARGE, embedding_width=4)
    given = batch(SMALL if why == "small tables" else LARGE, 5)
    if why == "another precision":
        columns.double()
    found = []

    def train():
        with Tables(columns).forward() as lookups:
            columns(given).sum().backward()
        found.append(len(lookups))

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
    assert found == [0]
    assert columns.table(0).grad is not None


def test_processes_with_large_tables_train_to_the_bits_of_one_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = lossless.run()
    assert found["max_abs_weight_difference"] == 0.0
    assert found["max_abs_weight_change_by_training"] > 0.01
