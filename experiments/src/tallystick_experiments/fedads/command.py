"""Choose one of the tables in bench fedads, and check the options that belong to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from typer import Option

from tallystick.errors import ConfigError
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.fedads import defenses, leaks, unaligned
from tallystick_experiments.fedads.unaligned_data import ALIGNED
from tallystick_experiments.options import GROUP, seeds_option, several


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Hold options of one table or two. An option is refused with another table."""

    epochs: Annotated[int, Option(help="Table 4: of every training run.", min=1)] = 1
    swapped: Annotated[bool, Option("--swapped", help="Table 4: give each party the other's columns.")] = False
    by_users: Annotated[bool, Option("--by-users", help="Table 3: draw test and aligned rows by whole users.")] = False
    aligned: Annotated[
        float | None,
        Option(help="Share of the training rows that both parties have; if left out, 0.2 for table 3, all for table 4."),
    ] = None
    paper_networks: Annotated[
        bool,
        Option(
            "--paper-networks",
            help="The paper's networks, with batch normalisation and a linear layer on top; in table 3 FedAds' own data always "
            "gets them.",
        ),
    ] = False


USUAL = TableOptions()


def fedads_experiment(
    *,
    data: Annotated[
        Path,
        Option(
            help="FedAds' folder, the IJCAI-18 sample, Kaggle's Criteo or Avazu file, or the folder of FATE's credit-card files."
        ),
    ],
    table: Annotated[
        str, Option(help="Which of the paper's tables: 3, unaligned rows, or 4, defences; or leaks, audits of both.")
    ] = "4",
    seeds: Annotated[Sequence[int], seeds_option()] = range(1, 6),
    only: Annotated[
        Sequence[str],
        several(
            "Table 3: rows, with semicolons between; all but probes if empty. Table 4: defences, by a contract's names. "
            "Leaks: methods.",
            separator=";",
        ),
    ] = (),
    options: Annotated[TableOptions, GROUP] = USUAL,
    limit: Annotated[int | None, Option(help="Draw so many rows of each file at random.")] = None,
) -> Experiment:
    """Declare the table. Raises ConfigError for an option of another table."""
    aligned, paper_networks = options.aligned, options.paper_networks
    if table not in ("3", "4", "leaks"):
        raise ConfigError(f"--table {table}: expected 3, 4 or leaks")
    if table != "3" and options.by_users:
        raise ConfigError("--by-users: only works with --table 3; leave it out")
    if table == "leaks" and (paper_networks or aligned is not None):
        raise ConfigError("--paper-networks, --aligned: only work with --table 3 or 4; leave them out")
    if table != "4" and (options.swapped or options.epochs != 1):
        raise ConfigError("--swapped, --epochs: only work with --table 4; leave them out")
    if table == "leaks":
        return leaks.fedads_leaks_experiment(data=data, seeds=seeds, methods=only or leaks.METHODS, limit=limit)
    if table == "3":
        share = ALIGNED if aligned is None else aligned
        how = {"by_users": options.by_users, "paper_networks": paper_networks}
        return unaligned.unaligned_rows_experiment(data=data, seeds=seeds, only=only, aligned=share, limit=limit, **how)
    setting = defenses.Setting(
        plan=replace(defenses.USUAL.plan, epochs=options.epochs),
        swapped=options.swapped,
        aligned=1.0 if aligned is None else aligned,
        normalised=paper_networks,
    )
    return defenses.fedads_defenses_experiment(data=data, seeds=seeds, setting=setting, only=only, limit=limit)
