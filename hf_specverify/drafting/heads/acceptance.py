"""What a feature head expects to be accepted: a small network on the head's own output, and its file."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

ACCEPTANCE = "acceptance.safetensors"
_WIDTH = 64


class AcceptanceHead(nn.Module):
    """Estimates 1 - TV(p, q) at the place that a feature head is about to draft: how likely its draft is accepted.

    It reads what `HeadModel.logits` reads, so no token that is drawn at that place. It is trained on laws at
    temperature 1; elsewhere its value is a signal like others, and a calibration says what it means.

    Args:
        hidden_size: H, the head's.
        width: of the layer between.
    """

    def __init__(self, hidden_size: int, width: int = _WIDTH) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(hidden_size, width), nn.Linear(width, 1)

    def logits(self, normed: Tensor) -> Tensor:
        """(…) log-odds of acceptance, from (…, H) of any dtype, in that of the weights."""
        # The norm's gains are made for the scoring rows, and differ by target; without them one start fits all.
        read = F.rms_norm(normed.to(self.out.weight.dtype), normed.shape[-1:])
        log_odds: Tensor = self.out(F.silu(self.hidden(read)))[..., 0]
        return log_odds

    def forward(self, normed: Tensor) -> Tensor:
        """(…) float32 estimates of 1 - TV(p, q), from (…, H), the second output of `HeadModel`."""
        return self.logits(normed).float().sigmoid()


def save_acceptance(acceptance: AcceptanceHead | None, folder: str | Path) -> None:
    """Write an acceptance head beside its head; with None, remove that of another head which lay there."""
    path = Path(folder) / ACCEPTANCE
    if acceptance is None:
        path.unlink(missing_ok=True)
        return
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in acceptance.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt"})


def load_acceptance(folder: Path, hidden_size: int) -> AcceptanceHead | None:
    """Read the acceptance head of a head's folder; None where it has none.

    Args:
        folder: of the head.
        hidden_size: H, the head's.

    Raises:
        ValueError: naming the tensor that is missing or not as it should be.
    """
    path = folder / ACCEPTANCE
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    width = len(tensors["out.weight"].flatten()) if "out.weight" in tensors else _WIDTH
    acceptance = AcceptanceHead(hidden_size, width)
    expected = acceptance.state_dict()
    missing, unknown = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing or unknown:
        raise ValueError(
            f"{path}: the tensors {missing} are missing and {unknown} are not known; allowed are {sorted(expected)}"
        )
    for name, like in expected.items():
        found = tensors[name]
        if found.shape != like.shape or not found.is_floating_point():
            raise ValueError(
                f"{path}: {name} must be floating point numbers of the shape {tuple(like.shape)}, got "
                f"{tuple(found.shape)} of {found.dtype}"
            )
    acceptance.load_state_dict(tensors)
    return acceptance.requires_grad_(False).eval()
