"""Figures: drawn from results, and refused where there is nothing to draw."""

from pathlib import Path

import pytest
from small_tables import TABLE, TEXT, made, small_table

from experiments import figures
from experiments.figures import draw_curves, draw_points
from experiments.results import write_result
from experiments.show import show_table

PNG = b"\x89PNG\r\n\x1a\n"


def test_points_and_curves_are_pictures(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    # The paper's points can be drawn before anything was run; curves cannot.
    draw_points(show_table(table, TEXT, [tmp_path]), tmp_path / "before.png")
    with pytest.raises(ValueError, match="0 rows"):
        draw_curves(show_table(table, TEXT, [tmp_path]), tmp_path / "curves.png")
    curve = [{"tokens": 100.0 * check, "valid": 4.0 + 3.0 / check} for check in range(1, 9)]
    for name, seed, valid in (("HMM", 0, 4.5), ("HMM", 1, 4.4), ("no dropout", 0, 5.0)):
        write_result(tmp_path, made(table, name, seed, valid, curve=curve))
    shown = show_table(table, TEXT, [tmp_path])
    draw_points(shown, tmp_path / "points.png")
    draw_curves(shown, tmp_path / "curves.png")
    for name in ("before", "points", "curves"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    assert (tmp_path / "before.png").read_bytes() != (tmp_path / "points.png").read_bytes()


def test_a_table_without_a_figure_says_so(tmp_path: Path) -> None:
    table = small_table(tmp_path, TABLE.split("[figure]")[0])
    with pytest.raises(ValueError, match=r"no \[figure\]"):
        draw_points(show_table(table, {}, []), tmp_path / "points.png")


def test_rows_stand_under_names_or_by_what_was_measured(tmp_path: Path) -> None:
    named = TABLE.replace("x = 1\n", 'x = "much"\n').replace("x = 2\n", 'x = "none"\n')
    measured = TABLE + 'measured = "parameters"\nlog10 = true\n'
    # Points of no series need no legend, and matplotlib warns of an empty one.
    alone = named.replace('series = "a"\n', "").replace("valid = 4.0, ", "")
    for name, text in (("named", named), ("measured", measured), ("alone", alone)):
        table = small_table(tmp_path, text, f"{name}.toml")
        for row, parameters in (("HMM", 1e4), ("no dropout", 2e5)):
            write_result(tmp_path / name, made(table, row, measured={"valid": 4.0, "parameters": parameters}))
        draw_points(show_table(table, TEXT, [tmp_path / name]), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    with pytest.raises(ValueError, match="0 points"):
        draw_points(show_table(small_table(tmp_path, measured), TEXT, []), tmp_path / "none.png")
    with pytest.raises(ValueError, match="no column"):
        small_table(tmp_path, TABLE + 'measured = "cached_ms"\n')


@pytest.mark.parametrize(("values", "scale"), [((100.0, 399.0), "linear"), ((100.0, 401.0), "log")])
def test_numbers_far_apart_stand_on_a_logarithmic_axis(
    values: tuple[float, float], scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small_table(tmp_path, TABLE.replace("valid = 4.0", "valid = 100.0"))
    for name, valid in zip(("HMM", "no dropout"), values, strict=True):
        write_result(tmp_path, made(table, name, 0, valid, curve=[{"tokens": 1.0, "valid": valid}]))
    scales = []
    monkeypatch.setattr(figures, "_finish", lambda figure, axes, *_: scales.append(axes.get_yscale()))
    shown = show_table(table, TEXT, [tmp_path])
    draw_points(shown, tmp_path / "points.png")
    draw_curves(shown, tmp_path / "curves.png")
    assert scales == [scale, scale]
