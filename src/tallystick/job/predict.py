"""Predict as a job: shake hands, align the new ids, score them with the saved model and encoders."""

import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import polars as pl
import torch

from tallystick import __version__
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.pairwise import LocalOptions
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.party_checks import check_party
from tallystick.cut.forward import tiled_batches
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.datasets import dataset_of
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import ConfigError, DataError
from tallystick.job.handshake import PromotedHalf, ResumeState, shake_hands, shake_hands_label_party
from tallystick.job.log import RunLog
from tallystick.job.phases.align import align_keys, help_align, with_noise
from tallystick.job.phases.shared_head import (
    NOTHING_DUE,
    DueScores,
    SharedRows,
    begin_side,
    help_shared_head,
    logits_of,
    shares_of_scores,
)
from tallystick.job.prediction_output import ROW, RUN, SCORED_BY, SCORED_ON, SIMILARITY, check_columns, check_output, write_scores
from tallystick.job.preflight import require_to_predict
from tallystick.job.process import with_sessions
from tallystick.job.run_selection import chosen_run, named_run, offered
from tallystick.job.versions import Versions
from tallystick.network.channel import Channel, Progress
from tallystick.privacy.randomness import SEED_BITS
from tallystick.run_folder.embedding_charge import EmbeddingCharge
from tallystick.run_folder.folder import KEY_SPELLING, RunFolder
from tallystick.run_folder.ledger import enter_exact
from tallystick.run_folder.noise_secret import row_noise_secret
from tallystick.run_folder.shared_head import RowScores, SharedHead
from tallystick.run_folder.trained import Architecture, TrainedFeatureParty, TrainedLabelParty, kept_encoder, kept_widths
from tallystick.scoring.explain import Watched, as_table, check_explained, explanations
from tallystick.scoring.predict import (
    cuts_of,
    predict_alone,
    predict_feature_party,
    predict_label_party,
    receive_scores,
    received,
    scores_of,
    send_scores,
)
from tallystick.secret_sharing.share_messages import receive_unscored, send_unscored
from tallystick.tables.encoder import Encoder
from tallystick.tables.key_spelling import later_spelling
from tallystick.tables.keys import Keys
from tallystick.tables.later_doubts import later_doubts
from tallystick.tables.lazy_table import Frame
from tallystick.tables.repeats import with_summaries
from tallystick.tables.table import read_rows
from tallystick.tables.target import LabelCoder
from tallystick.watcher import Watcher

COMMAND = "predict"
JOINT, ALONE = "joint model", "own columns"
"""The values of the column SCORED_BY."""


class Predicted(TypedDict, total=False):
    """The outcome of a prediction: the run that scored, how many own rows have a score, and why others have none. A helper has
    no run.
    """

    run: str
    folder: str
    rows: int
    scored_by: dict[str, int]
    own_rows: int
    unscored: dict[str, int]
    output: str | None
    learnt: list[str]


def predict_rows(
    contract: Contract,
    party: PartyFile,
    *,
    table: Path | str | None,
    output: Path | None,
    watcher: Watcher,
    run: str | None = None,
    explained: Path | None = None,
    most_explained: int = 20,
) -> Predicted:
    """Score new ids with the promoted run's model, or the latest complete one's. ``output`` is a CSV or Parquet file.

    On a union (FLORIST, appendix D, with own columns at the label party) every position is scored and sent back, so the label
    party does not learn which scores are wanted.

    Args:
        contract: the contract that the model was trained under.
        party: this party's file.
        table: path or address of the new rows; by default the party file's table.
        output: file for the scores. On an intersection only the label party gets scores; on a union both get those of their own
            rows.
        watcher: shown progress.
        run: the run whose model scores: its id, or its folder's name or path. By default the newest run that all parties
            promoted, or, if no party promoted any, the latest complete run.
        explained: a CSV or Parquet file that explains the first scores of the table (``scoring/explain.py``); none by default.
        most_explained: how many scores to explain.

    Returns how many own rows have a score, how many have none and why, and which run's model scored.

    Raises ConfigError or DataError before anything is sent if model, table or output is not usable.
    """
    check_party(contract, party)
    if contract.role_of(party.party) == "helper":
        # the helper only takes part in the alignment
        def work(channels: dict[str, Channel], _leave: Callable[[], None]) -> Predicted:
            watcher.phase("handshake")
            shake_hands(contract, ResumeState(command=COMMAND, resume=True), channels[contract.label_party], keeps=False)
            watcher.phase("alignment")
            if contract.shares_head:
                watcher.phase("prediction")
                sizes = help_shared_head(contract, channels, progress=watcher.progress)
                return {"rows": sizes.scored, "output": None, "learnt": []}
            outcome = help_align(contract, channels)
            return {"rows": max(outcome.sizes.values()), "output": None, "learnt": outcome.learnt}

        return with_sessions(contract, party, work, watcher=watcher)
    check_output(contract, party, output)
    if explained is not None:
        check_explained(contract, party.party)
        check_output(contract, party, explained)
    source = party.table_at(table)
    versions = Versions(contract=contract, party=party)
    promoted = () if run is not None else versions.halves()
    if promoted:
        versions.require_usable()
    folder = chosen_run(contract, party, promoted[0].run_id if promoted else run, say=watcher.say)
    with ExitStack() as stack:
        stack.enter_context(folder.locked())
        return _Prediction(
            contract=contract,
            party=party,
            frame=with_summaries(read_rows(source, party, trained=kept_encoder(folder)), party, contract.alignment),
            output=output,
            promoted=promoted,
            chosen=run is not None,
            held=stack,
            watcher=watcher,
            wanted=WantedExplanations(file=explained, most=most_explained) if explained is not None else None,
        ).by(folder)


@dataclass(frozen=True, kw_only=True)
class WantedExplanations:
    """A request for explanations: how many scores to explain, and the file to write."""

    file: Path
    most: int


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A run whose model can score these rows. Everything that this side can check alone was checked."""

    folder: RunFolder
    run_id: str
    alignment: Alignment
    scoring: "_Scoring"


@dataclass(frozen=True, kw_only=True)
class _Prediction:
    """One party's prediction: the prepared arguments of ``predict``.

    ``promoted`` are the runs that this party has promoted, if none was named; ``held`` keeps the locks of run folders.
    """

    contract: Contract
    party: PartyFile
    frame: Frame
    output: Path | None
    promoted: tuple[PromotedHalf, ...]
    chosen: bool
    held: ExitStack
    watcher: Watcher
    wanted: WantedExplanations | None = None

    def by(self, folder: RunFolder) -> Predicted:
        """Predict with this folder's run, or with the one that all parties have promoted. Its lock is held."""
        contract, party = self.contract, self.party
        own = self._model(folder, calls=True)
        if self.chosen:  # the last local step: a command that was refused before has not named a run to anybody
            Versions(contract=contract, party=party).enter_named(folder, option="predict --run")
        state = offered(contract, party, command=COMMAND, run_id=own.run_id, promoted=self.promoted, chosen=self.chosen)
        log = RunLog(self.watcher)
        log.keep_in(folder.path)
        log.note(f"tallystick {__version__}: predict with contract {contract.name} ({contract.hash[:8]}) as {party.party}")

        def work(channels: dict[str, Channel], leave: Callable[[], None]) -> Predicted:
            log.phase("handshake")
            if contract.role_of(party.party) != "label":
                agreement = shake_hands(contract, state, channels[contract.label_party], note=log.say)
            else:
                feature_channels = {name: channels[name] for name in contract.feature_parties}
                helper = channels[contract.helper] if contract.helper is not None else None
                agreement = shake_hands_label_party(contract, state, feature_channels, helper=helper, note=log.say)
            if agreement.align:
                raise ConfigError(
                    f"the peers' models come from another run than {folder.path}; all must predict with the same run's model"
                )
            if agreement.version:
                other = contract.label_party if party.party != contract.label_party else contract.feature_parties[0]
                Versions(contract=contract, party=party).agree(agreement.run_id, agreement.version, other)
            model = own
            if agreement.run_id != own.run_id:  # all parties have promoted another run
                other_folder = named_run(self.contract, self.party, agreement.run_id)
                self.held.enter_context(other_folder.locked())
                model = self._model(other_folder, calls=False)
            return self._score(model, channels, log, leave)

        with log.recording():
            return with_sessions(contract, party, work, watcher=log)

    def _model(self, folder: RunFolder, *, calls: bool) -> _Model:
        contract, party = self.contract, self.party
        folder.check(trained=True)
        saved = folder.load_alignment()
        if saved is None:
            raise DataError(f"{folder.path} holds no alignment; it does not look like a finished run")
        is_label = contract.role_of(party.party) == "label"
        folder.read_json(folder.label_coder if is_label else folder.encoder)  # both need it
        encoder = kept_encoder(folder)
        keys = require_to_predict(contract, party, self.frame, encoder, folder=folder, calls=calls)
        if self.output is not None:
            check_columns(contract, party, self.frame[keys.rows_R], self.output)
        scoring = _Scoring(
            contract=contract,
            party=party,
            folder=folder,
            frame=self.frame,
            keys=keys,
            encoder=encoder,
            wanted=self.wanted,
        )
        return _Model(folder=folder, run_id=saved[0].run_id, alignment=saved[1], scoring=scoring)

    def _score(self, model: _Model, channels: dict[str, Channel], log: RunLog, leave: Callable[[], None]) -> Predicted:
        contract, party, keys, before = self.contract, self.party, model.scoring.keys, model.alignment
        log.say(f"predicting with run {model.run_id}: {model.folder.path}")
        spelling = later_spelling(
            self.frame, columns=party.keys, alignment=contract.alignment, spelling=model.folder.noted(KEY_SPELLING)
        )
        for doubt in (*keys.report.doubtful, *spelling, *later_doubts(self.frame, model.scoring.encoder)):
            log.say(doubt)
        which = Predicted(run=model.run_id, folder=str(model.folder.path))
        log.phase("alignment")
        # One side may have few new rows and the other its whole table, so the limit follows from the training's sizes.
        expected = 2 * max(before.sizes.values())
        noisy = with_noise(contract, party, model.folder, keys, what=f"linking of new rows for {contract.name}")
        local = LocalOptions(threads=party.threads, progress=log.progress)
        alignment = align_keys(contract, party.party, noisy, channels, local=local, expected=expected, kept_alignment=before)
        log.phase("prediction")
        scores = model.scoring.score(channels, alignment, leave, log.progress).with_columns(pl.lit(model.run_id).alias(RUN))
        if self.output is None:
            return {**which, "rows": len(alignment), "output": None, "learnt": alignment.learnt}
        write_scores(scores, self.output)
        # count own rows that have a score, by model, and those that have none, by reason, and say so
        reasons = {
            "without a key": keys.report.null_rows,
            "with the key of another row": keys.report.duplicate_rows,
            "without a partner's row": keys.report.used - scores.height,
        }
        unscored = {why: count for why, count in reasons.items() if count}
        own = f"{scores.height} of {keys.report.rows} own rows have a score"
        names = (JOINT, ALONE) if SCORED_BY in scores.columns else ()
        by_model = {name: int((scores[SCORED_BY] == name).sum()) for name in names}
        by = ", ".join(f"{count} by {'the joint model' if name == JOINT else name}" for name, count in by_model.items())
        split = f" ({by})" if by_model else ""
        self.watcher.say(
            f"{own}{split}{'; ' if unscored else ''}{', '.join(f'{count} {why}' for why, count in unscored.items())}"
        )
        counts = Predicted(rows=scores.height, own_rows=keys.report.rows, unscored=unscored)
        if by_model:
            counts["scored_by"] = by_model
        return {**which, **counts, "output": str(self.output), "learnt": alignment.learnt}


@dataclass(frozen=True, kw_only=True)
class _Scoring:
    """Score, per role, the new ids after their alignment."""

    contract: Contract
    party: PartyFile
    folder: RunFolder
    frame: Frame
    keys: Keys
    encoder: Encoder | None
    wanted: WantedExplanations | None = None

    @property
    def _has_rows_of_one_key(self) -> bool:
        """Tell whether several rows may have the same key, so that a score needs its row number."""
        alignment = self.contract.alignment
        return alignment.similarity is not None or alignment.duplicates == "all"

    def score(
        self, channels: Mapping[str, Channel], alignment: Alignment, leave: Callable[[], None], progress: Progress
    ) -> pl.DataFrame:
        """Return the scores of own rows that this party may have, with their keys.

        Without gradients a label party calls ``leave`` before it loads the model: how long scoring takes, and whether it
        succeeds, depends on labels.
        """
        linkage = self.contract.linkage
        is_label = self.party.party == self.contract.label_party
        own = OwnRows(party=self.party, is_label=is_label, frame=self.frame, keys=self.keys, alignment=alignment)
        dataset = dataset_of(linkage).to_score(self.contract, own, self.encoder, secret_seed=lambda: secrets.randbits(SEED_BITS))
        secret = row_noise_secret(self.contract, self.party)
        architecture = Architecture.of(self.contract, self.party.party, secret=secret)
        if self.contract.shares_head:
            return self._score_on_shares(channels, dataset, own, architecture, leave, progress)
        batches = tiled_batches(len(alignment), self.contract.training.resolved(len(alignment)).batch_size)
        scores, trained = None, None
        if is_label:
            ordered = [channels[name] for name in self.contract.feature_parties]
            watched = None
            if self.wanted is not None:  # the table's order first rows that are scored with their partners' rows
                row_numbers = self.keys.rows_R[alignment.rows_N]
                first = np.argsort(row_numbers, kind="stable")[: self.wanted.most]
                watched = Watched.of(torch.from_numpy(first), len(alignment), seed=self.contract.seed)
            cuts = cuts_of(ordered, kept_widths(self.folder), dataset)
            if self.contract.embeds_once:
                cuts = received(cuts, batches, progress=progress)
                leave()
            if watched is not None:
                cuts = [watched.watching(peer, each) for peer, each in enumerate(cuts)]
            trained = TrainedLabelParty.load(self.folder, architecture)
            scores = predict_label_party(trained, dataset, batches, cuts, rows=len(alignment), progress=progress)
            if watched is not None:
                assert self.wanted is not None, "somebody asked for it"
                explained = explanations(
                    trained, dataset, watched, parties=self.contract.feature_parties, seed=self.contract.seed
                )
                rows = self.keys.rows_R[alignment.rows_N[watched.explained.numpy()]]
                write_scores(self.frame[rows].select(self.party.keys.values()).hstack(as_table(explained)), self.wanted.file)
            if linkage.shares_scores and not self.contract.hides_labels:
                what = f"prediction with {self.folder.path.name}: scores, sent to {' and '.join(self.contract.feature_parties)}"
                enter_exact(self.party, self.folder, "scores", what=what)
            for channel in ordered if linkage.shares_scores else ():
                send_scores(scores, channel)
        else:
            channel = channels[self.contract.label_party]
            if batches:
                what = f"prediction of rows with {self.folder.path.name}"
                EmbeddingCharge.of(self.contract, self.party, self.folder, what=what)("prediction")
            trained_half = TrainedFeatureParty.load(self.folder, architecture, dataset)
            predict_feature_party(trained_half, dataset, batches, channel, rows=len(alignment), progress=progress)
            if linkage.shares_scores:
                scores = receive_scores(channel, len(alignment))
        own_N = alignment.rows_N >= 0
        rows = self.keys.rows_R[alignment.rows_N[own_N]]
        keys = self.frame[rows].select(self.party.keys.values())
        if self._has_rows_of_one_key:
            keys = keys.insert_column(0, pl.Series(ROW, rows, dtype=pl.Int64))
        order = np.argsort(rows, kind="stable")  # the table's order
        if scores is None:
            return keys[order]
        scored = keys.hstack(scores.filter(own_N))
        if alignment.candidates and trained is not None:
            # How similar the most similar row is, in deviations over the links of training; null if there is none
            best = [
                np.where(found.numbers_NK[:, 0] >= 0, found.similarity_NK[:, 0], -np.inf)
                for found in alignment.candidates.values()
                if found.similarity_NK is not None
            ]
            scored = scored.with_columns(pl.Series(SIMILARITY, np.max(best, axis=0).astype(np.float64)).replace(-np.inf, None))
            if self.contract.alignment.leaves_unlinked:
                is_linked = dataset.is_linked(torch.arange(len(alignment))).tolist()
                scored = scored.with_columns(
                    pl.Series(SCORED_BY, [JOINT if linked else ALONE for linked in is_linked], dtype=pl.String)
                )
            scored = scored[order]
            return (
                scored
                if trained.alone is not None or SCORED_BY not in scored.columns
                else scored.filter(pl.col(SCORED_BY) == JOINT)
            )
        scored = scored[order]
        if trained is None or trained.alone is None:
            return scored
        unlinked = own.unlinked()
        unlinked_rows = own.at(unlinked).select(self.party.keys.values())
        if self._has_rows_of_one_key:
            unlinked_rows = unlinked_rows.insert_column(0, pl.Series(ROW, self.keys.rows_R[unlinked], dtype=pl.Int64))
        alone = unlinked_rows.hstack(predict_alone(trained, dataset))[np.argsort(self.keys.rows_R[unlinked], kind="stable")]
        parts = ((scored, JOINT), (alone, ALONE))
        return pl.concat([part.with_columns(pl.lit(name).alias(SCORED_BY)) for part, name in parts])

    def _score_on_shares(
        self,
        channels: Mapping[str, Channel],
        dataset: Dataset,
        own: OwnRows,
        architecture: Architecture,
        leave: Callable[[], None],
        progress: Progress,
    ) -> pl.DataFrame:
        """Score the linked rows that have no score by this head on shares yet, and return the scores of all.

        Each row gets one score only. If the label party has lost some scores, they are opened again if exactly these rows were
        scored together; otherwise this is refused.
        """
        contract, is_label = self.contract, own.is_label
        all_N = torch.arange(len(own.alignment))
        peers = [channels[name] for name in (contract.feature_parties if is_label else (contract.label_party,))]
        ids = own.keys.ids_of(own.rows_at(all_N))
        if is_label:
            is_unscored_N = RowScores.load(self.folder, outputs=contract.scores_of_a_row).places(ids) < 0
            for peer in peers:
                send_unscored(peer, is_unscored_N)
        else:
            is_unscored_N = receive_unscored(peers[0], len(all_N))
        index_N = all_N[torch.from_numpy(is_unscored_N)]
        due = DueScores.of(self.folder, own, index_N, contract) if len(index_N) else None
        if due is None or due.kept_by_all(peers):
            begin_side(contract, self.party.party, channels, NOTHING_DUE)
        else:
            head = SharedHead.load(self.folder, architecture, self.encoder, is_label=is_label)
            width = SharedRows(training=0, scored=len(index_N), columns=head.width)
            side, _ = begin_side(contract, self.party.party, channels, width)
            due.keep(shares_of_scores(head, dataset, index_N, side, progress=progress))
        rows = self.keys.rows_R[own.alignment.rows_N]
        keys = self.frame[rows].select(self.party.keys.values())
        order = np.argsort(rows, kind="stable")  # the table's order
        if not is_label:
            if due is not None:
                due.open_as_feature_party(peers[0])
            return keys[order]
        if due is not None:
            due.open_as_label_party(peers)
        leave()
        opened = RowScores.load(self.folder, outputs=contract.scores_of_a_row)
        place_N = opened.places(ids)
        coder = LabelCoder.from_json(self.folder.read_json(self.folder.label_coder))
        scores = scores_of(coder, logits_of(contract, opened.scores_NC[place_N]))
        days = pl.Series(SCORED_ON, opened.days_N[place_N].astype(np.int32)).cast(pl.Date)
        return keys.hstack(scores).with_columns(days)[order]
