import itertools

import pytest

from vlhmm.training.schedule import Plateau, planned_factor


def test_the_rate_rises_then_falls_to_its_final_part() -> None:
    rates = [planned_factor("cosine", step, 100, warmup=0.1, final=0.05) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert rates[100] == pytest.approx(0.05)


def test_a_constant_rate_stays() -> None:
    assert {planned_factor("constant", step, 10, warmup=0.0, final=0.0) for step in range(10)} == {1.0}


def test_the_plateau_waits_for_its_patience() -> None:
    plateau = Plateau(patience=2, decay=4.0)
    factors = []
    for loss in (5.0, 4.0, 4.5, 4.2, 3.9, 4.0, 4.0, 4.0, 4.0):
        plateau = plateau.after(loss)
        factors.append(plateau.factor)
    assert factors == [1, 1, 1, 1 / 4, 1 / 4, 1 / 4, 1 / 16, 1 / 16, 1 / 64]
