"""Files are complete or absent, sealed, for their owner alone, and held by one process."""

import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch
from tiny import PATIENCE_S

from tallystick.errors import ConfigError, DamagedFile, StorageError
from tallystick.storage import (
    Origin,
    check_digest,
    locked,
    make_folder,
    read_json,
    scratch_folder,
    write_bytes,
    write_json,
    written,
)
from tallystick.training.checkpoint import CheckpointStore, TrainingState, read_tensors, write_tensors


def json_file(path):
    origin = Origin(folder=path.parent)
    write_json(path, b'{"secret": "00ff", "spent": [1.5, 2]}', origin=origin)
    return lambda path: read_json(path, origin=origin)


def tensor_file(path):
    origin, metadata = Origin(folder=path.parent), {"alignment": '{"seal":"no"}', "b": "2"}
    write_tensors(path, {"rows": torch.arange(7), "weight": torch.ones(3, 2)}, metadata, origin=origin)
    return lambda path: read_tensors(path, origin=origin)


@pytest.mark.parametrize("write", [json_file, tensor_file])
def test_a_flipped_bit_in_any_byte_and_every_lost_tail_is_noticed(tmp_path, write):
    path = tmp_path / "file"
    read = write(path)
    whole = path.read_bytes()
    read(path)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        with pytest.raises(DamagedFile, match="file is damaged: "):
            read(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFile, match="file is damaged: "):
            read(path)
    path.write_bytes(whole + b" ")
    with pytest.raises(DamagedFile):
        read(path)
    path.write_bytes(whole)
    read(path)


def test_a_rename_is_on_disk_before_it_counts(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, type(tmp_path).replace

    def synced(handle):
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def renamed(path, target):
        done.append("renamed")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(type(tmp_path), "replace", renamed)
    json_file(tmp_path / "file")
    tensor_file(tmp_path / "tensors")
    assert done == ["file", "renamed", "folder"] * 2
    done.clear()
    make_folder(tmp_path / "made")
    assert done == ["folder"]


def test_random_bytes_missing_files_and_folders_are_damage_not_tracebacks(tmp_path):
    draw = random.Random(7)
    path = tmp_path / "file"
    for length in [*range(40), *(draw.randrange(5_000) for _ in range(300))]:
        path.write_bytes(draw.randbytes(length))
        with pytest.raises(DamagedFile):
            check_digest(path)
    with pytest.raises(DamagedFile, match="it is missing"):
        check_digest(tmp_path / "absent")
    with pytest.raises(DamagedFile, match="it cannot be read: Is a directory"):
        check_digest(tmp_path)


def test_a_seal_says_run_party_and_place_and_another_is_named(tmp_path):
    runs = {}
    for run, party in (("one", "bank"), ("other", "bank"), ("theirs", "shop")):
        (tmp_path / run).mkdir()
        runs[run] = Origin.create(tmp_path / run, party=party, contract="c", key=None)
        assert Origin.of(tmp_path / run) == runs[run]
        write_json(tmp_path / run / "note.json", b'{"a": 1}', origin=runs[run])
    own = tmp_path / "one" / "note.json"
    kept, place = own.read_bytes(), f"note.json of run {runs['one'].run} of bank"
    for path in (tmp_path / "other" / "note.json", tmp_path / "theirs" / "note.json", tmp_path / "one" / "origin.json"):
        own.write_bytes(path.read_bytes())
        theirs = Origin.of(path.parent)
        with pytest.raises(DamagedFile) as caught:
            read_json(own, origin=runs["one"])
        is_, expected = f"{path.name} of run {theirs.run} of {theirs.party}", place
        assert str(caught.value) == (
            f"{own} is damaged: it is another file, written as {is_}; expected {expected}; put the right one back"
        )
        own.write_bytes(kept)
    assert read_json(own, origin=runs["one"]) == b'{"a": 1}'
    shutil.copy(own, tmp_path / "other" / "origin.json")
    with pytest.raises(DamagedFile, match=r"it is another file, written as note\.json of run"):
        Origin.of(tmp_path / "other")


def test_the_best_weights_are_those_of_the_step_that_a_run_goes_on_from(tmp_path):
    store, module = CheckpointStore(tmp_path), torch.nn.Linear(1, 1)
    for step in (10, 20, 30, 40):
        torch.nn.init.constant_(module.weight, float(step))
        store.save_best(module, step=step)
        store.save(TrainingState(step=step, best_epoch=0, best_step=step), module, None)
    assert store.intact() == ([30, 40], [])
    assert sorted(path.name for path in tmp_path.glob("best-*")) == ["best-30.safetensors", "best-40.safetensors"]
    state = store.load(30, module, None)  # the others do not have step 40
    store.drop_after(state)
    store.load_best(module, step=state.best_step)
    assert module.weight.item() == 30.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-30.safetensors", "step-30.safetensors"]


def test_sealed_files_stay_plain_json_and_safetensors(tmp_path):
    import json

    from safetensors.torch import load_file

    read = json_file(tmp_path / "a")
    assert json.loads((tmp_path / "a").read_bytes())["spent"] == [1.5, 2]
    assert json.loads(read(tmp_path / "a")) == {"secret": "00ff", "spent": [1.5, 2]}
    write_json(tmp_path / "empty", b"{}", origin=Origin(folder=tmp_path))
    assert read(tmp_path / "empty") == b"{}"
    read = tensor_file(tmp_path / "b")
    assert torch.equal(load_file(tmp_path / "b")["rows"], torch.arange(7))
    tensors, metadata = read(tmp_path / "b")
    assert metadata == {"alignment": '{"seal":"no"}', "b": "2"}
    assert torch.equal(tensors["weight"], torch.ones(3, 2))


def test_files_and_folders_are_made_with_their_mode(tmp_path):
    before = os.umask(0o002)
    try:
        make_folder(tmp_path / "run")
        write_bytes(tmp_path / "run" / "secret", b"", private=True)
        write_bytes(tmp_path / "run" / "open", b"")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run", *sorted((tmp_path / "run").iterdir()))]
    assert modes == [0o700, 0o664, 0o600]


def test_a_folder_that_was_removed_does_not_come_back_half(tmp_path):
    store, module = CheckpointStore(tmp_path / "run" / "checkpoints"), torch.nn.Linear(2, 2)
    (tmp_path / "run").mkdir()
    store.save(TrainingState(step=1), module, None)
    shutil.rmtree(tmp_path / "run")
    for write in (
        lambda: store.save(TrainingState(step=2), module, None),
        lambda: store.save_best(module, step=2),
        lambda: write_json(tmp_path / "run" / "training.json", b"{}", origin=Origin(folder=tmp_path / "run")),
    ):
        with pytest.raises(StorageError, match="its folder is gone, removed while it was in use; start a new run"):
            write()
    assert list(tmp_path.iterdir()) == []


READ_ONLY = textwrap.dedent(
    """
    import subprocess, sys
    from pathlib import Path
    import torch
    from tallystick.errors import StorageError
    from tallystick.storage import locked
    from tallystick.training.checkpoint import CheckpointStore, TrainingState
    folder = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
    store, module = CheckpointStore(folder / "checkpoints"), torch.nn.Linear(3, 3)
    for step in (5, 10):
        store.save(TrainingState(step=step), module, None)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    def lock():
        with locked(folder):
            pass
    for work in (lambda: store.save(TrainingState(step=15), module, None), lambda: store.drop_after(TrainingState(step=5)), lock):
        try:
            work()
        except StorageError as error:
            print(error)
    print(store.intact())
    """
)


@pytest.mark.long
def test_a_file_system_that_turned_read_only_is_a_clear_error(tmp_path):
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*own, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here, so no file system can be made read-only")
    done = subprocess.run(
        [*own, sys.executable, "-c", READ_ONLY, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    *errors, steps = done.stdout.splitlines()
    assert [error.partition(" ")[0] for error in errors] == ["cannot"] * 3
    assert all("Read-only file system; " in error and "make the file system writable again" in error for error in errors)
    assert steps == "([5, 10], [])"


HOLD = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from tallystick.storage import locked
    with locked(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.readline()
    """
)


def test_a_folder_is_held_by_one_process_until_it_ends_however_it_ends(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=rf"another process \(id {holder.pid}\) works in this run folder"), locked(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


SCRATCH = textwrap.dedent(
    """
    import sys
    from tallystick.storage import scratch_folder
    with scratch_folder() as folder:
        (folder / "rows").write_text("private")
        print(folder, flush=True)
        sys.stdin.readline()
    """
)


def test_a_temporary_folder_that_a_kill_left_is_removed_by_the_next_and_no_other(tmp_path, monkeypatch):
    temporary, other = tmp_path / "temporary", tmp_path / "other"
    others = [
        temporary / "tallystick-scratch-file",
        temporary / "tallystick-of-another-use",
        temporary / "tallystick-scratch-link",
    ]
    temporary.mkdir()
    other.mkdir()
    others[0].write_text("kept")
    others[1].mkdir()
    others[2].symlink_to(other)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    holders = [subprocess.Popen([sys.executable, "-c", SCRATCH], **pipes) for _ in range(3)]
    killed, living, ended = (Path(holder.stdout.readline().strip()) for holder in holders)
    assert stat.S_IMODE(killed.parent.stat().st_mode) == 0o700
    holders[0].kill()
    holders[0].communicate()
    holders[2].communicate("")
    assert (killed.exists(), ended.parent.exists()) == (True, False)
    with scratch_folder() as mine:
        assert sorted(temporary.iterdir()) == sorted([living.parent, mine.parent, *others])
        assert (living / "rows").read_text() == "private"
    holders[1].communicate("")
    assert sorted(temporary.iterdir()) == sorted(others)
    assert list(other.iterdir()) == []


def test_only_steps_whose_files_are_intact_are_offered(tmp_path):
    store, module = CheckpointStore(tmp_path), torch.nn.Linear(2, 2)
    store.save(TrainingState(step=5), module, None)
    store.save_best(module, step=10)
    store.save(TrainingState(step=10, best_epoch=0, best_step=10), module, None)
    (tmp_path / "step-abc.safetensors").write_bytes(b"")
    (tmp_path / "step-007.safetensors").write_bytes(b"")
    assert store.steps() == [5, 10]
    assert store.intact() == ([5, 10], [])
    flip(tmp_path / "best-10.safetensors")
    steps, (error,) = store.intact()
    assert (steps, error.path.name) == ([5], "best-10.safetensors")
    (tmp_path / "best-10.safetensors").unlink()
    steps, (error,) = store.intact()
    assert steps == [5]
    assert "it is missing" in str(error)
    flip(tmp_path / "step-5.safetensors")
    steps, damaged = store.intact()
    assert steps == []
    assert [error.path.name for error in damaged] == ["step-5.safetensors", "best-10.safetensors"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_takes_its_place_only_once_it_is_whole(tmp_path, shared):
    path, planted = tmp_path / "scores.csv", tmp_path / "elsewhere"
    planted.write_text("not ours")
    (tmp_path / ".scores.csv.partial").symlink_to(planted)  # what somebody who knows the name may put there
    with written(path, shared=shared) as file:
        file.write(b"a")
        (partial,) = [each for each in tmp_path.iterdir() if each.name.endswith(".partial") and not each.is_symlink()]
        assert (partial.name == ".scores.csv.partial") == (not shared)
        assert not path.exists()
    assert (path.read_bytes(), planted.read_text()) == (b"a", "not ours")
    for error, raised in ((KeyboardInterrupt, KeyboardInterrupt), (OSError(28, "No space left on device"), StorageError)):
        with pytest.raises(raised), written(path, shared=shared) as file:  # noqa: PT012
            file.write(b"b")
            raise error
        assert path.read_bytes() == b"a"
        assert [each for each in tmp_path.iterdir() if each.name.endswith(".partial") and not each.is_symlink()] == []


def flip(path):
    """Flip one bit in the middle of the tensors."""
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)


def test_a_disk_that_is_full_but_for_a_folder_is_named_for_what_it_is(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="No space left on device; free some"), scratch_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_whose_name_is_taken_takes_nothing_away(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: iter(["same"]))
    with scratch_folder() as first:
        (first / "kept").write_text("mine")
        with pytest.raises(StorageError, match="cannot make a temporary folder"), scratch_folder():
            pass
        assert (first / "kept").read_text() == "mine"
    assert list(tmp_path.iterdir()) == []
