"""How much to draft and to verify."""

from .fixed import FixedLength

__all__ = ["FixedLength"]
