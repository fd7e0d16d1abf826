"""Loads the models of a benchmark."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def default_device() -> torch.device:
    """Return the first GPU where there is one, else the CPU."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def load_model(name: str, dtype: str, quantization: str = "none") -> Any:
    """Load a causal language model onto the default device, for inference.

    Args:
        name: Hub id or folder.
        dtype: of the weights, or of what quantization leaves alone.
        quantization: "none" | "nf4" | "int8"; the last two need bitsandbytes.
    """
    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if quantization == "none":
        return AutoModelForCausalLM.from_pretrained(name, **options).to(default_device()).eval()
    options["quantization_config"] = _quantization_config(quantization)
    options["device_map"] = str(default_device())
    return AutoModelForCausalLM.from_pretrained(name, **options).eval()


def _quantization_config(quantization: str) -> Any:
    if quantization == "nf4":
        return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    if quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    raise ValueError(f"quantization={quantization!r}; allowed: 'none', 'nf4', 'int8'")
