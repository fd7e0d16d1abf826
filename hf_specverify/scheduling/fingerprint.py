"""What a measurement of costs holds for: the machine, the libraries and the models."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..decoding.traits import input_device
from ..packing import described_dtype

_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype")  # the dtype is a field of its own


@dataclass(frozen=True)
class Fingerprint:
    """Where costs were measured.

    Attributes:
        machine: device, processor, cores, threads, versions, and the dtype of every model, with whether its weights
            are packed. If one differs, so may the costs.
        models: by role, a hash of configuration and size. If one differs, the costs are another model's.
    """

    machine: dict[str, Any]
    models: dict[str, str]

    @classmethod
    def of(cls, models: Mapping[str, Any]) -> Fingerprint:
        """That of the given models, here and now; without models that of the machine and its CPU."""
        import torch

        from ..benchmark.environment import describe_environment

        target = next(iter(models.values()), None)
        device = torch.device("cpu") if target is None else input_device(target)
        machine: dict[str, Any] = {**describe_environment(device), "cores": os.cpu_count()}
        machine |= {f"dtype of the {role}": described_dtype(model) for role, model in models.items()}
        return cls(machine, {role: model_hash(model) for role, model in models.items()})

    def covers(self, other: Fingerprint) -> bool:
        """Whether what was measured here holds for all of `other`: its machine and its models."""
        return other.machine.items() <= self.machine.items() and other.models.items() <= self.models.items()


def model_hash(model: Any) -> str:
    """A hash of the model's configuration and its number of parameters; names, versions and dtypes don't count."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_OF_THE_MODEL}
    text = json.dumps([config, model.num_parameters()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
