"""The generated blocks of step03_tp/README.md, for scripts/readme_tables: tables from runs of the program, and a picture of a
trace."""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import readme_blocks as blocks

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "step03_tp"
SMALL = "--model small --seq-length 256 --micro-batch-size 4"
SPEED = "--model small --seq-length 1024 --micro-batch-size 2 --steps 9"
PICTURE = "docs/pictures/tp_overlap.svg"


def grouped(number):
    return f"{int(number):,}"


def layer_rows(run):
    """{(direction, operation): (measured, predicted)} of the table of traffic per layer."""
    part = run.output[run.output.index("traffic per layer"):]
    found = re.findall(r"^ *(forward|backward), (\w+) +[\d,]+ +([\d,]+) +([\d,]+) ", part, re.M)
    return {(direction, operation): tuple(int(n.replace(",", "")) for n in numbers) for direction, operation, *numbers in found}


def equal(measured, predicted):
    return "=" if measured == predicted else f"{100 * (measured / predicted - 1):+.2f} %"


class Makers:
    """`Run` and `repeat` are those of readme_tables: one run of a program, and how often times are measured."""

    def __init__(self, run, repeat):
        self.make_run, self.repeat = run, repeat

    def run(self, ranks, options, metrics=True):
        return self.make_run(ranks, options, program=PROGRAM, metrics=metrics)

    def two_ranks(self):
        return blocks.fenced(self.run(2, "--sequence-parallel --steps 5 --micro-batch-size 4", metrics=False).output)

    def activations(self):
        rows = []
        for flags in ("", "--sequence-parallel"):
            for ranks in (1, 2, 4):
                if flags and ranks == 1:
                    continue
                measured, predicted = self.run(ranks, f"{SMALL} --steps 2 {flags}").memory_row("activations")
                rows.append(["yes" if flags else "no", ranks, grouped(measured / ranks), grouped(predicted / ranks),
                             equal(measured, predicted)])
        whole = int(rows[0][2].replace(",", ""))
        for row in rows:
            row.append(f"{int(row[2].replace(',', '')) / whole:.3f}")
        return blocks.table(["sequence parallel", "t", "activations per rank, bytes", "formula", "difference", "of t = 1"],
                            rows, 1)

    def static(self):
        rows = []
        for ranks in (1, 2, 4, 8):
            run = self.run(ranks, "--model tiny --vocab-size 257 --steps 1 --micro-batch-size 1")
            cells = [run.memory_row(category) for category in ("parameters", "gradients", "optimizer")]
            rows.append([ranks, -(-257 // ranks) * ranks, f"{max(1, 4 // ranks)}",
                         *(f"{grouped(measured / ranks)} ({equal(measured, predicted)})" for measured, predicted in cells)])
        return blocks.table(["t", "vocabulary rows with padding", "key/value heads per rank", "parameters per rank, bytes",
                             "gradients", "optimizer"], rows, 0)

    def traffic(self):
        rows = []
        for flags in ("", "--recompute full", "--sequence-parallel", "--sequence-parallel --recompute full"):
            for ranks in (2, 4):
                found = layer_rows(self.run(ranks, f"{SMALL} --steps 2 {flags}"))
                for direction in ("forward", "backward"):
                    for operation in ("all_reduce", "all_gather", "reduce_scatter"):
                        if (direction, operation) in found:
                            measured, predicted = found[direction, operation]
                            rows.append([f"`{flags}`" if flags else "", ranks, direction, operation, grouped(measured),
                                         grouped(predicted), equal(measured, predicted)])
        return blocks.table(["options", "t", "", "operation", "bytes, all ranks", "formula", "difference"], rows, 4)

    def speed(self):
        layouts = [(1, "--threads 2"), (2, "--threads 1"), (2, "--threads 1 --tp-overlap"),
                   (2, "--threads 1 --sequence-parallel"), (2, "--threads 1 --sequence-parallel --tp-overlap")]
        best = blocks.fastest_in_turn(layouts, self.repeat(), lambda ranks, options: self.run(ranks, f"{SPEED} {options}"))
        one = best[layouts[0]].milliseconds()
        rows = []
        for layout in layouts:
            run = best[layout]
            exposed = re.search(r"communication exposed: ([\d.]+) ms", run.output)
            rows.append([layout[0], f"`{layout[1]}`", f"{run.milliseconds():.0f}", f"{one / run.milliseconds():.2f}",
                         exposed[1] if exposed else "0", f"{run.steps[-1]['loss']:.6f}"])
        return blocks.table(["ranks", "options", "ms/step", "speed, of the first row", "waiting, ms per step",
                             "loss of step 9"], rows, 0)

    def picture(self):
        with tempfile.TemporaryDirectory(prefix="escalera_readme_") as folder:
            trace = Path(folder) / "trace.json"
            self.run(2, f"{SPEED} --num-hidden-layers 1 --threads 1 --sequence-parallel --tp-overlap --trace {trace}")
            json.loads(trace.read_text())
            subprocess.run([sys.executable, ROOT / "scripts/timeline", trace, "--out", ROOT / PICTURE, "--title",
                            "One layer, embedding and head: two ranks, --sequence-parallel --tp-overlap", "--step", "5"],
                           check=True)
        return f"![Rows of both ranks on a time line](../{PICTURE})"

    def all(self):
        return {"tp two ranks": self.two_ranks, "tp static": self.static, "tp activations": self.activations,
                "tp traffic": self.traffic, "tp speed": self.speed, "tp picture": self.picture}
