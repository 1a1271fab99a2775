"""The generated blocks of step02_fsdp/README.md, for scripts/readme_tables: tables from runs of the program, and a picture of a
trace. Formulas are computed here once more, from the sizes of the model alone; a run whose own prediction differs ends the script."""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import readme_blocks as blocks

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "step02_fsdp"
# Sizes that neither 2, 4 nor 8 divide, so that there is padding to be seen; two micro-batches, so that the stages differ.
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FFN, VOCABULARY, MICRO_BATCHES = 127, 4, 8, 4, 16, 352, 256, 2
ODD = f"--model tiny --hidden-size {HIDDEN} --head-dim {HEAD} --seq-length 64 --steps 3 --micro-batch-size 1"
SMALL = "--model small --seq-length 256 --micro-batch-size 4 --steps 9 --threads 1"
SPEED = "--model small --seq-length 1024 --global-batch-size 4 --steps 9"
MEMORY = "--model small --seq-length 128 --micro-batch-size 1 --steps 3 --threads 1 --memory-limit 32MB"
PICTURE = "docs/pictures/fsdp_prefetch.svg"


def grouped(number):
    return f"{int(number):,}"


def equal(measured, predicted):
    return "=" if measured == predicted else f"{100 * (measured / predicted - 1):+.2f} %"


def beside(measured, predicted):
    """Measured and formula in one cell."""
    return f"{grouped(measured)} ({grouped(predicted)})"


def buckets():
    """Elements of the embedding's table, of each block, and of the head with its norm."""
    block = 2 * HIDDEN + 2 * HIDDEN * HEADS * HEAD + 2 * HIDDEN * KV_HEADS * HEAD + 3 * HIDDEN * FFN
    return [VOCABULARY * HIDDEN] + [block] * LAYERS + [VOCABULARY * HIDDEN + HIDDEN]


def padded(shards):
    return [shards * -(-size // shards) for size in buckets()]


def formula_memory(stage, shards):
    """Bytes per rank of parameters, gradients and optimizer, float32 and AdamW."""
    whole, part = sum(padded(shards)), sum(padded(shards)) // shards
    return [4 * (part if stage >= 3 else whole), 4 * (part if stage >= 2 else whole), 8 * (part if stage >= 1 else whole)]


def formula_traffic(stage, shards, replicas):
    """Bytes per step and operation, all ranks, with --prefetch 1."""
    m, sizes = MICRO_BATCHES, padded(shards)
    gathered = {0: 0, 1: sum(sizes), 2: sum(sizes), 3: 2 * m * sum(sizes) - m * sizes[-1] - (m - 1) * sizes[0]}[stage]
    return {"reduce_scatter": 4 * replicas * (shards - 1) * sum(sizes) * (m if stage >= 2 else 1),
            "all_gather": 4 * replicas * (shards - 1) * gathered, "all_reduce": 4 * 2 * (replicas - 1) * sum(sizes)}


def exposed(run):
    found = re.search(r"communication exposed: ([\d.]+) ms", run.output)
    return found[1] if found else "0"


def held(run, what):
    """(measured, predicted, padding) of a row of the table of shards."""
    row = re.search(rf"^ *{what} +(.*)$", run.output[run.output.index("sharding, bytes"):], re.M)[1]
    numbers = [int(word.replace(",", "")) for word in re.findall(r"[\d,]*\d", row.replace("=", " "))]
    return (*numbers, 0)[:3]


class Makers:
    """`Run` and `repeat` are those of readme_tables: one run of a program, and how often times are measured."""

    def __init__(self, run, repeat):
        self.make_run, self.repeat = run, repeat

    def run(self, ranks, options, metrics=True):
        run = self.make_run(ranks, options, program=PROGRAM, metrics=metrics)
        tables = run.output[run.output.index("memory, peak bytes"):]
        if "%" in tables or "not predicted" in tables:
            raise SystemExit(f"measured and predicted differ:\n{tables}")
        return run

    def four_ranks(self):
        return blocks.fenced(self.run(4, "--steps 5 --micro-batch-size 2", metrics=False).output)

    def stages(self):
        memory, traffic = [], []
        for ranks in (1, 2, 4, 8):
            for stage in range(4):
                run = self.run(ranks, f"{ODD} --gradient-accumulation-steps {MICRO_BATCHES} --zero {stage}")
                shards = ranks if stage > 0 else 1
                effective = stage if ranks > 1 else 0  # one rank has nothing to share out
                cells, padding = [], 0
                for name, formula in zip(("parameters", "gradients", "optimizer"), formula_memory(effective, shards)):
                    measured, predicted, pad = held(run, name)
                    if predicted != formula:
                        raise SystemExit(f"{run.command}: {name}: the program predicts {predicted}, this script {formula}")
                    cells.append(beside(measured, formula))
                    padding += pad
                total = sum(held(run, name)[0] for name in ("parameters", "gradients", "optimizer"))
                memory.append([ranks, stage, *cells, grouped(total), grouped(padding)])
                sent = run.steps[-1]["traffic"]
                formulas = formula_traffic(effective, shards, ranks // shards)
                if any(sent[name] != formulas[name] for name in formulas):
                    raise SystemExit(f"{run.command}: {sent} is not {formulas}")
                traffic.append([ranks, stage, *(beside(sent[name], formulas[name]) for name in formulas),
                                grouped(sum(sent[name] for name in formulas)), grouped(sent["control"])])
        return (blocks.table(["d", "stage", "parameters", "gradients", "optimizer", "sum", "padding, all ranks"], memory, 0)
                + "\n\nTraffic of a step of two micro-batches, bytes, all ranks together; control messages have no formula:\n\n"
                + blocks.table(["d", "stage", "reduce-scatter", "all-gather", "all-reduce", "sum", "control"], traffic, 0))

    def hybrid(self):
        rows = []
        for size in (1, 2, 4, 8):
            run = self.run(8, f"{ODD} --gradient-accumulation-steps {MICRO_BATCHES} --shard-size {size}")
            total = sum(held(run, name)[0] for name in ("parameters", "gradients", "optimizer"))
            sent, formulas = run.steps[-1]["traffic"], formula_traffic(3 if size > 1 else 0, size, 8 // size)
            if any(sent[name] != formulas[name] for name in formulas):
                raise SystemExit(f"{run.command}: {sent} is not {formulas}")
            within = sent["reduce_scatter"] + sent["all_gather"]
            rows.append([size, 8 // size, grouped(total), beside(within, formulas["reduce_scatter"] + formulas["all_gather"]),
                         beside(sent["all_reduce"], formulas["all_reduce"])])
        return blocks.table(["`--shard-size`", "replicas", "held per rank, bytes", "within shard groups", "between replicas"], rows, 0)

    def windows(self):
        rows = []
        for flags in ("--prefetch 0", "--prefetch 1", "--prefetch 2", "--prefetch 4", "--no-reshard-after-forward"):
            best = min((self.run(2, f"{SMALL} {flags}") for _ in range(self.repeat())), key=lambda run: run.milliseconds())
            units = re.search(r"gathered at once: the weights of (\d+)", best.output)[1]
            measured, predicted = best.memory_row("communication")
            rows.append([f"`{flags}`", units, grouped(held(best, "gathered weights")[0]), beside(measured / 2, predicted / 2),
                         grouped(best.steps[-1]["traffic"]["all_gather"]), f"{best.milliseconds():.0f}", exposed(best),
                         f"{best.steps[-1]['loss']:.7f}"])
        return blocks.table(["options", "units at once", "gathered weights, bytes", "and gradients on their way",
                             "gathered per step", "ms/step", "waiting, ms", "loss of step 9"], rows)

    def speed(self):
        layouts = [(1, "--threads 2"), *((2, f"--threads 1 --zero {stage}") for stage in range(4)),
                   (2, "--threads 1 --zero 3 --prefetch 0")]
        best = blocks.fastest_in_turn(layouts, self.repeat(), lambda ranks, options: self.run(ranks, f"{SPEED} {options}"))
        one = best[layouts[0]].milliseconds()
        rows = []
        for layout in layouts:
            run = best[layout]
            memory = sum(held(run, name)[0] for name in ("parameters", "gradients", "optimizer"))
            rows.append([layout[0], f"`{layout[1]}`", f"{run.milliseconds():.0f}", f"{one / run.milliseconds():.2f}", exposed(run),
                         grouped(memory), f"{run.steps[-1]['loss']:.6f}"])
        return blocks.table(["ranks", "options", "ms/step", "speed, of the first row", "waiting, ms per step",
                             "held per rank, bytes", "loss of step 9"], rows, 0)

    def memory_limit(self):
        shown = []
        for stage in (0, 3):
            command = f"scripts/launch -n 8 {PROGRAM} {MEMORY} --zero {stage}"
            print(f"  {command}", flush=True)
            done = subprocess.run(shlex.split(command), cwd=ROOT, text=True, capture_output=True, env=os.environ)
            if (done.returncode == 0) != (stage == 3):
                raise SystemExit(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
            lines = [line for line in done.stdout.splitlines() if line.startswith("step ")] if stage else done.stderr.splitlines()[:1]
            shown += [f"$ {command}", *lines]
        return blocks.fenced("\n".join(shown))

    def picture(self):
        with tempfile.TemporaryDirectory(prefix="escalera_readme_") as folder:
            # Of several runs the fastest: where another program takes a core for a while, the picture shows nothing but waiting.
            traces = [Path(folder) / f"{number}.json" for number in range(self.repeat())]
            fastest = min(traces, key=lambda trace: self.run(2, f"{SMALL} --trace {trace}").milliseconds())
            json.loads(fastest.read_text())
            subprocess.run([sys.executable, ROOT / "scripts/timeline", fastest, "--out", ROOT / PICTURE, "--title",
                            "ZeRO-3, --prefetch 1: one step of two ranks", "--step", "5"], check=True)
        return f"![Weights arrive beside the forward of the unit before, gradients leave behind backward](../{PICTURE})"

    def all(self):
        return {"fsdp four ranks": self.four_ranks, "fsdp stages": self.stages, "fsdp hybrid": self.hybrid,
                "fsdp windows": self.windows, "fsdp speed": self.speed, "fsdp memory limit": self.memory_limit,
                "fsdp picture": self.picture}
