"""A module in the place of ``torch.nn.MultiheadAttention``."""

from attnkit_torch.multihead.module import TorchMultiHeadAttention

__all__ = ["TorchMultiHeadAttention"]
