"""Routing rows: each encoding of the engines, and what of it is refused."""

from __future__ import annotations

import base64
import binascii
import io
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_worker.model.dialects.base import EngineOptions
from env_worker.model.fields import npy as fields_npy
from env_worker.model.fields.json_values import AbsentError, FieldError
from env_worker.model.fields.npy import from_base64, from_bytes, from_npy
from env_worker.model.fields.routing import sglang_rows, vllm_rows
from tests.unit.worker.model.responses import LAYERS, TOKENS, TOP_K, npy, plain, rows

FREE = EngineOptions()
WHOLE = {"data": plain(rows()), "shape": [7, 3, 2], "dtype": "uint8"}
SHAPED = EngineOptions(routing_shape=(LAYERS, TOP_K))


def vllm(value: Any, *, prompt: Any = None, options: EngineOptions = FREE, start: int = 0) -> Any:
    return vllm_rows(value, prompt, options, tokens=TOKENS, start=start)


def sglang(value: Any, *, options: EngineOptions = SHAPED, start: int = 0) -> Any:
    return sglang_rows(value, options, tokens=TOKENS, start=start)


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(["|u1", "<u2", ">u2", "<i4", "<i8"]),
    shape=st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 4)),
    order=st.sampled_from(["C", "F"]),
    seed=st.integers(0, 99),
)
def test_npy_files_are_read_as_numpy_reads_them(
    dtype: str, shape: tuple[int, ...], order: str, seed: int
) -> None:
    array = np.asarray(
        np.random.default_rng(seed).integers(0, 200, shape), dtype, order="F" if order == "F" else "C"
    )
    for version in ((1, 0), (2, 0)):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, array, version=version, allow_pickle=False)
        found = from_npy(buffer.getvalue(), "x")
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("start", [0, 4, TOKENS - 1])
def test_rows_arrive_as_they_were_sent(dtype: str, start: int) -> None:
    sent = rows(start, dtype)
    as_object = {"data": plain(sent), "shape": list(sent.shape), "dtype": dtype, "start": start}
    for value in (npy(sent), as_object, {**as_object, "start": None}):
        first, found = vllm(value, start=start, options=SHAPED)
        assert first == start
        assert found.dtype in (np.uint8, np.uint16)
        assert not found.flags.writeable or not found.size
        assert np.array_equal(found, sent)


def test_a_start_that_the_engine_tells_goes_before_the_one_that_was_asked_for() -> None:
    value = {"data": plain(rows(2)), "shape": list(rows(2).shape), "dtype": "|u1", "start": 2}
    assert vllm(value, start=4)[0] == 2


def test_nested_lists_of_prompt_and_answer() -> None:
    whole = rows().tolist()
    start, found = vllm(whole[5:], prompt=whole[:5], start=4)
    assert start == 0
    assert np.array_equal(found, rows())
    assert np.array_equal(vllm(whole)[1], rows())


def test_an_engine_that_knows_no_start_gives_the_whole_sequence() -> None:
    for start, found in (vllm(npy(rows()), start=4), sglang(plain(rows(dtype="<i4")), start=4)):
        assert start == 0
        assert np.array_equal(found, rows())


def test_sglang_has_int32_without_a_shape() -> None:
    for first in (0, 4):
        start, found = sglang(plain(rows(first, "<i4")), start=first)
        assert start == first
        assert found.dtype == np.uint8
        assert np.array_equal(found, rows(first))
    with pytest.raises(FieldError, match="--model-routing-shape"):
        sglang(plain(rows(dtype="<i4")), options=FREE)
    with pytest.raises(FieldError, match="no whole rows of 3 layers x 2 experts"):
        sglang(plain(rows(dtype="<i4"))[:-8])
    with pytest.raises(FieldError, match="has 14 rows"):
        sglang(plain(rows(dtype="<i4")), options=EngineOptions(routing_shape=(LAYERS, 1)))


def test_another_number_of_rows_is_refused_with_both_numbers() -> None:
    with pytest.raises(FieldError, match=r"has 2 rows, expected 3 from position 4, or 7 from position 0"):
        vllm(npy(rows(5)), start=4)
    with pytest.raises(FieldError, match=r"has 3 rows, expected 7 from position 0:"):
        vllm(npy(rows(4)))
    behind = r"has 3 rows, expected 7 from position 0: .* and they were asked for at 30, which is behind them"
    with pytest.raises(FieldError, match=behind):
        vllm(npy(rows(4)), start=30)
    with pytest.raises(FieldError, match="and the engine says it begins at 30, which is behind them"):
        vllm(WHOLE | {"start": 30})


def test_absent_rows_say_which_flag_the_server_needs() -> None:
    with pytest.raises(AbsentError, match="--enable-return-routed-experts"):
        vllm(None)
    with pytest.raises(AbsentError, match="--enable-return-routed-experts"):
        sglang(None)


@pytest.mark.parametrize(
    ("value", "options", "reason"),
    [
        (npy(np.zeros_like(rows())), FREE, "all zero in 7 rows"),
        (npy(rows()), EngineOptions(experts=60), "holds expert 66, expected 0 to 59"),
        (npy(rows(dtype="int32") - 2), FREE, "holds expert -1"),
        (npy(rows(dtype="int32") + 70_000), FREE, "holds expert 70066, expected 0 to 65535"),
        (
            npy(rows()),
            EngineOptions(routing_shape=(LAYERS, 9)),
            r"\(3, 2\), but the worker was told \(3, 9\)",
        ),
        (npy(rows()[:, :0]), FREE, r"shape \(7, 0, 2\)"),
        (npy(rows().reshape(7, 6)), FREE, r"shape \(7, 6\)"),
        (npy(np.ones((7, 3, 2), np.float32)), FREE, "dtype '<f4'"),
        (npy(rows())[:-8], FREE, "bytes, expected 42"),
        (npy(rows())[:-3], FREE, "not base64"),
        ("", FREE, "no .npy file"),
        ("é", FREE, "not base64"),
        (plain(rows()), FREE, "no .npy file"),
        (5, FREE, "is 5"),
        ([], FREE, "empty"),
        ([[[1, 2]], [[1]]], FREE, "equal length"),
        ([[[1, 2]], 3], FREE, "lists of equal length"),
        ([[[1, "2"]]], FREE, "holds '2'"),
        ({"data": plain(rows())}, FREE, "without data, shape and dtype"),
        ({"data": plain(rows()), "shape": [7, 3, "2"], "dtype": "uint8"}, FREE, "shape holds '2'"),
        (WHOLE | {"dtype": "object"}, FREE, "dtype 'object'"),
        (WHOLE | {"start": -1}, FREE, "start -1"),
        (WHOLE | {"start": 1}, FREE, "6 from position 1"),
        (WHOLE | {"data": 7}, FREE, "without data, shape and dtype"),
        ({"data": plain(rows()), "shape": [7, 3, 2], "dtype": "uint8", "start": -1}, FREE, "start -1"),
        (
            {"data": plain(rows()), "shape": [7, 3, 2], "dtype": "uint8", "start": 1},
            FREE,
            "6 from position 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(value: Any, options: EngineOptions, reason: str) -> None:
    with pytest.raises(FieldError, match=reason):
        vllm(value, options=options)


def header(text: str, data: bytes = b"") -> str:
    body = text.encode()
    whole = b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + data
    return base64.b64encode(whole).decode()


@pytest.mark.parametrize(
    "value",
    [
        header("{'descr': '|u1', 'fortran_order': False, 'shape': (999999999, 999999, 9999), }"),
        header("{'descr': '|u1', 'fortran_order': False, 'shape': (" + "9" * 400 + ",), }"),
        header("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 1), }", b"\x80\x04N."),
        header("{'descr': '|u1', 'shape': (1, 1, 1), }", b"\1"),
        header("__import__('os')"),
        header("(" * 3000),
        base64.b64encode(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}").decode(),
        base64.b64encode(b"\x93NUMPY\x01\x00").decode(),
        header("{'descr': '|u1', 'fortran_order': False, 'shape': (" + "1, " * 70 + "), }", b"\1"),
        header("{'descr': '|u1', 'fortran_order': False, 'shape': (0, 999999999999999, 999999999999999), }"),
        header("{'descr': '|u1', 'fortran_order': False, 'shape': (0, 999999999999999, 9), }"),
        {"data": "AQ==", "shape": [1] * 70, "dtype": "uint8"},
        {"data": "", "shape": [0, 2**31 - 1, 2**31 - 1, 2**31 - 1], "dtype": "int64"},
        {"data": "", "shape": [0, 2**31 - 1, 2], "dtype": "int64"},
    ],
)
def test_hostile_headers_are_refused_and_allocate_nothing(value: Any) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FieldError):
            vllm(value)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


_LENGTHS = st.integers(0, 9) | st.sampled_from([10**6, 2**31 - 1, 2**63, 10**15 - 1])


@settings(max_examples=150)
@given(
    descr=st.sampled_from(
        ["|u1", "<u2", "=i8", ">u4", "|O", "<f4", "u1", "int64", "", "'", "|u1', 'shape': (1"]
    ),
    fortran=st.sampled_from(["True", "False", "0"]),
    shape=st.lists(_LENGTHS, max_size=5) | st.lists(st.just(1), max_size=80),
    separator=st.sampled_from([", ", ",", " "]),
    data=st.binary(max_size=40),
    start=st.integers(0, TOKENS + 3),
    cut=st.integers(0, 40),
)
def test_any_header_is_rows_or_a_field_error(
    descr: str, fortran: str, shape: list[int], separator: str, data: bytes, start: int, cut: int
) -> None:
    text = separator.join(map(str, shape))
    whole = header(f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({text}), }}", data)
    as_object = {"data": base64.b64encode(data).decode(), "shape": shape, "dtype": descr, "start": start}
    for value in (whole, whole[: len(whole) - cut], as_object):
        try:
            first, found = vllm(value, start=start)
        except FieldError:
            continue
        assert len(found) == TOKENS - 1 - first
        assert found.nbytes <= len(data)


def test_decoded_bytes_are_not_copied() -> None:
    data = bytes(range(1, 25))
    array = from_bytes(data, "uint8", [2, 3, 4], "x")
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))


def test_base64_is_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(50))
    for piece in (4, 8, 12, 64, 1000):
        monkeypatch.setattr(fields_npy, "_PIECE", piece)
        for size in range(len(data)):
            assert from_base64(base64.b64encode(data[:size]).decode(), "x") == data[:size]
        for wrong in ("AA==AAAA", "AAAAAA==AAAA", "AAA", "AAAAAAA", "AAAAA=", "AAAAA A="):
            with pytest.raises(binascii.Error):
                binascii.a2b_base64(wrong, strict_mode=True)
            with pytest.raises(FieldError, match=f"x of {len(wrong)} characters is not base64"):
                from_base64(wrong, "x")
