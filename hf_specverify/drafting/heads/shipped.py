"""Feature heads that come with the library."""

from __future__ import annotations

from pathlib import Path

PLACE = Path(__file__).parents[2] / "shipped_heads"


def shipped_heads() -> dict[str, Path]:
    """Their folders by name, such as "smollm2-135m-instruct"."""
    return {folder.name: folder for folder in sorted(PLACE.iterdir()) if folder.is_dir()} if PLACE.is_dir() else {}
