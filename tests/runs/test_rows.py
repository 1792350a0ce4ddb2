"""Rows of JSON: damage of every kind, a file that is replaced whole, and a disk that takes a part."""

import json
import os
import resource

import pytest

from loop_rl.errors import UserError
from loop_rl.runs import rows as module
from loop_rl.runs.rows import append_row, drop_rows_after, read_rows

GOOD = [{"step": step, "loss": 0.5 * step} for step in range(4)]
DAMAGED = [
    b"\x00\xff garbage",
    b"[1, 2]",
    b"7",
    b'{"loss": 1.0}',
    b'{"step": "3", "loss": 1}',
    b'{"step": null}',
    b'{"step": true}',
    b'{"step": 1.5}',
    b'{"step": NaN}',
    b'{"step": -1}',
    b'{"step": 3, "data": ["x"]}',
    b'{"step": 1' + b"0" * 400 + b"}",
    b'{"step": 3, "question": "caf\xc3',
    b"[" * 100_000,
]


def write(file, *lines: bytes):
    file.write_bytes(b"".join(line + b"\n" for line in lines))


def encoded(rows):
    return [json.dumps(row).encode() for row in rows]


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_is_passed_over_with_a_note(tmp_path, line):
    file = tmp_path / "metrics.jsonl"
    good = encoded(GOOD)
    write(file, *good[:2], line, b"", *good[2:])
    rows, notes = read_rows(file)
    assert rows == GOOD
    assert len(notes) == 1 and notes[0].startswith("line 3: ")


def test_a_line_cut_inside_a_character_at_the_end(tmp_path):
    file = tmp_path / "evals.jsonl"
    file.write_bytes(encoded(GOOD)[0] + b"\n" + '{"step": 2, "data": "é'.encode()[:-1])
    assert read_rows(file)[0] == GOOD[:1]
    append_row(file, GOOD[1])
    rows, notes = read_rows(file)
    assert rows == GOOD[:2] and len(notes) == 1


def test_a_whole_step_written_as_a_float_is_a_step(tmp_path):
    write(tmp_path / "m.jsonl", b'{"step": 3.0}')
    assert read_rows(tmp_path / "m.jsonl") == ([{"step": 3}], [])


def test_no_file_has_no_rows_and_a_folder_is_one_line(tmp_path):
    assert read_rows(tmp_path / "none.jsonl") == ([], [])
    drop_rows_after(tmp_path / "none.jsonl", 1)
    assert not (tmp_path / "none.jsonl").exists()
    with pytest.raises(UserError, match="directory") as error:
        read_rows(tmp_path)
    assert "\n" not in str(error.value)


def test_rows_after_the_checkpoint_go_and_so_do_lines_that_are_none(tmp_path, caplog):
    file = tmp_path / "metrics.jsonl"
    write(file, encoded(GOOD)[0], b"torn", *encoded(GOOD)[1:])
    drop_rows_after(file, 2)
    assert read_rows(file) == (GOOD[:3], [])
    assert "line 2" in caplog.text
    drop_rows_after(file, 0)
    assert read_rows(file) == (GOOD[:1], [])
    drop_rows_after(file, None)
    assert file.read_bytes() == b""


def test_a_kill_while_rows_are_dropped_loses_none(tmp_path, monkeypatch):
    file = tmp_path / "metrics.jsonl"
    write(file, *encoded(GOOD))

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        drop_rows_after(file, 1)
    assert read_rows(file)[0] == GOOD
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_disk_that_takes_a_part_of_a_row_is_left_with_none_of_it(tmp_path):
    file = tmp_path / "metrics.jsonl"
    append_row(file, GOOD[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError) as error:
            append_row(file, {"step": 1, "text": "x" * 2000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.filename == str(file)
    append_row(file, GOOD[1])
    assert read_rows(file) == (GOOD[:2], [])


def test_numbers_that_are_not_finite_are_null(tmp_path):
    file = tmp_path / "metrics.jsonl"
    append_row(file, {"step": 1, "a": float("nan"), "b": [float("inf"), 1.0], "c": {"d": float("-inf")}})
    assert json.loads(file.read_text(), parse_constant=pytest.fail) == {
        "step": 1,
        "a": None,
        "b": [None, 1.0],
        "c": {"d": None},
    }
    assert module.read_rows(file)[1] == []


def test_a_pipe_in_a_files_place_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")
    for use in (read_rows, lambda file: append_row(file, {"step": 1})):
        with pytest.raises(UserError, match="neither a file nor a folder"):
            use(tmp_path / "rows.jsonl")
