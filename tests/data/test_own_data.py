"""A user's own questions: names of columns, templates, gzip, and data sets on a made-up hub."""

import gzip
import json

import pytest

from loop_rl.data import load_dataset
from loop_rl.errors import UserError
from tests.data.helpers import settings, write


def problems(count):
    return [{"problem": f"{n} + 1?", "solution": n + 1, "level": n % 3, "tags": ["sum", str(n)]} for n in range(count)]


OURS = {"question": "problem", "answer": "solution"}


def load(name, reward=None, **keywords):
    return load_dataset(settings(str(name), **keywords), reward=reward)


def refusal(name, reward=None, **keywords):
    with pytest.raises(UserError) as caught:
        load(name, reward, **keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_columns_by_other_names(tmp_path):
    path = write(tmp_path / "mine.jsonl", problems(20))
    splits = load(path, columns={**OURS, "difficulty": "level"})
    assert (len(splits.train), len(splits.test)) == (18, 2)
    for example in splits.train + splits.test:
        n = example.index
        assert (example.prompt, example.answer) == (f"Question: {n} + 1?\nAnswer:", str(n + 1))
        assert example.columns == {"difficulty": n % 3, "tags": ["sum", str(n)]}


def test_a_file_of_test_questions_is_held_out_whole(tmp_path):
    splits = load(write(tmp_path / "mine_test.jsonl", problems(20)), columns=OURS)
    assert (len(splits.train), len(splits.test)) == (0, 20)


def test_rows_that_lack_a_column_get_none_there(tmp_path):
    rows = [{"question": "1?", "answer": 1, "hint": "h"}, {"question": "2?", "answer": 2}]
    splits = load(write(tmp_path / "mine.jsonl", rows))
    assert {e.index: e.columns for e in splits.train + splits.test} == {0: {"hint": "h"}, 1: {"hint": None}}


def test_an_answer_of_ours_beside_the_mapped_one_is_left_out(tmp_path):
    rows = [{"problem": f"{n}?", "solution": n, "answer": "not this"} for n in range(3)]
    splits = load(write(tmp_path / "mine.jsonl", rows), columns=OURS)
    assert {e.answer for e in splits.train + splits.test} == {"0", "1", "2"}
    assert all(e.columns == {} for e in splits.train + splits.test)


def test_unknown_columns_get_the_nearest(tmp_path):
    path = write(tmp_path / "mine.jsonl", problems(3))
    message = refusal(path, columns={**OURS, "question": "problme"})
    assert "row 1: the field 'problme' is missing" in message and "the nearest is 'problem'" in message
    assert "the field 'levl' is missing" in refusal(path, columns={**OURS, "difficulty": "levl"})


@pytest.mark.parametrize("name", ["prompts", "completions", "completion_ids", "log_extra", "trainer_state"])
def test_a_column_that_a_reward_function_could_not_get(tmp_path, name):
    path = write(tmp_path / "mine.jsonl", [{"question": f"{n}?", "answer": n, name: "x"} for n in range(3)])
    message = refusal(path)
    assert f"data.columns: {{my_{name}: {name}}}" in message and path in message
    splits = load(path, columns={f"my_{name}": name})
    assert splits.train[0].columns == {f"my_{name}": "x"}
    assert f"called with {name}" in refusal(path, columns={"mine": name, name: "answer"})


# ---- templates


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{question}", "4 + 1?"),
        ("Q: {question} ({level})", "Q: 4 + 1? (1)"),
        ("{question} \\boxed{} \\frac{1}{2}", "4 + 1? \\boxed{} \\frac{1}{2}"),
        ("{question} in \\boxed{{x}}", "4 + 1? in \\boxed{x}"),
        ("{tags}\n{question}", "sum\n4\n4 + 1?"),
        ("{question} {{question}} { question }", "4 + 1? {question} { question }"),
    ],
)
def test_templates(tmp_path, template, prompt):
    splits = load(write(tmp_path / "mine.jsonl", problems(5)), columns=OURS, template=template)
    assert next(e for e in splits.train + splits.test if e.index == 4).prompt == prompt


def test_a_question_with_braces_stays_as_it_is(tmp_path):
    rows = [{"question": f"{{answer}} {{{{x}}}} \\boxed{{}} {n}", "answer": n} for n in range(2)]
    splits = load(write(tmp_path / "mine.jsonl", rows))
    assert {e.prompt for e in splits.train + splits.test} == {f"Question: {row['question']}\nAnswer:" for row in rows}


def test_templates_that_can_not_be_filled(tmp_path):
    path = write(tmp_path / "mine.jsonl", problems(3))
    message = refusal(path, columns=OURS, template="{question} {levle}")
    assert "row 1 has nothing for {levle}; the nearest is {level}" in message
    assert "no {question}" in refusal(path, columns=OURS, template="Q: {{question}}")
    # The answer is no placeholder, under neither name: it would be shown to the model.
    for leak in ("answer", "solution"):
        assert f"nothing for {{{leak}}}" in refusal(path, columns=OURS, template=f"{{question}} {{{leak}}}")


def test_a_template_for_a_named_set_and_for_arithmetic():
    splits = load("arithmetic", train_size=3, eval_size=1, template="Q: {question} A:")
    plain = load("arithmetic", train_size=3, eval_size=1)
    for one, other in zip(splits.train, plain.train, strict=True):
        assert one.prompt == f"Q: {other.prompt.removeprefix('Question: ').removesuffix(chr(10) + 'Answer:')} A:"
        assert one.answer == other.answer


def test_keys_without_a_use_are_refused(tmp_path):
    path = write(tmp_path / "mine.jsonl", problems(3))
    assert "data.columns" in refusal("arithmetic", columns=OURS)
    assert "data.config" in refusal("gsm8k", config="main")
    assert "data.config" in refusal(path, columns=OURS, config="main")


# ---- files


def test_gzipped_files(tmp_path):
    lines = "".join(json.dumps({"question": f"{n}?", "answer": n}) + "\n" for n in range(30))
    plain, packed = tmp_path / "plain.jsonl", tmp_path / "packed.jsonl.gz"
    plain.write_text(lines)
    packed.write_bytes(gzip.compress(lines.encode()))
    assert load(packed) == load(plain)
    (tmp_path / "x_train.jsonl.gz").write_bytes(packed.read_bytes())
    write(tmp_path / "x_test.jsonl", [{"question": "held?", "answer": 1}])
    splits = load(tmp_path / "x_train.jsonl.gz")
    assert (len(splits.train), [e.index for e in splits.test]) == (30, [0])
    packed.write_bytes(b"no gzip")
    assert "can't be read" in refusal(packed)


# ---- golds, by the reward that scores


def test_references_for_each_reward(tmp_path):
    def path(answer, **columns):
        return write(tmp_path / "mine.jsonl", [{"question": f"{n}?", "answer": answer, **columns} for n in range(3)])

    assert "row 1: no number in the answer" in refusal(path("\\sqrt{2}"))
    assert "no number" in refusal(path("\\sqrt{2}"), "gsm8k_strict")
    assert load(path("\\sqrt{2}"), "math500").train
    assert load(path("anything"), "mine:reward").train
    message = refusal(path("\\frac{1}{"), "math500")
    assert "row 1: the answer '\\\\frac{1}{' is not usable" in message
    path("-")
    single = [f'{{"question": "{n}?", "answer": "\\frac{{3}}{{4}}"}}' for n in range(3)]  # one backslash: a form feed
    (tmp_path / "mine.jsonl").write_text("\n".join(single))
    message = refusal(tmp_path / "mine.jsonl", "math500")
    assert "row 1: the answer '\\x0crac{3}{4}' is not usable" in message and "one backslash in JSON" in message
    assert "\n" not in message and "\f" in message.replace("\\f", "\f")
    assert load(path("B"), "choice").train
    assert "one letter, A to Z, got 'b'" in refusal(path("b"), "choice")
    assert "one letter, A to B, got 'C'" in refusal(path("C", options=["1", "2"]), "choice")


def test_own_tasks_for_the_reward_of_mbpp_plus(tmp_path):
    task = {
        "task_id": "Mbpp/2",
        "prompt": "p",
        "entry_point": "f",
        "canonical_solution": "def f(a, b): return a + b",
        "base_input": [[[1], [2]]],
        "plus_input": [],
        "atol": 0,
        "assertion": "assert f((1,), (2,)) == (1, 2)",
    }
    rows = [{"question": f"Write f, way {n}.", "answer": "-", "task_id": "Mbpp/2"} for n in range(3)]
    path = write(tmp_path / "mine.jsonl", rows)
    assert "MBPP+'s tests are not here" in refusal(path, "mbpp_plus", folder=tmp_path)
    write(tmp_path / "MbppPlus-v0.2.0.jsonl", [task])
    assert load(path, "mbpp_plus_share", folder=tmp_path).train[0].columns == {"task_id": "Mbpp/2"}
    path = write(tmp_path / "other.jsonl", [*rows, {**rows[0], "task_id": "Mbpp/3"}])
    message = refusal(path, "mbpp_plus", folder=tmp_path)
    assert "row 4" in message and "'Mbpp/3'" in message
    path = write(tmp_path / "none.jsonl", [{"question": f"{n}?", "answer": "-"} for n in range(2)])
    assert "needs a column task_id" in refusal(path, "mbpp_plus", folder=tmp_path)


# ---- the hub, made up


@pytest.fixture
def hub(monkeypatch):
    datasets = pytest.importorskip("datasets")
    answers, asked = {}, []
    monkeypatch.setattr(datasets, "load_dataset", lambda *asking: asked.append(asking) or answers[asking[0]])
    return answers, asked


def test_a_hub_data_set_with_columns_and_configuration(hub):
    answers, asked = hub
    answers["owner/sums"] = {"train": problems(8), "validation": problems(9)[8:], "extra": []}
    splits = load("owner/sums", columns=OURS, config="hard", template="{question} ({level})")
    assert asked == [("owner/sums", "hard")]
    assert len(splits.train) == 8 and [e.prompt for e in splits.test] == ["8 + 1? (2)"]
    assert splits.train[0].columns.keys() == {"level", "tags"}
    answers["owner/sums"]["test"] = problems(10)[9:]
    assert [e.answer for e in load("owner/sums", columns=OURS).test] == ["10"]


def test_a_hub_data_set_with_one_split(hub):
    answers, _ = hub
    answers["owner/only_train"] = {"train": problems(20)}
    answers["owner/only_test"] = {"test": problems(20)}
    splits = load("owner/only_train", columns=OURS)
    assert (len(splits.train), len(splits.test)) == (18, 2)
    splits = load("owner/only_test", columns=OURS)
    assert (len(splits.train), len(splits.test)) == (0, 20)
    answers["owner/neither"] = {"all": problems(2)}
    assert "no split train or test; it has 'all'" in refusal("owner/neither")


def test_a_hub_data_set_that_is_none(hub, tmp_path, monkeypatch):
    answers, _ = hub
    answers["owner/sums"] = {"train": problems(3)}
    message = refusal("owner/sums", columns={"question": "problem", "answer": "soluton"})
    assert message.startswith("owner/sums train, row 1: the field 'soluton'") and "'solution'" in message
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "sums").mkdir(parents=True)
    assert "a file or folder here" in refusal("owner/sums")

    def fails(*_):
        raise FileNotFoundError("Dataset 'owner/smus' doesn't exist on the Hub")

    monkeypatch.setattr("datasets.load_dataset", fails)
    message = refusal("owner/smus")
    assert "owner/smus can't be loaded" in message and "doesn't exist on the Hub" in message and ".jsonl" in message


def test_a_question_of_both_halves_is_held_out(tmp_path):
    shared = {"question": "Both?", "answer": 1}
    path = write(tmp_path / "x_train.jsonl", [{"question": "Train?", "answer": 2}, shared, {**shared, "answer": 3}])
    write(tmp_path / "x_test.jsonl", [shared, {"question": "Test?", "answer": 4}])
    splits = load(path)
    assert [e.prompt for e in splits.train] == ["Question: Train?\nAnswer:"]
    assert {e.prompt for e in splits.test} == {"Question: Both?\nAnswer:", "Question: Test?\nAnswer:"}
