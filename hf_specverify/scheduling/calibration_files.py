"""A calibration table as a folder: counts and edges in safetensors, the rest in JSON."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..hub.names import RECORD, TENSORS
from ..hub.origin import FIELDS as ORIGIN
from ..hub.origin import Origin
from ..hub.transfer import download
from .binning import UNIT
from .calibration import CalibrationTable
from .isotonic import SIGNS
from .samples import MOST_SIGNALS, NAME, Names
from .strict_json import read_object, write_object

SCHEMA_VERSION = 2
MOST_CELLS = 1 << 18
LARGEST_FILE = 1 << 23  # bytes: three numbers of 8 for every cell, and the edges
MOST_SAMPLES = 1 << 40  # of a cell
_FIELDS = ("schema_version", "signals", "monotone", "n", *ORIGIN, "metadata")
_COUNTS = {"number": torch.int64, "outcome": torch.float64, "squares": torch.float64}


def save_table(table: CalibrationTable, folder: str | PathLike[str]) -> None:
    """Write the data of a table into a folder, which is made if need be.

    Raises:
        ValueError: if its metadata are no JSON values, or its origin has a field that could not be read again.
    """
    Origin.from_record(table.origin.to_record())
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    record = {
        "schema_version": SCHEMA_VERSION,
        "signals": list(table.names),
        "monotone": {name: table.directions[name] for name in table.names},
        "n": int(table.number.sum()),
        **table.origin.to_record(),
        "metadata": table.metadata,
    }
    write_object(path / RECORD, record)
    tensors = {name: getattr(table, name) for name in _COUNTS}
    tensors |= {f"edges.{name}": table.edges[name] for name in table.names}
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path / TENSORS)


def load_table(id_or_folder: str | PathLike[str], revision: str | None = None) -> CalibrationTable:
    """Read what `save_table` wrote; see `CalibrationTable.from_pretrained`."""
    path = Path(id_or_folder)
    if path.is_dir():
        if revision is not None:
            raise ValueError(f"revision must be None for a local folder, got {revision!r}")
        return read_table(path)
    if not isinstance(id_or_folder, str):
        raise ValueError(f"id_or_folder must be a folder that is there, got {str(id_or_folder)!r}")
    return read_table(download(id_or_folder, revision))


def read_table(path: Path) -> CalibrationTable:
    """Read a folder.

    Raises:
        ValueError: naming the field that is not as `save_table` writes it.
    """
    record = read_object(path / RECORD, _FIELDS)
    names = _checked_record(record)
    tensors = _read_tensors(path / TENSORS, names)
    edges = {name: tensors[f"edges.{name}"] for name in names}
    for name, values in edges.items():
        _check_edges(name, values)
    _check_counts(tensors, tuple(len(values) + 1 for values in edges.values()), record["n"])
    number, outcome, squares = (tensors[name] for name in _COUNTS)
    return CalibrationTable(
        names,
        edges,
        number,
        outcome,
        squares,
        record["monotone"],
        record["metadata"],
        origin=Origin.from_record(record),
    )


def _checked_record(record: dict[str, Any]) -> Names:
    if type(record["schema_version"]) is not int or record["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema_version must be {SCHEMA_VERSION}, got {record['schema_version']!r}")
    names = record["signals"]
    valid = isinstance(names, list) and all(isinstance(name, str) and NAME.fullmatch(name) for name in names)
    if not valid or not 1 <= len(names) <= MOST_SIGNALS or len(set(names)) < len(names):
        raise ValueError(f"signals must be one to {MOST_SIGNALS} different names, got {names!r}")
    directions = record["monotone"]
    valid = isinstance(directions, dict) and set(directions) == set(names)
    if not valid or not all(isinstance(value, str) and value in SIGNS for value in directions.values()):
        raise ValueError(f"monotone must map each of {names} to one of {list(SIGNS)}, got {directions!r}")
    if type(record["n"]) is not int or record["n"] < 0:
        raise ValueError(f"n must be an integer of at least 0, got {record['n']!r}")
    if not isinstance(record["metadata"], dict):
        raise ValueError(f"metadata must be an object, got {record['metadata']!r}")
    return tuple(names)


def _read_tensors(path: Path, names: Names) -> dict[str, Tensor]:
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise ValueError(f"it has {size} bytes; allowed are up to {LARGEST_FILE}")
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ValueError(f"{path.name} can't be read: {error}") from error
    expected: dict[str, torch.dtype] = {**_COUNTS, **{f"edges.{name}": torch.float32 for name in names}}
    for kind, wrong in (("unknown", set(tensors) - set(expected)), ("missing", set(expected) - set(tensors))):
        if wrong:
            raise ValueError(f"{path.name} has {kind} fields: {', '.join(sorted(wrong))}")
    for name, dtype in expected.items():
        if tensors[name].dtype != dtype:
            raise ValueError(f"{name} must be {dtype}, got {tensors[name].dtype}")
    return tensors


def _check_edges(name: str, edges: Tensor) -> None:
    if edges.ndim != 1:
        raise ValueError(f"edges.{name} must have one dimension, got the shape {tuple(edges.shape)}")
    if not bool(edges.isfinite().all()) or not bool((edges[1:] > edges[:-1]).all()):
        raise ValueError(f"edges.{name} must be finite and increasing")


def _check_counts(tensors: dict[str, Tensor], shape: tuple[int, ...], samples: int) -> None:
    if torch.Size(shape).numel() > MOST_CELLS:
        raise ValueError(f"number must have up to {MOST_CELLS} cells, got the shape {shape}")
    for name in _COUNTS:
        if tensors[name].shape != shape:
            raise ValueError(f"{name} must have the shape {shape} of the edges, got {tuple(tensors[name].shape)}")
    number, outcome, squares = (tensors[name] for name in _COUNTS)
    if not bool(((number >= 0) & (number <= MOST_SAMPLES)).all()):
        raise ValueError(f"number must lie in 0 … {MOST_SAMPLES}")
    if int(number.sum()) != samples:
        raise ValueError(f"n must be the sum of number, {int(number.sum())}, got {samples}")
    rounding = number / UNIT
    if not bool(((outcome >= 0) & (outcome <= number)).all()):
        raise ValueError("outcome must lie between 0 and number in every cell")
    if not bool(
        ((squares >= 0) & (squares <= outcome + rounding) & (squares * number >= outcome**2 - rounding * number)).all()
    ):
        raise ValueError("squares must be possible sums of squares of numbers that sum to outcome")
