"""Define how a case may end, and what all campaigns require: success or an error of ours, in time and in clean words."""

import os
import random
import time
import traceback
import unicodedata
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal

import torch
from safetensors import SafetensorError, safe_open

import tallystick
from tallystick.errors import TallystickError

Ended = Literal["refused", "withstood", "accepted", "failed"]
"""refused: by an error of ours; withstood: the result is the undisturbed one; accepted: the peer or the user might as well have
meant it; failed: anything else.
"""

LONGEST_WORDS = 8000  # greatest length of an error; a contract with many wrong keys gets one line for each
_PRODUCT = str(Path(tallystick.__file__).parent) + os.sep
"""The folder of the product. A name in a path is no proof, because a checkout's folder may have any name."""


@dataclass(frozen=True, kw_only=True)
class CaseOutcome:
    """Keep the outcome of one case."""

    case: int
    what: str  # the target of the fault: a row of the campaign's table
    how: str  # the fault in words
    ended: Ended
    seconds: float
    failure: str = ""  # the same text for all cases that fail alike
    detail: str = ""


def outcome_of(
    number: int, what: str, how: str, ended: Ended, *, seconds: float, failure: str = "", detail: str = ""
) -> CaseOutcome:
    """Say how a case ended. A failure comes with its detail."""
    if failure:
        return CaseOutcome(case=number, what=what, how=how, ended="failed", seconds=seconds, failure=failure, detail=detail)
    return CaseOutcome(case=number, what=what, how=how, ended=ended, seconds=seconds)


class Campaign(AbstractContextManager["Campaign"], ABC):
    """Base of campaigns: a fixture that is made once, and cases that are drawn from a seed.

    A subclass declares its name, its default number of cases, how many cases make a line of the log, whether they run in worker
    processes (worker.py), which are killed if they hang, and the text of its page.
    """

    name: ClassVar[str]
    count: ClassVar[int]
    chunk: ClassVar[int]
    in_workers: ClassVar[bool] = True
    title: ClassVar[str]
    meaning: ClassVar[str]

    def __init__(self, scratch: Path, *, seed: int) -> None:
        """Make the fixture under ``scratch``. A subclass makes its own."""
        self._scratch, self._seed = scratch, seed

    def draw(self, number: int) -> random.Random:
        """Return the random source of a case's choices."""
        return random.Random(f"{self._seed}/{self.name}/{number}")  # noqa: S311 - which fault comes when is no secret

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what a reader must know about the fixture."""

    @abstractmethod
    def case(self, number: int) -> CaseOutcome:
        """Run one case."""

    def close(self) -> None:
        """End the processes that the fixture keeps running."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Keep the result of a call: a value, an error of ours, or a failure in words."""

    value: Any = None
    error: TallystickError | None = None
    failure: str = ""
    detail: str = ""
    seconds: float = 0.0


def attempt(work: Callable[[], Any], *, bound_s: float) -> Attempt:
    """Call a function, and check its exception and its time against the promise."""
    started = time.monotonic()
    value, error, failure, detail = None, None, "", ""
    try:
        value = work()
    except TallystickError as ours:
        error, failure, detail = ours, unclean(str(ours)), str(ours)[:2000]
    except Exception as other:
        failure, detail = failure_of(other), traceback.format_exc()[-4000:]
    seconds = time.monotonic() - started
    if not failure and seconds > bound_s:
        failure, detail = "took too long", f"{seconds:.1f} s, over {bound_s:g}"
    return Attempt(value=value, error=error, failure=failure, detail=detail, seconds=seconds)


@contextmanager
def hearing_warnings() -> Iterator[list[str]]:
    """Collect the warnings that the block would print to standard error, as failures. It works for one thread at a time."""
    heard: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):  # as Python does
            warnings.simplefilter("ignore", kind)
        yield heard
    for found in warned:
        heard.append(
            f"a warning on standard error: {found.category.__name__} at {_place(found.filename)}: {str(found.message)[:80]}"
        )


def failure_of(error: BaseException) -> str:
    """Name an exception by its type and the last place in the product that it passed."""
    own_frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_PRODUCT)]
    where = f"{_place(own_frames[-1].filename)} in {own_frames[-1].name}" if own_frames else "outside"
    return f"{type(error).__name__} at {where}"


def unclean(words: str) -> str:
    """Say what is wrong with an error's words: characters that drive a terminal, or far too many. It is empty if nothing is."""
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs") and character != "\n" for character in words):
        return "an error with characters that drive a terminal"
    return f"an error of over {LONGEST_WORDS} characters" if len(words) > LONGEST_WORDS else ""


def broken_weights(folder: Path) -> str:
    """Say which safetensors file under the folder holds numbers that are not finite. It is empty if none does."""
    for path in sorted(folder.rglob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(name)
                    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                        return f"weights that are not finite in {path.name if 'step-' not in path.name else 'a checkpoint'}"
        except (OSError, SafetensorError):
            continue  # other checks look at unreadable files
    return ""


def _place(filename: str) -> str:
    return filename.rpartition("tallystick/")[2] if "tallystick/" in filename else Path(filename).name
