"""Rows that PostgreSQL looks up by a query of one's own. Shapes: B keys."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.config.serving import Postgres
from tallystick.data.encoder import Encoder
from tallystick.data.postgres import connected, postgres_errors, query_postgres, with_password
from tallystick.errors import ConfigError, DataError, StoreError
from tallystick.serving.stores.cells import columns_read, frame_of
from tallystick.serving.stores.store import Found

KEY = "key"


class PostgresStore:
    """Looks rows up over one connection, in one query for all keys; a connection that breaks is made again.

    Args:
        config: the server, and the query, in whose place ``$1`` the array of keys stands.
        encoder: of the columns; None where there are none.
        schema: the types of the table that the encoder was fitted on.
        text: columns that are to be read as text.

    Raises ConfigError where the driver is not installed.
    """

    blocks = True

    def __init__(
        self, config: Postgres, encoder: Encoder | None, schema: Mapping[str, pl.DataType], *, text: Sequence[str]
    ) -> None:
        try:
            self._errors = postgres_errors()
        except DataError as error:
            raise ConfigError(f"serving.store: {error}") from None
        self._url, self._query = config.database, config.query
        if config.password is not None:
            self._url = with_password(config.database, config.password.read("serving.store.password"))
        self._encoder, self._schema, self._columns, self._text = encoder, schema, columns_read(encoder), text
        self._connection: Any = None
        self._lock = threading.Lock()

    def find(self, keys: Sequence[bytes]) -> Found:
        """Look keys up; raises StoreError."""
        if not keys:
            return self._found(frame_of([], [KEY, *self._columns], self._schema), np.empty(0, dtype=np.int64))
        frame = self._rows([key.decode() for key in dict.fromkeys(keys)])
        places = {key: place for place, key in enumerate(frame.get_column(KEY).cast(pl.String).to_list())}
        if len(places) < frame.height:
            raise StoreError("serving.store.query: gives several rows of one key; let it give one, by DISTINCT ON (key), say")
        place_B = np.array([places.get(key.decode(), -1) for key in keys], dtype=np.int64)
        return self._found(frame, place_B)

    def _found(self, frame: pl.DataFrame, place_B: NDArray[np.int64]) -> Found:
        is_found_B = place_B >= 0
        if self._encoder is None:
            return Found(is_found_B=is_found_B, features_E=None)
        try:
            return Found(is_found_B=is_found_B, features_E=self._encoder.encode(frame[place_B[is_found_B]]).unpacked())
        except DataError as error:
            raise StoreError(f"serving.store: its rows do not fit the trained columns: {error}") from None

    def _rows(self, keys: Sequence[str]) -> pl.DataFrame:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = connected(self._url)
                names, columns = query_postgres(self._connection, self._query, text=self._text, keys=keys)
            except self._errors as error:
                self.close()
                raise StoreError(f"serving.store: PostgreSQL does not answer the query ({type(error).__name__})") from None
            except DataError as error:
                raise StoreError(f"serving.store: {error}") from None
        if KEY not in names:
            raise StoreError(f'serving.store.query: gives no column "{KEY}"; let it name the key so')
        return pl.DataFrame(columns)

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
