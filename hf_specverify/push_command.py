"""The command `specverify push`."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from .hub.pushing import push_folder


def push_command(
    folder: Annotated[Path, typer.Argument(help="Folder of `specverify calibrate`.")],
    repository: Annotated[str, typer.Argument(help="On the Hub: user/name; made if it isn't there.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch to push to; made if it isn't there.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """Check a calibration, complete its folder and put it on the Hub.

    A file cost_table.json in the folder (of `specverify profile`) goes along. Log in first (hf auth login), or set
    HF_TOKEN.

    For example:

      specverify push my-table me/my-table --private
    """
    commit = push_folder(folder, repository, private=True if private else None, revision=revision)
    if json:
        print(json_module.dumps({"repository": repository, "revision": revision, "commit": commit}, indent=2))
    elif not quiet:
        print(f"{folder} is now {repository}, commit {commit}")
