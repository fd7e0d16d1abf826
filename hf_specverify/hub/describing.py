"""The origin of a calibration, from what it is made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..drafting import as_drafter
from ..scheduling.tree_options import tree_settings
from .identifying import identify
from .origin import Origin, library_versions, plain_settings


def describe_calibration(
    target: Any, draft: Any, companion: Any, num_draft_tokens: int | None, options: Mapping[str, Any]
) -> Origin:
    """Say which models and settings a calibration is of.

    Args:
        target: the target model.
        draft: a draft model or drafter.
        companion: a companion, or None.
        num_draft_tokens: drafted per step; None left it to the drafter.
        options: of `generate`.
    """
    from ..scheduling.head_companion import companion_weights

    drafter = as_drafter(draft)
    model, second = getattr(drafter, "model", None), companion_weights(companion)
    sampling = plain_settings(options)
    if "do_sample" not in sampling:
        sampling["do_sample"] = bool(target.generation_config.do_sample)
    length = num_draft_tokens or drafter.default_num_draft_tokens
    return Origin(
        target=identify(target),
        draft=None if model is None else identify(model),
        companion=None if second is None else identify(second),
        sampling=sampling,
        drafting={"drafter": type(drafter).__name__, "num_draft_tokens": length, **plain_settings(vars(drafter))}
        | tree_settings(drafter),
        versions=library_versions(),
    )
