"""The examples that a recipe's data section names, checked one by one, so that a run never meets what it can't score.

A subset is seeded, and a smaller one is the beginning of a larger one; an example's index is its row in the source,
whatever the subset.
"""

from loop_rl.data import arithmetic
from loop_rl.data.examples import (
    TEMPLATE,
    DataSettings,
    Fields,
    Placed,
    Row,
    Splits,
    check_template,
    make_examples,
    run_on,
)
from loop_rl.data.golds import MBPP_PLUS, check_golds, tasks_with_tests
from loop_rl.data.named import SETS
from loop_rl.data.names import default_reward, is_generator, is_hub_id, is_known, is_own_file, unknown_name
from loop_rl.data.own import own_file, own_hub
from loop_rl.data.sources import data_file, load_parts
from loop_rl.data.subsets import divide_pool, subset
from loop_rl.errors import UserError

MAX_MADE = 100_000  # of either half of a set that is made on the fly: about a minute
ARITHMETIC_SIZES = {"train": 20_000, "test": 1_000}  # when the recipe leaves the sizes open


def load_dataset(settings: DataSettings, *, reward: str | None = None) -> Splits:
    """The examples that a recipe's `data` section names, in a seeded order.

    Args:
        settings: the section; a size of None means all (arithmetic: 20,000 and 1,000; mbpp_plus: 278 and 100; a
            generator: 500 and 100).
        reward: the name of the reward that will score, which decides what a usable reference is; None: the set's own.

    Raises:
        UserError: an unknown name, a missing or malformed file, a bad row, a size past the data, no way to the hub.
    """
    name, seed = settings.name, settings.seed
    if not is_known(name):
        raise UserError(f"data.name: {unknown_name(name)}")
    _check_keys(settings)
    reward = reward or default_reward(name)
    train, test = _halves(settings)
    if name == "mbpp" and reward in MBPP_PLUS:  # which has tests for 378 of MBPP's tasks
        known = tasks_with_tests(data_file(settings))
        train, test = ([one for one in half if one.example.columns["task_id"] in known] for half in (train, test))
    held = {one.question for one in test}
    train = [one for one in train if one.question not in held]  # what both halves of a source have is held out
    check_golds([*train, *test], reward, data_file(settings))
    questions, held_out = [one.example for one in train], [one.example for one in test]
    if name == "arithmetic" or is_generator(name):  # made in the order of the seed, as many as asked for
        return Splits(questions, held_out)
    if name in SETS and (count := SETS[name].held_out) is not None:
        return Splits(*divide_pool(questions, settings.train_size, settings.eval_size, count, seed, name))
    return Splits(
        subset(questions, settings.train_size, seed, f"data.train_size: {name}"),
        subset(held_out, settings.eval_size, seed, f"data.eval_size: {name}"),
    )


def default_stop(settings: DataSettings) -> tuple[str, ...]:
    """The strings that end a completion unless the recipe says otherwise; see run_on."""
    template = settings.template
    if template is None and is_generator(settings.name):
        from loop_rl.data.reasoning_gym import TEMPLATE as template  # noqa: N811
    if template is None:
        template = SETS[settings.name].template if settings.name in SETS else TEMPLATE
    return run_on(template)


def _check_keys(settings: DataSettings) -> None:
    """UserError for keys that the data set has no use for: none is ignored."""
    if settings.template is not None:
        check_template(settings.template)
    if settings.columns and not (is_own_file(settings.name) or is_hub_id(settings.name)):
        raise UserError(f"data.columns: is for your own file or hub data set; those of {settings.name} are known")
    for key, size in (("train_size", settings.train_size), ("eval_size", settings.eval_size)):
        if size is not None and size > MAX_MADE and (settings.name == "arithmetic" or is_generator(settings.name)):
            raise UserError(f"data.{key}: {settings.name} is made on the fly, at most {MAX_MADE} questions; got {size}")
    if settings.config is not None and not is_hub_id(settings.name):
        raise UserError(f"data.config: is for a data set named by its id on the hub, not for {settings.name}")


def _halves(settings: DataSettings) -> tuple[list[Placed], list[Placed]]:
    if settings.name == "arithmetic":
        return _arithmetic(settings)
    if settings.name in SETS:
        one = SETS[settings.name]
        return one.divide(load_parts(one, settings))
    if is_generator(settings.name):
        from loop_rl.data.reasoning_gym import load_generator

        return load_generator(settings)
    return own_file(settings) if is_own_file(settings.name) else own_hub(settings)


def _arithmetic(settings: DataSettings) -> tuple[list[Placed], list[Placed]]:
    halves = []
    for split, size in (("train", settings.train_size), ("test", settings.eval_size)):
        made = arithmetic.problems(ARITHMETIC_SIZES[split] if size is None else size, settings.seed, split)
        rows = [
            (Row(f"arithmetic {split}, problem {at + 1}", at, row), Fields(row["question"], row["answer"]))
            for at, row in enumerate(made)
        ]
        halves.append(make_examples(rows, settings.template or TEMPLATE))
    return halves[0], halves[1]
