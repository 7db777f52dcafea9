"""Mutate messages: repeat honest conversations with one message spoilt, to the decoder alone and to every role."""

import random
import shutil
from pathlib import Path
from typing import Any

import msgspec.inspect
import numpy as np

from tallystick.errors import TallystickError
from tallystick.network.messages import Array, MalformedMessage, Message, Stopped, decode, encode
from tallystick.network.session import Hello, Refusal
from tallystick.scoring.predict import UnionScores
from tallystick_robustness import memory
from tallystick_robustness.mutate import Due, due, spoil_message
from tallystick_robustness.outcome import (
    Attempt,
    Campaign,
    CaseOutcome,
    Ended,
    attempt,
    broken_weights,
    failure_of,
    hearing_warnings,
    outcome_of,
)
from tallystick_robustness.scenes import Heard, Scene, general_scenes, method_scenes, recorded

_BOUND_S = 10.0  # for one role
MADE_UP = (Hello, Refusal, Stopped, UnionScores)  # they cross below the channels, or no conversation here needs them


class Messages(Campaign):
    """Campaign of mutated messages. Its fixture is the recorded conversations."""

    name, count, chunk = "messages", 100_000, 500
    title = "Mutated messages"
    meaning = (
        "refused: an error of ours and nothing else. withstood: the change is none, and so is the result's. accepted: a message "
        "that the peer might as well have meant; in the decoder's rows, one that has its type's schema. failed: anything else, "
        "such as another exception, a malformed message that went unnoticed, weights that are not finite, words that drive a "
        "terminal."
    )
    shares = 0.4, 0.4
    """The share of cases for the decoder alone, and for conversations that are not whole jobs."""

    @staticmethod
    def scenes(scratch: Path) -> list[Scene]:
        """Record the scenes."""
        return general_scenes(scratch)

    def __init__(self, scratch: Path, *, seed: int, limited: bool = True) -> None:
        """Record every conversation once. ``limited`` bounds this process's address space from then on."""
        super().__init__(scratch, seed=seed)
        self._heard = recorded(scratch, self.scenes(scratch))
        self._small = [heard for heard in self._heard if not heard.scene.whole_job]
        self._whole = [heard for heard in self._heard if heard.scene.whole_job]
        self._kinds = {kind.__name__: kind for kind in _kinds(Message) if kind.__module__.startswith("tallystick.")}
        self._corpus = self._frames_by_kind()
        self._unheard = sorted({kind.__name__ for kind in MADE_UP} - {*self._corpus})
        for name in self._unheard:
            self._corpus[name] = [bytes(encode(specimen(self._kinds[name])))]
        for heard in self._heard:
            self._check_honest(heard)
        if limited:
            memory.limit_addresses()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the campaign for its page."""
        return {
            "roles": sorted(f"{heard.scene.name}: {heard.role}" for heard in self._heard),
            "message types": sorted(self._corpus),
            "for the decoder alone, made up": self._unheard,
        }

    def case(self, number: int) -> CaseOutcome:
        """Run one case."""
        draw = self.draw(number)
        share, (decoder, small) = draw.random(), self.shares
        if share < decoder:
            return self._decode(number, draw)
        heard = draw.choice(self._small if share < decoder + small else self._whole)
        return self._replay(number, heard, draw)

    def _decode(self, number: int, draw: random.Random) -> CaseOutcome:
        """Give a spoilt message to the decoder, and open everything that it returns."""
        name = draw.choice(list(self._corpus))
        kind, honest = self._kinds[name], draw.choice(self._corpus[name])
        how, spoilt = spoil_message(honest, draw)

        def work() -> Message | None:
            try:
                decoded = decode(spoilt, kind)
                for field in decoded.__struct_fields__:
                    value = getattr(decoded, field)
                    if isinstance(value, Array):
                        value.numpy()
                        value.tensor()
            except MalformedMessage:
                return None
            return decoded

        before = memory.measured_anew()
        with hearing_warnings() as warned:
            decoding = attempt(work, bound_s=1.0)
        failure = decoding.failure or memory.excess(before) or "".join(warned[:1])
        ended: Ended = "refused" if decoding.value is None else "accepted"
        return outcome_of(
            number, f"decoder: {name}", how, ended, seconds=decoding.seconds, failure=failure, detail=decoding.detail
        )

    def _replay(self, number: int, heard: Heard, draw: random.Random) -> CaseOutcome:
        peer = draw.choice(list(heard.frames))
        honest = list(heard.frames[peer])
        place = draw.randrange(len(honest))
        how, spoilt_frames, owed = self._spoil(honest, place, draw)
        folder = heard.folder(self._scratch, number)
        before = memory.measured_anew()
        try:
            frames = {name: list(frames) for name, frames in heard.frames.items()} | {peer: spoilt_frames}
            with hearing_warnings() as warned:
                replay = attempt(lambda: heard.replay(frames, folder), bound_s=_BOUND_S)
            failure = replay.failure or memory.excess(before) or broken_weights(folder) or "".join(warned[:1])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        name = _name(honest[place])
        failure = failure or _verdict(heard, replay, owed, name, how)
        ended: Ended = "refused" if replay.error is not None else "withstood" if owed == "same" else "accepted"
        what, how = f"{heard.scene.name}: {heard.role}", f"{name}: {how}"
        return outcome_of(number, what, how, ended, seconds=replay.seconds, failure=failure, detail=replay.detail)

    def _spoil(self, honest: list[bytes], place: int, draw: random.Random) -> tuple[str, list[bytes], Due]:
        """Spoil one message, or the order of messages, or replace one by a message of another conversation."""
        act = draw.random()
        if act < 0.8:
            how, spoilt = spoil_message(honest[place], draw)
            return how, [*honest[:place], spoilt, *honest[place + 1 :]], due(honest[place], spoilt, self._kind(honest[place]))
        if act < 0.84:
            return "left out", honest[:place] + honest[place + 1 :], "may"
        if act < 0.88:
            return "said twice", honest[: place + 1] + honest[place:], "may"
        other = draw.randrange(len(honest))
        if act < 0.92:
            swapped = list(honest)
            swapped[place], swapped[other] = honest[other], honest[place]
            return "in another order", swapped, "may"
        if act < 0.96:
            return "replayed", [*honest[:place], honest[other], *honest[place + 1 :]], "may"
        foreign = draw.choice(self._corpus[draw.choice(list(self._corpus))])
        how = "of another conversation"
        return how, [*honest[:place], foreign, *honest[place + 1 :]], due(honest[place], foreign, self._kind(honest[place]))

    def _kind(self, frame: bytes) -> type[Message]:
        return self._kinds[_name(frame)]

    def _frames_by_kind(self) -> dict[str, list[bytes]]:
        corpus: dict[str, dict[bytes, None]] = {}
        for heard in self._heard:
            for frames in heard.frames.values():
                for frame in frames:
                    corpus.setdefault(_name(frame), {})[frame] = None
        return {name: list(frames)[:40] for name, frames in sorted(corpus.items())}

    def _check_honest(self, heard: Heard) -> None:
        """Check that a role accepts its own recording. Otherwise a refusal would mean nothing."""
        if heard.role in heard.scene.random_own:
            return
        folder = heard.folder(self._scratch, "checked")
        try:
            heard.replay({name: list(frames) for name, frames in heard.frames.items()}, folder)
        except Exception as error:
            raise TallystickError(
                f"{heard.scene.name}: {heard.role} does not take its own recording: {failure_of(error)}: {error}"
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class MethodMessages(Messages):
    """Campaign of mutated messages in methods that some jobs have: similarity and its helper, importance, tuning,
    unaligned rows.
    """

    name, count, chunk = "methods", 10_000, 50
    title = "Mutated messages of similarity, importance, tuning and unaligned rows"
    shares = 0.1, 0.75

    @staticmethod
    def scenes(scratch: Path) -> list[Scene]:
        """Record the scenes."""
        return method_scenes(scratch)


def _verdict(heard: Heard, tried: Attempt, owed: Due, name: str, how: str) -> str:
    """Compare how a case ended with what the spoilt message deserved."""
    if tried.error is None and owed == "refuse":
        return f"used silently: {name}, {how}"
    if tried.error is not None and owed == "same" and heard.role not in heard.scene.random_own:
        return f"a harmless change is refused: {name}, {how}"
    return ""


def specimen(kind: type[Message]) -> Message:
    """Make up a message of a type that no conversation here has. Every field has a value of its type."""
    return kind(**{field.name: _made_up(field.type) for field in msgspec.inspect.type_info(kind).fields})  # type: ignore[attr-defined]


def _made_up(type_: msgspec.inspect.Type) -> Any:
    match type_:
        case msgspec.inspect.IntType():
            return type_.ge or 1
        case msgspec.inspect.FloatType():
            return 0.5
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.BytesType():
            return bytes(16)
        case msgspec.inspect.LiteralType():
            return type_.values[0]
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return [_made_up(type_.item_type)]
        case msgspec.inspect.UnionType():
            return _made_up(type_.types[0])
        case msgspec.inspect.StructType():
            return Array.of(np.zeros(4))
        case msgspec.inspect.NoneType():
            return None
        case _:
            return "x"


def _name(frame: bytes) -> str:
    return frame[2 : 2 + frame[1]].decode()


def _kinds(base: type[Message]) -> list[type[Message]]:
    return [base, *(kind for child in base.__subclasses__() for kind in _kinds(child))]
