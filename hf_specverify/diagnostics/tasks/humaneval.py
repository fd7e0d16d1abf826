"""Programs, by the tests that come with their prompts. This runs generated code: see `sandbox`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .sandbox import Limits, run_program

_FENCE = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
# Where a base model goes on to something else.
_NEXT = re.compile(r"\n(?=(?:def|class|if|print|from|import|assert)\b|[#@]|```)")


@dataclass(frozen=True)
class CodeTests:
    """pass@1 as for HumanEval (Chen et al. 2107.03374): 1 if the program passes the prompt's tests. Runs the program.

    Attributes:
        prompt: the head of the function to complete.
        entry_point: the function's name.
        test: code that defines `check(candidate)`.
        allow_execution: must be True: generated code is run, in a process of its own with limits, but not in a jail.
        limits: of time and memory.

    Raises:
        ValueError: without `allow_execution`.
    """

    prompt: str
    entry_point: str
    test: str
    allow_execution: bool = False
    limits: Limits = field(default_factory=Limits)
    name: str = field(default="humaneval", init=False)

    def __post_init__(self) -> None:
        if self.allow_execution is not True:
            raise ValueError(
                f"allow_execution={self.allow_execution!r}: this task runs generated code with your rights; allowed is "
                "True, in a machine that may break"
            )

    def score(self, text: str) -> float:
        """1 or 0."""
        return float(run_program(self.program(text), self.limits) == "passed")

    def program(self, text: str) -> str:
        """Prompt, answer and tests as one program."""
        return f"{complete(self.prompt, text, self.entry_point)}\n\n{self.test}\n\ncheck({self.entry_point})\n"


def complete(prompt: str, text: str, entry_point: str) -> str:
    """The function with its body, from an answer that continues the prompt, or that is a chat's with a block of code.

    A whole function in the answer stands by itself, with what is imported and defined before the one that the prompt
    asks for. Anything else continues the prompt, up to where another thing begins at the margin.
    """
    begin = re.compile(rf"^def {re.escape(entry_point)}\b", re.MULTILINE)
    blocks = _FENCE.findall(text)
    whole = next((code for code in [*blocks, text] if begin.search(code)), None)
    if whole is not None:
        head = begin.search(prompt)
        return f"{prompt[: head.start()] if head else ''}{whole}"
    # A fence in the middle ends a continuation; one at the beginning holds it.
    body: str = blocks[0] if blocks and text.lstrip().startswith("```") else text
    return prompt + _NEXT.split(body, maxsplit=1)[0]
