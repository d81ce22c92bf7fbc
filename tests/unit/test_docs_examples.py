"""Every example of README and docs is run by a test or listed with a reason, and names what the program has."""

from tests.support import doc_examples
from tests.support.doc_examples import FILES, LISTED, OUTPUTS, entry


def test_examples_are_run_or_listed_with_a_reason() -> None:
    """A new example without an entry is run by tests/e2e/test_docs_examples.py, if it is a command."""
    forgotten, used = [], set()
    for page in doc_examples.pages():
        for block in doc_examples.blocks(page):
            found = [key for table in (LISTED, FILES, OUTPUTS) if (key := entry(table, block, block.text))]
            if doc_examples.scripted(block) and "<<" not in block.text:
                found += [key for line in doc_examples.commands(block.text) if (key := entry(LISTED, block, line))]
                forgotten += [f"{block.place}: {line}" for line in doc_examples.remaining(block)[1]]
            used.update(found)
    assert forgotten == []
    assert (LISTED.keys() | FILES.keys() | OUTPUTS.keys()) - used == set(), "these are in no page any more"


def test_documented_commands_and_flags_exist() -> None:
    """Also those inside of sentences, and those that no test runs."""
    wrong = []
    for page in doc_examples.pages():
        lines = [line for block in doc_examples.blocks(page) for line in doc_examples.commands(block.text)]
        named = [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith(("orb ", "./orb "))]
        for command in named + doc_examples.inline(page):
            wrong += [f"{page}: {command}: {each}" for each in doc_examples.unknown(command)]
    assert wrong == []
