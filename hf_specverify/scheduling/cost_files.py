"""Measured costs as a JSON file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from .cost import CostModel
from .cost_points import ROLES, Point
from .fingerprint import Fingerprint
from .strict_json import read_object, write_object

SCHEMA_VERSION = 1
_FIELDS = ("schema_version", "machine", "models", "points")
_POINT_FIELDS = ("role", "context", "batch", "tokens", "seconds")


def save_costs(costs: CostModel, path: str | PathLike[str]) -> None:
    """Write costs; see `CostModel.save`."""
    data = {
        "schema_version": SCHEMA_VERSION,
        "machine": costs.fingerprint.machine,
        "models": costs.fingerprint.models,
        "points": [asdict(point) for point in costs.points],
    }
    write_object(Path(path), data)


def load_costs(path: str | PathLike[str], models: Mapping[str, Any]) -> CostModel:
    """Read costs, and compare their fingerprint with what is here; see `CostModel.load`."""
    costs = read_costs(path)
    _compare(costs.fingerprint, Fingerprint.of(models))
    return costs


def read_costs(path: str | PathLike[str]) -> CostModel:
    """Read costs, of whatever machine and models they are.

    Raises:
        ValueError: naming a damaged field.
    """
    data = read_object(Path(path), _FIELDS)
    if type(data["schema_version"]) is not int or data["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema_version must be {SCHEMA_VERSION}, got {data['schema_version']!r}")
    for name in ("machine", "models"):
        if not isinstance(data[name], dict):
            raise ValueError(f"{name} must be an object, got {data[name]!r}")
    if not set(data["models"]) <= set(ROLES) or not all(isinstance(value, str) for value in data["models"].values()):
        raise ValueError(f"models must map some of {list(ROLES)} to hashes, got {data['models']!r}")
    if not isinstance(data["points"], list):
        raise ValueError(f"points must be a list, got {data['points']!r}")
    points = [_point(place, values) for place, values in enumerate(data["points"])]
    return CostModel(points, Fingerprint(data["machine"], data["models"]))


def _point(place: int, values: Any) -> Point:
    if not isinstance(values, dict) or set(values) != set(_POINT_FIELDS):
        raise ValueError(f"points[{place}] must have the fields {list(_POINT_FIELDS)}, got {values!r}")
    try:
        return Point(**values)
    except ValueError as error:
        raise ValueError(f"points[{place}]: {error}") from error


def _compare(saved: Fingerprint, here: Fingerprint) -> None:
    """Refuse other models; warn of another machine. Only what is known of both sides is compared."""
    for role, found in here.models.items():
        if saved.models.get(role) != found:
            measured = "another model" if role in saved.models else "none"
            raise ValueError(f"models[{role!r}]: the costs were measured with {measured}; allowed: profile this one")
    for name, value in here.machine.items():
        if not here.models and name == "device":
            continue  # without models it isn't known which device they will be on
        if saved.machine.get(name) != value:
            warnings.warn(
                f"{name} is {value!r}, but the costs were measured with {saved.machine.get(name)!r}; profile again",
                UserWarning,
                stacklevel=4,
            )
