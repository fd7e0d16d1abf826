"""The progress bar of long commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .command_output import progress_bar
from .sharding import Team


@contextmanager
def progress_of(what: str, team: Team, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr how far the first process of a team is.

    Yields:
        What is to be called with the number of things done, and of all.
    """
    shared = team.size > 1 and not team.together
    with progress_bar(quiet or not team.is_first) as progress:
        task = progress.add_task(f"{what} of process 1 of {team.size}" if shared else what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
