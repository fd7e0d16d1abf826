"""Speculative decoding for Transformers: batched, and lossless unless you ask otherwise."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calibrating import calibrate
    from .companions import CompanionReport, cut_layers, make_companion
    from .config import SpeculationConfig
    from .diagnostics import Diagnosis, DiagnosisSamples, diagnose, first_divergence
    from .drafting import Drafter, DraftModel, DynamicTree, EarlyExit, FeatureHead, PromptLookup
    from .drafting.int8_copy import int8_copy
    from .drafting.trimmed import trim_vocabulary
    from .integration import SpeculativeDecoding, SpeculativeOutput, disable, enable, enabled
    from .packing import pack_weights, unpack_weights
    from .report import SpeculationReport
    from .training import HeadReport, HeadTraining, train_head
    from .verification import get_verifier, register_verifier, verifiers

__version__ = "0.1.0"

# Where the public names are: imported when they are asked for, so that `specverify --help` does not wait for torch.
_PLACES = {
    "calibrating": ("calibrate",),
    "companions": ("CompanionReport", "cut_layers", "make_companion"),
    "config": ("SpeculationConfig",),
    "diagnostics": ("Diagnosis", "DiagnosisSamples", "diagnose", "first_divergence"),
    "drafting": ("DraftModel", "Drafter", "DynamicTree", "EarlyExit", "FeatureHead", "PromptLookup"),
    "drafting.int8_copy": ("int8_copy",),
    "drafting.trimmed": ("trim_vocabulary",),
    "integration": ("SpeculativeDecoding", "SpeculativeOutput", "disable", "enable", "enabled"),
    "packing": ("pack_weights", "unpack_weights"),
    "report": ("SpeculationReport",),
    "training": ("HeadReport", "HeadTraining", "train_head"),
    "verification": ("get_verifier", "register_verifier", "verifiers"),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "CompanionReport",
    "Diagnosis",
    "DiagnosisSamples",
    "DraftModel",
    "Drafter",
    "DynamicTree",
    "EarlyExit",
    "FeatureHead",
    "HeadReport",
    "HeadTraining",
    "PromptLookup",
    "SpeculationConfig",
    "SpeculationReport",
    "SpeculativeDecoding",
    "SpeculativeOutput",
    "calibrate",
    "cut_layers",
    "diagnose",
    "disable",
    "enable",
    "enabled",
    "first_divergence",
    "get_verifier",
    "int8_copy",
    "make_companion",
    "pack_weights",
    "register_verifier",
    "train_head",
    "trim_vocabulary",
    "unpack_weights",
    "verifiers",
]


def __getattr__(name: str) -> Any:
    if name in _PLACE_OF:
        found = getattr(import_module(f"{__name__}.{_PLACE_OF[name]}"), name)
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        found = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
