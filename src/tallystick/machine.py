"""Measure what a process may still use: memory that the machine and its control groups have left, and room for temporary files.

Containers and batch systems bound a process with control groups; the system kills a process beyond its bound without a message.
"""

import os
import re
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tallystick.errors import ConfigError, MachineError

ROOT = Path("/")
ADDRESS_SPACE, ADDRESS_SPACE_OF_CORE = 2 << 30, 64 << 20
"""Bytes of address space that the libraries need, most of which they never touch: also for the threads of each core."""
_POOL_THREAD = re.compile(r"polars-\d+")
_V2 = ("memory.max", "memory.current", ("inactive_file", "active_file"))
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def free_memory(root: Path = ROOT) -> int | None:
    """Return the bytes of memory that this process may still take, or None if the system does not say.

    Memory that caches pages of files counts as free.
    """
    limits = [limit - used for limit, used in _groups(root)]
    if (meminfo := _numbers(root / "proc/meminfo")) and "MemAvailable:" in meminfo:
        limits.append(1024 * meminfo["MemAvailable:"])
    return max(0, min(limits)) if limits else None


def whole_memory(root: Path = ROOT) -> int:
    """Return the most bytes of memory that this process may have: the machine's, or fewer if its control groups say so."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *(limit for limit, _ in _groups(root))])


def require_address_space() -> None:
    """Raise MachineError if this process may have too little address space for its libraries, some of which then hang."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    # Libraries start as many threads as there are cores that this process may use, which a batch system limits, too
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    least = ADDRESS_SPACE + ADDRESS_SPACE_OF_CORE * cores
    if limit != resource.RLIM_INFINITY and limit < least:
        raise MachineError(
            f"this process may have {limit / 2**30:.1f} GiB of address space (ulimit -v), with which libraries hang; they need "
            f"{least / 2**30:.1f} GiB here: raise the limit, or bound memory by a control group"
        )


def memory_of_process(root: Path = ROOT) -> int:
    """Return the bytes of memory that this process holds now, without pages of files, or 0 if the system does not say."""
    return 1024 * _numbers(root / "proc/self/status").get("RssAnon:", 0)


def temporary_folder(root: Path = ROOT) -> tuple[Path, int, bool]:
    """Return the folder for temporary files, the bytes free there, and whether these are bytes of memory."""
    folder = Path(tempfile.gettempdir()).resolve()
    try:
        mounts = [line.split() for line in (root / "proc/mounts").read_text().splitlines()]
    except OSError:
        mounts = []
    kinds = {
        Path(each[1]): each[2] for each in mounts if len(each) > 2
    }  # kinds of file systems; the last mount at a place counts
    kind = next((kinds[place] for place in (folder, *folder.parents) if place in kinds), "")
    return folder, shutil.disk_usage(folder).free, kind in ("tmpfs", "ramfs")


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit of each nested group of this process that has one, and the bytes used of it without pages of files."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = (root / "sys/fs/cgroup/memory", _V1) if controllers else (root / "sys/fs/cgroup", _V2)
        most, used, cached = names
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            if folder == top.parent:
                break
            try:
                limit, now = (folder / most).read_text().strip(), int((folder / used).read_text())
            except (OSError, ValueError):
                continue
            if limit.isdecimal():
                pages = _numbers(folder / "memory.stat")
                yield int(limit), now - sum(pages.get(name, 0) for name in cached)


def _numbers(path: Path) -> dict[str, int]:
    """Read the numbers of a file whose lines hold a name and a number."""
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}


def size_in_words(count: int) -> str:
    """Write a number of bytes for people to read."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{max(1, round(count / 2**20))} MiB"


class _Fork:
    """Remember whether this process was forked from one that ran Polars' threads. A forked process has none of them."""

    pool_ran = False
    lost_pool = False

    @classmethod
    def look(cls) -> None:
        """Note before a fork, in the process that forks, whether Polars' threads run. Only Linux lists the threads."""
        names = []
        for file in Path("/proc/self/task").glob("*/comm"):
            with suppress(OSError):  # a thread that has just ended
                names.append(file.read_text())
        cls.pool_ran = any(map(_POOL_THREAD.match, names))

    @classmethod
    def enter_child(cls) -> None:
        """Note after a fork, in the new process, whether Polars' threads ran in the old one."""
        cls.lost_pool = cls.lost_pool or cls.pool_ran


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_Fork.look, after_in_child=_Fork.enter_child)


def require_polars_threads() -> None:
    """Raise ConfigError if Polars has no threads: it panics if none are allowed, and in a process that was forked after it had
    begun to work, its work would never end.
    """
    allowed = os.environ.get("POLARS_MAX_THREADS", "").strip()
    if allowed.isdecimal() and int(allowed) == 0:
        raise ConfigError("POLARS_MAX_THREADS = 0: allows no thread to read tables; set 1 or more, or remove the variable")
    if _Fork.lost_pool:
        raise ConfigError(
            "this process was forked from one that had worked with tables, and Polars' threads do not survive a fork, so it "
            "would hang; start it by multiprocessing.get_context('spawn') (or 'forkserver'), or do the work in the first process"
        )
