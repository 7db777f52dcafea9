"""How a case may end, and what all campaigns ask of an end: a clean error of ours or success, in time, and in clean words."""

import time
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open

from tallystick.errors import TallystickError

Ended = Literal["refused", "withstood", "accepted", "failed"]
"""refused by an error of ours; withstood: the result is the undisturbed one; accepted: what a peer or a user might as well
have meant; failed: anything else."""

LONGEST_WORDS = 8000  # of an error; a contract with many wrong keys has a line for each
_HERE = "tallystick_robustness"


@dataclass(frozen=True, kw_only=True)
class CaseOutcome:
    """What came of one case."""

    case: int
    what: str  # was hit: a row of the campaign's table
    how: str  # in words, the fault
    ended: Ended
    seconds: float
    failure: str = ""  # the same for all cases that fail alike
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON would."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What a call gave: a value, or an error of ours, or a failure in words."""

    value: Any = None
    error: TallystickError | None = None
    failure: str = ""
    detail: str = ""
    seconds: float = 0.0


def attempt(work: Callable[[], Any], *, bound_s: float) -> Attempt:
    """Call, and hold what it raises and takes against what is promised."""
    started = time.monotonic()
    value, error, failure, detail = None, None, "", ""
    try:
        value = work()
    except TallystickError as ours:
        error, failure, detail = ours, unclean(str(ours)), str(ours)[:2000]
    except Exception as other:
        failure, detail = signature(other), traceback.format_exc()[-4000:]
    seconds = time.monotonic() - started
    if not failure and seconds > bound_s:
        failure, detail = "took too long", f"{seconds:.1f} s, over {bound_s:g}"
    return Attempt(value=value, error=error, failure=failure, detail=detail, seconds=seconds)


@contextmanager
def hearing_warnings() -> Iterator[list[str]]:
    """Collect the warnings that the block would print to standard error, as failures; for one thread at a time."""
    heard: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):  # as Python itself does
            warnings.simplefilter("ignore", kind)
        yield heard
    for found in warned:
        heard.append(
            f"a warning on standard error: {found.category.__name__} at {_place(found.filename)}: {str(found.message)[:80]}"
        )


def signature(error: BaseException) -> str:
    """Name an exception by its type and the last place in the product that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "tallystick" in frame.filename]
    ours = [frame for frame in frames if _HERE not in frame.filename]
    where = f"{_place(ours[-1].filename)} in {ours[-1].name}" if ours else "outside"
    return f"{type(error).__name__} at {where}"


def unclean(words: str) -> str:
    """Say what is wrong with an error's words: characters that drive a terminal, or far too many; empty if nothing is."""
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs") and character != "\n" for character in words):
        return "an error with characters that drive a terminal"
    return f"an error of over {LONGEST_WORDS} characters" if len(words) > LONGEST_WORDS else ""


def broken_weights(folder: Path) -> str:
    """Say which safetensors file under the folder holds numbers that are not finite; empty if none does."""
    for path in sorted(folder.rglob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(name)
                    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                        return f"weights that are not finite in {path.name if 'step-' not in path.name else 'a checkpoint'}"
        except (OSError, SafetensorError):
            continue  # another oracle's question
    return ""


def _place(filename: str) -> str:
    return filename.rpartition("tallystick/")[2] if "tallystick/" in filename else Path(filename).name
