"""What programs can read: Python's own files, and nothing of the folders that they lie in."""

import marshal
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rewards.sandbox.readable import SYSTEM, hidden_folders, interpreter, linked, needed, python_files, visible
from rewards.sandbox.wire import UNBOUNDED, decode
from rewards.sandbox.worker import Job, Limits
from tests.rewards.mbpp_squares import MODES, make_pool

BASE = Path(os.path.realpath(sys.base_prefix))
LISTING = """
import os
def f(base):
    found = []
    for folder, _, names in os.walk(base):
        for name in names:
            try: open(os.path.join(folder, name), 'rb').read(1)
            except OSError: continue
            found.append(os.path.join(folder, name))
    return found
"""


def test_no_folder_around_python_is_named():
    around = [path for path in visible() if BASE.is_relative_to(path)]
    assert set(around) <= set(SYSTEM)
    if not around:
        assert str(BASE / "bin") not in visible() and str(BASE / "lib") not in visible()


@pytest.mark.parametrize("mode", MODES)
def test_of_pythons_folder_a_program_sees_pythons_files_only(mode, tmp_path):
    if any(BASE.is_relative_to(folder) for folder in SYSTEM):
        pytest.skip("Python is the system's, which programs can read")
    others = [path for path in (BASE / "bin").iterdir() if path.is_file() and path.resolve() != interpreter()]
    outputs: list[bytes] = []

    def see(index: int, kind: bytes, payload: bytes) -> bool:
        outputs.append(payload)
        return True

    pool = make_pool(mode, tmp_path, workers=1)
    try:
        if "NOT kept from" in pool.line:
            pytest.skip(pool.line)
        job = Job(LISTING, "f", [marshal.dumps((str(folder),), 2) for folder in (BASE / "bin", BASE, BASE.parent)])
        assert pool.submit(lambda worker: worker.run(job, Limits(), see)).result().kind == "done"
    finally:
        pool.close()
    read = {path for payload in outputs for path in decode(payload, UNBOUNDED)[0]}
    files, hidden = python_files(), () if mode == "plain" else hidden_folders()
    assert others and not read & set(map(str, others))
    assert all(any(Path(path).is_relative_to(file) for file in files) for path in read)
    assert not [path for path in read if any(Path(path).is_relative_to(folder) for folder in hidden)]


def test_linked_libraries_are_those_that_ldd_finds(tmp_path):
    if shutil.which("ldd") is None:
        pytest.skip("ldd is not installed")
    done = subprocess.run(["ldd", str(interpreter())], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("the interpreter is linked to nothing")
    rows = [line.split() for line in done.stdout.splitlines()]
    found = {words[0]: words[2] for words in rows if len(words) > 2 and words[1] == "=>"}
    assert found and set(needed(interpreter())) <= set(found)
    for name, path in {**found, "libother.so.1": str(interpreter())}.items():
        (tmp_path / name).symlink_to(path)
    assert linked([interpreter()], tmp_path) == {str(tmp_path / name) for name in found}


def test_what_is_no_program_is_linked_to_nothing(tmp_path):
    (tmp_path / "text").write_text("x" * 100)
    (tmp_path / "cut").write_bytes(interpreter().read_bytes()[:200])
    assert [needed(tmp_path / name) for name in ("text", "cut", "missing")] == [[], [], []]
