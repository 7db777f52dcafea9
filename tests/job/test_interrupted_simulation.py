"""A simulation ends at Ctrl-C, and refuses to run where it would hang: with real signals and real forks, in separate
processes.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import PATIENCE_S, columns, contract_values, said_by, tables

from tallystick import simulation
from tallystick.network.channel import memory_channels
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
TESTS = Path(__file__).parents[1]
PROGRAM = f"""
import multiprocessing, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.HEARD)  # before Polars is loaded, whose own handler comes before this one
sys.path.insert(0, {str(TESTS)!r})
import tiny
from tallystick import simulate
from tallystick.errors import ConfigError
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")

def run(frames):
    values = tiny.contract_values(PARTIES, training__epochs=1)
    return simulate(values, frames, tiny.columns(PARTIES), watcher=Silent())
"""
INTERRUPTED = """
class Begun(Silent):
    sent = False

    def progress(self, what, done, total):
        if what == "training" and not self.sent:
            self.sent = True
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

try:
    values = tiny.contract_values(PARTIES, training__epochs=60_000, training__batch_size=16)
    simulate(values, tiny.tables(PARTIES, rows=400), tiny.columns(PARTIES), watcher=Begun())
    print("ended by itself")
except KeyboardInterrupt:
    print("interrupted", [thread.name for thread in threading.enumerate() if thread.name.startswith("simulate-")])
"""
WITHIN_POLARS = """
import polars as pl
from tallystick import simulation

usual, sent, text = simulation.keys_of, threading.Event(), pl.Series(["a", "b"]).new_from_index(0, 1_000_000)
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    sent.set()
timers = [threading.Timer(0.5, interrupt)]
def keys_of(*arguments):
    if timers:  # once, though both parties come here: a second Ctrl-C ends the wait for the threads
        timers.pop().start()
    later = 0
    while later < 10:  # calls since the signal
        later += sent.is_set()
        text.str.contains("c").any()
    return usual(*arguments)
simulation.keys_of = keys_of
try:
    run(tiny.tables(PARTIES, rows=50))
    print("ended by itself")
except KeyboardInterrupt:
    print("interrupted", [thread.name for thread in threading.enumerate() if thread.name.startswith("simulate-")])
"""
FORKED = """
numbers = [{"id": number, "x": number % 7, "noise": number % 5, "kind": "a", "y": number % 2} for number in range(200)]
if sys.argv[1] == "after":
    frames = {name: tiny.pl.DataFrame(numbers) for name in PARTIES}
    run(frames)

def child():
    try:
        run(frames if sys.argv[1] == "after" else {name: tiny.pl.DataFrame(numbers) for name in PARTIES})
        print("ran", flush=True)
    except ConfigError as error:
        print(error, flush=True)

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(60)
if process.is_alive():
    process.kill()
    print("hangs")
"""


def output_of(program: str, *arguments: str, heard: str = "default_int_handler") -> str:
    """Return the output of a program run by this Python, which gets Ctrl-C. A hang fails."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.replace("HEARD", heard) + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ctrl_c_ends_a_simulation_and_its_threads_and_a_fork_without_threads_of_polars_names_spawn():
    """Two simulations, one after the other in one process."""
    interrupted, forked = said_by(PROGRAM.replace("HEARD", "default_int_handler") + INTERRUPTED + FORKED, "after").splitlines()
    assert interrupted == "interrupted []"
    assert "multiprocessing.get_context('spawn')" in forked


@pytest.mark.parametrize("hear", [("bank",), ("shop",), ("bank", "shop")], ids=" and ".join)
def test_ctrl_c_that_parties_threads_alone_hear_ends_a_simulation(hear, monkeypatch):
    """Polars passes it to the threads that compute. If one of two ends without a message, the other keeps waiting."""
    usual = simulation.keys_of

    def keys_of(frame, party, alignment):
        if party.party in hear:
            raise KeyboardInterrupt
        return usual(frame, party, alignment)

    monkeypatch.setattr(simulation, "keys_of", keys_of)
    monkeypatch.setattr(simulation, "memory_channels", lambda *names, **_: memory_channels(*names, timeout_s=9))
    with pytest.raises(KeyboardInterrupt):
        simulation.simulate(contract_values(PARTIES), tables(PARTIES, rows=50), columns(PARTIES), watcher=Silent())


@pytest.mark.long
def test_ctrl_c_ends_a_simulation_that_computes_with_polars_where_python_hears_none():
    """A shell's background job ignores Ctrl-C, but Polars gets it nevertheless.

    If the signal comes between two calls of Polars, it ends the process and this test fails: about once in a thousand runs.
    """
    assert output_of(WITHIN_POLARS, heard="SIG_IGN") == "interrupted []\n"


@pytest.mark.long
def test_a_process_that_is_forked_before_any_table_runs():
    assert output_of(FORKED, "before") == "ran\n"
