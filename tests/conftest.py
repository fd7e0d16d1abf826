"""Tiny random models, and the one small real model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct: from HF_SPECVERIFY_SMOLLM2, the cache, or fetched once."""
    folder = os.environ.get("HF_SPECVERIFY_SMOLLM2")
    if folder:
        return Path(folder)
    from hf_specverify.benchmark.demo_models import smollm2_folder

    return smollm2_folder(progress=False)
