"""Buffers of large bodies: used again, never while somebody still has a view, and bounded."""

from galley.protocols.http.large_bodies import LargeBodies

MIB = 2**20


def test_a_buffer_is_used_again_once_nobody_has_a_view() -> None:
    bodies = LargeBodies()
    first = bodies.take(MIB)
    first[:3] = b"one"
    part = first[:3]
    del first
    second = bodies.take(MIB)
    second[:3] = b"two"
    assert bytes(part) == b"one"
    del part
    third = bodies.take(MIB - 1)
    assert len(third) == MIB - 1
    assert bytes(third[:3]) == b"one"  # the memory of the first
    assert bytes(second[:3]) == b"two"


def test_what_is_kept_is_bounded() -> None:
    bodies = LargeBodies()
    views = [bodies.take(20 * MIB) for _ in range(6)]
    for number, view in enumerate(views):
        assert len(view) == 20 * MIB
        view[-1] = number
    assert [view[-1] for view in views] == list(range(6))
    assert sum(map(len, bodies._kept)) <= 64 * MIB
    del view, views
    assert len(bodies.take(50 * MIB)) == 50 * MIB
    assert sum(map(len, bodies._kept)) <= 64 * MIB
