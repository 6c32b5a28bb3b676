"""When a job that hangs is started anew: off unless the site turns it on, finitely often, less and less often.

Theory. A job is due when it has been hung for `restart_after` seconds, told by a finding that is sure (degraded), while
its scheduler has it run here and says how often it was started anew. That count is what makes the action harmless: the
target starts the job anew only while the count is still the same, so two nodes of one job that both see the hang, or
one node that sends twice, do it once. A job whose scheduler cannot be asked is left alone.
Each start anew waits twice as long as the one before, there are `restart_tries` in a day on this node, and a job that
was started anew `restart_most` times by whomever is left to people: it would hang for ever, on one node after another.
A hang that goes away, be it that the job moves, ends or a person acknowledges it, cancels what was not yet done.
"""

from gpuguard.health import errands
from gpuguard.health.errands import Errand, Settled, Wanted
from gpuguard.health.policy import Settings
from gpuguard.health.state import Health
from gpuguard.model.events import AnyEvent
from gpuguard.model.health import Standing
from gpuguard.model.ids import SubjectId
from gpuguard.model.instants import seconds_between
from gpuguard.model.readings import merged

CODE = "job_hung"
OF_SLURM = "job:slurm/"
DAY = 86400.0


def settle(health: Health, event: AnyEvent, settings: Settings) -> Settled:
    """What is owed for hung jobs as things stand now."""
    hung = _hung(health) if settings.restart_hung and health.pause is None else {}

    def wanted(errand: Errand) -> Wanted:
        if errand.subject in hung:
            return "keep"
        return "cancel" if errands.recent(errand, event.at, DAY) else "drop"

    if not hung and not health.errands:
        return health.errands, []
    left, owed = errands.looked_at(health.errands, "requeue", wanted, event, dry=settings.dry_run)
    for subject, standing in hung.items():
        name = errands.named("requeue", subject)
        errand = left.get(name) or Errand(verb="requeue", about=subject, subject=subject, since=event.at)
        restarts = _restarts(health, subject, event)
        if restarts is None or not _due(errand, standing, restarts, event, settings):
            continue
        number = subject.removeprefix(OF_SLURM)
        left[name], action = errands.owe(
            errand, event, health.tokens.used, (f"job{number}", "hung", "requeue"), dry=settings.dry_run,
            restarts=restarts,
        )  # fmt: skip
        owed.append(action)
    return (health.errands if left == health.errands else left), owed


def _hung(health: Health) -> dict[SubjectId, Standing]:
    return {
        subject.id: standing
        for subject in health.subjects.values() if subject.id.startswith(OF_SLURM)
        for standing in subject.standing if standing.finding.code == CODE and standing.finding.severity != "info"
    }  # fmt: skip


def _restarts(health: Health, subject: SubjectId, event: AnyEvent) -> int | None:
    """How often its scheduler started the job anew; None where it does not say that the job runs here now."""
    row = merged(health.readings.get(subject, {}), event.at)
    restarts = row.get("job_restarts")
    return restarts if row.get("job_alive") == 1 and isinstance(restarts, int) else None


def _due(errand: Errand, standing: Standing, restarts: int, event: AnyEvent, settings: Settings) -> bool:
    stood = seconds_between(standing.first, event.at)
    if errand.pending is not None or stood is None or stood < settings.restart_after:
        return False
    if restarts >= settings.restart_most or (errand.came in ("refused", "foreign") and errand.against == restarts):
        return False
    before = errands.recent(errand, event.at, DAY)
    if not before:
        return True
    rested = seconds_between(before[-1], event.at)
    wait = settings.restart_every * 2.0 ** (len(before) - 1)
    return len(before) < settings.restart_tries and rested is not None and rested >= wait
