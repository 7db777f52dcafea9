"""Hold a table in memory, encode it once, and read it again if it changes. Shapes: B keys, R rows that take part."""

import hashlib
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from tallystick.errors import TallystickError, category_of
from tallystick.scoring.stores.store import StoredRows
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import PackedFeatures
from tallystick.tables.keys import Keys, who_of
from tallystick.tables.lazy_table import Frame

COMPARED = 100_000  # rows that are compared at a time


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A table at one time: the place of each key that names exactly one row, and the rows' columns."""

    places: dict[bytes, int]
    packed: PackedFeatures | None

    @classmethod
    def of(cls, frame: Frame, keys: Keys, encoder: Encoder | None, *, noisy: bool = False) -> "Snapshot":
        """Encode the rows that take part. With ``noisy``, each row has its own noise. A key with several rows names none."""
        is_single_U = np.bincount(keys.id_R, minlength=len(keys.ids)) == 1
        place_U = np.zeros(len(keys.ids), dtype=np.int64)
        place_U[keys.id_R] = np.arange(len(keys.id_R))
        places = {key: int(place_U[number]) for number, key in enumerate(keys.ids) if is_single_U[number]}
        if encoder is None:
            return cls(places=places, packed=None)
        packed = encoder.encode(frame[keys.rows_R])
        if noisy:
            who_R = torch.from_numpy(who_of(keys.ids_of(np.arange(len(keys.id_R)))))
            packed = replace(packed, who_M=who_R)
        return cls(places=places, packed=packed)

    def digest(self) -> str:
        """Return a digest of these rows: their columns, and their identities."""
        assert self.packed is not None
        digest = hashlib.blake2b(self.packed.records_MR.numpy().reshape(-1).data, digest_size=16)
        if self.packed.who_M is not None:
            digest.update(self.packed.who_M.numpy().tobytes())
        return digest.hexdigest()

    def has_rows_of(self, other: "Snapshot") -> bool:
        """Tell whether another snapshot has the same rows under the same keys, in any order: a query gives them in another one
        each time.
        """
        if self.places.keys() != other.places.keys() or self.packed is None or other.packed is None:
            return self.places.keys() == other.places.keys() and self.packed is other.packed
        places = [torch.tensor(list(self.places.values())), torch.tensor([other.places[key] for key in self.places])]
        for start in range(0, len(self.places), COMPARED):
            here, there = (
                snapshot.packed.records_of(place_N[start : start + COMPARED])
                for snapshot, place_N in zip((self, other), places, strict=True)
                if snapshot.packed is not None
            )
            if not torch.equal(here, there):
                return False
        return True

    def find(self, keys: Sequence[bytes]) -> StoredRows:
        """Look up keys."""
        places = [self.places.get(key, -1) for key in keys]
        place_B = np.array(places, dtype=np.int64)
        is_found_B = place_B >= 0
        features_E = self.packed.rows(torch.from_numpy(place_B[is_found_B])) if self.packed is not None else None
        return StoredRows(is_found_B=is_found_B, features_E=features_E)


class TableStore:
    """The rows of the party file's table.

    Args:
        first: the table as it was read at the start.
        read: reads the table again.
        signature: returns a value that changes when the table changes.
        refresh_s: seconds between checks.
        say: called if the table cannot be read again; the former rows then stay in use.
    """

    blocks = False

    def __init__(
        self,
        first: Snapshot,
        *,
        read: Callable[[], Snapshot],
        signature: Callable[[], Hashable],
        refresh_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._now, self._read, self._signature, self._say = first, read, signature, say
        self._refresh_s = refresh_s
        self._seen, self._trouble = signature(), ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tallystick-table", daemon=True)
        self._thread.start()

    def find(self, keys: Sequence[bytes]) -> StoredRows:
        """Look up keys."""
        return self._now.find(keys)

    def close(self) -> None:
        """Stop checking the table."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._refresh_s):
            self.refresh()

    def refresh(self) -> None:
        """Read the table again if it has changed. A trouble that lasts is said once, and so is its end."""
        try:
            signature_now = self._signature()
            if signature_now == self._seen and not self._trouble:
                return
            before, self._now, self._seen = self._now, self._read(), signature_now
        except TallystickError as error:
            trouble = f"the table has changed and cannot be read; the former table stays in use: {error}"
        except OSError as error:  # a file was removed between two checks
            trouble = f"the table cannot be looked at ({error.strerror}); the former table stays in use"
        except Exception as error:  # whatever the error is, the next check may succeed
            trouble = f"the table has changed and cannot be read ({category_of(error)}); the former table stays in use"
        else:
            trouble = ""
            if not self._now.has_rows_of(before):  # a query runs each time, and most often its answer has not changed
                self._say("the table has changed and was read again")
            elif self._trouble:
                self._say("the table can be read again, and has not changed")
        if trouble and trouble != self._trouble:
            self._say(trouble)
        self._trouble = trouble
