"""What a decoding did to the output, in numbers, and what a lossy rule is to be compared with."""

from .diagnosing import diagnose, num_calls
from .diagnosis import Diagnosis
from .divergence import Divergence, first_divergence
from .matched import matched_baseline
from .matched_sampling import MatchedSampling
from .samples import DiagnosisSamples

__all__ = [
    "Diagnosis",
    "DiagnosisSamples",
    "Divergence",
    "MatchedSampling",
    "diagnose",
    "first_divergence",
    "matched_baseline",
    "num_calls",
]
