"""A peer's words are data: bounded and printable wherever they are shown, kept or sent on."""

import errno
import json
import time
from pathlib import Path

import msgspec
import pytest
import yaml
from tiny import QUICK, error_of, within

from tallystick.alignment.exchange import notify_peers
from tallystick.errors import (
    MOST_CHARACTERS,
    ConfigError,
    ContractMismatch,
    DataError,
    Diverged,
    FeatureError,
    IdError,
    LabelError,
    PeerError,
    PeerStopped,
    ProtocolError,
    StorageError,
    category_of,
    printable,
)
from tallystick.job.log import LOG, MAX_LOG_BYTES, RunLog
from tallystick.network.certificates import load_identity
from tallystick.network.channel import memory_channels, open_payload
from tallystick.network.endpoint import Endpoint
from tallystick.network.messages import BODY_LENGTH, MEBIBYTE, WIRE_VERSION, Stopped
from tallystick.network.session import REFUSAL, Refusal, first_frame, open_hello
from tallystick.privacy.ledger import BudgetExceeded
from tallystick.training.training_messages import CutWidth
from tallystick.watcher import Silent

NASTY = "\x1b[2K\x1b[1A\rall is well\n\x1b]0;title\x07\u202e\x9b31m\x00\ud800"


def test_printable_is_one_bounded_line_without_control():
    assert printable("plain words, Zürich, 東京") == "plain words, Zürich, 東京"
    shown = printable(NASTY)
    assert shown.isprintable()
    assert shown.startswith("\\x1b[2K\\x1b[1A\\rall is well\\n")
    assert printable(shown) == shown
    long = printable("\x00" * 10**6)
    assert len(long) == MOST_CHARACTERS
    assert long.endswith(" ...")
    assert printable(long) == long
    assert printable("x" * 7, most=7) == "x" * 7
    assert printable("x" * 8, most=7) == "xxx ..."


@pytest.mark.parametrize("kind", [PeerError, PeerStopped, ProtocolError])
def test_every_error_about_a_peer_is_printable_and_bounded(kind):
    error = kind("shop", f"shop said {NASTY * 10**4}")
    assert str(error).isprintable()
    assert len(str(error)) == MOST_CHARACTERS
    mismatch = ContractMismatch("shop", NASTY, [NASTY])
    assert all(text.isprintable() for text in (str(mismatch), *mismatch.differences))


def test_a_field_that_a_peer_made_up_is_shown_by_its_printable_name():
    name, body = b"CutWidth", msgspec.msgpack.encode({"width": 3, "\x1b[2Jall is well\n": 1})
    payload = bytes((WIRE_VERSION, len(name))) + name + BODY_LENGTH.pack(len(body)) + body
    error = error_of(lambda: open_payload(payload, CutWidth, peer="shop"))
    assert isinstance(error, ProtocolError)
    assert "all is well" in str(error)
    assert str(error).isprintable()


@pytest.mark.parametrize("matter", ["identity", "protocol", "restarted"])
def test_why_a_call_was_refused_is_shown_as_data(matter):
    frame = b"".join(first_frame(REFUSAL, Refusal(matter=matter, reason=NASTY[:-1] * 1000)))
    error = error_of(lambda: open_hello(frame, "bank"))
    assert isinstance(error, PeerError)
    assert str(error).isprintable()
    assert len(str(error)) == MOST_CHARACTERS


def test_a_stop_of_a_mebibyte_is_passed_on_shortened():
    own, theirs = memory_channels("bank", "shop", timeout_s=2)
    to_club, club = memory_channels("bank", "club", timeout_s=2)
    theirs.send(Stopped(reason=NASTY[:-1] + "x" * (MEBIBYTE - 99)))  # no lone surrogate, because UTF-8 has none

    def align():
        with notify_peers([own, to_club]):
            own.receive(CutWidth)

    stopped = error_of(align)
    assert isinstance(stopped, PeerStopped)
    assert str(stopped).startswith("shop stopped: \\x1b[2K")
    told = error_of(lambda: club.receive(CutWidth))
    assert str(told).startswith("bank stopped: shop stopped: \\x1b[2K")
    assert str(told).isprintable()
    assert len(str(told)) <= MOST_CHARACTERS


def test_what_a_peer_says_at_the_end_reaches_terminal_json_log_and_the_third_party_as_data(lay_out_job):
    job = lay_out_job(("bank", "club", "shop"))
    bank, club = job.start("bank"), job.start("club")
    home = job.home("shop")
    identity = load_identity("shop", ca=home / "ca.pem", certificate=home / "own.pem", key=home / "own.key")
    bank.wait_for(lambda event: event.get("what") == "waiting for shop (s)")  # club has joined
    shop = Endpoint(identity, limits=QUICK)
    address = yaml.safe_load((job.home("shop") / "party.yaml").read_text())["peers"]["bank"]["address"]
    session = shop.connect({"bank": address})["bank"]
    session.send(Stopped(reason=NASTY[:-1] + "x" * (MEBIBYTE - 200)))
    assert bank.end() == 3
    assert club.end() == 3
    shop.close("the test is over")
    for party in (bank, club):
        assert len(party.said) == 1, party.said
        assert party.error.startswith("error: ")
        assert party.error.isprintable()
        assert "\\x1b[2K\\x1b[1A\\rall is well\\n" in party.error
        assert len(party.error) < MOST_CHARACTERS + 500
        assert json.dumps(party.found).isprintable()
        assert party.found["error"]["message"].isprintable()
    (folder,) = job.runs("bank")
    kept = (folder / LOG).read_text()
    assert "error PeerStopped: shop stopped: \\x1b[2K" in kept
    assert kept.replace("\n", "").isprintable()


def test_a_peer_is_told_a_category_and_nothing_private():
    secret = "Alice owes 5,000"
    told = {kind: category_of(kind(secret)) for kind in (LabelError, IdError, FeatureError, DataError, ConfigError, Diverged)}
    told[BudgetExceeded] = category_of(BudgetExceeded(secret))
    told[StorageError] = category_of(StorageError(secret))
    told[ZeroDivisionError] = category_of(ZeroDivisionError(secret))
    assert "Alice" not in " ".join(told.values())
    assert told[LabelError] == "its labels are not usable"
    assert told[Diverged] == "its training diverged"
    assert told[ZeroDivisionError] == "it failed unexpectedly (ZeroDivisionError)"
    assert len(set(told.values())) == len(told) - 1  # a budget is a setting


def test_a_full_disk_is_told_as_such():
    """/dev/full is a disk without room."""

    def write():
        try:
            with Path("/dev/full").open("wb", buffering=0) as file:
                file.write(b"x")
        except OSError as error:
            raise StorageError(f"cannot write: {error.strerror}") from None

    error = error_of(write)
    assert error.errno is None
    assert error.__context__.errno == errno.ENOSPC
    assert category_of(error) == "its disk is full"


class Noting(Silent):
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


def test_the_log_is_bounded_and_says_when_it_cannot_be_written(tmp_path):
    watcher = Noting()
    log = RunLog(watcher)
    for number in range(1000):
        log.note(f"early {number}")
    log.keep_in(tmp_path)
    kept = (tmp_path / LOG).read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in kept] == [f"early {number}" for number in range(800, 1000)]
    for _ in range(700):
        log.say(f"{NASTY}{'x' * 3900}")
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == [LOG, f"{LOG}.1"]
    assert all(0 < path.stat().st_size <= MAX_LOG_BYTES and path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert all(line.isprintable() for path in files for line in path.read_text().splitlines())
    log.keep_in(tmp_path / "absent")
    watcher.said.clear()
    log.say("on with it")
    log.say("and on")
    assert watcher.said == ["on with it", "and on"]  # it was said once, when it happened


def test_progress_is_logged_now_and_then(tmp_path):
    log = RunLog(Silent())
    log.keep_in(tmp_path)
    began = time.monotonic()
    for step in range(1, 2001):
        log.progress("training", step, 2000)
    assert within(1, lambda: (tmp_path / LOG).read_text().count("training: ") <= 2 + (time.monotonic() - began) / 10)
    assert "training: 2000 of 2000" in (tmp_path / LOG).read_text()
