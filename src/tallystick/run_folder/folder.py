"""Define the run folder: the files of a run on a party's own disk, from which a resumed run starts."""

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from tallystick.alignment.outcome import Alignment, Candidates, SimilarityScale
from tallystick.array_files import AnyArray, read_arrays, write_arrays
from tallystick.config.contract import Contract
from tallystick.encryption import FolderKey
from tallystick.errors import ConfigError, DamagedFile, StorageError, printable
from tallystick.msgspec_threads import prepared
from tallystick.privacy.randomness import SEED_BITS
from tallystick.run_folder.line_file import LINES, read_lines
from tallystick.run_folder.listing import (
    ANEW,
    FORMAT,
    contract_of,
    folders_of,
    of_another_text,
    require_format,
    run_prefix,
)
from tallystick.storage import (
    LOCK,
    ORIGIN,
    PARTIAL,
    Origin,
    check_sealed,
    locked,
    make_folder,
    new_folder,
    read_json,
    read_own,
    remove,
    write_bytes,
    write_json,
    write_own,
    written_folder,
)

if TYPE_CHECKING:
    from tallystick.training.checkpoint import CheckpointStore

ALIGNMENT = "alignment.safetensors"
ARRIVED = "arrived"
ERASED = "erased"
IMPUTATION = "imputation"
KEY_SPELLING = "key-spelling"
START = "start"
REPEATS = "order of an id's rows"
SAMPLE = "sample of ids"
DRAWN = "drawn"
SETTLED = "settled"
PACE = "pace"
WORKERS = "workers"
NOISY_KEYS = "noisy-keys.safetensors"
STARTING_POINT = "starting-point.safetensors"
TRIAL = "trial-"
_NEVER_ENCRYPTED = ("contract.json", "format", "run.log", "run.log.1", "tuned-contract.yaml")
"""Files that are never encrypted, in addition to ORIGIN and LOCK."""
_RESUME = "`tallystick run` with --resume on all sides makes it again from the last good checkpoint"
_HELPS = {
    "origin": "without it no file of this folder can be recognised as this run's: " + ANEW,
    "alignment": "without it no step can be resumed: " + ANEW + " (with `align`, `train` and `evaluate`: begin with `align`)",
    "defense": "the secret in it is lost, and drawing labels or noise again would be another release: " + ANEW,
    "imputation": "the seed in it is lost, and other rows would be imputed: " + ANEW,
    "settled": "the labels in it, which were imputed before training, are lost, and others would be drawn: " + ANEW,
    "workers": "the number of workers that training began with is lost: " + ANEW,
    "pace": "the number of batches in flight is lost, and the steps would differ: " + ANEW,
    "start": "the secret in it is lost, and training would start from other weights: " + ANEW,
    "starting-point": "the weights in it are lost, and training would start from others: " + ANEW,
    "release": "remove it to have the AUC released, and charged for, once more, or " + ANEW,
    "ledger": "remove it if privacy.ledger is the ledger that this run was charged to",
    "audit": "remove it and resume to have the audit made again, or " + ANEW,
}
"""How to repair a damaged file, by the stem of its name. All other files are made again by a resumed run."""


T = TypeVar("T")
Draw: TypeAlias = Callable[[str], bytes]
"""A function that returns 32 secret bytes for a use."""


def digest_of(secret: bytes) -> str:
    """Return a secret's name, which reveals nothing about the secret."""
    return hashlib.blake2b(secret, digest_size=16, person=b"tallystick drawn").hexdigest()


def fresh_secret(use: str) -> bytes:  # noqa: ARG001
    """Draw new bytes from the operating system at each call. This is a Draw."""
    return secrets.token_bytes(32)


class SavedCandidates(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about candidates, kept with their arrays."""

    rows: int
    scale: tuple[float, float, float] | None = None


class SavedAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an alignment, kept with its rows."""

    run_id: str
    table: str
    method: str
    sizes: dict[str, int]
    learnt: list[str]
    multiplications: int
    candidates: dict[str, SavedCandidates] = {}


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Paths of one run: alignment, checkpoints, model and encoders, result and report.

    Args:
        path: the folder.
        origin: the run to which its files say that they belong.
        draw: source of the secrets that the folder keeps: the operating system, or a seed in a simulation.
        trial_name: name of a trial of a search; empty for a run.
    """

    path: Path
    origin: Origin
    draw: Draw = field(default=fresh_secret, repr=False, compare=False)
    trial_name: str = ""

    @classmethod
    def new(cls, runs: Path, contract: Contract, party: str, *, use: str = "", key: FolderKey | None) -> "RunFolder":
        """Make the folder of a party's new run, or of another ``use`` of the contract. Earlier folders stay.

        With a ``key`` its files are encrypted. The argument is required, so that no caller omits the key by accident.
        """
        path = new_folder(runs, run_prefix(contract, use), number=len(folders_of(runs, contract, use)) + 1)
        write_bytes(path / "format", f"{FORMAT}\n".encode())
        origin = Origin.create(path, party=party, contract=contract.hash, key=key)
        write_bytes(path / "contract.json", contract.canonical_json().encode())  # its hash, which the origin has, is its digest
        return cls(path=path, origin=origin)

    @classmethod
    def open(cls, path: Path, *, key: FolderKey | None = None) -> "RunFolder":
        """Open an existing run folder.

        Raises ConfigError for one of another version or with another key, DamagedFile for one without a valid origin.
        """
        require_format(path)
        return cls(path=path, origin=_advised(partial(Origin.of, path, key=key), path / ORIGIN))

    @classmethod
    def latest(cls, runs: Path, contract: Contract, party: str, *, use: str = "", key: FolderKey | None = None) -> "RunFolder":
        """Find a party's last run, or other ``use``, of this contract. Raises ConfigError if there is none."""
        folder = next(cls.all(runs, contract, party, use=use, key=key), None)
        if folder is not None:
            return folder
        raise ConfigError(
            f"no {f'{use} ' if use else ''}run of contract {contract.name} ({contract.hash[:8]}) in {runs}"
            f"{of_another_text(runs, contract)}; "
            f"begin one with {f'`tallystick {use}`' if use else '`tallystick run` or `tallystick align`'}, without --resume"
        )

    @classmethod
    def all(
        cls,
        runs: Path,
        contract: Contract,
        party: str,
        *,
        use: str = "",
        unusable: bool = True,
        key: FolderKey | None = None,
    ) -> Iterator["RunFolder"]:
        """Yield a party's runs of this contract, the last one first, each checked when it is asked for.

        Raises for an ``unusable`` folder, as RunFolder.open does, or skips it.
        """
        for path in reversed(folders_of(runs, contract, use)):
            if not ((path / "contract.json").exists() or (path / ALIGNMENT).exists()):
                continue  # killed while it was being made
            try:
                folder = cls.open(path, key=key)
                folder.require(contract)
            except (ConfigError, StorageError):
                if unusable:
                    raise
                continue
            if folder.origin.party == party:  # several parties may keep their runs in one place
                yield folder

    @property
    def run_id(self) -> str:
        """Return the run's id, which all its parties know. It is empty before the alignment."""
        path = self.path / ALIGNMENT
        if not path.exists():
            return ""
        _, metadata = _advised(partial(read_arrays, path, origin=self.origin, only_metadata=True), path)
        return msgspec.json.decode(metadata["alignment"], type=prepared(SavedAlignment)).run_id

    def require(self, contract: Contract) -> None:
        """Raise DamagedFile if this run's contract is not the one that its name says."""
        if self.origin.contract != contract.hash:
            why = f"it is of contract {printable(self.origin.contract[:8])}; expected {contract.hash[:8]}"
            raise DamagedFile(self.path / ORIGIN, why, "give the folder back the name that it had")

    def require_rows(self) -> None:
        """Raise ConfigError if this run's per-row values were erased."""
        if facts := self.noted(ERASED):
            raise ConfigError(
                f"{self.path}: persons were erased from it on {facts['on']}, and with them everything that it kept by row; "
                "begin a new run on all sides, without --resume"
            )

    def contract(self) -> Contract:
        """Read the contract of the run, which is never encrypted. Raises DamagedFile if it was replaced by another one."""
        contract = contract_of(self.path)
        if contract.hash != self.origin.contract:
            why = f"it is contract {contract.hash[:8]}; this run is of {printable(self.origin.contract[:8])}"
            raise DamagedFile(self.path / "contract.json", why, "put the right one back")
        return contract

    @property
    def result(self) -> Path:
        """Return the path of this party's result as JSON."""
        return self.path / "result.json"

    @property
    def report(self) -> Path:
        """Return the path of this party's report."""
        return self.path / "report.html"

    @property
    def encoder(self) -> Path:
        """Return the path of the fitted encoder of this party's columns."""
        return self.path / "encoder.json"

    @property
    def label_coder(self) -> Path:
        """Return the path of the label party's coding of labels."""
        return self.path / "label.json"

    @property
    def model(self) -> Path:
        """Return the path of this party's trained part of the network."""
        return self.path / "model.safetensors"

    @property
    def model_before_refit(self) -> Path:
        """Return the path of the model that the validation rows chose, if training was repeated with them."""
        return self.path / "model-before-refit.safetensors"

    @property
    def views(self) -> Path:
        """Return the folder of what crossed the cut, recorded for an audit: one folder per peer."""
        return self.path / "view"

    @property
    def scores(self) -> Path:
        """Return the path of the label party's test rows: the joint model's scores and the labels."""
        return self.path / "scores.parquet"

    @property
    def trained(self) -> bool:
        """Tell whether training has ended."""
        return self.model.exists()

    @property
    def began_training(self) -> bool:
        """Tell whether a step of the joint training was committed, whether or not its file is intact."""
        return any((self.path / "checkpoints").glob("step-*.safetensors"))

    @property
    def starts_from_a_run(self) -> bool:
        """Tell whether training starts from another run's weights (``run_folder/initial_weights.py``)."""
        return (self.path / STARTING_POINT).exists()

    def complete(self, contract: Contract) -> bool:
        """Tell whether other parties are told that this run can be used.

        A run can be used when its training has ended. Without gradients that depends on labels at the label party: there a run
        can be used when its embeddings have arrived, whether or not its training has ended.
        """
        at_home = self.origin.party == contract.label_party and not contract.sends_gradients
        return self.trained or (at_home and bool(self.noted(ARRIVED)))

    def locked(self) -> AbstractContextManager[None]:
        """Reserve this folder for this process. Raises ConfigError if another process works in it."""
        return locked(self.path)

    def check(self, *, trained: bool = False) -> None:
        """Read the files that the next step needs, before any party is told of the run. Raises DamagedFile with advice.

        ``trained``: check the model and its files as well. A resumed training does not need them, because it has checkpoints.
        """
        self.load_alignment()
        for name in self.noted(DRAWN):
            self.secret(name)
        if trained and self.trained:
            coders = [path for path in (self.encoder, self.label_coder) if path.exists()]
            for path in (*self._of_model(), *coders):
                _advised(partial(check_sealed, path, origin=self.origin), path)

    def damage(self) -> list[DamagedFile]:
        """List the damage of a trained model. The list is empty if the model can be used."""
        damaged = []
        for path in self._of_model() if self.trained else ():
            try:
                check_sealed(path, origin=self.origin)
            except DamagedFile as error:
                damaged.append(error)
        return damaged

    def _of_model(self) -> list[Path]:
        before = [self.model_before_refit] if self.model_before_refit.exists() else []
        return [self.model, self.path / "training.json", *before]

    def steps(self) -> tuple[list[int], list[DamagedFile]]:
        """List the steps from which training can be resumed, oldest first, and the damage of the other files.

        A refit needs the model before it, which only the training can make again.
        """
        if not self.began_training:
            return [], []
        store = self.store()
        steps, damaged = store.intact()
        if refits := [step for step in steps if store.state(step).refit_epochs]:
            try:
                check_sealed(self.model_before_refit, origin=self.origin)
            except DamagedFile as error:
                return [step for step in steps if step not in refits], [*damaged, error]
        return steps, damaged

    def trial(self, number: int) -> "RunFolder":
        """Return the folder of one trial of a search. It is made if necessary.

        All trials start from the same secret weights, so a peer sees the same rows through one first model, not through many. On
        a union they also use the same stand-ins: in the first step of each trial real rows look alike, so stand-ins must look
        alike as well.
        """
        path = self.path / f"{TRIAL}{number}"
        make_folder(path)
        same: dict[str, Draw] = {
            START: lambda _: self.start_secret(),
            IMPUTATION: lambda _: self.secret_seed().to_bytes(SEED_BITS // 8, "big"),
        }
        return replace(self, path=path, draw=lambda use: same.get(use, self.draw)(use), trial_name=path.name)

    def store(self, name: str = "checkpoints") -> "CheckpointStore":
        """Return the checkpoints of the joint training, or of another training by its name."""
        from tallystick.training.checkpoint import CheckpointStore

        return CheckpointStore(self.path / name, origin=self.origin)

    def save_alignment(self, alignment: Alignment, *, run_id: str, table: str) -> None:
        """Keep an alignment. ``table`` is the fingerprint of its ids."""
        saved = SavedAlignment(
            run_id=run_id,
            table=table,
            method=alignment.method,
            sizes=alignment.sizes,
            learnt=alignment.learnt,
            multiplications=alignment.multiplications,
            candidates={
                name: SavedCandidates(rows=c.rows, scale=astuple(c.scale) if c.scale is not None else None)
                for name, c in alignment.candidates.items()
            },
        )
        arrays: dict[str, AnyArray] = {"rows": alignment.rows_N}
        if alignment.uids_N16 is not None:
            arrays["uids"] = alignment.uids_N16
        if alignment.key_N is not None:
            arrays["keys"] = alignment.key_N
        for name, found in alignment.candidates.items():
            arrays[f"{name} numbers"] = found.numbers_NK.astype(np.int32)
            if found.own_rows is not None:
                arrays[f"{name} own rows"] = found.own_rows
            if found.similarity_NK is not None:
                arrays[f"{name} similarities"] = found.similarity_NK
        path = self.path / ALIGNMENT
        write_arrays(path, arrays, {"alignment": msgspec.json.encode(saved).decode()}, origin=self.origin)

    def load_alignment(self) -> tuple[SavedAlignment, Alignment] | None:
        """Load the kept alignment, or return None if the run did not get that far."""
        path = self.path / ALIGNMENT
        if not path.exists():
            return None
        arrays, metadata = _advised(partial(read_arrays, path, origin=self.origin), path)
        saved = msgspec.json.decode(metadata["alignment"], type=prepared(SavedAlignment))
        candidates = {}
        for name, facts in saved.candidates.items():
            scale = SimilarityScale(mean=facts.scale[0], deviation=facts.scale[1], sigma=facts.scale[2]) if facts.scale else None
            candidates[name] = Candidates(
                numbers_NK=arrays[f"{name} numbers"].astype(np.int64),
                rows=facts.rows,
                own_rows=arrays.get(f"{name} own rows"),
                similarity_NK=arrays.get(f"{name} similarities"),
                scale=scale,
            )
        alignment = Alignment(
            method=saved.method,
            rows_N=arrays["rows"].astype(np.int64),
            sizes=saved.sizes,
            learnt=saved.learnt,
            uids_N16=arrays.get("uids"),
            key_N=arrays.get("keys"),
            candidates=candidates,
            multiplications=saved.multiplications,
        )
        return saved, alignment

    def save_noisy_keys(self, numbers_RD: np.ndarray[Any, np.dtype[np.float64]], *, of: str) -> None:
        """Keep keys with noise that was charged. ``of`` is a digest of the true keys and of the terms."""
        arrays = {"numbers": numbers_RD}
        write_arrays(self.path / NOISY_KEYS, arrays, {"of": of}, origin=self.origin, private=True)

    def load_noisy_keys(self, *, of: str) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """Load noisy keys that were drawn earlier for the same keys, if any: drawing again would reveal more about them."""
        path = self.path / NOISY_KEYS
        if not path.exists():
            return None
        arrays, metadata = _advised(partial(read_arrays, path, origin=self.origin), path)
        return np.asarray(arrays["numbers"], dtype=np.float64) if metadata.get("of") == of else None

    def forget_training(self) -> None:
        """Delete everything that depends on an alignment that is about to be made again."""
        stale = [
            self.path / ALIGNMENT,
            self.model,
            self.model_before_refit,
            *(self.path / "checkpoints").glob("*.safetensors"),
        ]
        # Positions change: label flips that are kept by position would be drawn again, which is another release.
        stale += [self.path / f"{name}.json" for name in ("defense", "audit", "release", "linkage", ARRIVED)]
        if digests := self.noted(DRAWN):
            self.note(DRAWN, {name: digest for name, digest in digests.items() if (self.path / f"{name}.json") not in stale})
        for path in stale:
            remove(path)
        self.forget_views()

    def forget_views(self) -> None:
        """Delete the recorded views of the cut."""
        shutil.rmtree(self.views, ignore_errors=True)

    def make_views(self) -> None:
        """Make the folder of the views."""
        make_folder(self.views)

    def note(self, name: str, facts: dict[str, object], *, private: bool = False) -> None:
        """Keep facts of a phase for a later step or a resumed run. ``private`` facts contain a secret."""
        write_json(self.path / f"{name}.json", json.dumps(facts).encode(), origin=self.origin, private=private)

    def noted(self, name: str) -> dict[str, object]:
        """Return the facts kept under a name; empty if there are none. Raises DamagedFile with advice."""
        path = self.path / f"{name}.json"
        if not path.exists():
            return {}
        facts: dict[str, object] = json.loads(self.read_json(path))
        return facts

    def required(self, name: str) -> dict[str, object]:
        """Return facts that a run needs. Raises DamagedFile with advice if they are missing."""
        if facts := self.noted(name):
            return facts
        raise DamagedFile(self.path / f"{name}.json", "it is missing", _HELPS[name])

    def secret_seed(self) -> int:
        """Draw the seed of what this party imputes on a union, or return the seed of the resumed run. It stays secret."""
        seed_before = self.noted(IMPUTATION).get("seed")
        if seed_before is None and self.began_training:
            raise DamagedFile(self.path / f"{IMPUTATION}.json", "it is missing", _HELPS[IMPUTATION])
        seed = seed_before if isinstance(seed_before, int) else int.from_bytes(self.draw(IMPUTATION)[: SEED_BITS // 8], "big")
        self.note(IMPUTATION, {"seed": seed}, private=True)
        return seed

    def start_secret(self) -> bytes:
        """Draw the secret of this party's starting weights, or return that of the resumed run. It stays secret."""
        return self.secret(START)

    def secret(self, name: str) -> bytes:
        """Draw 32 secret bytes and keep them under a name, or return those of the resumed run.

        The run keeps a digest of each secret. A lost secret is not drawn again, and another one is not accepted. Raises
        DamagedFile with advice.
        """
        path, noted, digests = self.path / f"{name}.json", self.noted(name), self.noted(DRAWN)
        secret_before = noted.get("secret")
        if not isinstance(secret_before, str) and (name in digests or self.began_training):
            raise DamagedFile(path, "it is missing", _HELPS[name])
        secret = bytes.fromhex(secret_before) if isinstance(secret_before, str) else self.draw(name)
        if not secret_before:
            self.note(name, {**noted, "secret": secret.hex()}, private=True)
        if name not in digests:
            self.note(DRAWN, {**digests, name: digest_of(secret)})
        elif digests[name] != digest_of(secret):
            raise DamagedFile(path, "it holds another secret than this run began with", _HELPS[name])
        return secret

    def write(self, path: Path, text: str) -> None:
        """Write one of this folder's JSON files, sealed."""
        write_json(path, text.encode(), origin=self.origin)

    def write_output(self, path: Path, content: bytes) -> None:
        """Write one of this folder's files for people. It has no seal."""
        write_own(path, content, origin=self.origin, private=True)

    def copy_plain(self, to: Path) -> None:
        """Make an unencrypted copy of the folder, or none.

        Raises DamagedFile for a file that cannot be decrypted, or that is not encrypted although it should be.
        """
        with written_folder(to) as new:
            for path in sorted(self.path.rglob("*")):
                copy = new / path.relative_to(self.path)
                if path.is_dir():
                    make_folder(copy)
                elif path.name == ORIGIN:
                    plain = replace(self.origin, folder=new, key=None)
                    facts = {"run": plain.run, "party": plain.party, "contract": plain.contract}
                    write_json(copy, json.dumps(facts).encode(), origin=plain)
                elif path.suffix == LINES:
                    write_bytes(copy, *(line + b"\n" for line in read_lines(path, origin=self.origin)), private=True)
                elif path.name != LOCK and not path.name.endswith(PARTIAL):
                    never = path.parent == self.path and path.name in _NEVER_ENCRYPTED
                    write_bytes(copy, path.read_bytes() if never else read_own(path, origin=self.origin), private=True)

    def read_json(self, path: Path) -> bytes:
        """Read one of this folder's JSON files. Raises DamagedFile with advice."""
        return _advised(partial(read_json, path, origin=self.origin), path)

    @staticmethod
    def advised(path: Path, read: Callable[[], T]) -> T:
        """Call ``read`` for this file. Raises DamagedFile with advice."""
        return _advised(read, path)


def _advised(read: Callable[[], T], path: Path) -> T:
    """Call ``read`` for a file. Raises DamagedFile with advice."""
    try:
        return read()
    except DamagedFile as error:
        raise DamagedFile(path, error.why, _HELPS.get(path.stem, _RESUME)) from None
