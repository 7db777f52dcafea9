"""Keep finished buckets of an alignment in the run folder, so that a killed party resumes after the last one.

Each bucket is a sealed file, complete or absent (``tallystick.storage``). It names its alignment. So a bucket of another
alignment, a damaged bucket or a misplaced one is reported and done again.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tallystick.alignment.buckets import Arrays, BucketStore
from tallystick.array_files import read_arrays, write_arrays
from tallystick.errors import DamagedFile
from tallystick.run_folder.folder import RunFolder
from tallystick.storage import Origin, make_folder, read_json, remove, write_json

BUCKETS = "buckets"


class KeptBuckets(BucketStore):
    """This party's buckets with one peer.

    Args:
        folder: folder of the run.
        peer: the peer, whose name begins the files' names.
        say: called with a line about kept files that cannot be used.
    """

    def __init__(self, folder: RunFolder, peer: str, *, say: Callable[[str], None]) -> None:
        self._folder, self._peer, self._say = folder.path / BUCKETS, peer, say
        self._origin: Origin = folder.origin

    def note(self) -> bytes:
        """Return the last note. It is empty if there is none, or if it cannot be read, which is reported."""
        path = self._note_path
        if not path.exists():
            return b""
        try:
            return bytes.fromhex(json.loads(read_json(path, origin=self._origin))["note"])
        except DamagedFile as error:
            self._say(f"{error}; no kept bucket can be used without it")
            return b""

    def write_note(self, note: bytes) -> None:
        """Replace the note. It is secret, because it holds the key of the buckets."""
        make_folder(self._folder)
        write_json(self._note_path, json.dumps({"note": note.hex()}).encode(), origin=self._origin, private=True)

    def done(self, alignment: str) -> int:
        """Count the buckets of an alignment that are kept and intact, up to the first that is not, and report that one."""
        numbers = self._numbers()
        for bucket in range(len(numbers)):
            path = self._path(bucket)
            try:
                _, facts = read_arrays(path, origin=self._origin, only_metadata=True)
                if facts.get("alignment") != alignment:
                    raise DamagedFile(path, "it is a bucket of another alignment")
            except DamagedFile as error:
                again = sum(number >= bucket for number in numbers)
                self._say(f"{error}; this bucket, and {again - (bucket in numbers)} kept ones after it, are done again")
                return bucket
        return len(numbers)

    def put(self, alignment: str, bucket: int, arrays: Arrays) -> None:
        """Keep the result of a bucket. Raises StorageError."""
        make_folder(self._folder)
        write_arrays(self._path(bucket), arrays, {"alignment": alignment}, origin=self._origin, private=True)

    def get(self, bucket: int) -> Arrays:
        """Return the result of a bucket. Raises DamagedFile."""
        return read_arrays(self._path(bucket), origin=self._origin)[0]

    def drop(self, first: int) -> None:
        """Delete this bucket and all later ones."""
        for bucket in self._numbers():
            if bucket >= first:
                remove(self._path(bucket))

    @property
    def _note_path(self) -> Path:
        return self._folder / f"{self._peer}.json"

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{self._peer}-{bucket}.safetensors"

    def _numbers(self) -> list[int]:
        names = (path.stem.rpartition("-") for path in self._folder.glob("*.safetensors"))
        return sorted(int(number) for peer, _, number in names if peer == self._peer and number.isdecimal())


def forget_buckets(folder: RunFolder, *, notes: bool = True) -> None:
    """Delete all buckets when every party has the alignment, and also the notes if ``notes``.

    If peers may cheat the notes stay: with them a side refuses to align again with a peer that knows the common ids.
    """
    for path in (folder.path / BUCKETS).glob("*.safetensors"):
        remove(path)
    if notes:
        shutil.rmtree(folder.path / BUCKETS, ignore_errors=True)
