"""Tasks: what a right answer to a prompt is."""

from .gsm8k import MathAnswer
from .humaneval import CodeTests
from .reading import TASK_KINDS, read_tasks
from .summaries import Summary
from .task import Task

__all__ = ["TASK_KINDS", "CodeTests", "MathAnswer", "Summary", "Task", "read_tasks"]
