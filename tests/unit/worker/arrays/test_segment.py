"""Bytes that nobody changes, and that are gone with their last holder, or with the process."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.arrays import segment as module
from env_worker.arrays.forks import close_unshared, open_unshared
from env_worker.arrays.segment import MAGIC, check_folder, nameless_file, write_segment
from tests.helpers.array_episodes import NO_SPARES, PAGE, open_segments
from tests.helpers.pools import ROOT

if TYPE_CHECKING:
    from env_worker.arrays.cut import Read
    from env_worker.arrays.writer import Put

INSTANCE, ID = "a" * 32, "b" * 32
CONTENT = bytes(range(256)) * 40


class Made:
    """A segment with CONTENT after its header."""

    def __init__(self, folder: Path | None = None, content: bytes = CONTENT) -> None:
        self.gone = 0
        self.segment = write_segment(
            PAGE + len(content),
            lambda put: put(PAGE, memoryview(content)),
            is_intact=lambda read: read(PAGE, len(content)) == content,
            instance=INSTANCE,
            id=ID,
            folder=folder,
            spares=NO_SPARES,
            on_gone=self._count,
        )

    def _count(self) -> None:
        self.gone += 1


@pytest.fixture(params=["memory", "file", "named file", "no memfd"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    """Where the segment goes; on hosts that cannot do the better thing too."""
    if request.param == "no memfd":
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
        return None
    if request.param == "named file":
        opened = os.open

        def refuse(path: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "not here")
            return opened(path, flags, mode, **rest)

        monkeypatch.setattr(os, "open", refuse)
    return None if request.param == "memory" else tmp_path


def test_header_and_bytes(folder: Path | None, tmp_path: Path) -> None:
    made = Made(folder)
    segment = made.segment
    assert segment.size % mmap.PAGESIZE == 0
    assert segment.size >= PAGE + len(CONTENT)
    assert segment.read(0, PAGE) == (MAGIC + b"a" * 32 + b"b" * 32).ljust(PAGE, b"\0")
    assert segment.read(PAGE, len(CONTENT)) == CONTENT
    assert segment.read(PAGE + 3, 5) == CONTENT[3:8]
    assert segment.read(segment.size, 0) == b""
    assert os.listdir(tmp_path) == []
    for offset, length in ((-1, 1), (0, -1), (segment.size, 1), (0, segment.size + 1)):
        with pytest.raises(ValueError, match="not in a segment of"):
            segment.read(offset, length)
    assert segment.drop()


def test_nobody_can_change_what_is_shared(folder: Path | None) -> None:
    made = Made(folder)
    fd = made.segment.share()
    assert fd is not None
    assert made.segment.share() == fd
    path = f"/proc/{os.getpid()}/fd/{fd}"
    assert os.stat(path).st_mode & 0o777 == 0o400
    if not made.segment.in_file:
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", PAGE)
        for size in (0, 2 * made.segment.size):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        with open(fd, "rb", closefd=False) as file, pytest.raises(PermissionError):
            mmap.mmap(file.fileno(), made.segment.size)
    made.segment.drop()


def test_what_others_may_write_to_is_not_shared_however_often_it_is_asked_for() -> None:
    made = Made()
    fd = made.segment._fd
    assert fd is not None
    foreign = mmap.mmap(fd, made.segment.size)
    assert [made.segment.share() for _ in range(3)] == [None] * 3
    foreign.close()
    assert made.segment.share() == fd, "it is what was written, and nobody can write to it any more"
    made.segment.drop()


def test_what_somebody_has_written_to_is_not_shared(caplog: pytest.LogCaptureFixture) -> None:
    made = Made()
    assert made.segment._fd is not None
    os.pwrite(made.segment._fd, b"x", PAGE)
    assert [made.segment.share() for _ in range(3)] == [None] * 3
    assert [record.getMessage()[:35] for record in caplog.records] == ["segment=bbbbbbbb was written to by "]
    assert made.segment.read(PAGE, 2) == b"x" + CONTENT[1:2]
    made.segment.drop()


def test_it_is_summed_once_when_it_is_frozen(folder: Path | None) -> None:
    """What lies on a disk is summed by whoever copies it."""
    made, frozen = Made(folder), []
    fd = made.segment._fd
    assert fd is not None

    def look(read: Read) -> bool:
        frozen.append(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
        return read(PAGE, len(CONTENT)) == CONTENT

    made.segment._is_intact = look  # type: ignore[misc]
    assert frozen == []
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: made.segment.share(), range(20), timeout=10)) == {fd}
    assert frozen == ([] if made.segment.in_file else [fcntl.F_SEAL_WRITE])
    made.segment.drop()


def test_a_read_does_not_wait_until_it_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop reads while another fetch is being opened, and a gigabyte takes a while."""
    made, before = Made(), open_segments()
    begun, go_on, freeze = threading.Event(), threading.Event(), module._freeze

    def slow(fd: int) -> None:
        begun.set()
        assert go_on.wait(10)
        freeze(fd)

    monkeypatch.setattr(module, "_freeze", slow)
    with ThreadPoolExecutor(2) as threads:
        sharing = threads.submit(made.segment.share)
        assert begun.wait(10)
        try:
            assert threads.submit(made.segment.read, PAGE, 4).result(5) == CONTENT[:4]
            assert not threads.submit(made.segment.drop).result(5), "it is held until it is shared"
        finally:
            go_on.set()
        assert sharing.result(10) is not None
    assert (made.gone, open_segments()) == (1, before - 1)


def test_a_reader_that_mapped_it_keeps_its_bytes(folder: Path | None) -> None:
    made = Made(folder)
    with open(f"/proc/{os.getpid()}/fd/{made.segment.share()}", "rb") as file:
        mapped = mmap.mmap(file.fileno(), made.segment.size, prot=mmap.PROT_READ)
    made.segment.drop()
    assert mapped[PAGE : PAGE + len(CONTENT)] == CONTENT
    mapped.close()


def test_it_goes_with_its_last_holder(folder: Path | None) -> None:
    before = open_segments()
    made = Made(folder)
    made.segment.hold()
    assert not made.segment.drop()
    assert made.gone == 0
    assert made.segment.read(PAGE, 1) == CONTENT[:1]
    assert made.segment.drop()
    assert made.gone == 1
    assert open_segments() == before
    with pytest.raises(ValueError, match="segment bbbbbbbb is gone"):
        made.segment.read(PAGE, 1)
    with pytest.raises(ValueError, match="is gone"):
        made.segment.hold()
    assert made.segment.share() is None


def test_a_read_under_way_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its descriptor's number could be another file's in the midst of it."""
    made = Made()
    begun, go_on, read = threading.Event(), threading.Event(), os.pread

    def slow(fd: int, length: int, offset: int) -> bytes:
        begun.set()
        assert go_on.wait(10)
        return read(fd, length, offset)

    monkeypatch.setattr(os, "pread", slow)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(made.segment.read(PAGE, 4)))
    reader.start()
    assert begun.wait(10)
    assert not made.segment.drop()
    assert made.gone == 0
    go_on.set()
    reader.join(10)
    assert found == [CONTENT[:4]]
    assert made.gone == 1


def test_short_reads_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made()
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: read(fd, min(length, 7), offset))
    assert made.segment.read(PAGE + 1, 100) == CONTENT[1:101]
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: b"")
    with pytest.raises(OSError, match="100 bytes before its size"):
        made.segment.read(PAGE + 1, 100)
    made.segment.drop()


def test_a_segment_without_arrays_takes_no_descriptor() -> None:
    before = open_segments()
    made = Made(content=b"")
    assert open_segments() == before
    assert made.segment.share() is None
    assert made.segment.read(PAGE, 0) == b""
    assert made.segment.drop()
    assert made.gone == 1


@pytest.mark.parametrize("raised", [RuntimeError("no"), KeyboardInterrupt(), MemoryError()])
def test_nothing_is_left_of_one_that_could_not_be_written(folder: Path | None, raised: BaseException) -> None:
    before = open_segments()

    def fill(put: Put) -> None:
        put(PAGE, memoryview(b"x"))
        raise raised

    with pytest.raises(type(raised)) as error:
        write_segment(
            PAGE + 1, fill, is_intact=bool,
            instance=INSTANCE, id=ID, folder=folder, spares=NO_SPARES, on_gone=lambda: None,
        )  # fmt: skip
    assert error.value is raised
    assert open_segments() == before


@pytest.mark.parametrize("call", ["posix_fallocate", "ftruncate", "fchmod", "memfd_create", "pwritev"])
def test_what_the_system_refuses_leaves_nothing(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_segments()

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="full"):
        Made(tmp_path if call == "posix_fallocate" else None)
    assert open_segments() == before
    assert os.listdir(tmp_path) == []


def test_a_folder_is_checked(tmp_path: Path) -> None:
    check_folder(tmp_path)
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match=r"spill folder .*/none cannot be used: No such file"):
        check_folder(tmp_path / "none")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match="Not a directory"):
        check_folder(file)


def test_a_nameless_file_is_empty_and_private(tmp_path: Path) -> None:
    fd = nameless_file(tmp_path)
    assert os.fstat(fd).st_size == 0
    assert os.fstat(fd).st_nlink == 0
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(fd)
    os.close(fd)


FORKING = """
import os, sys
from pathlib import Path
from env_worker.arrays.segment import write_segment
from tests.helpers.array_episodes import NO_SPARES, open_segments

def make(folder, fill=lambda put: None):
    return write_segment(5000, fill, is_intact=bool, instance="a" * 32, id="b" * 32, folder=folder,
                         spares=NO_SPARES, on_gone=lambda: None)

def fork_a_child_that_looks(put):
    if os.fork() == 0:
        os.write(write, repr(open_segments() - before).encode())
        os._exit(0)
    os.wait()

before = open_segments()
read, write = os.pipe()
for folder in (None, Path(sys.argv[1])):
    make(folder, fork_a_child_that_looks).drop()
segments = [make(None), make(Path(sys.argv[1]))]
shared = [segment.share() for segment in segments]
if os.fork() == 0:
    gone = [not os.path.exists(f"/proc/self/fd/{fd}") for fd in shared]
    os.write(write, repr(gone).encode())
    os._exit(0)
os.wait()
print(os.read(read, 100).decode(), [len(segment.read(0, 10)) for segment in segments])
"""


def test_a_forked_child_holds_no_segment(tmp_path: Path) -> None:
    """It would hold what its parent has freed, for as long as it lives: neither one that is there, nor one
    that is being written. (In a process without threads.)"""
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "00[True, True] [10, 10]"


RACING = """
import os, sys, threading
from env_worker.arrays import segment
from pathlib import Path
from tests.helpers.array_episodes import NO_SPARES, open_segments

forking, forked = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set, after_in_parent=forked.set)
name = sys.argv[1]
real = getattr(os, name)

def slowly(*arguments):
    if threading.current_thread() is not threading.main_thread() and not begun.is_set():
        if name == "close":
            begun.set()
            forking.wait(10)
            forked.wait(0.3)
        fd = real(*arguments)
        if name != "close":
            begun.set()
            forking.wait(10)
            forked.wait(0.3)
        return fd
    return real(*arguments)

def work():
    segment.write_segment(5000, lambda put: None, is_intact=bool, instance="a" * 32, id="b" * 32,
                          folder=folder, spares=NO_SPARES, on_gone=lambda: None).drop()

folder = None if name == "memfd_create" else Path(sys.argv[2])
before = open_segments()
begun = threading.Event()
setattr(os, name, slowly)
thread = threading.Thread(target=work)
thread.start()
begun.wait(10)
if (child := os.fork()) == 0:
    os._exit(open_segments() - before)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), open_segments() - before)
"""


@pytest.mark.parametrize("call", ["memfd_create", "open", "close"])
def test_a_child_that_is_forked_while_a_segment_comes_or_goes_has_none_of_it(
    call: str, tmp_path: Path
) -> None:
    """A fork waits for it."""
    command = [sys.executable, "-W", "ignore", "-c", RACING, call, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["0", "0"]


def test_a_close_that_a_disk_refuses_lets_go_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has freed the number, whatever it says."""
    made, close = Made(), os.close

    def fail(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", fail)
    assert made.segment.drop()
    assert made.gone == 1


def test_forks_come_beside_a_loop_of_segments() -> None:
    """Each would wait its whole second, and its child would hold what was being opened or closed."""
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            close_unshared(open_unshared(lambda: os.memfd_create("churn")))

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                links = [
                    os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
                ]
                os._exit(any("churn" in link for link in links))
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()
