"""The Ray instance of a run: one of this machine for the run alone, or a cluster that is running.

Its faults are errors of one line: what can be known before Ray is started, what stops it from starting, and the death
of one of its own processes, which Ray itself answers with minutes of silence.
"""

import contextlib
import logging
import os
import resource
import shutil
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import ray
from ray.exceptions import RayError

from loop_rl.errors import UserError, first_line
from loop_rl.interrupts import starting_servers
from loop_rl.rollout import reaper

_FORWARDED = ("LOOP_RL_", "MBPP_", "HF_", "NCCL_", "CUDA_", "OMP_", "TOKENIZERS_", "PYTHONPATH")
_CONNECT_SECONDS = 5.0
# Ray puts its sockets there, and a socket's path has at most 107 bytes.
_SOCKET = "ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_SOCKET_BYTES = 107
_BESIDE_THE_STORE = 6 * 2**30  # address space that Ray's servers take beyond the object store; measured, rounded up
_WITHOUT = "rollout.workers=0 reward.workers=0 does without Ray"

_servers: list[psutil.Process] = []  # of the instance that this process started
_reaper: reaper.Reaper | None = None


class ServerDied(UserError):
    """One of Ray's own processes has died, and with it what is under way."""


def start_ray(cpus: int, cluster: str | None = None) -> bool:
    """Starts Ray with `cpus` CPUs, or connects to the cluster at `cluster`, unless Ray is running in this process.

    Returns whether it did, so whether the caller has to call `stop_ray`. UserError where Ray can't be used.
    """
    if ray.is_initialized():
        return False
    cluster = _address(cluster)
    check_ray(cluster)
    try:
        with starting_servers():
            if cluster is None:
                _start_here(cpus)
            else:
                env = {key: value for key, value in os.environ.items() if key.startswith(_FORWARDED)}
                ray.init(address=cluster, runtime_env={"env_vars": env}, log_to_driver=False)
    except BaseException as error:  # Ray's own share no class
        with contextlib.suppress(Exception):
            stop_ray(failed=True)
        if isinstance(error, SystemExit):  # Ray's handler of SIGTERM
            raise KeyboardInterrupt from None
        if not isinstance(error, Exception):
            raise
        where = f"the Ray cluster at {cluster}" if cluster else "Ray on this machine"
        raise UserError(f"{where} could not be started or reached ({first_line(error)}); {_WITHOUT}") from error
    return True


def _address(cluster: str | None) -> str | None:
    return "auto" if cluster is None and "RAY_JOB_ID" in os.environ else cluster


def _start_here(cpus: int) -> None:
    global _reaper
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A private instance on this machine needs no token, and says so at every start otherwise.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # A process whose control server has gone is ended by Ray after a minute, in the middle of whatever it does.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
    reaper.end_abandoned()
    _reaper = reaper.Reaper()
    ray._private.worker.print_to_stdstream = lambda *_, **__: None  # a server's death would print 20 lines of its log
    before = set(psutil.Process().children())
    ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )
    _servers[:] = [
        child
        for child in psutil.Process().children()
        if child not in before and child.name() in ("raylet", "gcs_server")
    ]
    _reaper.watch(logs().parent)


def stop_ray(failed: bool = False) -> None:
    """Ends what `start_ray` began; Ray's logs stay where something `failed`."""
    global _reaper
    folder = logs().parent if _reaper is not None and ray.is_initialized() else None
    _servers.clear()
    ray.shutdown()
    if _reaper is not None:
        _reaper.close()
        _reaper = None
    if folder is not None and not failed:
        shutil.rmtree(folder, ignore_errors=True)


def check_alive() -> None:
    """ServerDied when one of the servers of the instance that this process started has."""
    for server in _servers:
        with contextlib.suppress(psutil.NoSuchProcess):
            if server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
                continue
        raise ServerDied(
            f"Ray's server (pid {server.pid}) has died, killed or short of memory; its log is in {logs()}; the same "
            "command goes on (loop-rl train: with --resume)"
        )


def of_ray(error: BaseException | None) -> UserError | None:
    """The one line for an error of Ray's own that ends a run; None for other errors."""
    if not isinstance(error, RayError):
        return None
    return UserError(
        f"Ray failed ({first_line(error)}); its log is in {logs()}; the same command goes on (loop-rl train: with "
        "--resume)"
    )


def logs() -> Path:
    """Where Ray's processes write their logs."""
    node = ray._private.worker._global_node
    return Path(node.get_logs_dir_path() if node is not None else f"{_temp()}/ray/session_latest/logs")


def check_workers(workers: int, cluster: str | None = None) -> None:
    """What can be known before anything is loaded: UserError where `workers` rollout workers can't be had."""
    check_ray(cluster)
    cpus = len(os.sched_getaffinity(0))
    if _address(cluster) is None and workers > cpus:
        raise UserError(
            f"rollout.workers: {workers} workers need a CPU each, and this process may use {cpus}; set it to {cpus} or "
            "less, which changes nothing but rounding"
        )


def check_ray(cluster: str | None = None) -> None:
    """UserError where Ray could not be started on this machine, or nothing answers at the cluster's address."""
    cluster = _address(cluster)
    if cluster is not None:
        _check_answers(cluster)
    else:
        _check_folder()
        _check_limits()


def _check_folder() -> None:
    variable = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in os.environ), "TMPDIR")
    too_long = len(os.fsencode(f"{_temp()}/{_SOCKET}")) - _SOCKET_BYTES
    if too_long > 0:
        raise UserError(
            f"{variable}: Ray's sockets can't lie in {_temp()}, whose path is {too_long} bytes too long for them; set "
            f"{variable}=/tmp, or {_WITHOUT}"
        )
    try:
        folder = Path(_temp(), "ray")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{variable}: Ray can't write to {folder} ({error.strerror}); set {variable} to a folder with a short path "
            f"that you can write to, or {_WITHOUT}"
        ) from None


def _check_limits() -> None:
    store = min(0.3 * psutil.virtual_memory().total, 200e9)  # Ray's default
    for limit, option, what, least in (
        (resource.RLIMIT_AS, "-v", "address space", store + _BESIDE_THE_STORE),
        (resource.RLIMIT_FSIZE, "-f", "file size", store),
    ):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY and soft < least:
            raise UserError(
                f"this shell limits the {what} to {soft / 2**20:.0f} MiB, and Ray's object store needs "
                f"{least / 2**20:.0f} MiB; lift it with ulimit {option} unlimited, or {_WITHOUT}"
            )


def _check_answers(cluster: str) -> None:
    """Ray itself would try for minutes."""
    fix = "start one with `ray start --head`, or correct rollout.cluster"
    address = cluster
    if cluster == "auto":
        address = os.environ.get("RAY_ADDRESS") or _running()
        if address is None:
            raise UserError(f"rollout.cluster: no Ray cluster is running on this machine; {fix}")
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port or (10001 if parts.scheme == "ray" else 6379)
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise UserError(f"rollout.cluster: no Ray cluster answers at {address} ({error}); {fix}") from None


def _running() -> str | None:
    """The address of the cluster that `ray start` began here, as Ray finds it."""
    with contextlib.suppress(OSError):
        return Path(_temp(), "ray", "ray_current_cluster").read_text().strip() or None
    found = ray._private.services.find_gcs_addresses()
    return next(iter(found), None)


def _temp() -> str:
    """Ray's rule, which is not tempfile's."""
    return os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
