"""Checks of draft tokens and their laws."""

from __future__ import annotations

import torch
from torch import Tensor


def check_tokens(tokens: Tensor) -> None:
    """Refuse what is no list of integers.

    Raises:
        ValueError: naming `tokens`.
    """
    if tokens.ndim != 1:
        raise ValueError(f"tokens must have the shape (L,), got {tuple(tokens.shape)}")
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise ValueError(f"tokens must be integers, got {tokens.dtype}")


def check_ids(tokens: Tensor, vocabulary_size: int) -> None:
    """Refuse ids outside the vocabulary.

    Raises:
        ValueError: naming `tokens`.
    """
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary_size:
        raise ValueError(f"tokens must lie in 0 … {vocabulary_size - 1}, got {tokens.tolist()}")


def check_laws(q: Tensor, rows: int) -> None:
    """Refuse what is not (rows, V) laws or sub-laws.

    Raises:
        ValueError: naming `q`.
    """
    if q.ndim != 2 or q.shape[0] != rows or q.shape[1] == 0:
        raise ValueError(f"q must have the shape ({rows}, V), one row more than tokens, got {tuple(q.shape)}")
    if not q.is_floating_point():
        raise ValueError(f"q must be floating point, got {q.dtype}")
    lowest, largest = float(q.min()), float(q.sum(dim=-1, dtype=torch.float32).max())
    allowed = 1 + max(1e-4, 2 * torch.finfo(q.dtype).eps)
    if not (lowest >= 0 and largest <= allowed):
        raise ValueError(
            "q must be finite and non-negative, with rows that sum to at most 1, "
            f"got a lowest entry of {lowest} and a largest sum of {largest}"
        )
