"""What one update (scoring + backward) costs with each gradient estimator, and how close its gradient comes."""

import statistics
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loop_rl.errors import UserError
from loop_rl.fixed_point import Estimator, parse_estimator
from loop_rl.learner.batch import Sample, collate
from loop_rl.learner.metrics import Metrics
from loop_rl.learner.scoring import score
from loop_rl.learner.update import Learner, Objective
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.rollout.record import Completion, Rollout
from loop_rl.rollout.sampler import to_numpy

BASELINE = "full_bptt"
METHODS = (BASELINE, "recompute_neumann4", "reuse_neumann4", "reuse_neumann3", "reuse_neumann3_tail")
HEAD_DIM = 64
#: standard deviation of the weights times sqrt(width), and of the embedding: see `bench_update`
GAIN = 0.6
EMBEDDING_STD = 1.0


@dataclass(frozen=True)
class Problem:
    """A model, and a batch as a rollout hands it to the learner: the second half of every row is its completion."""

    model: LoopedForCausalLM
    samples: list[Sample]

    def learner(self, estimator: Estimator) -> Learner:
        """The learner of an RL run, one micro-batch to an update, with steps of size 0."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        length = len(self.samples[0].completion.token_ids)
        accelerator = Accelerator(cpu=self.model.device.type == "cpu")
        return Learner(self.model, estimator, Objective(length), optimizer, 0.0, len(self.samples), accelerator)


def make_problem(
    width: int, depth: int, batch: int, length: int, vocab_size: int, seed: int, device: str, dtype: torch.dtype
) -> Problem:
    """A randomly initialised model of layout 1 + 2 x depth + 1, and random tokens with the states and log-probabilities
    that sampling them would have saved."""
    heads = width // HEAD_DIM
    config = LoopedConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=width * 17 // 6 // 16 * 16,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        head_dim=HEAD_DIM,
        depth=depth,
        initializer_range=GAIN * width**-0.5,
        max_position_embeddings=length,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LoopedForCausalLM(config)
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
        model.to(device=device, dtype=dtype)
        ids = torch.randint(vocab_size, (batch, length))
        advantages = torch.randn(batch, dtype=torch.float64)
    advantages -= advantages.mean()
    return Problem(model.eval(), _samples(model, ids, advantages, depth))


@torch.no_grad()
def _samples(model: LoopedForCausalLM, ids: Tensor, advantages: Tensor, depth: int) -> list[Sample]:
    core, half = model.model, ids.shape[1] // 2
    unsaved = np.zeros((0, 0), np.float32)
    samples = []
    for row, (tokens, advantage) in enumerate(zip(ids.numpy(), advantages.tolist(), strict=True)):
        completion = Completion(tokens[half:], np.zeros(len(tokens) - half, np.float32), unsaved, depth, "length", row)
        samples.append(Sample(Rollout(tokens[:half], unsaved, [completion], row, 0), completion, advantage))
    batch = collate(samples, False).to(model.device)
    context = PaddedContext(model.config, batch.attention_mask, dtype=model.dtype, depth=depth)
    prelude = core.prelude_forward(batch.input_ids, context)
    states = core.endpoint(prelude, core.draw_initial_state(context.position_ids, batch.seeds), context).cpu()
    logps = score(model, batch, parse_estimator(BASELINE), 1.0).logps.float().cpu().numpy()
    return [
        replace(
            sample,
            rollout=replace(sample.rollout, prompt_states=to_numpy(z[:half])),
            completion=replace(sample.completion, logps=behaviour, states=to_numpy(z[half:])),
        )
        for sample, z, behaviour in zip(samples, states, logps, strict=True)
    ]


class LiveBytes(TorchDispatchMode):
    """Peak bytes of tensor storages alive at once, among those that operators return while this mode is active.

    Counts activations, gradients and saved tensors on any device; not buffers private to one operator, nor `known`
    storages (parameters and inputs).
    """

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.known = [x.untyped_storage() for x in known]
        self.sizes = {storage._cdata: 0 for storage in self.known}
        self.now = self.peak = 0

    def _forget(self, key: int) -> None:
        self.now -= self.sizes.pop(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if not isinstance(x, Tensor) or (storage := x.untyped_storage())._cdata in self.sizes:
                continue
            # torch keeps the Python object of a storage for as long as the storage itself
            weakref.finalize(storage, self._forget, storage._cdata)
            self.sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
        return out


def peak_memory(problem: Problem, estimator: Estimator) -> int:
    """Bytes one update needs at its peak beyond parameters, its micro-batch and its parameter gradients included."""
    learner = problem.learner(estimator)
    learner.optimizer.zero_grad()
    if problem.model.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        learner.update(problem.samples)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with LiveBytes([*problem.model.parameters()]) as live:
        learner.update(problem.samples)
    return live.peak


def gradient(problem: Problem, estimator: Estimator) -> tuple[Tensor, Metrics]:
    """The whole gradient of one update as one vector, float32 [parameters], and the update's metrics."""
    metrics = problem.learner(estimator).update(problem.samples)
    return torch.cat([p.grad.flatten().float() for p in problem.model.parameters()]), metrics


def bench_update(
    width: int = 512,
    depth: int = 6,
    batch: int = 4,
    length: int = 256,
    runs: int = 5,
    methods: Sequence[str] = METHODS,
    vocab_size: int = 512,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Time, memory and gradient of one update by each estimator, on one batch of random tokens.

    The model has layout 1 + 2 x depth + 1 and the proportions of the named sizes (heads of 64, FFN 17/6 of the width,
    a quarter as many key-value heads). Its weights have standard deviation 0.6 / sqrt(width) and its embedding 1, with
    which the core contracts and the residual at depth 6 is a few percent, as in a trained model: gradients can be
    compared. (They say how the estimators differ, not how close they come on a given trained model.)

    What is timed is the learner of an RL run on such a batch as it gets from a rollout: seconds are its metric
    `time/update`. Methods take turns, once each per run, after one untimed update each, so that a machine that is busy
    for a while slows them all. Memory is measured in an update of its own: on CUDA the allocator's peak, elsewhere
    `LiveBytes`.

    Args:
        methods: estimator names; full_bptt is added if missing, as what the others are compared with.
        progress: called with one line of text at a time.

    Returns:
        {"rows": [{"method", "seconds" (median), "ratio" (full_bptt's seconds over these), "peak_memory_mb" (MiB),
        "cosine", "relative_error" (of the whole gradient, against full_bptt's)}], "residual" (median at z^R),
        "learned_tokens" (of an update), "parameters", and the sizes asked for}.

    Raises:
        ValueError: a method is no estimator's name.
        UserError: the width is no multiple of 64; a single row.
    """
    if batch < 2:
        raise UserError("batch must be at least 2: one row's advantage over the batch's mean is 0, and so its gradient")
    if width % HEAD_DIM or width < HEAD_DIM:
        raise UserError(f"width {width} must be a multiple of {HEAD_DIM}, the size of a head")
    names = list(dict.fromkeys((BASELINE, *methods)))
    estimators = {name: parse_estimator(name) for name in names}
    say = progress or (lambda line: None)
    problem = make_problem(width, depth, batch, length, vocab_size, seed, device, dtype)
    parameters = sum(p.numel() for p in problem.model.parameters())
    full, metrics = gradient(problem, estimators[BASELINE])
    change, learned = metrics["residual/median"], int(metrics["completions/learned_tokens"])
    sizes = f"{parameters / 1e6:.1f} M parameters, depth {depth}, {batch} x {length} tokens"
    say(f"{sizes}, {learned} of them learned from, residual {change:.3f}")

    rows: dict[str, dict[str, Any]] = {}
    for name, estimator in estimators.items():
        ours, _ = gradient(problem, estimator)
        rows[name] = {
            "method": name,
            "cosine": torch.nn.functional.cosine_similarity(ours.double(), full.double(), dim=0).item(),
            "relative_error": ((ours - full).norm() / full.norm()).item(),
            "peak_memory_mb": peak_memory(problem, estimator) / 2**20,
        }
        say(f"{name}: {rows[name]['peak_memory_mb']:.0f} MiB at peak")
    del full, ours

    seconds: dict[str, list[float]] = {name: [] for name in names}
    learners = {name: problem.learner(estimator) for name, estimator in estimators.items()}
    for run in range(runs):
        for name, learner in learners.items():
            seconds[name].append(learner.update(problem.samples)["time/update"])
        say(f"run {run + 1} of {runs}: " + ", ".join(f"{name} {times[-1]:.2f} s" for name, times in seconds.items()))
    for name, row in rows.items():
        row["seconds"] = statistics.median(seconds[name])
        row["ratio"] = statistics.median(seconds[BASELINE]) / row["seconds"]
    order = ("method", "seconds", "ratio", "peak_memory_mb", "cosine", "relative_error")
    return {
        "rows": [{key: row[key] for key in order} for row in rows.values()],
        "residual": change,
        "learned_tokens": learned,
        "parameters": parameters,
        "width": width,
        "depth": depth,
        "batch": batch,
        "length": length,
        "runs": runs,
        "vocab_size": vocab_size,
        "device": device,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }
