"""An environment's tests need neither worker nor model: its episode is played here, by a script."""

import pytest
from guessing_game import GuessingGame

from env_worker import EngineError, InvalidTaskError
from env_worker.testing import ScriptedModel, rehearsed


def test_a_number_that_is_found():
    model = ScriptedModel("50", "I say 25!", "42")
    episode = rehearsed(GuessingGame(), {"secret": 42}, model=model)
    (trace,) = episode.traces
    assert episode.ok
    assert (trace.reward, trace.metrics["turns"], trace.stop_condition) == (1.0, 3.0, "guessed")
    assert [asked[-1].text for asked in model.asked[1:]] == ["Lower.", "Higher."]


def test_one_that_is_not():
    episode = rehearsed(GuessingGame(), {"secret": 3, "max_turns": 2}, model=ScriptedModel("no idea", "1"))
    (trace,) = episode.traces
    assert (trace.reward, trace.stop_condition) == (0.0, "max_turns")


@pytest.mark.parametrize("text", ["9" * 5000, "-" + "0" * 5000 + "3", "\N{SUPERSCRIPT THREE}", "", "\0"])
def test_whatever_a_model_writes_is_an_answer_and_no_failure_of_the_environment(text):
    episode = rehearsed(GuessingGame(), {"secret": 3, "max_turns": 2}, model=ScriptedModel(text, "3"))
    assert episode.ok
    assert episode.reward == 1.0


def test_a_failure_of_the_engine_is_no_reward_of_zero():
    model = ScriptedModel("50", EngineError("the engine answered 503"))
    episode = rehearsed(GuessingGame(), {"secret": 42}, model=model)
    assert not episode.ok
    assert episode.reward is None
    assert [(error.phase, error.message) for error in episode.errors] == [
        ("model", "the engine answered 503")
    ]


@pytest.mark.parametrize("task", [{}, {"secret": 101}, {"secret": "1"}, {"secret": 1, "max_turns": 0}])
def test_a_task_that_is_none(task):
    with pytest.raises(InvalidTaskError, match="expected an integer"):
        rehearsed(GuessingGame(), task)
