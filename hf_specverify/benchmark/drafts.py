"""What commands draft with: a model by name, `lookup`, `early-exit:N`, or a feature head, `head:FOLDER`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hf_specverify.benchmark.environment import as_dtype_says, load_model, parse_dtype, parse_form, tokens_to_keep
from hf_specverify.drafting import Drafter, EarlyExit, FeatureHead, PromptLookup

LOOKUP = "lookup"
"""Name of the draft that copies from the text itself instead of running a model."""

LOOKUP_NGRAM = 2
"""Longest n-gram that prompt lookup matches unless the settings say otherwise."""

EARLY_EXIT = "early-exit"
"""Name of the drafts that are the target's own first layers: "early-exit:N"."""

HEAD = "head:"
"""What the name of a feature head begins with: "head:FOLDER", or its name on the Hub."""


def exit_layers(draft: str | None) -> int | None:
    """The N of "early-exit:N"; None for other drafts.

    Raises:
        ValueError: naming what is allowed.
    """
    name, _, number = (draft or "").partition(":")
    if name != EARLY_EXIT:
        return None
    if not number.isdecimal() or not int(number):
        raise ValueError(f"draft={draft!r}; allowed: '{EARLY_EXIT}:N' with N layers, from 1")
    return int(number)


def head_name(draft: str | None) -> str | None:
    """The folder or Hub id of "head:FOLDER"; None for other drafts.

    Raises:
        ValueError: naming what is allowed.
    """
    if draft is None or not draft.startswith(HEAD):
        return None
    if draft == HEAD:
        raise ValueError(f"draft={draft!r}; allowed: '{HEAD}FOLDER' or '{HEAD}USER/NAME', a feature head")
    return draft.removeprefix(HEAD)


def check_draft(draft: str | None, form: str) -> None:
    """Refuse a form that a draft can't have.

    Raises:
        ValueError: naming what is allowed.
    """
    if draft == LOOKUP and form != "none":
        raise ValueError(f"draft_quantization={form!r} with draft='lookup'; allowed: 'none'")
    quantization, cuts = parse_form(form, "draft_quantization")
    if exit_layers(draft) is not None and (quantization != "none" or "layers" in cuts):
        raise ValueError(
            f"draft_quantization={form!r} with draft={draft!r}, whose layers are the target's; allowed: 'none' and "
            "'none+trim:N'"
        )
    if head_name(draft) is not None and form != "none":
        raise ValueError(
            f"draft_quantization={form!r} with draft={draft!r}, a head that is taken as it was saved; allowed: 'none'"
        )


def check_trim_text(text: str | Path | None, *forms: str) -> None:
    """Refuse a text where no vocabulary is trimmed.

    Raises:
        ValueError: naming what is allowed.
    """
    if text is not None and not any("trim" in parse_form(form)[1] for form in forms):
        raise ValueError(f"trim_text={str(text)!r} with {forms}; allowed: with '+trim:N' in a quantization")


def load_draft(
    name: str,
    target: Any,
    dtype: str,
    form: str = "none",
    *,
    target_name: str,
    lookup_ngram: int = LOOKUP_NGRAM,
    trim_text: str | Path | None = None,
    device: torch.device | None = None,
) -> Any:
    """Make what drafts for a target: a model, or a `Drafter`.

    Args:
        name: Hub id or folder, "lookup", "early-exit:N", or "head:" and the Hub id or folder of a feature head.
        target: the target model, for its layers, and what a head takes from it.
        dtype: of a model's weights.
        form: quantization and what is cut, see `parse_form`.
        target_name: Hub id or folder of the target, for its tokenizer.
        lookup_ngram: longest n-gram that "lookup" matches.
        trim_text: file to count tokens in for "+trim:N"; None keeps the lowest ids.
        device: of a model or head; None is the default device, or the target's.

    Raises:
        ValueError: for values that are not allowed.
        OSError: no such text, model or head.
    """
    check_draft(name, form)
    if name == LOOKUP:
        return PromptLookup(lookup_ngram)
    place = head_name(name)
    if place is not None:
        return _load_head(place, target, dtype, device)
    layers = exit_layers(name)
    if layers is None:
        return load_model(name, dtype, form, device=device, trim_text=trim_text)
    _, cuts = parse_form(form)
    return EarlyExit(layers, cuts.get("trim"), **(tokens_to_keep(trim_text, target_name) if cuts else {}))


def load_companion(
    name: str | None,
    target: Any,
    dtype: str,
    form: str = "none",
    *,
    trim_text: str | Path | None = None,
    device: torch.device | None = None,
) -> Any:
    """A companion: a model, or a feature head; None without a name. Arguments as for `load_draft`.

    Raises:
        ValueError: for values that are not allowed.
        OSError: no such text, model or head.
    """
    if name is None:
        return None
    place = head_name(name)
    if place is None:
        return load_model(name, dtype, form, device=device, trim_text=trim_text)
    if form != "none":
        raise ValueError(
            f"companion_quantization={form!r} with companion={name!r}, a head that is taken as it was saved; "
            "allowed: 'none'"
        )
    return _load_head(place, target, dtype, device)


def _load_head(place: str, target: Any, dtype: str, device: torch.device | None) -> FeatureHead:
    head = FeatureHead.from_pretrained(place, target, dtype=parse_dtype(dtype)[0])
    head.head.to(device or head.head.device)
    as_dtype_says(head, dtype)
    return head


def load_draft_model(name: str, target: Any, dtype: str, form: str = "none", **others: Any) -> Any:
    """The model that drafts, for commands that need one: of an early exit its layers, or a head; None for lookup."""
    draft = load_draft(name, target, dtype, form, **others)
    return draft.drafting_model(target) if isinstance(draft, Drafter) else draft
