"""The warm-up-stable-decay schedule at hand-computed points."""

import pytest

from loop_rl.learner.schedule import wsd_factor


def test_values():
    factors = [wsd_factor(step, 1000) for step in range(1000)]
    assert factors[0] == pytest.approx(1 / 50)
    assert factors[24] == pytest.approx(0.5)
    assert factors[49:900] == [1.0] * 851
    assert factors[949] == pytest.approx(0.55)  # half of the cosine: midway between 1 and 0.1
    assert factors[999] == pytest.approx(0.1)
    assert all(a >= b for a, b in zip(factors[49:], factors[50:], strict=False))
    assert wsd_factor(2000, 1000) == pytest.approx(0.1)


def test_phases_may_be_absent():
    assert [wsd_factor(step, 10, 0.0, 0.0) for step in range(10)] == [1.0] * 10
    assert wsd_factor(0, 1) > 0


@pytest.mark.parametrize("arguments", [(-1, 10), (0, 0), (0, 10, 0.6, 0.6)])
def test_nonsense_is_refused(arguments):
    with pytest.raises(ValueError):
        wsd_factor(*arguments)
