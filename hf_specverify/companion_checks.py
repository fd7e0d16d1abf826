"""What `make_companion` refuses before it loads anything."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from .companion_card import WAYS

QUANTISED = ("nf4", "fp4", "int8")
_DTYPES = ("float32", "bfloat16", "float16")


def hub_id(name: str) -> str | None:
    """The name, if it is one on the Hub and not a folder's."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name if name and not Path(name).exists() else None


def check_request(
    draft: Any, folder: Path, method: str, num_layers: int | None, dtype: str, repository: str | None
) -> None:
    """Check the arguments of `make_companion`.

    Raises:
        ValueError: naming the argument and what is allowed.
    """
    if method not in WAYS:
        raise ValueError(f"method={method!r}: allowed are {', '.join(map(repr, WAYS))}")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype={dtype!r}: allowed are {', '.join(map(repr, _DTYPES))}")
    if (method == "layers") != (num_layers is not None):
        raise ValueError(f"num_layers={num_layers!r} with method={method!r}: 'layers' needs it, and no other takes it")
    if method in QUANTISED and not isinstance(draft, str | Path):
        raise ValueError(
            f"draft is a loaded {type(draft).__name__}: method={method!r} quantises while it loads; allowed are a Hub "
            "id and a folder"
        )
    if getattr(draft, "is_quantized", False):
        raise ValueError(
            f"draft is quantised, which method={method!r} can't save; allowed is a dense model, or its name"
        )
    if method in QUANTISED and find_spec("bitsandbytes") is None:
        raise ValueError(f"method={method!r} needs bitsandbytes: pip install 'hf_specverify[bitsandbytes]'")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"folder={str(folder)!r} is not empty; allowed is a new or an empty folder")
    if repository is not None:
        try:
            validate_repo_id(repository)
        except HFValidationError as error:
            raise ValueError(f"push_to_hub={repository!r}: {error}") from None
