import torch.nn as nn


class TokenConv(nn.Conv2d):
    """A depthwise convolution of values along the flattened tokens, one filter for each head.

    ``(B, heads, N, d) -> (B, heads, N, d)``, zero padded, without a bias. At the end of a row of
    the map, the kernel continues into the next row, as in the code of Nyströmformer and
    Castling-ViT.

    Args:
        num_heads: Heads.
        kernel_size: Odd number of taps.

    Raises:
        ValueError: For an even or non-positive ``kernel_size``.
    """

    def __init__(self, num_heads: int, kernel_size: int) -> None:
        if not isinstance(kernel_size, int) or kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f'conv_kernel_size must be odd, or 0 for none, got {kernel_size!r}')
        size, padding = (kernel_size, 1), (kernel_size // 2, 0)
        super().__init__(num_heads, num_heads, size, padding=padding, groups=num_heads, bias=False)
