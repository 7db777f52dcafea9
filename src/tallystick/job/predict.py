"""Prediction as a job: greet, align the new ids, score them with the saved model and encoders."""

from pathlib import Path
from typing import Any

import polars as pl

from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile, check_party
from tallystick.data.encoder import Encoder
from tallystick.data.table import read_table
from tallystick.data.target import LabelCoder
from tallystick.errors import ConfigError, DataError, StorageError
from tallystick.job.folder import RunFolder
from tallystick.job.handshake import Standing, shake_hands, shake_hands_label_party
from tallystick.job.phases import Watcher
from tallystick.job.process import with_sessions
from tallystick.job.rows import read_ids
from tallystick.models.build import build_bottom, build_label_model
from tallystick.network.channel import Channel
from tallystick.serving.predict import predict_feature_party, predict_label_party
from tallystick.training.checkpoint import read_tensors

COMMAND = "predict"


def predict(contract: Contract, party: PartyFile, *, table: Path | None, output: Path | None, watcher: Watcher) -> dict[str, Any]:
    """Score new ids with the latest run's model; the label party writes ``output``, a CSV or Parquet file.

    Args:
        contract: the contract that the model was trained under.
        party: this party's file.
        table: the new rows; the party file's table if left out.
        output: where the label party's scores go; a feature party gives none.
        watcher: shown progress.

    Raises ConfigError or DataError before anything is sent if model, table or output is not usable.
    """
    check_party(contract, party)
    is_label = contract.role_of(party.party) == "label"
    if is_label and (output is None or output.suffix not in (".csv", ".parquet")):
        raise ConfigError(f"output = {output}: the label party names a .csv or .parquet file for the scores")
    if is_label and output is not None and output.exists():
        raise ConfigError(f"output = {output}: exists already; name another file or remove it")
    if party.table is None:
        raise ConfigError("table: the party file names no table; add one")
    folder = RunFolder.latest(party.runs, contract)
    if not folder.trained:
        raise ConfigError(f"{folder.path} holds no trained model; run `tallystick run` or `tallystick train` first")
    source = party.table.model_copy(update={"path": table, "query": None, "database": None}) if table is not None else party.table
    frame = read_table(source, text=party.keys.values())
    kept = folder.load_alignment()
    if kept is None:
        raise DataError(f"{folder.path} holds no alignment; it does not look like a finished run")
    standing = Standing(command=COMMAND, resume=True, run_id=kept[0].run_id, trained=True)
    encoder = Encoder.from_json(folder.encoder.read_bytes()) if folder.encoder.exists() else None
    keys = read_ids(contract, party, frame)
    rng, limit, threads = SecureRandom(), contract.alignment.max_rows, party.threads

    def score_label_party(channels: dict[str, Channel]) -> dict[str, Any]:
        ordered = [channels[name] for name in contract.feature_parties]
        watcher.phase("handshake")
        agreement = shake_hands_label_party(contract, standing, {name: channels[name] for name in contract.feature_parties})
        _same_run(agreement.align, folder)
        watcher.phase("alignment")
        alignment = intersect_label_party(keys.ids, ordered, rng=rng, max_rows=limit, threads=threads, progress=watcher.progress)
        here = frame[keys.rows_U[alignment.rows_N]]
        watcher.phase("prediction")
        widths = folder.noted("training")["widths"]
        assert isinstance(widths, list)
        outputs = contract.target.classes if contract.target.type == "multiclass" else 1
        shape = encoder.feature_shape if encoder is not None else None
        model = build_label_model(contract.model, party.party, shape, widths, outputs=outputs, seed=contract.seed)
        model.load_state_dict(read_tensors(folder.model)[0])
        coder = LabelCoder.from_json(folder.label_coder.read_bytes())
        scores = predict_label_party(model, encoder, coder, here, ordered, widths, batch_size=contract.training.batch_size)
        assert output is not None
        _write_scores(here.select(party.keys.values()).hstack(scores), output)
        return {"rows": scores.height, "output": str(output), "learnt": alignment.learnt}

    def score_feature_party(channels: dict[str, Channel]) -> dict[str, Any]:
        channel = channels[contract.label_party]
        watcher.phase("handshake")
        agreement = shake_hands(contract, standing, channel)
        _same_run(agreement.align, folder)
        watcher.phase("alignment")
        told = watcher.progress
        alignment = intersect_feature_party(keys.ids, channel, rng=rng, max_rows=limit, threads=threads, progress=told)
        watcher.phase("prediction")
        assert encoder is not None
        bottom = build_bottom(contract.model, party.party, encoder.feature_shape, seed=contract.seed)
        bottom.load_state_dict(read_tensors(folder.model)[0])
        here = frame[keys.rows_U[alignment.rows_N]]
        predict_feature_party(bottom, encoder, here, channel, batch_size=contract.training.batch_size)
        return {"rows": len(alignment), "learnt": alignment.learnt}

    return with_sessions(contract, party, score_label_party if is_label else score_feature_party, watcher=watcher)


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
