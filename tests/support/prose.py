"""Prose that `orb lint` checks: docstrings, comments, pages, and the subjects of commits.

    python -m tests.support.prose [PATH ...]

A finding is a line `path:line: problem`. Banned words personify code or hide the actor. A sentence has at most
`MAX_WORDS` words, where code in backticks counts as one. The docstring of a function begins with a verb in the
imperative; that of a property may begin with a noun. Without paths, the tracked files below `CHECKED` are read.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CHECKED: Final = (
    "api",
    "workers",
    "shared",
    "cli",
    "orb.py",
    "deploy/terraform",
    "README.md",
    "CONTRIBUTING.md",
    ":(glob)docs/*.md",
)
SINCE: Final = "55cb80e"
"""Subjects of commits are checked behind this one."""

MAX_WORDS: Final = 30
MAX_SUBJECT: Final = 72

_BANNED: Final = re.compile(
    r"\b(whoever|nobody|somebody|anybody|whom|is told|are told|is said|of [^.;:]{1,60} no more than)\b", re.IGNORECASE
)
_CODE: Final = re.compile(r"`+[^`]+`+")
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_END: Final = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*]*[A-Z0-9`_*])")
_DIRECTIVE: Final = re.compile(r"^#\s*(type:|noqa|fmt:|pragma|!|-+\s|-*$)")
_OPENERS: Final = frozenset(
    """
    A After Again All Also An Another Any As At Because Before Both By Each Either Else Every Everything For From How
    However If In It Its Least Many More Most Neither Never New Newest No None Not Nothing Of On Once One Only Or Other
    Out Same Several She So Some Somebody Something That The Their Then There These They This Those Three To Two Under
    Until Up Upon Was What Whatever When Where Whether Which Who Whoever Whole Whose Why With Without
    """.split()  # noqa: SIM905  a list of so many strings is harder to read
)
"""First words of docstrings that are no verbs."""

Text = tuple[int, str]
"""A line number and the text that begins there."""


def check(paths: Iterable[Path], root: Path) -> list[str]:
    """Return the findings in Python modules and Markdown pages, in the order of `paths`."""
    found = []
    for path in paths:
        source = path.read_text("utf-8")
        texts = list(_page(source)) if path.suffix == ".md" else list(_module(source))
        name = path.relative_to(root).as_posix()
        found += [f"{name}:{line}: {problem}" for line, text in texts for problem in _problems(text)]
        if path.suffix == ".py":
            found += [f"{name}:{line}: {problem}" for line, problem in _first_words(source)]
    return found


def check_subjects(root: Path, since: str) -> list[str]:
    """Return the subjects of commits after `since` that are too long; none outside of a clone that has that commit."""
    command = ["git", "log", "--format=%h %s", f"{since}..HEAD"]
    log = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    lines = log.stdout.splitlines() if log.returncode == 0 else []
    return [
        f"commit {line}: over {MAX_SUBJECT} characters" for line in lines if len(line.split(" ", 1)[1]) > MAX_SUBJECT
    ]


def _problems(text: str) -> Iterator[str]:
    plain = _LINK.sub(r"\1", _CODE.sub("Code", text))
    for match in _BANNED.finditer(plain):
        yield f"plain English has no {match[0]!r}; name the actor"
    for sentence in _END.split(" ".join(plain.split())):
        words = sum(any(char.isalnum() for char in word) for word in sentence.split())
        if words > MAX_WORDS:
            yield f"a sentence of {words} words (at most {MAX_WORDS}): {sentence[:60]}..."


def _page(source: str) -> Iterator[Text]:
    """Yield the paragraphs, list items and cells of a Markdown page; code blocks are left out."""
    block: list[str] = []
    begun, fenced = 1, False
    for number, line in enumerate([*source.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        code = fenced or fence or line.startswith("    ")
        fresh = re.match(r"\s*([-*+]|\d+\.)\s|[#>|]", line)
        if block and (code or fresh or not line.strip()):
            yield begun, " ".join(block)
            block = []
        fenced ^= fence
        if code or not line.strip():
            continue
        if line.startswith("|"):
            yield from ((number, cell) for cell in line.split("|"))
            continue
        if not block:
            begun = number
        block.append(re.sub(r"^\s*([-*+]|\d+\.|#+|>)\s+", "", line))


def _module(source: str) -> Iterator[Text]:
    """Yield the docstrings, the texts below constants, and the comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for offset, paragraph in _paragraphs(node.value.value, node.col_offset):
                yield node.lineno + offset, paragraph
    comment: list[str] = []
    begun = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        if comment and (token.start[0] != last + 1 or token.line.strip() != token.string):
            yield begun, " ".join(comment)
            comment = []
        if not comment:
            begun = token.start[0]
        comment.append(token.string.lstrip("# "))
        last = token.start[0]
    if comment:
        yield begun, " ".join(comment)


def _paragraphs(text: str, indent: int) -> Iterator[Text]:
    """Yield the paragraphs of a docstring; indented blocks (examples, tables) are left out."""
    lines = text.splitlines()
    block: list[str] = []
    begun = 0
    for number, line in enumerate([*lines, ""]):
        body = line if number == 0 else line[indent:]
        item = re.match(r"[-*+|] |\d+\. |\S+ {2,}", body)
        if block and (item or not body.strip() or body.startswith("  ")):
            yield begun, " ".join(block)
            block = []
        if not body.strip() or (body.startswith("    ") and not block):
            continue
        if not block:
            begun = number
        block.append(body.strip())


def _first_words(source: str) -> Iterator[Text]:
    """Yield the functions whose docstring does not begin with a verb."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        marks = {getattr(mark, "id", getattr(mark, "attr", "")) for mark in node.decorator_list}
        docstring = ast.get_docstring(node)
        if docstring is None or marks & {"property", "cached_property"}:
            continue
        word = docstring.split(maxsplit=1)[0].strip(".,:;")
        if not word.isalpha() or word in _OPENERS or (word.endswith("s") and not word.endswith("ss")):
            yield node.lineno, f"the docstring of {node.name} begins with {word!r} instead of a verb"


def main(arguments: list[str]) -> int:
    """Print the findings; return 1 if there are any."""
    tracked = subprocess.run(
        ["git", "ls-files", *(arguments or CHECKED)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = check([ROOT / name for name in tracked if name.endswith((".py", ".md"))], ROOT)
    found += check_subjects(ROOT, SINCE)
    print("\n".join([*found, f"prose: {len(found)} findings"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
