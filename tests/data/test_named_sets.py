"""The public sets, against the published files read here by nothing but json, and against a hub that is made up."""

import gzip
import json
import re
from collections import Counter
from fractions import Fraction

import pytest

from loop_rl.data import NAMES, data_file, default_reward, load_dataset
from loop_rl.errors import UserError
from tests.data.helpers import DATA, json_lines, published, settings, write

NO_CHECK = "mine:reward"  # a reward of the user's own, which takes any reference


def load(name, reward=None, **keywords):
    return load_dataset(settings(name, keywords.pop("folder", DATA), **keywords), reward=reward)


def refusal(name, reward=None, **keywords):
    with pytest.raises(UserError) as caught:
        load_dataset(settings(name, **keywords), reward=reward)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def by_row(examples):
    return {example.index: example for example in examples}


def test_names_and_their_rewards():
    assert NAMES == ("arithmetic", "gsm8k", "math500", "mbpp_plus", "mbpp", "svamp", "aqua")
    assert {name: default_reward(name) for name in NAMES if default_reward(name) != "gsm8k"} == {
        "math500": "math500",
        "mbpp_plus": "mbpp_plus",
        "mbpp": "mbpp_plus",
        "aqua": "choice",
    }
    assert default_reward("reasoning_gym:maze") == "loop_rl.data.reasoning_gym:reasoning_gym_reward"
    assert default_reward("mine.jsonl") == default_reward("owner/name") == "gsm8k"


def test_gsm8k():
    raw = {split: json_lines(published(f"gsm8k_{split}.jsonl")) for split in ("train", "test")}
    splits = load("gsm8k")
    assert (len(splits.train), len(splits.test)) == (len(raw["train"]), len(raw["test"])) == (7473, 1319)
    for split in ("train", "test"):
        for index, example in by_row(getattr(splits, split)).items():
            assert example.prompt == f"Question: {raw[split][index]['question']}\nAnswer:"
            assert example.answer == raw[split][index]["answer"]
            assert example.columns == {}


def test_every_gsm8k_reference_is_the_number_behind_its_mark():
    from rewards.gsm8k import parse_gold

    rows = [row for split in ("train", "test") for row in json_lines(published(f"gsm8k_{split}.jsonl"))]
    assert len(rows) == 8792
    for row in rows:
        said = re.search(r"#### (-?[0-9.,]+)\s*$", row["answer"]).group(1)
        assert parse_gold(row["answer"]) == Fraction(said.replace(",", ""))


def test_math500():
    raw = json_lines(published("math500_test.jsonl"))
    splits = load("math500")
    assert splits.train == [] and len(splits.test) == len(raw) == 500
    for index, example in by_row(splits.test).items():
        row = raw[index]
        assert example.prompt == f"Question: {row['problem']}\nPut the final answer in \\boxed{{}}.\nAnswer:"
        assert example.answer == row["answer"]
        assert example.columns == {key: row[key] for key in ("level", "subject", "unique_id")}
    assert Counter(example.columns["level"] for example in splits.test) == {1: 43, 2: 90, 3: 105, 4: 128, 5: 134}


def mbpp_plus_rows():
    return [json.loads(line) for line in gzip.open(published("MbppPlus-v0.2.0.jsonl.gz"), "rt", encoding="utf-8")]


def test_mbpp_plus():
    raw = mbpp_plus_rows()
    splits = load("mbpp_plus", train_size=278, eval_size=100)
    found = by_row(splits.train) | by_row(splits.test)
    assert sorted(found) == list(range(378))
    for index, example in found.items():
        row = raw[index]
        assert example.columns == {"task_id": row["task_id"], "entry_point": row["entry_point"]}
        # The one assertion of the prompt shows the function's name, and the model is asked for a block of code.
        block = re.search(r"```python\n(.*?)\n```", example.prompt, re.S).group(1)
        assert block == row["prompt"].strip()
        assert re.search(rf"\b{row['entry_point']}\s*\(", block)
        assert example.answer == row["assertion"].strip()


def test_mbpp_plus_has_the_papers_split_and_others():
    published("MbppPlus-v0.2.0.jsonl.gz")
    whole = load("mbpp_plus")
    paper = load("mbpp_plus", train_size=272, eval_size=100)
    assert (len(whole.train), len(whole.test)) == (278, 100)
    assert (paper.train, paper.test) == (whole.train[:272], whole.test)
    everything = load("mbpp_plus", train_size=0, eval_size=378)
    assert everything.train == [] and everything.test[:100] == whole.test and len(by_row(everything.test)) == 378
    message = refusal("mbpp_plus", folder=DATA, eval_size=101)
    assert "one pool of 378" in message and "278 + 101" in message


def test_mbpp_by_the_authors_division():
    raw = json_lines(published("mbpp.jsonl"))
    splits = load("mbpp", NO_CHECK)
    assert (len(splits.train), len(splits.test)) == (374, 500)
    for examples, numbers in ((splits.train, range(601, 975)), (splits.test, range(11, 511))):
        assert {raw[example.index]["task_id"] for example in examples} == set(numbers)
        for example in examples:
            row = raw[example.index]
            shown = f'"""\n{row["text"]}\n{row["test_list"][0]}\n"""'
            assert f"```python\n{shown}\n```" in example.prompt
            assert example.columns["test_list"] == row["test_list"]
            assert example.columns["task_id"] == f"Mbpp/{row['task_id']}"
            assert example.columns["test_setup_code"] == row["test_setup_code"]
            assert example.answer == "\n".join(row["test_list"])


def test_mbpp_with_the_tests_of_mbpp_plus(tmp_path, monkeypatch):
    tested = {int(row["task_id"].removeprefix("Mbpp/")) for row in mbpp_plus_rows()}
    splits = load("mbpp")
    assert {e.columns["task_id"] for e in splits.train} == {f"Mbpp/{n}" for n in tested if n in range(601, 975)}
    assert {e.columns["task_id"] for e in splits.test} == {f"Mbpp/{n}" for n in tested if n in range(11, 511)}
    (tmp_path / "mbpp.jsonl").write_bytes(published("mbpp.jsonl").read_bytes())
    message = refusal("mbpp", folder=tmp_path)
    assert "MBPP+'s tests are not here" in message and "MBPP_OVERRIDE_PATH" in message
    monkeypatch.setenv("MBPP_OVERRIDE_PATH", str(DATA / "MbppPlus-v0.2.0.jsonl.gz"))
    assert load("mbpp", folder=tmp_path) == splits


def test_svamp():
    raw = json.loads(published("svamp.json").read_text("utf-8"))
    splits = load("svamp")
    assert (len(splits.train), len(splits.test)) == (700, 300)
    found = by_row(splits.train) | by_row(splits.test)
    assert sorted(found) == list(range(1000))
    for index, example in found.items():
        row = raw[index]
        assert float(example.answer) == row["Answer"] and "." not in example.answer
        assert example.columns == {"id": row["ID"], "type": row["Type"]}
        question = example.prompt.removeprefix("Question: ").removesuffix("\nAnswer:")
        assert re.fullmatch(rf"{re.escape(row['Body'])}\.? {re.escape(row['Question'])}", question)
    assert by_row(load("svamp", seed=5).test).keys() == by_row(splits.test).keys()
    worded = load("svamp", template="{question} =")
    assert by_row(worded.test).keys() == by_row(splits.test).keys()


def test_aqua():
    raw = json_lines(published("aqua_test.jsonl"))
    splits = load("aqua")
    assert splits.train == [] and len(splits.test) == len(raw) == 254
    for index, example in by_row(splits.test).items():
        row = raw[index]
        assert example.answer == row["correct"] and example.answer in "ABCDE"
        assert example.columns == {"options": row["options"]}
        lines = example.prompt.split("\n")
        assert example.prompt.startswith(f"Question: {row['question'].strip()}\nOptions:\n")
        assert lines[-7:-2] == row["options"] and lines[-2:] == ["Answer with the letter of one option.", "Answer:"]


def test_gzipped_files_and_the_variable(tmp_path, monkeypatch):
    for split in ("train", "test"):
        path = published(f"gsm8k_{split}.jsonl")
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    monkeypatch.setenv("LOOP_RL_DATA", str(tmp_path))
    assert load("gsm8k", folder=None, train_size=5, eval_size=5) == load("gsm8k", train_size=5, eval_size=5)


# ---- the file of MBPP+


def test_where_the_file_of_mbpp_plus_is_looked_for(tmp_path, monkeypatch):
    compressed = published("MbppPlus-v0.2.0.jsonl.gz")
    plain = tmp_path / "MbppPlus-v0.2.0.jsonl"
    plain.write_bytes(gzip.decompress(compressed.read_bytes()))
    assert data_file(settings("mbpp_plus")) is None
    assert data_file(settings("mbpp_plus", tmp_path)) == plain
    monkeypatch.setenv("LOOP_RL_DATA", str(tmp_path))
    assert data_file(settings("mbpp_plus")) == plain
    monkeypatch.setenv("MBPP_OVERRIDE_PATH", str(compressed))
    assert data_file(settings("mbpp_plus")) == compressed
    assert data_file(settings("mbpp_plus", tmp_path)) == plain
    found = load("mbpp_plus", folder=None, train_size=5, eval_size=5)
    assert found == load("mbpp_plus", folder=tmp_path, train_size=5, eval_size=5)
    # The tests that another set is scored with may lie elsewhere than its own rows.
    (tmp_path / "rows").mkdir()
    assert data_file(settings("gsm8k", tmp_path / "rows")) == compressed
    assert data_file(settings("mbpp_plus", tmp_path / "rows")) is None


@pytest.mark.parametrize("variable", [None, "LOOP_RL_DATA", "MBPP_OVERRIDE_PATH", "data.folder"])
def test_mbpp_plus_without_its_file(tmp_path, monkeypatch, variable):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was asked"))
    folder = tmp_path if variable == "data.folder" else None
    if variable and folder is None:
        monkeypatch.setenv(variable, str(tmp_path / "nowhere"))
    message = refusal("mbpp_plus", folder=folder)
    for words in ("MbppPlus-v0.2.0.jsonl", "data.folder", "LOOP_RL_DATA", "MBPP_OVERRIDE_PATH"):
        assert words in message
    assert (f"{variable}={tmp_path}" if variable else "none of these is set") in message


def test_no_network_where_the_files_are(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    published("MbppPlus-v0.2.0.jsonl.gz")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was asked"))
    for name in ("gsm8k", "mbpp_plus", "svamp", "aqua"):
        load(name)


def test_a_damaged_file_of_mbpp_plus(tmp_path):
    rows = mbpp_plus_rows()[:3]
    del rows[1]["base_input"]
    write(tmp_path / "MbppPlus-v0.2.0.jsonl", rows)
    message = refusal("mbpp_plus", folder=tmp_path, train_size=1, eval_size=1)
    assert "MbppPlus-v0.2.0.jsonl, row 2" in message
    (tmp_path / "MbppPlus-v0.2.0.jsonl").unlink()
    (tmp_path / "MbppPlus-v0.2.0.jsonl.gz").write_bytes(published("MbppPlus-v0.2.0.jsonl.gz").read_bytes()[:5000])
    assert "can't be read" in refusal("mbpp_plus", folder=tmp_path)


# ---- rows that are not what they should be


@pytest.mark.parametrize(
    ("name", "file", "row", "words"),
    [
        ("math500", "math500_test.jsonl", {"problem": "1?"}, "'level' is missing"),
        ("math500", "math500_test.jsonl", {"problem": "1?", "level": "2"}, "level must be an integer"),
        ("aqua", "aqua_test.jsonl", {"question": "1?", "options": "A)1", "correct": "A"}, "options must be a list"),
        ("aqua", "aqua_test.jsonl", {"question": "1?", "options": ["A)1", "B)2"], "correct": "C"}, "A to B"),
        ("mbpp", "mbpp.jsonl", {"task_id": "1", "text": "t", "test_list": ["a"]}, "task_id must be an integer"),
        ("mbpp", "mbpp.jsonl", {"task_id": 1, "text": "t", "test_list": []}, "test_list must be a list"),
        ("svamp", "svamp_train.jsonl", {"ID": "1", "Body": " ", "Question": "q"}, "Body must be a text"),
    ],
)
def test_a_bad_row_of_a_named_set(tmp_path, name, file, row, words):
    write(tmp_path / file, [row])
    if name == "svamp":
        write(tmp_path / "svamp_test.jsonl", [row])
    message = refusal(name, folder=tmp_path)
    assert f"{file}, row 1" in message and words in message


def test_a_file_that_should_be_a_list(tmp_path):
    (tmp_path / "svamp.json").write_text('{"ID": "1"}')
    assert "JSON list" in refusal("svamp", folder=tmp_path)
    (tmp_path / "svamp.json").write_text('[{"ID": ')
    assert "not JSON" in refusal("svamp", folder=tmp_path)
    (tmp_path / "svamp.json").write_text("[3]")
    assert "svamp.json, item 1" in refusal("svamp", folder=tmp_path)


# ---- the hub, made up


@pytest.fixture
def hub(monkeypatch):
    """What datasets.load_dataset answers, by id, and with what it was asked."""
    datasets = pytest.importorskip("datasets")
    answers, asked = {}, []

    def load(*arguments, **keywords):
        asked.append(arguments)
        assert not keywords  # above all no trust_remote_code
        return answers[arguments[0]]

    monkeypatch.setattr(datasets, "load_dataset", load)
    return answers, asked


def test_math500_from_the_hub(hub):
    answers, asked = hub
    rows = json_lines(published("math500_test.jsonl"))
    answers["HuggingFaceH4/MATH-500"] = {"test": rows}
    assert load("math500", folder=None) == load("math500")
    assert asked == [("HuggingFaceH4/MATH-500",)]


def test_mbpp_from_the_hub_is_what_the_file_is(hub):
    answers, asked = hub
    rows = json_lines(published("mbpp.jsonl"))
    splits = {"train": range(601, 975), "test": range(11, 511), "validation": range(511, 601), "prompt": range(1, 11)}
    answers["google-research-datasets/mbpp"] = {
        split: [row for row in rows if row["task_id"] in numbers] for split, numbers in splits.items()
    }
    assert load("mbpp", NO_CHECK, folder=None) == load("mbpp", NO_CHECK)
    assert asked == [("google-research-datasets/mbpp", "full")]


def test_svamp_and_aqua_from_the_hub_keep_its_division(hub):
    answers, asked = hub
    svamp = [
        {
            "ID": f"chal-{n}",
            "Body": f"Ann has {n} cups",
            "Question": "How many?",
            "Answer": f"{n}.0",
            "Type": "Addition",
        }
        for n in range(1, 11)
    ]
    answers["ChilleD/SVAMP"] = {"train": svamp[:7], "test": svamp[7:]}
    splits = load("svamp", folder=None)
    assert {e.columns["id"] for e in splits.test} == {"chal-8", "chal-9", "chal-10"}
    assert {e.answer for e in splits.test} == {"8", "9", "10"}
    aqua = [{"question": f"{n}?", "options": ["A)1", "B)2"], "rationale": "", "correct": "B"} for n in range(6)]
    answers["deepmind/aqua_rat"] = {"train": aqua[:4], "test": aqua[4:], "validation": aqua}
    splits = load("aqua", folder=None)
    assert (len(splits.train), len(splits.test)) == (4, 2)
    assert asked == [("ChilleD/SVAMP",), ("deepmind/aqua_rat", "raw")]


def test_a_hub_that_lacks_a_split(hub):
    hub[0]["openai/gsm8k"] = {"train": []}
    assert "no split 'test'" in refusal("gsm8k")
