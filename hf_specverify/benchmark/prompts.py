"""Prompt files, and the chunks of prompts that a benchmark runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import torch

ALLOWED_FIELDS = "prompt | turns[0] | question"


class Tokenizer(Protocol):
    """The part of a tokenizer that a benchmark uses: a text gives a mapping whose "input_ids" is a list of ids."""

    def __call__(self, text: str) -> Any:
        """Encode a text."""


def read_prompts(path: str | Path) -> list[str]:
    """Read the prompts of a file: a .txt has one per line, a .jsonl one object per line.

    In an object the prompt is the first of the fields `prompt`, `turns` (its first element) and `question` that is
    there. Blank lines are skipped.

    Raises:
        ValueError: another kind of file, a line that holds no prompt (file, line and allowed fields are named), or no
            prompt at all.
        FileNotFoundError: no such file.
    """
    path = Path(path)
    if path.suffix not in (".txt", ".jsonl"):
        raise ValueError(f"prompts={str(path)!r} ends in {path.suffix!r}; allowed: .txt (one prompt a line) or .jsonl")
    lines = [
        (number, line) for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1) if line.strip()
    ]
    if not lines:
        raise ValueError(f"prompts={str(path)!r} holds no prompt; allowed: at least one line that is not blank")
    if path.suffix == ".txt":
        return [line.strip() for _, line in lines]
    return [_prompt_of_json(path, number, line) for number, line in lines]


def _prompt_of_json(path: Path, number: int, line: str) -> str:
    def refusal(why: str) -> ValueError:
        return ValueError(f"{path}, line {number}: {why}; allowed: a JSON object with a text in {ALLOWED_FIELDS}")

    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise refusal(f"not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise refusal(f"a JSON {type(fields).__name__}")
    turns = fields.get("turns")
    first_turn = turns[0] if isinstance(turns, list) and turns else None
    for value in (fields.get("prompt"), first_turn, fields.get("question")):
        if isinstance(value, str) and value.strip():
            return value
    raise refusal(f"no prompt among the fields {sorted(fields)}")


def chat_encoder(tokenizer: Any) -> Tokenizer:
    """Encode a text as the user's turn of a chat, ready for the answer, where the tokenizer has a chat template."""
    if not getattr(tokenizer, "chat_template", None):
        return cast("Tokenizer", tokenizer)

    def encode(text: str) -> Any:
        turns = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return tokenizer(rendered, add_special_tokens=False)  # the template has them

    return encode


def select_evenly(count: int, available: int) -> list[int]:
    """Return `count` increasing indices evenly spaced over `available` prompts, for files are often sorted by topic.

    Raises:
        ValueError: fewer prompts than asked for.
    """
    if count > available:
        raise ValueError(f"num_prompts={count}, but only {available} prompts were given; allowed: at most {available}")
    return [index * available // count for index in range(count)]


def chunk_indices(num_prompts: int, batch_size: int) -> list[tuple[int, ...]]:
    """Split prompt numbers into chunks of exactly `batch_size`; the last chunk is filled from the beginning."""
    starts = range(0, num_prompts, batch_size)
    return [tuple((start + offset) % num_prompts for offset in range(batch_size)) for start in starts]


def sha256_of_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def sha256_of_texts(texts: Sequence[str]) -> str:
    """Return the SHA-256 of a list of texts (of its JSON form), in hexadecimal."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def encode_chunk(
    tokenizer: Tokenizer, texts: Sequence[str], pad_token_id: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """Encode prompts into a left-padded batch without touching the tokenizer's own padding settings.

    Returns:
        `input_ids` (B, T) and `attention_mask` (B, T), both long.
    """
    rows = [list(tokenizer(text)["input_ids"]) for text in texts]
    longest = max(map(len, rows))
    ids = [[pad_token_id] * (longest - len(row)) + row for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return {
        "input_ids": torch.tensor(ids, dtype=torch.long, device=device),
        "attention_mask": torch.tensor(mask, dtype=torch.long, device=device),
    }
