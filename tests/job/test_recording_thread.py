"""Recorders run beside the training, in order, and none of their failures is lost."""

import threading

import pytest
from tiny import columns, contract_values, tables

from tallystick.attacks.row_sums import RowSums
from tallystick.errors import StorageError
from tallystick.run_folder.recording_thread import MOST_WAITING, RecordingThread
from tallystick.run_folder.row_recorder import RowStore
from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
FULL = "the disk is full"


def refuse(*_arguments):
    raise StorageError(FULL)


def test_tasks_are_done_in_order_and_all_before_it_is_left():
    taken = []
    with RecordingThread() as later:
        for number in range(50):
            later(taken.append, (number, threading.current_thread().name))
    assert [number for number, _ in taken] == list(range(50))


def test_no_more_tasks_wait_than_memory_is_meant_for():
    begun, go_on, given = threading.Event(), threading.Event(), []

    def hold():
        begun.set()
        go_on.wait(10)

    def give(later):
        for number in range(MOST_WAITING + 1):
            later(hold)
            given.append(number)

    with RecordingThread() as later:
        giver = threading.Thread(target=give, args=(later,))
        giver.start()
        begun.wait(10)
        giver.join(0.2)
        assert giver.is_alive()
        assert len(given) == MOST_WAITING
        go_on.set()
        giver.join(10)
    assert len(given) == MOST_WAITING + 1


def test_a_failed_task_ends_whoever_gives_the_next_ones():
    def give_tasks():
        with RecordingThread() as later:
            later(refuse)
            for _ in range(100):
                later(int)

    with pytest.raises(StorageError, match=FULL):
        give_tasks()


def test_a_failure_of_the_last_task_is_not_lost():
    def give_one():
        with RecordingThread() as later:
            later(refuse)

    with pytest.raises(StorageError, match=FULL):
        give_one()


def test_an_error_of_the_training_comes_before_one_of_the_recording():
    def fail_beside():
        with RecordingThread() as later:
            later(refuse)
            raise ValueError("of the training")

    with pytest.raises(ValueError, match="of the training"):
        fail_beside()


def test_a_training_does_not_wait_for_sums_of_gradients_and_ends_where_they_cannot_be_kept(monkeypatch, tmp_path):
    values = contract_values(PARTIES, audit="quick", training__epochs=1, split__validation=0.0)
    threads, settle = set(), RowSums.settle

    def watched(sums):
        if sums.received == "cut_gradient" and sums._pending:
            threads.add(threading.current_thread().name.partition("_")[0])
        settle(sums)

    def keep(store, *arguments):
        if store.received == "cut_gradient":
            refuse(*arguments)

    monkeypatch.setattr(RowSums, "settle", watched)
    monkeypatch.setattr(RowStore, "save", keep)
    with pytest.raises(StorageError, match=FULL):
        simulate(values, tables(PARTIES, rows=300), columns(PARTIES), folder=tmp_path, watcher=Silent())
    assert threads == {"tallystick-recording"}
