"""A fingerprint of weights that is cheap to take, and the same in float32 and in bfloat16."""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

PER_TENSOR = 64  # entries looked at

_TAKEN: WeakKeyDictionary[Any, dict[torch.dtype, str | None]] = WeakKeyDictionary()


def weights_hash(model: Any) -> str | None:
    """SHA-256 over names, shapes and evenly spaced entries of the floating-point parameters, rounded to bfloat16.

    Quantised parameters are left out: bitsandbytes packs them anew in the first forward. An int8 copy has that of the
    model it was made from, for its own weights depend on what was measured there. Taken once for every model object and
    dtype.

    Returns:
        64 hexadecimal digits; None where some of the weights are not at hand (offloaded, or shared out over devices).
    """
    known = _TAKEN.setdefault(model, {})
    if model.dtype not in known:
        known[model.dtype] = getattr(model, "source_sha256", None) or _hash(model)
    return known[model.dtype]


@torch.no_grad()
def _hash(model: Any) -> str | None:
    parameters = sorted(
        ((name, value) for name, value in model.named_parameters() if value.is_floating_point()),
        key=lambda entry: entry[0],
    )
    if any(value.device.type == "meta" or hasattr(value, "full_tensor") for _, value in parameters):
        return None
    found = hashlib.sha256()
    for name, value in parameters:
        found.update(f"{name} {tuple(value.shape)}\n".encode())
        found.update(_sample(value).view(torch.int16).numpy().tobytes())
    return found.hexdigest()


def _sample(parameter: Tensor) -> Tensor:
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, len(flat) // PER_TENSOR)][:PER_TENSOR].to(torch.bfloat16).cpu()
