"""Network faults: a proxy between two real processes delays, cuts, silences or garbles what passes.

A fault that leaves a way within the deadline must be ridden out, to the undisturbed run's weights; one that does not must end
both sides, each with one clean line, within the deadline.
"""

import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from tallystick.errors import TallystickError
from tallystick.network.addresses import free_port
from tallystick_robustness.fixture_job import DEADLINE_S, LABEL, PARTIES, Homes, contract, lay_out, tables
from tallystick_robustness.kills import GRACE_S, PATIENCE_S, ROWS
from tallystick_robustness.outcome import CaseOutcome
from tallystick_robustness.processes import ForkServer, Process
from tallystick_robustness.proxy import FaultPlan

RIDDEN_OUT = {
    # lasting how long, in shares of the deadline; a stranger is one connection of 100
    "delay": (0.05, 0.4),
    "a short silence": (0.4, 0.6),
    "cut": (0.0, 0.0),
    "reset": (0.0, 0.0),
    "half-close": (0.0, 0.0),
    "a corrupt byte": (0.0, 0.0),
    "slow drip": (0.5, 2.0),
    "the connection goes silent": (0.0, 0.0),
    "rebind": (0.1, 0.5),
    "late bytes of an old connection": (0.1, 0.5),
    "replay of the caller's bytes": (0.0, 0.0),
    "strangers": (20.0, 80.0),
}
FATAL = ("everything goes silent", "gone")


class NetworkFaults:
    """The campaign's fixture: processes to fork from, and the undisturbed run through an honest proxy."""

    parallel = 2

    def __init__(self, scratch: Path, *, seed: int, fork_server: ForkServer | None = None) -> None:
        """Start the fork_server, if there is none yet, and measure the undisturbed run."""
        self._scratch, self._seed = scratch, seed
        self._frames = tables(ROWS)
        self._contract = contract()
        self._zygote = fork_server or ForkServer(scratch)
        try:
            self._digests, self._passes, self._grace_s = self._measure()
        except BaseException:
            if fork_server is None:  # another's goes on
                self._zygote.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._zygote.close()

    def facts(self) -> dict[str, Any]:
        """What a reader must know of it."""
        return {
            "rows": ROWS,
            "deadline_s": DEADLINE_S,
            "bytes_of_the_undisturbed_run": self._passes,
            "bound_from_fault_to_exit_s": round(DEADLINE_S + self._grace_s, 2),
        }

    def plan(self, number: int) -> FaultPlan:
        """Draw the plan of a case, without its ports."""
        draw = random.Random(f"{self._seed}/network/{number}")  # noqa: S311 - which fault comes when is no secret
        kind = draw.choice([*RIDDEN_OUT, *FATAL])
        low, high = RIDDEN_OUT.get(kind, (0.0, 0.0))
        seconds = DEADLINE_S * draw.uniform(low, high)
        direction = "up" if kind in ("late bytes of an old connection", "strangers") else draw.choice(["up", "down"])
        return FaultPlan(
            port=0, target=0, kind=kind, at_bytes=int(draw.random() * self._passes), seconds=seconds, direction=direction
        )

    def case(self, number: int) -> CaseOutcome:
        """Run one case."""
        return self.played(number, self.plan(number))

    def played(self, number: int, plan: FaultPlan) -> CaseOutcome:
        """Run a case by a plan; its ports are set here."""
        folder = Path(tempfile.mkdtemp(prefix=f"net-{number}-", dir=self._scratch))
        try:
            return self._case(number, plan, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _case(self, number: int, plan: FaultPlan, folder: Path) -> CaseOutcome:
        homes, proxy, running = self._start(folder, plan)
        until = time.monotonic() + PATIENCE_S
        try:
            for process in running.values():
                process.wait(until)
        finally:
            proxy.kill()
        problems = []
        for process in running.values():
            if process.code is None:
                process.kill()
                problems.append(f"a process that does not end: {process.name}")
            elif problem := process.problem():
                problems.append(problem)
        struck = _struck(proxy)
        codes = [process.code for process in running.values()]
        ended = max(process.ended or 0.0 for process in running.values())
        seconds = ended - struck if struck is not None else 0.0
        if not problems:
            problems = self._judge(plan, homes, codes, struck, seconds)
        lines = [f"{process.name}: {process.line[:300]}" for process in running.values() if process.line]
        return CaseOutcome(
            case=number,
            what=plan.kind if struck is not None else f"{plan.kind}, too late to strike",
            how=f"{plan.kind} after {plan.at_bytes} bytes ({plan.direction}), {plan.seconds:.2f} s",
            ended="failed" if problems else "withstood" if codes == [0, 0] else "refused",
            seconds=seconds,
            failure=problems[0] if problems else "",
            detail=f"{'; '.join(problems)}; codes {codes}; {seconds:.1f} s after the fault; said: {' | '.join(lines)}"[:3000],
        )

    def _judge(self, plan: FaultPlan, homes: Homes, codes: list[int | None], struck: float | None, seconds: float) -> list[str]:
        if codes == [0, 0]:
            return [] if homes.digests() == self._digests else ["other weights than the undisturbed run's"]
        if plan.kind not in FATAL or struck is None:
            return [f"not ridden out: {plan.kind}"]
        if 0 in codes and homes.digests() != self._digests:
            return ["one side ended well although the other did not, with other weights"]
        if seconds <= DEADLINE_S + self._grace_s or seconds <= DEADLINE_S + self._measure()[2]:  # the machine may be busy now
            return []
        return ["exit later than the deadline and what a process takes to end"]

    def _start(self, folder: Path, plan: FaultPlan) -> tuple[Homes, Process, dict[str, Process]]:
        target, port = free_port(), free_port()
        listen, call = f"127.0.0.1:{target}", f"127.0.0.1:{port}"
        homes = lay_out(folder, self._contract, self._frames, listen=listen, call=call)
        text = json.dumps(msgspec.to_builtins(plan) | {"port": port, "target": target})
        proxy = self._zygote.start("proxy", "tallystick_robustness.proxy", [text], folder)
        arguments = ["run", "contract.yaml", "--party", "party.yaml", "--progress", "none", "--json"]
        running = {name: self._zygote.start(name, "tallystick", arguments, homes.home(name)) for name in PARTIES}
        return homes, proxy, running

    def _measure(self) -> tuple[dict[str, str], int, float]:
        """Run through an honest proxy: its traffic is what a fault's place is drawn from, its time what the machine takes."""
        began = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="undisturbed-", dir=self._scratch))
        homes, proxy, running = self._start(folder, FaultPlan(port=0, target=0))
        for process in running.values():
            if not process.wait(time.monotonic() + PATIENCE_S) or process.code != 0:
                proxy.kill()
                raise TallystickError(f"the undisturbed run of {process.name} failed: {process.line or 'it does not end'}")
        proxy.kill()
        found = json.loads(next((homes.latest(LABEL) or folder).glob("result.json")).read_bytes())
        traffic = sum(phase["bytes_sent"] + phase["bytes_received"] for phase in found["phases"] if phase["party"] == LABEL)
        return homes.digests(), int(traffic), max(GRACE_S, time.monotonic() - began)


def _struck(proxy: Process) -> float | None:
    lines = proxy.out.read_text().splitlines() if proxy.out.exists() else []
    return float(json.loads(lines[0])["struck"]) if lines else None
