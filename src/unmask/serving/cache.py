"""Cache: values that requests share, up to a limit of memory.

A value that a running request holds is found as well, even if it is too large to be kept or had to go.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

Value = TypeVar("Value")


class ResultCache(Generic[Value]):
    """The values used last; `size` of a key and its value, at most `limit` together. Several threads may use it."""

    def __init__(self, limit: int, size: Callable[[Any, Value], int]) -> None:
        self.limit, self.size = limit, size
        self.used = 0
        self.values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self.held: WeakValueDictionary[Hashable, Value] = WeakValueDictionary()
        self.lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made if there is none; nothing is kept if `make` fails."""
        with self.lock:
            entry = self.held.get(key)
            if key in self.values:
                self.values.move_to_end(key)
        if entry is not None:
            return entry
        value = make()
        with self.lock:
            value = self.held.setdefault(key, value)  # another thread may have been faster
            size = self.size(key, value)
            if key not in self.values and size <= self.limit:
                self.values[key] = (value, size)
                self.used += size
            while self.used > self.limit:
                self.used -= self.values.popitem(last=False)[1][1]
        return value
