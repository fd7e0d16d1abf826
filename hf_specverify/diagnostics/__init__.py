"""What a decoding did to the output, in numbers, and what a lossy rule is to be compared with."""

from .divergence import Divergence, first_divergence
from .matched import matched_baseline
from .matched_sampling import MatchedSampling

__all__ = ["Divergence", "MatchedSampling", "first_divergence", "matched_baseline"]
