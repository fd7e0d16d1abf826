"""Task scores with known answers, and generated programs that behave well, badly and worse."""

import json
import time
from pathlib import Path

import pytest

from hf_specverify.diagnostics.tasks import CodeTests, MathAnswer, Summary, read_tasks
from hf_specverify.diagnostics.tasks.sandbox import Limits, run_program
from hf_specverify.diagnostics.tasks.summaries import longest_common, rouge_l


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("9 * 2 = <<9*2=18>>18 dollars.\n#### 18", 1),
        ("She makes $18.00 a day.", 1),
        ("18", 1),
        ("The answer is 18. Check: 9 times 2.", 1),
        ("so \\boxed{18}, with 9 eggs", 1),
        ("#### 17\nThat is not 18", 0),
        ("First 18, then 19", 0),
        ("-18", 0),
        ("1,800", 0),
        ("eighteen", 0),
        ("", 0),
    ],
)
def test_the_final_number_counts(text, score):
    assert MathAnswer("… = 18\n#### 18").score(text) == score


def test_numbers_are_compared_by_value():
    assert MathAnswer("#### 1,234.5").score("about 1234.50.") == 1
    with pytest.raises(ValueError, match="holds no number"):
        MathAnswer("#### none")


def test_rouge_l():
    assert rouge_l("the cat lay on the mat", "The cat sat on the mat.") == pytest.approx(10 / 12)
    assert rouge_l("police killed the gunman", "police kill the gunman") == pytest.approx(0.75)
    assert rouge_l("the gunman police killed", "police killed the gunman") == pytest.approx(0.5)
    assert rouge_l("the cat", "the cat sat on the mat") == pytest.approx(4 / 8)
    assert Summary("a b").score("a b") == 1
    assert Summary("a b").score("c") == Summary("a b").score("") == 0
    assert longest_common("ABCBDAB", "BDCABA") == 4
    with pytest.raises(ValueError, match="holds no word"):
        Summary(" … ")


SMALL = Limits(seconds=5, megabytes=512)


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("assert 1 + 1 == 2", "passed"),
        ("print('much ' * 100000)", "passed"),
        ("assert 1 + 1 == 3", "failed"),
        ("def broken(:", "failed"),
        ("raise SystemExit(0)", "failed"),
        ("import os; os._exit(0)", "failed"),
        ("input()", "failed"),
        ("x = bytearray(1 << 30)", "memory"),
        ("x = []\nwhile True: x.append('y' * 100000)", "memory"),
        ("open('large', 'w').write('y' * (32 << 20))", "failed"),
    ],
)
def test_programs(program, outcome):
    assert run_program(program, SMALL) == outcome


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time\ntime.sleep(600)",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ],
)
def test_endless_programs_are_ended(program):
    assert run_program(program, Limits(seconds=1)) == "timeout"


def test_nothing_is_left_running(tmp_path):
    file = tmp_path / "pid"
    program = f"import subprocess\np = subprocess.Popen(['sleep', '600'])\nopen({str(file)!r}, 'w').write(str(p.pid))"
    assert run_program(program, SMALL) == "passed"
    state = Path("/proc") / file.read_text() / "stat"
    for _ in range(200):
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the program's own process is still there")


def test_programs_run_in_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", "1")
    assert run_program("import os\nassert 'SECRET' not in os.environ\nopen('here', 'w').close()", SMALL) == "passed"
    assert not list(tmp_path.iterdir())


def test_limits_and_systems_are_checked(monkeypatch):
    with pytest.raises(ValueError, match="seconds=0"):
        Limits(seconds=0)
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(OSError, match="Linux only"):
        run_program("")


PROMPT = '''import math


def helper():
    return 1


def add(a, b):
    """Add.

    >>> add(1, 2)
    3
    """
'''
CODE = CodeTests(PROMPT, "add", "def check(f):\n    assert f(1, 2) == 3\n", allow_execution=True)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("    return a + b\n", 1),
        ("    return a - b\n", 0),
        ("    return a + b * helper() + math.floor(0.5)\n\n\nprint(undefined)\n", 1),
        ("    return a + b\n\n\ndef broken(:\n", 1),
        ("    return a + b\n```\nThat adds.", 1),
        ("```python\n    return a + b\n```\n", 1),
        ("Here it is:\n```python\ndef add(a, b):\n    return a + b * helper()\n```\nIt adds 1, 2.", 1),
        ("Use\n```\npip install add\n```\nand\n```python\ndef add(a, b):\n    return a + b\n```", 1),
        ("def add(a, b):\n    return a + b", 1),
        ("I can't.", 0),
    ],
)
def test_answers_become_programs(text, score):
    assert CODE.score(text) == score


def test_generated_code_is_run_by_choice_only():
    with pytest.raises(ValueError, match="allow_execution=False"):
        CodeTests(PROMPT, "add", "def check(f): pass")


def write(path, *lines):
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_tasks_are_read_beside_their_prompts(tmp_path):
    file = write(tmp_path / "a.jsonl", *({"question": "?", "answer": f"#### {n}"} for n in range(4)))
    assert [task.reference for task in read_tasks(file, "gsm8k", [1, 3])] == ["#### 1", "#### 3"]
    file = write(tmp_path / "b.jsonl", {"prompt": "?", "highlights": "short"})
    assert read_tasks(file, "summary", [0]) == [Summary("short")]
    file = write(tmp_path / "c.jsonl", {"prompt": PROMPT, "entry_point": "add", "test": CODE.test})
    assert read_tasks(file, "humaneval", [0], allow_execution=True) == [CODE]
    with pytest.raises(ValueError, match="allow_execution"):
        read_tasks(file, "humaneval", [0])
    with pytest.raises(ValueError, match="line 1: no text in answer"):
        read_tasks(file, "gsm8k", [0])
    with pytest.raises(ValueError, match="kind='poems'"):
        read_tasks(file, "poems", [0])
    with pytest.raises(ValueError, match="holds no answers"):
        read_tasks(tmp_path / "d.txt", "gsm8k", [0])
