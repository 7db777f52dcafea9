"""Free memory, according to files as Linux writes them."""

import os
import resource
from pathlib import Path

import pytest

from tallystick import machine
from tallystick.config.table import TableConfig
from tallystick.errors import ConfigError, MachineError
from tallystick.tables.table import read_table

GIB = 2**30


def _write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _machine(root: Path, cgroup: str, available_gib: int = 9) -> Path:
    meminfo = f"MemTotal: 99999999 kB\nMemAvailable: {available_gib * 2**20} kB\nHugePages_Total: 0\n"
    return _write(root, proc__meminfo=meminfo, proc__self__cgroup=cgroup)


def test_without_a_group_the_machine_tells(tmp_path: Path) -> None:
    assert machine.free_memory(_machine(tmp_path, "0::/\n")) == 9 * GIB
    assert machine.free_memory(tmp_path / "absent") is None


def test_the_tightest_group_tells_and_gives_up_files_pages(tmp_path: Path) -> None:
    root = _machine(tmp_path, "0::/box/inner\n")
    group = "sys__fs__cgroup__box__"
    _write(root, **{f"{group}memory_dot_max": f"{4 * GIB}\n", f"{group}memory_dot_current": f"{3 * GIB}\n"})
    _write(root, **{f"{group}memory_dot_stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n"})
    _write(root, **{f"{group}inner__memory_dot_max": "max\n", f"{group}inner__memory_dot_current": "12\n"})
    assert machine.free_memory(root) == 2 * GIB + 7


@pytest.mark.parametrize("path", ["/box", "/"])
def test_groups_of_the_first_version(tmp_path: Path, path: str) -> None:
    root = _machine(tmp_path, f"4:memory:{path}\n1:cpu,cpuacct:/box\n")
    group = "sys__fs__cgroup__memory__"
    _write(root, **{f"{group}memory_dot_limit_in_bytes": f"{GIB}\n", f"{group}memory_dot_usage_in_bytes": "100\n"})
    assert machine.free_memory(root) == GIB - 100


def test_a_group_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    root = _machine(tmp_path, "0::/\n")
    _write(root, sys__fs__cgroup__memory_dot_max="10\n", sys__fs__cgroup__memory_dot_current="99\n")
    assert machine.free_memory(root) == 0


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/box\n", {"box__memory_dot_max": f"{GIB}\n", "box__memory_dot_current": "7\n"}),
        (
            "4:memory:/box\n",
            {"memory__box__memory_dot_limit_in_bytes": f"{GIB}\n", "memory__box__memory_dot_usage_in_bytes": "7\n"},
        ),
    ],
)
def test_a_group_bounds_the_whole_memory_too(tmp_path: Path, cgroup: str, files: dict[str, str]) -> None:
    """A table that the machine could hold is too large for a container on it."""
    assert machine.whole_memory(_machine(tmp_path, "0::/\n")) > GIB
    root = _write(_machine(tmp_path, cgroup), **{f"sys__fs__cgroup__{name}": text for name, text in files.items()})
    assert machine.whole_memory(root) == GIB


def test_what_this_process_holds(tmp_path: Path) -> None:
    root = _write(tmp_path, proc__self__status="Name: x\nVmHWM:    900 kB\nRssAnon:    300 kB\n")
    assert machine.memory_of_process(root) == 300 * 1024
    assert machine.memory_of_process(tmp_path / "absent") == 0
    held = machine.memory_of_process()
    assert held == 0 or held > 2**20


def test_a_temporary_folder_in_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for kind, in_memory in (("ext4", False), ("tmpfs", True)):
        root = _write(tmp_path / kind, proc__mounts=f"/dev/vda / ext4 rw 0 0\nnone {tmp_path} {kind} rw 0 0\n")
        folder, free, is_memory = machine.temporary_folder(root)
        assert (folder, is_memory) == (tmp_path.resolve(), in_memory)
        assert free > 0


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system lets a process use all cores")
@pytest.mark.parametrize(("cores", "suffices"), [(4, True), (64, False)])
def test_address_space_is_needed_for_the_cores_that_a_process_may_use(monkeypatch, cores, suffices) -> None:
    """A batch system gives a job four cores of a machine of 128, and 4 GiB."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 * GIB, 4 * GIB))
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    if suffices:
        machine.require_address_space()
    else:
        with pytest.raises(MachineError, match=r"4\.0 GiB of address space .* they need 6\.0 GiB here"):
            machine.require_address_space()


@pytest.mark.parametrize(("threads", "is_refused"), [("0", True), (" 00 ", True), ("1", False), ("", False), ("none", False)])
def test_a_table_without_a_thread_to_read_it_is_refused_by_the_variable_s_name(
    monkeypatch, tmp_path, threads, is_refused
) -> None:
    """Polars panics, and the file was blamed."""
    (tmp_path / "t.csv").write_text("id,x\n1,2\n")
    monkeypatch.setenv("POLARS_MAX_THREADS", threads)
    if not is_refused:
        assert read_table(TableConfig(path=tmp_path / "t.csv")).height == 1
        return
    with pytest.raises(ConfigError, match=r"POLARS_MAX_THREADS = 0: allows no thread to read tables; set 1 or more"):
        read_table(TableConfig(path=tmp_path / "t.csv"))
