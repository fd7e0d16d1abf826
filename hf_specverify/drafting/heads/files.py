"""Feature heads on disk: the `speculators` format (its release 0.9), and the layout of EAGLE-3 repositories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .acceptance import ACCEPTANCE
from .config import EAGLE3, LAYOUTS, SPECULATORS, HeadConfig
from .model import HeadModel
from .shipped import shipped_heads

CONFIG, TENSORS, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
_LAYER = {SPECULATORS: "layers.0.", EAGLE3: "midlayer."}
_SHARED = {"embed_tokens": "embed_tokens.weight", "lm_head": "lm_head.weight"}
# Parts of the target that training with other tools keeps beside the head.
_IGNORED = ("verifier_norm.", "verifier_lm_head.", "rotary_emb.", "layers.0.self_attn.rotary_emb.")


def save_head(head: HeadModel, folder: str | Path, *, layout: str = SPECULATORS, complete: bool = False) -> None:
    """Write a head; config.json last, so that a folder that has one is whole.

    Args:
        head: the head.
        folder: made if it isn't there.
        layout: `speculators`, or `eagle3`.
        complete: write embeddings and scoring rows too where they are the target's: for programs that do not take
            them from there.

    Raises:
        ValueError: for another layout.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}: allowed are {list(LAYOUTS)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name.replace("layers.0.", _LAYER[layout]): tensor.detach().cpu().contiguous()
        for name, tensor in head.state_dict().items()
    }
    for name in _SHARED if complete else head.own:
        tensors[_SHARED[name]] = getattr(head, name).detach().cpu().contiguous().clone()
    if head.config.draft_vocab_size < head.config.vocabulary:
        tensors |= _maps(head.draft_ids.cpu(), head.config.vocabulary)
    save_file(tensors, folder / TENSORS, metadata={"format": "pt"})
    config = head.config.to_dict(layout, str(head.dtype).removeprefix("torch."))
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_head(name_or_folder: str | Path, *, revision: str | None = None) -> HeadModel:
    """Read a head in either layout, in the dtype of its weights.

    What it has not itself, embeddings or scoring rows, is still to be taken from the target (`take_from_target`).

    Args:
        name_or_folder: a folder, the name of a head that comes with the library, or a repository on the Hub.
        revision: of the repository.

    Raises:
        ValueError: naming the field or tensor that is missing or not as it should be.
        OSError: if there is no such folder or repository, or a file is missing.
    """
    folder = find_folder(name_or_folder, revision)
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {CONFIG}; allowed is the folder of a feature head")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold an object, got {type(values).__name__}")
    try:
        config = replace(HeadConfig.from_dict(values), _name_or_path=str(name_or_folder))
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]} is missing") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    try:
        return _assemble(config, _tensors(folder))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def find_folder(name: str | Path, revision: str | None = None) -> Path:
    """The folder of a head; one of a repository on the Hub is fetched.

    Raises:
        OSError: if there is no such folder or repository.
    """
    if Path(name).is_dir():
        return Path(name)
    if str(name) in shipped_heads():
        return shipped_heads()[str(name)]
    patterns = [CONFIG, TENSORS, PICKLED, ACCEPTANCE]
    return Path(snapshot_download(str(name), revision=revision, allow_patterns=patterns))


def _tensors(folder: Path) -> dict[str, Tensor]:
    """By name, those of the layer as in the `speculators` format."""
    path = folder / TENSORS
    try:
        if path.is_file():
            found = load_file(path)
        elif (folder / PICKLED).is_file():
            found = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
        else:
            raise FileNotFoundError(f"{folder} has neither {TENSORS} nor {PICKLED}")
    except SafetensorError as error:
        raise ValueError(f"{TENSORS} is damaged ({error})") from None
    renamed = {name.replace(_LAYER[EAGLE3], _LAYER[SPECULATORS]): tensor for name, tensor in found.items()}
    return {name: tensor for name, tensor in renamed.items() if not name.startswith(_IGNORED)}


def _assemble(config: HeadConfig, tensors: dict[str, Tensor]) -> HeadModel:
    ids = _draft_ids(config, tensors.pop("d2t", None), tensors.pop("t2d", None))
    shared = {name: tensors.pop(key) for name, key in _SHARED.items() if key in tensors}
    head = HeadModel(config).to(_dtype(tensors))
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    sizes = {"embed_tokens": config.vocabulary, "lm_head": config.draft_vocab_size}
    expected |= {_SHARED[name]: (sizes[name], config.hidden_size) for name in shared}
    _check_tensors(expected, {**tensors, **{_SHARED[name]: tensor for name, tensor in shared.items()}})
    head.load_state_dict(tensors)
    head.draft_ids = ids
    for name, tensor in shared.items():
        setattr(head, name, tensor.to(head.dtype))
    head.own = frozenset(shared)
    return head.requires_grad_(False).eval()


def _dtype(tensors: dict[str, Tensor]) -> torch.dtype:
    weight = tensors.get("fc.weight")
    if weight is None or not weight.is_floating_point():
        raise ValueError("fc.weight is missing or no floating point tensor")
    return weight.dtype


def _check_tensors(expected: dict[str, tuple[int, ...]], found: dict[str, Tensor]) -> None:
    missing, unknown = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or unknown:
        raise ValueError(
            f"the tensors {missing} are missing and {unknown} are not known; allowed are those that config.json "
            f"asks for, {sorted(expected)}"
        )
    for name, shape in expected.items():
        if tuple(found[name].shape) != shape:
            raise ValueError(f"{name} must have the shape {shape} by config.json, got {tuple(found[name].shape)}")


def _maps(ids: Tensor, vocabulary: int) -> dict[str, Tensor]:
    """`d2t`, what is to be added to a draft id for the target's, and `t2d`, which of the target's ids are kept."""
    kept = torch.zeros(vocabulary, dtype=torch.bool)
    kept[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": kept}


def _draft_ids(config: HeadConfig, d2t: Any, t2d: Any) -> Tensor:
    """(D,) the target's ids of the draft vocabulary."""
    size, vocabulary = config.draft_vocab_size, config.vocabulary
    if d2t is None:
        if size != vocabulary:
            raise ValueError(f"d2t is missing; draft_vocab_size={size} of vocab_size={vocabulary} needs it")
        return torch.arange(size)
    if tuple(d2t.shape) != (size,) or d2t.is_floating_point():
        raise ValueError(f"d2t must be integers of the shape ({size},), got {tuple(d2t.shape)} of {d2t.dtype}")
    ids: Tensor = d2t.long() + torch.arange(size)
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary or len(set(ids.tolist())) < size:
        raise ValueError(f"d2t must lead to {size} different ids below vocab_size={vocabulary}")
    if t2d is not None and (tuple(t2d.shape) != (vocabulary,) or not bool(t2d.bool()[ids].all())):
        raise ValueError("t2d must mark the ids that d2t leads to, one flag for each of the target's tokens")
    return ids
