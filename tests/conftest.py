"""One thread and no network, set before torch is imported."""

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["RAY_worker_niceness"] = "0"  # not 15: other tests would leave its workers little time

import pytest  # noqa: E402
import torch  # noqa: E402
from filelock import FileLock  # noqa: E402

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that start processes come first, for they take longest."""
    texts = {path: path.read_text() for path in {item.path for item in items}}
    items.sort(key=lambda item: ("ray_instance" not in texts[item.path], "subprocess" not in texts[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes (-n) a file's tests stay together, for its fixtures, and so do those that share Ray.

    Those of training, which take as long as all others that use it, have an instance of their own.
    """
    from xdist.scheduler import LoadFileScheduling

    class FilesScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            shares = "ray_instance" in (config.rootpath / file).read_text() and "/training/" not in file
            return "Ray" if shares else file

    return FilesScheduling(config, log)


@pytest.fixture(scope="session")
def ray_instance():
    """One Ray instance for all tests that need one, with three GPUs that are not there.

    It takes seconds to start, and two that start at once can fail each other, so they take turns.
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
        with FileLock(Path(tempfile.gettempdir()) / "loop_rl_tests_start_ray.lock"):
            ray.init(address="local", num_cpus=4, num_gpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
