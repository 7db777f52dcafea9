"""Choose the libsodium that computes in the group: the one in rbcl's wheel, or the system's.

Both pass the same published vectors. The wheel's library changes with releases of rbcl, the system's with updates of the
operating system, so a fix can arrive there sooner. Nothing is chosen silently: the environment variable ``TALLYSTICK_LIBSODIUM``
decides, and the report names the library.
"""

import ctypes
import os
import tempfile
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tallystick.errors import ConfigError, printable

VARIABLE = "TALLYSTICK_LIBSODIUM"
NEWEST_NEEDED = "crypto_core_ristretto255_scalar_mul"
"""The newest of the functions that are called. It came with release 1.0.18, and a minimal build lacks it."""


@dataclass(frozen=True, kw_only=True)
class Sodium:
    """A loaded and initialised libsodium, and its origin in words."""

    library: ctypes.CDLL
    origin: str

    def bind(self, name: str, arguments: int) -> Callable[..., int]:
        """Return a function of the library that takes this many addresses and returns 0, or -1 for a failure."""
        function: Callable[..., int] = getattr(self.library, name)
        function.argtypes = [ctypes.c_void_p] * arguments  # type: ignore[attr-defined]
        function.restype = ctypes.c_int  # type: ignore[attr-defined]
        return function


def load_sodium() -> Sodium:
    """Load the library that ``TALLYSTICK_LIBSODIUM`` names: "bundled" (the default), "system", or a path.

    Raises ConfigError if that library is not here, or lacks ristretto255.
    """
    choice = os.environ.get(VARIABLE, "bundled")
    if choice == "bundled":
        return _bundled()
    setting = f"{VARIABLE}={printable(choice)}"
    path = find_library("sodium") if choice == "system" else choice
    if not path:
        raise ConfigError(f"{setting}: this system has no libsodium; install it (Debian: libsodium23), or unset {VARIABLE}")
    try:
        library = ctypes.CDLL(path)
        release = _release(library)
        usable = library.sodium_init() >= 0 and hasattr(library, NEWEST_NEEDED)
    except (OSError, AttributeError) as error:
        raise ConfigError(f"{setting}: expected bundled, system or the path of a libsodium: {printable(str(error))}") from None
    if not usable:
        raise ConfigError(f"{setting}: libsodium {release} has no ristretto255; expected a full build of 1.0.18 or newer")
    return Sodium(library=library, origin=f"{release}, of the system ({path})")


def _bundled() -> Sodium:
    """Load rbcl's library. An import of rbcl unpacks it into a temporary file, so a folder must allow files that can run."""
    problems = []
    for folder in (None, Path.home() / ".cache", Path.cwd()):
        usual = tempfile.tempdir
        try:
            with tempfile.TemporaryDirectory(prefix="tallystick-", dir=folder, ignore_cleanup_errors=True) as unpacked:
                tempfile.tempdir = unpacked
                import rbcl
        except ImportError:
            raise ConfigError(f"rbcl, which carries libsodium, is not installed; install it, or set {VARIABLE}=system") from None
        except OSError as error:  # no folder, none that can be written, a full one, or one mounted noexec
            problems.append(f"{folder or 'the folder for temporary files'}: {printable(str(error))}")
        else:
            library = rbcl._sodium
            return Sodium(library=library, origin=f"{_release(library)}, in the wheel of rbcl {version('rbcl')}")
        finally:
            tempfile.tempdir = usual
    mask = os.umask(0o077)
    os.umask(mask)
    if mask & 0o700:
        raise ConfigError(f"the umask is {mask:04o}, so this user may not use files that it makes; set another one, such as 0077")
    raise ConfigError(
        f"no folder takes the libsodium that rbcl unpacks ({'; '.join(problems)}); set TMPDIR to a folder with 4 MiB of room "
        f"that is not mounted noexec, or {VARIABLE}=system to take the system's libsodium (Debian: libsodium23)"
    )


def _release(library: ctypes.CDLL) -> str:
    library.sodium_version_string.restype = ctypes.c_char_p
    text: bytes = library.sodium_version_string()
    return text.decode()
