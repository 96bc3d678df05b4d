"""What a client takes for an address, and what it says of anything else before it dials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from env_client import EnvClient, SyncEnvClient
from env_client.address import checked_target
from env_client.cli import main
from env_client.config import ClientSettings, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripted_service import ScriptedService

EXPECTED = (
    "expected HOST:PORT with a port from 1 to 65535, e.g. 127.0.0.1:7460 or [::1]:7460, or gRPC's own "
    "dns:///HOST:PORT or unix:PATH; "
)
PRINTED = "a broker or worker prints as it starts: 'listening on HOST:PORT'"
GIVE = f"give the address that {PRINTED}"
BRACKETS = "put an IPv6 address into brackets, and the port behind them"


@pytest.mark.parametrize(
    "target",
    [
        "localhost:1",
        "127.0.0.1:65535",
        "my_host-1.example.:50051",
        "[::1]:50051",
        "[fe80::1%eth0]:50051",
        "dns:host:50051",
        "dns:///host:50051",
        "DNS:///[::1]:50051",
        "dns://8.8.8.8:53/host:50051",
        "dns:///unix:50051",
        "ipv4:10.0.0.1:1,10.0.0.2:1",
        "ipv6:[::1]:1,[::2]:1",
        "unix:relative/socket",
        "unix:/var/run/a socket",
        "unix:///var/run/socket",
        "unix-abstract:name",
        "xds:///pool",
    ],
)
def test_addresses(target: str) -> None:
    assert checked_target(target) == target
    assert SyncEnvClient(target).target == target
    assert ClientSettings(broker=target).broker == target


@pytest.mark.parametrize(
    ("target", "next_step"),
    [
        ("localhost", f"add the port, which {PRINTED}"),
        ("10.0.0.1", f"add the port, which {PRINTED}"),
        ("", GIVE),
        (" ", GIVE),
        ("http://localhost:50051", "write it without 'http://', and without a path"),
        ("grpc://h:1", "write it without 'grpc://', and without a path"),
        ("host:port:port", GIVE),
        ("host:port", GIVE),
        ("host:", GIVE),
        (":50051", GIVE),
        ("host:0", GIVE),
        ("host:65536", GIVE),
        ("host:99999", GIVE),
        ("host:+1", GIVE),
        ("host:٣", GIVE),
        ("host:50051/path", GIVE),
        ("/var/run/socket", GIVE),
        ("local host:1", GIVE),
        (" localhost:1", GIVE),
        ("localhost:1\n", GIVE),
        ("h\0st:1", GIVE),
        ("::1", BRACKETS),
        ("::1:50051", BRACKETS),
        ("[::1]", GIVE),
        ("[1:2]:1", GIVE),
        ("[]:1", GIVE),
        ("dns:50051", "write a host of that name as 'dns:///dns:50051'"),
        ("dns:///host", GIVE),
        ("dns:///", GIVE),
        ("dns:", GIVE),
        ("dns:h//a/ost:1", GIVE),
        ("ipv4:10.0.0.1", GIVE),
        ("ipv4:10.0.0.1:1,", GIVE),
        ("ipv4:10.0.0.256:1", GIVE),
        ("ipv4:host:1", GIVE),
        ("ipv4:[::1]:1", GIVE),
        ("ipv6:10.0.0.1:1", GIVE),
        ("unix:", GIVE),
        ("unix://host/socket", GIVE),
    ],
)
def test_what_is_none_says_what_it_is_and_what_to_do(target: str, next_step: str) -> None:
    clients: list[Callable[[str], object]] = [EnvClient, SyncEnvClient]
    for client in clients:
        with pytest.raises(ValueError, match=r"\Atarget is ") as caught:
            client(target)
        assert str(caught.value) == f"target is {target!r}, {EXPECTED}{next_step}"
    with pytest.raises(SettingsError) as refused:
        ClientSettings(broker=target)
    assert str(refused.value) == f"--broker is {target!r}, {EXPECTED}{next_step}"


@pytest.mark.parametrize("value", [None, 50051, b"localhost:1", ("localhost", 1)])
def test_what_is_no_text(value: object) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        checked_target(value)


@pytest.mark.parametrize("target", ["h" * 10_000, "h:" + "9" * 10_000, "[" * 10_000])
def test_a_long_one_is_cut(target: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT") as caught:
        checked_target(target)
    assert len(str(caught.value)) < 400


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(ValueError, match=r"target is '\.\.\.@host:1', expected") as caught:
        checked_target("http://me:secret@host:1")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "command", ["run", "health", "describe", "top", "release --owner o", f"cancel {'0' * 32}"]
)
def test_the_command_says_it_as_wrong_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--broker", "http://localhost:50051"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("env-client: --broker is 'http://localhost:50051', expected HOST:PORT with a port")
    assert said.endswith("write it without 'http://', and without a path\n")


def test_a_scheme_of_grpc_is_dialled(service: ScriptedService, capsys: pytest.CaptureFixture[str]) -> None:
    for target in (f"dns:///{service.address}", f"ipv4:{service.address}"):
        assert main(["health", "--broker", target]) == 0
        assert capsys.readouterr().out == "SERVING\n"
