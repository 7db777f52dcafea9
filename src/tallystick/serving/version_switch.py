"""Switch a label party from one version to another while it serves.

Every LOOK_S, independent of requests, the label party tells the partners which runs it wants loaded, each with the hash of all
halves, and learns what they have promoted and loaded. The newest run that all promoted is loaded beside the one in use. When
all sides have it, new requests use it, and earlier requests are answered by the run in use when they came.

- At most three runs are loaded: the one in use, the promoted one before it, and a candidate. During a switch, the next run
  replaces the one before.
- A request may name one of the first two: ``run_id`` beside ``rows``, or the header ``x-run-id`` with Arrow. Another id is a
  404. A run that a side has not loaded, or a candidate, is a 409. Both answers say which runs are served.
- A feature party that withdraws a run still answers for it during 30 seconds, so that the label party can switch to the one
  before.
- The alignment and the windows are the same for all runs. With ``ahead``, the new run's embeddings cross in pieces before it
  scores.
- All this runs in a separate thread, which waits for no batch. With ``ahead`` a partner sees only these messages. Each is sent
  up to a quarter of LOOK_S late, at random: a single request does not show, but many may show how busy the machine is.
- A run of another contract text does not count as a version. With ``--run``, and if the feature party asks, a side keeps the run
  that it began with.

Threat model: honest-but-curious parties. Not protected: a partner can say that a run is loaded, and answer with another run's
embeddings; an embedding does not show which model made it.
"""

import math
import secrets
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tallystick.errors import PeerError, printable
from tallystick.job.handshake import common_versions
from tallystick.job.versions import Versions
from tallystick.network.channel import Channel
from tallystick.scoring.asking import AskAhead, Asking, Refused
from tallystick.scoring.scoring_messages import RowQuestion
from tallystick.serving.loaded_runs import AGAIN_S, LOOK_S, MOST_LOADED, LoadedRuns
from tallystick.serving.served_runs import RunsNow, ServedRun, ServedRuns
from tallystick.serving.serving_messages import VersionsHeld, VersionsWanted, WantedRun


def draw_lateness() -> float:
    """Draw the delay of a look, in seconds."""
    return secrets.SystemRandom().uniform(0.0, LOOK_S / 4)


Building = Generator[None, None, Asking]
"""Makes a way of asking, one step between two batches. Raises Refused."""


@dataclass(kw_only=True)
class Switching:
    """The label party's part of switching versions in a session.

    Args:
        party: this party's name.
        channels: to the partners, by name.
        versions: this party's promotions.
        runs: the loaded runs.
        served: the runs that requests see.
        begun: the run that the handshake chose, and its version.
        building: starts to build a way of asking for a run's rows.
        turn: returns a lock to hold while this side talks to partners: batches use the same channels.
        say: gets messages.
        within_s: how long to wait for a partner's list; None waits without limit.
        lateness: draws the delay of a look in seconds, less than LOOK_S.
    """

    party: str
    channels: Mapping[str, Channel]
    versions: Versions
    runs: LoadedRuns[ServedRun]
    served: ServedRuns
    begun: WantedRun
    building: Callable[[ServedRun], Building]
    turn: Callable[[], AbstractContextManager[object]]
    say: Callable[[str], None]
    within_s: float | None = None
    lateness: Callable[[], float] = draw_lateness
    askings: dict[str, Asking] = field(default_factory=dict, init=False)
    _wanted: tuple[WantedRun, ...] = field(init=False)
    _being_built: dict[str, Building] = field(default_factory=dict, init=False)
    _unusable: dict[str, float] = field(default_factory=dict, init=False)
    _said: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._wanted = (self.begun,)

    def begin(self, run: ServedRun) -> None:
        """Build the way of asking for the first run completely, and use it."""
        building = self.building(run)
        while self._step(run.run_id, building):
            pass
        self._use(run)

    def keep_up(
        self, over: threading.Event, *, now: Callable[[], float] = time.monotonic, wait: Callable[[float], object] | None = None
    ) -> None:
        """Look at versions every LOOK_S, with a random delay, until ``over`` is set, and build between two looks.

        A look is skipped if another look or a step of building takes longer. ``wait`` waits this many seconds, or until
        ``over`` is set.
        """
        began, looks, late_s = now(), 0, 0.0
        while not over.is_set():
            ahead_s = began + looks * LOOK_S + late_s - now()
            if ahead_s > 0 and not self._being_built:
                (wait or over.wait)(ahead_s)
                continue
            if ahead_s <= 0:
                self._look()
                looks, late_s = looks + 1, self.lateness()
            else:
                run_id, building = next(iter(self._being_built.items()))
                why = ""
                try:
                    goes_on = self._step(run_id, building)
                except Refused as error:
                    goes_on, why = False, str(error)
                asking = self.askings.get(run_id)
                if isinstance(asking, AskAhead) and asking.is_over_budget:
                    del self.askings[run_id]
                    why = "the budget of the day does not allow all of its rows"
                if why:
                    self._unusable[run_id] = time.monotonic() + AGAIN_S
                    self._tell(run_id, f"run {run_id} cannot be asked: {why}; versions stay as they are")
                if not goes_on:
                    del self._being_built[run_id]
                    self._look()
            looks = max(looks, math.floor((now() - began) / LOOK_S) + 1)

    def _look(self) -> None:
        with self.turn():
            for channel in self.channels.values():
                channel.send(RowQuestion(number=0, versions=True))
                channel.send(VersionsWanted(runs=self._wanted))
            versions_held = {
                name: channel.receive(VersionsHeld, within_s=self.within_s) for name, channel in self.channels.items()
            }
        own = self.runs.promoted
        lists = {self.party: own.halves, **{name: each.promoted for name, each in versions_held.items()}}
        common = {
            run_id: version for run_id, version in common_versions(own.halves, lists).items() if self._agree(run_id, version)
        }
        candidate = self._candidate(versions_held)
        # switch to the newest run that all promoted, if it can be asked
        newest = next(iter(common), None)
        in_use = self.served.now.current.run_id
        if newest is not None and newest != in_use and newest in self.askings:
            self._use(self.runs[newest])
            in_use = newest
        target = newest or in_use
        version_of_run = {each.run_id: each.version for each in (self.begun, *self._wanted)} | common | candidate
        order = dict.fromkeys([in_use, target, *candidate, *list(common)[:2]])
        ids = [run_id for run_id in order if run_id in version_of_run][:MOST_LOADED]
        waited_for = [run.run_id for run in self.runs.loaded if run.users.any]  # locally; a partner learns it at the next look
        for run_id in [run_id for run_id in self.askings if run_id not in (*ids, *waited_for)]:
            del self.askings[run_id]
        ids_of_party = {name: [half.run_id for half in halves] for name, halves in lists.items()}
        newest_ids = dict.fromkeys(found[0] for found in ids_of_party.values() if found)
        lacking = {run_id: tuple(name for name, found in ids_of_party.items() if run_id not in found) for run_id in newest_ids}
        missing = {run_id: names for run_id, names in lacking.items() if names}
        usable = {run.run_id: run for run in self.runs.loaded if run.run_id in self.askings}
        current = self.served.now.current
        before = next((usable[run_id] for run_id in list(common)[:2] if run_id in usable and run_id != current.run_id), None)
        beside = next((usable[run_id] for run_id in candidate if run_id in usable and run_id != current.run_id), None)
        self.served.now = RunsNow(current=current, before=before, candidate=beside, missing=missing)
        for run_id, parties in missing.items():
            self._tell(
                run_id, f"run {run_id} waits until {' and '.join(parties)} has promoted it; run {current.run_id} stays in use"
            )
        self._wanted = tuple(WantedRun(run_id=run_id, version=version_of_run[run_id]) for run_id in ids)
        self.runs.want(ids)
        # start to build ways of asking for the runs that all sides have loaded
        run_ids = [run_id for run_id in ids if all(run_id in each.loaded for each in versions_held.values())]
        loaded, now = {run.run_id: run for run in self.runs.loaded}, time.monotonic()
        for run_id in run_ids:
            is_new = run_id not in self.askings and run_id not in self._being_built
            if is_new and run_id in loaded and now >= self._unusable.get(run_id, now):
                self._being_built[run_id] = self.building(loaded[run_id])
        for run_id in [run_id for run_id in self._being_built if run_id not in run_ids]:
            del self._being_built[run_id]
        for name, each in versions_held.items():
            for run_id in each.failed:
                self._tell(f"{name} {run_id}", f"{name} cannot load run {run_id}; its log says why")

    def _agree(self, run_id: str, version: str) -> bool:
        """Save the version of a run. Return False if it differs from the saved one."""
        if any(each.run_id == run_id and each.version == version for each in self._wanted):
            return True
        try:
            self.versions.agree(run_id, version, next(iter(self.channels)))
        except PeerError as error:
            self._tell(run_id, str(error))
            return False
        return True

    def _candidate(self, versions_held: Mapping[str, VersionsHeld]) -> dict[str, str]:
        """Return the candidate and its version if all have named it, else an empty dict."""
        own = self.runs.promoted.candidate
        if own is None:
            return {}
        lists = {self.party: (own,)}
        lists.update({name: (each.candidate,) for name, each in versions_held.items() if each.candidate is not None})
        if len(lists) <= len(versions_held):
            lacking = " and ".join(name for name in versions_held if name not in lists)
            self._tell("candidate", f"run {own.run_id} is a candidate here, and not yet of {lacking}")
            return {}
        common_runs = common_versions((own,), lists)
        if not common_runs:
            self._tell("candidate", f"run {own.run_id} is a candidate here, and another one elsewhere; name one on all sides")
        return {run_id: version for run_id, version in common_runs.items() if self._agree(run_id, version)}

    def _step(self, run_id: str, building: Building) -> bool:
        """Do one step. Return False when it is finished."""
        try:
            next(building)
        except StopIteration as end:
            self.askings[run_id] = end.value
            return False
        return True

    def _use(self, run: ServedRun) -> None:
        before = self.served.now.current
        self.served.now = RunsNow(current=run, missing=self.served.now.missing)
        if before is not run:
            self.say(f"run {run.run_id} scores from now on, in place of run {before.run_id}")

    def _tell(self, about: str, text: str) -> None:
        if self._said.get(about) != text:
            self._said[about] = text
            self.say(printable(text))
