"""The pieces of a long run, each in a file of its own, so that an interrupted run goes on with what is missing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from .report.json_files import read_json, write_json
from .sharding import Team

SETTINGS = "settings.json"
# Seconds in which a file that one machine has written is seen on another; network file systems remember up to a minute
# that a file was not there.
DELAY = 120.0


class Parts:
    """A folder with the finished parts of a run, `000000.json` and so on, and the settings that they were made with.

    Parts are written under another name and renamed, so a file that is there is whole. What is in it depends on its
    number and the settings only, not on the process that wrote it.

    Args:
        folder: made when the first part is.
        suffix: of the parts' names.
    """

    def __init__(self, folder: Path, suffix: str = ".json") -> None:
        self.folder, self.suffix = folder, suffix

    def path(self, number: int) -> Path:
        """The file of a part."""
        return self.folder / f"{number:06d}{self.suffix}"

    def missing(self, total: int) -> list[int]:
        """Numbers below `total` of parts that are not there."""
        there = {path.name for path in self.folder.glob(f"*{self.suffix}")}
        return [number for number in range(total) if self.path(number).name not in there]

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Note the settings of a new run, or compare those of an interrupted one.

        Raises:
            ValueError: naming the first setting that differs.
        """
        path, settings = self.folder / SETTINGS, json.loads(json.dumps(settings))  # as they are read back
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, settings)
            return
        before = read_json(path)
        if not isinstance(before, dict):
            raise ValueError(f"{path} holds {before!r}; allowed: an object with the settings of a run")
        for name in {**settings, **before}:
            if before.get(name) != settings.get(name):
                raise ValueError(
                    f"{self.folder} was made with {name}={before.get(name)!r}, now it is {settings.get(name)!r}; "
                    "allowed: the same, or another --out"
                )

    def complete(
        self,
        team: Team,
        total: int,
        settings: Mapping[str, Any],
        make: Callable[[int], Any],
        save: Callable[[Any, Path], None],
        on_part: Callable[[int, int], None] | None = None,
        warm_up: Callable[[], None] | None = None,
    ) -> list[Path]:
        """Make the parts that are missing, shared out over the processes; returns when all are there.

        Args:
            team: the processes, each of which calls this.
            total: number of parts.
            settings: JSON values that decide what is in the parts.
            make: makes a part, given its number.
            save: writes it to a path, under another name first.
            on_part: called at the start and after each part, with how many of this process's are done and how many
                there are.
            warm_up: called once before the first part, if this process makes one.

        Returns:
            The files of all parts, in order.

        Raises:
            ValueError: for settings that differ from those of the parts, or a folder that other machines don't see.
        """

        def begin() -> list[int]:
            self.begin(settings)
            return self.missing(total)

        mine = team.share(team.decide(begin))
        self._see({SETTINGS}, team)
        tell = on_part or (lambda done, total: None)
        tell(0, len(mine))
        if mine and warm_up is not None:
            warm_up()
        for done, number in enumerate(mine, 1):
            part = make(number)
            if team.keeps:
                save(part, self.path(number))
            tell(done, len(mine))
        team.wait()
        paths = [self.path(number) for number in range(total)]
        if team.is_first:
            self._see({path.name for path in paths}, team)
        return paths

    def _see(self, names: Collection[str], team: Team) -> None:
        """Wait for files that another machine has written."""
        end = time.monotonic() + (DELAY if team.size > 1 else 0)
        while unseen := set(names) - {path.name for path in self.folder.glob("*")}:
            if time.monotonic() > end:
                raise ValueError(
                    f"{self.folder} has no {', '.join(sorted(unseen)[:3])} on this machine; allowed: an --out on a "
                    "disk that all machines share"
                )
            time.sleep(1)
