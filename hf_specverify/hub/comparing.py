"""Whether a calibration is of the models that it is to be used with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..scheduling.signals import SIGNALS
from .identifying import identify
from .identity import ModelIdentity

if TYPE_CHECKING:
    from ..scheduling.calibration import CalibrationTable

_REFUSED = ("vocab_size", "vocabulary_sha256", "architecture", "revision", "id", "weights_sha256")
_WARNED = ("quantization", "dtype", "device", "tokenizer_sha256")


def check_models(
    table: CalibrationTable, models: Mapping[str, Any], tokenizers: Mapping[str, Any] | None = None
) -> None:
    """Refuse other models than a table was made with; warn of the same ones in another form.

    What is not known of either side is not compared, nor is a companion that the table's signals don't ask.

    Args:
        table: the calibration.
        models: the models by role; a role that is left out is not compared, one that is None has no model.
        tokenizers: theirs, where they are known.

    Raises:
        ValueError: naming the first field that differs: vocabulary, architecture, revision, id or weights.
    """
    for line in compare_models(table, models, tokenizers):
        warnings.warn(f"calibration: {line}; acceptance may differ", UserWarning, stacklevel=3)


def compare_models(
    table: CalibrationTable, models: Mapping[str, Any], tokenizers: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """As `check_models`, but return what it would warn of."""
    noted: list[str] = []
    _check_that_drafts_have_a_model(table, models)
    for role, saved in table.origin.models.items():
        if role not in models or (role == "companion" and not asks_companion(table)):
            continue
        if models[role] is None:
            raise ValueError(
                f"calibration: it was made with a {role}, {saved.label}, and there is none here; allowed: that {role}, "
                "or a calibration without one"
            )
        found = identify(models[role], (tokenizers or {}).get(role))
        for name, refused in differences(saved, found):
            line = f"{role}.{name} is {_shown(saved, name)} in the calibration, and here it is {_shown(found, name)}"
            if refused:
                raise ValueError(
                    f"calibration: {line}; allowed: the models that it was made with ({role}: {saved.label}), or a "
                    "calibration of these (specverify calibrate)"
                )
            noted.append(line)
    return tuple(noted)


def _check_that_drafts_have_a_model(table: CalibrationTable, models: Mapping[str, Any]) -> None:
    """Refuse a table of a drafter without a model, such as prompt lookup, for a draft model or head."""
    origin = table.origin
    if origin.drafting is not None and origin.draft is None and models.get("draft") is not None:
        raise ValueError(
            f"calibration: it was made with drafts of {origin.drafting.get('drafter')}, which has no draft model, and "
            "there is one here; allowed: a calibration made with it (specverify calibrate)"
        )


def asks_companion(table: CalibrationTable) -> bool:
    """Whether a signal of the table needs a companion."""
    return any(name in SIGNALS and SIGNALS[name].needs == "companion" for name in table.names)


def differences(saved: ModelIdentity, found: ModelIdentity) -> Iterator[tuple[str, bool]]:
    """The fields that differ, and whether each rules the calibration out; those that do come first."""
    for name in _REFUSED:
        if _comparable(saved, found, name) and getattr(saved, name) != getattr(found, name):
            yield name, True
    for name in _WARNED:
        one, other = getattr(saved, name), getattr(found, name)
        known = name == "quantization" or None not in (one, other)
        if known and one != other:
            yield name, False


def _comparable(saved: ModelIdentity, found: ModelIdentity, name: str) -> bool:
    if None in (getattr(saved, name), getattr(found, name)):
        return False
    if name == "revision":
        return saved.id == found.id
    if name == "id":  # the same weights may have several names
        return not _weights_comparable(saved, found) or saved.weights_sha256 != found.weights_sha256
    return name != "weights_sha256" or _weights_comparable(saved, found)


def _weights_comparable(saved: ModelIdentity, found: ModelIdentity) -> bool:
    """Other parameters are quantised, and float16 rounds where the fingerprint does not."""
    if None in (saved.weights_sha256, found.weights_sha256) or saved.quantization != found.quantization:
        return False
    return saved.dtype == found.dtype or "float16" not in (saved.dtype, found.dtype)


def _shown(identity: ModelIdentity, name: str) -> str:
    value = getattr(identity, name)
    return f"{value[:12]}…" if name.endswith("sha256") else repr(value)
