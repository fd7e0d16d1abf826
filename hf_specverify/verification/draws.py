"""Where a verifier gets its randomness: two kinds of draw, and the real source of both."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_BLOCK = 512  # tokens summed before the cumulative sum: about the square root of a large vocabulary


class Draws(Protocol):
    """All that a verifier may know of chance.

    Because every decision passes through these two methods, the verifier's exact output law can be computed by
    walking all of them (`hf_specverify.testing.enumerate_outcomes`).
    """

    def accept(self, probabilities: Tensor) -> Tensor:
        """Return independent coin flips: a bool tensor of the shape of `probabilities`, True with that probability."""

    def sample(self, weights: Tensor) -> Tensor:
        """Return one token per row of `weights` (…, V), unnormalised: long (…).

        Raises:
            ValueError: if a row has no positive weight.
        """


class GeneratorDraws:
    """Draws from a `torch.Generator`, or from PyTorch's global one.

    The generator may live on another device than the tensors: a CPU generator gives the same stream everywhere.
    Uniform numbers have 53 bits (24 on devices without float64), and their count depends on shapes only.

    Args:
        generator: the source of the uniform numbers; None means the global one of `device`.
        device: where to draw when `generator` is None; None means the device of the tensors.
    """

    def __init__(self, generator: torch.Generator | None = None, device: torch.device | str | None = None) -> None:
        self.generator = generator
        self.device = None if device is None else torch.device(device)

    def accept(self, probabilities: Tensor) -> Tensor:
        """As `Draws.accept`; a probability of 0 is never accepted, one of 1 always."""
        return self._uniforms(probabilities.shape, probabilities.device) < probabilities

    def sample(self, weights: Tensor) -> Tensor:
        """As `Draws.sample`; on CUDA a row without positive weight is a device-side assertion, to avoid a wait."""
        return inverse_cdf(weights, self._uniforms(weights.shape[:-1], weights.device))

    def _uniforms(self, shape: torch.Size, device: torch.device) -> Tensor:
        source = self.generator.device if self.generator is not None else (self.device or device)
        dtype = torch.float32 if "mps" in (source.type, device.type) else torch.float64
        uniforms = torch.rand(shape, generator=self.generator, device=source, dtype=dtype)
        # From pageable host memory a non-blocking copy is safe; towards the host it would not be.
        return uniforms.to(device, non_blocking=source.type == "cpu")


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Sample by inverting the cumulative distribution, in two stages: a block of tokens, then a token in it.

    Only sums over blocks touch the whole vocabulary, so no copy of `weights` is made. Sums and cumulative sums are in
    the dtype of `uniforms` (float64 where there is one). A token of weight 0 is never returned.

    Args:
        weights: (…, V), non-negative, unnormalised.
        uniforms: (…), in [0, 1]; 1 counts as just below 1.

    Returns:
        (…) long, the sampled tokens.

    Raises:
        ValueError: if the weights of a row do not have a positive, finite sum (on CUDA: a device-side assertion).
    """
    rows = weights.reshape(-1, weights.shape[-1])
    size = rows.shape[1]
    sums = _block_sums(rows, uniforms.dtype)
    _check_totals(sums.sum(dim=-1))
    block, rest = _invert(sums, uniforms.reshape(-1, 1))
    positions = block * _BLOCK + torch.arange(_BLOCK, device=rows.device)
    inside = rows.gather(1, positions.clamp(max=size - 1)).masked_fill(positions >= size, 0)
    token, _ = _invert(inside.to(uniforms.dtype), rest)
    return (block * _BLOCK + token).reshape(weights.shape[:-1])


def _block_sums(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum (R, V) over blocks of consecutive tokens, the last one possibly shorter: (R, blocks)."""
    full = rows.shape[1] // _BLOCK
    sums = rows[:, : full * _BLOCK].reshape(rows.shape[0], full, _BLOCK).sum(dim=-1, dtype=dtype)
    if full * _BLOCK == rows.shape[1]:
        return sums
    return torch.cat([sums, rows[:, full * _BLOCK :].sum(dim=-1, keepdim=True, dtype=dtype)], dim=1)


def _invert(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Choose one of n weights per row (R, n), and return what is left of the uniform (R, 1), again in [0, 1]."""
    cumulative = weights.cumsum(dim=-1)
    target = uniforms * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, target, right=True).clamp(max=weights.shape[1] - 1)
    # A uniform that rounds up to the total, or a parallel sum that is not monotone to the last bit, can end on a weight
    # of 0. The heaviest one takes that sliver of probability (about 1e-16).
    index = torch.where(weights.gather(1, index) > 0, index, weights.argmax(dim=-1, keepdim=True))
    chosen = weights.gather(1, index)
    before = cumulative.gather(1, index) - chosen
    return index, ((target - before) / chosen).clamp(0, 1)


def _check_totals(totals: Tensor) -> None:
    message = "weights must be finite, with at least one positive weight in every row"
    valid = ((totals > 0) & totals.isfinite()).all()
    if totals.is_cuda:
        torch._assert_async(
            valid, message
        )  # as torch.multinomial does: a Python error would have to wait for the device
    elif not bool(valid):
        raise ValueError(f"{message}, got rows with the sums {totals.tolist()}")
