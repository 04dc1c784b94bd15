"""Types that cells make of ctypes, and their instances."""

from __future__ import annotations

from pathlib import Path

from namespace_harness import dump, load

TYPES = """
import ctypes
class Point(ctypes.Structure):
    _fields_ = [('x', ctypes.c_int), ('y', ctypes.c_double * 2)]
    def sum(self): return self.x + sum(self.y)
class Deep(Point):
    _pack_ = 1
    _fields_ = [('tag', ctypes.c_char * 4), ('at', Point), ('low', ctypes.c_uint8, 3)]
class Either(ctypes.Union):
    _anonymous_ = ('both',)
    _fields_ = [('whole', ctypes.c_uint32), ('both', Point)]
class Node(ctypes.Structure): pass
Node._fields_ = [('next', ctypes.POINTER(Node)), ('value', ctypes.c_int)]
class Wire(ctypes.BigEndianStructure): _fields_ = [('size', ctypes.c_uint16)]
class Mine(ctypes.c_int): unit = 'm'
Three = ctypes.c_int * 3
p, d, e, w, m = Point(1, (2, 3)), Deep(), Either(258), Wire(258), Mine(5)
d.tag, d.at.x, d.low = b'abc', 7, 5
three, text, number = Three(1, 2, 3), ctypes.create_string_buffer(b'xyz'), ctypes.c_double(1.5)
both = [three, {'same': three}]
Swapped, Pointer = ctypes.c_uint16.__ctype_be__, ctypes.POINTER(ctypes.c_int)
"""


CHECKS = (
    "print(p.sum(), isinstance(p, Point), d.tag, d.at.x, d.low, type(d.at) is Point)",
    "print(ctypes.sizeof(Deep), Deep.__mro__[1] is Point, e.whole, e.x, bytes(w), w.size)",
    "print(m.value, m.unit, list(three), type(three) is ctypes.c_int * 3 is Three, text.value)",
    "both[0][0] = 9; print(three[0], both[1]['same'] is three, number.value)",
    "n = Node(None, 4); q = Node(ctypes.pointer(n), 1); print(q.next.contents.value)",
    "print(Swapped is ctypes.c_uint16.__ctype_be__, Pointer is ctypes.POINTER(ctypes.c_int))",
    "print(Point(4, (0, 0)).sum(), Point.x.offset, Point.y.size)",
)


def test_structures_unions_and_arrays_come_back(tmp_path: Path) -> None:
    before = dump(tmp_path / "before", TYPES, *CHECKS).printed[1:]
    assert before[3] == "9 True 1.5\n" and not any("Error" in text for text in before), before
    dumped = dump(tmp_path / "dumped", TYPES)
    assert dumped.lost == {}
    came = load(tmp_path / "dumped", dumped, *CHECKS)
    assert came.lost == {} and came.printed == before


def test_what_points_elsewhere_is_refused_alone(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        "import ctypes\n"
        "class Node(ctypes.Structure): _fields_ = [('text', ctypes.c_char_p)]\n"
        "n = Node(b'abc'); Made = ctypes.CFUNCTYPE(ctypes.c_int); made = Made(lambda: 3)\n"
        "at = ctypes.pointer(ctypes.c_int(1)); fine = Node()",
    )
    assert set(dumped.lost) == {"n", "fine", "Made", "made", "at"}
    assert "pointer" in dumped.lost["n"] and "C functions" in dumped.lost["Made"]
    came = load(tmp_path, dumped, "print(Node(b'x').text)")
    assert came.printed == ["b'x'\n"]
