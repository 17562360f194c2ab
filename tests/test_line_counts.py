"""Files of the package stay short, and the script that counts lines counts what it says."""

import pytest

from tools.count_lines import ROOT, Count, by_folder, count, count_files, main

MAX_CODE_LINES = 400


def test_no_file_of_the_package_has_more_lines_of_code_than_the_limit() -> None:
    counted = count_files("vlhmm")
    assert len(counted) > 100
    too_long = {str(path): one.code for path, one in counted.items() if one.code > MAX_CODE_LINES}
    assert too_long == {}, (
        f"more than {MAX_CODE_LINES} lines of code (no docstrings, comments, blank lines): split them"
    )


SAMPLE = '''"""Of the module.

Goes on.
"""

import os  # counts

# does not

LIMIT = 3
"""Of the attribute."""


class A:
    """Of the class."""

    def f(self) -> str:
        """Of the function."""
        text = """three
        # lines of a value

        """
        return text
'''


def test_docstrings_comments_and_blank_lines_are_no_code() -> None:
    # import, LIMIT, class, def, the value's four lines (a blank one is part of it), return
    assert count(SAMPLE) == Count(1, len(SAMPLE.splitlines()), 9)
    assert count("") == Count(1, 0, 0)
    assert count('"""Alone."""\n') == Count(1, 1, 0)
    assert count("f(\n    1,\n\n    # a comment\n    2,\n)\n") == Count(1, 6, 4)


def test_folders_sum_to_the_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    files = count_files("tools")
    assert {str(path) for path in files} == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tools").glob("*.py")
    }
    assert sum(by_folder(files).values(), Count()) == sum(files.values(), Count())
    monkeypatch.setattr("sys.argv", ["count_lines.py", "tools", "--longest", "1"])
    main()
    shown = capsys.readouterr().out.splitlines()
    lines = sum(len((ROOT / path).read_text().splitlines()) for path in files)
    assert shown[-2].split() == ["all", str(len(files)), str(lines), str(sum(files.values(), Count()).code)]
    assert shown[-1].endswith(str(max(files, key=lambda path: files[path].code)))


def test_a_folder_without_python_and_an_unknown_revision_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["count_lines.py", "nowhere"])
    with pytest.raises(SystemExit, match="nowhere"):
        main()
    monkeypatch.setattr("sys.argv", ["count_lines.py", "--base", "no-such-revision"])
    with pytest.raises(SystemExit, match="no-such-revision"):
        main()
