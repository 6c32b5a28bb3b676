"""The fabric file: which switches and NVLink domains the nodes of a cluster hang on, told by a person.

No node can see the switches of its network by itself, so a site writes them down once, in TOML:

    form = "conf"                 # conf: topology.conf of any Slurm; yaml: topology.yaml of Slurm 25.05 and later
    plugin = "tree"               # tree or block; only where the file has both switches and blocks
    block_sizes = [18, 36]        # of blocks, in nodes; each the one before times 2, 4, 8, ...

    [switches.leaf1]
    nodes = "gpu[01-16]"          # as Slurm prints host lists; a list of such texts is fine too

    [switches.spine]
    switches = "leaf[1-4]"        # a switch has nodes or switches, never both
    speed = 400                   # optional, LinkSpeed of topology.conf

    [blocks.rack1]                # an NVLink domain beyond the node, as a rack of GB200
    nodes = "gb[01-18]"
    clique = "7ec9...f3.1"        # optional: the domain as `gpuguard topo --format labels` names it

Source    topology.conf(5) of Slurm 22.05 to 25.11, topology.yaml(5) of 25.05, and switch_record.c of the plugin
          topology/tree: a switch has one parent, a node one leaf
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Literal

from gpuguard.errors import ConfigInvalid
from gpuguard.topology.spelling import is_node
from gpuguard.topology.tables import load

# Slurm's own limit of one host list (MAX_RANGE in src/common/hostlist.c), and that of a name (HOST_NAME_MAX).
MOST_NODES = 65536
LONGEST_NAME = 64
# A file with a thousand mistakes has one cause; the first ones tell it.
MOST_MISTAKES = 50
FORMS = ("conf", "yaml")
PLUGINS = ("tree", "block")
KEYS = ("form", "plugin", "block_sizes", "switches", "blocks")
SWITCH_KEYS, BLOCK_KEYS = ("nodes", "switches", "speed"), ("nodes", "clique")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch of the network: a leaf has nodes, any other one switches; `told` is the list as it was written."""

    name: str
    told: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    speed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Nodes that one NVLink domain joins."""

    name: str
    told: str
    nodes: tuple[str, ...] = ()
    clique: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The fabric file, free of mistakes: switches are a forest, leaves before what is above them."""

    form: Literal["conf", "yaml"] = "conf"
    plugin: Literal["tree", "block"] = "tree"
    switches: tuple[Switch, ...] = ()
    blocks: tuple[Block, ...] = ()
    block_sizes: tuple[int, ...] = ()

    def above(self, node: str) -> tuple[str, ...]:
        """The switches above a node, its leaf first; none when it is not in the file."""
        found = [switch.name for switch in self.switches if node in switch.nodes][:1]
        while found:
            parents = [switch.name for switch in self.switches if found[-1] in switch.switches]
            if not parents:
                break
            found.append(parents[0])
        return tuple(found)

    def block(self, node: str) -> Block | None:
        """The block that a node is in."""
        return next((block for block in self.blocks if node in block.nodes), None)


@dataclass(slots=True)
class _Mistakes:
    """What is wrong with the file, each with its place and a next step."""

    found: list[str] = field(default_factory=list)

    def add(self, where: str, what: str) -> None:
        self.found.append(f"fabric file: {where}: {what}")

    def stop(self) -> None:
        if self.found:
            more = len(self.found) - MOST_MISTAKES
            raise ConfigInvalid([*self.found[:MOST_MISTAKES], *([f"and {more} more"] if more > 0 else [])])


def read(text: str) -> Fabric:
    """The fabric that this file tells of.

    Raises  ConfigInvalid with every mistake at once
    """
    try:
        table = load(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise ConfigInvalid([f"fabric file: not TOML: {str(error)[:200]}; correct it"]) from error
    wrong = _Mistakes()
    _known(table, KEYS, "the file", wrong)
    switches = tuple(_switches(_tables(table, "switches", wrong), wrong))
    blocks = tuple(_blocks(_tables(table, "blocks", wrong), wrong))
    if not (switches or blocks or wrong.found):
        wrong.add("the file", "has neither switches nor blocks; write at least one [switches.NAME] with nodes")
    _once([(switch.name, node) for switch in switches for node in switch.nodes], "leaf switches", wrong)
    _once([(block.name, node) for block in blocks for node in block.nodes], "blocks", wrong)
    ordered = _forest(switches, wrong)
    form = _choice(table, "form", FORMS, wrong)
    plugin = _choice(table, "plugin", PLUGINS, wrong)
    for word, there in (("tree", switches), ("block", blocks)):
        if plugin == word and not there:
            wrong.add("plugin", f"is {word}, and the file has no {'switches' if word == 'tree' else 'blocks'}")
    sizes = _sizes(table.get("block_sizes", []), wrong)
    wrong.stop()
    return Fabric(
        form="yaml" if form == "yaml" else "conf",
        plugin="block" if plugin == "block" or (plugin is None and not switches) else "tree",
        switches=ordered, blocks=blocks, block_sizes=sizes,
    )  # fmt: skip


# --- tables ----------------------------------------------------------------------------------------------------------


def _tables(table: Mapping[str, object], key: str, wrong: _Mistakes) -> Iterator[tuple[str, Mapping[str, object]]]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        wrong.add(key, f"is no table; write [{key}.NAME] for each")
        return
    for name, entry in found.items():
        if not isinstance(entry, dict):
            wrong.add(f"{key}.{_short(name)}", f"is no table; write [{key}.NAME] with nodes below it")
        elif not is_node(name) or len(name) > LONGEST_NAME:
            wrong.add(f"{key}.{_short(name)}", "is no name for Slurm; use letters, digits, -, _ and ., 64 at most")
        else:
            yield name, entry


def _switches(tables: Iterator[tuple[str, Mapping[str, object]]], wrong: _Mistakes) -> Iterator[Switch]:
    for name, table in tables:
        where = f"switches.{name}"
        _known(table, SWITCH_KEYS, where, wrong)
        if ("nodes" in table) == ("switches" in table):
            wrong.add(where, "needs either nodes (a leaf) or switches (what is above leaves), and not both")
            continue
        told, hosts = _hosts(table, "nodes" if "nodes" in table else "switches", where, wrong)
        speed = table.get("speed")
        if speed is not None and (isinstance(speed, bool) or not isinstance(speed, int) or not 0 < speed < 2**32):
            wrong.add(f"{where}.speed", "is no whole number above 0; write one, as 400, or leave it out")
            speed = None
        leaf = "nodes" in table
        yield Switch(
            name=name, told=told, nodes=hosts if leaf else (), switches=() if leaf else hosts,
            speed=speed if isinstance(speed, int) else None,
        )  # fmt: skip


def _blocks(tables: Iterator[tuple[str, Mapping[str, object]]], wrong: _Mistakes) -> Iterator[Block]:
    for name, table in tables:
        where = f"blocks.{name}"
        _known(table, BLOCK_KEYS, where, wrong)
        if "nodes" not in table:
            wrong.add(where, "has no nodes; write which nodes the domain joins")
            continue
        told, hosts = _hosts(table, "nodes", where, wrong)
        clique = table.get("clique")
        if clique is not None and not (isinstance(clique, str) and clique):
            wrong.add(f"{where}.clique", 'is no text; write it as "UUID.NUMBER", or leave it out')
        yield Block(name=name, told=told, nodes=hosts, clique=clique if isinstance(clique, str) else None)


def _known(table: Mapping[str, object], keys: tuple[str, ...], where: str, wrong: _Mistakes) -> None:
    for key in table:
        if key in KEYS and key not in keys:
            wrong.add(where, f"has the key {key}, which belongs above the first table of the file")
        elif key not in keys:
            wrong.add(where, f"has an unknown key {_short(key)}; there are {', '.join(keys)}")


def _choice(table: Mapping[str, object], key: str, words: tuple[str, ...], wrong: _Mistakes) -> str | None:
    value = table.get(key)
    if value is not None and value not in words:
        wrong.add(key, f"is {_short(str(value))}; write {' or '.join(words)}")
    return value if isinstance(value, str) else None


def _sizes(value: object, wrong: _Mistakes) -> tuple[int, ...]:
    """Sizes of blocks: each is the one before, doubled once or more."""
    if not isinstance(value, list) or any(isinstance(size, bool) or not isinstance(size, int) for size in value):
        wrong.add("block_sizes", "is no list of whole numbers; write for example [18, 36]")
        return ()
    if any(size <= 0 for size in value) or any(not _doubled(before, after) for before, after in pairwise(value)):
        wrong.add("block_sizes", f"is {_short(str(value))}; each must be the one before times 2, 4, 8 or so on")
    return tuple(value)


def _doubled(before: int, after: int) -> bool:
    times, rest = divmod(after, before) if before > 0 else (0, 1)
    return rest == 0 and times > 1 and times & (times - 1) == 0


# --- host lists ------------------------------------------------------------------------------------------------------


def _hosts(table: Mapping[str, object], key: str, where: str, wrong: _Mistakes) -> tuple[str, tuple[str, ...]]:
    """A host list as it was written, in one text, and the names that it stands for."""
    value = table[key]
    written = value if isinstance(value, list) else [value]
    parts = [part for part in written if isinstance(part, str) and part]
    if not parts or len(parts) < len(written):
        wrong.add(f"{where}.{key}", "is no host list; write for example gpu[01-16]")
        return "", ()
    told = re.sub(r"\s+", "", ",".join(parts))
    try:
        found = expand(told)
    except ValueError as error:
        wrong.add(f"{where}.{key}", str(error))
        return told, ()
    seen: set[str] = set()
    for name in found:
        if name in seen:
            wrong.add(f"{where}.{key}", f"names {name} twice; name it once")
        seen.add(name)
    return told, found


def expand(told: str) -> tuple[str, ...]:
    """The names that a host list stands for, as Slurm prints one: "gpu[1-3,07],login" are five.

    Raises  ValueError with a next step
    """
    found: list[str] = []
    for part in _parts(told):
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        names = [pieces[0]]
        for ranges, rest in zip(pieces[1::2], pieces[2::2], strict=True):
            numbers = list(islice(_range(ranges), MOST_NODES + 1))
            if len(names) * len(numbers) + len(found) > MOST_NODES:
                raise ValueError(f"is longer than {MOST_NODES} names; a host list of Slurm is not")
            names = [f"{name}{number}{rest}" for name in names for number in numbers]
        for name in names:
            if not is_node(name):
                raise ValueError(f"{_short(name)} is no name; write for example gpu[01-16] or gpu01,gpu02")
        found += names
        if len(found) > MOST_NODES:
            raise ValueError(f"is longer than {MOST_NODES} names; a host list of Slurm is not")
    return tuple(found)


def _parts(told: str) -> Iterator[str]:
    """What stands between the commas outside of brackets."""
    start, inside = 0, False
    for found in re.finditer(r"[\[\],]", told):
        if found[0] != ",":
            inside = found[0] == "["
        elif not inside:
            yield told[start : found.start()]
            start = found.end()
    yield told[start:]


def _range(told: str) -> Iterator[str]:
    """The numbers of "1-3,07": as many digits as the first one of a range has, at least."""
    for part in told.split(","):
        first, dash, last = part.partition("-")
        if not re.fullmatch(r"[0-9]{1,9}", first) or (dash and not re.fullmatch(r"[0-9]{1,9}", last)):
            raise ValueError(f"[{_short(told)}] is no list of numbers; write for example [1-3,7]")
        low, high = int(first), int(last) if dash else int(first)
        if not low <= high < low + MOST_NODES:
            raise ValueError(f"[{_short(part)}] is no range; the lower number comes first")
        for number in range(low, high + 1):
            yield f"{number:0{len(first)}d}"


# --- the whole -------------------------------------------------------------------------------------------------------


def _once(pairs: list[tuple[str, str]], what: str, wrong: _Mistakes) -> None:
    """Each node is in one of them alone."""
    where: dict[str, list[str]] = {}
    for name, node in pairs:
        where.setdefault(node, []).append(name)
    for node, named in where.items():
        owners = list(dict.fromkeys(named))
        if len(owners) > 1:
            wrong.add(node, f"is in {len(owners)} {what}, {', '.join(owners[:5])}; leave it in one")


def _forest(switches: tuple[Switch, ...], wrong: _Mistakes) -> tuple[Switch, ...]:
    """The switches, children before parents."""
    by_name = {switch.name: switch for switch in switches}
    parents: dict[str, list[str]] = {}
    for switch in switches:
        for child in switch.switches:
            if child not in by_name:
                wrong.add(f"switches.{switch.name}", f"has an unknown child {child}; add [switches.{child}] or drop it")
            parents.setdefault(child, []).append(switch.name)
    for child, above in parents.items():
        if len(above) > 1:
            names = ", ".join(above[:5])
            wrong.add(
                f"switches.{child}", f"is below {names}; Slurm's tree wants one: write switches of one level as one"
            )
    waiting = {one.name: sum(child in by_name for child in one.switches) for one in switches}
    ready = [one.name for one in switches if not waiting[one.name]]
    for name in ready:  # grows while it is walked
        for parent in parents.get(name, ()):
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    if len(ready) < len(switches):
        circle = ", ".join(_circle(by_name, set(by_name) - set(ready))[:5])
        wrong.add("switches", f"{circle} are below each other in a circle; a tree has an end: drop one of them")
    return tuple(by_name[name] for name in ready)


def _circle(switches: Mapping[str, Switch], stuck: set[str]) -> list[str]:
    """The switches of one circle: from any that waits, down to what it waits for, until one comes again."""
    walked: dict[str, int] = {}
    name = min(stuck)
    while name not in walked:
        walked[name] = len(walked)
        name = next(child for child in switches[name].switches if child in stuck)
    return list(walked)[walked[name] :]


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
