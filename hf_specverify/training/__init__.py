"""Training of feature heads."""

from .acceptance import AcceptanceQuality
from .settings import HeadTraining
from .training import HeadReport, train_head

__all__ = ["AcceptanceQuality", "HeadReport", "HeadTraining", "train_head"]
