"""A user's own questions: a .jsonl file or a data set on the hub, with columns that the recipe may map to ours."""

from pathlib import Path

from loop_rl.data.examples import (
    RESERVED,
    TEMPLATE,
    DataSettings,
    Fields,
    Placed,
    Row,
    answer_of,
    column_of,
    make_examples,
    nearest,
    text_of,
)
from loop_rl.data.named.description import Halves
from loop_rl.data.reading import read_data_file
from loop_rl.data.sources import hub_splits, local_folder, split_rows
from loop_rl.data.subsets import hold_out
from loop_rl.errors import UserError

TEST_SHARE = 10  # one question in ten is held out of a set that isn't divided


def own_file(settings: DataSettings) -> Halves:
    """A user's file: `x_test.jsonl` is held out, with or without `x_train.jsonl`; of any other file a tenth is.

    The tenth is chosen by a hash of the question, so neither the seed nor the order of the rows moves a question
    to the other half, and rows that repeat a question stay together.
    """
    path = _find(settings)
    examples = own_examples(read_data_file(path), settings)
    plain = path.name.removesuffix(".gz")
    if plain.endswith("_train.jsonl"):
        name = f"{plain.removesuffix('train.jsonl')}test.jsonl"
        for beside in (path.with_name(name), path.with_name(f"{name}.gz")):
            if beside.is_file():
                return examples, own_examples(read_data_file(beside), settings)
    if plain.endswith("_test.jsonl"):
        return [], examples
    return hold_out_a_tenth(examples, str(path))


def own_hub(settings: DataSettings) -> Halves:
    """A data set on the hub: its splits train and test (or validation); a tenth is held out where it has only train.

    Raises:
        UserError: neither the hub nor its cache has it, none of those splits, or a row that can't be used.
    """
    if Path(settings.name).expanduser().exists():
        raise UserError(
            f"data.name: {settings.name} is a file or folder here, not a data set on the hub; name a .jsonl file"
        )
    loaded = hub_splits(settings.name, settings.config, "give a name with an owner that exists, or a .jsonl file")
    train = "train" if "train" in loaded else None
    test = next((split for split in ("test", "validation") if split in loaded), None)
    if train is None and test is None:
        raise UserError(f"data.name: {settings.name} has no split train or test; it has {', '.join(map(repr, loaded))}")
    halves = [
        own_examples(split_rows(settings.name, loaded, (split,)), settings) if split else [] for split in (train, test)
    ]
    return hold_out_a_tenth(halves[0], f"{settings.name} train") if test is None else (halves[0], halves[1])


def hold_out_a_tenth(examples: list[Placed], source: str) -> Halves:
    """A tenth of the questions, at least one, held out; UserError where there is only one."""
    count = len({one.question for one in examples})
    if count < 2:
        raise UserError(f"{source}: one question only; at least two are needed, to hold one out")
    return hold_out(examples, max(1, count // TEST_SHARE))


def own_examples(rows: list[Row], settings: DataSettings) -> list[Placed]:
    """Examples of a user's rows; what isn't question or answer is a column for the reward.

    `settings.columns` maps our names to the rows' own. A column whose name a reward function is called with anyway is
    refused; the mapping can give it another.
    """
    ours = dict(settings.columns)
    question, answer = ours.pop("question", "question"), ours.pop("answer", "answer")
    used = {*ours.values(), question, answer, "question", "answer"}
    names = dict.fromkeys(name for row in rows for name in row.values if name not in used)
    for name in (*ours, *names):
        if name in RESERVED:
            raise UserError(
                f"{rows[0].place.rpartition(',')[0]}: reward functions are called with {name} of another kind, so no "
                f"column can have that name; give it another with data.columns: {{my_{name}: {ours.get(name, name)}}}"
            )
    fields = []
    for row in rows:
        columns = {name: row.values.get(name) for name in names}
        columns |= {name: column_of(row, theirs) for name, theirs in ours.items()}
        fields.append((row, Fields(text_of(row, question, "question"), answer_of(row, answer, "answer"), columns)))
    return make_examples(fields, settings.template or TEMPLATE)


def _find(settings: DataSettings) -> Path:
    path = Path(settings.name).expanduser()
    folder = local_folder(settings.folder)
    if not path.is_file() and folder and (folder / settings.name).is_file():
        path = folder / settings.name
    if not path.is_file():
        there = [str(other) for other in sorted(path.parent.glob("*.jsonl*")) if other.is_file()]
        fix = (
            f"did you mean {nearest(str(path), there)}?"
            if there
            else "give the path of a .jsonl file with question and answer"
        )
        raise UserError(f"data.name: no file {settings.name}; {fix}")
    return path
