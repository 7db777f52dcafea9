"""The label party that serves: HTTP for its clients, and behind it a thread with the feature parties."""

import threading
from collections.abc import Callable

from tallystick.artifacts.trained import TrainedLabelParty
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.serving import Way
from tallystick.disclosure import serving_lines
from tallystick.errors import ConfigError
from tallystick.job.handshake import shake_hands_label_party
from tallystick.network.channel import Channel
from tallystick.online.aligned_rows import own_places
from tallystick.online.side import ServingSide
from tallystick.serving.asking import AskAhead, AskByKey, AskByPosition, AskByWindow, Asking, Partners
from tallystick.serving.batching import Batcher
from tallystick.serving.messages import Terms
from tallystick.serving.scoring import Scorer
from tallystick.watcher import Watcher


def serve_label_party(contract: Contract, party: PartyFile, *, table: str | None, run: str | None, watcher: Watcher) -> None:
    """Answer clients until the operator ends it.

    Raises ConfigError or DataError before anybody is called if model, table or options are not usable, or the contract allows
    no serving, and ConfigError where the extra ``serve`` is not installed.
    """
    try:
        from tallystick.online.http import application, run_server
        from tallystick.online.metrics import Metrics
    except ImportError as error:
        raise ConfigError(f"serve: {error.name} is not installed; run: pip install 'tallystick[serve]'") from None
    side = ServingSide.of(contract, party, table=table, run=run, watcher=watcher)
    store, scorer = side.store(), Scorer.of(TrainedLabelParty.load(side.folder, side.architecture))
    metrics = Metrics()
    options = party.serving
    way: Way = options.way or side.serving.ways[0]
    batcher = Batcher(
        scorer,
        store,
        gate=side.gate(crosses=way != "ahead"),
        patience_s=options.deadline_ms / 1000,
        most_waiting=options.max_waiting,
        observe=metrics.observe_batch,
    )
    stopped = threading.Event()

    def work(channels: dict[str, Channel], _leave: Callable[[], None]) -> None:
        named = {name: channels[name] for name in contract.feature_parties}
        side.agreed(shake_hands_label_party(contract, side.resume_state, named, note=watcher.say), contract.feature_parties[0])
        for channel in named.values():
            channel.send(Terms(way=way))
        partners = Partners(channels=list(named.values()), widths=scorer.trained.widths, run=side.run_id)
        asking = _asking(side, way, channels, partners)
        watcher.say(f"serving run {side.run_id}, asking {', '.join(named)} by {way}")
        batcher.serve(asking, partners, stopped.is_set)
        partners.leave()

    failed: list[BaseException] = []
    server = run_server(application(side, batcher, scorer, store, metrics), options)

    def keep_up() -> None:
        try:
            side.in_rounds(work, stopped=stopped)
        except BaseException as error:  # said by the main thread
            failed.append(error)
            server.should_exit = True

    for line in serving_lines(contract):
        watcher.say(line)
    thread = threading.Thread(target=keep_up, name="tallystick-partners")
    thread.start()
    try:
        watcher.say(f"clients are answered on {options.listen}")
        server.run()
    except KeyboardInterrupt:
        pass  # the server has ended well
    finally:
        stopped.set()
        thread.join()
        store.close()
    if failed:
        raise failed[0]


def _asking(side: ServingSide, way: Way, channels: dict[str, Channel], partners: Partners) -> Asking:
    """The agreed way of asking, over these sessions."""
    if way == "key":
        return AskByKey(partners=partners)
    alignment = side.align(channels)
    places = own_places(side, alignment)
    if way == "ahead":
        return AskAhead.of(partners, places, rows=len(alignment))
    if way == "window":
        return AskByWindow.of(partners, places, size=side.serving.window, secret=side.secret())
    return AskByPosition(partners=partners, places=places)
