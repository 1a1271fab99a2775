#!/usr/bin/env python3
"""Finds what makes the PyTorch peer fastest on this machine, so that the bar is an honest one.

    python3 bench/peers/tune.py                      all environments of peer.py, shape small, float32
    python3 bench/peers/tune.py --code               the ways to write the model instead, in one environment
    python3 bench/peers/tune.py --only jemalloc --rounds 5 -- --dtype bfloat16 --vocabulary 8192

What stands after `--` goes to torch_llama.py. Variants take turns, round by round, so that a busy minute on the machine falls
on all of them alike. Prints a table, fastest median first.
"""
import argparse
import os
import statistics
import sys

import peer  # beside this file

CODE = {
    "defaults": [],
    "naive attention": ["--attention", "naive"],
    "built-in RMSNorm": ["--norm", "builtin"],
    "separate projections": ["--projections", "separate"],
    "AdamW foreach": ["--optimizer", "foreach"],
    "AdamW loop": ["--optimizer", "loop"],
    "torch.compile": ["--compile"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", action="store_true", help="vary the code instead of the environment")
    parser.add_argument("--environment", choices=peer.ENVIRONMENTS, help="with --code (default: the best there is)")
    parser.add_argument("--only", metavar="TEXT", help="only the variants whose name contains this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet moment before each run")
    parser.add_argument("options", nargs="*", help="for torch_llama.py, after --")
    arguments = parser.parse_args()

    if arguments.code:
        settings = peer.ENVIRONMENTS[arguments.environment or peer.best_environment()]
        variants = {name: (extra, settings) for name, extra in CODE.items()}
    else:
        variants = {name: ([], settings) for name, settings in peer.ENVIRONMENTS.items()}
    if arguments.only:
        variants = {name: variant for name, variant in variants.items() if arguments.only in name}
    if not variants:
        parser.error(f"no variant's name contains '{arguments.only}'")

    steps = {name: [] for name in variants}
    processor = {name: [] for name in variants}
    others = {name: 0.0 for name in variants}
    for number in range(arguments.rounds):
        for name, (extra, settings) in list(variants.items()):
            try:
                result = peer.run([*arguments.options, *extra], settings, patience=arguments.patience,
                                  tries=4 if arguments.patience else 1)
                steps[name] += result["step_ms"]
                processor[name].append(result["processor_ms_median"])
                others[name] = max(others[name], result["others"])
            except peer.Missing as error:
                print(f"left out: {name}: {error}", file=sys.stderr)
                del variants[name]
        print(f"round {number + 1} of {arguments.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)

    print("| variant | median, ms | min, ms | processor time, ms | steps | cores used by others |\n|---|---|---|---|---|---|")
    for name in sorted(variants, key=lambda name: statistics.median(steps[name])):
        print(f"| {name} | {statistics.median(steps[name]):.1f} | {min(steps[name]):.1f} | {min(processor[name]):.1f} "
              f"| {len(steps[name])} | {others[name]:.2f} |")


if __name__ == "__main__":
    main()
