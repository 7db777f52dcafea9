"""Keep the runs that clients can see: the one in use, the one before, and a candidate."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tallystick.run_folder.answer_journal import AnswerLog
from tallystick.scoring.scoring import Scoring, ScoringRun
from tallystick.serving.problem_details import Problem
from tallystick.serving.requests import Reader
from tallystick.serving.side import OpenRun, ServingSide


class Users:
    """Counts the users of something. After it is retired, there can be no new ones."""

    def __init__(self) -> None:
        self._lock, self._count, self._retired = threading.Lock(), 0, False

    @property
    def any(self) -> bool:
        """Tell whether there are any."""
        return self._count > 0

    def come(self) -> bool:
        """Count one more user. Return False if it is retired."""
        with self._lock:
            if not self._retired:
                self._count += 1
            return not self._retired

    def go(self) -> None:
        """Count one user less."""
        with self._lock:
            self._count -= 1

    def retire(self) -> bool:
        """Accept no new users. Return False while there are some."""
        with self._lock:
            self._retired = self._retired or not self._count
            return self._retired


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedRun(ScoringRun):
    """A run that a side with clients has loaded, and the reader of requests for it.

    Args:
        ids: the most ids that a party had when the run was trained.
        reader: reads own columns as this run needs them.
        answers: the store of its answers; None if answers are not saved.
        scored_on: returns the day on which each row's only score was opened, None for a row without; None if rows are scored on
            request.
    """

    ids: int
    reader: Reader
    answers: AnswerLog | None
    scored_on: Callable[[Sequence[bytes]], list[str | None]] | None = None
    users: Users = field(default_factory=Users)

    @classmethod
    def of(
        cls,
        side: ServingSide,
        opened: OpenRun,
        scorer: Scoring,
        *,
        scored_on: Callable[[Sequence[bytes]], list[str | None]] | None = None,
    ) -> "ServedRun":
        """Make it from a run of this side."""
        return cls(
            run_id=opened.run_id,
            scorer=scorer,
            store=opened.store,
            ids=opened.ids,
            answers=side.answers(opened),
            reader=Reader.of(side.contract, side.party, opened.encoder, side.frame),
            scored_on=scored_on,
        )

    def retire(self) -> bool:
        """Retire the run: it takes no new requests. Return False while requests wait for it."""
        return self.users.retire()

    def close(self) -> None:
        """Let go of the rows."""
        self.store.close()
        if self.answers is not None:
            self.answers.close()


@dataclass(frozen=True, kw_only=True)
class RunsNow:
    """The served runs.

    Args:
        current: scores each request that names no run.
        before: the run before it, if any; it scores requests that name it.
        candidate: scores requests in the background, and answers none.
        missing: runs that only some parties promoted, and the parties that did not.
    """

    current: ServedRun
    before: ServedRun | None = None
    candidate: ServedRun | None = None
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return the answer to GET /v1/runs."""
        runs = [{"run_id": self.current.run_id, "state": "in use", "answers": True}]
        if self.before is not None:
            runs.append({"run_id": self.before.run_id, "state": "before", "answers": True})
        if self.candidate is not None:
            runs.append({"run_id": self.candidate.run_id, "state": "candidate", "answers": False})
        waiting = [{"run_id": run_id, "missing": list(parties)} for run_id, parties in self.missing.items()]
        return {"runs": runs, "waiting": waiting}

    def chosen(self, run_id: str | None) -> ServedRun:
        """Return the run that a request wants. Raises Problem."""
        if run_id is None or run_id == self.current.run_id:
            return self.current
        if self.before is not None and run_id == self.before.run_id:
            return self.before
        served = " and ".join(run.run_id for run in (self.current, self.before) if run is not None)
        if self.candidate is not None and run_id == self.candidate.run_id:
            detail = f"run_id: that run is a candidate, and answers only after all sides have promoted it; served: {served}"
            raise Problem(status=409, detail=detail)
        if run_id in self.missing:
            lacking = " and ".join(self.missing[run_id])
            raise Problem(status=409, detail=f"run_id: that run waits until {lacking} has promoted it, too; served: {served}")
        raise Problem(status=404, detail=f"run_id: no such run is served here; leave it out, or name one of {served}")


class ServedRuns:
    """The runs that are served at the moment, for requests in any thread."""

    def __init__(self, first: ServedRun) -> None:
        self.now = RunsNow(current=first)

    @contextmanager
    def using(self, run_id: str | None) -> Iterator[ServedRun]:
        """Yield the run for a request. The run stays loaded during this block. Raises Problem."""
        run = self.now.chosen(run_id)
        if not run.users.come():  # it was just retired: choose again
            run = self.now.chosen(run_id)
            if not run.users.come():
                raise Problem.later(503, "the run is changing; try again")
        try:
            yield run
        finally:
            run.users.go()
