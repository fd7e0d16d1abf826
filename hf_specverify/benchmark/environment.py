"""Where a benchmark ran, and the loading of its models."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from hf_specverify.benchmark.prompts import read_prompts
from hf_specverify.companions import cut_layers
from hf_specverify.drafting.int8_copy import int8_copy
from hf_specverify.drafting.trimmed import trim_vocabulary
from hf_specverify.packing import pack_weights

_PACKAGES = ("hf_specverify", "torch", "transformers", "bitsandbytes")


def describe_environment(device: torch.device) -> dict[str, str | int | None]:
    """Return versions, processor, threads and device; a package that is not installed is None."""
    versions: dict[str, str | int | None] = {name: _version(name) for name in _PACKAGES}
    return versions | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def cpu_model() -> str:
    """Return the processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def default_device() -> torch.device:
    """Return the first GPU where there is one, else the CPU."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


DTYPES = ("float32", "bfloat16", "float16")
PACKED = "+packed"
"""Behind a dtype: linear layers keep their weights ordered for the processor, see `pack_weights`."""

INT8_COPY = "int8-copy"
"""The form of an `int8_copy`, which is made after the cuts."""

QUANTIZATIONS = ("none", "nf4", "int8", INT8_COPY)
CUTS = ("layers", "trim")


def parse_form(text: str, name: str = "quantization") -> tuple[str, dict[str, int]]:
    """Split "nf4+layers:8+trim:16384" into a quantization and what is cut off afterwards.

    Raises:
        ValueError: naming what is allowed.
    """
    quantization, *parts = text.split("+")
    cuts = dict(part.partition(":")[::2] for part in parts)
    if (
        quantization not in QUANTIZATIONS
        or not set(cuts) <= set(CUTS)
        or not all(number.isdecimal() for number in cuts.values())
    ):
        raise ValueError(
            f"{name}={text!r}; allowed: {', '.join(map(repr, QUANTIZATIONS))}, then '+layers:N' for the first N "
            "layers and '+trim:N' for a head of N tokens"
        )
    return quantization, {name: int(number) for name, number in cuts.items()}


def tokens_to_keep(text: str | Path | None, name: str) -> dict[str, Any]:
    """Arguments that tell `trim_vocabulary` which tokens to keep: the most frequent ones of a text.

    Args:
        text: a file in UTF-8, of which a .jsonl has one prompt a line; None leaves it at the lowest ids.
        name: Hub id or folder of the tokenizer.

    Raises:
        ValueError: if a .jsonl holds no prompts.
        FileNotFoundError: no such file.
    """
    if text is None:
        return {}
    path = Path(text)
    parts = read_prompts(path) if path.suffix == ".jsonl" else path
    return {"text": parts, "tokenizer": AutoTokenizer.from_pretrained(name)}


def load_model(
    name: str,
    dtype: str,
    form: str = "none",
    *,
    device: torch.device | None = None,
    trim_text: str | Path | None = None,
) -> Any:
    """Load a causal language model onto a device, for inference.

    Args:
        name: Hub id or folder.
        dtype: of the weights, or of what quantization leaves alone; "+packed" behind it packs them, see `parse_dtype`.
        form: "none" | "nf4" | "int8" (both need bitsandbytes) | "int8-copy", then what is cut, see `parse_form`.
        device: where to; None is the first GPU where there is one, else the CPU.
        trim_text: where `form` trims, a file to count tokens in, see `tokens_to_keep`.

    Raises:
        ValueError: if `dtype` or `form` is not allowed, or the model can't be cut so.
        FileNotFoundError: no such text.
    """
    quantization, cuts = parse_form(form)
    device = device or default_device()
    if quantization == INT8_COPY and (device.type != "cpu" or parse_dtype(dtype)[0] == torch.float16):
        raise ValueError(
            f"quantization={form!r} for {name!r} on {device} in {dtype}; allowed: on a CPU, in float32 or bfloat16 "
            "(beside a target on a GPU, in commands that have it: --draft-device cpu)"
        )
    model = _load(name, dtype, quantization, device)
    if "layers" in cuts:
        model = cut_layers(model, cuts["layers"])
    if "trim" in cuts:
        model = trim_vocabulary(model, cuts["trim"], **tokens_to_keep(trim_text, name))
    return int8_copy(model) if quantization == INT8_COPY else as_dtype_says(model, dtype)


def as_dtype_says(model: Any, dtype: str) -> Any:
    """The model or head, its weights packed if its dtype says so.

    Raises:
        ValueError: if no layer can be packed.
    """
    if parse_dtype(dtype)[1]:
        pack_weights(model)
    return model


def parse_dtype(text: str) -> tuple[torch.dtype, bool]:
    """Split "float32+packed" into the dtype and whether weights are packed, see `pack_weights`.

    Raises:
        ValueError: naming what is allowed.
    """
    name = text.removesuffix(PACKED)
    if name not in DTYPES:
        raise ValueError(f"dtype={text!r}; allowed: {', '.join(map(repr, DTYPES))}, and on a CPU '{PACKED}' behind")
    return getattr(torch, name), name != text


def _load(name: str, dtype: str, quantization: str, device: torch.device) -> Any:
    options: dict[str, Any] = {"dtype": parse_dtype(dtype)[0]}
    if quantization in ("none", INT8_COPY):
        return AutoModelForCausalLM.from_pretrained(name, **options).to(device).eval()
    options["quantization_config"] = _quantization_config(quantization)
    options["device_map"] = str(device)
    return AutoModelForCausalLM.from_pretrained(name, **options).eval()


def _quantization_config(quantization: str) -> Any:
    if quantization == "nf4":
        return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    return BitsAndBytesConfig(load_in_8bit=True)
