"""Programs that attack: none passes, costs more than its limit, reaches the machine, or leaves anything behind."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rewards.code import expected as mbpp_expected
from rewards.sandbox import worker
from rewards.sandbox.worker import Ending, Limits
from tests.rewards.mbpp_hostile import ESCAPING, GREEDY, HOSTILE, LEAVING, LYING, RIGHT, SLEEPING, SPINNING
from tests.rewards.mbpp_squares import MODES, score, scoring

LIMITS = Limits(cpu=0.3, memory=128 << 20)  # most expensive of those that end by themselves: some 0.1 s of CPU
NEEDS_FILES_KEPT = [name for name in ESCAPING if any(word in name for word in ("outside", "reads", "links"))]


def sessions() -> set[int]:
    """The session of every process of this machine; one that has ended, and only waits to be reaped, is none."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            found.add(int(fields[3]))
    return found


class Batch:
    """All hostile programs, scored at once, and what there was to see of it from outside."""

    def __init__(self, mode: str, folder: Path):
        self.outside = folder / "outside"
        (self.outside / "cache").mkdir(parents=True)
        (self.outside / "precious").write_text("gold")
        (self.outside / "tasks.jsonl").write_text("the answers")
        self.before = self._state()
        started = []
        with pytest.MonkeyPatch.context() as patch, scoring(mode, folder, workers=4) as pool:
            patch.setattr(mbpp_expected, "_FLOOR", LIMITS)
            patch.setattr(Limits, "wall", property(lambda limits: 2 * limits.cpu + 2))  # what sleeps costs all of it
            start = pool._launcher.start

            def record():
                process = start()
                started.append(process.popen.pid)
                return process

            patch.setattr(pool._launcher, "start", record)
            self.line = pool.line
            self.results = dict(zip(HOSTILE, score([self._placed(code) for code, _ in HOSTILE.values()]), strict=True))
            self.scratch_left = [path.name for path in folder.glob("scratch-*")]
            spares = {one._spare.popen.pid for one in pool._workers if one._spare}
            self.left = (sessions() & set(started)) - spares
            self.after = self._state()
            self.answered_after = score(["def f(n): return n * n + 1"] * 8)
        self.left_after_close = sessions() & set(started)
        self.spares = len(spares)

    def _placed(self, code: str) -> str:
        return code.replace("OUTSIDE", str(self.outside)).replace("PARENT", str(os.getpid()))

    def _state(self) -> list[tuple[str, int, int]]:
        paths = [self.outside, *sorted(self.outside.rglob("*"))]
        return [(path.name, path.stat().st_size, path.stat().st_mode) for path in paths]


@pytest.fixture(scope="module", params=MODES)
def batch(request, tmp_path_factory):
    return Batch(request.param, tmp_path_factory.mktemp("hostile"))


def check(batch: Batch, name: str) -> None:
    reward, reason = batch.results[name]
    assert reward == 0.0, reason
    assert reason.startswith(HOSTILE[name][1]), reason


@pytest.mark.parametrize("name", SPINNING)
def test_what_never_ends_is_ended(batch, name):
    check(batch, name)


@pytest.mark.parametrize("name", SLEEPING)
def test_what_waits_is_ended(batch, name):
    check(batch, name)


@pytest.mark.parametrize("name", GREEDY)
def test_what_takes_too_much_is_stopped(batch, name):
    check(batch, name)


@pytest.mark.parametrize("name", LEAVING)
def test_leaving_early_is_no_answer(batch, name):
    check(batch, name)


@pytest.mark.parametrize("name", LYING)
def test_lies_are_wrong_answers(batch, name):
    check(batch, name)


@pytest.mark.parametrize("name", ESCAPING)
def test_the_outside_is_out_of_reach(batch, name):
    if name in NEEDS_FILES_KEPT and "NOT kept from" in batch.line:
        pytest.skip(f"neither bubblewrap nor Landlock here: {batch.line}")
    check(batch, name)


def test_the_outside_is_as_it_was(batch):
    if "NOT kept from" in batch.line:
        pytest.skip(f"neither bubblewrap nor Landlock here: {batch.line}")
    assert batch.after == batch.before


@pytest.mark.parametrize(("cpu_per_second", "limit"), [(1.0, LIMITS.cpu), (4.0, LIMITS.cpu / 4), (0.0, LIMITS.wall)])
def test_none_costs_more_than_its_limit_and_two_looks(monkeypatch, cpu_per_second, limit):
    """By a clock of the test's own, of a program that spins, one that spins in four threads, and one that sleeps."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def look(watch):
        watch._looked, watch._cpu = clock.now, cpu_per_second * clock.now
        return True

    def silent(seconds):
        clock.now += seconds

    monkeypatch.setattr(worker._Watch, "_look", look)
    process = SimpleNamespace(pid=0, scratch=None)
    watch = worker._Watch(process, SimpleNamespace(next=silent), LIMITS)
    assert watch.run(1, lambda *_: True) == Ending("time limit")
    # a look comes once more than a tick has passed since the last one, so after two; a third for what rounding does
    assert limit < clock.now <= limit + 3 * worker._TICK


def test_nothing_is_left(batch):
    assert batch.left == set()
    assert len(batch.scratch_left) <= batch.spares  # those that wait for the next program
    assert batch.left_after_close == set()


def test_the_next_program_is_scored_as_ever(batch):
    assert batch.answered_after == [(1.0, "correct")] * 8


@pytest.mark.parametrize("mode", MODES)
def test_creeping_memory_ends_at_the_limit(mode, tmp_path, monkeypatch):
    # time enough for a busy machine to get there
    monkeypatch.setattr(mbpp_expected, "_FLOOR", Limits(cpu=30.0, memory=128 << 20))
    with scoring(mode, tmp_path):
        assert score([GREEDY["creeping"][0]]) == [(0.0, "wrong: memory limit")]


@pytest.mark.parametrize("mode", MODES)
def test_right_programs_with_odd_habits_pass(mode, tmp_path):
    with scoring(mode, tmp_path):
        results = dict(zip(RIGHT, score([*RIGHT.values()]), strict=True))
    assert results == {name: (1.0, "correct") for name in RIGHT}
