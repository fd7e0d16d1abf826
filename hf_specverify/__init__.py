"""Speculative decoding for Transformers: batched, and lossless unless you ask otherwise."""

from .calibrating import calibrate
from .companions import CompanionReport, cut_layers, make_companion
from .config import SpeculationConfig
from .diagnostics import Diagnosis, DiagnosisSamples, diagnose, first_divergence
from .drafting import Drafter, DraftModel, PromptLookup
from .drafting.trimmed import trim_vocabulary
from .integration import SpeculativeDecoding, SpeculativeOutput, disable, enable, enabled
from .report import SpeculationReport
from .verification import get_verifier, register_verifier, verifiers

__version__ = "0.1.0"

__all__ = [
    "CompanionReport",
    "Diagnosis",
    "DiagnosisSamples",
    "DraftModel",
    "Drafter",
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
    "make_companion",
    "register_verifier",
    "trim_vocabulary",
    "verifiers",
]
