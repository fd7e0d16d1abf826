"""Speculative decoding with the calibration of this repository.

Use: target.generate(**inputs, custom_generate="user/repository", trust_remote_code=True, assistant_model=draft)

All arguments of `generate` and all options of hf_specverify are allowed, such as companion_model=, verification= and
num_draft_tokens=. The work is done by the library hf_specverify, which must be installed.
"""

import sys
from typing import Any

from hf_specverify.hub.repository import generate_from


def generate(model: Any, **arguments: Any) -> Any:
    """Generate, with `assistant_model` as the draft; returns what the model's own generate returns."""
    # Transformers hands over every argument but the one that names this repository.
    place = sys._getframe(1).f_locals.get("custom_generate")
    return generate_from(place, model, arguments)
