"""Feature heads: drafters that read the target's hidden states (EAGLE-3, 2503.01840)."""

from .acceptance import AcceptanceHead
from .config import HeadConfig, default_layers
from .feature_head import FeatureHead
from .files import load_head, save_head
from .model import HeadModel

__all__ = ["AcceptanceHead", "FeatureHead", "HeadConfig", "HeadModel", "default_layers", "load_head", "save_head"]
