"""Parties that compute with other versions are told so, in the log and in the report, and the run goes on."""

import threading

import numpy as np
import pytest
import torch
from test_hostile_messages import CONTRACT, RUN_ID, STANDING, greeting
from test_simulate import run

from tallystick.job.handshake import Agreement, shake_hands, shake_hands_label_party
from tallystick.network.channel import memory_channels

OURS = {"torch": torch.__version__.partition("+")[0], "numpy": np.__version__}


def told(**theirs):
    """Return what either role says of a peer with these versions."""
    notes = []
    own, peer = memory_channels("bank", "shop", timeout_s=2)
    peer.send(greeting(**{**OURS, **theirs}))
    shake_hands_label_party(CONTRACT, STANDING, {"shop": own}, note=notes.append)
    own, peer = memory_channels("shop", "bank", timeout_s=2)
    peer.send(greeting(**{**OURS, **theirs}))
    peer.send(Agreement(run_id=RUN_ID, align=False, resume_from=0, train=True))
    shake_hands(CONTRACT, STANDING, own, note=notes.append)
    return notes


def test_the_same_versions_are_worth_no_word():
    assert told() == []


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_another_version_is_named_on_both_sides(name):
    notes = told(**{name: "1.2.3"})
    assert [note.partition(":")[0] for note in notes] == [
        f"{peer} computes with {name} 1.2.3, this side with {name} {OURS[name]}" for peer in ("shop", "bank")
    ]


def test_a_version_is_a_peers_words():
    assert all(note.isprintable() and len(note) < 400 for note in told(torch="\x1b[2J" * 999))


def test_the_report_has_the_note(monkeypatch):
    """Each party of a simulation has a thread of its own; here each has another release of NumPy and of PyTorch."""
    monkeypatch.setattr("tallystick.job.handshake.release_of", lambda library: f"{library}-{threading.get_ident()}")
    result = run(rows=300, training__epochs=1)
    assert [note for note in result.sections.notes if note.startswith("shop computes with torch")]
