"""A pickle read as what it is, a list of instructions, of which only those that make plain values are obeyed.

Reads   numbers, texts, None, true and false, lists, tuples and dicts, nested and referred to again. An instruction that
        would look up, call or build anything else is refused by its name: nothing that a pickle names is ever imported
Shape   protocol 2 or later, as libtorch's own pickler (2) and Python's write it; what follows STOP is not looked at
Raises  NotUnderstood, with the instruction or what is wrong, and at which byte
Source  Python Lib/pickletools.py; PyTorch torch/csrc/jit/serialization/pickler.cpp (pickle_str: no type tags, so that
        a dump has no GLOBAL and no REDUCE)

Memory grows with the file: a value is made once however often it is referred to, and none is ever walked here. Whoever
reads what a stranger wrote does it in a process with a limit.
"""

import pickletools
import struct
from collections.abc import Callable
from typing import BinaryIO

from gpuguard.errors import NotUnderstood

CHUNK = 256 * 1024
# A dump nests seven deep: the list of calls, a call, its sizes, those of one tensor.
MARKS = 64
STACK = 2**21  # values that wait to be put into something: all calls of one dump do
TEXT = 2**20  # bytes of one text; the longest in a dump is a path
SCALARS = (str, int, float, bool, type(None))  # what a key may be: a tuple of tuples would be hashed by recursion

Fold = Callable[[dict[object, object]], object]


def read_pickle(stream: BinaryIO, fold: Fold | None = None) -> object:
    """The value that the pickle describes. Each dict is handed to `fold` once it is filled in one go, and what that
    gives back stands in its place, except where the pickle refers to it again.

    Raises  NotUnderstood
    """
    return _Machine(stream, fold).run()


class _Machine:
    """The pickle's stack, its marks and its memo, while it is read."""

    def __init__(self, stream: BinaryIO, fold: Fold | None) -> None:
        self._stream, self._fold = stream, fold
        self._bytes, self._at, self._before = b"", 0, 0
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}

    def run(self) -> object:
        if self._take(1) != b"\x80":
            raise NotUnderstood("no pickle of protocol 2 or later: it does not begin with PROTO")
        version = self._take(1)[0]
        if not 2 <= version <= 5:
            raise self._wrong(f"protocol {version}; 2 to 5 are understood")
        while True:
            if self._at == len(self._bytes):
                self._more(1)
            code = self._bytes[self._at]  # not by _take: half of all the work is here
            self._at += 1
            if code == _STOP:
                break
            step = _STEPS.get(code)
            if step is None:
                raise self._wrong(f"instruction {_name(code)}, which no dump needs; nothing of it was carried out")
            step(self)
        if len(self._stack) != 1 or self._marks:
            raise self._wrong("STOP comes before everything is put together")
        return self._stack[0]

    # --- bytes -------------------------------------------------------------------------------------------------------

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._bytes):
            self._more(length)
            end = length
        taken = self._bytes[self._at : end]
        self._at = end
        return taken

    def _more(self, length: int) -> None:
        """So many bytes, or more, are at hand from here on."""
        self._before += self._at
        rest = self._bytes[self._at :]
        self._bytes, self._at = rest + self._stream.read(max(CHUNK, length - len(rest))), 0
        if length > len(self._bytes):
            raise self._wrong("it ends in the middle: it is still being written, or was cut off")

    def _number(self, length: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(length), "little", signed=signed)

    def _wrong(self, what: str) -> NotUnderstood:
        return NotUnderstood(f"{what} (at byte {self._before + self._at})")

    # --- stack -------------------------------------------------------------------------------------------------------

    def push(self, value: object) -> None:
        if len(self._stack) >= STACK:
            raise self._wrong(f"more than {STACK} values wait")
        self._stack.append(value)

    def pop(self) -> object:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise self._wrong("a value is taken where there is none")
        return self._stack.pop()

    def mark(self) -> None:
        if len(self._marks) >= MARKS:
            raise self._wrong(f"nested deeper than {MARKS}")
        self._marks.append(len(self._stack))

    def _since_mark(self) -> list[object]:
        if not self._marks:
            raise self._wrong("a mark is used where there is none")
        begin = self._marks.pop()
        values = self._stack[begin:]
        del self._stack[begin:]
        return values

    def _top(self) -> object:
        value = self.pop()
        self._stack.append(value)
        return value

    # --- instructions ------------------------------------------------------------------------------------------------

    def frame(self) -> None:
        self._take(8)

    def integer(self, length: int, *, signed: bool = False) -> None:
        self.push(self._number(length, signed=signed))

    def long(self) -> None:
        self.push(self._number(self._number(1), signed=True))

    def real(self) -> None:
        self.push(struct.unpack(">d", self._take(8))[0])

    def text(self, length: int) -> None:
        size = self._number(length)
        if size > TEXT:
            raise self._wrong(f"a text of {size} bytes; at most {TEXT} are taken")
        self.push(self._take(size).decode("utf-8", "replace"))

    def tuple_of(self, length: int) -> None:
        values = [self.pop() for _ in range(length)]
        self.push(tuple(reversed(values)))

    def tuple_since_mark(self) -> None:
        self.push(tuple(self._since_mark()))

    def append(self) -> None:
        value = self.pop()
        self._list().append(value)

    def appends(self) -> None:
        values = self._since_mark()
        self._list().extend(values)

    def _list(self) -> list[object]:
        into = self._top()
        if not isinstance(into, list):
            raise self._wrong("something is appended to what is no list")
        return into

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self._set([key, value])

    def set_items(self) -> None:
        self._set(self._since_mark())

    def _set(self, pairs: list[object]) -> None:
        into = self._top()
        if not isinstance(into, dict) or len(pairs) % 2:
            raise self._wrong("keys and values are put into what is no dict, or are no pairs")
        for key in pairs[::2]:
            if not isinstance(key, SCALARS):
                raise self._wrong(f"a {type(key).__name__} as a key")
        into.update(zip(pairs[::2], pairs[1::2], strict=True))
        if self._fold is not None:
            self._stack[-1] = self._fold(into)

    def put(self, length: int) -> None:
        self._memo[self._number(length)] = self._top()

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._top()

    def get(self, length: int) -> None:
        number = self._number(length)
        if number not in self._memo:
            raise self._wrong(f"it refers to value {number}, which it never had")
        self.push(self._memo[number])


_CODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
_STOP = _CODES["STOP"]
_STEPS: dict[int, Callable[[_Machine], None]] = {
    _CODES[name]: step
    for name, step in (
        ("FRAME", _Machine.frame), ("MARK", _Machine.mark), ("NONE", lambda m: m.push(None)),
        ("NEWTRUE", lambda m: m.push(True)), ("NEWFALSE", lambda m: m.push(False)),
        ("BININT", lambda m: m.integer(4, signed=True)), ("BININT1", lambda m: m.integer(1)),
        ("BININT2", lambda m: m.integer(2)), ("LONG1", _Machine.long), ("BINFLOAT", _Machine.real),
        ("SHORT_BINUNICODE", lambda m: m.text(1)), ("BINUNICODE", lambda m: m.text(4)),
        ("BINUNICODE8", lambda m: m.text(8)),
        ("EMPTY_DICT", lambda m: m.push({})), ("EMPTY_LIST", lambda m: m.push([])),
        ("EMPTY_TUPLE", lambda m: m.push(())), ("TUPLE", _Machine.tuple_since_mark),
        ("TUPLE1", lambda m: m.tuple_of(1)), ("TUPLE2", lambda m: m.tuple_of(2)), ("TUPLE3", lambda m: m.tuple_of(3)),
        ("APPEND", _Machine.append), ("APPENDS", _Machine.appends),
        ("SETITEM", _Machine.set_item), ("SETITEMS", _Machine.set_items),
        ("BINPUT", lambda m: m.put(1)), ("LONG_BINPUT", lambda m: m.put(4)), ("MEMOIZE", _Machine.memoize),
        ("BINGET", lambda m: m.get(1)), ("LONG_BINGET", lambda m: m.get(4)),
    )
}  # fmt: skip


def _name(code: int) -> str:
    return next((name for name, known in _CODES.items() if known == code), f"of byte {code:#04x}")
