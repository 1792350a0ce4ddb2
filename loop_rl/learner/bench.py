"""What one update (scoring + backward) costs with each gradient estimator, and how close its gradient comes."""

import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loop_rl.errors import UserError
from loop_rl.fixed_point import Estimator, parse_estimator, residual
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.contexts import PaddedContext

BASELINE = "full_bptt"
METHODS = (BASELINE, "recompute_neumann4", "reuse_neumann4", "reuse_neumann3", "reuse_neumann3_tail")
HEAD_DIM = 64
#: standard deviation of the weights times sqrt(width), and of the embedding: see `bench_update`
GAIN = 0.6
EMBEDDING_STD = 1.0


@dataclass(frozen=True)
class Problem:
    """One batch and what a rollout would have saved for it; nothing here needs a gradient."""

    model: LoopedForCausalLM
    ids: Tensor  # int64 [batch, length]
    advantages: Tensor  # [batch]
    z0: Tensor  # [batch, length, width]
    saved: Tensor  # z^R, [batch, length, width]
    depth: int
    residual: float  # median over tokens of |F(z^R) - z^R| / |z^R|

    def context(self) -> PaddedContext:
        dtype = self.saved.dtype
        return PaddedContext(self.model.config, torch.ones_like(self.ids), dtype=dtype, depth=self.depth)


def make_problem(
    width: int, depth: int, batch: int, length: int, vocab_size: int, seed: int, device: str, dtype: torch.dtype
) -> Problem:
    """A randomly initialised model of layout 1 + 2 x depth + 1, random tokens, and their endpoint states."""
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
        ids = torch.randint(vocab_size, (batch, length)).to(device)
        advantages = torch.randn(batch).to(device=device, dtype=dtype)
    advantages -= advantages.mean()
    inner = model.model
    context = PaddedContext(config, torch.ones_like(ids), dtype=dtype, depth=depth)
    with torch.no_grad():
        e = inner.prelude_forward(ids, context)
        z0 = inner.draw_initial_state(context.position_ids)
        saved = inner.endpoint(e, z0, context)
        change = residual(inner.recur(saved, e, context).float(), saved.float()).median().item()
    return Problem(model, ids, advantages, z0, saved, depth, change)


def update(problem: Problem, estimator: Estimator) -> Tensor:
    """Scoring and backward of one update; gradients are left in the parameters, the loss is returned.

    The second half of every row is the completion. Loss: -(1/(N L)) sum_i A_i sum_t logp_it, which is Dr. GRPO's at
    the first update after sampling (every ratio is 1).
    """
    model, ids = problem.model, problem.ids
    inner, context = model.model, problem.context()
    e = inner.prelude_forward(ids, context)
    z = estimator.endpoint(
        lambda z: inner.recur(z, e, context), z0=problem.z0, depth=problem.depth, saved=problem.saved
    )
    half = ids.shape[1] // 2
    hidden = inner.coda_forward(z, context)[:, half - 1 : -1]
    logps = -torch.nn.functional.cross_entropy(
        model.lm_head(hidden).flatten(0, 1).float(), ids[:, half:].flatten(), reduction="none"
    )
    loss = -(logps.view(len(ids), -1) * problem.advantages[:, None]).mean()
    loss.backward()
    return loss.detach()


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
    """Bytes one update needs at its peak beyond parameters and inputs, its parameter gradients included."""
    problem.model.zero_grad(set_to_none=True)
    if problem.ids.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        update(problem, estimator)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    given = (problem.ids, problem.advantages, problem.z0, problem.saved)
    with LiveBytes([*problem.model.parameters(), *given]) as live:
        update(problem, estimator)
    return live.peak


def gradient(problem: Problem, estimator: Estimator) -> Tensor:
    """The whole gradient of one update as one vector, float32 [parameters]."""
    problem.model.zero_grad(set_to_none=True)
    update(problem, estimator)
    return torch.cat([p.grad.flatten().float() for p in problem.model.parameters()])


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

    Methods take turns, once each per run, after one untimed update each, so that a machine that is busy for a while
    slows them all. Memory is measured in an update of its own: on CUDA the allocator's peak, elsewhere `LiveBytes`.

    Args:
        methods: estimator names; full_bptt is added if missing, as what the others are compared with.
        progress: called with one line of text at a time.

    Returns:
        {"rows": [{"method", "seconds" (median), "ratio" (full_bptt's seconds over these), "peak_memory_mb" (MiB),
        "cosine", "relative_error" (of the whole gradient, against full_bptt's)}], "residual" (median at z^R),
        "parameters", and the sizes asked for}.

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
    say(f"{parameters / 1e6:.1f} M parameters, depth {depth}, {batch} x {length} tokens, "
        f"residual {problem.residual:.3f}")  # fmt: skip

    rows: dict[str, dict[str, Any]] = {}
    full = gradient(problem, estimators[BASELINE])
    for name, estimator in estimators.items():
        ours = gradient(problem, estimator)
        rows[name] = {
            "method": name,
            "cosine": torch.nn.functional.cosine_similarity(ours.double(), full.double(), dim=0).item(),
            "relative_error": ((ours - full).norm() / full.norm()).item(),
            "peak_memory_mb": peak_memory(problem, estimator) / 2**20,
        }
        say(f"{name}: {rows[name]['peak_memory_mb']:.0f} MiB at peak")
    del full, ours

    seconds: dict[str, list[float]] = {name: [] for name in names}
    for run in range(runs):
        for name, estimator in estimators.items():
            problem.model.zero_grad(set_to_none=True)
            _wait(device)
            start = time.perf_counter()
            update(problem, estimator)
            _wait(device)
            seconds[name].append(time.perf_counter() - start)
        say(f"run {run + 1} of {runs}: " + ", ".join(f"{name} {times[-1]:.2f} s" for name, times in seconds.items()))
    problem.model.zero_grad(set_to_none=True)
    for name, row in rows.items():
        row["seconds"] = statistics.median(seconds[name])
        row["ratio"] = statistics.median(seconds[BASELINE]) / row["seconds"]
    order = ("method", "seconds", "ratio", "peak_memory_mb", "cosine", "relative_error")
    return {
        "rows": [{key: row[key] for key in order} for row in rows.values()],
        "residual": problem.residual,
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


def _wait(device: str) -> None:
    """Let an asynchronous device finish, so that a clock read next is honest."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
