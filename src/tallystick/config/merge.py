"""Declare how a model merges the rows that are linked to one row of the label party: one class per ``model.merge.method``."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from tallystick.reading import Variant, Width, usual

_METHOD = "attention, FedSim's cnn, its mlp in place of that, the average, or the most similar link alone (top1)"
_WEIGHT = "weight of a link: a learnt function of its similarity, the similarity, or all equal"
_SIGNED = "weight of a link: a learnt function of its similarity, or all equal; the similarity itself may be negative"
Sort = Annotated[bool, Field(strict=True, description="read the links from the least to the most similar")]
Dropout = Annotated[float, Field(strict=True, ge=0, lt=1, description="share of numbers that dropout leaves out in training")]
Hidden = Annotated[Width, Field(description="width of the layer after the links")]


class MergeKeys(Variant):
    """Base of the merges of the links of one row into one prediction."""

    similarity_input: bool = Field(
        default=True, strict=True, description="the similarity is also a column of the link (FeatureSim)"
    )
    own_columns: bool = Field(
        default=True, strict=True, description="the label party's own columns also reach the top past the merge"
    )
    width: Width = Field(default=64, description="outputs of a link before the merge")
    activation: Literal["relu", "sigmoid", "none"] = Field(default="relu", description="of a link's outputs; FedSim's is sigmoid")
    top: tuple[Width, ...] = Field(default=(128,), max_length=100, description="widths of the hidden layers after the merge")


class AttentionMergeConfig(MergeKeys):
    """Attention over the links."""

    method: Literal["attention"] = Field(default="attention", description=_METHOD)
    weight: Literal["learnt", "equal"] = Field(default="learnt", description=_SIGNED)
    sort: Sort = True
    heads: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(default=4, description="heads of the attention")
    dropout: Dropout = 0.0


class CNNMergeConfig(MergeKeys):
    """FedSim's convolution along the links."""

    method: Literal["cnn"] = Field(description=_METHOD)
    weight: Literal["learnt", "similarity", "equal"] = Field(default="learnt", description=_WEIGHT)
    sort: Sort = True
    channels: Annotated[int, Field(strict=True, ge=1, le=1024)] = Field(default=8, description="channels of the convolution")
    kernel: Annotated[int, Field(strict=True, ge=1, le=99)] = Field(default=7, description="links that a channel reads at once")
    hidden: Hidden = 400
    dropout: Dropout = 0.0


class MLPMergeConfig(MergeKeys):
    """FedSim without its convolution."""

    method: Literal["mlp"] = Field(description=_METHOD)
    weight: Literal["learnt", "similarity", "equal"] = Field(default="learnt", description=_WEIGHT)
    sort: Sort = True
    hidden: Hidden = 400
    dropout: Dropout = 0.0


class AverageMergeConfig(MergeKeys):
    """The weighted mean of the links' outputs."""

    method: Literal["average"] = Field(description=_METHOD)
    weight: Literal["learnt", "equal"] = Field(default="learnt", description=_SIGNED)
    sort: Sort = True


class Top1MergeConfig(MergeKeys):
    """The most similar link alone, which is the last of sorted ones."""

    method: Literal["top1"] = Field(description=_METHOD)
    weight: Literal["learnt", "equal"] = Field(default="learnt", description=_SIGNED)

    sort: ClassVar[bool] = True


MergeConfig: TypeAlias = Annotated[
    AttentionMergeConfig | CNNMergeConfig | MLPMergeConfig | AverageMergeConfig | Top1MergeConfig,
    Field(discriminator="method"),
    usual("method", "attention"),
]
