"""Which endpoints are allowed: by what they are, not by how they are spelt."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.model.allow_list import AllowList, base_url


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("http://engine:8000/v1", "http://engine:8000/v1"),
        ("HTTP://Engine:8000/v1/", "http://engine:8000/v1"),
        ("http://engine:80", "http://engine"),
        ("https://engine:443/", "https://engine"),
        ("https://engine:80/V1", "https://engine:80/V1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("http://[FE80::1]", "http://[fe80::1]"),
        ("http://10.0.0.7:1", "http://10.0.0.7:1"),
        ("http://a-b.c-d", "http://a-b.c-d"),
        ("http://My_engine_1:8000/v1", "http://my_engine_1:8000/v1"),
        ("http://_engine.pool/v1", "http://_engine.pool/v1"),
    ],
)
def test_a_base_url_has_one_spelling(text: str, spelt: str) -> None:
    assert str(base_url(text)) == spelt
    assert base_url(spelt) == base_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "engine:8000",
        "//engine/v1",
        "ftp://engine/v1",
        "file:///etc/passwd",
        "http://",
        "http:///v1",
        "http://user@engine/v1",
        "http://user:password@engine/v1",
        "http://allowed.example@evil.example/v1",
        "http://engine/v1?key=1",
        "http://engine/v1#there",
        "http://engine/../v2",
        "http://engine/./v1",
        "http://engine//v1",
        "http://engine/a%2fb",
        "http://engine/a\\b",
        "http://engine\\@evil/v1",
        "http://engine /v1",
        "http://engine/v1\n",
        "\thttp://engine/v1",
        "http://eng\tine/v1",
        "http://engine:0/v1",
        "http://engine:65536/v1",
        "http://engine:/v1",
        "http://engine:http/v1",
        "http://engine:80:80/v1",
        "http://engine:*/v1",
        "http://*.engine/v1",
        "http://ëngine/v1",
        "http://engine./v1",
        "http://.engine/v1",
        "http://[::1/v1",
        "http://::1/v1",
        "http://[engine]/v1",
    ],
)
def test_what_could_lead_elsewhere_is_no_base_url(text: str) -> None:
    with pytest.raises(ValueError, match=r"its |it (is|does)"):
        base_url(text)


@pytest.mark.parametrize(
    ("entry", "allowed", "others"),
    [
        (
            "http://engine:8000/v1",
            ("http://engine:8000/v1", "http://ENGINE:8000/v1/", "http://engine:8000/v1/lora"),
            (
                "https://engine:8000/v1",
                "http://engine:8001/v1",
                "http://engine/v1",
                "http://engine:8000",
                "http://engine:8000/v10",
                "http://engine:8000/V1",
                "http://engine2:8000/v1",
                "http://x.engine:8000/v1",
            ),
        ),
        ("http://engine", ("http://engine:80/any/path", "http://engine"), ("https://engine", "http://engin")),
        (
            "https://*.pool.example:*/v1",
            ("https://a.pool.example/v1", "https://a.b.pool.example:8443/v1"),
            (
                "https://pool.example/v1",
                "https://evilpool.example/v1",
                "https://a.pool.example.evil/v1",
                "https://a.pool.example:8443",
                "http://a.pool.example/v1",
            ),
        ),
        ("http://10.0.0.7:*", ("http://10.0.0.7:9", "http://10.0.0.7"), ("http://10.0.0.70:9",)),
        ("http://[::1]:*", ("http://[::1]:9",), ("http://[::2]:9",)),
        ("http://my_engine:*", ("http://my_engine:9",), ("http://my-engine:9", "http://myxengine:9")),
        ("http://*.my_pool", ("http://a_b.my_pool",), ("http://my_pool", "http://amy_pool")),
    ],
)
def test_an_entry_allows_itself_and_what_lies_below_it(
    entry: str, allowed: tuple[str, ...], others: tuple[str, ...]
) -> None:
    allow_list = AllowList(["http://unrelated:1", entry])
    for text in allowed:
        assert base_url(text) in allow_list, text
    for text in others:
        assert base_url(text) not in allow_list, text


def test_an_empty_list_allows_none() -> None:
    assert base_url("http://engine") not in AllowList([])
    assert not len(AllowList([]))


@pytest.mark.parametrize(
    "entry",
    [
        "*",
        "http://*",
        "http://*:8000",
        "http://*.",
        "http://a*.b",
        "http://*.*.b",
        "engine",
        "http://u@h",
        "http://*.[::1]",
    ],
)
def test_an_entry_that_is_none_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match="no endpoint that could be allowed") as refused:
        AllowList([entry])
    assert entry in str(refused.value)


_LABELS = st.sampled_from(["a", "b", "evil", "example", "com"])
_HOSTS = st.lists(_LABELS, min_size=1, max_size=4).map(".".join)
_PORTS = st.sampled_from(["", ":80", ":443", ":8000"])
_PATHS = st.lists(st.sampled_from(["v1", "v2", "v"]), max_size=3).map(
    lambda parts: "".join(f"/{p}" for p in parts)
)
_URLS = st.builds("{}://{}{}{}".format, st.sampled_from(["http", "https"]), _HOSTS, _PORTS, _PATHS)


@given(_URLS, st.booleans(), _URLS)
def test_it_agrees_with_what_a_url_parser_says(entry: str, below: bool, url: str) -> None:
    spelt = entry.replace("://", "://*.", 1) if below else entry
    ours, theirs = urlsplit(entry), urlsplit(url)
    default = {"http": 80, "https": 443}
    named = (
        (theirs.hostname or "").endswith(f".{ours.hostname}") if below else ours.hostname == theirs.hostname
    )
    expected = (
        named
        and ours.scheme == theirs.scheme
        and (ours.port or default[ours.scheme]) == (theirs.port or default[theirs.scheme])
        and f"{theirs.path}/".startswith(f"{ours.path}/")
    )
    assert (base_url(url) in AllowList([spelt])) is expected


@given(st.text(max_size=30))
def test_any_text_is_a_base_url_or_a_value_error(text: str) -> None:
    try:
        url = base_url("http://" + text)
    except ValueError:
        return
    # What was accepted leads where an independent parser says that it leads.
    parts = urlsplit("http://" + text)
    assert (parts.hostname, parts.port or 80, parts.username) == (url.host.strip("[]"), url.port, None)
