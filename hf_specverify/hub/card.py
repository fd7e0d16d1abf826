"""The card of a calibration: what it is of, how it was made, how good it is, how to use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from huggingface_hub import ModelCardData

from .identity import ModelIdentity
from .names import RELIABILITY
from .records import Settings, is_hub_id

if TYPE_CHECKING:
    from ..scheduling.calibration import CalibrationTable
    from .figures import Figures
    from .origin import Origin

LIBRARY = "hf_specverify"
PLACE = "USER/REPOSITORY"
SETS_SHOWN = 8
_HEX_SHOWN = 12


def write_card(table: CalibrationTable, place: str | None, plots: bool, costs: bool) -> str:
    """The text of README.md.

    Args:
        table: the calibration.
        place: the repository's name on the Hub, if it is known.
        plots: whether the picture of its reliability is in the folder.
        costs: whether measured costs are.
    """
    origin, name = table.origin, place or PLACE
    parts = [
        f"---\n{_front_matter(origin)}\n---",
        f"# Calibration for speculative decoding: {_title(origin)}",
        "How likely the target is to accept a draft token, given signals that are known before it is asked: a table of "
        f"counts over {', '.join(f'`{signal}`' for signal in table.names)}, from {int(table.number.sum())} positions. "
        f"Mean acceptance {table.mean:.3f}. It changes how many tokens are verified, never which are right: the output "
        "follows the target's law whatever it says.",
        "## Use",
        _use(name),
        "## Models",
        _models(origin.models),
    ]
    if origin.figures is not None:
        parts += ["## How good it is", _figures(origin.figures)]
    if plots:
        parts.append(f"![Predicted against observed acceptance]({RELIABILITY})")
    parts += ["## How it was made", _making(origin), "## Files", _files(costs)]
    return "\n\n".join(parts) + "\n"


def _front_matter(origin: Origin) -> str:
    ids = [identity.id for identity in origin.models.values() if identity.id is not None]
    name = (origin.data or {}).get("name")
    data = [name] if isinstance(name, str) and "/" in name and is_hub_id(name) else None
    return ModelCardData(
        library_name=LIBRARY,
        pipeline_tag="text-generation",
        base_model=list(dict.fromkeys(ids)) or None,
        datasets=data,
        tags=["speculative-decoding", "calibration"],
    ).to_yaml()


def _title(origin: Origin) -> str:
    labels = [identity.label for identity in origin.models.values()]
    return escaped(", ".join(labels)) if labels else "models not recorded"


def _use(name: str) -> str:
    return "\n".join(
        [
            "```python",
            "import hf_specverify as sv",
            "",
            "sv.enable(target)",
            "target.generate(",
            "    **inputs,",
            "    assistant_model=draft,",
            "    companion_model=companion,  # if there is one",
            '    verify_length="auto",',
            f'    calibration="{name}",',
            ")",
            "```",
            "",
            "or, where the library is installed, without importing it:",
            "",
            "```python",
            f'target.generate(**inputs, custom_generate="{name}", trust_remote_code=True, assistant_model=draft)',
            "```",
        ]
    )


def _models(models: Mapping[str, ModelIdentity]) -> str:
    if not models:
        return "Not recorded."
    rows = [
        (role, one.id or "a local model", one.revision, one.architecture, one.quantization or "none", one.dtype,
         one.device, one.vocab_size, _short(one.vocabulary_sha256), _short(one.weights_sha256))
        for role, one in models.items()
    ]  # fmt: skip
    heads = ("", "model", "revision", "class", "quantisation", "dtype", "device", "rows of the head", "vocabulary",
             "weights")  # fmt: skip
    return markdown_table(heads, rows)


def _figures(figures: Figures) -> str:
    best = sorted(figures.information.items(), key=lambda entry: -entry[1])[:SETS_SHOWN]
    lines = [
        "On sequences that were not learnt from. Whether a token is accepted is worth "
        f"{figures.entropy:.3f} bits; of these the signals tell:",
        markdown_table(("signals", "bits"), [(names, f"{bits:.4f}") for names, bits in best]),
    ]
    if figures.companion_bits is not None:
        lines.append(f"The companion adds {figures.companion_bits:.4f} bits to the best of the draft's own signals.")
    overall = ("all", "", f"{figures.ece:.4f}", f"{figures.brier:.4f}", f"{figures.auc:.4f}")
    places = [
        (place, samples, f"{ece:.4f}", f"{brier:.4f}", f"{auc:.4f}")
        for place, (samples, ece, brier, auc) in figures.positions.items()
    ]
    heads = ("position in the block", "samples", "calibration error (ECE)", "Brier score", "AUC")
    lines += ["The table's predictions:", markdown_table(heads, [overall, *places])]
    return "\n\n".join(lines)


def _making(origin: Origin) -> str:
    rows: list[tuple[object, ...]] = [
        (name, _listed(settings))
        for name in ("sampling", "drafting", "data", "versions")
        if (settings := getattr(origin, name)) is not None
    ]
    if origin.seed is not None:
        rows.append(("seed", origin.seed))
    if origin.command is not None:
        rows.append(("command", origin.command))
    return markdown_table(("", ""), rows) if rows else "Not recorded."


def _files(costs: bool) -> str:
    lines = [
        "- `calibration.safetensors`: counts and the edges of bins; `calibration.json`: all else",
        "- `custom_generate/`: what `custom_generate=` calls; it calls the library",
    ]
    if costs:
        lines.append("- `cost_table.json`: what forwards cost on one machine; used where the machine is the same")
    return "\n".join(lines)


def _listed(settings: Settings) -> str:
    return ", ".join(f"{name}: {value}" for name, value in settings.items())


def _short(value: str | None) -> str | None:
    return None if value is None else value[:_HEX_SHOWN]


def markdown_table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table; what is not known is a dash."""
    heads = list(heads)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join("–" if value is None else escaped(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def escaped(value: object) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|!&" else letter for letter in str(value))
