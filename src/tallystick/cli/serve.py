"""Implement serve: this party's side of online scores."""

from typing import Annotated

import typer

from tallystick.cli.options import ContractPath, JsonFlag, PartyPath, RunName, StyleFlag, read_files
from tallystick.cli.output import LIBRARIES, finish, guarded
from tallystick.cli.signals import interruptible, load
from tallystick.watcher import Style

ONLINE = tuple(f"tallystick.serving.{name}" for name in ("feature_party", "feature_party_asks", "label_party"))
LOADS = (*LIBRARIES, *ONLINE, "tallystick.cli.watch")


def serve(
    contract: ContractPath,
    party: PartyPath,
    table: Annotated[
        str | None, typer.Option(help="Rows to look up, by path or address. Default: the party file's table.")
    ] = None,
    run: RunName = None,
    progress: StyleFlag = Style.auto,
    as_json: JsonFlag = False,
) -> None:
    """Answer requests for scores one by one, with all parties online, until it is stopped."""

    def work() -> None:
        from tallystick.config.party_checks import check_party
        from tallystick.job.log import SERVING_LOG, RunLog
        from tallystick.serving.feature_party import serve_feature_party
        from tallystick.serving.feature_party_asks import serve_feature_party_that_asks, serve_label_party_that_answers
        from tallystick.serving.label_party import serve_label_party
        from tallystick.serving.serving_folder import ServingHome

        agreed, own, watcher = read_files(contract, party, progress)
        check_party(agreed, own)
        is_label = own.party == agreed.label_party
        role = serve_label_party if is_label else serve_feature_party
        if agreed.serving is not None and agreed.serving.feature_party_asks:
            role = serve_label_party_that_answers if is_label else serve_feature_party_that_asks
        if agreed.shares_head and agreed.serving is not None:
            load(("tallystick.serving.opened_scores",))  # and 35 MiB of modules for the head on shares
            interruptible()
            from tallystick.serving.opened_scores import serve_opened_scores

            role = serve_opened_scores
        log = RunLog(watcher)
        if agreed.serving is not None and own.runs.exists():
            log.keep_in(ServingHome.of(agreed, own).path, name=SERVING_LOG)
        with log.recording():
            role(agreed, own, table=table, run=run, watcher=log)
        finish({"party": own.party}, as_json=as_json)

    guarded(work, as_json=as_json, loads=LOADS, interrupted="interrupted; the partners were told")
