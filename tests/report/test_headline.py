"""What `run` prints at its end on a terminal."""

import io

from rich.console import Console

from tallystick.cli.jobs import show_headline


def test_both_models_are_shown_with_their_intervals(make) -> None:
    result = make()
    console = Console(file=io.StringIO(), width=200)
    show_headline(console, result)
    for model in (result.joint["auc"], result.local_baseline["auc"]):
        assert f"{model['value']:.4f} [{model['low']:.4f}, {model['high']:.4f}]" in console.file.getvalue()
