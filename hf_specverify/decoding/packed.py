"""Packed scoring: the tokens of all rows in one sequence, so that filler costs nothing outside attention.

A forward over (1, T) tokens runs every linear layer on exactly the tokens that count. Only attention needs the rows
back: keys and values come from the row cache, (B, heads, slots, size), and queries are unpacked to (B, longest) around
the attention kernel. The kernel's call is intercepted in this thread for the length of the forward, so the model and
its configuration are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_ATTENTION = torch.nn.functional.scaled_dot_product_attention


class Packing:
    """Where each of the T = Σ counts tokens stands among the rows.

    Attributes:
        rows, places: (T,) long, the row and the place in its block of every token.
        flat: (B, longest) long, the token at every place; behind a row's own tokens its last one.
    """

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        self.count, self.longest = len(counts), max(counts)
        sizes = torch.tensor(counts, device=device)
        self.rows = torch.repeat_interleave(torch.arange(self.count, device=device), sizes, output_size=sum(counts))
        starts = sizes.cumsum(0) - sizes
        self.places = torch.arange(sum(counts), device=device) - starts[self.rows]
        inside = torch.arange(self.longest, device=device).clamp(max=(sizes - 1)[:, None])
        self.flat = starts[:, None] + inside

    def pack(self, values: Tensor) -> Tensor:
        """(B, longest, …) -> (1, T, …)."""
        return values[self.rows, self.places][None]

    def unpack(self, values: Tensor) -> Tensor:
        """(1, T, …) -> (B, longest, …), filled up with the last token of each row."""
        return values[0, self.flat.to(values.device)]


class PackedAttention(TorchFunctionMode):
    """While active, scaled dot product attention takes packed queries (1, heads, T, size) and returns the like."""

    def __init__(self, packing: Packing) -> None:
        super().__init__()
        self.packing = packing

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Handle attention; pass everything else on."""
        if func is not _ATTENTION:
            return func(*args, **(kwargs or {}))
        arguments = dict(kwargs or {})
        query = args[0] if args else arguments.pop("query")
        by_row = self.packing.unpack(query.transpose(1, 2)).transpose(1, 2)
        output: Tensor = func(by_row, *args[1:], **arguments).transpose(1, 2)
        rows, places = self.packing.rows.to(output.device), self.packing.places.to(output.device)
        return output[rows, places][None].transpose(1, 2)
