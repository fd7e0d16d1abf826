"""What `specverify calibrate` adds to the origin of its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..scheduling.calibration import CalibrationTable
from ..scheduling.information import InformationTable
from .figures import Figures
from .identity import ModelIdentity
from .origin import ROLES, command_line
from .records import REVISION, Settings, is_hub_id, printable
from .vocabularies import tokenizer_hashes


def parse_names(names: Sequence[str]) -> dict[str, tuple[str, str | None]]:
    """From "target=user/name@revision" to {"target": ("user/name", "revision")}; also for "data".

    Raises:
        ValueError: naming the one that is not of this form.
    """
    found = {}
    for text in names:
        role, _, place = text.partition("=")
        name, _, revision = place.partition("@")
        known = role in (*ROLES, "data") and role not in found and is_hub_id(name)
        if not known or (revision and not REVISION.fullmatch(revision)):
            raise ValueError(
                f"name={text!r}: allowed is ROLE=USER/NAME or ROLE=USER/NAME@REVISION, once for each of "
                f"{', '.join(ROLES)} and data"
            )
        found[role] = name, revision or None
    return found


def with_command(
    table: CalibrationTable,
    gains: InformationTable,
    *,
    context: Any,
    names: Mapping[str, tuple[str, str | None]],
    tokenizer: Any,
    prompts: Path,
    data: Settings,
    seed: int,
) -> CalibrationTable:
    """The table with all that the command knows of it.

    Args:
        table: fresh from the fit, with the origin that `calibrate` gave it.
        gains: its information table.
        context: typer's, of the command.
        names: on the Hub, of models and data that were read from here, see `parse_names`.
        tokenizer: the target's.
        prompts: the file that was read.
        data: more about the data: sha256, num_prompts, …
        seed: of the random draws.
    """
    models = {role: _named(identity, names.get(role)) for role, identity in table.origin.models.items()}
    if "target" in models:
        vocabulary, behaviour = tokenizer_hashes(tokenizer)
        models["target"] = replace(models["target"], vocabulary_sha256=vocabulary, tokenizer_sha256=behaviour)
    file = printable(prompts.name)
    name, revision = names.get("data", (file, None))
    origin = replace(
        table.origin,
        **models,  # type: ignore[arg-type]
        data={"name": name, "revision": revision, "file": file, **data},
        figures=Figures.of(gains, table.calibration_error()),
        command=command_line(given_arguments(context)),
        seed=seed,
    )
    return replace(table, origin=origin)


def given_arguments(context: Any) -> list[str]:
    """The command and the options that were given to it."""
    arguments = [str(context.info_name).split()[-1]]
    for parameter in context.command.params:
        value = context.params.get(parameter.name)
        if context.get_parameter_source(parameter.name).name != "COMMANDLINE" or value is None or value is False:
            continue
        for entry in value if isinstance(value, list | tuple) else [value]:
            arguments += [parameter.opts[0]] if entry is True else [parameter.opts[0], str(entry)]
    return arguments


def _named(identity: ModelIdentity, name: tuple[str, str | None] | None) -> ModelIdentity:
    return identity if name is None else replace(identity, id=name[0], revision=name[1])
