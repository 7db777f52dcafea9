"""Serve at a feature party that has the clients: it asks the label party for scores."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from tallystick.alignment.outcome import Alignment
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.serving import Way
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.imputed import ImputedFeatures
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.dataset.union import Imputation, UnionDataset
from tallystick.disclosure.serving import serving_lines
from tallystick.errors import ConfigError
from tallystick.job.handshake import shake_hands, shake_hands_label_party
from tallystick.models.build import width_of
from tallystick.network.channel import Channel
from tallystick.run_folder.ledger import enter_exact, refuse_exact
from tallystick.run_folder.trained import TrainedFeatureParty, TrainedLabelParty
from tallystick.scoring.answering import receive_way
from tallystick.scoring.asking import Asking, longest_wait_s
from tallystick.scoring.batching import Batcher
from tallystick.scoring.feature_party_asks import (
    AgreedBatches,
    AskByAgreedBatch,
    AskByEmbedding,
    AskedLabelParty,
    BatchedRows,
    ScoresAsTheyCame,
    all_embedded,
    answer_with_scores,
)
from tallystick.scoring.scoring import Scorer
from tallystick.scoring.scoring_messages import WayOfAsking
from tallystick.serving.aligned_rows import aligned_rows, names_of, own_places
from tallystick.serving.asking_side import answer_clients
from tallystick.serving.side import OpenRun, ServingSide, Stop
from tallystick.tables.features import Features
from tallystick.watcher import Watcher


def serve_feature_party_that_asks(
    contract: Contract, party: PartyFile, *, table: str | None, run: str | None, watcher: Watcher
) -> None:
    """Answer clients with scores from the label party, until the operator stops it.

    Raises ConfigError or DataError before a peer is called, if model, table or options are not usable, or the extra ``serve``
    is not installed.
    """
    try:
        from tallystick.serving.http import ScoreServer, application, run_server
        from tallystick.serving.metrics import Metrics
        from tallystick.serving.served_runs import ServedRun, ServedRuns
    except ImportError as error:
        raise ConfigError(f"serve: {error.name} is not installed; run: pip install 'tallystick[serve]'") from None
    side = ServingSide.of(contract, party, table=table, run=run, watcher=watcher)
    options, metrics, stopped = party.serving, Metrics(), Stop()
    way: Way = options.way or side.serving.ways[0]
    batcher = Batcher(
        gate=side.gate(crosses=way == "embedding"),
        patience_s=options.deadline_ms / 1000,
        most_waiting=options.max_waiting,
        gather_s=options.gather_ms / 1000,
        observe=metrics.observe_batch,
        say=watcher.say,
    )
    opened = side.open(side.first.run_id, anew=False)
    run_id, served = opened.run_id, ServedRuns(ServedRun.of(side, opened, ScoresAsTheyCame()))

    def work(channels: dict[str, Channel], _leave: Callable[[], None]) -> None:
        channel = channels[contract.label_party]
        state = side.resume_state(side.promotion_of(run_id))
        side.agreed(shake_hands(contract, state, channel, note=watcher.say), channel.peer, expected=run_id)
        channel.send(WayOfAsking(way=way))
        label_party = AskedLabelParty(
            channel=channel,
            run=run_id,
            probabilities=contract.target.type == "binary",
            within_s=longest_wait_s(options.deadline_ms / 1000, contract.network.deadline_s),
        )
        if way == "embedding":
            # a dataset without positions, for a bottom model that only gets rows of its own party
            if not side.contract.linkage.imputes:
                present_rows: Dataset = IntersectionDataset(encoder=opened.encoder, source=None)
            else:
                nobody = torch.empty(0, dtype=torch.int64)
                imputation = Imputation.of(side.contract.union, nobody, is_label=False, seed=0)
                present_rows = UnionDataset(encoder=opened.encoder, source=None, imputation=imputation)
            bottom = _bottom(side, opened, present_rows)
            asking: Asking = AskByEmbedding(label_party=label_party, bottom=_OfPresentRows(bottom), width=width_of(bottom))
        else:
            alignment = side.align(channels, opened.ids)
            dataset = aligned_rows(side, alignment, opened.encoder)
            bottom = _bottom(side, opened, dataset)
            cut_ND = all_embedded(bottom, dataset.features_at, rows=len(alignment), width=width_of(bottom))
            asking = AskByAgreedBatch(
                label_party=label_party,
                cut_ND=cut_ND,
                batches=_agreed_batches(side, alignment),
                places=own_places(side, alignment),
            )
        watcher.say(f"serving run {run_id}, asking {channel.peer} by {way}")
        batcher.serve({run_id: asking}, label_party, stopped.is_set)
        label_party.leave()

    server = run_server(application(ScoreServer(options, batcher, served, metrics, say=watcher.say)), options)
    try:
        with side.home.locked():
            answer_clients(side, server, partial(side.in_rounds, work, stopped=stopped), stopped=stopped)
    finally:
        served.now.current.close()


def serve_label_party_that_answers(
    contract: Contract, party: PartyFile, *, table: str | None, run: str | None, watcher: Watcher
) -> None:
    """Answer the feature party's questions with scores until the operator stops it.

    Raises ConfigError or DataError before a peer is called, if model or table is not usable, or the contract allows no serving.
    """
    if not contract.hides_labels:
        refuse_exact(party, ["scores"], what="serving")
    side = ServingSide.of(contract, party, table=table, run=run, watcher=watcher)
    gate, feature_party, opened = side.gate(), contract.feature_parties[0], side.open(side.first.run_id, anew=False)
    scorer = Scorer.of(TrainedLabelParty.load(opened.folder, side.architecture))
    # An embedding does not say which row's own columns belong to it.
    ways = [way for way in side.serving.ways if way != "embedding" or scorer.trained.encoder is None]
    if not ways:
        raise ConfigError(
            f"serving.ways: embedding is for a label party without columns of its own, but {party.party} has some; agree on "
            "agreed-batch"
        )

    def work(channels: dict[str, Channel], _leave: Callable[[], None]) -> None:
        channel = channels[feature_party]
        feature_channels = {feature_party: channel}
        state = side.resume_state(side.promotion_of(opened.run_id))
        side.agreed(
            shake_hands_label_party(contract, state, feature_channels, note=watcher.say), feature_party, expected=opened.run_id
        )
        way = receive_way(channel, ways)
        if way == "agreed-batch":
            alignment = side.align(channels, opened.ids)
            dataset = aligned_rows(side, alignment, opened.encoder)
            rows = BatchedRows(source=dataset.features_at, batches=_agreed_batches(side, alignment))
        else:
            rows = None
        watcher.say(f"serving run {opened.run_id} to {feature_party}, who asks by {way}")
        answer_with_scores(channel, {opened.run_id: scorer}, width=scorer.trained.widths[0], rows=rows, gate=gate)

    for line in serving_lines(contract):
        watcher.say(line)
    try:
        with side.home.locked():
            if not contract.hides_labels:
                enter_exact(
                    party,
                    opened.folder,
                    "scores",
                    what=f"serving with {opened.folder.path.name}: scores, sent to {feature_party}",
                )
            side.in_rounds(work, stopped=Stop())
    finally:
        opened.store.close()


def _agreed_batches(side: ServingSide, alignment: Alignment) -> AgreedBatches:
    return AgreedBatches.of(names_of(side, alignment), size=side.serving.window)


def _bottom(side: ServingSide, opened: OpenRun, dataset: Dataset) -> nn.Module:
    return TrainedFeatureParty.load(opened.folder, side.architecture, dataset).bottom.eval()


class _OfPresentRows(nn.Module):
    """A bottom model, of a union or not, that only gets rows of this party."""

    def __init__(self, bottom: nn.Module) -> None:
        super().__init__()
        self.bottom = bottom

    def forward(self, features: Features) -> Tensor:
        """Return the cut embeddings of these rows."""
        present_B = torch.ones(len(features), dtype=torch.bool)
        rows = ImputedFeatures(
            numeric_NF=features.numeric_NF, categorical_NG=features.categorical_NG, who_N=features.who_N, present_B=present_B
        )
        cut_BD: Tensor = self.bottom(rows)
        return cut_BD
