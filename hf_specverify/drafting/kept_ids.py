"""Which tokens a trimmed head keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Text = str | Path | Sequence[str | Path]


def choose_ids(
    size: int,
    special: set[int],
    keep: int,
    counts: Tensor | Mapping[int, int] | None,
    text: Text | None,
    tokenizer: Any,
) -> Tensor:
    """The ids to keep: special ones, then by count, the largest first; equal counts by id.

    Without counts and text the lowest ids win, which byte pair encodings give to what was most frequent when they were
    trained.

    Args:
        size: V, rows of the head.
        special: ids that are kept in any case.
        keep: number of ids, special ones included.
        counts: occurrences by id, (n,) with n ≤ V or a mapping; missing ids have none.
        text: in place of counts, text to count in: a `Path` is a file in UTF-8, a string is text itself.
        tokenizer: the draft's, for text.

    Returns:
        (keep,) long, ascending.

    Raises:
        ValueError: for values that are not allowed.
        FileNotFoundError: no such file.
    """
    if type(keep) is not int or not 1 <= keep <= size:
        raise ValueError(f"keep={keep!r}: allowed are integers from 1 to {size}, the rows of the draft's head")
    if len(special) > keep:
        raise ValueError(f"keep={keep}: there are {len(special)} special tokens, which are kept in any case")
    if counts is not None and text is not None:
        raise ValueError("counts and text exclude each other: text is there to be counted")
    if (text is None) != (tokenizer is None):
        raise ValueError("text and tokenizer need each other: the draft's tokenizer says which tokens a text has")
    if text is not None:
        counts = count_tokens(text, tokenizer, size)
    numbers = torch.zeros(size, dtype=torch.float64) if counts is None else _checked_counts(counts, size)
    if special:
        numbers[torch.tensor(sorted(special))] = float("inf")
    order = numbers.sort(descending=True, stable=True).indices
    return order[:keep].sort().values


def count_tokens(text: Text, tokenizer: Any, size: int) -> Tensor:
    """(size,) long, how often every id stands in the text; ids beyond are left out.

    Raises:
        ValueError: if the text has no token, or a string names a file.
        FileNotFoundError: no such file.
    """
    parts = [text] if isinstance(text, str | Path) else list(text)
    counts = torch.zeros(size, dtype=torch.long)
    for part in parts:
        ids = tokenizer(_read(part), add_special_tokens=False, verbose=False)["input_ids"]
        found = torch.tensor(ids, dtype=torch.long)
        counts += torch.bincount(found[found < size], minlength=size)
    if not counts.any():
        raise ValueError("text holds no token of the draft; allowed: a text, or files that hold some")
    return counts


def check_ids(ids: Tensor, size: int, special: set[int]) -> Tensor:
    """The user's own choice and the special tokens, (n,) long, ascending.

    Raises:
        ValueError: naming what is allowed.
    """
    ids = torch.as_tensor(ids).cpu()
    if ids.ndim != 1 or not len(ids) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"ids must be one row of integers, got {tuple(ids.shape)} of {ids.dtype}")
    if int(ids.min()) < 0 or int(ids.max()) >= size:
        raise ValueError(f"ids from {int(ids.min())} to {int(ids.max())}: allowed are 0 to {size - 1}")
    own = torch.tensor(sorted(special), dtype=torch.long)
    kept: Tensor = torch.unique(torch.cat([ids.long(), own]))
    return kept


def special_ids(model: Any, tokenizer: Any, size: int) -> set[int]:
    """Begin, end and padding as the model's configurations say, and all special tokens of the tokenizer."""
    found: set[int] = set(getattr(tokenizer, "all_special_ids", ()))
    for config in (model.config.get_text_config(decoder=True), getattr(model, "generation_config", None)):
        for name in ("eos_token_id", "pad_token_id", "bos_token_id"):
            value = getattr(config, name, None)
            found.update(value if isinstance(value, list | tuple) else () if value is None else (value,))
    return {index for index in found if 0 <= index < size}


def _read(part: str | Path) -> str:
    if isinstance(part, Path):
        return part.read_text(encoding="utf-8")
    if len(part) < 256 and "\n" not in part and Path(part).is_file():
        raise ValueError(f"text={part!r} is a file's name; allowed: Path({part!r}), or the text itself")
    return part


def _checked_counts(counts: Tensor | Mapping[int, int], size: int) -> Tensor:
    """(V,) float64."""
    if isinstance(counts, Mapping):
        wrong = [index for index in counts if type(index) is not int or not 0 <= index < size]
        if wrong:
            raise ValueError(f"counts has the id {wrong[0]!r}: allowed are 0 to {size - 1}")
        values = torch.zeros(size, dtype=torch.float64)
        if counts:
            values[torch.tensor(list(counts))] = torch.tensor(list(counts.values()), dtype=torch.float64)
    else:
        values = torch.as_tensor(counts).to(device="cpu", dtype=torch.float64)
        if values.ndim != 1 or len(values) > size:
            raise ValueError(f"counts must have the shape (n,) with n up to {size}, got {tuple(values.shape)}")
        values = torch.nn.functional.pad(values, (0, size - len(values)))
    if not bool((torch.isfinite(values) & (values >= 0)).all()):
        raise ValueError("counts must be finite and at least 0")
    return values
