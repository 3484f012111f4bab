"""First values of parameters."""

from torch import Tensor, nn


def draw_normal_(parameter: Tensor) -> Tensor:
    """Normal values of deviation 0.02 in place of a parameter's own, none further off than 2.

    A parameter on the device ``'meta'`` has no values, and drawing none takes torch a millisecond.
    A backbone may have a thousand of them.
    """
    return parameter if parameter.is_meta else nn.init.trunc_normal_(parameter, std=0.02)
