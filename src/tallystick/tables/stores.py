"""Read files of object stores at s3://, gs:// and abfs:// addresses, through Arrow's file systems.

Credentials come from the environment, or from the places that ``table.store`` names. Files of a store pass the same checks as
local files.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tallystick.config.table import StoreConfig, TableConfig
from tallystick.errors import ConfigError, DataError
from tallystick.tables.lazy_table import COPIED_BYTES, room_for
from tallystick.tables.rows import refuse_rows_beyond

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

CONNECT_S, REQUEST_S = 10, 60
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class StoredFile:
    """A file of a store. Like a path it has a name and an ending; its text is its address."""

    address: str
    key: str
    files: "FileSystem" = field(repr=False)

    @property
    def name(self) -> str:
        """Return the last part of its address."""
        return self.key.rpartition("/")[2]

    def __str__(self) -> str:
        return self.address


TableFile: TypeAlias = Path | StoredFile


@dataclass(frozen=True)
class Store:
    """A place in an object store: a file, a folder, or a pattern for a folder's files."""

    address: str
    key: str  # the bucket or container, and the path in it
    files: "FileSystem" = field(repr=False)

    @classmethod
    def at(cls, address: str, config: StoreConfig) -> "Store":
        """Open the store of an address. Raises ConfigError for a secret that is not available, DataError for an unknown store."""
        scheme, _, rest = address.partition("://")
        make = {"s3": _s3, "gs": _gs, "abfs": _abfs}[scheme]
        try:
            key, files = make(rest, config)
        except (ConfigError, ModuleNotFoundError):
            raise
        except (ImportError, ValueError, OSError) as error:
            raise DataError(f"{address}: cannot be reached: {_words(error)}") from None
        return cls(address=address, key=key.rstrip("/"), files=files)

    def holds(self, name: str) -> bool:
        """Tell whether a folder of that name is in this one. Raises DataError if the store does not answer."""
        from pyarrow.fs import FileType

        with self._asked():
            return bool(self.files.get_file_info(f"{self.key}/{name}").type == FileType.Directory)

    def listed(self) -> list[StoredFile]:
        """List the files at the address by name: the file itself, those of a folder, or those that fit a pattern.

        Raises DataError if there is no such file, or if the store does not answer.
        """
        from pyarrow.fs import FileSelector, FileType

        above, _, name = self.key.rpartition("/")
        if _PATTERN.search(above):
            raise DataError(f"{self.address}: only the last part may be a pattern; name the folder before it")
        base = self.address.rstrip("/")
        with self._asked():
            if _PATTERN.search(name):
                entries = self.files.get_file_info(FileSelector(above, allow_not_found=True))
                entries, base = [each for each in entries if fnmatchcase(each.base_name, name)], base.rpartition("/")[0]
            else:
                (there,) = self.files.get_file_info([self.key])
                if there.type == FileType.File:
                    return [StoredFile(base, self.key, self.files)]
                entries = self.files.get_file_info(FileSelector(self.key, allow_not_found=True))
        files = [StoredFile(f"{base}/{each.base_name}", each.path, self.files) for each in entries if each.type == FileType.File]
        if not files:
            raise DataError(
                f"{self.address}: the store has no such file, folder or pattern; check table.path, or the option that names it"
            )
        return sorted(files, key=str)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(f"{self.address}: cannot be read: {_words(error)}; check table.path and table.store") from None


@contextmanager
def opened(file: TableFile) -> Iterator[Any]:
    """Open a file for Arrow's readers: a local file's path, or a store's file open for reading."""
    if isinstance(file, Path):
        yield file
        return
    with file.files.open_input_file(file.key) as stream:
        yield stream


def copied(file: StoredFile, folder: Path, table: TableConfig) -> Path:
    """Copy a delimited file into a folder, for readers that need local files.

    A file with too many lines is refused while it is copied.
    """
    copy, lines = folder / file.name, 0
    packed = file.name.lower().endswith(".gz")
    with room_for(copy), file.files.open_input_stream(file.key) as source, copy.open("wb") as target:
        while piece := source.read(COPIED_BYTES):
            if not packed:
                lines += piece.count(b"\n")
                refuse_rows_beyond(lines - 1, table, source=file, has="holds at least")
            target.write(piece)
    return copy


def _s3(rest: str, config: StoreConfig) -> tuple[str, "FileSystem"]:
    from pyarrow.fs import S3FileSystem

    return rest, S3FileSystem(
        access_key=config.secret("access_key"),
        secret_key=config.secret("secret_key"),
        session_token=config.secret("session_token"),
        anonymous=config.anonymous,
        region=config.region,
        endpoint_override=config.endpoint,
        connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S,
    )


def _gs(rest: str, config: StoreConfig) -> tuple[str, "FileSystem"]:
    from datetime import timedelta

    from pyarrow.fs import GcsFileSystem

    scheme, _, host = (config.endpoint or "").rpartition("://")
    place = {"endpoint_override": host, "scheme": scheme or "https"} if host else {}
    return rest, GcsFileSystem(anonymous=config.anonymous, retry_time_limit=timedelta(seconds=REQUEST_S), **place)


def _abfs(rest: str, config: StoreConfig) -> tuple[str, "FileSystem"]:
    """Split abfs://container@account.dfs.core.windows.net/path, as Azure writes it, or abfs://container/path with an account."""
    from pyarrow.fs import AzureFileSystem

    before, at, host = rest.partition("@")
    account, _, path = host.partition("/") if at else (config.account or "", "", "")
    scheme, _, authority = (config.endpoint or "").rpartition("://")
    place = {}
    if authority:  # Azure has one host for files and another for blobs, an emulator has the same
        place = {"blob_storage_authority": authority, "blob_storage_scheme": scheme}
        place |= {"dfs_storage_authority": authority.replace("blob.", "dfs.", 1), "dfs_storage_scheme": scheme}
    if not account:
        raise ValueError("no account is named; write abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, or table.store.account")
    files = AzureFileSystem(account.partition(".")[0], account_key=config.secret("secret_key"), **place)
    return f"{before}/{path}" if at else rest, files


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
