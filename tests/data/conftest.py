"""No data set is found by what the caller's environment says."""

import pytest


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("LOOP_RL_DATA", "MBPP_OVERRIDE_PATH"):
        monkeypatch.delenv(name, raising=False)
