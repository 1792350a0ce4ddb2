"""The command line: parses, calls, prints. What a verb does is elsewhere, and imported only when it is run."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from loop_rl.errors import UserError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
_WRITE_FAULTS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR}

_DESCRIPTION = """Reinforcement-learning post-training of looped language models.

  loop-rl recipes                                     what can be run as it is
  loop-rl train quickstart_reuse_neumann4             train the embedded model by RL, on a laptop
  loop-rl report runs/quickstart_reuse_neumann4       what it learned, and what an update cost
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, 2 for what the user can mend, 130 when interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = build_parser().parse_args(_repeat_set(argv))
    try:
        return arguments.run(arguments) or 0
    except UserError as error:
        return _fail(str(error))
    except KeyboardInterrupt as error:
        where = f"{error} " if str(error) else ""
        resumed = argv if "--resume" in argv or arguments.verb == "eval" else [*argv, "--resume"]
        goes_on = arguments.verb in ("train", "pretrain", "eval")
        how = f"; go on with: loop-rl {shlex.join(resumed)}" if goes_on else ""
        print(f"loop-rl: {where.strip() or 'interrupted'}{how}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno in _WRITE_FAULTS and error.filename:
            return _fail(f"cannot write {error.filename}: {error.strerror}")
        raise


def _fail(message: str) -> int:
    print(f"loop-rl: {' '.join(message.split())}", file=sys.stderr)
    return EXIT_USER_ERROR


# ---- verbs


def _quiet() -> None:
    """Silences transformers' bars for reading and writing weights, which tear the run's own; downloads keep theirs."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _train(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.recipes import load_for

    recipe = load_for("train", arguments.recipe, arguments.set)
    if arguments.dry_run:
        from loop_rl.training.memory import check_fits, estimate

        memory = estimate(recipe)
        print(recipe.dump_yaml() + memory.text())
        check_fits(memory)
        return
    from loop_rl.training.rl import train

    _quiet()
    print(f"run folder: {train(recipe, resume=arguments.resume)}")


def _pretrain(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.recipes import load_for

    recipe = load_for("pretrain", arguments.recipe, arguments.set)
    from loop_rl.training.pretrain import pretrain

    _quiet()
    print(f"run folder: {pretrain(recipe, resume=arguments.resume)}")


def _eval(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.evaluation import run_eval
    from loop_rl.report import lines, render_evaluations

    samples, temperature = arguments.samples, arguments.temperature
    if arguments.greedy:
        if samples is not None or temperature is not None:
            raise UserError("--greedy is --samples 1 --temperature 0; leave those two out")
        samples, temperature = 1, 0
    _quiet()
    given = {
        "eval.samples": samples,
        "eval.temperature": temperature,
        "data.eval_size": arguments.size,
        "data.folder": arguments.data_folder,
        "rollout.workers": arguments.workers,
    }
    overrides = arguments.set + [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    rows = run_eval(arguments.target, arguments.data or [], overrides, arguments.out)
    text = json.dumps(rows, indent=2) + "\n" if arguments.format == "json" else render_evaluations(lines(rows))
    print(text, end="")


def _report(arguments: argparse.Namespace) -> None:
    from loop_rl.report import comparison, evaluations, plot, render, render_evaluations

    if arguments.evals:
        for option in ("baseline", "plot"):
            if getattr(arguments, option) is not None:
                raise UserError(f"--{option} belongs to the comparison; leave --evals out")
        print(render_evaluations(evaluations(arguments.runs), arguments.format), end="")
        return
    print(render(comparison(arguments.runs, arguments.baseline), arguments.format), end="")
    if arguments.plot is not None:
        print(f"plot: {plot(arguments.runs, arguments.plot, arguments.baseline)}", file=sys.stderr)


def _bench_update(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.bench import table
    from loop_rl.learner.bench import bench_update

    result = bench_update(
        width=arguments.width,
        depth=arguments.depth,
        batch=arguments.batch,
        length=arguments.length,
        runs=arguments.runs,
    )
    print(json.dumps(result, indent=2) + "\n" if arguments.format == "json" else table(result["rows"]), end="")


def _recipes_list(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.recipes import description, shipped

    for file in shipped():
        print(f"{file.stem:32} {description(file)}")


def _recipes_show(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.recipes import load_any

    print(load_any(arguments.recipe, arguments.set).dump_yaml(), end="")


def _recipes_copy(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.recipes import copy

    print(copy(arguments.recipe, arguments.file))


def _recipes_validate(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.recipes import load_any

    for recipe in arguments.recipes:
        load_any(recipe, arguments.set)
        print(f"{recipe}: valid")


def _data_list(arguments: argparse.Namespace) -> None:
    if arguments.generators:
        from loop_rl.data.reasoning_gym import generators

        print("\n".join(generators()))
        return
    from loop_rl.commands.data import list_sets

    print(list_sets(arguments.folder), end="")


def _data_show(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.data import show

    print(show(arguments.name, arguments.n, arguments.split, arguments.folder, arguments.set), end="")


def _data_fetch(arguments: argparse.Namespace) -> None:
    from loop_rl.commands.data import run_fetch

    print(run_fetch(arguments.name, arguments.to, arguments.source, arguments.config), end="")


def _submit(arguments: argparse.Namespace) -> int:
    from loop_rl.commands.submit import submit

    return submit(arguments.recipe, arguments.address, arguments.set, arguments.resume)


# ---- arguments


def _repeat_set(argv: Sequence[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`, so that both are understood and a recipe may still follow."""
    spread: list[str] = []
    setting = False
    for word in argv:
        if setting and spread[-1] != "--set" and "=" in word and not word.startswith("-"):
            spread.append("--set")
        elif setting and spread[-1] != "--set":
            setting = False
        spread.append(word)
        setting = setting or word == "--set"
    return spread


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text}")
    return value


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0 (greedy) or a larger number, got {text}")
    return value


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, like every other error; the parsers of the verbs are of this class too."""

    def error(self, message: str) -> NoReturn:
        self.exit(_fail(f"{message} (see {self.prog} --help)"))


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs; `run` of what it returns is the function to call."""
    parser = _Parser("loop-rl", description=_DESCRIPTION, formatter_class=_Help)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    train = _verb(verbs, "train", _train, "Train a looped model by RL.", "train my.yaml --set optim.learning_rate=1e-5")
    _recipe(train)
    train.add_argument("--resume", action="store_true", help="go on from the run's newest complete checkpoint")
    train.add_argument("--dry-run", action="store_true", help="print the resolved recipe and the memory it needs; stop")

    pretrain = _verb(
        verbs, "pretrain", _pretrain, "Train a looped model on text.", "pretrain pretrain_embedded --set run.name=mine"
    )
    _recipe(pretrain)
    pretrain.add_argument("--resume", action="store_true", help="go on from the run's newest complete checkpoint")

    evaluation = _verb(
        verbs, "eval", _eval, "pass@1 and pass@k on held-out questions.", "eval runs/mine --data gsm8k --size 200"
    )
    evaluation.add_argument(
        "target", metavar="TARGET", help="a run folder, a model's folder or hub id, embedded, or a recipe"
    )
    evaluation.add_argument(
        "--data", nargs="+", metavar="NAME", help="data sets or .jsonl files; by default the recipe's own and eval.data"
    )
    evaluation.add_argument("--samples", type=_positive, help="completions a question; by default the recipe's (8)")
    evaluation.add_argument("--temperature", type=_temperature, help="0 is greedy; by default the recipe's (1)")
    evaluation.add_argument("--greedy", action="store_true", help="one sample, always the likeliest token")
    evaluation.add_argument("--size", type=_positive, metavar="N", help="questions of each data set; all by default")
    evaluation.add_argument("--data-folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")
    evaluation.add_argument("--workers", type=_positive, metavar="N", help="processes that sample; by default this one")
    evaluation.add_argument(
        "--out", metavar="FOLDER", help="where the results go; by default the run's folder, or evals/MODEL"
    )
    evaluation.add_argument("--format", choices=("table", "json"), default="table")
    _set(evaluation)

    report = _verb(
        verbs,
        "report",
        _report,
        "Compare runs: what they learned, what an update cost.",
        "report runs/* --plot all.png",
    )
    report.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or folders of run folders")
    report.add_argument(
        "--evals", action="store_true", help="every evaluation in the folders instead, also of models (evals/MODEL)"
    )
    report.add_argument("--baseline", metavar="NAME", help="estimator that speed-ups refer to (default: full_bptt)")
    report.add_argument("--format", choices=("table", "md", "csv", "json"), default="table")
    report.add_argument("--plot", metavar="FILE", help="also draw the comparison: .png, .svg or .pdf")

    bench = verbs.add_parser("bench", help="Measure speed on this machine.", formatter_class=_Help)
    what = bench.add_subparsers(dest="what", required=True, metavar="WHAT")
    update = _verb(
        what, "update", _bench_update, "Time the estimators in turn on one batch.", "bench update --depth 32 --runs 3"
    )
    for name, default, text in (
        ("width", 512, "width of the states"),
        ("depth", 6, "recurrences"),
        ("batch", 4, "rows of the batch"),
        ("length", 256, "tokens of a row"),
        ("runs", 5, "timed repetitions of each"),
    ):
        update.add_argument(f"--{name}", type=_positive, default=default, help=f"{text} (default: {default})")
    update.add_argument("--format", choices=("table", "json"), default="table")

    recipes = _verb(
        verbs, "recipes", _recipes_list, "List, show, copy, validate.", "recipes copy quickstart_reuse_neumann4 my.yaml"
    )
    action = recipes.add_subparsers(dest="action", metavar="ACTION")
    _verb(action, "list", _recipes_list, "The recipes that come with loop-rl (default).", "recipes list")
    show = _verb(
        action, "show", _recipes_show, "A recipe with every key written out.", "recipes show gsm8k_reuse_neumann4"
    )
    _recipe(show)
    copy = _verb(action, "copy", _recipes_copy, "A copy to edit.", "recipes copy quickstart_reuse_neumann4 my.yaml")
    copy.add_argument("recipe", metavar="RECIPE", help="name of a recipe")
    copy.add_argument("file", nargs="?", metavar="FILE", help="the new file (default: the recipe's own name, here)")
    validate = _verb(
        action, "validate", _recipes_validate, "Check recipes without running them.", "recipes validate my.yaml"
    )
    validate.add_argument("recipes", nargs="+", metavar="RECIPE", help="recipe files or names")
    _set(validate)

    data = _verb(verbs, "data", _data_list, "Data sets: list, show, fetch.", "data show gsm8k --n 1")
    data.set_defaults(generators=False, folder=None)
    action = data.add_subparsers(dest="action", metavar="ACTION")
    listing = _verb(action, "list", _data_list, "The known data sets (default).", "data list --folder ~/data")
    listing.add_argument("--generators", action="store_true", help="name reasoning-gym's generators instead")
    show = _verb(action, "show", _data_show, "Prompts and answers as a run meets them.", "data show math500 --n 1")
    show.add_argument("name", metavar="NAME", help="a known data set, a .jsonl file, reasoning_gym:NAME or owner/name")
    show.add_argument("--n", type=_positive, default=3, help="questions to show (default: 3)")
    show.add_argument("--split", choices=("train", "test"), default="test", help="which half (default: test)")
    _set(show)
    fetch = _verb(action, "fetch", _data_fetch, "Bring a data set into a folder.", "data fetch gsm8k --to ~/data")
    fetch.add_argument("name", metavar="NAME", help="a known data set, or owner/name on the hub")
    fetch.add_argument("--to", required=True, metavar="FOLDER", help="folder to put the files in")
    fetch.add_argument("--from", dest="source", metavar="FOLDER", help="folder that has them, instead of the network")
    fetch.add_argument("--config", metavar="NAME", help="configuration of a hub data set")
    for parser_of_one in (listing, show):
        parser_of_one.add_argument("--folder", metavar="FOLDER", help="local data sets (otherwise LOOP_RL_DATA)")

    submit = _verb(verbs, "submit", _submit, "Run on a Ray cluster.", "submit my.yaml --address http://head-node:8265")
    _recipe(submit)
    submit.add_argument("--address", metavar="URL", help="the cluster's dashboard (default: this machine's)")
    submit.add_argument("--resume", action="store_true", help="go on from the run's newest complete checkpoint")
    return parser


class _Help(argparse.RawDescriptionHelpFormatter):
    """Examples keep their lines."""


def _verb(parent, name: str, run, summary: str, example: str) -> argparse.ArgumentParser:
    text = f"example:\n  loop-rl {example}"
    parser = parent.add_parser(name, help=summary, description=summary, epilog=text, formatter_class=_Help)
    parser.set_defaults(run=run)
    return parser


def _recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a recipe file, or the name of a shipped one (loop-rl recipes)"
    )
    _set(parser)


def _set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of the recipe; may be repeated"
    )


if __name__ == "__main__":
    sys.exit(main())
