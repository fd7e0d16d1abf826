"""What `specverify calibrate` adds to the origin of its table."""

from __future__ import annotations

import re
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

FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


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


def parse_forms(forms: Sequence[str]) -> dict[str, str]:
    """From "target=gguf-q4_k_m" to {"target": "gguf-q4_k_m"}.

    Raises:
        ValueError: naming the one that is not of this form.
    """
    found = {}
    for text in forms:
        role, _, form = text.partition("=")
        if role not in ROLES or role in found or not FORM.fullmatch(form):
            raise ValueError(
                f"form={text!r}: allowed is ROLE=FORM, such as target=gguf-q4_k_m, once for each of {', '.join(ROLES)}"
            )
        found[role] = form
    return found


def with_command(
    table: CalibrationTable,
    gains: InformationTable,
    *,
    context: Any,
    names: Mapping[str, tuple[str, str | None]],
    forms: Mapping[str, str],
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
        forms: of weights that were quantised once and are dense again, see `parse_forms`.
        tokenizer: the target's.
        prompts: the file that was read.
        data: more about the data: sha256, num_prompts, …
        seed: of the random draws.
    """
    models = {
        role: _formed(_named(identity, names.get(role)), forms.get(role))
        for role, identity in table.origin.models.items()
    }
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


def _formed(identity: ModelIdentity, form: str | None) -> ModelIdentity:
    """Weights of another form are not compared with the original's, and a warning names the form."""
    if form is None:
        return identity
    return replace(identity, quantization=form if identity.quantization is None else f"{form}, {identity.quantization}")
