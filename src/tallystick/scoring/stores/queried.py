"""Look up rows in a database by the user's own query. Shapes: B keys.

A server that hangs, or a firewall that dropped the connection, neither answers nor closes. So each call has CALL_S seconds, by
this side's clock, in a thread that is abandoned with its connection afterwards. If MOST_LEFT abandoned threads wait, no further
call is made until one of them has ended.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.errors import DataError, StoreError
from tallystick.scoring.stores.cells import columns_read, frame_of
from tallystick.scoring.stores.store import StoredRows
from tallystick.tables.encoder import Encoder
from tallystick.tables.text import as_text

KEY = "key"
CALL_S = 2.0
MOST_LEFT = 4


class Database(Protocol):
    """A database behind a driver."""

    name: str
    """Name in errors."""
    errors: tuple[type[Exception], ...]
    """Exceptions that the driver raises."""

    def connect(self) -> Any:
        """Open a connection. Raises DataError, and the driver's errors."""
        ...

    def ask(self, connection: Any, keys: Sequence[str], *, asks_for: Callable[[str], bool]) -> tuple[list[str], list[pl.Series]]:
        """Run the query for these keys, and return the columns' names and values. Values that ``asks_for`` does not name may be
        null.

        Raises DataError, and the driver's errors.
        """
        ...

    def is_broken(self, error: Exception) -> bool:
        """Tell whether an error means that the connection is lost, so that a new one may help."""
        ...

    def code(self, error: Exception) -> str:
        """Return an error's code, without text that may contain cells or secrets."""
        ...


class QueriedStore:
    """A store that asks over one connection, one query for all keys. A connection that breaks, or hangs for CALL_S, is replaced.

    Args:
        database: the database that runs the query.
        encoder: encoder of the columns; None if there are no columns.
        schema: types of the table on which the encoder was fitted.
    """

    blocks = True

    def __init__(self, database: Database, encoder: Encoder | None, schema: Mapping[str, pl.DataType]) -> None:
        self._database = database
        self._encoder, self._schema, self._columns = encoder, schema, columns_read(encoder)
        self._connection: Any = None
        self._left: list[threading.Thread] = []
        self._lock = threading.Lock()

    def find(self, keys: Sequence[bytes]) -> StoredRows:
        """Look up keys. Raises StoreError."""
        name = self._database.name
        if not keys:
            return self._found(frame_of([], [KEY, *self._columns], self._schema), np.empty(0, dtype=np.int64))
        if not self._lock.acquire(timeout=CALL_S):
            raise StoreError(f"serving.store: {name} has not answered earlier queries within {CALL_S:g} s")
        try:
            names, columns = self._in_time([key.decode() for key in dict.fromkeys(keys)])
        except self._database.errors as error:
            code = self._database.code(error)
            why = type(error).__name__ + (f", {code}" if code else "")
            if any(
                kind.__name__ == "ProgrammingError" for kind in type(error).__mro__
            ):  # an error class of PEP 249, the standard for drivers
                raise StoreError(
                    f"serving.store.query: {name} refuses it ({why}); run it in the database's own client, with one key as its "
                    "parameter"
                ) from None
            raise StoreError(f"serving.store: {name} does not answer the query ({why}); check that it is running") from None
        except DataError as error:
            raise StoreError(f"serving.store: {error}") from None
        finally:
            self._lock.release()
        if KEY not in names:
            raise StoreError(f'serving.store.query: gives no column "{KEY}"; let it name the key so')
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise StoreError(f"serving.store.query: gives several columns {twice[0]!r}; name each column once instead of *")
        frame = pl.DataFrame(columns)
        places = {key: place for place, key in enumerate(as_text(frame.get_column(KEY)).to_list())}
        if len(places) < frame.height:
            raise StoreError(
                "serving.store.query: gives several rows for one key; let it give one, for example by DISTINCT ON (key)"
            )
        place_B = np.array([places.get(key.decode(), -1) for key in keys], dtype=np.int64)
        return self._found(frame, place_B)

    def _found(self, frame: pl.DataFrame, place_B: NDArray[np.int64]) -> StoredRows:
        is_found_B = place_B >= 0
        if self._encoder is None:
            return StoredRows(is_found_B=is_found_B, features_E=None)
        # Columns without a value have an arbitrary type from the driver
        rows_E = frame[place_B[is_found_B]]
        empty = [
            name for name in rows_E.columns if name in self._schema and rows_E.get_column(name).null_count() == rows_E.height
        ]
        rows_E = rows_E.with_columns(pl.lit(None, dtype=self._schema[name]).alias(name) for name in empty)
        try:
            return StoredRows(is_found_B=is_found_B, features_E=self._encoder.encode(rows_E).unpacked())
        except DataError as error:
            raise StoreError(f"serving.store: its rows do not fit the trained columns: {error}") from None

    def _in_time(self, keys: Sequence[str]) -> tuple[list[str], list[pl.Series]]:
        """Run the query in its own thread. Raises StoreError if it takes longer than CALL_S, and what the query raises."""
        name = self._database.name
        self._left = [thread for thread in self._left if thread.is_alive()]
        if len(self._left) >= MOST_LEFT:
            raise StoreError(
                f"serving.store: {name} has not answered {MOST_LEFT} queries, and gets no more until one of them ends"
            )
        connection, self._connection = self._connection, None
        call: Future[tuple[Any, list[str], list[pl.Series]]] = Future()

        def ask() -> None:
            try:
                answered = self._asked(connection, keys)
            except BaseException as error:  # raised again in the waiting thread
                if call.set_running_or_notify_cancel():
                    call.set_exception(error)
                return
            if not call.set_running_or_notify_cancel():
                answered[0].close()  # nobody waits any more
                return
            call.set_result(answered)

        thread = threading.Thread(target=ask, name="tallystick-store", daemon=True)
        thread.start()
        try:
            self._connection, names, columns = call.result(CALL_S)
        except TimeoutError:
            if call.cancel():
                self._left.append(thread)
                raise StoreError(f"serving.store: {name} has not answered within {CALL_S:g} s") from None
            self._connection, names, columns = call.result()
        return names, columns

    def _asked(self, connection: Any, keys: Sequence[str]) -> tuple[Any, list[str], list[pl.Series]]:
        """Return the answer and its connection: the former connection, or a new one if that is broken."""
        errors, is_former = self._database.errors, connection is not None
        try:
            if not is_former:
                connection = self._database.connect()
            return connection, *self._database.ask(connection, keys, asks_for=lambda name: name == KEY or name in self._columns)
        except BaseException as error:
            if connection is not None:
                with suppress(*errors):
                    connection.close()
            if is_former and isinstance(error, errors) and self._database.is_broken(error):
                return self._asked(None, keys)
            raise

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*self._database.errors):
                connection.close()
