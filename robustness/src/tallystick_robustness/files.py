"""Damage files: contract, party file, certificates, tables, and the files of a run folder and a ledger.

A file that people write goes through ``check`` and, if that finds nothing, through a run. A file that tallystick wrote goes
through the command that reads it: ``run --resume`` or ``predict``, with both parties in threads over real TLS. A damaged file
must be refused or do no harm. Weights, scores and totals that differ from the undamaged run's are a failure.
"""

import hashlib
import io
import json
import random
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from tallystick.check import check_party_file
from tallystick.errors import ConfigError, DataError, TallystickError
from tallystick.privacy.events import PureDP
from tallystick.privacy.ledger import Ledger
from tallystick_robustness.both import BOUND_S, BothEnded, copy_of_homes, interrupted, predicted, ran, undisturbed
from tallystick_robustness.fixture_job import LABEL, LEDGER, PARTIES, Homes, Values, contract, lay_out, tables
from tallystick_robustness.mutate import ODD_NUMBERS, TEXTS, spoil_bytes, spoil_tree
from tallystick_robustness.outcome import Campaign, CaseOutcome, Ended, attempt, broken_weights, hearing_warnings, outcome_of

_ROWS = 120
JOINT_WORDS = ("aligned", "common")  # in an error that needs both tables: how many rows they share, and how they are split

Damaged = tuple[str, Ended, str, str]
"""How a file was damaged, how the case ended unless it failed, the failure, and its detail."""


class Files(Campaign):
    """Campaign of damaged files. Its fixture is a job, an interrupted run and a finished run of it, and the results of both."""

    name, count, chunk = "files", 10_000, 50
    title = "Damaged files"
    meaning = (
        "refused: an error of ours. withstood: to the bits of the undamaged run, prediction or total. accepted: a file that a "
        "person might as well have written. failed: anything else, such as another exception, other weights or scores without a "
        "word, or a run that ends over what `check` had passed."
    )

    def __init__(self, scratch: Path, *, seed: int) -> None:
        """Make the undamaged files once."""
        super().__init__(scratch, seed=seed)
        values = contract(
            training__epochs=2,
            training__checkpoint_every=2,
            evaluation__bootstrap=2,
            audit=True,
            network={"heartbeat_s": 0.5, "deadline_s": 5.0, "wait_s": 10.0},
        )
        self._frames = tables(_ROWS)
        self._fresh = lay_out(scratch / "fresh", values, self._frames, listen="127.0.0.1:7443")
        for name in PARTIES:
            self._frames[name].write_csv(self._fresh.home(name) / "table.csv")
        self._half = copy_of_homes(self._fresh, scratch / "half")
        interrupted(self._half)
        self._done = copy_of_homes(self._fresh, scratch / "done")
        undisturbed(ran(self._done))
        self.digests = self._done.digests()
        scored = copy_of_homes(self._done, scratch / "scored")
        undisturbed(predicted(scored))
        self._scores = _digest_of_scores(scored)

    def copy_of_the_finished(self, name: str) -> Homes:
        """Copy the finished job, for a trial on it."""
        return copy_of_homes(self._done, self._scratch / name)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the campaign for its page."""
        return {"rows": _ROWS, "kinds": list(KINDS)}

    def kind(self, number: int) -> str:
        """Say which kind of file a case damages."""
        return _kind(self.draw(number))

    def case(self, number: int) -> CaseOutcome:
        """Run one case."""
        draw, began = self.draw(number), time.monotonic()
        kind = _kind(draw)
        if kind in _WRITTEN:
            what, damage, before = kind, self._written_by_people, self._fresh
        elif kind == "ledger":
            what, damage, before = kind, self._ledger, self._fresh
        elif kind in ("checkpoint", "alignment") or (kind == "note" and draw.random() < 0.5):
            what, damage, before = f"{kind}, run --resume", self._resumed, self._half
        else:
            what, damage, before = f"{kind}, predict", self._predicting, self._done
        homes = copy_of_homes(before, self._scratch / f"case-{number}")
        try:
            how, ended, failure, detail = damage(kind, homes, draw)
        finally:
            shutil.rmtree(homes.root, ignore_errors=True)
        return outcome_of(number, what, how, ended, seconds=time.monotonic() - began, failure=failure, detail=detail)

    def _written_by_people(self, kind: str, homes: Homes, draw: random.Random) -> Damaged:
        name = draw.choice(PARTIES)
        home = homes.home(name)
        if kind == "CSV table":
            values: Values = yaml.safe_load((homes.home(name) / "party.yaml").read_text())
            homes.write_party(name, values | {"table": {"path": "table.csv"}})
        _, file, spoil = _WRITTEN[kind]
        how, spoilt = spoil((home / file).read_bytes(), draw)
        (home / file).write_bytes(spoilt)
        with hearing_warnings() as warned:
            checked = attempt(lambda: check_party_file(home / "party.yaml", home / "contract.yaml"), bound_s=BOUND_S)
        if checked.failure or warned:
            return how, "refused", checked.failure or warned[0], checked.detail
        if checked.error is not None or checked.value["problems"]:
            return how, "refused", "", ""
        if kind in ("contract", "party file"):  # a file that passes may describe a job of any size, or one that writes elsewhere
            return how, "accepted", "", ""
        ended = ran(homes, first=name)
        failure = ended.failure or broken_weights(homes.root)
        own = ended.tried[name].error
        if not failure and own is not None and _is_own(own):
            failure = f"passes check, then ends the run: {kind}, {how}"
        same = ended.errors or homes.digests() == self.digests
        return how, ended.ended if same else "accepted", failure, ended.detail

    def _resumed(self, kind: str, homes: Homes, draw: random.Random) -> Damaged:
        name, file, how = _damage(kind, homes, draw)
        ended = ran(homes, resume=True, first=name)
        failure = ended.failure or ("" if ended.errors else broken_weights(homes.home(name) / "runs"))
        return how, ended.ended, failure or _silent(ended, kind, file, same=homes.digests() == self.digests), ended.detail

    def _predicting(self, kind: str, homes: Homes, draw: random.Random) -> Damaged:
        name, file, how = _damage(kind, homes, draw)
        ended = predicted(homes, first=name)
        failure = ended.failure or _silent(ended, kind, file, same=_digest_of_scores(homes) == self._scores)
        return how, ended.ended, failure, ended.detail

    def _ledger(self, kind: str, homes: Homes, draw: random.Random) -> Damaged:
        path = homes.home(LABEL) / LEDGER
        ledger = Ledger(path, party=LABEL)
        for number in range(4):
            ledger.spend("labels", PureDP(epsilon=0.5), what=f"release {number}")
        for beside in path.parent.glob(f"{path.name}-*"):  # SQLite's journal, from before the damage
            beside.unlink()
        how, spoilt = spoil_bytes(path.read_bytes(), draw)
        path.write_bytes(spoilt)
        reading = attempt(lambda: Ledger(path, party=LABEL).total("labels"), bound_s=BOUND_S)
        if not reading.failure and reading.error is None and reading.value != 2.0:
            return how, "withstood", f"a {kind} with another total than was spent", ""
        return how, "refused" if reading.error is not None else "withstood", reading.failure, reading.detail


def _damage(kind: str, homes: Homes, draw: random.Random) -> tuple[str, str, str]:
    """Damage a file of a kind in a party's newest run folder, and return the party, the file and the damage."""
    name = LABEL if kind == "label coder" else draw.choice(PARTIES)
    run = homes.latest(name)
    assert run is not None
    paths_of_kind = {
        "checkpoint": sorted((run / "checkpoints").glob("*.safetensors")),
        "alignment": [run / "alignment.safetensors"],
        "model": [run / "model.safetensors"],
        "encoder": [run / "encoder.json"],
        "label coder": [run / "label.json"],
        "note": sorted(path for path in run.glob("*.json") if path.name not in ("encoder.json", "label.json", "result.json")),
    }[kind]
    if not paths_of_kind:
        raise TallystickError(f"{run} holds no {kind}: the layout of run folders has changed, and this benchmark has not")
    path = draw.choice(paths_of_kind)
    if kind == "checkpoint" and draw.random() < 0.05:
        how = "a stray file beside it"
        stray = draw.choice(("step-abc.safetensors", "step--1.safetensors", "step-.safetensors", "step-1e9.safetensors"))
        shutil.copy(path, path.with_name(stray))
    elif draw.random() < 0.05:
        how = "deleted"
        path.unlink()
    else:
        how = spoil_sealed(path, draw)
    return name, path.name, f"{path.name}: {how}"


def _silent(ended: BothEnded, kind: str, file: str, *, same: bool) -> str:
    """Say that a damaged file was used. It is empty if the file was refused or did no harm."""
    return "" if ended.errors or same else f"a damaged file is used silently: {kind}, {file.partition('-')[0]}"


def _kind(draw: random.Random) -> str:
    (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
    return kind


def _is_own(error: TallystickError) -> bool:
    """Tell whether a run ended over a problem that this side could have found alone in its own files."""
    cause = error.__cause__ if error.__cause__ is not None else error
    return isinstance(cause, ConfigError | DataError) and not any(word in str(cause) for word in JOINT_WORDS)


def _digest_of_scores(homes: Homes) -> str:
    scores = homes.home(LABEL) / "scores.csv"
    return hashlib.sha256(scores.read_bytes()).hexdigest() if scores.exists() else ""


# --- how each kind of file is spoilt, in addition to blind damage

Spoil = Callable[[bytes, random.Random], tuple[str, bytes]]


def _spoil_yaml(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    act = draw.random()
    if act < 0.6:
        how, tree = spoil_tree(yaml.safe_load(content), draw)
        if isinstance(tree, dict) and tree.get("runs"):
            tree.pop("runs")
        return how, yaml.safe_dump(tree, sort_keys=False).encode("utf-8", "surrogatepass")
    if act < 0.75:
        tags = (
            "!!python/object:os.system",
            "!!int",
            "!!binary",
            "!!timestamp",
            "!!set",
            "!!omap",
            "!!null",
            "!x",
            "&a *a",
            "!!float",
        )
        lines = content.decode().splitlines()
        place = draw.randrange(len(lines))
        key, colon, rest = lines[place].partition(":")
        lines[place] = f"{key}: {draw.choice(tags)}{rest}" if colon else draw.choice(tags)
        return "an explicit tag", "\n".join(lines).encode()
    if act < 0.8:
        return "nested rubbish", b"a: " + draw.choice((b"[", b"{a: ", b"- ")) * draw.choice((50, 5000))
    return spoil_bytes(content, draw)


def _spoil_json(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Spoil a JSON file: half the time blindly, half the time in its tree."""
    if draw.random() < 0.5:
        return spoil_bytes(content, draw)
    try:
        how, tree = spoil_tree(json.loads(content), draw)
        return how, json.dumps(tree, default=repr).encode("utf-8", "surrogatepass")
    except ValueError:
        return spoil_bytes(content, draw)


def _spoil_pem(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    act = draw.random()
    if act < 0.1:
        return "another label", content.replace(b"CERTIFICATE", draw.choice((b"PUBLIC KEY", b"X509 CRL", b"PRIVATE KEY")))
    if act < 0.2:
        return "twice", content * 2
    if act < 0.3:
        return "a comment in UTF-8", "# Schlüssel für die Bank \U0001f511\n".encode() + content
    if act < 0.4:
        return "other line ends", content.replace(b"\n", draw.choice((b"\r\n", b"\r", b"", b" ")))
    return spoil_bytes(content, draw)


def _spoil_safetensors(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Spoil a safetensors file: half the time blindly, half the time in its header."""
    if draw.random() < 0.5:
        return spoil_bytes(content, draw)
    (length,) = struct.unpack_from("<Q", content)
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    act = draw.random()
    if act < 0.2:
        return "a header of another length", struct.pack("<Q", draw.choice((0, 1, 2**40, 2**63, length - 1))) + content[8:]
    if act < 0.4 and "__metadata__" in header:
        header["__metadata__"] = {name: draw.choice(TEXTS)[:200] for name in header["__metadata__"]}
        how = "other metadata"
    else:
        how, header = spoil_tree(header, draw)
    encoded = json.dumps(header, default=repr).encode("utf-8", "surrogatepass")
    return f"the header: {how}", struct.pack("<Q", len(encoded)) + encoded + body


def spoil_sealed(path: Path, draw: random.Random) -> str:
    """Spoil a file of a run folder, and say how."""
    spoil = _spoil_safetensors if path.suffix == ".safetensors" else _spoil_json
    how, spoilt = spoil(path.read_bytes(), draw)
    path.write_bytes(spoilt)
    return how


def _spoil_csv(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    if draw.random() < 0.3:
        return spoil_bytes(content, draw)
    lines = content.decode().splitlines()
    cells = [line.split(",") for line in lines]
    row, column = draw.randrange(1, len(cells)), draw.randrange(len(cells[0]))
    act = draw.choice(("a cell", "a column", "the header", "a row", "quotes", "encoding", "separator"))
    value = str(draw.choice((*ODD_NUMBERS, *TEXTS[:7], "NA", "null", "1,5", "1e999", "0x10", "True", "2020-01-01")))
    if act == "a cell":
        cells[row][column] = value
    elif act == "a column":
        for line in cells[1:]:
            line[column] = value
    elif act == "the header":
        cells[0][column] = draw.choice((*cells[0], "", value))
    elif act == "a row":
        cells[row] = draw.choice(([], cells[row] * 2, cells[row][:-1], cells[0]))
    elif act == "quotes":
        cells[row][column] = draw.choice(('"', '"a', 'a"b', '""', '"a\nb"'))
    text = draw.choice((";", "\t", "|")).join if act == "separator" else ",".join
    encoding = draw.choice(("utf-16", "latin-1", "utf-8-sig")) if act == "encoding" else "utf-8"
    return f"table: {act}", "\n".join(text(line) for line in cells).encode(encoding, "replace")


def _spoil_parquet(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    if draw.random() < 0.4:
        return spoil_bytes(content, draw)
    frame = pl.read_parquet(io.BytesIO(content))
    column = draw.choice(frame.columns)
    act = draw.choice(("retyped", "dropped", "renamed", "no rows", "one value", "missing values", "numbers", "repeated rows"))
    if act == "retyped":
        frame = draw.choice(
            (
                frame.with_columns(pl.col(column).cast(pl.Utf8)),
                frame.with_columns(pl.lit([1, 2]).alias(column)),
                frame.with_columns(pl.lit(b"x").alias(column)),
                frame.with_columns(pl.struct(pl.all()).alias(column)),
                frame.with_columns(pl.lit(None).alias(column)),
                frame.with_columns(pl.lit(1).cast(pl.Datetime).alias(column)),
                frame.with_columns(pl.col(column).cast(pl.Utf8).cast(pl.Categorical)),
            )
        )
    elif act == "dropped":
        frame = frame.drop(column)
    elif act == "renamed":
        frame = frame.rename({column: draw.choice(TEXTS[1:7])})
    elif act == "no rows":
        frame = frame.head(draw.choice((0, 1, 2)))
    elif act == "one value":
        frame = frame.with_columns(pl.lit(frame[column][0]).alias(column))
    elif act == "missing values":
        share = draw.choice((1, len(frame) // 2, len(frame)))
        frame = frame.with_columns(pl.when(pl.int_range(pl.len()) < share).then(None).otherwise(pl.col(column)).alias(column))
    elif act == "numbers":
        number = float(draw.choice(ODD_NUMBERS))
        place = draw.randrange(len(frame))
        frame = frame.with_columns(pl.when(pl.int_range(pl.len()) == place).then(number).otherwise(pl.lit(1.0)).alias(column))
    else:
        frame = pl.concat([frame, frame.head(draw.randrange(1, 20))])
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return f"table: {act}", buffer.getvalue()


_WRITTEN: dict[str, tuple[int, str, Spoil]] = {
    "contract": (12, "contract.yaml", _spoil_yaml),
    "party file": (11, "party.yaml", _spoil_yaml),
    "CA certificate": (4, "ca.pem", _spoil_pem),
    "certificate": (5, "own.pem", _spoil_pem),
    "key": (4, "own.key", _spoil_pem),
    "CSV table": (10, "table.csv", _spoil_csv),
    "Parquet table": (8, "table.parquet", _spoil_parquet),
}
"""Files that people write: their share of a hundred cases, the file, and how it is spoilt."""
KINDS = {kind: share for kind, (share, _, _) in _WRITTEN.items()} | {
    "checkpoint": 12,
    "alignment": 7,
    "model": 6,
    "encoder": 6,
    "label coder": 3,
    "note": 6,
    "ledger": 6,
}
"""Kinds of files, with their share of a hundred cases."""
