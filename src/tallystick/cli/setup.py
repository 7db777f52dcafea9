"""Implement init, cert and check, the commands before a job."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tallystick.cli.options import LINKAGE_NAMES, JsonFlag
from tallystick.cli.output import EXIT_USAGE, LIBRARIES, finish, guarded
from tallystick.errors import ConfigError, StorageError
from tallystick.storage import files_together, make_folders
from tallystick.terminal import printable_lines

if TYPE_CHECKING:
    pass

NAME_WIDTH = 30  # width of a column's name in check's table; a longer name is folded
WIDE = 100  # characters of a terminal with room for the words minimum and maximum
MOST_OF_BOUND = 10  # letters of a column's least or largest value
REST_WIDTH = 66  # width of the cells next to a name; bounds that do not fit are printed below the table
MOST_COLUMNS = 200  # greatest number of columns that are shown to people


def init(
    folder: Annotated[Path, typer.Argument(help="Folder in which party.yaml and contract.yaml are made.")],
    role: Annotated[str, typer.Option(help="This party's role: label, feature or helper.")],
    parties: Annotated[
        str, typer.Option(help="Names of the label party and the feature parties, in this order. A helper is called helper.")
    ] = "bank,shop",
    method: Annotated[
        str | None,
        typer.Option(help=f"How rows are linked: {LINKAGE_NAMES}. Default: intersection; at a helper union-with-helper."),
    ] = None,
    party: Annotated[str | None, typer.Option(help="This party's name, where there are several feature parties.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="This party's table. Its header names key and label, where that is plain.")
    ] = None,
    gradients: Annotated[
        str,
        typer.Option(
            help="Whether training sends gradients. sent: yes. none: nothing that depends on a label is sent "
            "(docs/explanation/what-crosses-the-cut.md). shared: columns stay hidden in training, too, with a helper "
            "(docs/howto/train-on-shares.md)."
        ),
    ] = "sent",
    as_json: JsonFlag = False,
) -> None:
    """Write a commented party file and contract to start from."""

    def work() -> None:
        from tallystick.config.templates import FileRequest, contract_text, party_text
        from tallystick.reading import Role

        roles: tuple[Role, ...] = get_args(Role)
        if (chosen_role := next((name for name in roles if name == role), None)) is None:
            raise ConfigError(f"--role {role}: must be {', '.join(roles[:-1])} or {roles[-1]}")
        request = FileRequest(
            role=chosen_role,
            parties=tuple(name.strip() for name in parties.split(",")),
            method=method or ("union-with-helper" if chosen_role == "helper" and gradients != "shared" else "intersection"),
            party=party,
            table=table,
            gradients=gradients,
        )
        paths = {"party": folder / "party.yaml", "contract": folder / "contract.yaml"}
        for path in paths.values():
            if path.exists():
                raise ConfigError(f"{path} exists already; choose another folder")
        columns: list[str] = []  # how each is read
        if table is not None:
            from tallystick.config.table import TableConfig
            from tallystick.errors import DataError
            from tallystick.reading import validate
            from tallystick.tables.column_guesses import guess_columns
            from tallystick.tables.doubtful_text import text_warning
            from tallystick.tables.doubtful_times import digits_warning, times_warnings
            from tallystick.tables.profile import samples_of
            from tallystick.tables.table import read_table

            try:
                own_table = validate(TableConfig, {"path": str(table.absolute())}, source="--table")
                frame = read_table(own_table)
                guesses = guess_columns(frame, similar=request.facts.similar, is_label=request.role == "label")
                if guesses.key is not None:  # the key is text whenever it is read again: 00123 stays 00123
                    frame = read_table(own_table, text={guesses.key})
            except DataError as error:  # there is no party file yet that could be wrong
                reason = str(error).replace("check table.path, or the option that names it", "check --table")
                how = "; without --table you get a party file in which you can set it" if "party file" in reason else ""
                raise DataError(f"{reason}{how}") from None
            columns += frame.notes
            for name in frame.columns[:MOST_COLUMNS]:
                column = frame.get_column(name)
                samples = ", ".join(samples_of(column))
                columns.append(f"{name}: {column.dtype}{f', such as {samples}' if samples else ', without a value'}")
                if name != guesses.key:
                    warning = digits_warning(column) or text_warning(column)
                    columns += [*([warning] if warning is not None else []), *times_warnings(column)]
            place = table if table.is_absolute() else Path(os.path.relpath(table, folder))
            request = replace(request, columns=guesses, table=place)
        make_folders(folder)
        with files_together() as write:
            party_lines = party_text(request)
            write(paths["party"], party_lines.encode())
            write(paths["contract"], contract_text(request).encode())
            written = {kind: str(path) for kind, path in paths.items()}
            if chosen_role == "label":
                # Make the ledger that the party file names, and write its identity there
                from tallystick.config.party import load_party
                from tallystick.run_folder.ledger import create_ledger

                ledger = create_ledger(load_party(paths["party"]))
                assert party_lines.count("identity: null") == 1
                try:
                    write(paths["party"], re.sub(r"identity: null +", f"identity: {ledger.identity}  ", party_lines).encode())
                except StorageError:
                    ledger.path.unlink()
                    raise
                written["ledger"] = str(ledger.path)
        finish({**written, **({"columns": columns} if columns else {})}, as_json=as_json)

    ledger = ("tallystick.run_folder.ledger",) if role == "label" else ()
    looks = ("polars", "tallystick.tables.column_guesses") if table is not None else ()
    guarded(work, as_json=as_json, loads=("tallystick.config.templates", *ledger, *looks))


def cert(
    folder: Annotated[Path, typer.Argument(help="Folder for the PEM files.")],
    parties: Annotated[list[str], typer.Argument(help="Names of the parties, as in the contract.")],
    days: Annotated[int, typer.Option(help="Number of days until the certificates expire.", min=1, max=825)] = 30,
    as_json: JsonFlag = False,
) -> None:
    """Make a test CA and a certificate per party. To add a party later, give its name alone.

    For production, let your own CA issue them (docs/reference/network.md).
    """

    def work() -> None:
        from tallystick.network.certificates import write_test_certificates
        from tallystick.reading import PARTY_NAME, shown

        for name in parties:
            if not PARTY_NAME.fullmatch(name):
                raise ConfigError(
                    f"party {shown(name)}: must be 1 to 63 of a-z, 0-9, - and _, starting and ending with a letter or digit, as "
                    "in the contract"
                )
            if parties.count(name) > 1:
                raise ConfigError(f"party {name}: is named twice; each party has one certificate")
        write_test_certificates(folder, parties, days=days)
        files = ["ca.pem", "ca.key", *(f"{party}{suffix}" for party in parties for suffix in (".pem", ".key"))]
        finish({"files": [str(folder / name) for name in files], "days": days}, as_json=as_json)

    guarded(work, as_json=as_json, loads=("tallystick.network.certificates",))


def check(
    party: Annotated[Path, typer.Argument(help="This party's own file, which stays private.")],
    contract: Annotated[Path | None, typer.Argument(help="The contract, if there is one already.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check party file, contract, table, keys, certificates and connections, and profile the table. No data is sent."""

    def work() -> None:
        from tallystick.check import check_party_file

        report = check_party_file(party, contract)
        finish(report, as_json=as_json, show=lambda console: _show(console, report))
        if report["problems"]:
            if as_json:  # the problems are in the one JSON object; a second one would hide it
                problems_text = printable_lines("; ".join(report["problems"]))
                sys.stderr.write(f"error: {len(report['problems'])} problem(s): {problems_text}\n")
            raise typer.Exit(EXIT_USAGE)

    guarded(work, as_json=as_json, loads=(*LIBRARIES, "tallystick.check"))


SHOWN = ("party", "contract_hash", "table", "keys", "alignment", "alignment_cost", "room", "certificate", "budget", "compute")
LINES = {"key_shapes": "keys", "encoding": "encoding", "defenses": "defence", "linkage": "linkage", "disclosures": "discloses"}
"""Findings of a check that have several lines, and the prefix of these lines."""


def _show(console: Console, values: dict[str, Any]) -> None:
    for name in SHOWN:
        if values.get(name):
            console.print(f"[bold]{name.replace('_', ' ')}[/bold]: {values[name]}")
    for name, said in LINES.items():
        for line in values.get(name, []):
            if line in values["warnings"]:
                continue
            console.print(f"[bold]{said}[/bold]: {escape(line)}")
    if (profile := values.get("profile")) is not None:
        counts = ", ".join(f"{name} {value}" for name, value in profile.items() if isinstance(value, int))
        table = Table(title=counts, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        # People look for names and uses, so these stay whole; a longer value continues on a second line.
        columns, more = profile["columns"], 0
        if len(columns) > MOST_COLUMNS:  # in the table's order, including keys and label
            first = sorted(
                range(len(columns)), key=lambda place: profile["columns"][place]["use"] in ("numeric", "categorical", "unused")
            )
            columns, more = [columns[place] for place in sorted(first[:MOST_COLUMNS])], len(columns) - MOST_COLUMNS
        widest = max(len("column"), *(len(column["name"]) for column in columns))
        name_width = min(widest, NAME_WIDTH)
        has_bounds = name_width + REST_WIDTH <= console.width
        table.add_column("column", overflow="fold", width=name_width)
        for name in ("use", "type", "missing", "distinct"):
            table.add_column(name, no_wrap=True)
        for name in (("minimum", "maximum") if console.width >= WIDE else ("min", "max")) if has_bounds else ():
            table.add_column(name, overflow="fold")
        for column in columns:
            kind = column["type"].partition("(")[0]
            bounds = [_shortened(column[name]) for name in ("minimum", "maximum")] if has_bounds else []
            cells = (column["use"], kind, f"{column['missing_share']:.1%}", column["distinct"], *bounds)
            table.add_row(escape(column["name"]), *(escape(_cell(value)) for value in cells))
        console.print(table)
        for column in columns:
            if column["samples"] and column["use"] != "key":
                least, most = (_shortened(column[name]) for name in ("minimum", "maximum"))
                bounds_in_words = f"; from {least} to {most}" if least is not None and not has_bounds else ""
                console.print(f"{column['name']}: such as {', '.join(column['samples'])}{bounds_in_words}", markup=False)
        if more:
            console.print(f"and {more:,} more columns; --json lists all", markup=False)
        for name, value in profile.items():
            if isinstance(value, dict) and name != "positive_classes":
                present = {
                    key.replace("_", " "): part
                    for key, part in value.items()
                    if part not in ("", {}) and not isinstance(part, tuple)
                }
                parts = ", ".join(f"{key} {_cell(part)}" for key, part in present.items())
                console.print(f"{name.replace('_', ' ')}: {parts}", markup=False)
        if profile["positive_class"] is not None:
            console.print(f"positive class: {profile['positive_class']}; a score is its probability", markup=False)
        for name, positive in profile["positive_classes"].items():
            console.print(f"positive class of {name}: {positive}; score_{name} is its probability", markup=False)
    for line in values["peers"]:
        console.print(line, markup=False)
    for line in values["warnings"]:
        console.print(f"[yellow]warning[/yellow]: {escape(line)}", soft_wrap=True)
    console.print("[green]no problems[/green]" if not values["problems"] else "[red]problems[/red]")
    for line in values["problems"]:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _shortened(value: str | None) -> str | None:
    """Return a column's bound. A number of more than ten letters is written with six digits, so that it fits in a line."""
    if value is None or len(value) <= MOST_OF_BOUND:
        return value
    try:
        return f"{float(value):.6g}"
    except ValueError:  # a date, a time
        return value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
