"""The command `specverify push`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .command_options import Json, Quiet
from .command_output import clean_stdout, print_json
from .hub.pushing import push_folder


def push_command(
    folder: Annotated[Path, typer.Argument(help="Folder of `specverify calibrate`.")],
    repository: Annotated[str, typer.Argument(help="On the Hub: user/name; made if it isn't there.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch to push to; made if it isn't there.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check a calibration, complete its folder and put it on the Hub.

    A file cost_table.json in the folder (of `specverify profile`) goes along. Log in first (hf auth login), or set
    HF_TOKEN.

    Examples:

      specverify push my-table me/my-table --private
    """
    with clean_stdout(as_json):
        commit = push_folder(folder, repository, private=True if private else None, revision=revision)
    if as_json:
        print_json({"repository": repository, "revision": revision, "commit": commit})
    elif not quiet:
        print(f"{folder} is now {repository}, commit {commit}")
