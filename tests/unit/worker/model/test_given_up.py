"""What says that an answer is none: not what gateways say of a success."""

from __future__ import annotations

from typing import Any

import pytest

from env_worker.model.fields.messages import given_up

SUCCESS: list[dict[str, Any]] = [
    {"code": 0, "message": ""},
    {"code": 0, "message": "success"},
    {"code": "0", "message": "success", "type": "ok"},
    {"code": 200, "message": "OK"},
    {"code": "200", "message": "OK"},
]


def told(error: object, beside: str, **choice: Any) -> dict[str, Any]:
    choice = {"message": {"content": "hi"}, **choice}
    if beside == "choices":
        return {"choices": [choice], "error": error}
    return {"choices": [{**choice, "error": error}]}


@pytest.mark.parametrize("beside", ["choices", "message"])
@pytest.mark.parametrize("error", SUCCESS)
def test_an_error_that_says_success_is_none_where_the_choice_has_finished(
    error: dict[str, Any], beside: str
) -> None:
    assert not given_up(told(error, beside, finish_reason="stop"))
    assert not given_up(told(error, beside, finish_reason={"type": "length", "length": 4}))
    assert not given_up(told(error, beside, meta_info={"finish_reason": {"type": "stop"}}))


@pytest.mark.parametrize("beside", ["choices", "message"])
@pytest.mark.parametrize("error", SUCCESS[1:])
def test_it_is_one_where_the_choice_has_not(error: dict[str, Any], beside: str) -> None:
    for reason in ({}, {"finish_reason": None}, {"finish_reason": ""}):
        assert "an error beside its choices" in given_up(told(error, beside, **reason))
    assert "finish_reason 'abort'" in given_up(told(error, beside, finish_reason="abort"))


@pytest.mark.parametrize("beside", ["choices", "message"])
@pytest.mark.parametrize(
    "error",
    [
        {"code": 502, "message": "out of memory"},
        {"code": None, "message": "out of memory"},
        {"code": [0], "message": "out of memory"},
        {"message": "success"},
        "success",
    ],
)
def test_any_other_is_one(error: object, beside: str) -> None:
    assert "an error beside its choices" in given_up(told(error, beside, finish_reason="stop"))
