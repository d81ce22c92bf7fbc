"""Of many wrong fields of one request some are guessed at, for each guess costs time; all are told."""

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from api.http.errors import problem_of
from api.schemas.crawls import CrawlPatch
from shared.domain.suggestions import SUGGESTED


def test_no_more_than_some_of_many_wrong_fields_are_guessed_at() -> None:
    with pytest.raises(ValidationError) as refused:
        CrawlPatch.model_validate({f"lables{number}": 1 for number in range(500)})
    wrong = [{**each, "loc": ("body", *each["loc"])} for each in refused.value.errors()]
    told = problem_of(RequestValidationError(wrong), CrawlPatch).errors
    assert {each.message for each in told} == {"unknown field"}
    assert [each.hint for each in told] == ["did you mean labels?"] * SUGGESTED + ["remove it"] * (500 - SUGGESTED)
