"""A tiny job: its tables, its contract, its files on disk, and its parties as processes."""

import faulthandler
import json
import multiprocessing
import os
import secrets
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import yaml
from safetensors.torch import load_file, save
from threadpoolctl import ThreadpoolController

from tallystick.alignment import group, psi_malicious, psi_oprf, workers
from tallystick.alignment.oprf import base_transfers
from tallystick.alignment.randomness import SecureRandom
from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS
from tallystick.attacks.feature_inference.evaluate import draws_of_known
from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.linkage.attack_table import LINKAGE_ATTACKS
from tallystick.attacks.linkage.cells import Cells
from tallystick.attacks.linkage.texts import TEXT_ATTACKS
from tallystick.attacks.linkage.trilateration import Trilateration
from tallystick.attacks.membership import evaluate as membership
from tallystick.attacks.membership.attack_table import MEMBERSHIP_ATTACKS
from tallystick.audit import columns as audit_of_columns
from tallystick.audit import located_keys
from tallystick.cli.main import main
from tallystick.config.contract import load_contract
from tallystick.config.party import load_party
from tallystick.dataset import drawn_labels
from tallystick.demo.homes import write_job
from tallystick.errors import TallystickError
from tallystick.job.phases import align
from tallystick.network.addresses import free_port
from tallystick.network.session import Limits
from tallystick.privacy.ledger import Ledger

EXPONENT_BYTES = 64  # what SecureRandom reduces to a secret exponent
PATIENCE_S = 240  # a hang, even on a machine that is very busy
QUICK = Limits(heartbeat_s=0.2, deadline_s=1.5, wait_s=10.0, max_message_bytes=32 << 20)


def tables(parties, *, rows, seed=1, target="binary"):
    """Make one table per party, with about nine tenths of the ids in common. The label depends on all parties' columns."""
    rng = np.random.default_rng(seed)
    label = parties[0]
    signal = rng.normal(size=(rows, len(parties)))
    score = signal.sum(axis=1) + 0.3 * rng.normal(size=rows)
    targets = {
        "binary": (score > 0).astype(np.int64),
        "multiclass": np.digitize(score, [-0.7, 0.7]),
        "regression": 100 + 20 * score,
    }
    ids = [f"id-{number:06}" for number in range(rows)]
    frames = {}
    for index, name in enumerate(parties):
        frame = pl.DataFrame(
            {
                "id": ids,
                "x": signal[:, index] + 0.1 * rng.normal(size=rows),
                "noise": rng.normal(size=rows),
                "kind": rng.choice(["red", "green", "blue"], size=rows),
            }
        )
        if name == label:
            frame = frame.with_columns(y=targets[target], weight=rng.uniform(0.5, 2, size=rows), day=np.arange(rows) % 100)
        keep = rng.permutation(rows)[: rows - rows // 20]
        frames[name] = frame[keep]
    return frames


def columns(parties):
    """Return what each party's file says of its columns."""
    features = {"numeric": ["x", "noise"], "categorical": ["kind"]}
    return {
        name: {"keys": {"id": "id"}, "features": features, **({"label": "y"} if name == parties[0] else {})} for name in parties
    }


def contract_values(parties, **changes):
    """Return a contract for a small, quick job; nested keys are given with a double underscore: training__epochs=3.

    No model is trained on the label party's columns alone, weights are compared once an epoch, and no column is measured. A test
    of these asks for them.
    """
    values = {
        "version": 1,
        "name": "tiny",
        "parties": {name: {"role": "label" if name == parties[0] else "feature"} for name in parties},
        "alignment": {"method": "intersection", "keys": [{"name": "id"}]},
        "target": {"type": "binary"},
        "split": {"method": "hash", "validation": 0.1, "test": 0.2},
        "model": {"embedding_width": 2, "hidden": [8, 8], "cut_after": 1},
        "training": {
            **{"epochs": 2, "batch_size": 128, "learning_rate": 0.01, "patience": None, "checkpoint_every": 5},
            **{"optimizer": "adam", "schedule": "constant", "ema": 0.5, "folds": 1, "validations": 1},
        },
        "evaluation": {
            **{"calibration_bins": 5, "bootstrap": 10, "own_columns_baseline": False, "own_columns_boosting": False},
            "importance": {"own_columns": False},
        },
        "audit": False,
        "network": {"heartbeat_s": 0.5, "deadline_s": 3.0, "wait_s": 120.0},
        "seed": 1,
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = values
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return values


_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tallystick_robustness.preloaded"])


class _LeftToTheKernel(sqlite3.Connection):
    """A database that does not wait for a disk."""

    def execute(self, statement, *values):
        return super().execute("PRAGMA synchronous=OFF" if statement == "PRAGMA synchronous=EXTRA" else statement, *values)


def leave_files_to_the_kernel():
    """Make this process wait for no disk: after a kill the kernel still writes what it has, and no test cuts the power.

    A job writes some fifty files, each with two waits; tests/test_storage.py tests what is waited for, and in which order. A
    ledger's database waits several times for each release.
    """
    os.fsync = os.fstat  # which also raises if there is no such file
    sqlite3.connect = partial(sqlite3.dbapi2.connect, factory=_LeftToTheKernel)


def seed_system(monkeypatch, seed=0):
    """Seed what jobs in threads take from the operating system, with a stream per thread, hence per party.

    Secret exponents have streams of their own. So they are alike in many tests, whatever was drawn before, and their products are
    remembered.
    """
    streams = {}

    def stream(name, *use):
        if (name, use) not in streams:
            streams[name, use] = np.random.default_rng([seed, *use, *name.encode()])
        return streams[name, use]

    def draw(count):
        name = threading.current_thread().name
        drawn = stream(name).bytes(count)
        return stream(name, count).bytes(count) if count == EXPONENT_BYTES else drawn

    monkeypatch.setattr(secrets, "token_bytes", draw)
    monkeypatch.setattr(secrets, "randbits", lambda bits: int.from_bytes(draw(bits // 8 + 1)) % (1 << bits))
    monkeypatch.setattr(align, "SecureRandom", partial(SecureRandom, source=draw))


def short_trainings(patch):
    """Let attacks that train a model take a few steps, for tests of what an audit says, and not of how well an attack reads."""
    for row in (*LABEL_INFERENCE_ATTACKS.values(), *FEATURE_INFERENCE_ATTACKS.values()):
        for attack in (row.attack, *getattr(row.attack, "parts", ())):
            if vars(attack).get("steps", 0) > 20:
                patch.setitem(vars(attack), "steps", 20)


def short_unions(patch):
    """Let a union learn the labels that it draws, and its audit's discriminator, in few steps, and draw few replicates."""
    for attack in (attack for table in MEMBERSHIP_ATTACKS.values() for attack in table.values()):
        if vars(attack).get("steps", 0) > 20:
            patch.setitem(vars(attack), "steps", 20)
    patch.setitem(vars(membership.EVALUATOR), "replicates", 20)
    patch.setattr(drawn_labels, "LEAST_STEPS", 30)


def few_places(patch, most=60):
    """Let attacks on links look for a few places of a sample, and name texts from one start, for tests of what a job says of its
    links.
    """
    for row in TEXT_ATTACKS.values():
        for bound in {"tries", "starts"} & set(vars(row.attack)):
            patch.setitem(vars(row.attack), bound, 1)
    for row in LINKAGE_ATTACKS.values():
        for bound in {"positions", "numbers"} & set(vars(row.attack)):
            patch.setitem(vars(row.attack), bound, most)
    patch.setattr(located_keys, "Cells", partial(Cells, positions=most))
    patch.setattr(located_keys, "Trilateration", partial(Trilateration, numbers=most))


def _remembered(work, most):
    """Wrap work on group elements so that its last results, ``most`` of them, are kept."""
    known = {}

    def key_of(argument):
        if isinstance(argument, bytes | np.ndarray):
            return bytes(argument)
        return bytes(argument._buffer) if isinstance(argument, group.Scalar) else tuple(map(key_of, argument))

    def found(*arguments):
        key = key_of(arguments)
        result = known.get(key)
        if result is None:
            if len(known) >= most:
                known.clear()
            result = known[key] = work(*arguments)
        return result.copy()

    return found


class _Rows:
    """Rows of 32 bytes by what they were made of: the last that were made, ``most`` of them or a few more."""

    def __init__(self, most):
        self._known, self._most = {}, most

    def of(self, keys, make):
        """Return the row of each key. ``make`` makes those at the given places."""
        rows = [self._known.get(key) for key in keys]
        places = [place for place, row in enumerate(rows) if row is None]
        if len(self._known) > self._most:
            self._known.clear()
        for place, row in zip(places, make(places) if places else (), strict=True):
            rows[place] = self._known[keys[place]] = row.tobytes()
        return np.frombuffer(bytearray().join(rows), dtype=np.uint8).reshape(-1, group.ELEMENT_BYTES)


_POINTS, _PRODUCTS = _Rows(30_000), _Rows(60_000)


def _point_of_each(ids):
    keys = list(ids)
    return _POINTS.of(keys, lambda places: group.hash_to_group([keys[place] for place in places]))


def _product_of_each(elements_B32, scalar):
    secret, elements = bytes(scalar._buffer), elements_B32.tobytes()
    keys = [secret + elements[start : start + group.ELEMENT_BYTES] for start in range(0, len(elements), group.ELEMENT_BYTES)]
    try:
        return _PRODUCTS.of(keys, lambda places: group.multiply(elements_B32[places], scalar))
    except group.InvalidElement:
        return group.multiply(elements_B32, scalar)  # names the place among all


_REMEMBERED = [
    (workers, "multiply", _product_of_each),
    (workers, "hash_to_group", _point_of_each),
    (base_transfers, "multiply", _remembered(group.multiply, 20_000)),
    *((base_transfers, name, _remembered(getattr(group, name), 256)) for name in ("add", "subtract", "elements_of", "generated")),
]


def remember_products():
    """Let alignments remember products of group elements: with seeded streams and the same ids many tests make the same."""
    for module, name, remembered in _REMEMBERED:
        setattr(module, name, remembered)


def remember_libraries():
    """Look for libraries of linear algebra only after a module was loaded, because each job sets their threads, and
    would look.
    """
    look, known = ThreadpoolController._load_libraries, {}

    def load(controller):
        loaded = len(sys.modules)
        controllers = known.get(loaded)
        if controllers is None:
            look(controller)
            known.clear()
            controllers = known[loaded] = controller.lib_controllers
        controller.lib_controllers = list(controllers)

    ThreadpoolController._load_libraries = load


def one_draw_of_known_rows(patch):
    """Let attacks on columns know one draw of rows instead of three, for tests of what an audit says."""
    patch.setitem(draws_of_known.__kwdefaults__, "draws", 1)


def few_column_attacks(patch):
    """Leave a feature party's audit the quick attacks, for tests of labels, which the others only make slower."""
    quick = {name: row for name, row in FEATURE_INFERENCE_ATTACKS.items() if row.quick}
    patch.setattr(audit_of_columns, "FEATURE_INFERENCE_ATTACKS", quick)


def _command(arguments, folder, out, err, bucket_ids, before=None):
    """Run the tallystick command in a separate process, with these ends of pipes as standard output and error."""
    if before is not None:
        before()
    if bucket_ids is not None:
        psi_oprf.BUCKET_IDS = psi_malicious.BUCKET_IDS = bucket_ids
    for own, stream in ((out, 1), (err, 2)):
        os.dup2(own.fileno(), stream)
        own.close()
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    leave_files_to_the_kernel()
    faulthandler.enable()  # a command that hangs is aborted, and says where it was
    sys.argv = ["tallystick", *arguments]
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    main()


def _program(text, arguments, out):
    os.dup2(out.fileno(), 1)
    out.close()
    sys.argv, sys.stdout = ["-c", *arguments], os.fdopen(1, "w")
    exec(text, {"__name__": "__main__"})
    sys.stdout.flush()


def said_by(text, *arguments):
    """Return what a program prints in a process that has the library loaded, because loading takes longer than most programs. A
    hang fails.
    """
    out, out_end = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_program, args=(text, arguments, out_end))
    process.start()
    out_end.close()
    process.join(PATIENCE_S)
    if process.is_alive():
        process.kill()
        process.join()
    with os.fdopen(os.dup(out.fileno())) as lines:
        out.close()
        said = lines.read()
    assert process.exitcode == 0, (process.exitcode, said)
    return said


class Command:
    """A tallystick command as a process: what it says, as it says it.

    ``bucket_ids`` makes an alignment's buckets smaller; ``before`` is called in the process first, to plant a fault.
    """

    def __init__(self, *arguments, folder, bucket_ids=None, before=None):
        self.events, self.said, self.out = [], [], ""
        self._news = threading.Condition()
        out, out_end = _PROCESSES.Pipe(duplex=False)
        err, err_end = _PROCESSES.Pipe(duplex=False)
        self.process = _PROCESSES.Process(
            target=_command, args=([str(part) for part in arguments], str(folder), out_end, err_end, bucket_ids, before)
        )
        self.process.start()
        out_end.close()
        err_end.close()
        self._threads = [threading.Thread(target=self._follow, args=(err,)), threading.Thread(target=self._read, args=(out,))]
        for thread in self._threads:
            thread.start()

    def _follow(self, end):
        with os.fdopen(os.dup(end.fileno())) as lines:
            end.close()
            for line in lines:
                with self._news:
                    try:
                        self.events.append(json.loads(line))
                    except ValueError:
                        self.said.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self.events.append({"ended": True})
            self._news.notify_all()

    def _read(self, end):
        with os.fdopen(os.dup(end.fileno())) as text:
            end.close()
            self.out = text.read()

    def wait_for(self, matches, timeout=PATIENCE_S):
        """Wait until an event matches. Fail if the process ends or is silent before."""

        def seen():
            return next((event for event in self.events if "ended" in event or matches(event)), None)

        with self._news:
            assert self._news.wait_for(lambda: seen() is not None, timeout), f"nothing of the kind in {self.events}"
            found = seen()
        assert "ended" not in found, f"ended too early: {self.said}"
        return found

    def phase(self, name, timeout=PATIENCE_S):
        return self.wait_for(lambda event: event.get("phase") == name, timeout)

    def end(self, timeout=PATIENCE_S):
        """Wait for the end. Return the exit code."""
        self.process.join(timeout)
        ended = self.process.exitcode is not None
        if not ended:
            os.kill(self.process.pid, signal.SIGABRT)
            self.process.join(5)
        self.close()
        assert ended, f"still running after {timeout} s: {self.events[-5:]} {self.said}"
        return self.process.exitcode

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(10)

    @property
    def error(self):
        """Return the last line of standard error."""
        return self.said[-1] if self.said else ""

    @property
    def found(self):
        """Return the JSON object that is the last line of its output."""
        return json.loads(self.out.splitlines()[-1])

    def close(self):
        if self.process.is_alive():
            self.kill()
        for thread in self._threads:
            thread.join(10)


@dataclass
class OnDisk:
    """A job laid out on disk: a home per party, with its table, certificates, party file and contract.

    ``before`` is called first in each of its processes that has none of its own.
    """

    root: Path
    parties: tuple
    bucket_ids: int | None = None
    before: Callable | None = None
    started: list = field(default_factory=list)

    def home(self, party):
        return self.root / party

    def change(self, party, file="party.yaml", **changes):
        """Change keys of one party's file; None removes one. A cap gets the ledger that is there."""
        path = self.home(party) / file
        values = yaml.safe_load(path.read_text())
        if "cap" in (privacy := changes.get("privacy") or {}):
            ledger = self.home(party) / privacy.get("ledger", "privacy-ledger.sqlite")
            named = {"identity": Ledger(ledger, party=party).identity} if ledger.exists() else {}
            changes["privacy"] = {**named, **privacy}
        for name, value in changes.items():
            if value is None:
                values.pop(name, None)
            else:
                values[name] = value
        path.write_text(yaml.safe_dump(values, sort_keys=False))

    def start(self, party, command="run", *arguments, json=True, before=None):
        """Start one party; its progress comes as JSON lines."""
        started = Command(
            *(command, "contract.yaml", "--party", "party.yaml", "--progress", "json", *(["--json"] * json), *arguments),
            folder=self.home(party),
            bucket_ids=self.bucket_ids,
            before=before or self.before,
        )
        self.started.append(started)
        return started

    def start_all(self, command="run", *arguments):
        return {name: self.start(name, command, *arguments) for name in self.parties}

    def run_all(self, command="run", *arguments):
        """Run all parties to their end. Fail unless each exits with 0."""
        running = self.start_all(command, *arguments)
        for name, party in running.items():
            assert party.end() == 0, f"{name}: {party.said}"
        return running

    def runs(self, party):
        """Return the run folders, oldest first."""
        return sorted((self.home(party) / "runs").glob("*-*"), key=lambda path: int(path.name.rpartition("-")[2]))

    def models(self, party):
        """Return the weights of the trained models, one per run folder that has one, oldest first."""
        return [weights(path / "model.safetensors") for path in self.runs(party) if (path / "model.safetensors").exists()]


def weights(path):
    """Return the bits of a file's tensors, without its seal, which says of which run they are."""
    return save(load_file(path))


def lay_out(root, parties, contract, frames=None, *, rows=300):
    frames = frames or tables(parties, rows=rows)
    if not contract.get("defense") and contract["alignment"]["method"] != "union":  # otherwise no two jobs have the same weights
        contract = contract | {"training": {"starts": "public"} | contract["training"]}
    address = f"127.0.0.1:{free_port()}"
    label = parties[0]
    files = {
        name: {
            "table": {"path": "table.parquet"},
            **columns(parties)[name],
            "threads": 1,
            **({"listen": address} if name == label else {"peers": {label: {"address": address}}}),
        }
        for name in parties
    }
    for name, home in write_job(root, contract, files).items():
        frames[name].write_parquet(home / "table.parquet")
    return OnDisk(root, tuple(parties))


def files_of(job, name):
    """Read a party's contract and its own file."""
    return load_contract(job.home(name) / "contract.yaml"), load_party(job.home(name) / "party.yaml")


def of_each(parties, work):
    """Return what each party's call returns, a thread each, or the error that it raises."""

    def one(name):
        try:
            return work(name)
        except TallystickError as error:
            return error

    with ThreadPoolExecutor(len(parties)) as pool:
        futures = {name: pool.submit(one, name) for name in parties}
        return {name: future.result(PATIENCE_S) for name, future in futures.items()}


def within(seconds, condition):
    """Wait until the condition holds. Return False if it does not within that time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def error_of(work, *arguments):
    """Return the TallystickError that a call raises. Fail if it raises none."""
    try:
        found = work(*arguments)
    except TallystickError as error:
        return error
    raise AssertionError(f"no error, but {found}")
