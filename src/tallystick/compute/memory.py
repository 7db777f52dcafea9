"""How much memory a process can still have here."""

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes that this machine, or the container that this process is in, can still give; None where neither says so."""
    found = [each for each in (_of_machine(), _of_container()) if each is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _of_container() -> int | None:
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text(encoding="ascii").strip() for name in ("max", "current"))
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        return None if limit == "max" else int(limit) - int(used) + int(cached["inactive_file"])
    except (OSError, ValueError, KeyError):
        return None


def gibibytes(count: int) -> str:
    """A number of bytes in words."""
    return f"{count / 2**30:.1f} GiB"
