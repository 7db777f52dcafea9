"""Write a card for an exported half, in Markdown: what it is, how good, what leaked, and what it must not be used for."""

from tallystick.evaluation.importance import column_places
from tallystick.export.half import EMBEDDING, Exported
from tallystick.report.leaks import leak_lines, promise
from tallystick.results import Result, metric_in_words, written_metric


def card_of(exported: Exported, result: Result | None) -> str:
    """Write the card. Without a result it says so."""
    contract, party = exported.contract, exported.origin.party
    role = contract.role_of(party)
    encoder = exported.encoder
    columns = [place.name for place in column_places(encoder)] if encoder is not None else []
    lines = [
        "It takes columns as `encoder.json` encodes them, in the order of `inputs.json`. "
        + (f"They are: {', '.join(f'`{name}`' for name in columns)}." if columns else "It has no columns of its own."),
    ]
    if exported.widths:
        cuts = ", ".join(f"`{EMBEDDING}_{name}` of width {width}" for name, width in exported.widths.items())
        lines.append(f"It also takes the cut embeddings of the other parties: {cuts}.")
    if result is None or not (result.joint or (result.sections.shared is not None and result.sections.shared.metrics)):
        metrics = ["Not known here. The label party's report has it."]
    elif not result.joint:
        shared = result.sections.shared
        assert shared is not None, "one of the two is known"
        rows = {name: written_metric(value["value"]) for name, value in shared.metrics.items() if value["value"] is not None}
        metrics = [_table(rows), f"On test rows, as {shared.party} says."]
    else:
        rows = {}
        for name, value in result.joint.items():
            if value["value"] is not None:
                own = result.local_baseline.get(name)
                beside = f"; own columns alone {metric_in_words(own)}" if own is not None and own["value"] is not None else ""
                rows[name] = f"{metric_in_words(value)}{beside}"
        metrics = [_table(rows), "On test rows of the run."]
    warnings = {
        "label": "Not to be given to a feature party: with this half it can turn its own embeddings into scores, and guess "
        "labels.",
        "feature": "Not to be given to the label party: with this half it can try columns until they give an embedding that "
        "it has seen, and so find them.",
    }
    limits = [
        warnings[role],
        "Not for columns that are encoded in another way, or by the encoder of another run.",
        "Not with the half of another run: the halves of a run were trained together.",
        "Not for people or times that the training rows do not represent. The metrics hold for rows like the test rows.",
        "Not as a protection: an embedding reveals columns, and a score reveals labels, whoever computes them.",
    ]
    if contract.defense:
        limits.append("Not as a defended model: the contract's defences change what is sent, and are not part of this file.")
    leaks = ["Not known here: the run has no report."]
    if result is not None:
        lines_of_leaks = [line for line in [*leak_lines(result), promise(result)] if line]
        leaks = ["\n".join([f"- {line}" for line in lines_of_leaks] or ["- The run was not audited."])]
        leaks.append("An attack's figure is a floor: it says what was found, and more may be found.")
    parts = [
        f"# {contract.name}: the half of {party}",
        f"One half of a split network. {party} is the {role} party; the others are "
        f"{', '.join(name for name in contract.parties if name != party)}. No half gives a score without the others.",
        _table(
            {
                "run": result.run_id if result is not None else exported.origin.run,
                "contract": contract.hash,
                "rows linked by": contract.alignment.method,
                "target": contract.target.type,
                "gradients": contract.training.gradients,
                "defences": ", ".join(entry.defense.method for entry in contract.defense) or "none",
            }
        ),
        "## Inputs and output",
        *lines,
        f"Output: {exported.meaning['output']}.",
        "## How good the whole network is",
        *metrics,
        "## What leaked in training",
        *leaks,
        "## What it must not be used for",
        "\n".join(f"- {line}" for line in limits),
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: dict[str, str]) -> str:
    return "\n".join(["| what | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
