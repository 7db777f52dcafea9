"""A feature party that serves: it dials the label party and answers its questions, for as long as it is left to."""

import threading
from collections.abc import Callable

from tallystick.artifacts.trained import TrainedFeatureParty
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.disclosure import serving_lines
from tallystick.job.handshake import shake_hands
from tallystick.models.build import width_of
from tallystick.network.channel import Channel
from tallystick.online.aligned_rows import aligned_rows
from tallystick.online.side import ServingSide
from tallystick.serving.answering import FindByKey, FindByPosition, Finder, FindInUnion, answer_questions, receive_way
from tallystick.watcher import Watcher


def serve_feature_party(contract: Contract, party: PartyFile, *, table: str | None, run: str | None, watcher: Watcher) -> None:
    """Answer the label party's questions until the operator ends it.

    Raises ConfigError or DataError before anybody is called if model or table is not usable, or the contract allows no serving.
    """
    side = ServingSide.of(contract, party, table=table, run=run, watcher=watcher)
    store, gate = side.store(), side.gate()

    def work(channels: dict[str, Channel], _leave: Callable[[], None]) -> None:
        channel = channels[contract.label_party]
        side.agreed(shake_hands(contract, side.resume_state, channel, note=watcher.say), channel.peer)
        way = receive_way(channel, side.serving.ways)
        alignment = None if way == "key" else side.align(channels)
        finder: Finder = FindByKey(store=store)
        dataset: Dataset = IntersectionDataset(encoder=side.encoder, source=None)
        if alignment is not None and contract.linkage.imputes:
            dataset = aligned_rows(side, alignment, side.encoder)
            finder = FindInUnion(source=dataset.features_at, rows=len(alignment))
        elif alignment is not None:
            finder = FindByPosition(store=store, key_at=list(side.keys.ids_of(alignment.rows_N)))
        bottom = TrainedFeatureParty.load(side.folder, side.architecture, dataset).bottom.eval()
        watcher.say(f"serving run {side.run_id} to {channel.peer}, who asks by {way}")
        answer_questions(channel, {side.run_id: bottom}, finder, width=width_of(bottom), gate=gate)

    for line in serving_lines(contract):
        watcher.say(line)
    try:
        side.in_rounds(work, stopped=threading.Event())
    finally:
        store.close()
