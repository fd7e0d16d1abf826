"""What a decoding did to the output, in numbers."""

from .divergence import Divergence, first_divergence

__all__ = ["Divergence", "first_divergence"]
