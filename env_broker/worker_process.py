"""The process of a local worker: its pipes and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from io import FileIO


class WorkerProcess:
    """One process. Made by `start`; when it has ended, `close` it, and `reap` it.

    Neither the pipes nor the waiting are asyncio's own: with those the end of a process is reported only when
    whatever it started has closed its pipes too, and by then its id may be another's.
    """

    def __init__(self, process: subprocess.Popen[bytes], stdin: int, output: FileIO) -> None:
        self.pid: Final = process.pid
        self._process: Final = process
        self._stdin: Final = stdin
        self._output: Final = output
        self._loop: Final = asyncio.get_running_loop()
        self._code = 0
        self._ended: Final = asyncio.Event()

    @classmethod
    def start(cls, command: Sequence[str], variables: Mapping[str, str]) -> Self:
        """Start it. OSError or RuntimeError where that is not possible; then nothing is left of it."""
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            child_stdin, stdin = os.pipe()
            theirs.callback(os.close, child_stdin)
            undo.callback(os.close, stdin)
            stdout, child_stdout = os.pipe()
            theirs.callback(os.close, child_stdout)
            output = undo.enter_context(os.fdopen(stdout, "rb", buffering=0))
            process = subprocess.Popen(
                command,
                # It ends when this pipe closes, also where the broker dies without a word.
                stdin=child_stdin,
                stdout=child_stdout,
                stderr=subprocess.STDOUT,
                env=dict(variables),
                # A Ctrl-C at the terminal is for the broker, which then drains its workers.
                start_new_session=True,
            )
            undo.callback(process.wait)
            undo.callback(process.kill)
            started = cls(process, stdin, output)
            threading.Thread(target=started._watch, name=f"watch-{process.pid}", daemon=True).start()
            undo.pop_all()
        return started

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    async def output(self) -> AsyncGenerator[bytes, None]:
        """What it writes, standard error included, until all that it started have closed it too. Once."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._output
        )
        try:
            while data := await reader.read(65_536):
                yield data
        finally:
            transport.close()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; none where it has ended."""
        if not self.ended:
            # Not Popen's own, which would reap it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait(self) -> int:
        """Its exit code, once it has ended; negative: the signal that killed it."""
        await self._ended.wait()
        return self._code

    def close(self) -> None:
        """Close the pipes."""
        os.close(self._stdin)
        self._output.close()

    def reap(self) -> None:
        """Give its id back, once it has ended: until then it names no other process, and no other group."""
        self._process.wait()

    def _watch(self) -> None:
        if hasattr(os, "waitid"):
            end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            assert end is not None  # only with WNOHANG it may be
            code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        else:
            code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has ended
            self._loop.call_soon_threadsafe(self._over, code)

    def _over(self, code: int) -> None:
        self._code = code
        self._ended.set()
