"""Shake hands: check that all parties are about to do the same thing, and agree on the start.

Every party greets the label party. The label party compares the greetings and sends the same agreement to all.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Annotated

import msgspec

from tallystick import __version__
from tallystick.config.contract import Contract
from tallystick.config.differences import differences
from tallystick.errors import ContractMismatch, PeerError, ProtocolError, printable
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

RUN_ID = re.compile(r"[0-9a-f]{16}")


RunId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$", max_length=16)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]


class PromotedHalf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that a party promoted, the hash of its contract, and a commitment to the party's own half of it."""

    run_id: RunId
    contract: Digest
    commitment: Digest


class Greeting(Message, frozen=True):
    """What a party plans to do, and what it keeps from an earlier run. For a prediction that is its complete runs.

    ``start_from`` is the finished run whose weights this run starts from; empty for a start from scratch. ``promoted`` are the
    runs that this party has promoted, newest first.
    """

    version: str
    contract_hash: str
    command: str
    resume: bool
    run_id: str
    checkpoints: list[int]
    trained: bool
    complete: list[str]
    start_from: str
    promoted: list[PromotedHalf]
    torch: str
    numpy: str


class ContractText(Message, frozen=True):
    """A contract whose hash differs, in canonical JSON. It holds nothing private."""

    text: str


class Agreement(Message, frozen=True):
    """Label party to all: the run's id, whether to align, and the step to go on from."""

    run_id: str
    align: bool
    resume_from: int
    train: bool
    version: str = ""  # version of the run that all parties promoted: a hash of it and of their halves


@dataclass(frozen=True, kw_only=True)
class ResumeState:
    """What this party keeps from an earlier run: nothing, for a new run."""

    command: str = "run"
    resume: bool = False
    run_id: str = ""
    checkpoints: tuple[int, ...] = ()
    trained: bool = False
    complete: tuple[str, ...] = ()  # ids of complete runs to choose from, newest first
    start_from: str = ""  # id of the finished run whose weights this one starts from
    promoted: tuple[PromotedHalf, ...] = ()  # newest first; none if a run was named
    chosen: bool = False  # whether the user named a run


def _unheard(_: str) -> None:
    """Ignore a note."""


def shake_hands_label_party(
    contract: Contract,
    resume_state: ResumeState,
    channels: Mapping[str, Channel],
    *,
    helper: Channel | None = None,
    note: Callable[[str], None] = _unheard,
) -> Agreement:
    """Greet every peer, compare, and decide where the run starts. shake_hands says what it raises and notes.

    A helper is greeted and gets the agreement, too. It keeps nothing of a run, so it does not influence where the run goes on.
    """
    if helper is not None:
        _greet(contract, resume_state, helper)
    greetings = {name: _greet(contract, resume_state, channel) for name, channel in channels.items()}
    for name, greeting in greetings.items():
        _require_same_start(resume_state, name, greeting)
        _note_versions(name, greeting, note)
    if (promoted := _promoted_by_all(contract, resume_state, greetings)) is not None:
        return _tell(promoted, channels, helper)
    if resume_state.complete:
        # refuse to predict with another run than a feature party's, and say which party has which run, and what to do
        their_runs = {name: greeting.run_id for name, greeting in greetings.items()}
        other = next((name for name, run_id in their_runs.items() if run_id != resume_state.run_id), None)
        if other is not None:
            run_list = ", ".join(
                f"{name} {run_id or 'none'}" for name, run_id in {contract.label_party: resume_state.run_id, **their_runs}.items()
            )
            complete_sets = [set(greeting.complete) for greeting in greetings.values()]
            shared = next((run_id for run_id in resume_state.complete if all(run_id in ids for ids in complete_sets)), None)
            helps = (
                f"all have run {shared}: give `--run {shared}` on all sides"
                if shared is not None
                else "there is no complete run that all sides have: make one with `tallystick run` on all sides"
            )
            raise PeerError(other, f"the sides would predict with different runs: {run_list}; {helps}")
    run_ids = {resume_state.run_id, *(greeting.run_id for greeting in greetings.values())}
    goes_on = resume_state.resume and resume_state.run_id != "" and len(run_ids) == 1
    common = set(resume_state.checkpoints).intersection(*(greeting.checkpoints for greeting in greetings.values()))
    trained = resume_state.trained and all(greeting.trained for greeting in greetings.values())
    agreement = Agreement(
        run_id=resume_state.run_id if goes_on else secrets.token_hex(8),
        align=not goes_on,
        resume_from=max(common, default=0) if goes_on else 0,
        train=not (goes_on and trained),
    )
    return _tell(agreement, channels, helper)


def _tell(agreement: Agreement, channels: Mapping[str, Channel], helper: Channel | None) -> Agreement:
    for channel in (*channels.values(), *([helper] if helper is not None else [])):
        channel.send(agreement)
    return agreement


def _promoted_by_all(contract: Contract, own: ResumeState, greetings: Mapping[str, Greeting]) -> Agreement | None:
    """Return this party's newest promotion that all others have, too. Return None without one, or if a run was named.

    Raises PeerError if parties have promoted runs but none in common: a run that one side did not promote is not used.
    """
    lists = {contract.label_party: list(own.promoted), **{name: greeting.promoted for name, greeting in greetings.items()}}
    is_same = all(greeting.run_id == own.run_id for greeting in greetings.values())
    if own.chosen or not any(lists.values()) or (is_same and not all(lists.values())):
        return None
    for run_id, version in common_versions(own.promoted, lists).items():
        return Agreement(run_id=run_id, align=False, resume_from=0, train=False, version=version)
    newest = {name: printable(promoted[0].run_id, most=16) if promoted else "none" for name, promoted in lists.items()}
    other = next(iter(greetings))
    raise PeerError(
        other,
        f"no run is promoted on all sides (newest: {', '.join(f'{name} {run_id}' for name, run_id in newest.items())}); promote "
        "one on all sides with `tallystick runs CONTRACT --party FILE promote RUN`, or give `--run RUN` on all sides",
    )


def common_versions(own: Sequence[PromotedHalf], lists: Mapping[str, Sequence[PromotedHalf]]) -> dict[str, str]:
    """Return the version of each run that is in all parties' lists, by run id and in the order of the first list."""
    halves = {name: {each.run_id: each for each in promoted} for name, promoted in lists.items()}
    return {
        each.run_id: version_of(
            each.run_id, each.contract, {name: found[each.run_id].commitment for name, found in halves.items()}
        )
        for each in own
        if all(each.run_id in found for found in halves.values())
    }


def version_of(run_id: str, contract: str, commitments: Mapping[str, str]) -> str:
    """Derive a version: a hash of the run's id, its contract's hash, and all parties' halves."""
    text = json.dumps([run_id, contract, sorted(commitments.items())], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def shake_hands(
    contract: Contract,
    resume_state: ResumeState,
    channel: Channel,
    *,
    keeps: bool = True,
    note: Callable[[str], None] = _unheard,
) -> Agreement:
    """Greet the label party and learn where the run starts. A helper, which ``keeps`` nothing of a run, accepts any start.

    ``note`` gets a line if a peer uses other versions of PyTorch or NumPy. That does not stop the run: each side computes with
    its own versions, also when it resumes.
    Raises ContractMismatch with the keys that differ (never values of a party file), ProtocolError for a peer that runs
    another command, resumes where this one does not, speaks another version, or asks to go on from what is not here.
    """
    greeting = _greet(contract, resume_state, channel)
    if keeps:
        _require_same_start(resume_state, channel.peer, greeting)
        _note_versions(channel.peer, greeting, note)
    agreement = channel.receive(Agreement)
    # refuse an agreement that needs something this party does not have
    peer = channel.peer
    if not RUN_ID.fullmatch(agreement.run_id):
        raise ProtocolError(peer, f"{peer} named the run {agreement.run_id[:80]!r}; expected 16 hexadecimal digits")
    if keeps:
        wrong = ""
        own_ids = {resume_state.run_id, *(each.run_id for each in resume_state.promoted)} - {""}
        if agreement.version and agreement.run_id not in [each.run_id for each in resume_state.promoted]:
            wrong = f"to use run {agreement.run_id} as promoted; this side did not promote it"
        elif not agreement.align and not (resume_state.resume and agreement.run_id in own_ids):
            wrong = f"to go on with run {agreement.run_id}; this side has {resume_state.run_id or 'none'}"
        elif agreement.align and (agreement.resume_from or not agreement.train):
            wrong = f"to align anew and yet to go on from step {agreement.resume_from}"
        elif agreement.resume_from and agreement.resume_from not in resume_state.checkpoints:
            has = ", ".join(map(str, resume_state.checkpoints)) or "none"
            wrong = f"to go on from step {agreement.resume_from}; this side has {has}"
        elif not agreement.train and not resume_state.trained:
            wrong = "to leave training out; this side has no trained model of this run"
        if wrong:
            raise ProtocolError(peer, f"{peer} asks {wrong}")
    return agreement


def _require_same_start(own: ResumeState, peer: str, greeting: Greeting) -> None:
    """Raise PeerError if the peer starts from another run than this side, or from none."""
    if greeting.start_from == own.start_from:
        return
    their_start, own_start = (
        f"run {printable(name, most=16)}" if name else "scratch" for name in (greeting.start_from, own.start_from)
    )
    raise PeerError(
        peer,
        f"{peer} starts from {their_start} and this side from {own_start}; "
        "give --start-from with one run's id on all sides, or on none",
    )


def _greet(contract: Contract, resume_state: ResumeState, channel: Channel) -> Greeting:
    channel.send(
        Greeting(
            version=__version__,
            contract_hash=contract.hash,
            command=resume_state.command,
            resume=resume_state.resume,
            run_id=resume_state.run_id,
            checkpoints=list(resume_state.checkpoints),
            trained=resume_state.trained,
            complete=list(resume_state.complete),
            start_from=resume_state.start_from,
            promoted=list(resume_state.promoted),
            torch=release_of("torch"),
            numpy=release_of("numpy"),
        )
    )
    greeting = channel.receive(Greeting)
    if greeting.contract_hash != contract.hash:
        channel.send(ContractText(text=contract.agreed.canonical_json()))
        differing = differences(contract.agreed.canonical_json(), channel.receive(ContractText).text)
        raise ContractMismatch(
            channel.peer,
            f"the contract differs from {channel.peer}'s in {len(differing)} place(s): {'; '.join(differing)}",
            differing,
        )
    if greeting.version != __version__:
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} runs tallystick {greeting.version[:40]!r}, this side {__version__}; install the same on both",
        )
    if greeting.command != resume_state.command:
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} runs `tallystick {greeting.command[:40]}`, this side `tallystick {resume_state.command}`",
        )
    if greeting.resume != resume_state.resume:
        one, other = (channel.peer, "this side") if greeting.resume else ("this side", channel.peer)
        raise PeerError(channel.peer, f"{one} resumes a run and {other} starts a new one; pass --resume on both sides or on none")
    return greeting


@cache
def release_of(library: str) -> str:
    """Return a version without the name of its build: the CPU and CUDA builds of one release compute the same on a CPU.

    It is empty for a library that is not installed: a party that only aligns needs no PyTorch.
    """
    try:
        return metadata.version(library).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def _note_versions(peer: str, greeting: Greeting, note: Callable[[str], None]) -> None:
    own = {name: release_of(name) for name in ("torch", "numpy")}
    their_versions = {"torch": printable(greeting.torch, most=40), "numpy": printable(greeting.numpy, most=40)}
    if other := [name for name in own if "" not in (own[name], their_versions[name]) and own[name] != their_versions[name]]:
        one, two = (" and ".join(f"{name} {versions[name]}" for name in other) for versions in (their_versions, own))
        note(
            f"{peer} computes with {one}, this side with {two}: both draw the order of rows from the contract's seed, which "
            "another version may draw otherwise; install the same on both (constraints.txt)"
        )
