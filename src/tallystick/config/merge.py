"""Declare how a label party's model merges the rows that are linked to one of its own, as far as a contract says."""

from typing import Annotated, Literal

from pydantic import Field

from tallystick.reading import Model, Width

MergeMethod = Literal["attention", "cnn", "mlp", "average", "top1"]
Weight = Literal["learnt", "similarity", "equal"]


class MergeConfig(Model):
    """Merging of the links of one row into one prediction (alignment by similarity only)."""

    method: MergeMethod = Field(
        default="attention",
        description="attention, FedSim's cnn, its mlp in place of that, the average, or the most similar link alone (top1)",
    )
    weight: Weight = Field(
        default="learnt",
        description="what a link weighs: a learnt function of its similarity, the similarity, or all equal",
    )
    sort: bool = Field(
        default=True,
        strict=True,
        description="read the links from the least to the most similar (cnn and mlp need it)",
    )
    similarity_input: bool = Field(
        default=True, strict=True, description="the similarity is also a column of the link (FeatureSim)"
    )
    own_columns: bool = Field(
        default=True, strict=True, description="the label party's own columns also reach the top past the merge"
    )
    width: Width = Field(default=64, description="outputs of a link before the merge")
    activation: Literal["relu", "sigmoid", "none"] = Field(default="relu", description="of a link's outputs; FedSim's is sigmoid")
    heads: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(default=4, description="heads (attention only)")
    channels: Annotated[int, Field(strict=True, ge=1, le=1024)] = Field(default=8, description="channels (cnn only)")
    kernel: Annotated[int, Field(strict=True, ge=1, le=99)] = Field(
        default=7, description="links that a channel reads at once (cnn)"
    )
    hidden: Width = Field(default=400, description="width of the layer after the links (cnn and mlp only)")
    top: tuple[Width, ...] = Field(default=(128,), max_length=100, description="widths of the hidden layers after the merge")
    dropout: float = Field(
        default=0.0, strict=True, ge=0, lt=1, description="share of numbers that a merge leaves out in training"
    )


def merge_problems(merge: MergeConfig) -> list[str]:
    """List the settings that do not go together."""
    problems = []
    if merge.weight == "similarity" and merge.method not in ("cnn", "mlp"):
        problems.append(
            f"model.merge.weight = similarity: may be negative, of which {merge.method} makes no share; use learnt or equal"
        )
    if merge.method == "top1" and not merge.sort:
        problems.append("model.merge.sort = false: merge.method = top1 reads the most similar link, so leave sort out")
    return problems
