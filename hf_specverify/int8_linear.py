"""A linear layer that multiplies in int8 on a CPU: every row of its input in a scale of its own."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch
from torch import Tensor, nn

ENGINE = "fbgemm"
"""PyTorch's library of int8 products for x86 processors; the only one whose kernels take a scale that we choose."""

# Of activations, in 7 bits: AVX2 adds pairs of products in int16, and 2 · 127 · 127 still fits there.
_STEPS, _ZERO = 63, 64
_PRODUCT = "linear_with_input_q_dq_qweight_dq_output_fp32"
_FACTOR_STEPS = 4  # from a factor to twice as much
_SMALLEST = 1e-12  # a scale for rows of zeros

_engine_lock = threading.Lock()


class Int8Linear(nn.Module):
    """x W^T + b with W in int8, a scale for every row of W, and x in 7 bits, a scale for every row of x.

    So what a row gives does not depend on the rows beside it. Input channels that are often large are made smaller and
    their weights larger first, which leaves the product as it is and makes the rounding of x finer (SmoothQuant,
    2211.10438, §4, with α = ½).

    Args:
        weight: (out, in), of any floating dtype, on a CPU.
        bias: (out,) or None.
        largest: (in,) the largest magnitude that each input channel had on a sample; None leaves channels as they are.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, largest: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        weight = weight.detach().float()
        # Parameters, so that they count as the model's: its size and fingerprints are made of them.
        factors = torch.ones(self.in_features) if largest is None else _channel_factors(weight, largest.float())
        weight = weight * factors
        scales = weight.abs().amax(-1).clamp_min(_SMALLEST) / 127
        self.shrink = _frozen(1 / factors)  # (in,)
        self.scales = _frozen(scales)  # (out,)
        self.rows = _frozen((weight / scales[:, None]).round().to(torch.int8))  # (out, in)
        self.bias = None if bias is None else _frozen(bias.detach().float().clone())  # (out,)
        self._ordered: Any = None

    def forward(self, input: Tensor) -> Tensor:
        """(…, in) to (…, out), in the input's dtype."""
        x = input.reshape(-1, self.in_features).float() * self.shrink
        scale = x.abs().amax(-1, keepdim=True).clamp_min_(_SMALLEST)
        product = getattr(torch.ops.quantized, _PRODUCT)
        y: Tensor = product(x.div_(scale), 1 / _STEPS, _ZERO, self._weights()).mul_(scale)
        if self.bias is not None:
            y.add_(self.bias)
        return y.view(*input.shape[:-1], self.out_features).to(input.dtype)

    def _weights(self) -> Any:
        """The weights in the order that the product wants, made at the first use."""
        if self._ordered is None:
            self._ordered = _order(self.rows, self.scales)
        return self._ordered

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._ordered = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the ordered weights, which a copy makes again."""
        return {**self.__dict__, "_ordered": None}

    def extra_repr(self) -> str:
        """What `repr` says of it."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def int8_is_available() -> bool:
    """Whether this build of PyTorch has the products."""
    has_engine = ENGINE in torch.backends.quantized.supported_engines
    return (
        has_engine and hasattr(torch.ops.quantized, _PRODUCT) and hasattr(torch, "_make_per_channel_quantized_tensor")
    )


def has_int8_layers(model: nn.Module) -> bool:
    """Whether some of the model's layers multiply so."""
    return any(isinstance(layer, Int8Linear) for layer in model.modules())


def _order(rows: Tensor, scales: Tensor) -> Any:
    zeros = torch.zeros(len(rows), dtype=torch.long)
    with _engine_lock, warnings.catch_warnings():
        # PyTorch means to drop tensors of these types; its other int8 products take three times as long on AVX2.
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")
        quantised = torch._make_per_channel_quantized_tensor(rows, scales.double(), zeros, 0)
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = ENGINE
        try:
            return torch.ops.quantized.linear_prepack(quantised, None)
        finally:
            torch.backends.quantized.engine = before


def _frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def _channel_factors(weight: Tensor, largest: Tensor) -> Tensor:
    """(in,) what the weights are multiplied by: √(largest input / largest weight), in the mean about 1."""
    reach = weight.abs().amax(0)
    used = (largest > 0) & (reach > 0)
    factors = (largest / reach).sqrt().where(used, 1.0)
    # Not so small that the sample decides which channels count; what it did not use stays as it is.
    factors = (factors / factors[used].mean()).clamp(min=0.1).where(used, 1.0)
    # In steps: made from measured numbers, and yet the same on every machine.
    return ((_FACTOR_STEPS * factors.log2()).round() / _FACTOR_STEPS).exp2()
