"""Numbered files of tensors that a long run leaves behind, so that it can go on where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor


class Store:
    """Files `NAME-00000.safetensors`, … of a folder; a file that is there is whole.

    Args:
        folder: made if it isn't there.
        name: of the files.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, number: int) -> Path:
        """Of a file."""
        return self.folder / f"{self.name}-{number:05d}.safetensors"

    def has(self, number: int) -> bool:
        """Whether a file was written."""
        return self.path(number).is_file()

    def save(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Write a file; the name is given to it when it is whole."""
        unfinished = self.path(number).with_suffix(".part")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, unfinished)
        unfinished.replace(self.path(number))

    def load(self, number: int) -> dict[str, Tensor]:
        """Read a file.

        Raises:
            ValueError: if it is damaged.
        """
        try:
            return load_file(self.path(number))
        except SafetensorError as error:
            raise ValueError(f"{self.path(number)} is damaged ({error}); remove it to have it made again") from None


def write_json(path: Path, values: Any) -> None:
    """Write a file of JSON; the old one stays whole until the new one is."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    unfinished.replace(path)


def check_same(path: Path, values: Mapping[str, Any]) -> None:
    """Write down what a run depends on; refuse to go on with one that began with something else.

    Raises:
        ValueError: naming the fields that differ.
    """
    if not path.is_file():
        write_json(path, values)
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(values))
    different = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if different:
        first = different[0]
        raise ValueError(
            f"{path.parent} holds a run with other {different}: {first} was {before.get(first)!r} and is "
            f"{values.get(first)!r}; allowed: the same, or another folder"
        )
