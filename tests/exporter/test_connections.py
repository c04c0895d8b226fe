"""Who gets a place, without HTTP: a message is a line, and a place is kept until the client ends it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from gpuwhy.exporter import connections as module
from gpuwhy.exporter.connections import Connections, Place

from ..clients import wait_for  # noqa: TID252  one set of clients for all

Make = Callable[..., Any]


class House:
    """A server that says back the first line, and then holds its place until the client goes."""

    def __init__(self, stack: ExitStack, **limits: Any) -> None:
        self._stack = stack
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = listener.getsockname()[1]
        given = {"places": 2, "waiting": 8, "first_s": 10.0, **limits}
        self.connections = Connections(listener, self._serve, lambda content: b"\n" in content, **given)
        self.connections.start()
        stack.callback(self.connections.stop)

    def _serve(self, place: Place) -> None:
        place.asked()
        with contextlib.suppress(ConnectionError):  # a client that goes with the answer unread resets
            place.connection.sendall(place.connection.recv(100))
            place.answered()
            while place.connection.recv(100):
                pass

    def come(self, said: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        """A client that says this."""
        address = ("127.0.0.1", self.port)
        client = socket.create_connection(address, timeout=10, source_address=(source, 0))
        self._stack.callback(client.close)
        client.sendall(said)
        return client


@pytest.fixture
def house() -> Iterator[Make]:
    """Starts such a server."""
    with ExitStack() as stack:
        yield lambda **limits: House(stack, **limits)


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%lo", "fe80::1", True),
    ],
)
def test_whom_an_address_stands_for(one: str, other: str, same: bool) -> None:
    """A host in IPv4, however it is written, and a network of 64 bits in IPv6."""
    assert (module._origin((one, 1)) == module._origin((other, 2))) is same


def test_place_that_is_free_again_is_taken_at_once(house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a place is woken by the one that leaves, long before a place would be lost."""
    monkeypatch.setattr(module, "NEW_S", 60.0)
    served = house()
    first, second = served.come(b"1\n"), served.come(b"2\n")
    assert (first.recv(9), second.recv(9)) == (b"1\n", b"2\n")
    third = served.come(b"3\n")
    third.settimeout(0.2)
    with pytest.raises(TimeoutError):
        third.recv(9)
    first.close()
    third.settimeout(10)
    assert third.recv(9) == b"3\n"


def test_address_with_fewest_places_is_next(house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that wait, one that has nothing comes before one whose address has a place already."""
    monkeypatch.setattr(module, "NEW_S", 60.0)
    served = house(places=4)
    mine = [served.come(b"a\n", "127.0.0.2") for _ in range(2)]
    others = [served.come(b"b\n", f"127.0.0.{last}") for last in (3, 4)]
    assert [client.recv(9) for client in (*mine, *others)] == [b"a\n"] * 2 + [b"b\n"] * 2
    again = served.come(b"again\n", "127.0.0.2")
    newcomer = served.come(b"new\n", "127.0.0.5")
    again.settimeout(0.2)
    with pytest.raises(TimeoutError):
        again.recv(9)
    others[0].close()
    assert newcomer.recv(9) == b"new\n"
    with pytest.raises(TimeoutError):
        again.recv(9)


def test_those_that_have_asked_are_never_pushed_out(house: Make) -> None:
    """When all in the waiting room have asked, the rest wait in the kernel, and all are served in the end."""
    served = house(waiting=4)
    clients = [served.come(b"%d\n" % number) for number in range(30)]
    for number, client in enumerate(clients):
        assert client.recv(9) == b"%d\n" % number
        client.close()


def test_message_in_parts_is_whole_at_its_end(house: Make) -> None:
    """Parts are looked at as they come; only the whole message takes a place."""
    served = house()
    client = served.come(b"a")
    for part in (b"b", b"c"):
        client.sendall(part)
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(9)
    assert not [each for each in threading.enumerate() if each.name == "gpuwhy-http-connection"]
    client.settimeout(10)
    client.sendall(b"\n")
    assert client.recv(9) == b"abc\n"


def test_first_message_has_its_time(house: Make) -> None:
    """A client that says nothing, or only a part, is closed after that time, without a thread."""
    served = house(first_s=0.1)
    assert served.come().recv(9) == b""
    with pytest.raises(ConnectionResetError):
        served.come(b"part").recv(9)


def test_no_thread_left_costs_that_client_alone(
    house: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the system starts no thread the connection is closed, its place is free, and the server goes on."""
    served = house(places=1)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    lost = served.come(b"lost\n")
    with contextlib.suppress(ConnectionResetError):
        assert lost.recv(9) == b""
    monkeypatch.undo()
    assert served.come(b"on\n").recv(9) == b"on\n"
    assert "a connection got no thread" in caplog.text


def test_client_that_leaves_unheard_costs_no_thread(house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is opened and closed again is closed here too."""
    served = house()
    monkeypatch.setattr(threading, "Thread", lambda **_: pytest.fail("a thread was started"))
    for _ in range(3):
        served.come().close()
    monkeypatch.undo()
    assert served.come(b"on\n").recv(9) == b"on\n"
    assert served.connections.is_alive()


def test_accepting_that_only_fails_is_not_alive(
    house: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread lives on, says what is wrong once, tries less often, and is no longer called alive in time."""
    connections = house().connections
    now_s = time.monotonic()
    end_s = now_s + module._ALIVE_S + 1
    pauses: list[float] = []
    enough, go_on = threading.Event(), threading.Event()

    def wait(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s
        pauses.append(pause_s)
        if now_s > end_s:
            enough.set()
            assert go_on.wait(10)

    def fail(_: Connections) -> None:
        raise RuntimeError("round failed")

    with monkeypatch.context() as patched:
        patched.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep))
        patched.setattr(connections._closing, "wait", wait)
        patched.setattr(Connections, "_turn", fail)
        connections._wake()
        assert enough.wait(10)
        assert connections._thread.is_alive()
        assert not connections.is_alive()
    assert caplog.text.count("accepting connections failed") == 1
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (module._FAILED_S, module._MOST_FAILED_S)
    go_on.set()
    assert wait_for(connections.is_alive)


def test_round_ends_where_nobody_comes(house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet server ends a round now and then, so it stays alive."""
    monkeypatch.setattr(module, "_POLL_S", 0.01)
    served = house()
    rounds = _count_rounds(monkeypatch)
    assert wait_for(lambda: len(rounds) > 3)
    assert served.connections.is_alive()


def test_full_waiting_room_is_no_busy_loop(house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """While all have asked and wait for a place, clients that nobody can take wake nobody up."""
    monkeypatch.setattr(module, "NEW_S", 60.0)
    served = house(places=1, waiting=1)
    first = served.come(b"1\n")
    assert first.recv(9) == b"1\n"
    second = served.come(b"2\n")
    assert wait_for(lambda: len(served.connections._ready) == 1)
    third = served.come(b"3\n")
    rounds = _count_rounds(monkeypatch)
    third.settimeout(0.3)
    with pytest.raises(TimeoutError):
        third.recv(9)
    assert len(rounds) < 10
    first.close()
    assert second.recv(9) == b"2\n"
    second.close()
    third.settimeout(10)
    assert third.recv(9) == b"3\n"


def test_answer_and_the_moment_after_it_keep_the_place(house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place is safe for a second in an answer, from all, and for a moment after it, however long that took."""
    connections = house(places=1).connections
    now_s = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep))
    here, there = socket.socketpair()
    with here, there:
        place = Place(here, ("127.0.0.1", 1), b"a", lambda: None, quiet_since_s=now_s)
        connections._places.add(place)
        held = Counter({b"a": 1})
        place.asked()
        now_s = 100.9
        for newcomer in (b"a", b"b"):
            assert connections._make_room(newcomer, held) == pytest.approx(0.1)
        place.answered()
        now_s = 101.1
        assert connections._make_room(b"a", held) == pytest.approx(0.05)
        now_s = 101.2
        assert connections._make_room(b"a", held) == 0
        assert place.dropped


def _count_rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    rounds: list[int] = []
    turn = Connections._turn

    def counted(connections: Connections) -> None:
        turn(connections)
        rounds.append(1)

    monkeypatch.setattr(Connections, "_turn", counted)
    return rounds
