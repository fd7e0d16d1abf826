"""Whether two models speak the same tokens, and what to do where only their padding differs."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import Tensor

from ..decoding.traits import input_device

# Heads are padded to round numbers of rows; two tokenizers hardly ever differ by so little.
LARGEST_PADDING = 1024


def check_partner(target: Any, other: Any, argument: str, tokenizers: tuple[Any, Any] = (None, None)) -> None:
    """Refuse a draft or companion that can't work with the target: without weights, or with other tokens.

    The tokenizers given decide; else those that the models' folders (or the local Hub cache) hold; else the sizes of
    the vocabularies, which may differ by padding only.

    Args:
        target: a model.
        other: the model that is to work with it.
        argument: the name that the error uses for `other`.
        tokenizers: of target and other, where the user gave them.

    Raises:
        ValueError: naming both models.
    """
    try:
        input_device(other)
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None
    if None not in tokenizers:
        clashes: tuple[str, ...] | None = _clashes(*(tokenizer.get_vocab() for tokenizer in tokenizers))
    else:
        clashes = _clashes_of_files(_tokenizer_file(target), _tokenizer_file(other))
    names = f"{_name(target)} (target) and {_name(other)} ({argument})"
    remedy = "; allowed: models that share one tokenizer (padded heads may differ in size)"
    if clashes:
        raise ValueError(
            f"{argument}: {names} have different tokenizers: {len(clashes)} ids mean other tokens, such as "
            f"{clashes[0]}{remedy}"
        )
    if clashes is not None:
        return
    sizes = vocabulary_size(target), vocabulary_size(other)
    if abs(sizes[0] - sizes[1]) >= LARGEST_PADDING:
        raise ValueError(
            f"{argument}: {names} have vocabularies of {sizes[0]} and {sizes[1]} tokens, too different to be one "
            f"tokenizer with padding{remedy}. If they do share one, pass tokenizer= and assistant_tokenizer="
        )


def vocabulary_size(model: Any) -> int:
    """Rows of the model's head."""
    return int(model.config.get_text_config(decoder=True).vocab_size)


def fit_vocabulary(logits: Tensor, size: int) -> Tensor:
    """Logits (..., V') over the target's `size` tokens: surplus rows cut off, missing ones -inf."""
    missing = size - logits.shape[-1]
    if missing <= 0:
        return logits[..., :size]
    return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))


def _clashes(first: dict[str, int], second: dict[str, int]) -> tuple[str, ...]:
    """Ids that mean different tokens; an id that only one vocabulary has is no clash, but an added token."""
    by_id = {index: token for token, index in second.items()}
    return tuple(
        f"{index}: {token!r} and {by_id[index]!r}" for token, index in first.items() if by_id.get(index, token) != token
    )


def _name(model: Any) -> str:
    return getattr(model.config, "_name_or_path", "") or type(model).__name__


# A file, and when it was changed.
_File = tuple[str, int]


def _tokenizer_file(model: Any) -> _File | None:
    """The tokenizer.json beside the model's weights, in its folder or in the local Hub cache; None if there is none."""
    name = getattr(model.config, "_name_or_path", "")
    if not name:
        return None
    local = Path(name) / "tokenizer.json"
    if not local.is_file():
        found = None if Path(name).exists() else _cached(name)
        if not isinstance(found, str):
            return None
        local = Path(found)
    return str(local), local.stat().st_mtime_ns


def _cached(name: str) -> object:
    try:
        return try_to_load_from_cache(name, "tokenizer.json")
    except HFValidationError:  # a folder that is gone, or a name of the user's own
        return None


@lru_cache(maxsize=32)
def _clashes_of_files(first: _File | None, second: _File | None) -> tuple[str, ...] | None:
    """The clashes of two tokenizer files; None where a file is missing or of another form."""
    vocabularies = [None if file is None else _read_vocabulary(file[0]) for file in (first, second)]
    if vocabularies[0] is None or vocabularies[1] is None:
        return None
    return _clashes(vocabularies[0], vocabularies[1])


def _read_vocabulary(path: str) -> dict[str, int] | None:
    """{token: id} of a tokenizer.json; None where it is kept in another form."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        return None
    vocabulary = content.get("model", {}).get("vocab")
    if isinstance(vocabulary, list):
        vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
    if not isinstance(vocabulary, dict):
        return None
    return vocabulary | {entry["content"]: entry["id"] for entry in content.get("added_tokens", [])}
