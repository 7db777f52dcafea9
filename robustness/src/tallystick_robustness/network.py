"""Put a proxy between two real processes, which delays, cuts, silences or garbles their traffic.

If a fault leaves a connection within the deadline, the run must end with the undisturbed run's weights. If it does not, it must
end both sides within the deadline, each with one clean line.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from tallystick.network.addresses import free_port
from tallystick_robustness.fixture_job import DEADLINE_S, LABEL, PARTIES, Homes
from tallystick_robustness.outcome import CaseOutcome, outcome_of
from tallystick_robustness.processes import GRACE_S, ROWS, Process, ProcessCampaign, ended_well, problems_of
from tallystick_robustness.proxy import FaultPlan

RIDDEN_OUT = {
    # how long they last, in shares of the deadline; a stranger is one connection of 100
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


class NetworkFaults(ProcessCampaign):
    """Campaign of network faults. Its fixture is the fork server and the undisturbed run through an honest proxy."""

    name, count = "network", 100
    title = "Network faults between two processes"
    meaning = (
        "withstood: ridden out, to the undisturbed run's weights. refused: both sides ended in time, each with one clean line; "
        "only faults that leave no way may. slowest: seconds from the fault to the last exit."
    )

    def measure(self) -> None:
        """Run through an honest proxy. The moment of a fault is drawn from its traffic."""
        self._digests, self._passes, self._grace_s = self._measured()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the campaign for its page."""
        return {
            "rows": ROWS,
            "deadline_s": DEADLINE_S,
            "bytes_of_the_undisturbed_run": self._passes,
            "bound_from_fault_to_exit_s": round(DEADLINE_S + self._grace_s, 2),
        }

    def plan(self, number: int) -> FaultPlan:
        """Draw the plan of a case, without its ports."""
        draw = self.draw(number)
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
        """Run a case by a plan, and set the plan's ports."""
        with self._running(number, plan) as (homes, proxy, running):
            problems = problems_of(running)
            lines = proxy.out.read_text().splitlines() if proxy.out.exists() else []
            struck = float(json.loads(lines[0])["struck"]) if lines else None
            codes = [process.code for process in running.values()]
            seconds = max(process.ended or 0.0 for process in running.values()) - struck if struck is not None else 0.0
            problems = problems or self._judge(plan, homes, codes, struck, seconds)
        last_lines = " | ".join(f"{process.name}: {process.line[:300]}" for process in running.values() if process.line)
        return outcome_of(
            number,
            plan.kind if struck is not None else f"{plan.kind}, too late to strike",
            f"{plan.kind} after {plan.at_bytes} bytes ({plan.direction}), {plan.seconds:.2f} s",
            "withstood" if codes == [0, 0] else "refused",
            seconds=seconds,
            failure=problems[0] if problems else "",
            detail=f"{'; '.join(problems)}; codes {codes}; {seconds:.1f} s after the fault; said: {last_lines}"[:3000],
        )

    def _judge(self, plan: FaultPlan, homes: Homes, codes: list[int | None], struck: float | None, seconds: float) -> list[str]:
        if codes == [0, 0]:
            return [] if homes.digests() == self._digests else ["other weights than the undisturbed run's"]
        if plan.kind not in FATAL or struck is None:
            return [f"not ridden out: {plan.kind}"]
        if 0 in codes and homes.digests() != self._digests:
            return ["one side ended well although the other did not, with other weights"]
        if seconds <= DEADLINE_S + self._grace_s or seconds <= DEADLINE_S + self._measured()[2]:  # the machine may be busy now
            return []
        return ["exit later than the deadline and what a process takes to end"]

    @contextmanager
    def _running(self, mark: object, plan: FaultPlan) -> Iterator[tuple[Homes, Process, dict[str, Process]]]:
        """Run both parties with the proxy between them, and kill the proxy at the end."""
        target, port = free_port(), free_port()
        with self.job(mark, listen=f"127.0.0.1:{target}", call=f"127.0.0.1:{port}") as homes:
            text = json.dumps(msgspec.to_builtins(plan) | {"port": port, "target": target})
            proxy = self.fork_server.start("proxy", "tallystick_robustness.proxy", [text], homes.root)
            try:
                yield homes, proxy, {name: self.start(homes, name) for name in PARTIES}
            finally:
                proxy.kill()

    def _measured(self) -> tuple[dict[str, str], int, float]:
        """Return the undisturbed run's weights, the number of bytes that pass, and the seconds that it takes on this machine."""
        began = time.monotonic()
        with self._running("undisturbed", FaultPlan(port=0, target=0)) as (homes, _, running):
            ended_well(running)
            result_json = json.loads(next((homes.latest(LABEL) or homes.root).glob("result.json")).read_bytes())
            traffic = sum(
                phase["bytes_sent"] + phase["bytes_received"] for phase in result_json["phases"] if phase["party"] == LABEL
            )
            return homes.digests(), int(traffic), max(GRACE_S, time.monotonic() - began)
