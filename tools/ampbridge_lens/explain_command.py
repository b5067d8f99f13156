"""The command ``ampbridge explain``."""

from __future__ import annotations

import argparse
import json
import sys

from ampbridge import workloads
from ampbridge.cli.options import Commands, add_output
from ampbridge.policies.policy import Policy
from ampbridge.reports.explain import ExplanationTable, explain
from ampbridge.workloads import NAMES
from ampbridge_lens.explained import ModelExplanation, of_pass


def add_to(commands: Commands) -> None:
    """Add ``explain`` to the commands of a parser."""
    parser = commands.add_parser("explain", help="what a backend does with a policy, op by op")
    parser.add_argument("policy", help="O1, O2:bfloat16, or a framework's own spelling")
    parser.add_argument("backend", help="torch, tensorflow, paddle, jax or numpy")
    parser.add_argument(
        "workload",
        nargs="?",
        metavar="FILE.py|NAME",
        help=f"only the ops of this model: a file with build(backend, seed), or {', '.join(NAMES)}",
    )
    parser.add_argument("--ops", help="only these: softmax,matmul")
    parser.add_argument(
        "--all", action="store_true", help="all ops, not those alone that stand out"
    )
    add_output(parser)
    parser.set_defaults(run=_explain)


def _explained(options: argparse.Namespace) -> ExplanationTable | ModelExplanation:
    if options.workload is None:
        return explain(options.policy, options.backend)
    workload = workloads.find(options.workload)(options.backend, 0)
    policy = Policy.parse(options.policy)
    return of_pass(policy, workload.loss_fn, workload.model, *workload.batches[0])


def _explain(options: argparse.Namespace) -> int:
    table = _explained(options)
    if options.ops is not None:
        table = table.only(options.ops.split(","))
    if options.json:
        print(json.dumps(table.to_dict()))
    elif options.all and isinstance(table, ExplanationTable):
        table.table().print(sys.stdout)
        print()
        table.feature_table().print(sys.stdout)
    else:
        table.print(sys.stdout)
    return 0
