"""Drawing a token from logits, and telling what it was drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw. `temperature` 0 takes the best token; `top_k` 0 and `top_p` 1 filter nothing.

    `heads` is how many candidates are told of each token, None for none.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    heads: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether few enough tokens survive the filters for all of them to be told."""
        return self.top_k > 0 or self.temperature == 0


class Candidate(NamedTuple):
    """A token that might have been drawn; `rank` counts from 1."""

    token: int
    logprob: float
    rank: int


class Draw(NamedTuple):
    """A drawn token.

    `head` begins with it; then come the best candidates by rank, itself not again. `kept` has the ids that
    survived the filters, the best first; None where the filters set no bound.
    """

    token: int
    head: tuple[Candidate, ...]
    kept: list[int] | None


class Sampler:
    """Draws one answer's tokens: temperature, then top-k, then top-p of what is left.

    Log-probabilities are of the distribution that is really drawn from, after temperature and filters, as
    vLLM's `--logprobs-mode processed_logprobs` has them. So there are none of what was filtered out, and
    with temperature 0 that of the one token which is left is 0.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        # Seeds are signed 64-bit in the APIs, and not negative in numpy.
        self._random = np.random.default_rng(None if sampling.seed is None else sampling.seed % 2**64)

    def draw(self, logits: NDArray[np.float32]) -> Draw:
        """Draw from `logits`, float32 `[vocabulary]`, which are only read."""
        ids, logprobs = self._distribution(logits)
        ends = np.exp(logprobs).cumsum()
        place = int(np.searchsorted(ends, self._random.random() * ends[-1], side="right"))
        place = min(place, len(ids) - 1)  # where rounding has led past the end
        told = [place]
        if self._sampling.heads:
            told += [other for other in range(min(self._sampling.heads, len(ids))) if other != place]
        head = tuple(Candidate(int(ids[other]), float(logprobs[other]), other + 1) for other in told)
        return Draw(int(ids[place]), head, ids.tolist() if self._sampling.bounded else None)

    def _distribution(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The ids that can be drawn, the best first, and their log-probabilities."""
        sampling = self._sampling
        if sampling.temperature == 0:
            return np.array([logits.argmax()]), np.zeros(1)
        if 0 < sampling.top_k < len(logits):
            ids = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
        else:
            ids = np.arange(len(logits))
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        chosen = logits[ids].astype(np.float64)
        logprobs = _normalized((chosen - chosen[0]) / sampling.temperature)
        if sampling.top_p < 1:
            probabilities = np.exp(logprobs)
            # A token stays while those before it have less than top_p together: so the best always does.
            kept = max(int((probabilities.cumsum() - probabilities < sampling.top_p).sum()), 1)
            ids, logprobs = ids[:kept], _normalized(logprobs[:kept])
        return ids, logprobs


def _normalized(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """`values`, of which the first is the largest, as log-probabilities."""
    shifted = values - values[0]
    normalized: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return normalized
