"""Companions, and drafts, made from a draft: quantised weights or its first layers, in a folder of their own."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from .companion_card import write_card
from .companion_checks import QUANTISED, check_request, hub_id
from .companion_distance import LONGEST, SAMPLE, Distance, measure_distance
from .drafting.layer_cut import cut_layers, number_of_layers

__all__ = ["CompanionReport", "cut_layers", "make_companion"]


@dataclass(frozen=True)
class CompanionReport:
    """What `make_companion` made.

    Attributes:
        folder: where it is.
        method: how it was made.
        base_model: the draft on the Hub; None where it has no place there. revision: its commit, if known.
        num_layers: the companion's.
        size: bytes of its weight files. draft_size: bytes of the draft's weights in memory.
        distance: to the draft; None without a tokenizer.
        repository: where it was pushed to.
    """

    folder: str
    method: str
    base_model: str | None
    revision: str | None
    num_layers: int
    size: int
    draft_size: int
    distance: Distance | None
    repository: str | None


def make_companion(
    draft: Any,
    folder: str | Path,
    method: str = "nf4",
    *,
    num_layers: int | None = None,
    dtype: str = "bfloat16",
    revision: str | None = None,
    tokenizer: Any = None,
    text: str | Tensor | None = None,
    push_to_hub: str | None = None,
    private: bool = False,
) -> CompanionReport:
    """Make a cheaper form of a draft, and write it to a folder that `from_pretrained` loads, with a model card.

    Quantised weights are saved before the model runs: after a forward, bitsandbytes saves other ones. What was written
    is then loaded again and compared with the draft.

    Args:
        draft: Hub id or folder; for `layers` and `bf16` also a loaded model, which is not changed.
        folder: to write to; new or empty.
        method: `nf4`, `fp4`, `int8` (bitsandbytes), `layers` (the first ones, see `cut_layers`) or `bf16`.
        num_layers: how many, for `layers`.
        dtype: that a named draft is loaded in, also what quantisation leaves alone: float32, bfloat16 or float16. For
            `bf16` it is the draft's own.
        revision: of a draft on the Hub.
        tokenizer: the draft's; that of a named draft is found.
        text: to measure the distance to the draft on: a text, or (n,) ids of tokens; None: a built-in text.
        push_to_hub: repository to upload the folder to.
        private: whether a new repository is private.

    Returns:
        What was made, and how far it is from the draft.

    Raises:
        ValueError: for values that are not allowed, or where bitsandbytes is needed and not installed.
        OSError: if the draft can't be found, or the upload fails.
    """
    folder = Path(folder)
    check_request(draft, folder, method, num_layers, dtype, push_to_hub)
    if isinstance(draft, str | Path):
        name = str(draft)
        tokenizer = tokenizer or _find_tokenizer(name, revision)
        if method in QUANTISED:
            _save_quantised(name, folder, method, getattr(torch, dtype), revision)
        wanted = "auto" if method == "bf16" else getattr(torch, dtype)
        draft = AutoModelForCausalLM.from_pretrained(name, dtype=wanted, revision=revision).to(_device()).eval()
    if method == "layers" and num_layers is not None:
        cut_layers(draft, num_layers).save_pretrained(folder)
    elif method == "bf16":
        copy.deepcopy(draft).to(torch.bfloat16).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return _finish(draft, folder, method, tokenizer, text, push_to_hub, private)


def _save_quantised(name: str, folder: Path, method: str, dtype: torch.dtype, revision: str | None) -> None:
    if method == "int8":
        quantization = BitsAndBytesConfig(load_in_8bit=True)
    else:
        quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=method, bnb_4bit_compute_dtype=dtype)
    device = str(_device())
    options = {"dtype": dtype, "revision": revision, "device_map": device}
    AutoModelForCausalLM.from_pretrained(name, quantization_config=quantization, **options).save_pretrained(folder)


def _finish(
    draft: Any,
    folder: Path,
    method: str,
    tokenizer: Any,
    text: str | Tensor | None,
    repository: str | None,
    private: bool,
) -> CompanionReport:
    """Load what was written, compare it with the draft, add the card, push it."""
    companion = AutoModelForCausalLM.from_pretrained(folder, device_map=str(_device())).eval()
    ids = _tokens(text, tokenizer)
    distance = None if ids is None else measure_distance(draft, companion, ids)
    base_model = hub_id(getattr(draft.config, "_name_or_path", ""))
    revision = None if base_model is None else getattr(draft.config, "_commit_hash", None)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    draft_size = sum(part.numel() * part.element_size() for part in draft.parameters())
    layers = number_of_layers(companion), number_of_layers(draft)
    card = write_card(
        repository or folder.name, method, base_model, revision, layers, (size, draft_size), distance, text is not None
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    if repository is not None:
        hub = HfApi()
        repository = str(hub.create_repo(repository, private=private, exist_ok=True).repo_id)
        hub.upload_folder(folder_path=folder, repo_id=repository, commit_message=f"Companion made by {method}")
    return CompanionReport(str(folder), method, base_model, revision, layers[0], size, draft_size, distance, repository)


def _tokens(text: str | Tensor | None, tokenizer: Any) -> Tensor | None:
    if isinstance(text, Tensor):
        return text
    if tokenizer is None:
        return None
    ids = tokenizer(SAMPLE if text is None else text, truncation=True, max_length=LONGEST)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


def _device() -> torch.device:
    from .benchmark.environment import default_device  # which itself cuts and trims what it loads

    return default_device()


def _find_tokenizer(name: str, revision: str | None) -> Any:
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision)
    except (OSError, ValueError):  # a repository of weights alone
        return None
