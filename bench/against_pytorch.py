#!/usr/bin/env python3
"""Whole training steps of ours and of PyTorch on the CPU, run in turns, as medians and ratios.

Started through against_pytorch.sh. Each case is one shape, vocabulary and dtype; its contestants run one after the other, round
after round (A B A B ...), so that a slow spell of the machine falls on both. What is compared is the median of all
steps after the warm-up; the ratio is theirs / ours, so above 1 ours is faster. A run that other programs disturbed is
repeated (quiet.py). Writes a Markdown table and the raw figures as JSON.
"""
import argparse
import array
import datetime
import json
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass

BENCH = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(BENCH)
sys.path.insert(0, os.path.join(BENCH, "peers"))
import peer
import quiet

SHAPES = {"small": dict(sequence=256, batch=8), "tiny": dict(sequence=64, batch=4)}  # the rest is in configs/models


@dataclass(frozen=True)
class Contestant:
    name: str
    ours: bool
    ranks: int


@dataclass(frozen=True)
class Case:
    shape: str
    vocabulary: int
    dtype: str
    target: float  # the ratio that we demand
    contestants: tuple  # the first is the one to judge, the second its bar; more are for information

    @property
    def name(self):
        return f"{self.shape} {self.vocabulary} {self.dtype}" + (" ranks" if self.contestants[0].ranks > 1 else "")


OURS, OURS_RANKS = Contestant("ours", True, 1), Contestant("ours, 2 ranks", True, 2)
TORCH, TORCH_RANKS = Contestant("PyTorch", False, 1), Contestant("PyTorch, 2 ranks (gloo)", False, 2)
CASES = [
    Case("small", 256, "float32", 1.4, (OURS, TORCH)),
    Case("small", 8192, "float32", 1.4, (OURS, TORCH)),
    Case("small", 256, "bfloat16", 1.5, (OURS, TORCH)),
    Case("small", 8192, "bfloat16", 1.5, (OURS, TORCH)),
    Case("tiny", 256, "float32", 2.5, (OURS, TORCH)),
    Case("tiny", 256, "bfloat16", 2.5, (OURS, TORCH)),
    Case("small", 256, "float32", 0.95, (OURS_RANKS, OURS, TORCH_RANKS)),
]


def token_file(vocabulary):
    """Random tokens in llm.c's format (256 header words, then 16-bit ids): the same kind of input as the peer's."""
    path = os.path.join(ROOT, "build", "bench", f"tokens_{vocabulary}.bin")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        count, draw = 1 << 18, random.Random(vocabulary)
        with open(path + ".part", "wb") as file:
            array.array("i", [20240520, 1, count] + [0] * 253).tofile(file)
            array.array("H", [draw.randrange(vocabulary) for _ in range(count)]).tofile(file)
        os.replace(path + ".part", path)
    return path


def run_ours(case, contestant, arguments):
    """One run of the C++ trainer; returns the milliseconds of each step after the warm-up, and the cores others used."""
    shape = SHAPES[case.shape]
    metrics = os.path.join(ROOT, "build", "bench", "metrics.jsonl")
    os.makedirs(os.path.dirname(metrics), exist_ok=True)
    command = [arguments.launch, "-n", contestant.ranks, arguments.program,
               "--model", case.shape, "--vocab-size", case.vocabulary, "--dtype", case.dtype, "--device", "cpu",
               "--threads", arguments.threads // contestant.ranks, "--data", token_file(case.vocabulary),
               "--seq-length", shape["sequence"], "--micro-batch-size", shape["batch"] // contestant.ranks,
               "--gradient-accumulation-steps", 1, "--steps", arguments.warmup + arguments.steps,
               "--optimizer", "adamw", "--learning-rate", "3e-4", "--weight-decay", 0.1, "--clip", 1.0,
               "--metrics", metrics, *shlex.split(arguments.our_options)]
    command = [str(word) for word in command]
    if os.path.exists(metrics):
        os.remove(metrics)  # a failed run must not be read as the one before it
    try:
        done, others = quiet.run(command, env=peer.environment({}), cwd=ROOT, patience=arguments.patience,
                                 tries=4 if arguments.patience else 1, before=lambda: open(metrics, "w").close())
    except OSError as error:
        raise peer.Missing(f"could not start {arguments.launch}: {error.strerror}")
    if done.returncode:
        raise peer.Missing(f"our trainer failed with exit code {done.returncode}:\n  {shlex.join(command)}\n"
                           + (done.stderr.strip() or done.stdout.strip())[-2000:])
    with open(metrics) as file:
        lines = [json.loads(line) for line in file if line.strip()]
    lines = [line for line in lines if "step_ms" in line or "tokens_per_second" in line]
    tokens = shape["sequence"] * shape["batch"]
    steps = [line.get("step_ms") or tokens / line["tokens_per_second"] * 1e3 for line in lines][arguments.warmup:]
    if not steps:
        raise peer.Missing(f"{metrics} has no steps after the warm-up of {arguments.warmup}; expected JSON lines with "
                           f"step_ms or tokens_per_second from\n  {shlex.join(command)}")
    return steps, others


def run_peer(case, contestant, arguments):
    result = peer.run(["--shape", case.shape, "--vocabulary", case.vocabulary, "--dtype", case.dtype,
                       "--ranks", contestant.ranks, "--threads", arguments.threads // contestant.ranks,
                       "--warmup", arguments.warmup, "--steps", arguments.steps],
                      peer.ENVIRONMENTS[arguments.environment], patience=arguments.patience,
                      tries=4 if arguments.patience else 1)
    arguments.torch_version = result["torch"]
    return result["step_ms"], result["others"]


def measure(case, arguments):
    """All rounds of one case; returns per contestant the rounds' steps, and what others used at worst."""
    contestants = [one for one in case.contestants if not (arguments.peer_only and one.ours)]
    results = {one.name: dict(rounds=[], others=0.0) for one in contestants}
    for number in range(arguments.rounds):
        for one in contestants:
            steps, others = (run_ours if one.ours else run_peer)(case, one, arguments)
            results[one.name]["rounds"].append(steps)
            results[one.name]["others"] = max(results[one.name]["others"], others)
            print(f"{case.name}: round {number + 1} of {arguments.rounds}: {one.name}: median "
                  f"{statistics.median(steps):.1f} ms, min {min(steps):.1f} ms, others used {others:.2f} cores",
                  file=sys.stderr)
    return results


def summarize(case, results):
    """Adds medians, minima and the ratio to the raw figures."""
    tokens = SHAPES[case.shape]["sequence"] * SHAPES[case.shape]["batch"]
    for result in results.values():
        steps = [step for one_round in result["rounds"] for step in one_round]
        result["median_ms"], result["min_ms"] = statistics.median(steps), min(steps)
        result["tokens_per_second"] = tokens / result["median_ms"] * 1e3
    judged, bar = case.contestants[:2]
    summary = dict(case=case.name, shape=case.shape, vocabulary=case.vocabulary, dtype=case.dtype, target=case.target,
                   judged=judged.name, bar=bar.name, results=results)
    if judged.name in results and bar.name in results:
        rounds = zip(results[bar.name]["rounds"], results[judged.name]["rounds"])
        summary["ratio"] = results[bar.name]["median_ms"] / results[judged.name]["median_ms"]
        summary["ratio_of_minima"] = results[bar.name]["min_ms"] / results[judged.name]["min_ms"]
        summary["ratio_per_round"] = [statistics.median(theirs) / statistics.median(ours) for theirs, ours in rounds]
        summary["reached"] = summary["ratio"] >= case.target
        # Competition does not slow both alike, so a ratio measured under it decides nothing.
        summary["disturbed"] = max(results[judged.name]["others"], results[bar.name]["others"]) > 0.2
    return summary


def machine(arguments):
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return dict(date=datetime.date.today().isoformat(), cpu=models[0] if models else platform.machine(),
                cores=len(os.sched_getaffinity(0)), system=f"{platform.system()} {platform.release()}",
                libc=" ".join(platform.libc_ver()), escalera=commit.stdout.strip() or "no commit",
                torch=getattr(arguments, "torch_version", "not run"), threads=arguments.threads,
                rounds=arguments.rounds, steps_per_round=arguments.steps, warmup=arguments.warmup,
                peer_environment=arguments.environment, peer_settings=peer.ENVIRONMENTS[arguments.environment])


def markdown(about, summaries):
    lines = ["# Whole training steps against PyTorch on the CPU", "",
             f"{about['date']}, {about['cpu']}, {about['cores']} cores; torch {about['torch']} "
             f"(environment: {about['peer_environment']}), Escalera {about['escalera']}; {about['threads']} threads; "
             f"{about['rounds']} rounds in turns of {about['steps_per_round']} steps after {about['warmup']}. "
             "Made by `bench/against_pytorch.sh`.", "",
             "| shape, vocabulary, dtype | program | median, ms | min, ms | tokens/s | cores used by others | ratio of medians"
             " (rounds), of minima | target |", "|---|---|---|---|---|---|---|---|"]
    for summary in summaries:
        for name, result in summary["results"].items():
            ratio = target = ""
            if name == summary["judged"] and "ratio" in summary:
                low, high = min(summary["ratio_per_round"]), max(summary["ratio_per_round"])
                ratio = f"{summary['ratio']:.2f} ({low:.2f} - {high:.2f}), {summary['ratio_of_minima']:.2f}"
                target = f"{summary['target']} {'reached' if summary['reached'] else 'missed'}"
                target += ", but other programs disturbed it: not valid" if summary["disturbed"] else ""
            lines.append(f"| {summary['shape']} {summary['vocabulary']} {summary['dtype']} | {name} "
                         f"| {result['median_ms']:.1f} | {result['min_ms']:.1f} | {result['tokens_per_second']:.0f} "
                         f"| {result['others']:.2f} | {ratio} | {target} |")
    return "\n".join(lines) + "\n"


def parse_options():
    parser = argparse.ArgumentParser(prog="against_pytorch.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", help="only the cases whose name contains this: "
                        + ", ".join(case.name for case in CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="measured in each run")
    parser.add_argument("--warmup", type=int, default=4, help="steps before them")
    parser.add_argument("--threads", type=int, default=2, help="of one process; two ranks get half each")
    parser.add_argument("--launch", default=os.path.join(ROOT, "scripts", "launch"))
    parser.add_argument("--program", default="step01_dp", help="what scripts/launch starts")
    parser.add_argument("--our-options", default="", help="further options for our trainer, as one string")
    parser.add_argument("--peer-only", action="store_true", help="measure PyTorch alone")
    parser.add_argument("--environment", choices=peer.ENVIRONMENTS, help="of PyTorch; see peers/peer.py (default: the best there is)")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet moment before each run")
    parser.add_argument("--output", default=os.path.join(BENCH, "results", "against_pytorch"), metavar="PATH",
                        help="without ending; .md and .json are written")
    arguments = parser.parse_args()
    if arguments.threads % 2:
        parser.error(f"--threads {arguments.threads}: must be even, since two ranks share them")
    if min(arguments.rounds, arguments.steps) < 1 or arguments.warmup < 0:
        parser.error("--rounds and --steps must be at least 1, --warmup at least 0")
    arguments.cases = [case for case in CASES if not arguments.only or arguments.only in case.name]
    if not arguments.cases:
        parser.error(f"--only {arguments.only}: no such case; there are " + ", ".join(case.name for case in CASES))
    return arguments


def main():
    arguments = parse_options()
    if not arguments.peer_only and not os.access(arguments.launch, os.X_OK):
        raise peer.Missing(f"{arguments.launch} is not there: build the project first, or measure PyTorch with --peer-only")
    peer.python()
    arguments.environment = arguments.environment or peer.best_environment()
    os.makedirs(os.path.dirname(os.path.abspath(arguments.output)), exist_ok=True)
    summaries = []
    for case in arguments.cases:
        summaries.append(summarize(case, measure(case, arguments)))
        about = machine(arguments)  # written after each case, so that an interrupted run leaves what it has
        with open(arguments.output + ".json", "w") as file:
            json.dump(dict(machine=about, cases=summaries), file, indent=1)
        with open(arguments.output + ".md", "w") as file:
            file.write(markdown(about, summaries))
    print(markdown(about, summaries), end="")


if __name__ == "__main__":
    try:
        main()
    except peer.Missing as error:
        sys.exit(f"against_pytorch.sh: {error}")
