"""Run bench linkage, which measures one of several things."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from tallystick_experiments.fedsim import located
from tallystick_experiments.fedsim.linkage import linkage_speed, text_recall

Figures = dict[str, Any]


def linkage(
    rows: Annotated[int, Option(help="Rows of the label party.", min=2)] = 141_000,
    others: Annotated[int, Option(help="Rows of the feature party.", min=2)] = 28_000,
    neighbors: Annotated[int, Option(help="Links of a row.", min=1)] = 100,
    sample: Annotated[int, Option(help="Rows to check by brute force.", min=1)] = 1000,
    texts: Annotated[Path | None, Option(help="Folder of dblp_acm and fodors_zagats: recall of true matches instead.")] = None,
    places: Annotated[Path | None, Option(help="Folder of FedSim's hdb: what attackers locate instead.")] = None,
) -> Figures:
    """Measure the speed of linking by similar keys, the recall of texts, or what attackers locate under noise."""
    if places is not None:
        return located.measure_noise_settings(places, neighbors=neighbors)
    if texts is not None:
        return {"texts": text_recall(texts)}
    return linkage_speed(rows=rows, others=others, neighbors=neighbors, sample=sample)
