"""What a run says with and without a terminal."""

import pytest

from loop_rl.runs import progress
from loop_rl.runs.progress import Progress, duration


@pytest.fixture
def clock(monkeypatch):
    """A list whose one number is the time."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_every_long_step_has_a_line(capsys, clock) -> None:
    with Progress(5, done=1) as shown:
        for step in range(2, 6):
            clock[0] += 60.0
            shown.step(step, f"loss {step}", "12 tokens/s")
    assert capsys.readouterr().out.splitlines() == [
        "step 2/5  loss 2  12 tokens/s  3 min 00 s left",
        "step 3/5  loss 3  12 tokens/s  2 min 00 s left",
        "step 4/5  loss 4  12 tokens/s  1 min 00 s left",
        "step 5/5  loss 5  12 tokens/s",
    ]


def test_short_steps_share_a_line_but_the_first_and_the_last_have_theirs(capsys, clock) -> None:
    with Progress(100, unit="update") as shown:
        for step in range(1, 101):
            clock[0] += 0.1
            shown.step(step, "")
    steps = [int(line.split()[1].split("/")[0]) for line in capsys.readouterr().out.splitlines()]
    assert steps[0] == 1 and steps[-1] == 100
    assert len(steps) == 3  # 10 s: one line in the middle
    assert 50 <= steps[1] <= 52


def test_counts_within_a_step(capsys, clock) -> None:
    with Progress(2) as shown, shown.counting("held-out questions, step 0", 96) as advance:
        for _ in range(3):
            advance(32)
            clock[0] += progress.LINE_SECONDS
    assert capsys.readouterr().out.splitlines() == [f"held-out questions, step 0: {n}/96" for n in (32, 64, 96)]


def test_nothing_is_said_unless_shown(capsys) -> None:
    with Progress(1, shown=False) as shown, shown.counting("x", 1) as advance:
        advance(1)
        shown.step(1, "loss 1")
        shown.say("done")
    assert capsys.readouterr().out == ""


def test_on_a_terminal_there_is_a_bar_and_no_lines(capsys, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with Progress(2) as shown:
        shown.step(1, "loss 1", "more")
        shown.say("[a line] of its own")
        shown.step(2, "loss 2", "more")
    out = capsys.readouterr().out
    assert "2/2" in out and "loss 2" in out and "[a line] of its own" in out
    assert "more" not in out and "step 2/2" not in out


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59.4, 59.6, 247, 3600, 11100)] == [
        "0 s", "59 s", "1 min 00 s", "4 min 07 s", "1 h 00 min", "3 h 05 min"
    ]  # fmt: skip
