"""Keep weights of a batch's forward pass for its backward pass, after they have changed."""

from contextlib import AbstractContextManager
from functools import partial

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def weights_kept(module: nn.Module) -> AbstractContextManager[object]:
    """Keep copies of the module's weights in a forward pass within this block, for its backward pass."""
    # The graph keeps the hook and its results: a hook that held a loop, or a tensor with its graph, would be a cycle that Python
    # cannot collect.
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    return saved_tensors_hooks(partial(_copy_of_weights, weights), lambda tensor: tensor)


def _copy_of_weights(weights: set[int], tensor: Tensor) -> Tensor:
    weight = tensor.detach()
    return weight.clone() if tensor.untyped_storage().data_ptr() in weights else weight
