"""The queue between the thread that reads frames and the engine's thread."""

import queue
import threading

import pytest

from galley.service.inbox import Inbox

ITEMS = 2_000


def test_items_of_several_threads_arrive_once_and_each_threads_in_order() -> None:
    inbox = Inbox[tuple[int, int]]()

    def put(name: int) -> None:
        for number in range(ITEMS):
            inbox.put((name, number))

    threads = [threading.Thread(target=put, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    got = [inbox.get(None if index % 2 else 60) for index in range(3 * ITEMS)]
    for thread in threads:
        thread.join()
    for name in range(3):
        assert [number for who, number in got if who == name] == list(range(ITEMS))
    with pytest.raises(queue.Empty):
        inbox.get(0)


def test_a_wait_ends_with_its_time_or_with_an_item() -> None:
    inbox = Inbox[str]()
    for seconds in (-1.0, 0.0, 1e-9, 0.001):
        with pytest.raises(queue.Empty):
            inbox.get(seconds)
    inbox.put("a")
    inbox.put("b")
    assert [inbox.get(0), inbox.get(60)] == ["a", "b"]
    with pytest.raises(queue.Empty):  # the reader was told of both, and waits again
        inbox.get(0.001)
    late = threading.Thread(target=lambda: inbox.put("c"))
    late.start()
    assert inbox.get() == "c"
    late.join()
