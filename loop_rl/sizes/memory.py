"""How much memory a run needs at its peak, from its recipe and the model's configuration, before anything is loaded.

An estimate: sizes that follow from shapes are exact, activations are counted by the tensors that autograd saves, and
allocator overhead is not counted. It is for the longest batch: every prompt as long as the longest, every completion
cut at the cap.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from loop_rl.errors import UserError
from loop_rl.fixed_point import Estimator, parse_estimator
from loop_rl.learner.head import chunk_tokens
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.adapters import adapted_layers, adapter_size
from loop_rl.models.attention.terminal import cache_floats
from loop_rl.models.prefill import PrefillStudent
from loop_rl.recipe.rl import Recipe
from loop_rl.rollout.batches import token_budget
from loop_rl.rollout.sampling import Sampling

if TYPE_CHECKING:
    from loop_rl.evaluation.task import Task

MIB = 2**20
PROCESS = 500 * MIB  # an interpreter with torch, transformers and Ray, measured on Linux
SCORER_BYTES = 200 * MIB  # one without torch
_DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}  # float64: tests' runs


@dataclasses.dataclass(frozen=True)
class Part:
    """One entry: bytes, and whether they lie on the device (the GPU, where there is one) or in the machine's memory."""

    name: str
    size: int
    on_device: bool = True


@dataclasses.dataclass(frozen=True)
class Memory:
    """The parts of a run, and what is available: bytes of this machine, and of the GPU (None: everything is here)."""

    parts: list[Part]
    machine_available: int
    device_available: int | None

    def needed(self, device: bool) -> int:
        """Bytes needed on the GPU, or in the machine's memory, which holds everything where there is no GPU."""
        if self.device_available is None:
            return 0 if device else sum(part.size for part in self.parts)
        return sum(part.size for part in self.parts if part.on_device == device)

    def text(self) -> str:
        """The estimate as lines of YAML comments, so that recipe and estimate together are still a recipe."""
        width = max(len(part.name) for part in self.parts)
        lines = ["# estimate of the memory at the peak"]
        lines += [f"#   {part.name:{width}} {readable(part.size):>10}" for part in self.parts]
        if self.device_available is not None:
            lines.append(f"#   GPU: {readable(self.needed(True))} of {readable(self.device_available)} free")
        lines.append(f"#   machine: {readable(self.needed(False))} of {readable(self.machine_available)} available")
        return "\n".join(lines)


def check_fits(memory: Memory) -> None:
    """Raises UserError with both numbers, and the largest part, when the run needs more than there is."""
    places = [("this machine", memory.needed(False), memory.machine_available, False)]
    if memory.device_available is not None:
        places.append(("the GPU", memory.needed(True), memory.device_available, True))
    for place, needed, available, device in places:
        if needed > available:
            here = [part for part in memory.parts if memory.device_available is None or part.on_device == device]
            largest = max(here, key=lambda part: part.size)
            raise UserError(
                f"the run needs about {readable(needed)} but {place} has {readable(available)} available; the largest "
                f"part is {largest.name}, {readable(largest.size)}: {_FIXES.get(largest.name, 'use a smaller model')}"
            )


_FIXES = {
    "activations": "lower learner.per_device_train_batch_size, or rollout.max_completion_length",
    "KV banks": "lower rollout.max_batch_tokens",
    "endpoint states": "lower rollout.prompts_per_step, rollout.num_generations or rollout.max_completion_length",
    "processes": "lower rollout.workers",
    "rollout workers' weights": "lower rollout.workers",
    "gradients": "use LoRA (lora.r=16), or a smaller model",
    "Adam": "use LoRA (lora.r=16), or a smaller model",
    "master weights": "use LoRA (lora.r=16), or a smaller model",
}


def estimate_memory(recipe: Recipe) -> tuple[Memory, list[Task]]:
    """Reads the model's configuration and the data (both checked as the run would) and adds up what the run needs.

    Returns the memory, and the run's tasks as it would use them, its own first.
    """
    from loop_rl.evaluation.context import fitting_tasks, forward_depth
    from loop_rl.evaluation.task import further_tasks, training_task
    from loop_rl.models.loading import load_config, load_tokenizer, resolve_model

    config = load_config(recipe.model.path)
    forward_depth(recipe, config)
    student = 0 if recipe.rollout.prefill == "teacher" else student_count(config, resolve_model(recipe.model.path))
    tasks = [training_task(recipe), *further_tasks(recipe)]
    tasks, longest = fitting_tasks(recipe, tasks, load_tokenizer(recipe.model.path, config), config)
    parts = run_parts(recipe, config, longest, student)
    return Memory(parts, available_memory(), _device_available()), tasks


def run_parts(recipe: Recipe, config: LoopedConfig, prompt_length: int, student: int = 0) -> list[Part]:
    """The parts of a run whose longest prompt has `prompt_length` tokens; those of a cluster's workers are not here.

    student: parameters of the student that reads prompts, 0 without one.
    """
    item = _DTYPE_BYTES[recipe.model.dtype]
    depth = recipe.model.depth or config.depth
    rollout, learner = recipe.rollout, recipe.learner
    estimator = parse_estimator(learner.estimator)
    parameters = parameter_count(config)
    trained = parameters if recipe.lora is None else adapter_count(config, recipe)
    frozen_copy = learner.beta > 0 and recipe.lora is None
    completions = rollout.prompts_per_step * rollout.num_generations
    length = prompt_length + rollout.max_completion_length
    workers = 0 if rollout.cluster else rollout.workers
    local = 0 if rollout.cluster else max(workers, 1)  # copies of the model that sample here
    # What is trained has float32 gradients, moments and, where the model is below it, master weights; PEFT makes
    # adapters float32 whatever the model is.
    full = _DTYPE_BYTES["float32"]
    weights = parameters * item + (trained * full if recipe.lora else 0)
    parts = [
        Part("weights", weights),
        Part("gradients", trained * full),
        Part("Adam", 2 * trained * full),
    ]
    if item < full and recipe.lora is None:
        parts.append(Part("master weights", trained * full))
    if frozen_copy:
        parts.append(Part("reference model", parameters * item))
    rows = min(learner.per_device_train_batch_size, completions)
    parts.append(Part("activations", activations(config, estimator, depth, rows, length, rollout, item)))
    if local:
        # Ray's object store keeps what a restarted worker is sent.
        parts.append(Part("rollout workers' weights", local * weights))
        if workers:
            parts.append(Part("weights on their way", weights, on_device=False))
        parts.append(Part("KV banks", bank_bytes(recipe, config, depth, completions, length, local)))
    if student:
        parts.append(Part("students", (1 + local) * student * item))
    if estimator.needs_states:
        # Once in the sampler's buffer, once in its records, once where the learner reads them.
        tokens = completions * rollout.max_completion_length + rollout.prompts_per_step * prompt_length
        copies = 3 if local else 1
        parts.append(Part("endpoint states", copies * tokens * config.hidden_size * item, on_device=False))
    scorers = 0 if rollout.cluster else recipe.reward.workers
    processes = (1 + workers) * PROCESS + scorers * SCORER_BYTES
    parts.append(Part("processes", processes, on_device=False))
    return parts


def parameter_count(config: LoopedConfig) -> int:
    """Parameters of the model, from its shapes alone."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in LoopedForCausalLM(config).parameters())


def check_trainable(config: LoopedConfig) -> None:
    """UserError when a model that is to be made can't be trained here: what its parameters take alone is too much."""
    size = 4 * _DTYPE_BYTES["float32"] * parameter_count(config)  # weights, gradients and both of Adam's moments
    device = _device_available()
    place, available = ("this machine", available_memory()) if device is None else ("the GPU", device)
    if size > available:
        raise UserError(
            f"training this model's weights takes {readable(size)} but {place} has {readable(available)} available; "
            "make a smaller one (model.hidden_size, intermediate_size, vocab_size or layers)"
        )


def adapter_count(config: LoopedConfig, recipe: Recipe) -> int:
    """Parameters of the recipe's LoRA adapters; UserError when they do not fit the model."""
    assert recipe.lora is not None
    with torch.device("meta"):
        model = LoopedForCausalLM(config)
    return sum(adapter_size(layer, recipe.lora.r) for layer in adapted_layers(model, recipe.lora).values())


def student_count(config: LoopedConfig, folder: str | Path) -> int:
    """Parameters of the student beside the model in `folder`; UserError when there is none, or it is another's."""
    with torch.device("meta"):
        model = LoopedForCausalLM(config)
    return sum(parameter.numel() for parameter in PrefillStudent.load(Path(folder), model).parameters())


def bank_bytes(recipe: Recipe, config: LoopedConfig, depth: int, completions: int, length: int, workers: int) -> int:
    """Bytes of keys and values of the completions that `workers` decode at once, each at least one."""
    rollout, dtype = recipe.rollout, getattr(torch, recipe.model.dtype)
    sampling = Sampling(1, 1, depth=depth, cache=rollout.cache, max_batch_tokens=rollout.max_batch_tokens)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    budget = max(length, token_budget(config, sampling, dtype, device))
    token = cache_floats(config, depth, rollout.cache == "terminal") * dtype.itemsize
    return min(completions * length, workers * budget) * token


def activations(
    config: LoopedConfig, estimator: Estimator, depth: int, rows: int, length: int, rollout: object, item: int
) -> int:
    """Bytes that autograd keeps for a micro-batch of `rows` completions of `length` tokens, prompt included.

    Only the recurrences with a graph count, the estimator's window.
    """
    kept = estimator.window(depth)
    width, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    # Saved by a block: both norms' inputs and outputs and the residual sums; queries before and after rotation, the
    # attention's output; keys and values, and their copies for every query head; gate, its SiLU, up, their product.
    block = 5 * width + 6 * queries + 3 * keys + 4 * config.intermediate_size
    injection = 6 * width
    blocks = config.prelude_layers + config.coda_layers + kept * config.core_layers
    per_token = (blocks * block + kept * injection + 4 * width) * item
    # Logits in their own type and in float32, log-probabilities, probabilities, and the gradient, of one chunk; and if
    # there are several, the head's gradient summed over them in float32.
    tokens = rows * rollout.max_completion_length  # type: ignore[attr-defined]
    chunk = chunk_tokens(config.vocab_size)
    logits = min(tokens, chunk) * config.vocab_size * (item + 4 * 4)
    summed = config.vocab_size * width * 4 if tokens > chunk else 0
    return rows * length * per_token + logits + summed


def available_memory() -> int:
    """Bytes that this process and its workers may still take: the machine's, or a container's limit if lower."""
    import psutil

    available = psutil.virtual_memory().available
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limit, used = Path(limit_file).read_text().strip(), int(Path(used_file).read_text())
        except (OSError, ValueError):
            continue
        if limit.isdigit():
            available = min(available, max(int(limit) - used, 0))
    return available


def readable(size: int) -> str:
    """A size in MiB or GiB."""
    return f"{size / MIB:.0f} MiB" if size < 10 * 1024 * MIB else f"{size / MIB / 1024:.1f} GiB"


def _device_available() -> int | None:
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
