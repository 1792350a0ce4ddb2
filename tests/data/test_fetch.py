"""Preparing a folder for a machine without network: copies, hub data sets, EvalPlus' release; all or nothing."""

import gzip
import io
import json
import socket
import urllib.error

import pytest

from loop_rl.data import load_dataset
from loop_rl.data.fetch import fetch
from loop_rl.errors import UserError
from tests.data.helpers import DATA, json_lines, published, settings, write

MBPP_PLUS = "MbppPlus-v0.2.0.jsonl.gz"


def refusal(*arguments, **keywords):
    with pytest.raises(UserError) as caught:
        fetch(*arguments, **keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("gsm8k", {"gsm8k_train.jsonl": 7473, "gsm8k_test.jsonl": 1319}),
        ("math500", {"math500_test.jsonl": 500}),
        ("mbpp_plus", {MBPP_PLUS: 378}),
        ("mbpp", {"mbpp.jsonl": 974}),
        ("svamp", {"svamp.json": 1000}),
        ("aqua", {"aqua_test.jsonl": 254}),
    ],
)
def test_a_copy_of_the_published_files(tmp_path, name, files):
    for file in files:
        published(file)
    target = tmp_path / "a" / "b"
    fetched = fetch(name, target, DATA)
    assert {one.path.name: one.rows for one in fetched} == files
    assert all(one.published for one in fetched)
    assert names(target) == sorted(files)
    for file in files:
        assert (target / file).read_bytes() == (DATA / file).read_bytes()
    assert fetch(name, target, DATA) == fetched  # what is there and good stays


def test_a_copy_that_is_not_whole(tmp_path):
    source, target = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    (source / "gsm8k_train.jsonl").write_bytes(published("gsm8k_train.jsonl").read_bytes())
    lines = published("gsm8k_test.jsonl").read_text("utf-8").split("\n")
    (source / "gsm8k_test.jsonl").write_text("\n".join(lines[:900]))
    assert "gsm8k_test.jsonl has 900 rows instead of 1319" in refusal("gsm8k", target, source)
    assert names(target) == []  # nor is the good half there
    lines[700] = '{"question": "?"}'
    (source / "gsm8k_test.jsonl").write_text("\n".join(lines))
    assert "row 701" in refusal("gsm8k", target, source) and names(target) == []
    lines[700] = json.dumps({"question": "One?", "answer": "#### 1"})
    (source / "gsm8k_test.jsonl").write_text("\n".join(lines))
    assert [one.published for one in fetch("gsm8k", target, source)] == [True, False]


def test_another_file_in_its_place_is_not_touched(tmp_path):
    published("math500_test.jsonl")
    mine = tmp_path / "math500_test.jsonl"
    mine.write_text("mine")
    assert "there already, with other content" in refusal("math500", tmp_path, DATA)
    assert mine.read_text() == "mine"
    plain = tmp_path / MBPP_PLUS.removesuffix(".gz")
    plain.write_text("mine")
    published(MBPP_PLUS)
    assert "would be read instead" in refusal("mbpp_plus", tmp_path, DATA)
    assert names(tmp_path) == [plain.name, mine.name]
    (tmp_path / "file").write_text("")
    assert "name a folder" in refusal("math500", tmp_path / "file", DATA)


def test_what_can_not_be_fetched(tmp_path):
    assert "made on the spot" in refusal("arithmetic", tmp_path)
    assert "made on the spot" in refusal("reasoning_gym:maze", tmp_path)
    assert "nearest is gsm8k" in refusal("gsm8", tmp_path)
    assert "copy your own files" in refusal("mine.jsonl", tmp_path)
    assert "--from is for" in refusal("owner/name", tmp_path, tmp_path)
    assert "has no gsm8k_train.jsonl and gsm8k_test.jsonl" in refusal("gsm8k", tmp_path, tmp_path)
    assert "svamp.json or svamp_train.jsonl and svamp_test.jsonl" in refusal("svamp", tmp_path, tmp_path)
    assert names(tmp_path) == []


@pytest.fixture
def hub(monkeypatch):
    datasets = pytest.importorskip("datasets")
    answers = {}
    monkeypatch.setattr(datasets, "load_dataset", lambda *asked: answers[asked])
    return answers


def test_from_the_hub_it_is_what_the_hub_gives(tmp_path, hub):
    rows = {split: json_lines(published(f"gsm8k_{split}.jsonl")) for split in ("train", "test")}
    hub[("openai/gsm8k", "main")] = rows
    fetched = fetch("gsm8k", tmp_path)
    assert {one.path.name: one.rows for one in fetched} == {"gsm8k_train.jsonl": 7473, "gsm8k_test.jsonl": 1319}
    assert load_dataset(settings("gsm8k", tmp_path)) == load_dataset(settings("gsm8k", DATA))
    hub[("openai/gsm8k", "main")] = {**rows, "test": rows["test"][:5]}
    assert "5 rows instead of 1319" in refusal("gsm8k", tmp_path / "other")


def test_svamp_of_the_hub_keeps_its_division(tmp_path, hub):
    rows = json.loads(published("svamp.json").read_text("utf-8"))
    hub[("ChilleD/SVAMP",)] = {"train": rows[:700], "test": rows[700:]}
    assert [one.path.name for one in fetch("svamp", tmp_path)] == ["svamp_train.jsonl", "svamp_test.jsonl"]
    here, there = (load_dataset(settings("svamp", folder)) for folder in (tmp_path, None))
    assert here == there
    assert {e.columns["id"] for e in here.test} == {row["ID"] for row in rows[700:]}


def test_a_data_set_of_ones_own_from_the_hub(tmp_path, hub):
    rows = [{"question": f"{n}?", "answer": n} for n in range(6)]
    hub[("owner/sums", "hard")] = {"train": rows[:4], "test": rows[4:], "other": []}
    fetched = fetch("owner/sums", tmp_path, config="hard")
    assert [(one.path.name, one.rows, one.published) for one in fetched] == [
        ("sums_train.jsonl", 4, None),
        ("sums_test.jsonl", 2, None),
    ]
    splits = load_dataset(settings("sums_train.jsonl", tmp_path))
    assert (len(splits.train), len(splits.test)) == (4, 2)
    hub[("owner/sums",)] = {"train": [{"question": "1?", "picture": object()}]}
    assert "owner/sums train, row 1: can't be written as JSON" in refusal("owner/sums", tmp_path / "other")
    hub[("owner/sums",)] = {"all": []}
    assert "no split train, test or validation" in refusal("owner/sums", tmp_path / "other")


@pytest.fixture
def release(monkeypatch):
    """What EvalPlus' release answers; a list of the addresses that were asked."""
    answer, asked = {}, []

    def open_(url, timeout):
        asked.append(url)
        if isinstance(answer["body"], Exception):
            raise answer["body"]
        return io.BytesIO(answer["body"])

    monkeypatch.setattr("urllib.request.urlopen", open_)
    return answer, asked


def test_mbpp_plus_from_its_release(tmp_path, release):
    answer, asked = release
    answer["body"] = published(MBPP_PLUS).read_bytes()
    (one,) = fetch("mbpp_plus", tmp_path)
    assert (one.path, one.rows, one.published) == (tmp_path / MBPP_PLUS, 378, True)
    assert asked == ["https://github.com/evalplus/mbppplus_release/releases/download/v0.2.0/MbppPlus.jsonl.gz"]
    splits = load_dataset(settings("mbpp_plus", tmp_path))
    assert (len(splits.train), len(splits.test)) == (278, 100)


def test_a_release_that_is_another_or_away(tmp_path, release):
    answer, _ = release
    rows = gzip.decompress(published(MBPP_PLUS).read_bytes()).decode().split("\n")
    rows[3] = rows[3].replace('"atol": 0', '"atol": 1', 1)
    answer["body"] = gzip.compress("\n".join(rows).encode())
    assert "not the published file" in refusal("mbpp_plus", tmp_path)
    answer["body"] = b"<html>"
    assert "can't be read" in refusal("mbpp_plus", tmp_path)
    answer["body"] = urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))
    message = refusal("mbpp_plus", tmp_path)
    assert "Name or service not known" in message and "--from" in message and MBPP_PLUS in message
    assert names(tmp_path) == []


def test_an_own_file_of_rows_is_read_as_it_is_written(tmp_path, hub):
    text = 'One\u2028two \u00e9 \U0001f600 \\ " \n end'
    hub[("owner/x",)] = {"train": [{"question": text, "answer": "1"}, {"question": "2?", "answer": "2"}]}
    fetch("owner/x", tmp_path)
    write(tmp_path / "x_test.jsonl", [{"question": "3?", "answer": "3"}])
    assert f"Question: {text}\nAnswer:" in {e.prompt for e in load_dataset(settings("x_train.jsonl", tmp_path)).train}
