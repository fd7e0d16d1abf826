"""What a decoding did to the output, in numbers."""

from .diagnosing import diagnose, num_calls
from .diagnosis import Diagnosis
from .divergence import Divergence, first_divergence
from .samples import DiagnosisSamples

__all__ = ["Diagnosis", "DiagnosisSamples", "Divergence", "diagnose", "first_divergence", "num_calls"]
