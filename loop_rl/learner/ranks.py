"""The ranks of a run: processes that learn together. The main one samples, decides and writes; the others follow it.

Beside the collectives of an update, which all ranks enter together, they talk through torch's key-value store: a rank
that waits for the main one asks for a key now and then, so that no time limit of a collective runs meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from loop_rl.errors import UserError
from loop_rl.interrupts import SIGNALS, Interrupted, to_handle

T = TypeVar("T")

# Keys of the store: who ends the run for all and with which exit code, who has left since, and a wish to stop.
_ENDED, _LEFT, _STOP = "ended", "left", "stop"
_WATCH_SECONDS = 0.5
_LEAVE_SECONDS = 5.0
_STUCK_SECONDS = 20.0  # for a rank to leave that may wait in a collective for one that never comes
_LOST = re.compile(r"connection (was )?(closed|reset|refused)|broken pipe|recvvalue failed|failed to recv", re.I)


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks that a launcher such as torchrun has started with this process; just this one without a launcher.

    An exception of one rank ends all of them, and one rank reports it. Then every rank raises SystemExit: with code 2
    for a UserError, 130 for KeyboardInterrupt, 1 for others. A lone process raises what was raised.
    """
    ranks = Ranks()
    try:
        ranks.join()
        yield ranks
    except BaseException as error:
        if ranks.count == 1:
            raise
        ranks.end(error)
    ranks.leave()


class Ranks:
    """See `joined`. rank: of this process, 0 the main one. count: of all; here: of those on this machine. group: for
    what they send each other from CPU memory; None for a lone rank."""

    def __init__(self) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0")) if self.count > 1 else 0
        self.here = int(os.environ.get("LOCAL_WORLD_SIZE", self.count)) if self.count > 1 else 1
        self.main = self.rank == 0
        self._said = 0
        self._ending, self._ended_by = threading.Event(), ""
        self._store: Any = None
        self.group: Any = None

    def join(self) -> None:
        """Meet the other ranks."""
        if self.count == 1:
            return
        missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise UserError(
                f"WORLD_SIZE is {self.count} but {', '.join(missing)} not set: start the ranks with torchrun, or unset "
                "WORLD_SIZE"
            )
        if not self.main:  # what they would say, the main rank says
            logging.disable(logging.WARNING)
            warnings.simplefilter("ignore")
        import torch  # late, so that a recipe is refused soon where there is one process
        import torch.distributed as dist
        from torch.distributed.rendezvous import rendezvous

        store, _, _ = next(iter(rendezvous("env://")))
        # A launcher that starts failed ranks again may keep its store.
        self._store = dist.PrefixStore(f"loop_rl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._leave_now)
        threading.Thread(target=self._watch, daemon=True).start()
        gpus = torch.cuda.device_count()
        if gpus and self.here > gpus:
            raise UserError(f"{self.here} ranks on a machine of {gpus} GPUs; start it with --nproc-per-node {gpus}")
        backend = "nccl" if gpus else "gloo"
        if gpus:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(
            backend, store=dist.PrefixStore("group", self._store), rank=self.rank, world_size=self.count
        )
        self.group = dist.new_group(backend="gloo")

    def tell(self, value: Any) -> None:
        """On the main rank: say something (plain data) that every other rank will `hear`, in this order."""
        if self.count > 1:
            self._store.set(f"said/{self._said}", json.dumps(value))
            self._said += 1

    def hear(self) -> Any:
        """What the main rank says next, however long that takes."""
        key, pause = f"said/{self._said}", 0.002
        while not self._store.check([key]):
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
        self._said += 1
        return json.loads(self._store.get(key))

    def from_main(self, make: Callable[[], T]) -> T:
        """What `make` gives on the main rank (plain data), on every rank."""
        if not self.main:
            return self.hear()
        value = make()
        self.tell(value)
        return value

    def pass_signals_on(self) -> None:
        """From now on a signal to end to this rank asks the main one to stop, which then ends all."""
        if threading.current_thread() is threading.main_thread():
            for number in to_handle():
                signal.signal(number, lambda *_: self._store.set(_STOP, ""))

    def leave(self) -> None:
        """The run has ended well, on every rank."""
        self._ending.set()
        if self.group is not None:
            import torch.distributed as dist

            self._part()
            dist.destroy_process_group()

    def end(self, error: BaseException) -> NoReturn:
        """End all ranks for an error of this one, unless they are ending for another's already."""
        self._ending.set()
        lost = _LOST.search(str(error)) if isinstance(error, RuntimeError) else None
        if lost or isinstance(error, _Ended):  # by the end of another rank, and it is for that one to say why
            cause = lost[0] if lost else "their store is gone"
            error = UserError(f"lost another rank ({cause}), whose own output may say why; go on with --resume")
        code = 2 if isinstance(error, UserError) else 130 if isinstance(error, KeyboardInterrupt) else 1
        for number in (signal.SIGUSR1, *SIGNALS):  # a launcher ends what it sees outlive a rank
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(number, signal.SIG_IGN)
        ended_by = self._claim(f"{self.rank} {code}")
        if ended_by.split()[0] == str(self.rank):
            _report(error, self.rank)
        if self.main or not lost:  # the others of a rank that was lost have waited for it
            self._part()
        raise SystemExit(int(ended_by.split()[1])) from None

    def _claim(self, mine: str) -> str:
        """Who ends the run, and with which code: the first to ask, but the main rank before others with its fault."""
        if self._ended_by or self._store is None:
            return self._ended_by or mine
        with contextlib.suppress(RuntimeError):  # the store has gone with whoever held it
            deadline = time.monotonic() + (0.0 if self.main else _WATCH_SECONDS)
            while time.monotonic() < deadline and not self._store.check([_ENDED]):
                time.sleep(0.05)
            return self._store.compare_set(_ENDED, "", mine).decode()
        return mine

    def _part(self) -> None:
        """Wait until every rank is here, or for _LEAVE_SECONDS: the main one may hold the store, and a launcher kills
        all when it sees one fail."""
        if self._store is None:
            return
        with contextlib.suppress(RuntimeError):
            self._store.set(f"{_LEFT}/{self.rank}", "")
            deadline = time.monotonic() + _LEAVE_SECONDS
            while time.monotonic() < deadline and not self._store.check([f"{_LEFT}/{r}" for r in range(self.count)]):
                time.sleep(0.05)
            if self.main:
                time.sleep(0.2)  # until the others have seen it too

    def _watch(self) -> None:
        """Beside the run: leave it when another rank has ended it, and pass on to the main rank a wish to stop."""
        asked = False
        while not self._ending.wait(_WATCH_SECONDS):
            try:
                if self._store.check([_ENDED]):
                    self._ended_by = self._store.get(_ENDED).decode()
                    break
                if self.main and not asked and self._store.check([_STOP]):
                    asked = True
                    os.kill(os.getpid(), signal.SIGINT)
            except RuntimeError:  # the store has gone with whoever held it
                break
        if self._ending.is_set():
            return
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        if not self._ending.wait(_STUCK_SECONDS):
            os._exit(int(self._ended_by.split()[1]) if self._ended_by else 1)

    def _leave_now(self, number: int, frame: object) -> None:
        raise _Ended


class _Ended(BaseException):
    """Raised where a rank is when another has ended the run."""


def _report(error: BaseException, rank: int) -> None:
    who = f"rank {rank}: " if rank else ""
    if isinstance(error, UserError):
        print(f"loop-rl: {who}{' '.join(str(error).split())}", file=sys.stderr, flush=True)
    elif isinstance(error, KeyboardInterrupt):
        begun = not isinstance(error, Interrupted) or error.resumable
        how = "; go on with --resume" if begun else " before its first step"
        print(f"loop-rl: {who}{str(error) or 'interrupted'}{how}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
