"""A template: a game over several turns, with a check of the task, a reward, metrics, and an end."""

import re

from env_worker import InvalidTaskError, Message

LARGEST = 1_000_000


class GuessingGame:
    """The model guesses a number and hears whether it is higher or lower.

    Task: `{"secret": 42, "highest": 100, "max_turns": 8}`; the last two may be left out. Reward `guessed` is
    1 if it found the number, else 0; metric `turns`.
    """

    name = "guessing-game"
    description = "guess a number, hearing higher or lower"

    def validate(self, task):
        """Before `run`, quick. What is wrong with a task is the caller's to mend: key, value, limit."""
        highest = _integer(task, "highest", 100, 1, LARGEST)
        _integer(task, "secret", None, 1, highest)
        _integer(task, "max_turns", 8, 1, 100)

    async def run(self, context):
        task = context.task
        secret, highest = task["secret"], task.get("highest", 100)
        trace = context.new_trace(model=context.model.name)
        messages = [Message.user(f"Guess my number between 1 and {highest}. Answer with a number alone.")]
        last, guess = None, None
        for turn in range(1, task.get("max_turns", 8) + 1):
            # Streams by itself: a preview while the model is asked, then messages, answer and call.
            # What it raises (EngineError, CancelledError) is not caught: it ends the episode as what it is.
            answer = await context.model.chat(trace, messages, parent=last, sampling=context.sampling)
            last = answer.node
            trace.set_metric("turns", float(turn))
            guess = _number(answer.message.text)
            if guess == secret:
                break
            messages = [Message.user(_hint(guess, secret))]
        trace.set_reward("guessed", float(guess == secret))
        trace.set_stop("guessed" if guess == secret else "max_turns")


def _number(text):
    """The first number in a model's text, None without one. A model may write anything: what is raised on
    its text would be this environment's failure, without a reward."""
    found = re.search(r"-?\d+", text)
    try:
        return None if found is None else int(found[0])
    except ValueError:  # more digits than int() reads, which is 4,300
        return None


def _hint(guess, secret):
    if guess is None:
        return "That was no number that I can read."
    return "Higher." if guess < secret else "Lower."


def _integer(task, key, default, low, high):
    value = task.get(key, default)
    if type(value) is not int or not low <= value <= high:
        raise InvalidTaskError(f"task key {key!r} is {value!r}, expected an integer from {low} to {high}")
    return value
