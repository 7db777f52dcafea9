"""Define bench: one command for each figure that the documentation quotes.

A command's options are the parameters of its function. Only the requested command is loaded, so that a list of all commands need
not wait for their modules.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points

import typer

from tallystick_experiments.command import Command

_HERE = "tallystick_experiments"
COMMANDS: Mapping[str, Command] = {
    name: Command(f"{_HERE}.{place}", says)
    for name, place, says in (
        ("training", "speed.command:training", "Steps per second over mutual TLS beside the same model in one process."),
        (
            "lossless",
            "speed.lossless:measure_lossless",
            "The largest difference of any weight between two processes and one, after 200 steps.",
        ),
        (
            "alignment",
            "speed.alignment:measure_alignment",
            "Seconds, processor time, bytes and memory of a private alignment, from tables to written alignments.",
        ),
        (
            "linkage",
            "fedsim.command:linkage",
            "Linking by similar keys: seconds and memory through a helper, recall of texts, and what attackers locate by noise.",
        ),
        ("memory", "speed.memory:measure_memory", "Peak memory of a Criteo-shaped file, generated, and bytes per row."),
        (
            "table",
            "speed.table:measure_table",
            "A table that does not fit memory: seconds and memory of reading, fitting, encoding, an epoch and an evaluation.",
        ),
        (
            "defenses",
            "speed.defenses:measure_defenses",
            "Milliseconds per batch of every defence beside the training step, and distance correlation against its definition.",
        ),
        (
            "serve",
            "speed.serving:measure_serving",
            "Scores online under the load of hey and wrk: times, CPU per request, faults, memory.",
        ),
        (
            "dpauc",
            "dpauc.tables:measure_dpauc",
            "DPAUC's Tables 1 to 5 beside the paper's numbers, with the mechanisms that do better.",
        ),
        ("private-coverage", "dpauc.tables:coverage", "How often the exact AUC lies in a private AUC's 95 % interval."),
        (
            "retraining",
            "retraining:retraining_experiment",
            "Real flights by the month: retraining from last month's weights against from scratch, loss and processor time.",
        ),
        (
            "florist",
            "florist.sweep:florist_experiment",
            "FLORIST's tables and curves beside the paper's numbers: training on a union with synthetic labels and features.",
        ),
        (
            "florist-convergence",
            "florist.convergence:florist_convergence_experiment",
            "FLORIST's Figure 2 h to j: losses and test AUC in the course of training.",
        ),
        (
            "label-leakage",
            "label_leakage.sweep:label_leakage_experiment",
            "The label-leakage paper's tables 1 to 5 and figures 2 to 7 beside its numbers, and what distance correlation buys.",
        ),
        (
            "label-defenses",
            "label_leakage.defended:label_defenses_experiment",
            "Every attack on labels and on columns against every defence, on tables with classes and with numbers to predict.",
        ),
        (
            "null-audit",
            "null_audits:null_audits_experiment",
            "How often an audit says that something leaks where labels and columns are shuffled, and whether its "
            "intervals cover.",
        ),
        (
            "audit",
            "label_leakage.kept:kept_views_experiment",
            "The audit's figures beside those of whoever kept all epochs and rows; its time as a share of training's, "
            "its memory.",
        ),
        (
            "feature-leakage",
            "feature_leakage.sweep:feature_leakage_experiment",
            "How much of a feature party's columns comes back from its embeddings, by cut width and defence, and the "
            "price of hiding.",
        ),
        (
            "replay",
            "feature_leakage.replay:replay_experiment",
            "A bottom model's training played again from the gradients that the label party sent: how much of the columns "
            "comes back.",
        ),
        (
            "fedads",
            "fedads.command:fedads_experiment",
            "FedAds' Tables 3 and 4: what unaligned rows are worth, and what defences do to a label inference attack.",
        ),
        (
            "far",
            "far.price:price_experiment",
            "What fewer bytes and more batches in flight cost in AUC or RMSE on public tables.",
        ),
        (
            "line",
            "far.line:measure_lines",
            "Steps a second of training through a long line, by batches in flight and by compression, beside one machine.",
        ),
        (
            "quality",
            "quality.command:quality_experiment",
            "A split network beside gradient boosting on the joined table and on own columns, on public tables split at random.",
        ),
        (
            "vectors",
            "vectors:measure_vectors",
            "What a partner's vectors bring: hashed titles of publications, 768 numbers each.",
        ),
        ("explore", "explore:explore_experiment", "How well an estimate on a sample foretells joining's gain, on public tables."),
        ("student", "student:student_experiment", "How much of joining's gain a student of own columns keeps, on public tables."),
        (
            "fedsim",
            "fedsim.sweep:fedsim_experiment",
            "FedSim's tables and figures beside its numbers: rows linked by similar keys, and networks that weigh the links.",
        ),
    )
}


def every_command() -> dict[str, Command]:
    """List all commands, with those of other packages, such as tallystick-robustness."""
    return {**COMMANDS, **{entry.name: entry.load() for entry in entry_points(group="tallystick.bench")}}


def command_line(wanted: Sequence[str]) -> typer.Typer:
    """Build the command line, with the commands of these names loaded and the others listed."""
    group = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        help="Measure tallystick: speed, losslessness, and the papers' tables.",
    )
    for name, command in every_command().items():
        group.command(name, help=command.says)(command.load() if name in wanted else _not_loaded)
    return group


def _not_loaded() -> None:
    """Replace a command that is not loaded in the list of commands."""


def app(*, args: Sequence[str], prog_name: str) -> None:
    """Run the command that the first argument names."""
    command_line(args[:1])(args=list(args), prog_name=prog_name)
