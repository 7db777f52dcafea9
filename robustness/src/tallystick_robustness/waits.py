"""Test each wait for a partner: end it by a signal, with a partner that is stopped, or one that only keeps its heartbeats.

One process waits, and the other gets stuck at a place of the job. The campaign measures the time until the waiting process has
ended, or has a line that names the silence. The cases are all pairs of a wait and an event, and are not drawn from a seed.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from tallystick.errors import TallystickError
from tallystick.network.addresses import free_port
from tallystick.network.session import QUIET_S
from tallystick_robustness.both import copy_of_homes
from tallystick_robustness.fixture_job import (
    DEADLINE_S,
    FEATURE,
    HELPER,
    HELPER_LISTENS,
    LABEL,
    PARTIES,
    THIRD,
    WAIT_S,
    Homes,
    Values,
    contract,
    lay_out,
)
from tallystick_robustness.folders import LINKAGES, by_place, frames_of
from tallystick_robustness.outcome import CaseOutcome, outcome_of
from tallystick_robustness.processes import GRACE_S, PATIENCE_S, Process, ProcessCampaign, ended_well
from tallystick_robustness.stuck import MARK

SERVE_END_S = 12.0
"""Seconds in which the how-to of serving promises that a stop is done."""
LATE = "later than what it states"
FAREWELL_S = 2.0
"""Seconds that a run has to tell its partner of a stop."""
SETTLES_S = 0.5
"""Seconds until all traffic on its way has arrived, and the process waits."""


@dataclass(frozen=True, kw_only=True)
class PartnerWait:
    """Define a wait: the party that waits in a command, and the place where its partner gets stuck, or None if it never comes."""

    who: str
    command: str
    stuck_at: str | None
    idle: bool = False
    """Whether a wait is normally long, so that no line is expected about it."""
    job: str = "intersection"
    stuck: str | None = None
    """The party that gets stuck, if it is not the other one of two parties."""

    @property
    def partner(self) -> str:
        """Return the party that gets stuck."""
        return self.stuck or (FEATURE if self.who == LABEL else LABEL)


WAITS: dict[str, PartnerWait] = {
    "run: label party waits for its partner": PartnerWait(who=LABEL, command="run", stuck_at=None),
    "run: feature party waits for its partner": PartnerWait(who=FEATURE, command="run", stuck_at=None),
    "run: handshake": PartnerWait(who=LABEL, command="run", stuck_at="Greeting:1"),
    "run: alignment, label party": PartnerWait(who=LABEL, command="run", stuck_at="phase:alignment"),
    "run: alignment, feature party": PartnerWait(who=FEATURE, command="run", stuck_at="phase:alignment"),
    "run: training, label party": PartnerWait(who=LABEL, command="run", stuck_at="CutEmbedding:20"),
    "run: training, feature party": PartnerWait(who=FEATURE, command="run", stuck_at="CutGradient:20"),
    "run: evaluation, label party": PartnerWait(who=LABEL, command="run", stuck_at="phase:evaluation"),
    "run: evaluation, feature party": PartnerWait(who=FEATURE, command="run", stuck_at="phase:evaluation"),
    "align": PartnerWait(who=LABEL, command="align", stuck_at="phase:alignment"),
    "predict, label party": PartnerWait(who=LABEL, command="predict", stuck_at="CutEmbedding:1"),
    "predict, feature party": PartnerWait(who=FEATURE, command="predict", stuck_at="Agreement:1"),
    "tune": PartnerWait(who=LABEL, command="tune", stuck_at="CutEmbedding:20"),
    "serve: label party waits for its partner": PartnerWait(who=LABEL, command="serve", stuck_at=None),
    "serve: label party, an answer": PartnerWait(who=LABEL, command="serve", stuck_at="VersionsHeld:1"),
    "serve: feature party, handshake": PartnerWait(who=FEATURE, command="serve", stuck_at="Agreement:1"),
    **{
        f"run on a union: {phase}, {seat}": PartnerWait(who=who, command="run", stuck_at=stuck_at, job="union")
        for phase, of_label, of_feature in (
            ("alignment", "phase:alignment", "phase:alignment"),
            ("training", "CutEmbedding:3", "CutGradient:3"),
        )
        for seat, who, stuck_at in (("label party", LABEL, of_label), ("feature party", FEATURE, of_feature))
    },
    **{
        f"run by similarity: alignment, {seat}": PartnerWait(
            who=who, command="run", stuck_at="phase:alignment", job="similarity", stuck=stuck
        )
        for seat, who, stuck in (
            ("label party", LABEL, FEATURE),
            ("feature party", FEATURE, LABEL),
            ("label party, of the helper", LABEL, HELPER),
            ("helper", HELPER, FEATURE),
        )
    },
    "run by similarity: training, label party": PartnerWait(
        who=LABEL, command="run", stuck_at="CutEmbedding:3", job="similarity", stuck=FEATURE
    ),
    **{
        f"run of three parties: {phase}, {seat}": PartnerWait(
            who=who, command="run", stuck_at=stuck_at, job="three parties", stuck=THIRD
        )
        for phase, stuck_at in (("alignment", "phase:alignment"), ("training", "CutEmbedding:3"))
        for seat, who in (("label party", LABEL), ("other feature party", FEATURE))
    },
    **{
        f"overlap: {what}, {seat}": PartnerWait(who=who, command="overlap", stuck_at=stuck_at, job="overlap")
        for what, seat, who, stuck_at in (
            ("handshake", "label party", LABEL, "Greeting:1"),
            ("the key", "feature party", FEATURE, "CoinCommitment:1"),
            ("a store", "label party", LABEL, "ProgrammedStore:1"),
            ("the groups", "feature party", FEATURE, "ProgrammedTable:1"),
            ("the counts", "label party", LABEL, "OverlapCounts:1"),
        )
    },
    **{
        f"run on shares: {what}, {seat}": PartnerWait(who=who, command="run", stuck_at=stuck_at, job="shares", stuck=stuck)
        for what, seat, who, stuck, stuck_at in (
            ("features", "label party", LABEL, FEATURE, "FeatureCount:1"),
            ("seeds", "feature party, of the helper", FEATURE, HELPER, "Correction:1"),
            ("steps", "label party", LABEL, FEATURE, "MaskedWeights:3"),
            ("steps", "feature party", FEATURE, LABEL, "MaskedErrors:3"),
            ("steps", "label party, of the helper", LABEL, HELPER, "Correction:4"),
            ("sizes", "helper", HELPER, LABEL, "HeadSizes:1"),
            ("scores", "label party", LABEL, FEATURE, "ScoreShares:1"),
            ("that shares are kept", "feature party", FEATURE, LABEL, "SharesKept:2"),
        )
    },
    "serve: feature party, a question": PartnerWait(who=FEATURE, command="serve", stuck_at="RowQuestion:2", idle=True),
}
JOBS: dict[str, Values] = {
    "union": LINKAGES["union"],
    "similarity": LINKAGES["similarity"],
    "three parties": {f"parties__{THIRD}": {"role": "feature"}},
    "overlap": {"overlap": {}},
    "shares": {
        "training": {"gradients": "shared", "epochs": 2, "batch_size": 32},
        "model": {},
        "parties__helper": {"role": "helper"},
    },
}
HAPPENS = (
    "SIGTERM",
    "SIGINT",
    "SIGTERM beside a stopped partner",
    "the partner is stopped",
    "the partner is killed",
    "the partner keeps its heartbeats alone",
    "the partner never comes",
)


def _can_happen(wait: PartnerWait, happens: str) -> bool:
    if wait.stuck_at is None:
        return happens in ("SIGTERM", "SIGINT") or (happens == "the partner never comes" and wait.command != "serve")
    return happens != "the partner never comes" and not (wait.idle and happens == "the partner keeps its heartbeats alone")


CASES = [(what, happens) for what, happens in product(WAITS, HAPPENS) if _can_happen(WAITS[what], happens)]


class Waits(ProcessCampaign):
    """Campaign of waits. Its fixture is the fork server, and a trained job to predict and serve with."""

    name = "waits"
    count = len(CASES)
    title = "Waits for a partner"
    meaning = (
        "withstood: the process ended, or named the silence, within the seconds that it states. slowest: seconds from the "
        "signal, or from the moment in which the partner got stuck, to the end or to that line."
    )

    def measure(self) -> None:
        """Train the job to predict and serve with."""
        self._contract = contract(
            serving={"ways": ["key"]}, tuning={"trials": 2, "keys": {"training.learning_rate": {"low": 0.001, "high": 0.1}}}
        )
        began, address = time.monotonic(), f"127.0.0.1:{free_port()}"
        self._trained = lay_out(self._scratch / "trained", self._contract, self._frames, listen=address)
        for name in PARTIES:
            self._change(self._trained, name, tuning={"allow": ["training.learning_rate"]})
        self._change(self._trained, LABEL, serving={"token_file": "tokens", "listen": "127.0.0.1:1"})
        (self._trained.home(LABEL) / "tokens").write_text("a-token-of-some-length\n")
        ended_well({name: self.start(self._trained, name) for name in PARTIES})
        self._grace_s = max(GRACE_S, time.monotonic() - began)
        self._laid_out = {job: self._of_job(job, changes, address) for job, changes in JOBS.items()}

    def _of_job(self, job: str, changes: Values, address: str) -> Homes:
        frames = frames_of(job)
        frames[THIRD] = frames[FEATURE]
        homes = lay_out(self._scratch / f"of {job}", contract(**changes), frames, listen=address)
        if job == "similarity":
            by_place(homes)
        if job == "shares":
            for name in PARTIES:
                self._change(homes, name, peers={**homes.party(name).get("peers", {}), HELPER: {"address": HELPER_LISTENS}})
        return homes

    def facts(self) -> dict[str, Any]:
        """Return the facts of the campaign for its page."""
        return {"deadline_s": DEADLINE_S, "quiet_s": QUIET_S, "grace_s": round(self._grace_s, 2)}

    def case(self, number: int) -> CaseOutcome:
        """Run one case."""
        return self.played(number, *CASES[number % len(CASES)])

    def played(self, number: int, what: str, happens: str) -> CaseOutcome:
        """Run a case of this wait and this event."""
        wait = WAITS[what]
        how = "stopped" if happens in ("SIGTERM beside a stopped partner", "the partner is stopped") else "silent"
        how = "killed" if happens == "the partner is killed" else how
        with self._waiting(number, wait, how) as process:
            began = time.monotonic()
            if happens.startswith("SIG"):
                process.signal(signal.SIGINT if happens == "SIGINT" else signal.SIGTERM)
                bound = SERVE_END_S if wait.command == "serve" else FAREWELL_S + self._grace_s
                seconds, line = _until(process, began, lambda: process.code is not None)
            else:
                silent_s = QUIET_S if wait.stuck_at else WAIT_S
                bound = (silent_s if how == "silent" else DEADLINE_S) + self._grace_s
                before = len(process.said)
                seconds, line = _until(process, began, lambda: _names_it(process.said[before:]))
            failure = "" if seconds is not None and seconds <= bound else LATE
            if "Traceback" in process.said:
                failure = "a traceback"
        return outcome_of(
            number,
            f"{what}, {happens}",
            line,
            "withstood",
            seconds=seconds if seconds is not None else PATIENCE_S,
            failure=failure,
            detail=f"code {process.code}; bound {bound:.1f} s; said: {line}",
        )

    @contextmanager
    def _waiting(self, number: int, wait: PartnerWait, how: str) -> Iterator[Process]:
        """Yield the process that waits, once its partner is stuck."""
        of_job = self._laid_out.get(wait.job, self._trained)
        homes = copy_of_homes(of_job, self._scratch / f"waits-{number}-{os.urandom(4).hex()}")
        if wait.command == "serve":
            self._change(homes, LABEL, serving={"token_file": "tokens", "listen": f"127.0.0.1:{free_port()}"})
        if wait.command not in ("predict", "serve"):
            for name in homes.parties():
                shutil.rmtree(homes.home(name) / "runs", ignore_errors=True)
        arguments = [wait.command, "contract.yaml", "--party", "party.yaml", "--progress", "plain"]
        output = ["--output", "scores.csv"] if wait.command == "predict" else []

        def of(name: str) -> list[str]:
            return arguments + output * (name == LABEL)

        started = []
        try:
            process = self.fork_server.start(wait.who, "tallystick", of(wait.who), homes.home(wait.who))
            started.append(process)
            for name in set(homes.parties()) - {wait.who, wait.partner}:
                started.append(self.fork_server.start(name, "tallystick", of(name), homes.home(name)))
            if wait.stuck_at is None:
                _until(process, time.monotonic(), lambda: "waiting for" in process.said)
            else:
                given = [how, wait.stuck_at, *of(wait.partner)]
                partner = self.fork_server.start(wait.partner, "tallystick_robustness.stuck", given, homes.home(wait.partner))
                started.append(partner)
                mark = homes.home(wait.partner) / MARK
                if _until(partner, time.monotonic(), mark.exists)[0] is None:
                    last_lines = f"{partner.line}; {process.line}"
                    raise TallystickError(f"{wait.command}: {wait.partner} got not stuck at {wait.stuck_at}: {last_lines}")
            time.sleep(SETTLES_S)
            yield process
        finally:
            for each in started:
                each.kill()
            shutil.rmtree(homes.root, ignore_errors=True)

    @staticmethod
    def _change(homes: Homes, name: str, **values: Any) -> None:
        homes.write_party(name, {**homes.party(name), **values})


def _names_it(said: str) -> bool:
    """Tell whether a text names a partner that is silent, that waits for another, or from which nothing was heard."""
    words = ("is there, and", "nothing heard for", "the partners are late")
    return any(word in said for word in words)


def _until(process: Process, began: float, done: Callable[[], bool]) -> tuple[float | None, str]:
    """Return the seconds until it is done, or None if it takes longer than PATIENCE_S, and the last line at that time."""
    while time.monotonic() < began + PATIENCE_S:
        if done():
            return time.monotonic() - began, process.line
        if process.code is not None:
            return (time.monotonic() - began if done() else None), process.line
        time.sleep(0.05)
    return None, process.line
