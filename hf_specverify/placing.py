"""Where the models of a command go: on one device, spread over several, or shared out over processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from .benchmark.drafts import LOOKUP, load_companion, load_draft
from .benchmark.environment import as_dtype_says, load_model, parse_dtype
from .decoding.traits import input_device
from .sharding import Team

AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")

Device = Annotated[
    str | None, typer.Option(help="Device of the target, such as cuda:1 or cpu. Default: a GPU for each process.")
]
DeviceMap = Annotated[
    str | None,
    typer.Option(help="Spread the target over devices: auto, balanced, balanced_low_0, sequential, or a JSON object."),
]
TpPlan = Annotated[
    str | None,
    typer.Option(help="Share the target out over all processes (tensor parallel): auto, or a JSON object."),
]
DraftDevice = Annotated[str | None, typer.Option(help="Device of the draft. Default: where the target takes its ids.")]
CompanionDevice = Annotated[str | None, typer.Option(help="Device of the companion. Default: the draft's.")]


@dataclass(frozen=True)
class Placement:
    """Where target, draft and companion go.

    Attributes:
        device: of the target; None is the process's own.
        device_map: of `from_pretrained`, for the target: one of `AUTOMATIC`, a device, or a JSON object.
        tp_plan: tensor parallelism of the target: "auto", or a JSON object.
        draft_device: of the draft; None is the device on which the target takes its ids.
        companion_device: of the companion; None is the draft's.

    Raises:
        ValueError: for more than one of the first three, a name that is no device, or a text that is no JSON object.
    """

    device: str | None = None
    device_map: str | None = None
    tp_plan: str | None = None
    draft_device: str | None = None
    companion_device: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("device", "device_map", "tp_plan") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other; allowed: one of device, device_map, tp_plan")
        for name in ("device", "draft_device", "companion_device"):
            _as_device(name, getattr(self, name))
        if self.tp_plan is not None:
            _plan("tp_plan", self.tp_plan, ("auto",))
        if self.device_map is not None and not _is_device(self.device_map):
            _plan("device_map", self.device_map, AUTOMATIC)

    def join(self) -> Team:
        """The team of processes: under tensor parallelism all do the same work, else work is shared out.

        Raises:
            ValueError: for a placement that does not go with the number of processes.
        """
        team = Team.join(together=self.tp_plan is not None)
        if self.tp_plan is not None and team.size == 1:
            raise ValueError(f"tp_plan={self.tp_plan!r} with one process; allowed: several, by accelerate launch")
        if self.device_map in AUTOMATIC and team.local_size > 1:
            raise ValueError(
                f"device_map={self.device_map!r} with {team.local_size} processes on this machine, each of which would "
                "take all of its devices; allowed: one process a machine, or tp_plan"
            )
        return team

    def load_target(self, name: str, dtype: str, team: Team) -> Any:
        """Load the target.

        Args:
            name: Hub id or folder.
            dtype: of its weights.
            team: the processes.
        """
        options: dict[str, Any] = {}
        if self.tp_plan is not None:
            options["distributed_config"] = DistributedConfig(tp_plan=_plan("tp_plan", self.tp_plan, ("auto",)))
        elif self.device_map is not None:
            by_name = _is_device(self.device_map)
            options["device_map"] = self.device_map if by_name else _plan("device_map", self.device_map, AUTOMATIC)
        else:
            return load_model(name, dtype, device=_as_device("device", self.device) or team.device)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=parse_dtype(dtype)[0], **options).eval()
        return as_dtype_says(model, dtype)

    def load(self, models: ModelNames, dtype: str, team: Team) -> tuple[Any, Any, Any]:
        """Load target, draft (or make a drafter) and companion (None where there is none)."""
        parse_dtype(dtype)
        target = self.load_target(models.target, dtype, team)
        device = _as_device("draft_device", self.draft_device) or input_device(target)
        draft = load_draft(
            models.draft, target, dtype, models.draft_quantization,
            target_name=models.target, lookup_ngram=models.lookup_ngram, trim_text=models.trim_text, device=device,
        )  # fmt: skip
        if models.companion is None:
            return target, draft, None
        device = _as_device("companion_device", self.companion_device) or device
        second = load_companion(
            models.companion, target, dtype, models.companion_quantization, trim_text=models.trim_text, device=device
        )
        return target, draft, second


@dataclass(frozen=True)
class ModelNames:
    """Hub ids or folders of models, and the forms that they are loaded in (`parse_form`)."""

    target: str
    draft: str = LOOKUP
    draft_quantization: str = "none"
    companion: str | None = None
    companion_quantization: str = "none"
    lookup_ngram: int = 2
    trim_text: str | Path | None = None


def _plan(name: str, text: str, words: tuple[str, ...]) -> str | dict[str, Any]:
    """One of the words, or a JSON object."""
    if text in words:
        return text
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, Mapping):
        raise ValueError(f"{name}={text!r}; allowed: {', '.join(words)}, or a JSON object")
    return dict(found)


def _is_device(text: str) -> bool:
    try:
        torch.device(text)
    except RuntimeError:
        return False
    return True


def _as_device(name: str, text: str | None) -> torch.device | None:
    if text is None:
        return None
    if not _is_device(text):
        raise ValueError(f"{name}={text!r} is no device; allowed: cpu, cuda, cuda:1, …")
    return torch.device(text)
