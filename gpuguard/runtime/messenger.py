"""Carries what is owed to its target, one thing at a time, and looks now and then whether our drain still stands there.

Whoever takes our drain away is to be obeyed, and says nothing to us. So while one stands, the target is asked about it;
when it twice says that the drain is somebody else's, or nobody's, the core hears of it as of a wish that was refused.
"""

import queue
import threading
from collections.abc import Callable
from typing import Final

import structlog

from gpuguard.custody.ownership import judge
from gpuguard.model.actions import LET_GO, Action
from gpuguard.model.events import ActionOutcome, Batch
from gpuguard.model.ids import EventId, TokenId
from gpuguard.ports import Actuator, Clock
from gpuguard.runtime.mailbox import Mailbox
from gpuguard.runtime.supervise import perform_safely, read_safely

log = structlog.get_logger()

# How often a drain that stands is looked at; it costs the scheduler one question. Units: seconds
LOOK_EVERY: Final = 120.0
# A node changes its words for a moment while somebody works on it: so many looks in a row have to agree.
LOOKS: Final = 2
# Until a reset that is under way is asked after again, and somewhat longer. Units: seconds
LET_GO_FOR: Final = 20.0


class Messenger:
    """Works in a thread of its own, and brings outcomes back as events.

    `let_go` makes sources let go of the GPUs for so many seconds; `standing` gives the token of our drain while it
    stands for real, else None.
    """

    def __init__(
        self, actuator: Actuator, clock: Clock, mailbox: Mailbox, *,
        let_go: Callable[[float], None] = lambda seconds: None,
        standing: Callable[[], TokenId | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._actuator, self._clock, self._mailbox = actuator, clock, mailbox
        self._let_go, self._standing = let_go, standing
        self._queue: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="messenger", daemon=True)
        self._sent = 0
        self._missed = 0
        self._looked_for: TokenId | None = None
        self._unread: str | None = None

    def start(self) -> None:
        """Actions are carried from now on."""
        self._thread.start()

    def send(self, action: Action) -> None:
        """The action is on its way."""
        self._queue.put(action)

    def stop(self) -> None:
        """Nothing more is carried once what is under way has ended."""
        self._queue.put(None)

    def _work(self) -> None:
        while True:
            try:
                action = self._queue.get(timeout=LOOK_EVERY)
            except queue.Empty:
                self.look()
                continue
            if action is None:
                return
            self.carry(action)

    def carry(self, action: Action) -> None:
        """The action was performed, or its outcome says why not; the core will hear of it."""
        outcome = perform_safely(self._actuator, action)
        if outcome.node_state == LET_GO:
            self._let_go(LET_GO_FOR)
        log.info("action.answered", key=action.key, result=outcome.result, message=outcome.message)
        self._put(
            ActionOutcome(
                id=self._id(action.key), at=self._clock.now(), key=action.key, result=outcome.result,
                message=outcome.message, retry_after=outcome.retry_after, node_state=outcome.node_state,
            )
        )  # fmt: skip

    def look(self) -> None:
        """The core hears of it when our drain stands no longer; what cannot be told is no news, and said once."""
        token = self._standing()
        if token != self._looked_for:
            self._looked_for, self._missed = token, 0
        if token is None:
            return
        report = read_safely(self._actuator)
        if report.error != self._unread:
            self._unread = report.error
            if report.error is not None:
                log.warning("drain.unseen", token=token, reason=report.error)
        judgement = judge(report, "update_reason", token)
        if judgement.call != "never":
            self._missed = 0
            return
        self._missed += 1
        if self._missed < LOOKS:
            return
        self._missed = 0
        log.warning("drain.taken_away", token=token, state=report.state, reason=report.reason)
        key = f"update_reason:{token}:seen"
        self._put(
            ActionOutcome(
                id=self._id(key), at=self._clock.now(), key=key, result="foreign", node_state=report.state,
                message=f"{judgement.why}; {report.node} is {report.state}",
            )
        )  # fmt: skip

    def _put(self, event: ActionOutcome) -> None:
        self._mailbox.put(Batch(source="actuator", events=(event,)))

    def _id(self, key: str) -> EventId:
        now = self._clock.now()
        self._sent += 1
        return EventId(f"outcome:{key}:{now.boot[:8]}:{now.mono:.3f}:{self._sent}")
