"""Every example of README and docs is run by a test or listed with a reason, and names what the program has."""

from tests.support import documents
from tests.support.documents import FILES, LISTED, OUTPUTS, entry


def test_examples_are_run_or_listed_with_a_reason() -> None:
    """A new example without an entry is run by tests/e2e/test_docs_examples.py, if it is a command."""
    forgotten, used = [], set()
    for page in documents.pages():
        for block in documents.blocks(page):
            found = [key for table in (LISTED, FILES, OUTPUTS) if (key := entry(table, block, block.text))]
            if documents.scripted(block) and "<<" not in block.text:
                found += [key for line in documents.commands(block.text) if (key := entry(LISTED, block, line))]
                forgotten += [f"{block.place}: {line}" for line in documents.remaining(block)[1]]
            used.update(found)
    assert forgotten == []
    assert (LISTED.keys() | FILES.keys() | OUTPUTS.keys()) - used == set(), "these are in no page any more"


def test_documented_commands_and_flags_exist() -> None:
    """Also those inside of sentences, and those that no test runs."""
    wrong = []
    for page in documents.pages():
        lines = [line for block in documents.blocks(page) for line in documents.commands(block.text)]
        named = [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith(("orb ", "./orb "))]
        for command in named + documents.inline(page):
            wrong += [f"{page}: {command}: {each}" for each in documents.unknown(command)]
    assert wrong == []
