"""The script that makes the QOS of tiers and levels in Slurm's database."""

from collections.abc import Iterator
from itertools import chain

from gpuguard.scheduler.renderings import Wish
from gpuguard.scheduler.renderings.slurm.partitions import Partition, is_victim, priority, said, span
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import Settings
from gpuguard.scheduler.tiers import Band

FILE = "gpuguard-slurm-qos.sh"


def lines(
    settings: Settings, wish: Wish, places: list[Partition], every: tuple[Band, ...], caps: dict[str, int]
) -> Iterator[str]:
    yield "#!/bin/sh"
    yield from said(
        f"{FILE} [CLUSTER]: the QOS of gpuguard's tiers and levels; run it as a Slurm administrator where slurmdbd "
        "answers. It may be run again at any time. Written by `gpuguard scheduler render --for slurm`."
    )
    yield "set -eu"
    yield "cluster=${1:-$(scontrol show config | sed -n 's/^ClusterName *= //p')}"
    yield 'give() { name=$1 && shift && sacctmgr -i modify qos where name="$name" set "$@"; }'
    yield ""
    yield 'if [ -z "$(sacctmgr -nP show tres where type=gres name=gpu format=id)" ]; then'
    yield '  echo "slurmdbd counts no GPUs: set AccountingStorageTRES in slurm.conf, restart slurmctld, try again" >&2'
    yield "  exit 1"
    yield "fi"
    yield ""
    own = [(one, one.qos) for one in places if one.qos is not None]
    yield from said("All are made before any is named in the Preempt of another.")
    names = [band.name for band in every]
    yield "known=$(sacctmgr -nP show qos format=name)"
    yield "missing="
    yield f"for name in {' '.join(chain(names, (qos for _, qos in own)))}; do"
    yield '  echo "$known" | grep -qxF "$name" || missing=$missing,$name'
    yield "done"
    yield '[ -z "$missing" ] || sacctmgr -i add qos "${missing#,}"'
    yield ""
    yield from _high(settings, wish)
    yield from said(
        "-1 takes a limit away that was set before. DenyOnLimit refuses at submission what could never start."
    )
    # From below: what a list names is in order by then. A list once emptied is, to Slurm 22.05.8, a loop in any list
    # that names it until it is filled again, so that none is emptied that never was filled.
    for band in reversed(every):
        yield f"give {band.name} {' '.join(_words(band, settings, every, caps))}"
    if spared := [band.name for band in every if not band.takes]:
        yield f"for name in {' '.join(spared)}; do"
        yield '  old=$(sacctmgr -nP show qos where name="$name" format=preempt)'
        yield '  [ -z "$old" ] || sacctmgr -i modify qos where name="$name" set Preempt-="$old"'
        yield "done"
    for one, name in own:
        yield f"give {name} GrpTRES=gres/gpu={one.gpus} Flags=DenyOnLimit"
    yield ""
    yield from _granted(settings, every)


def _high(settings: Settings, wish: Wish) -> Iterator[str]:
    share = f"{settings.high_share:.0%}"
    if wish.gpus is None:
        yield from said(
            f"WARNING: the high level is not capped to {share} of the GPUs, as nobody said how many there are: "
            "`gpuguard scheduler render --gpus N`, or --nodes FILE."
        )
    else:
        yield from said(
            f"The high level holds at most {share} of {wish.gpus} GPUs. Slurm caps each QOS alone, so the whole is "
            "dealt out over them; move some from one to another, but keep the sum. What is over waits; ours would run "
            "as normal."
        )


def _words(band: Band, settings: Settings, every: tuple[Band, ...], caps: dict[str, int]) -> Iterator[str]:
    rule, victim = settings.tiers[band.tier], is_victim(band, settings)
    yield f"Priority={priority(band, every)}"
    if band.takes:
        yield f"Preempt={','.join(band.takes)}"
    yield f"PreemptMode={'requeue' if victim else 'cluster'}"
    yield f"GraceTime={settings.preemption.grace if victim else 0}"
    yield f"MaxWall={-1 if rule.session is None else span(rule.session)}"
    yield f"MaxTRES=gres/gpu={-1 if rule.gpus else 0}"
    yield f"GrpTRES=gres/gpu={caps.get(band.name, -1)}"
    yield "Flags=DenyOnLimit"


def _granted(settings: Settings, every: tuple[Band, ...]) -> Iterator[str]:
    asked = Job(id="")
    usual = f"{asked.tier}-{asked.level}"
    common = [band.name for band in every if band.level != "high"]
    high = [band.name for band in every if band.level == "high"]
    yield from said("Everybody may use these, by default the first.")
    yield 'sacctmgr -i modify cluster where name="$cluster" \\'
    yield f"  set defaultqos={usual} qos={','.join(sorted(common, key=lambda name: name != usual))}"
    yield from said("The high level is given by name; where all is at the top, nothing is:")
    yield f"# sacctmgr -i modify account where name=ACCOUNT set qos+={','.join(high)}"
    if settings.shares:
        yield from said("Shares in hundredths, of accounts, of a user in an account, or of a user everywhere.")
    for key, share in settings.shares.items():
        path, _, user = key.partition(":")
        account = path.rpartition("/")[2]
        names = [f"user where name={user}"] if user else ["account where"]
        whom = " ".join(names + ([f"{'account' if user else 'name'}={account}"] if account else []))
        yield f"sacctmgr -i modify {whom} set fairshare={round(share * 100)}"
