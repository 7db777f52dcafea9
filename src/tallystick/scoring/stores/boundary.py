"""Guard a store: whatever is asked and however it fails, serving goes on, and the log says why. Shapes: B keys."""

import threading
from collections.abc import Callable, Sequence

import numpy as np

from tallystick.errors import StoreError
from tallystick.scoring.scoring_messages import key_problem
from tallystick.scoring.stores.store import KeyedRows, StoredRows


class Boundary:
    """A store whose failures all become StoreErrors. Each is reported once, until the store answers again.

    A key that is not text, contains a NUL or is too long has no row. The store is not asked for it, because it would refuse the
    other rows as well.

    Args:
        store: the store behind the boundary.
        say: called with reports.
    """

    def __init__(self, store: KeyedRows, *, say: Callable[[str], None]) -> None:
        self._store, self._say, self._said, self._lock = store, say, "", threading.Lock()
        self.blocks = store.blocks

    def find(self, keys: Sequence[bytes]) -> StoredRows:
        """Look up keys. Raises StoreError for every failure of the store."""
        keys_asked = [key for key in keys if not key_problem(key)]
        try:
            rows_found = self._store.find(keys_asked)
        except StoreError as error:
            self._tell(str(error))
            raise
        except BaseException as error:
            # Polars' panics are not Exceptions. Requests to end the process pass through.
            if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
                raise
            text = f"the store of rows failed unexpectedly ({type(error).__name__}); check its content"
            self._tell(text)
            raise StoreError(text) from None
        if self._said:
            self._tell("")
        if len(keys_asked) == len(keys):
            return rows_found
        is_found_B = np.zeros(len(keys), dtype=np.bool_)
        is_found_B[[not key_problem(key) for key in keys]] = rows_found.is_found_B
        return StoredRows(is_found_B=is_found_B, features_E=rows_found.features_E)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _tell(self, text: str) -> None:
        with self._lock:
            if text == self._said:
                return
            self._said = text
        self._say(f"{text}; its rows have no scores until it does" if text else "the store of rows answers again")
