"""The model: SmolLM2 in llama.cpp, as far as an engine needs it."""

from __future__ import annotations

import ctypes
import importlib
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

BATCH = 256
"""Tokens that are evaluated at once."""
_MOST_BYTES = 1024
"""Of one token; the longest of this vocabulary are runs of spaces."""


class Model(Protocol):
    """A language model with one context, for one thread at a time."""

    @property
    def context(self) -> int:
        """How many tokens prompt and answer may have together."""
        ...

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end an answer."""
        ...

    @property
    def vocabulary(self) -> Sequence[bytes]:
        """What each id stands for; nothing for special tokens."""
        ...

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt for the message that follows `messages`, each with `role` and `content`."""
        ...

    def rewind(self, prompt: Sequence[int]) -> int:
        """Forget what is no beginning of `prompt`; returns how many of its tokens are known still. Always
        fewer than all: the last one's logits are wanted."""
        ...

    def feed(self, ids: Sequence[int]) -> None:
        """Evaluate `ids` behind what is known, at most `BATCH` of them."""
        ...

    def logits(self) -> NDArray[np.float32]:
        """Of what follows the last token that was fed: float32 `[vocabulary]`, until the next `feed`."""
        ...


class LlamaModel:
    """A GGUF file in llama.cpp. It begins with what it has in common with the prompt before (its KV cache).

    Args:
        path: the file.
        context: tokens of prompt and answer together.
        threads: of llama.cpp. More of them than there are idle cores make it slower by far.
    """

    def __init__(self, path: Path, *, context: int = 4096, threads: int = 1) -> None:
        self._api: Any = importlib.import_module("llama_cpp")
        formats: Any = importlib.import_module("llama_cpp.llama_chat_format")
        self._llama: Any = self._api.Llama(
            str(path),
            n_ctx=context,
            n_batch=BATCH,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        self._vocab: Any = self._api.llama_model_get_vocab(self._llama.model)
        size = self._llama.n_vocab()
        self.context = context
        self.ends = frozenset(
            index for index in range(size) if self._api.llama_vocab_is_eog(self._vocab, index)
        )
        self.vocabulary = [self._text(index) for index in range(size)]
        self._template: Any = formats.Jinja2ChatFormatter(
            template=self._llama.metadata["tokenizer.chat_template"], bos_token="", eos_token=""
        )

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """See `Model.render`."""
        text = self._template(messages=list(messages)).prompt.encode()
        ids: list[int] = self._llama.tokenize(text, add_bos=False, special=True)
        return ids

    def rewind(self, prompt: Sequence[int]) -> int:
        """See `Model.rewind`."""
        most = min(self._llama.n_tokens, len(prompt) - 1)
        same = self._llama.input_ids[:most] == np.array(prompt[:most], np.intc)
        known = most if same.all() else int(same.argmin())
        self._llama.n_tokens = known  # what is behind is dropped with the next evaluation
        return known

    def feed(self, ids: Sequence[int]) -> None:
        """See `Model.feed`."""
        self._llama.eval(ids)

    def logits(self) -> NDArray[np.float32]:
        """See `Model.logits`."""
        pointer = self._api.llama_get_logits_ith(self._llama.ctx, -1)
        return np.ctypeslib.as_array(pointer, shape=(len(self.vocabulary),))

    def _text(self, index: int) -> bytes:
        buffer = ctypes.create_string_buffer(_MOST_BYTES)
        size = self._api.llama_token_to_piece(self._vocab, index, buffer, _MOST_BYTES, 0, False)
        return buffer.raw[: max(size, 0)]
