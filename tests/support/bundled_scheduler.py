"""The bundled scheduler without its daemon: the real door over real lives of nodes, with a clock that stands."""

import msgspec

from gpuguard.model.door import NODES, NodePage
from gpuguard.scheduler import door
from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.nodes import NodeDecision, NodeEvent, NodeLife, born, fold, tick
from gpuguard.scheduler.settings import Care

CARE = Care()


class Scheduler:
    """Keeps the door and the lives as the daemon will: what is written is folded before the next question."""

    def __init__(self, *nodes: str, now: int = 1_750_000_000) -> None:
        self.now = now
        self.door = door.Door()
        self.lives: dict[str, NodeLife] = {}
        self.decisions: list[NodeDecision] = []
        # What was asked, and by whom something was changed.
        self.asked: list[tuple[str, str]] = []
        self.writes: list[tuple[str, bytes]] = []
        for node in nodes:
            self.tell(NodeJoined(at=now - 3600, node=node, gpus=8))

    def tell(self, *events: NodeEvent) -> None:
        """Happens to a node by another way than the door."""
        for event in events:
            if event.node not in self.lives and isinstance(event, NodeJoined):
                self.lives[event.node] = born(event)
            elif event.node in self.lives:
                self.lives[event.node], decisions, _ = fold(self.lives[event.node], event, CARE)
                self.decisions += decisions

    def pass_time(self, seconds: int) -> None:
        """All that falls due meanwhile has happened."""
        self.now += seconds
        for node, life in self.lives.items():
            self.lives[node], decisions = tick(life, self.now, CARE)
            self.decisions += decisions

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of one question."""
        self.asked.append((method, path))
        reply = door.answer(self.door, self.lives, method, path, body, self.now)
        self.door = reply.door
        self.tell(*reply.events)
        if method == "PUT" and reply.status == 200:
            self.writes.append((path, body))
        return reply.status, reply.body

    def page(self, node: str) -> NodePage:
        """What the door says of the node, unless it is asked by somebody who is counted."""
        reply = door.answer(self.door, self.lives, "GET", f"{NODES}{node}", b"", self.now)
        return msgspec.json.decode(reply.body, type=NodePage)

    def mark(self, node: str, *marks: door.Mark) -> None:
        """The operator says what goes on with the node."""
        self.door = door.mark(self.door, node, *marks)
