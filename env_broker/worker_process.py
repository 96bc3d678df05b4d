"""The process of a local worker: its pipes and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    import signal
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from io import FileIO


class WorkerProcess:
    """One process. Made by `start`; `close` when it has ended.

    The pipes are not asyncio's own: with those the end of a process is reported only when whatever it started
    has closed them too.
    """

    def __init__(self, process: Process, stdin: int, output: FileIO) -> None:
        self.pid: Final = process.pid
        self._process: Final = process
        self._stdin: Final = stdin
        self._output: Final = output

    @classmethod
    async def start(cls, command: Sequence[str], variables: Mapping[str, str]) -> Self:
        """Start it. OSError or RuntimeError where that is not possible."""
        child_stdin, stdin = os.pipe()
        stdout, child_stdout = os.pipe()
        output = os.fdopen(stdout, "rb", buffering=0)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                # It ends when this pipe closes, also where the broker dies without a word.
                stdin=child_stdin,
                stdout=child_stdout,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(variables),
                # A Ctrl-C at the terminal is for the broker, which then drains its workers.
                start_new_session=True,
            )
        except BaseException:
            os.close(stdin)
            output.close()
            raise
        finally:
            os.close(child_stdin)
            os.close(child_stdout)
        return cls(process, stdin, output)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.returncode is not None

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
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait(self) -> int:
        """Its exit code, once it has ended; negative: the signal that killed it."""
        return await self._process.wait()

    def close(self) -> None:
        """Close the pipes."""
        os.close(self._stdin)
        self._output.close()
