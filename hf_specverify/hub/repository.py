"""`generate(custom_generate="user/repository")`: what the file in the repository calls."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from ..integration import enabled
from .transfer import download

_OF_THE_HUB = ("revision", "token", "cache_dir", "force_download", "local_files_only")


def generate_from(place: Any, model: Any, arguments: dict[str, Any]) -> Any:
    """Generate with the calibration of a repository or folder.

    Args:
        place: the repository's name, or the folder. None: `arguments` hold a calibration.
        model: the target.
        arguments: all those of `generate`, of our options, and of the download (revision, token, cache_dir, …). Without
            `verify_length` it is "auto".

    Returns:
        What `generate` returns.

    Raises:
        ValueError: without a draft, or where no calibration can be found.
    """
    own = inspect.signature(type(model).generate).parameters
    options = {name: value for name, value in arguments.items() if value is not None or name not in own}
    loading = {name: options.pop(name) for name in _OF_THE_HUB if name in options}
    draft = options.get("assistant_model")
    if draft is None:
        raise ValueError("assistant_model=None: speculative decoding needs a draft: a model, or a Drafter")
    if options.get("calibration") is None:
        if not isinstance(place, str):
            raise ValueError("calibration=None: the repository's name is not known here; allowed: its name or folder")
        options["calibration"] = Path(place) if Path(place).is_dir() else download(place, **loading)
    if options.get("verify_length") is None:
        options["verify_length"] = "auto"
    with enabled(model):
        return model.generate(**options)
