"""Large embedding tables taken side by side: the bits of PyTorch's own backward pass, and threads that do share the work."""

import copy
import threading

import pytest
import torch
from torch import nn

from tallystick.benchmark import lossless
from tallystick.training.tables import LARGE_VALUES, Tables

ROWS = LARGE_VALUES // 4


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


class Net(nn.Module):
    """Tables in all the ways that a user's module may use them."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Embedding(ROWS, 4)
        self.padded = nn.Embedding(ROWS, 4, padding_idx=3)
        self.twice = nn.Embedding(ROWS, 4)
        self.small = nn.Embedding(10, 4)
        self.frozen = nn.Embedding(ROWS, 4).requires_grad_(requires_grad=False)
        self.unused = nn.Embedding(ROWS, 4)
        self.ignored = nn.Embedding(ROWS, 4)
        self.tied = nn.Embedding(ROWS, 4)
        self.head = nn.Linear(4, ROWS, bias=False)
        self.head.weight = self.tied.weight
        self.mlp = nn.Sequential(nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, codes_BG):
        self.ignored(codes_BG[:, 0])
        rows = [self.plain(codes_BG[:, 0]).relu_(), self.padded(codes_BG[:, 1]), self.small(codes_BG[:, 2] % 10)]
        rows += [self.twice(codes_BG[:, 2]), self.twice(codes_BG[:, 3]), self.frozen(codes_BG[:, 0])]
        return self.head(self.mlp(torch.cat(rows, dim=1)) + self.tied(codes_BG[:, 1]))


def test_every_gradient_has_the_bits_of_an_ordinary_backward_pass():
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    tables = Tables(ours)
    codes_BG = torch.randint(0, 50, (300, 4))  # many rows meet in one code, so an order of sums would show
    grad = torch.randn(300, ROWS)
    theirs(codes_BG).backward(grad)
    with tables.forward() as lookups:
        out = ours(codes_BG)
    out.backward(grad)
    assert [lookup.table is weight for lookup, weight in zip(lookups, put_off(ours), strict=True)] == [True] * 5
    assert ours.plain.weight.grad is None
    tables.backward(lookups)
    for (name, mine), reference in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (mine.grad is None) == (reference.grad is None), name
        assert mine.grad is None or torch.equal(mine.grad, reference.grad), name
    assert ours.plain.weight.grad.count_nonzero() > 0
    assert ours.ignored.weight.grad is None


def put_off(net):
    return net.ignored.weight, net.plain.weight, net.padded.weight, net.twice.weight, net.twice.weight


def test_outside_of_a_training_pass_nothing_is_put_off():
    net = Net()
    tables = Tables(net)
    codes_BG = torch.randint(0, 50, (3, 4))
    with torch.no_grad(), tables.forward() as lookups:
        net(codes_BG)
    assert lookups == []
    net(codes_BG).sum().backward()
    assert net.plain.weight.grad is not None


def test_tables_are_taken_at_the_same_time():
    net = nn.ModuleList(nn.Embedding(ROWS, 4) for _ in range(3))
    tables = Tables(net)
    with tables.forward() as lookups:
        sum(table(torch.tensor([1])).sum() for table in net).backward()
    meeting, came = threading.Barrier(3), []

    def meet(_):
        meeting.wait(timeout=30)
        came.append(threading.get_ident())

    for table in net:
        table.weight.register_post_accumulate_grad_hook(meet)
    tables.backward(lookups)
    assert len(set(came)) == 3


def test_an_error_in_any_thread_comes_out():
    net = nn.ModuleList(nn.Embedding(ROWS, 4) for _ in range(2))
    tables = Tables(net)
    with tables.forward() as lookups:
        sum(table(torch.tensor([1])).sum() for table in net).backward()
    meeting = threading.Barrier(2)

    def fail_elsewhere(_):
        meeting.wait(timeout=30)
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no room")

    for table in net:
        table.weight.register_post_accumulate_grad_hook(fail_elsewhere)
    with pytest.raises(MemoryError, match="no room"):
        tables.backward(lookups)


@pytest.mark.parametrize("why", ["one thread", "a party that is a thread"])
def test_pytorch_does_it_all_where_there_is_nothing_to_share(why):
    net, found = nn.ModuleList([nn.Embedding(ROWS, 4), nn.Embedding(ROWS, 4)]), []

    def train():
        with Tables(net).forward() as lookups:
            sum(table(torch.tensor([1])).sum() for table in net).backward()
        found.append(len(lookups))

    if why == "one thread":
        torch.set_num_threads(1)
        train()
        torch.set_num_threads(3)
    else:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert found == [0]
    assert all(table.weight.grad is not None for table in net)


def test_processes_with_large_tables_train_to_the_bits_of_one_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = lossless.run()
    assert found["max_abs_weight_difference"] == 0.0
    assert found["max_abs_weight_change_by_training"] > 0.01
