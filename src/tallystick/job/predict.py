"""Prediction as a job: greet, align the new ids, score them with the saved model and encoders."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from tallystick import __version__
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psu_helper import union_helper
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile, check_party
from tallystick.cut.forward import Source
from tallystick.data.encoder import Encoder
from tallystick.data.keys import KeyReport, Keys
from tallystick.data.table import read_table
from tallystick.data.target import LabelCoder
from tallystick.errors import ConfigError, DataError, ProtocolError, StorageError
from tallystick.job.alignment import align, helpers_max_rows
from tallystick.job.folder import RunFolder
from tallystick.job.handshake import Standing, shake_hands, shake_hands_label_party
from tallystick.job.log import RunLog
from tallystick.job.phases import Watcher
from tallystick.job.preflight import require_to_predict
from tallystick.job.process import with_sessions
from tallystick.job.randomness import SEED_BITS
from tallystick.job.union import Imputation
from tallystick.models.build import build_bottom, build_label_model
from tallystick.network.channel import Channel
from tallystick.network.messages import MAX_MESSAGE_BYTES, Array, MalformedMessage, Message
from tallystick.serving.predict import predict_feature_party, predict_label_party
from tallystick.training.calibration import Calibration, LogitLine, LogitShift
from tallystick.training.checkpoint import load_weights

COMMAND = "predict"
_SCORES_A_MESSAGE = 1 << 20


def predict(contract: Contract, party: PartyFile, *, table: Path | None, output: Path | None, watcher: Watcher) -> dict[str, Any]:
    """Score new ids with the latest run's model; ``output`` is a CSV or Parquet file.

    On a union (FLORIST, appendix D, with own columns at the label party) every position is scored and sent back, so the label
    party does not learn whose score is wanted.

    Args:
        contract: the contract that the model was trained under.
        party: this party's file.
        table: the new rows; the party file's table if left out.
        output: where the scores go. Those of an intersection stay with the label party; on a union both get their own rows'.
        watcher: shown progress.

    Gives how many own rows have a score, how many not, and why.

    Raises ConfigError or DataError before anything is sent if model, table or output is not usable.
    """
    check_party(contract, party)
    if contract.role_of(party.party) == "helper":
        return _help(contract, party, watcher)
    is_label = contract.role_of(party.party) == "label"
    gets_scores = is_label or contract.alignment.method != "intersection"
    if gets_scores and (output is None or output.suffix not in (".csv", ".parquet")):
        raise ConfigError(
            f"output{' is missing' if output is None else f' = {output}'}: name a .csv or .parquet file for the scores"
        )
    if output is not None and not gets_scores:
        raise ConfigError(f"output = {output}: the scores of an intersection stay with {contract.label_party}; leave it out")
    if output is not None and output.exists():
        raise ConfigError(f"output = {output}: exists already; name another file or remove it")
    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError(f"output = {output}: there is no folder {output.absolute().parent}; make it first")
    if party.table is None:
        raise ConfigError("table: the party file names no table; add one")
    folder = RunFolder.latest(party.runs, contract)
    if not folder.trained:
        raise ConfigError(f"{folder.path} holds no trained model; run `tallystick run` or `tallystick train` first")
    folder.check(trained=True)
    source = party.table.model_copy(update={"path": table, "query": None, "database": None}) if table is not None else party.table
    frame = read_table(source, text=party.keys.values())
    kept = folder.load_alignment()
    if kept is None:
        raise DataError(f"{folder.path} holds no alignment; it does not look like a finished run")
    folder.read_json(folder.label_coder if is_label else folder.encoder)  # neither can do without it
    standing = Standing(command=COMMAND, resume=True, run_id=kept[0].run_id, trained=True)
    encoder = Encoder.from_json(folder.read_json(folder.encoder)) if folder.encoder.exists() else None
    keys = require_to_predict(contract, party, frame, encoder)
    scored = _Scored(contract=contract, party=party, folder=folder, frame=frame, keys=keys, encoder=encoder)
    log = RunLog(watcher)
    log.keep_in(folder.path)
    log.note(f"tallystick {__version__}: predict with contract {contract.name} ({contract.hash[:8]}) as {party.party}")

    def work(channels: dict[str, Channel]) -> dict[str, Any]:
        log.phase("handshake")
        if is_label:
            named = {name: channels[name] for name in contract.feature_parties}
            helper = channels[contract.helper] if contract.helper is not None else None
            agreement = shake_hands_label_party(contract, standing, named, helper=helper)
        else:
            agreement = shake_hands(contract, standing, channels[contract.label_party])
        _same_run(agreement.align, folder)
        log.phase("alignment")
        # Few new rows of one side meet the other's whole table: what it brought to training is in proportion.
        expected = 2 * max(kept[1].sizes.values())
        alignment = align(contract, party, keys.ids, channels, progress=log.progress, expected=expected)
        log.phase("prediction")
        scores = (scored.label_party if is_label else scored.feature_party)(channels, alignment)
        if output is None:
            return {"rows": len(alignment), "output": None, "learnt": alignment.learnt}
        _write_scores(scores, output)
        unscored = _unscored(keys.report, scored=scores.height)
        own = f"{scores.height} of {keys.report.rows} own rows have a score"
        watcher.say(f"{own}{'; ' if unscored else ''}{', '.join(f'{count} {why}' for why, count in unscored.items())}")
        return {
            "rows": scores.height,
            "own_rows": keys.report.rows,
            "unscored": unscored,
            "output": str(output),
            "learnt": alignment.learnt,
        }

    with log.recording():
        return with_sessions(contract, party, work, watcher=log)


def _help(contract: Contract, party: PartyFile, watcher: Watcher) -> dict[str, Any]:
    """The helper's part of a prediction: its alignment."""

    def work(channels: dict[str, Channel]) -> dict[str, Any]:
        label, feature = (channels[name] for name in (contract.label_party, contract.feature_parties[0]))
        watcher.phase("handshake")
        shake_hands(contract, Standing(command=COMMAND, resume=True), label, keeps=False)
        watcher.phase("alignment")
        outcome = union_helper(label, feature, rng=SecureRandom(), max_rows=helpers_max_rows(contract))
        return {"rows": outcome.sizes["union"], "output": None, "learnt": outcome.learnt}

    return with_sessions(contract, party, work, watcher=watcher)


class UnionScores(Message, frozen=True):
    """Label party to feature party, on a union: a score for every position, so that it does not learn whose is wanted."""

    limit = MAX_MESSAGE_BYTES
    scores: Array


def receive_scores(channel: Channel, rows: int) -> Tensor:
    """Receive the next scores; raises ProtocolError for another number of them, another type, or no probabilities."""
    try:
        scores_B = channel.receive(UnionScores).scores.tensor(rows, dtype=torch.float32)
    except MalformedMessage as error:
        raise ProtocolError(channel.peer, f"{channel.peer}: UnionScores: {error}") from None
    wrong_B = ~((scores_B >= 0) & (scores_B <= 1))  # NaN is neither
    if bool(wrong_B.any()):
        raise ProtocolError(
            channel.peer, f"{channel.peer}: UnionScores: {int(wrong_B.sum())} of {rows} scores are no numbers from 0 to 1"
        )
    return scores_B


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """Scoring per role, once the new ids are aligned."""

    contract: Contract
    party: PartyFile
    folder: RunFolder
    frame: pl.DataFrame
    keys: Keys
    encoder: Encoder | None

    def label_party(self, channels: Mapping[str, Channel], alignment: Alignment) -> pl.DataFrame:
        """Finish the forward pass; gives the scores of this party's own rows beside their keys."""
        ordered = [channels[name] for name in self.contract.feature_parties]
        facts = self.folder.noted("training")
        widths = facts["widths"]
        assert isinstance(widths, list)
        outputs = self.contract.target.classes if self.contract.target.type == "multiclass" else 1
        shape = self.encoder.feature_shape if self.encoder is not None else None
        model = build_label_model(self.contract.model, self.party.party, shape, widths, outputs=outputs, seed=self.contract.seed)
        load_weights(model, self.folder.model)
        coder = LabelCoder.from_json(self.folder.read_json(self.folder.label_coder))
        batches = self._batches(alignment)
        source = self._source(alignment) if self.encoder is not None else None
        if alignment.method == "intersection":
            scores = predict_label_party(model, source, coder, batches, ordered, widths)
            return self._own_keys(alignment).hstack(scores)
        calibration = _calibration(facts["calibration"])
        scores = predict_label_party(model, source, coder, batches, ordered, widths, calibrate=calibration.prediction_logits)
        values_U = scores.get_column("score").to_numpy()
        for start in range(0, len(values_U), _SCORES_A_MESSAGE):
            ordered[0].send(UnionScores(scores=Array.of(values_U[start : start + _SCORES_A_MESSAGE])))
        return self._own_keys(alignment).with_columns(score=values_U[alignment.rows_N >= 0])

    def feature_party(self, channels: Mapping[str, Channel], alignment: Alignment) -> pl.DataFrame:
        """Embed; on a union the scores come back for every position, and this party keeps its own rows'."""
        channel = channels[self.contract.label_party]
        assert self.encoder is not None
        bottom = build_bottom(self.contract.model, self.party.party, self.encoder.feature_shape, seed=self.contract.seed)
        if alignment.method != "intersection":
            bottom = self._imputation(alignment).bottom(bottom)
        load_weights(bottom, self.folder.model)
        predict_feature_party(bottom, self._source(alignment), self._batches(alignment), channel)
        if alignment.method == "intersection":
            return self._own_keys(alignment)
        parts = []
        for start in range(0, len(alignment), _SCORES_A_MESSAGE):
            parts.append(receive_scores(channel, min(_SCORES_A_MESSAGE, len(alignment) - start)))
        return self._own_keys(alignment).with_columns(score=torch.cat(parts).numpy()[alignment.rows_N >= 0])

    def _source(self, alignment: Alignment) -> Source:
        assert self.encoder is not None
        if alignment.method == "intersection":
            return self.encoder.encode(self.frame[self.keys.rows_U[alignment.rows_N]]).rows
        features = self.encoder.encode(self.frame[self.keys.rows_U])
        return self._imputation(alignment).source(features, own_columns=self.party.party == self.contract.label_party)

    def _imputation(self, alignment: Alignment) -> Imputation:
        own_U = torch.from_numpy(alignment.rows_N.copy())
        return Imputation(contract=self.contract, alignment=alignment, own_U=own_U, seed=secrets.randbits(SEED_BITS))

    def _batches(self, alignment: Alignment) -> tuple[Tensor, ...]:
        return torch.split(torch.arange(len(alignment)), self.contract.training.batch_size)

    def _own_keys(self, alignment: Alignment) -> pl.DataFrame:
        """The key columns of the own rows that take part, in the order of the positions."""
        own = alignment.rows_N[alignment.rows_N >= 0]
        return self.frame[self.keys.rows_U[own]].select(self.party.keys.values())


def _unscored(report: KeyReport, *, scored: int) -> dict[str, int]:
    """How many own rows have no score, by reason."""
    reasons = {
        "without a key": report.null_rows,
        "with the key of another row": report.duplicate_rows,
        "without a partner's row": report.used - scored,
    }
    return {why: count for why, count in reasons.items() if count}


def _calibration(facts: object) -> Calibration:
    assert isinstance(facts, dict)
    parts = {"shift": LogitShift(**facts["shift"]), "line": LogitLine(**facts["line"])}
    return Calibration(**(facts | parts))


def _same_run(align: bool, folder: RunFolder) -> None:
    if align:
        raise ConfigError(f"the peers' models are of another run than {folder.path}; all must predict with the same run's model")


def _write_scores(scored: pl.DataFrame, output: Path) -> None:
    partial = output.with_name(f".{output.name}.partial")
    try:
        if output.suffix == ".csv":
            scored.write_csv(partial)
        else:
            scored.write_parquet(partial)
        partial.replace(output)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"cannot write {output}: {error.strerror or error}") from None
