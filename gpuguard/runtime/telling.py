"""Tells people: each configured form has a thread of its own, which a webhook may keep waiting and which keeps nobody.

`take` is called by the loop with each decision and only puts what follows from it into bounded queues. What does not
fit is dropped, counted and said. As notices are levels, whatever still stands is found again: at the start, and while
something is amiss or is to be repeated, a thread compares what stands with what it has told. So each notice that stands
is told at least once; one that came and went while its webhook was away never is.

One that was told is not told again before `repeat` is over. That it is over is told if, and only if, it was told
itself. Loaded only where a webhook is configured, as HTTP, TLS and tenacity are.
"""

import contextlib
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

import msgspec
import structlog

from gpuguard.errors import ActionRefused, ConfigInvalid, ReadFailed
from gpuguard.health.notices import notices, over, standing, unsettled
from gpuguard.health.state import Health
from gpuguard.model.events import AnyEvent
from gpuguard.model.health import Decision
from gpuguard.model.notices import FATES, URGENCIES, Fate, Notice
from gpuguard.notices import Message, Webhook
from gpuguard.ports import Clock
from gpuguard.runtime import webhook
from gpuguard.runtime.bundling import Bundles
from gpuguard.runtime.config import Config
from gpuguard.runtime.telling_settings import Settings, configured
from gpuguard.runtime.told import Told

log = structlog.get_logger()

HOUR: Final = 3600.0
# While something is amiss, or to be repeated, what stands is compared with what was told this often; where telling
# fails, less and less often. Units: seconds
LOOK_EVERY: Final = 60.0
LOOK_SELDOM: Final = 1800.0
ENDS_WITHIN: Final = 2.0

Bundle = Callable[[], str]


class Carrier(Protocol):
    """What brings a message to its receiver: runtime/webhook, or a test's own.

    Raises  ReadFailed when it was not taken now; ActionRefused or ConfigInvalid when it never will be as it is
    """

    def carry(self, message: Message) -> None: ...

    def close(self) -> None: ...


class Teller:
    """Tells through one form. `look` is everything that stands now; `counts` is added to, under "<form> <fate>"."""

    def __init__(
        self, name: str, form: ModuleType, webhook: Webhook, carrier: Carrier, *, settings: Settings, told: Told,
        clock: Clock, look: Callable[[], Health], node: str, counts: Counter[str], bundle: Bundle | None = None,
    ) -> None:  # fmt: skip
        self._name, self._form, self._webhook, self._carrier = name, form, webhook, carrier
        self._settings, self._told, self._clock, self._look = settings, told, clock, look
        self._node, self._counts, self._bundle = node, counts, bundle
        self._queue: queue.Queue[Notice | None] = queue.Queue(settings.queue)
        self._thread = threading.Thread(target=self.run, name=f"notify-{name}", daemon=True)
        self._dropped_said = 0
        self._behind = True  # whether something that stands may not have been told: so it is at the start
        self._looked: float | None = None
        self._look_every = LOOK_EVERY
        self._lately: deque[float] = deque(maxlen=settings.hourly)
        self._failing = ""
        for fate in FATES:
            counts[f"{name} {fate}"] += 0

    def offer(self, notice: Notice) -> None:
        """The notice waits for its turn, or is dropped and counted. Never blocks."""
        if not self._wanted(notice):
            return
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            self._count("dropped")
            self._behind = True

    def start(self) -> None:
        """Notices are carried from now on."""
        self._thread.start()

    def stop(self) -> None:
        """No notice is carried any more; the one under way is broken off."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        with contextlib.suppress(queue.Full):  # then it is at work, and looks at `ending` between two tries
            self._queue.put_nowait(None)
        self._carrier.close()
        if self._thread.is_alive():
            self._thread.join(ENDS_WITHIN)

    def run(self) -> None:
        """Tells until it is told to stop."""
        self.look()
        while True:
            try:
                notice = self._queue.get(timeout=self._wait())
            except queue.Empty:
                self.look()
                continue
            if notice is None:
                return
            self.tell(notice)

    def _wait(self) -> float | None:
        """Until the next look, in seconds; None while there is nothing to look for."""
        if not (self._behind or self._told.entries):
            return None
        due = (self._looked or 0.0) + (self._look_every if self._behind else LOOK_EVERY)
        return max(0.1, due - self._clock.now().mono)

    # --- what is to be told ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """What stands is told where it was not, or not for long; and what stands no longer is told to be over."""
        now, health = self._clock.now(), self._look()
        self._looked, self._behind = now.mono, False
        levels = standing(health, node=self._node)
        for key, entry in list(self._told.entries.items()):
            if key not in levels and not unsettled(health, entry.notice):
                self.tell(over(entry.notice, now, health))
        for notice in levels.values():
            if self._wanted(notice):
                self.tell(notice)
        self._look_every = min(2 * self._look_every, LOOK_SELDOM) if self._behind else LOOK_EVERY

    def tell(self, notice: Notice) -> None:
        """The notice was told, unless it needs not be; one that could not be is looked for again later."""
        self._say_dropped()
        entry, utc = self._told.entries.get(notice.key), self._clock.now().utc or 0.0
        if notice.until is not None:
            if entry is None:
                return  # it was never told
            notice = msgspec.structs.replace(notice, since=entry.notice.since)
        elif entry is not None and not self._to_repeat(entry.utc, utc):
            return
        elif entry is None and not self._room(notice):
            self._count("kept_back")
            self._behind = True
            return
        if notice.urgency == "page" and notice.until is None and self._bundle is not None:
            notice = msgspec.structs.replace(notice, bundle=self._bundle())
        if not self._carried(notice, utc):
            self._behind = True
            return
        if notice.until is None:
            self._told.begin(notice, utc)
            self._lately.append(self._clock.now().mono)
        else:
            self._told.end(notice.key)

    def _wanted(self, notice: Notice) -> bool:
        return URGENCIES.index(notice.urgency) <= URGENCIES.index(self._webhook.at_least)

    def _to_repeat(self, last: float, now: float) -> bool:
        # A clock that was set back is no reason to be silent for years.
        return self._webhook.repeat > 0 and not 0.0 <= now - last < self._webhook.repeat

    def _room(self, notice: Notice) -> bool:
        full = len(self._lately) == self._lately.maxlen and self._clock.now().mono - self._lately[0] < HOUR
        return notice.urgency == "page" or not full

    # --- telling it --------------------------------------------------------------------------------------------------

    def _carried(self, notice: Notice, utc: float) -> bool:
        message: Message = self._form.render(notice, self._webhook, utc)
        try:
            self._carrier.carry(message)
        except (ReadFailed, ActionRefused, ConfigInvalid) as error:
            self._count("failed")
            self._failing = str(error)
            log.warning(
                "notice.not_told", form=self._name, notice=notice.event, subject=notice.subject, reason=str(error)
            )
            return False
        self._count("sent")
        if self._failing:
            log.info("notices.told_again", form=self._name)
            self._failing = ""
        log.info(
            "notice.told", form=self._name, notice=notice.event, subject=notice.subject, mark=notice.mark,
            standing=notice.until is None,
        )  # fmt: skip
        if self._told.failure:
            log.warning("notices.not_remembered", reason=self._told.failure)
        return True

    def _count(self, fate: Fate) -> None:
        self._counts[f"{self._name} {fate}"] += 1

    def _say_dropped(self) -> None:
        dropped = self._counts[f"{self._name} dropped"]
        if dropped > self._dropped_said:
            log.warning(
                "notices.dropped", form=self._name, dropped=dropped - self._dropped_said,
                reason="more came than the receiver takes; what still stands is told later",
            )  # fmt: skip
            self._dropped_said = dropped


class Telling:
    """All forms that are configured. `take` before `start` does nothing: `start` looks at everything that stands."""

    def __init__(self, tellers: Iterable[Teller], node: str, ending: threading.Event) -> None:
        self._tellers, self._node, self._ending = tuple(tellers), node, ending
        self._health: Health | None = None

    def health(self) -> Health:
        """The newest health that was taken; called by tellers, which exist only after `start`."""
        assert self._health is not None
        return self._health

    def adopt(self, tellers: Iterable[Teller]) -> None:
        """These tell from now on."""
        self._tellers = tuple(tellers)

    def take(self, before: Health, after: Health, decision: Decision, event: AnyEvent) -> None:
        """What follows from the decision is on its way. Never blocks, and costs nothing where nothing changed."""
        if self._health is None:
            return
        self._health = after
        for notice in notices(before, after, decision, event, node=self._node):
            for teller in self._tellers:
                teller.offer(notice)

    def start(self, health: Health) -> None:
        """Everything that stands is told where it was not yet, and what comes from now on."""
        self._health = health
        for teller in self._tellers:
            teller.start()

    def stop(self) -> None:
        """Nothing is told any more; what was not yet is told after the next start, if it stands by then."""
        self._ending.set()
        for teller in self._tellers:
            teller.stop()


def build(
    config: Config, forms: Mapping[str, ModuleType], state_dir: Path, clock: Clock, counts: Counter[str], hostname: str
) -> Telling:
    """Who tells through the forms that are configured.

    Raises  ConfigInvalid
    """
    names = configured(config, forms)
    settings: Settings = config.settings("notify")
    for name in names:
        address = config.settings(f"notify.{name}").url
        if address:
            try:
                webhook.split(address)
            except ConfigInvalid as error:
                raise ConfigInvalid([f"[notify.{name}] url: {mistake}" for mistake in error.mistakes]) from error
    node, ending = settings.node or hostname.partition(".")[0], threading.Event()
    telling = Telling((), node, ending)
    bundle: Bundle | None = None
    if settings.bundle:
        bundle = Bundles(state_dir, clock, config.path).newest
    tellers = []
    for name in names:
        form = config.settings(f"notify.{name}")
        tellers.append(
            Teller(
                name, forms[name], form, webhook.Carrier(name, form, settings, ending), settings=settings,
                told=Told(state_dir, name), clock=clock, look=telling.health, node=node, counts=counts, bundle=bundle,
            )
        )  # fmt: skip
    telling.adopt(tellers)
    return telling
