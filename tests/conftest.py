"""One thread and no network, set before torch is imported."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ray_instance():
    """One Ray instance for all tests that need one, with three GPUs that are not there.

    It takes seconds to start, and two that start at once can fail each other.
    """
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name in ("LOOP_RL_DATA", "MBPP_OVERRIDE_PATH", "CUDA_VISIBLE_DEVICES"):
            patch.delenv(name, raising=False)
        for name, value in {
            "LOOP_RL_TEST_VALUE": "seen",
            "RAY_AUTH_MODE": "disabled",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }.items():
            patch.setenv(name, value)
        ray.init(address="local", num_cpus=4, num_gpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
