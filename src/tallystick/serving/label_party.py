"""Serve as the label party: HTTP for its clients, and a thread for the sessions with the feature parties."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.serving import Way
from tallystick.errors import ConfigError
from tallystick.job.handshake import shake_hands_label_party
from tallystick.network.channel import Channel
from tallystick.run_folder.trained import TrainedLabelParty
from tallystick.scoring.asking import AskAhead, AskByKey, AskByPosition, AskByWindow, Partners, longest_wait_s
from tallystick.scoring.batching import Batcher
from tallystick.scoring.scoring import Scorer
from tallystick.scoring.scoring_messages import WayOfAsking
from tallystick.serving.aligned_rows import own_places
from tallystick.serving.asking_side import answer_clients
from tallystick.serving.loaded_runs import LoadedRuns
from tallystick.serving.serving_messages import WantedRun
from tallystick.serving.side import ServingSide, Stop
from tallystick.serving.version_switch import Building, Switching
from tallystick.watcher import Watcher

if TYPE_CHECKING:
    from tallystick.serving.served_runs import ServedRun, ServedRuns

VERSIONS_S = 120.0
"""Limit, in seconds, for a partner's answer about its runs. On a union it first encodes its table for a new run."""


def serve_label_party(contract: Contract, party: PartyFile, *, table: str | None, run: str | None, watcher: Watcher) -> None:
    """Answer clients until the operator stops it.

    Raises ConfigError or DataError before a peer is called, if model, table or options are not usable, the contract allows no
    serving, the extra ``serve`` is not installed, or another process serves the same contract.
    """
    try:
        from tallystick.serving.http import ScoreServer, application, run_server
        from tallystick.serving.metrics import Metrics
        from tallystick.serving.served_runs import ServedRun, ServedRuns
        from tallystick.serving.shadow import Shadow
    except ImportError as error:
        raise ConfigError(f"serve: {error.name} is not installed; run: pip install 'tallystick[serve]'") from None
    side = ServingSide.of(contract, party, table=table, run=run, watcher=watcher)
    options, metrics, stopped = party.serving, Metrics(), Stop()
    way: Way = options.way or side.serving.ways[0]
    within_s = longest_wait_s(options.deadline_ms / 1000, contract.network.deadline_s)
    gate = side.gate(crosses=way != "ahead")
    shadow = Shadow(options.shadow, target=contract.target.type, gate=gate, comparisons=metrics)
    batcher = Batcher(
        gate=gate,
        patience_s=options.deadline_ms / 1000,
        most_waiting=options.max_waiting,
        gather_s=options.gather_ms / 1000,
        crosses=way != "ahead",
        observe=metrics.observe_batch,
        say=watcher.say,
    )

    def load(run_id: str, *, anew: bool = True) -> ServedRun:
        opened = side.open(run_id, anew=anew)
        return ServedRun.of(side, opened, Scorer.of(TrainedLabelParty.load(opened.folder, side.architecture)))

    with side.home.locked():
        runs = LoadedRuns(None if side.chosen else side.versions, load, say=watcher.say, follows=side.follows)
        first = load(side.first.run_id, anew=False)
        served = ServedRuns(first)
        runs.begin(first)

        def work(channels: dict[str, Channel], _leave: Callable[[], None]) -> None:
            lock = threading.Lock()

            @contextmanager
            def turn() -> Iterator[None]:
                with batcher.beside(), lock:
                    yield

            switching = _begun(side, way, channels, runs, served, lock=lock, turn=turn, within_s=within_s)
            partners = Partners.of_nothing([channels[name] for name in contract.feature_parties], lock, within_s=within_s)
            with _in_a_thread(switching.keep_up) as over:

                def between(is_idle: bool) -> bool:
                    return is_idle and shadow(switching.askings)

                batcher.serve(switching.askings, partners, lambda: stopped.is_set() or over.is_set(), between=between)
            partners.leave()

        scores = ScoreServer(options, batcher, served, metrics, say=watcher.say, shadow=shadow)
        server = run_server(application(scores), options)
        try:
            answer_clients(side, server, partial(side.in_rounds, work, stopped=stopped), stopped=stopped)
        finally:
            runs.close()


@contextmanager
def _in_a_thread(keep_up: Callable[[threading.Event], None]) -> Iterator[threading.Event]:
    """Run a function in a separate thread during this block.

    Yield an event that is set when the function ends, and raise the error that ended it.
    """
    over, failed = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            keep_up(over)
        except BaseException as error:  # the serving thread raises it
            failed.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=work, name="tallystick-switching")
    thread.start()
    try:
        yield over
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


def _begun(
    side: ServingSide,
    way: Way,
    channels: dict[str, Channel],
    runs: "LoadedRuns[ServedRun]",
    served: "ServedRuns",
    *,
    lock: threading.Lock,
    turn: Callable[[], AbstractContextManager[None]],
    within_s: float,
) -> Switching:
    """Begin a session with the run that all parties agree on."""
    contract, say = side.contract, side.watcher.say
    feature_channels = {name: channels[name] for name in contract.feature_parties}
    agreement = shake_hands_label_party(contract, side.resume_state(runs.promoted.halves), feature_channels, note=say)
    first_run = WantedRun(run_id=side.agreed(agreement, contract.feature_parties[0]), version=agreement.version or None)
    run = side.load_agreed(partial(runs.require, beside=[served.now.current.run_id]), first_run.run_id)
    for channel in feature_channels.values():
        channel.send(WayOfAsking(way=way))
    switching = Switching(
        party=side.party.party,
        channels=feature_channels,
        versions=side.versions,
        runs=runs,
        served=served,
        begun=first_run,
        building=_ways_of_asking(side, way, channels, run, lock, within_s),
        turn=turn,
        say=say,
        within_s=max(within_s, VERSIONS_S),
    )
    switching.begin(run)
    say(f"serving run {first_run.run_id}, asking {', '.join(feature_channels)} by {way}")
    return switching


def _ways_of_asking(
    side: ServingSide, way: Way, channels: dict[str, Channel], run: "ServedRun", lock: threading.Lock, within_s: float
) -> Callable[["ServedRun"], Building]:
    """Return a function that builds the agreed way of asking for a run's rows, over these sessions. All runs share one
    alignment.
    """
    alignment = side.align(channels, run.ids) if way != "key" else None
    places = own_places(side, alignment) if alignment is not None else {}
    feature_channels = [channels[name] for name in side.contract.feature_parties]

    def building(run: "ServedRun") -> Building:
        assert isinstance(run.scorer, Scorer), "a label party scores itself"
        partners = Partners(
            channels=feature_channels, widths=run.scorer.trained.widths, run=run.run_id, turn=lock, within_s=within_s
        )
        if way == "ahead":
            assert alignment is not None
            return (yield from AskAhead.building(partners, places, rows=len(alignment)))
        if way == "window":
            return AskByWindow.of(partners, places, size=side.serving.window, secret=side.home.secret())
        return AskByPosition(partners=partners, places=places) if way == "position" else AskByKey(partners=partners)

    return building
