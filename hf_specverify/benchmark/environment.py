"""Where a benchmark ran."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import torch

_PACKAGES = ("hf_specverify", "torch", "transformers", "bitsandbytes")


def describe_environment(device: torch.device) -> dict[str, str | int | None]:
    """Return versions, processor, threads and device; a package that is not installed is None."""
    versions: dict[str, str | int | None] = {name: _version(name) for name in _PACKAGES}
    return versions | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def cpu_model() -> str:
    """Return the processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
