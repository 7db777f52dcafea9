"""Simulate a partner: some of the label party's own columns become a feature party's, so a contract can be tried alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tallystick.config.contract import Contract
from tallystick.config.party import FeatureColumns, PartyFile
from tallystick.errors import ConfigError, DataError
from tallystick.reading import closest
from tallystick.tables.encoder import feature_columns
from tallystick.tables.keys import keys_of
from tallystick.tables.lazy_table import Frame
from tallystick.tables.repeats import with_summaries


@dataclass(frozen=True, kw_only=True)
class SimulatedPartner:
    """Tables and columns for a simulation in which the label party plays both sides.

    Args:
        label: name of the label party.
        feature: name of the simulated feature party, one of the contract's.
        tables: each party's rows: the same rows, each with its own columns.
        columns: each party's settings for columns, as in a party file.
        given: columns of the simulated party.
        kept: columns that the label party keeps; empty if it gave all away.
    """

    label: str
    feature: str
    tables: dict[str, pl.DataFrame]
    columns: dict[str, dict[str, Any]]
    given: tuple[str, ...]
    kept: tuple[str, ...]

    @classmethod
    def of(
        cls,
        contract: Contract,
        party: PartyFile,
        frame: Frame,
        *,
        split: Sequence[str] | None = None,
        share: float = 0.5,
        rows: int,
        seed: int = 0,
    ) -> "SimulatedPartner":
        """Split the label party's columns: those named in ``split``, or a random ``share`` of them, become the partner's.

        Raises ConfigError for a party that is not the label party, an unknown column, or an empty split; DataError for a table
        without rows.
        """
        if contract.role_of(party.party) != "label":
            raise ConfigError(f"party = {party.party}: is a feature party; only the label party can try a contract alone")
        if not frame.height:
            raise DataError(f"the table of {party.party} has no rows")
        if rows < 1:
            raise ConfigError(f"--rows {rows}: must be at least 1")
        if party.repeats is not None:
            frame = with_summaries(frame, party, contract.alignment)
            frame = frame[keys_of(frame, party, contract.alignment).rows_R]
        columns = feature_columns(frame, party)
        names = [*columns.numeric, *columns.categorical, *party.sequences]
        if split is not None:
            if unknown := [name for name in split if name not in names]:
                unassigned = [name for name in names if name not in split]
                close = closest(unknown[0], unassigned)
                hint = f"did you mean {close}?" if close else f"not given yet: {', '.join(unassigned) or 'none'}"
                raise ConfigError(f"--split {unknown[0]}: is not a feature column of this party; {hint}")
            if not split:
                raise ConfigError("--split: names no column; name at least one that a feature party might hold")
            partner_columns = list(dict.fromkeys(split))
        else:
            if not 0 < share < 1:
                raise ConfigError(f"--share {share:g}: must be above 0 and below 1")
            if len(names) < 2:
                raise ConfigError(
                    f"{len(names)} feature column(s) cannot be shared between two parties; list at least two in the party file"
                )
            count = min(max(round(share * len(names)), 1), len(names) - 1)
            picks = np.random.default_rng([seed, 5]).choice(len(names), size=count, replace=False)
            partner_columns = [names[number] for number in sorted(picks)]
        if rows < frame.height:
            frame = frame[pl.int_range(frame.height, eager=True).sample(rows, seed=seed)]
        feature = contract.feature_parties[0]
        own = [use for use in (*party.labels, party.weight, party.time) if use is not None]
        values: dict[str, Any] = {
            "keys": dict(party.keys),
            "encoding": party.encoding.model_dump(),
            "device": party.device,
            "threads": party.threads,
        }
        label_values = {use: getattr(party, use) for use in ("label", "weight", "time") if getattr(party, use) is not None}
        own_columns = [name for name in names if name not in partner_columns]
        repeats: dict[str, Any] = {"repeats": {}} if contract.alignment.duplicates == "all" else {}  # one row of each key
        return cls(
            label=party.party,
            feature=feature,
            tables={
                party.party: frame.select(
                    list(dict.fromkeys([*party.keys.values(), *own, *own_columns, *_targets(party, own_columns)]))
                ),
                feature: frame.select(
                    list(dict.fromkeys([*party.keys.values(), *partner_columns, *_targets(party, partner_columns)]))
                ),
            },
            columns={
                party.party: {**values, **label_values, **_features(party, columns, own_columns)},
                feature: {**values, **repeats, **_features(party, columns, partner_columns)},
            },
            given=tuple(partner_columns),
            kept=tuple(own_columns),
        )


def _features(party: PartyFile, columns: FeatureColumns, columns_of_partner: Sequence[str]) -> dict[str, Any]:
    return {
        "features": {
            "numeric": [name for name in columns.numeric if name in columns_of_partner],
            "categorical": [name for name in columns.categorical if name in columns_of_partner],
        },
        "sequences": {name: each.model_dump() for name, each in party.sequences.items() if name in columns_of_partner},
    }


def _targets(party: PartyFile, columns: Sequence[str]) -> list[str]:
    """Return the columns that the chosen sequences name as their target item. A sequence is useless without it."""
    return [each.target for name, each in party.sequences.items() if name in columns and each.target is not None]
