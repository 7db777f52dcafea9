"""Kill, interrupt or stop real processes over real TLS at random moments, then resume them.

A case runs a job, disturbs it by its plan, and follows the advice that the surviving side printed until both sides end well. It
then compares both sides' weights with the undisturbed run's, bit for bit.
"""

import random
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from tallystick.errors import TallystickError
from tallystick.network.addresses import free_port
from tallystick_robustness.fixture_job import DEADLINE_S, FEATURE, LABEL, PARTIES, WAIT_S, Homes
from tallystick_robustness.outcome import CaseOutcome, outcome_of
from tallystick_robustness.processes import GRACE_S, PATIENCE_S, ROWS, Process, ProcessCampaign, ended_well, problems_of

LOADING_S = (0.3, 3.0)  # during which a process loads the product's modules, and no longer Python's own
LATEST = 1.15  # latest kill, as a share of the undisturbed run's time: some come after its end
TURNS = 4  # runs after the disturbed one in which both sides must end well

_KINDS = {
    # Each kind of disturbance, with its share of a hundred cases
    "SIGKILL": 22,
    "SIGKILL both": 8,
    "SIGKILL at a file": 24,
    "SIGINT": 10,
    "SIGTERM": 10,
    "SIGTERM both": 4,
    "SIGSTOP, then SIGCONT": 9,
    "SIGSTOP, then SIGKILL": 7,
    "a short SIGSTOP": 6,
    "SIGINT while modules load": 4,
    "SIGTERM while modules load": 4,
}


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """Keep figures of a run without disturbances."""

    digests: dict[str, str]
    seconds: float
    files: dict[str, int]  # per party, how often it changed a file or a folder

    @property
    def grace_s(self) -> float:
        """Return the seconds that a process may take after the deadline, on a machine this busy."""
        return max(GRACE_S, self.seconds)


@dataclass(frozen=True, kw_only=True)
class KillPlan:
    """Plan what happens to a run, and when."""

    kind: str
    victim: str
    at: float  # share of the undisturbed run
    stopped_s: float = 0.0

    @classmethod
    def draw(cls, draw: random.Random) -> "KillPlan":
        """Draw a plan."""
        (kind,) = draw.choices(list(_KINDS), list(_KINDS.values()))
        stopped = draw.uniform(0.2, 0.5) * DEADLINE_S if kind == "a short SIGSTOP" else DEADLINE_S * draw.uniform(1.4, 2.0)
        return cls(kind=kind, victim=draw.choice(PARTIES), at=draw.uniform(0, LATEST), stopped_s=stopped)

    @property
    def loads(self) -> bool:
        """Tell whether the victim is hit while it loads its modules."""
        return self.kind.endswith("while modules load")

    @property
    def hits(self) -> tuple[str, ...]:
        """List the parties that are hit."""
        return PARTIES if self.kind.endswith("both") else (self.victim,)


@dataclass(kw_only=True)
class _Seen:
    """Collect what was seen of a case's runs."""

    problems: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    to_exit_s: float | None = None
    detours: int = 0


class Kills(ProcessCampaign):
    """Campaign of kills. Its fixture is the fork server and the undisturbed run."""

    name, count = "kills", 200
    title = "Kills, then --resume"
    meaning = (
        "withstood: after the --resume (or new start) that the surviving side advised both sides' weights are the undisturbed "
        "run's, bit for bit; every process that was not killed ended in time with one clean line. slowest: seconds from the "
        "death to the other side's exit, or of the whole case."
    )

    def measure(self) -> None:
        """Run the job undisturbed."""
        self._undisturbed = self._measured()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the campaign for its page."""
        return {
            "rows": ROWS,
            "deadline_s": DEADLINE_S,
            "undisturbed_s": round(self._undisturbed.seconds, 2),
            "bound_from_death_to_exit_s": round(DEADLINE_S + self._undisturbed.grace_s, 2),
        }

    def plans(self, number: int) -> list[KillPlan]:
        """Draw the disturbances of a case: one for the first run and, in a third of all cases, one for the resumed run."""
        draw = self.draw(number)
        return [KillPlan.draw(draw) for _ in range(2 if draw.random() < 1 / 3 else 1)]

    def case(self, number: int) -> CaseOutcome:
        """Run one case."""
        plans = self.plans(number)
        started, observations = time.monotonic(), _Seen()
        with self.job(number, listen=f"127.0.0.1:{free_port()}") as homes:
            self._follow(homes, plans, observations)
        how = ", then in the resumed run ".join(f"{plan.kind} of {'/'.join(plan.hits)} at {plan.at:.2f}" for plan in plans)
        exit_ = f"; exit {observations.to_exit_s:.1f} s after the death" if observations.to_exit_s is not None else ""
        return outcome_of(
            number,
            plans[0].kind + (", again when resumed" if len(plans) > 1 else ""),
            how,
            "withstood",
            seconds=observations.to_exit_s if observations.to_exit_s is not None else time.monotonic() - started,
            failure=observations.problems[0] if observations.problems else "",
            detail=(
                f"{'; '.join(observations.problems)}{exit_}; detours: {observations.detours}; "
                f"said: {' | '.join(observations.lines)}"
            )[:3000],
        )

    def _measured(self) -> Undisturbed:
        with self.job("undisturbed", listen=f"127.0.0.1:{free_port()}") as homes:
            began = time.time()  # noqa: TID251  # to compare with what the file system wrote down
            tallies = {name: homes.root / f"{name}.tally" for name in PARTIES}
            ended_well({name: self.start(homes, name, tally=str(tallies[name])) for name in PARTIES})
            return Undisturbed(
                digests=homes.digests(),
                # Until the reports are written: after that the interpreter only ends, and a signal can do little harm.
                seconds=max(report.stat().st_mtime for report in homes.root.glob("*/runs/*/report.html")) - began,
                files={name: tallies[name].stat().st_size for name in PARTIES},
            )

    def _loading_s(self) -> float:
        """Measure the seconds in which a process that loads everything itself loads and ends."""
        began = time.monotonic()
        if not self.fork_server.start("cold", "tallystick", ["--version"], self._scratch, cold=True).wait(began + PATIENCE_S):
            raise TallystickError("`tallystick --version` does not end")
        return time.monotonic() - began

    def _follow(self, homes: Homes, plans: list[KillPlan], seen: _Seen) -> None:
        """Run with the planned disturbances, and continue as advised until both sides have ended well."""
        resume = False
        for turn in range(len(plans) + TURNS):
            plan = plans[turn] if turn < len(plans) else None
            running = self._run(homes, plan, resume=resume, seen=seen)
            if seen.problems:
                return
            if all(process.code == 0 for process in running.values()):
                if plan is None or turn == len(plans) - 1:
                    break
                return  # the run was over before the next plan's turn
            if plan is None:
                seen.detours += 1
            resume = _advice(homes, running, resume=resume)
        else:
            seen.problems.append("the advice leads in circles")
            return
        if problem := self.other_weights(homes):
            seen.problems.append(problem)

    def other_weights(self, homes: Homes) -> str:
        """Say whose weights differ from the undisturbed run's. It is empty if none do."""
        different = [name for name in PARTIES if homes.digest(name) != self._undisturbed.digests[name]]
        return f"other weights than the undisturbed run's: {', '.join(different)}" if different else ""

    def _run(self, homes: Homes, plan: KillPlan | None, *, resume: bool, seen: _Seen) -> dict[str, Process]:
        options: dict[str, dict[str, Any]] = {name: {} for name in PARTIES}
        if plan is not None and plan.kind == "SIGKILL at a file":
            options[plan.victim] = {"die_at": 1 + int(plan.at / LATEST * self._undisturbed.files[plan.victim])}
        if plan is not None and plan.loads:
            options[plan.victim] = {"cold": True}
        running = {name: self.start(homes, name, resume=resume, **options[name]) for name in PARTIES}
        dead_at = _disturb(plan, running, self._undisturbed.seconds) if plan is not None else None
        seen.problems += problems_of(running)
        seen.lines += [f"{process.name}: {process.line[:300]}" for process in running.values() if process.line]
        if dead_at is not None and plan is not None:
            self._judge_time(plan, running, dead_at, seen)
        return running

    def _judge_time(self, plan: KillPlan, running: dict[str, Process], dead_at: float, seen: _Seen) -> None:
        """Compare the time from a death to the other side's exit with the deadline, or with wait_s if they had not met.

        A process may have begun to wait for a peer only after the death. A process that loads its modules ends after it has
        loaded them. A machine that was quiet at the beginning may be busy now, so before an exit counts as late, the undisturbed
        run is timed again.
        """
        if plan.kind == "a short SIGSTOP":
            return
        for process in running.values():
            if process.code in (0, None, -signal.SIGKILL):
                continue
            took = (process.ended or 0.0) - dead_at
            seen.to_exit_s = max(took, seen.to_exit_s or 0.0)
            met = "did not come up" not in process.said
            if took <= _bound(self._undisturbed, met=met):
                continue
            bound = _bound(self._measured(), met=met) + (self._loading_s() if plan.loads else 0.0)
            if took > bound:
                seen.problems.append("exit later than the deadline and what a process takes to end")
                seen.lines.append(f"{process.name} took {took:.1f} s, more than {bound:.1f} s")


def _bound(undisturbed: Undisturbed, *, met: bool) -> float:
    return (DEADLINE_S if met else WAIT_S + undisturbed.seconds) + undisturbed.grace_s


def _disturb(plan: KillPlan, running: dict[str, Process], seconds: float) -> float | None:
    """Disturb the processes by the plan. Return the moment of the last death or goodbye, or None if nobody was hit in time."""
    hit = [running[name] for name in plan.hits]
    if plan.kind == "SIGKILL at a file":
        hit[0].wait(time.monotonic() + PATIENCE_S)
        return hit[0].ended if hit[0].code == -signal.SIGKILL else None
    if plan.kind.startswith(("SIGINT", "SIGTERM")):
        for process in hit:
            process.await_handlers()
    time.sleep(LOADING_S[0] + plan.at * (LOADING_S[1] - LOADING_S[0]) if plan.loads else plan.at * seconds)
    if all(process.code is not None for process in running.values()):
        return None
    if plan.kind.startswith("SIGKILL"):
        for process in hit:
            process.signal(signal.SIGKILL)
    elif "SIGSTOP" in plan.kind:
        hit[0].signal(signal.SIGSTOP)
        stopped = time.monotonic()
        time.sleep(plan.stopped_s)
        hit[0].signal(signal.SIGKILL if plan.kind.endswith("SIGKILL") else signal.SIGCONT)
        if plan.kind.endswith("SIGKILL"):
            return stopped
    else:
        number = signal.SIGINT if plan.kind.startswith("SIGINT") else signal.SIGTERM
        for process in hit:
            process.signal(number)
    return time.monotonic()


def _advice(homes: Homes, running: dict[str, Process], *, resume: bool) -> bool:
    """Tell whether to continue with --resume: by the words of the sides that could still speak, or by the run folders."""
    words = " ".join(process.said for process in running.values())
    if "without --resume" in words:
        return False
    if any(process.code in (2, 3) for process in running.values()):
        return "--resume" in words
    return resume or all(homes.latest(name) is not None for name in (LABEL, FEATURE))
