"""The checks of prose find what they are for, and leave plain text alone."""

from pathlib import Path

import pytest

from tests.support.prose import check

LONG = "The owner " + "writes and " * 15 + "ends."


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('"""Settings that nobody reads."""', "'nobody'"),
        ("# The worker is told of it.", "'is told'"),
        ("# of a line no more than this is kept", "no more than"),
        (f'def f():\n    """Return.\n\n    {LONG}\n    """', "a sentence of"),
        ('def f():\n    """Whether it is open."""', "begins with 'Whether'"),
        ('def f():\n    """Seconds until it ends."""', "begins with 'Seconds'"),
        ('X = 1\n"""What anybody may write."""', "'anybody'"),
    ],
)
def test_finding_is_reported_with_its_line(tmp_path: Path, source: str, problem: str) -> None:
    (tmp_path / "a.py").write_text(source + "\n")
    (finding,) = check([tmp_path / "a.py"], tmp_path)
    assert finding.startswith("a.py:")
    assert problem in finding


@pytest.mark.parametrize(
    "source",
    [
        '"""Settings of a worker."""',
        'def f():\n    """Return the settings, or None if `nobody whoever` is no file."""',
        'class A:\n    @property\n    def b(self):\n        """Seconds until it ends."""',
        "x = 1  # type: ignore[misc]",
        f'def f():\n    """Return.\n\n        {LONG}\n    """',
    ],
)
def test_plain_text_passes(tmp_path: Path, source: str) -> None:
    (tmp_path / "a.py").write_text(source + "\n")
    assert check([tmp_path / "a.py"], tmp_path) == []


def test_page_is_read_by_paragraph_without_its_code(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(f"# Title\n\n    {LONG}\n\n```\n{LONG}\n```\n\n| a | {LONG} |\n")
    (finding,) = check([tmp_path / "a.md"], tmp_path)
    assert finding.startswith("a.md:9: a sentence of")
