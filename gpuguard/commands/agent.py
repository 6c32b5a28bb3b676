"""The daemon: watches this node, decides, and writes down what must be done.

Observe-only unless the configuration says `[policy] mode = "drain"`. Reads the kernel log from its beginning, keeps
its memory in the state directory and serves /metrics on loopback. `--root` plays a recorded machine, whose faults are
none of this node's: it wants a memory of its own, and takes no configuration but one that is named.
"""

import os
from argparse import ArgumentParser, Namespace

EXAMPLE = "gpuguard agent --state-dir ./state --listen 127.0.0.1:9818"


def arguments(parser: ArgumentParser) -> None:
    """The options of the daemon."""
    parser.add_argument("--config", metavar="FILE", help="configuration (default: /etc/gpuguard/config.toml)")
    parser.add_argument("--state-dir", metavar="DIR", help="where the memory is kept (default: /var/lib/gpuguard)")
    parser.add_argument("--root", metavar="DIR", default="/", help="a recorded machine instead of this one")
    parser.add_argument("--listen", metavar="HOST:PORT", help="where /metrics is served; '' for nowhere")
    parser.add_argument("--compat", choices=("dcgm",), help="also serve /metrics/dcgm, in dcgm-exporter's names")
    parser.add_argument("--once", action="store_true", help="one pass over all sources, then exit")
    parser.add_argument("--json", action="store_true", help="log as JSON even on a terminal")


def run(args: Namespace) -> int:
    """Exit code: 0 told to stop (with --once: nothing is wrong), 1 with --once: something needs attention."""
    from pathlib import Path

    from gpuguard.daemons.agent import Agent
    from gpuguard.errors import ConfigInvalid, UsageError
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.clock import SystemClock
    from gpuguard.runtime.http import parse_address
    from gpuguard.runtime.log import set_up_log

    root = Path(args.root)
    if not root.is_dir():
        raise UsageError(
            f"--root: {root} is no directory; a recorded machine has its dev/kmsg and sys/bus/pci in one, as "
            "fixtures/nodes/h100x8 has"
        )
    if args.listen:
        try:
            parse_address(args.listen)
        except ConfigInvalid as error:
            raise UsageError(f"--{error}") from error
    config = Path(args.config) if args.config else None
    if root != Path("/") and config is None:
        if not args.state_dir:
            raise UsageError(f"--root: the memory of this node is not that of {root}; add --state-dir DIR")
        config = Path(os.devnull)
    parts = assemble(config)
    clock = SystemClock(root)
    set_up_log(clock, form="json" if args.json else "auto", level=parts.agent.log_level)
    listen = args.listen if args.listen is not None else parts.agent.listen
    if args.once:
        listen = None
    agent = Agent(
        parts, state_dir=Path(args.state_dir or parts.agent.state_dir), root=root, listen=listen, clock=clock,
        compat=args.compat or parts.agent.compat,
    )  # fmt: skip
    return agent.run(once=args.once)
