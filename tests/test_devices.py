"""Targets that are spread or offloaded, and drafts on another device."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from accelerate import cpu_offload, disk_offload
from test_scaling import environment

import hf_specverify as sv


def test_models_on_two_devices():
    """With a second device that is made up, in a process of its own."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here / "devices_elsewhere.py")]
    run = subprocess.run(command, cwd=here, env=environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:]
    assert " passed" in run.stdout


@pytest.mark.parametrize("offload", ["cpu", "disk"])
def test_weights_that_are_elsewhere_between_forwards(offload, tmp_path):
    target = tiny.make_model()
    draft, inputs = tiny.near_copy(target), tiny.prompts()
    plain = target.generate(**inputs, max_new_tokens=12, do_sample=False)
    options = {"assistant_model": draft, "max_new_tokens": 12, "do_sample": False}
    moved = copy.deepcopy(target)
    if offload == "cpu":
        cpu_offload(moved, execution_device="cpu")
    else:
        disk_offload(moved, str(tmp_path), execution_device="cpu")
    assert moved.get_input_embeddings().weight.device.type == "meta"
    for both in ({}, {"num_draft_paths": 2, "verification": "traversal"}):
        with sv.enabled(moved):
            assert moved.generate(**inputs, **options, **both).tolist() == plain.tolist()
