"""The Ray instance of a run: one of this machine for the run alone, or a cluster that is running."""

import logging
import os

import ray

_FORWARDED = ("LOOP_RL_", "MBPP_", "HF_", "NCCL_", "CUDA_", "OMP_", "TOKENIZERS_", "PYTHONPATH")


def start_ray(cpus: int, cluster: str | None = None) -> bool:
    """Starts Ray with `cpus` CPUs, or connects to the cluster at `cluster`, unless Ray is running in this process.

    Returns whether it did, so whether the caller has to shut it down.
    """
    if ray.is_initialized():
        return False
    if cluster is None and "RAY_JOB_ID" in os.environ:
        cluster = "auto"
    if cluster is None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # A private instance on this machine needs no token, and says so at every start otherwise.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    else:
        env = {key: value for key, value in os.environ.items() if key.startswith(_FORWARDED)}
        ray.init(address=cluster, runtime_env={"env_vars": env}, log_to_driver=False)
    return True
