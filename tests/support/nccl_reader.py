"""A reader of NCCL's topology files that is as narrow as NCCL's own: what it takes, NCCL takes.

Source    NCCL src/graph/xml.cc: no declaration, no entities, exactly one blank before an attribute, no tab between
          elements, at most 254 letters in a name or a value, 16 attributes, and 32 elements in one (in 2.18)
"""

from dataclasses import dataclass, field

MOST_LETTERS, MOST_ATTRIBUTES, MOST_INSIDE = 254, 16, 32
ALLOWED = {
    "system": {"cpu"}, "cpu": {"pci", "nic"}, "pci": {"pci", "gpu", "nic"}, "gpu": {"nvlink", "c2c"}, "nic": {"net"},
    "nvlink": set(), "c2c": set(), "net": set(),
}  # fmt: skip


@dataclass
class Node:
    """One element."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    inside: list["Node"] = field(default_factory=list)

    def all(self, name: str) -> list["Node"]:
        """Every element of this name below, in order."""
        return [found for child in self.inside for found in ([child] * (child.name == name) + child.all(name))]


def read(text: str) -> Node:
    """The `system` of this file.

    Raises  ValueError where NCCL would stop, or would ignore an element
    """
    reader = _Reader(text)
    found = reader.element()
    if found is None or found.name != "system" or found.attributes.get("version") != "1":
        raise ValueError("no system of version 1")
    if reader.element() is not None:
        raise ValueError("something after the system")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def next(self) -> str:
        if self.at >= len(self.text):
            raise ValueError("unexpected end")
        self.at += 1
        return self.text[self.at - 1]

    def element(self) -> Node | None:
        """The next element with all that is inside; None at the end of the file."""
        node, single = self.tag()
        if node is None or single:
            return node
        while True:
            child, ends = self.tag()
            if child is None:
                raise ValueError(f"{node.name} has no end")
            if child.name.startswith("/"):
                if child.name != f"/{node.name}":
                    raise ValueError(f"{node.name} ends as {child.name}")
                return node
            if child.name not in ALLOWED[node.name]:
                raise ValueError(f"{child.name} in {node.name} is ignored")
            if not ends:
                self.at = self.start
                inner = self.element()
                assert inner is not None
                child = inner
            node.inside.append(child)
            if len(node.inside) > MOST_INSIDE:
                raise ValueError(f"more than {MOST_INSIDE} in {node.name}")

    def tag(self) -> tuple[Node | None, bool]:
        """One tag, and whether it ends itself; comments are passed over."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \n\r":
                self.at += 1
            if self.at == len(self.text):
                return None, True
            self.start = self.at
            if self.next() != "<":
                raise ValueError(f"expected <, got {self.text[self.start]!r}")
            if not self.text.startswith("!--", self.at):
                break
            end = self.text.find("-->", self.at)
            if end < 0:
                raise ValueError("a comment without end")
            self.at = end + 3
        name, after = self.token(" >/\n\r")
        if not name and after == "/":
            name, after = self.token(" >/\n\r")
            return Node(f"/{name}"), after == ">"
        if name not in ALLOWED:
            raise ValueError(f"unknown element {name}")
        node = Node(name)
        while after == " ":
            key, _ = self.token("=")
            if self.next() != '"':
                raise ValueError(f"{key} has no quote")
            value, _ = self.token('"')
            after = self.next()
            if "&" in value or not key.isidentifier():
                raise ValueError(f"{key}={value} is not read as it was meant")
            node.attributes[key] = value
        if len(node.attributes) > MOST_ATTRIBUTES:
            raise ValueError(f"more than {MOST_ATTRIBUTES} attributes")
        single = after == "/"
        if single:
            after = self.next()
        if after != ">":
            raise ValueError(f"expected >, got {after!r}")
        return node, single

    def token(self, ends: str) -> tuple[str, str]:
        found = ""
        while (letter := self.next()) not in ends:
            found += letter
            if len(found) > MOST_LETTERS:
                raise ValueError(f"{found[:20]}... is too long")
        return found, letter
