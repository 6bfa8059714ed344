"""A cache keeps what was used last within its limit, finds what others hold, and never keeps a failure."""

import gc
from threading import Barrier, Thread

import pytest

from unmask.serving.cache import ResultCache


class Value:
    def __init__(self, size):
        self.size = size


def sized(limit):
    return ResultCache(limit, size=lambda key, value: value.size)


def test_the_values_used_last_are_kept_within_the_limit():
    cache = sized(10)
    for key in "abc":
        cache.get(key, lambda: Value(4))
    assert list(cache.values) == ["b", "c"]
    assert cache.used == 8
    cache.get("b", lambda: pytest.fail("made again"))
    cache.get("d", lambda: Value(5))
    assert list(cache.values) == ["b", "d"]
    assert cache.used == 9


def test_a_value_too_large_to_keep_is_found_as_long_as_somebody_holds_it():
    cache = sized(10)
    cache.get("small", lambda: Value(9))
    held = cache.get("large", lambda: Value(11))
    assert list(cache.values) == ["small"]
    assert cache.get("large", lambda: pytest.fail("made again")) is held
    del held
    gc.collect()
    assert cache.get("large", lambda: Value(12)).size == 12


def test_nothing_is_kept_of_what_failed():
    cache = sized(10)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.get("a", lambda: Value(1)).size == 1


def test_threads_that_make_the_same_value_share_one():
    cache, together, found = sized(10), Barrier(4), []

    def make():
        together.wait()
        return Value(3)

    threads = [Thread(target=lambda: found.append(cache.get("a", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert cache.used == 3
