"""Runs a program in a process of its own, with limits of time and memory.

The limits stop what is endless, greedy or forgetful. They do not stop malice: the program has the rights of the user,
files and network included. Run strangers' code in a machine that may break.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

OUTCOMES = ("passed", "failed", "timeout", "memory")

# Runs in the new process: limits itself before it runs the program, and says the word that it was given at the end.
_WRAPPER = """
import os, resource, sys
word, seconds, megabytes = sys.stdin.readline().strip(), int(sys.argv[2]), int(sys.argv[3])
said = os.dup(1)
null = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(null, stream)
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
for kind, amount in (("RLIMIT_AS", megabytes << 20), ("RLIMIT_FSIZE", 16 << 20), ("RLIMIT_CORE", 0)):
    resource.setrlimit(getattr(resource, kind), (amount, amount))
program = open(sys.argv[1], encoding="utf-8").read()
try:
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})
except MemoryError:
    word = "memory"
except BaseException:
    word = "failed"
os.write(said, word.encode())
os._exit(0)
"""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: of wall time, and, rounded up, of processor time.
        megabytes: of address space.

    Raises:
        ValueError: for values that are not positive.
    """

    seconds: float = 5.0
    megabytes: int = 2048

    def __post_init__(self) -> None:
        for name in ("seconds", "megabytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed are numbers above 0")


def run_program(program: str, limits: Limits | None = None) -> str:
    """Run a Python program in an empty folder, its output thrown away.

    Returns:
        "passed" if it came to its end; "timeout"; "memory" if it ran out of it; else "failed".

    Raises:
        OSError: on other systems than Linux, where the limits do not hold.
    """
    if sys.platform != "linux":
        raise OSError(f"system={sys.platform!r}: generated code is run within limits on Linux only")
    limits = limits or Limits()
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="program-") as folder:
        file = Path(folder) / "program.py"
        file.write_text(program, encoding="utf-8", errors="replace")
        said = _communicate([str(file), str(int(-(-limits.seconds // 1))), str(limits.megabytes)], word, folder, limits)
    if said is None:
        return "timeout"
    if said == word:
        return "passed"
    return "memory" if said == "memory" else "failed"


def _communicate(arguments: list[str], word: str, folder: str, limits: Limits) -> str | None:
    """What the wrapper said; None if the time was up. Nothing of the program's group of processes is left running."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _WRAPPER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={"PATH": os.environ.get("PATH", ""), "HOME": folder, "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
        text=True,
    )
    try:
        said, _ = process.communicate(word + "\n", timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)
    # The kernel ends a process whose processor time is used up.
    return None if process.returncode == -signal.SIGXCPU else said


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
