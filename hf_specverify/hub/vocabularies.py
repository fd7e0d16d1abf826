"""Fingerprints of tokenizers: of the tokens alone, and of all that they do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from ..drafting.vocabulary import _read_vocabulary, _tokenizer_file

_SET_BY_CALLS = ("padding", "truncation")  # of a call's own arguments, not of the tokenizer

_TAKEN: WeakKeyDictionary[Any, tuple[int, tuple[str, str | None]]] = WeakKeyDictionary()


def tokenizer_hashes(tokenizer: Any) -> tuple[str, str | None]:
    """SHA-256 of the vocabulary, and of the whole tokenizer; the second is None for one that is not a fast one."""
    known = _TAKEN.get(tokenizer)
    if known is None or known[0] != len(tokenizer):
        known = len(tokenizer), (vocabulary_hash(tokenizer.get_vocab()), _behaviour_hash(tokenizer))
        _TAKEN[tokenizer] = known
    return known[1]


def vocabulary_hash(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 of {token: id}."""
    return _hash(sorted(vocabulary.items(), key=lambda entry: (entry[1], entry[0])))


def vocabulary_hash_of(model: Any) -> str | None:
    """The hash for the tokenizer.json beside a model's weights, in its folder or in the local Hub cache, if any."""
    file = _tokenizer_file(model)
    return None if file is None else _of_file(*file)


@lru_cache(maxsize=32)
def _of_file(path: str, changed: int) -> str | None:
    vocabulary = _read_vocabulary(path)
    return None if vocabulary is None else vocabulary_hash(vocabulary)


def _behaviour_hash(tokenizer: Any) -> str | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    content = json.loads(backend.to_str())
    return _hash({key: value for key, value in content.items() if key not in _SET_BY_CALLS})


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
