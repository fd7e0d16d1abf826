"""Drafts and companions that are given by name: loaded on the first call, once per target."""

from __future__ import annotations

from os import PathLike
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from transformers import AutoModelForCausalLM

from .decoding.traits import input_device

# They live as long as the target that they were loaded for.
_LOADED: WeakKeyDictionary[Any, dict[tuple[str, str, str], Any]] = WeakKeyDictionary()
_LOCK = Lock()


def named_model(given: Any, argument: str, target: Any) -> Any:
    """The model of a name; anything else comes back as it is.

    A model is loaded onto the target's first device and in its dtype, and kept for further calls; a quantised one stays
    as its folder says.

    Args:
        given: a Hub id or folder, or what is no name.
        argument: the name that errors use for `given`.
        target: the model that it is to work with.

    Raises:
        OSError, ValueError: if the name can't be loaded; the message says which argument.
    """
    if not isinstance(given, str | PathLike):
        return given
    name, device = str(given), str(input_device(target))
    key = (name, str(target.dtype), device)
    with _LOCK:
        loaded = _LOADED.setdefault(target, {})
        if key not in loaded:
            loaded[key] = _load(name, argument, target.dtype, device)
        return loaded[key]


def _load(name: str, argument: str, dtype: Any, device: str) -> Any:
    try:
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype, device_map={"": device}).eval()
    except OSError as error:
        raise OSError(f"{argument}={name!r}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{argument}={name!r}: {error}") from error
