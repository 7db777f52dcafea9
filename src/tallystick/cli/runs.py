"""Implement runs: list the trained runs of a contract, and choose which of them is in use."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tallystick.cli.options import ContractPath, JsonFlag, PartyPath
from tallystick.cli.output import finish, guarded
from tallystick.errors import ConfigError


class Action(StrEnum):
    """Action on runs."""

    list = "list"
    promote = "promote"
    rollback = "rollback"
    shadow = "shadow"


def runs(
    contract: ContractPath,
    party: PartyPath,
    action: Annotated[Action, typer.Argument(help="What to do: list, promote, rollback or shadow.")] = Action.list,
    run: Annotated[
        str | None, typer.Argument(help="The run to promote or to shadow: its id, or its folder's name or path.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List this party's runs, promote one, or withdraw the newest promotion. A run is used once all parties have promoted it.

    `shadow RUN` names a candidate. Once all parties have named it, `serve` also scores with it. `shadow` without a run ends that.
    """

    def work() -> None:
        from tallystick.config.contract import load_contract
        from tallystick.config.party import load_party
        from tallystick.config.party_checks import check_party
        from tallystick.job.versions import Versions, listed

        agreed, own = load_contract(contract), load_party(party)
        check_party(agreed, own, network=False)
        versions = Versions(contract=agreed, party=own)
        if action != Action.shadow and (action == Action.promote) != (run is not None):
            raise ConfigError("runs: `promote` needs a run, by its id; `list` and `rollback` take none")
        if action == Action.shadow:
            candidate = versions.name_candidate(run).run_id if run is not None else None
            if candidate is None:
                versions.drop_candidate()
            sentence = (
                f"run {candidate} is the candidate here" if candidate is not None else "there is no candidate here any more"
            )
            finish({"candidate": candidate}, as_json=as_json, show=lambda console: console.print(sentence, markup=False))
        elif run is not None:
            promotion = versions.promote(run)
            sentence = f"run {promotion.run_id} is promoted here; it will be in use when all sides have promoted it"
            finish({"promoted": promotion.run_id}, as_json=as_json, show=lambda console: console.print(sentence, markup=False))
        elif action == Action.rollback:
            withdrawn, now = versions.roll_back()
            none_left = "no run is promoted here now, so commands use the latest complete run; promote another run on all sides"
            remaining = f"run {now.run_id} is the newest promotion now" if now is not None else none_left
            values = {"withdrawn": withdrawn.run_id, "promoted": now.run_id if now is not None else None}
            finish(
                values,
                as_json=as_json,
                show=lambda console: console.print(f"run {withdrawn.run_id} is withdrawn; {remaining}", markup=False),
            )
        else:
            rows = listed(agreed, own)
            finish({"runs": rows}, as_json=as_json, show=lambda console: _show(console, rows))

    guarded(work, as_json=as_json, loads=("numpy", "torch", "tallystick.job.versions"))


def _show(console: Console, rows: list[dict[str, object]]) -> None:
    from tallystick.results import written_metric

    if not rows:
        console.print("no run of this contract yet", markup=False)
        return
    metric = next((str(row["metric"]) for row in rows if "metric" in row), "")
    table = Table()
    for name in ("run", "began", metric, "started from", "state"):
        table.add_column(name, overflow="fold")
    for row in rows:
        value, state = row.get("value"), str(row["state"])
        if row.get("promoted"):
            state += ", promoted" + (" (newest)" if row["newest"] else "") + (", agreed" if row["agreed"] else "")
        if row.get("candidate"):
            state += ", candidate"
        cells = (
            row["run_id"] or Path(str(row["folder"])).name,
            str(row.get("began") or "")[:16],
            written_metric(value) if isinstance(value, float) else "",
            row.get("started_from") or "",
            state,
        )
        table.add_row(*(escape(str(cell)) for cell in cells))
    console.print(table)
