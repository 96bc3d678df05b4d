"""Several hosts on one machine: a network namespace for each, joined by a bridge, and cut by iptables.

Nothing outside of these namespaces is touched, but for one interface by which this process is on the network,
too. It all goes with the network, also when a test fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS: Final = 20.0
_TOOLS: Final = ("ip", "iptables")
_PREFIX: Final = "198.18"
"""Of the addresses that RFC 2544 sets apart for tests of networks."""


@dataclass(frozen=True)
class Host:
    """One host: where it is, and what starts this Python on it."""

    address: str
    namespace: str
    python: Path


class Network:
    """Hosts that reach each other until they are cut off."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory: Final = directory
        self._stack: Final = stack
        self._id: Final = f"envtrio{os.getpid()}"
        self._subnet: Final = f"{_PREFIX}.{os.getpid() % 250}"
        self._hub: Final = self._namespace("hub")
        self._count = 1
        self.here: Final = Host(f"{self._subnet}.1", "", Path(sys.executable))
        """Where this process is."""
        _ip("-n", self._hub, "link", "add", "hub", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "hub", "up")
        outside = f"env{os.getpid()}"
        _ip("link", "add", outside, "type", "veth", "peer", "name", "here", "netns", self._hub)
        stack.callback(_run, "ip", "link", "delete", outside, check=False)
        self._plug("here")
        _ip("address", "add", f"{self.here.address}/24", "dev", outside)
        _ip("link", "set", outside, "up")

    def host(self, name: str) -> Host:
        """A new host."""
        self._count += 1
        address, namespace = f"{self._subnet}.{self._count}", self._namespace(name)
        port = f"to{self._count}"
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip(
            *("-n", namespace, "link", "add", "eth0", "type", "veth"),
            *("peer", "name", port, "netns", self._hub),
        )
        self._plug(port)
        _ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        python = self._directory / f"python-on-{name}"
        python.write_text(f'#!/bin/sh\nexec ip netns exec {namespace} {sys.executable} "$@"\n')
        python.chmod(0o700)
        return Host(address, namespace, python)

    def cut(self, sender: Host, receiver: Host) -> None:
        """Drop whatever `sender` sends to `receiver`. One way only; at most one of them is here."""
        rule = ("INPUT", "--source", sender.address)
        at = receiver
        if not receiver.namespace:
            at, rule = sender, ("OUTPUT", "--destination", receiver.address)
        _run(*_in(at), "iptables", "--wait", "--append", *rule, "--jump", "DROP")

    def close_port(self, host: Host, port: str) -> None:
        """Drop, as a firewall does, whatever comes to that port of the host from another."""
        rule = ("INPUT", "--protocol", "tcp", "--destination-port", port, "--in-interface", "eth0")
        _run(*_in(host), "iptables", "--wait", "--append", *rule, "--jump", "DROP")

    def heal(self, *hosts: Host) -> None:
        """Let these hosts send and receive everything again."""
        for host in hosts:
            if host.namespace:
                _run(*_in(host), "iptables", "--wait", "--flush")

    def _namespace(self, name: str) -> str:
        namespace = f"{self._id}-{name}"
        _ip("netns", "add", namespace)
        # Its interfaces go with it.
        self._stack.callback(_run, "ip", "netns", "delete", namespace, check=False)
        return namespace

    def _plug(self, port: str) -> None:
        _ip("-n", self._hub, "link", "set", port, "master", "hub", "up")


@contextmanager
def network(directory: Path) -> Iterator[Network]:
    """A network, gone when this ends."""
    with ExitStack() as stack:
        yield Network(directory, stack)


def missing() -> str:
    """Why this machine cannot do it; empty if it can."""
    if absent := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(absent)} is not installed (Debian: apt-get install iproute2 iptables)"
    probe = f"envtrio{os.getpid()}-probe"
    made = _run("ip", "netns", "add", probe, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()} (they need root)"
    try:
        listed = _run("ip", "netns", "exec", probe, "iptables", "--wait", "--list", check=False)
        return f"iptables does not work here: {listed.stderr.strip()}" if listed.returncode else ""
    finally:
        _run("ip", "netns", "delete", probe, check=False)


def _in(host: Host) -> tuple[str, ...]:
    return ("ip", "netns", "exec", host.namespace)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done
