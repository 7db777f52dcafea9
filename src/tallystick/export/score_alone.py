"""Score rows by a student: a network of own columns that ``student.py`` kept in a folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from safetensors.torch import load_file

from tallystick.config.contract import Contract, parse_contract
from tallystick.config.party import PartyFile
from tallystick.cut.forward import SCORED_AT_A_TIME, logits_over
from tallystick.errors import ConfigError
from tallystick.job.prediction_output import RUN, check_columns, check_output, write_scores
from tallystick.models.split import LabelModel
from tallystick.run_folder.trained import Architecture
from tallystick.scoring.predict import scores_of
from tallystick.tables.encoder import Encoder
from tallystick.tables.later_doubts import later_doubts
from tallystick.tables.repeats import with_summaries
from tallystick.tables.table import read_rows
from tallystick.tables.target import LabelCoder

FACTS, WEIGHTS, ENCODER, CODER = "student.json", "model.safetensors", "encoder.json", "labels.json"


def score_by_student(student: Path, party: PartyFile, *, table: str | None, output: Path) -> dict[str, Any]:
    """Score rows by a student's own columns. No other party is asked, and nothing is sent.

    Args:
        student: the folder that ``make_student`` made.
        party: the label party's file.
        table: the rows, by path or address; by default the party file's table.
        output: CSV or Parquet file for keys and scores.

    Raises ConfigError for a folder that is not a student's or an output that cannot be written, DataError for a table that the
    student cannot read.
    """
    if not (student / FACTS).is_file():
        raise ConfigError(f"{student}: is not a student; `tallystick student` makes one")
    facts = json.loads((student / FACTS).read_bytes())
    contract = parse_contract(facts["contract"], source=str(student / FACTS))
    check_output(contract, party, output)
    encoder = Encoder.from_json((student / ENCODER).read_text(encoding="utf-8"))
    coder = LabelCoder.from_json((student / CODER).read_text(encoding="utf-8"))
    frame = with_summaries(read_rows(party.table_at(table), party, trained=encoder), party, contract.alignment)
    check_columns(contract, party, frame, output)
    encoder.check(frame)
    model = built_student(contract, party, encoder, networks=facts["networks"])
    model.load_state_dict(load_file(student / WEIGHTS))
    source, index_N = encoder.encode(frame).rows, torch.arange(frame.height)
    with torch.no_grad():
        logits_N = logits_over(model, source, torch.split(index_N, SCORED_AT_A_TIME), [])
    keys = frame.select(list(party.keys.values()))
    keys = keys if isinstance(keys, pl.DataFrame) else keys.collect()
    write_scores(keys.hstack(scores_of(coder, logits_N)).with_columns(pl.lit(facts["run"]).alias(RUN)), output)
    doubts = later_doubts(frame, encoder)
    return {"rows": frame.height, "output": str(output), "run": facts["run"]} | ({"doubts": doubts} if doubts else {})


def built_student(contract: Contract, party: PartyFile, encoder: Encoder, *, networks: int) -> LabelModel:
    """Build the network of a student, or of own columns alone, untrained."""
    architecture = Architecture.of(contract.of_own_columns(), party.party, device=party.device)
    return replace(architecture, folds=networks).label_model(encoder, [])
