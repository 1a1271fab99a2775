#!/usr/bin/env python3
"""What scripts/gpu_check.sh cannot say in bash: the size of a training run that fits a GPU, its tokens, and the report.

    gpu_report.py plan BYTES                     micro-batch and layers of the 1.3B model for a GPU with this much memory
    gpu_report.py tokens FILE VOCABULARY COUNT   a token file whose ids are as uneven as words in text
    gpu_report.py peak NAME                      TFLOP/s of bfloat16 that the maker states, or nothing
    gpu_report.py same-losses FILE FILE          exit code 1 unless two --metrics files tell the same losses
    gpu_report.py merge FOLDER TARGET            TARGET.json and TARGET.md from what the sections left in FOLDER
"""
import array
import json
import os
import random
import re
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "configs", "models", "playbook-1.34b.json")
SEQUENCE = 2048
WARM_UP = 5  # steps that are left out: algorithms are chosen, memory is taken, clocks rise

# Dense bfloat16 with float32 sums, TFLOP/s, from the data sheets (figures "with sparsity" halved). The first that stands as whole
# words in a device's name counts, so longer ones come first.
PEAKS = [("H100 PCIe", 756), ("H100 NVL", 835), ("H100", 989), ("H200 NVL", 835), ("H200", 989), ("H800", 989), ("H20", 148),
         ("GH200", 989), ("GB200", 2500), ("B200", 2250), ("B100", 1750), ("A100", 312), ("A800", 312), ("A40", 150),
         ("A30", 165), ("A10G", 70), ("A10", 125), ("L40S", 362), ("L40", 181), ("L4", 121), ("RTX 6000 Ada", 364),
         ("RTX A6000", 155), ("RTX 5090", 209), ("RTX 4090", 165), ("RTX 3090", 71)]

# What the project wants of one GPU of the H100's class.
GOALS = {"mfu": 0.50, "attention": 0.60, "memory": 0.80, "gemm": 0.95}


def peak(name):
    return next((tflops for part, tflops in PEAKS if re.search(rf"\b{part}\b", name)), None)


def model():
    with open(MODEL) as file:
        return json.load(file)


def parameters(config, layers):
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    tables = 1 if config["tie_word_embeddings"] else 2
    return tables * config["vocab_size"] * hidden + layers * (3 * hidden * ffn + 2 * hidden**2 + 2 * hidden * kv + 2 * hidden) + hidden


def plan(memory):
    """(micro-batch, layers): as many sequences as fit, up to 16; where not even one does, with fewer layers.

    A parameter takes 18 bytes (weights, gradient, master, two moments). A token takes, in each block, eight rows of the hidden
    size and three of the ffn, and its logits; a tenth of all that again for what backward needs at a time. A seventh of the
    memory is left alone: CUDA itself, cuBLASLt's workspace, what other ranks or programs hold.
    """
    config = model()
    layers = config["num_hidden_layers"]
    while True:
        per_token = 2 * (layers * (8 * config["hidden_size"] + 3 * config["intermediate_size"]) + config["vocab_size"])
        left = memory * 6 / 7 - 18 * parameters(config, layers)
        sequences = int(left / (1.1 * per_token * SEQUENCE))
        if sequences >= 1 or layers == 1:
            return min(max(sequences, 1), 16), layers
        layers //= 2


def write_tokens(path, vocabulary, count):
    """In llm.c's format. The n-th most frequent id turns up 1/n as often as the first."""
    draw = random.Random(1)
    ids = array.array("I", (int(vocabulary ** draw.random()) - 1 for _ in range(count)))
    with open(path, "wb") as file:
        array.array("i", [20240801, 7, count] + [0] * 253).tofile(file)
        ids.tofile(file)


def read_metrics(path):
    with open(path) as file:
        return [line for line in map(json.loads, filter(str.strip, file)) if "step_ms" in line]


def same_losses(one, other):
    """Both in float32, with sums in other orders."""
    first, second = ([line["loss"] for line in read_metrics(path)] for path in (one, other))
    if not first or len(first) != len(second):
        return f"{len(first)} and {len(second)} steps"
    worst = max(abs(a - b) / abs(a) for a, b in zip(first, second))
    return f"losses differ by {worst:.1e}" if worst > 1e-4 else None


# ---- the report -------------------------------------------------------------------------------------------------------------


def load(folder, name):
    """A section's JSON, or nothing: a section that failed must not hide the others."""
    try:
        with open(os.path.join(folder, name)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def read_sections(folder):
    """sections.tsv: name, result (passed, failed, not run), seconds, remark, log."""
    with open(os.path.join(folder, "sections.tsv")) as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [dict(name=name, result=result, seconds=int(seconds), remark=remark, log=log)
            for name, result, seconds, remark, log in rows]


def rows_of(results, section):
    return [row for row in results.get("sections", {}).get(section, {}).get("rows", []) if "error" not in row]


def whole_step(folder, bench, facts):
    """Tokens per second and MFU of the 1.3B run, medians without the first steps."""
    try:
        steps = read_metrics(os.path.join(folder, "step.jsonl"))
    except OSError:
        return {}
    run = load(folder, "step.json")
    if len(steps) < 2:
        return {}
    measured = steps[WARM_UP if len(steps) > 2 * WARM_UP else 1:]
    tokens_per_second = statistics.median(step["tokens_per_second"] for step in measured)
    result = dict(**run, steps=len(steps), step_ms=statistics.median(step["step_ms"] for step in measured),
                  tokens_per_second=tokens_per_second, loss_first=steps[0]["loss"], loss_last=steps[-1]["loss"])
    stated = peak(facts.get("name", ""))
    found = [row["tflops"] for row in rows_of(bench, "limits") if row.get("limit") == "matrix product bfloat16"]
    result["peak_tflops"] = stated or (found[0] if found else None)
    result["peak_from"] = "the data sheet" if stated else "our own largest matrix product" if found else None
    if result["peak_tflops"] and "layers" in run:
        config, layers = model(), run["layers"]
        width = layers * config["hidden_size"]
        operations = dict(mfu=6 * parameters(config, layers) + 12 * width * SEQUENCE,
                          mfu_causal=6 * parameters(config, layers) + 6 * width * (SEQUENCE + 1))
        for name, per_token in operations.items():
            result[name] = tokens_per_second * per_token / result["peak_tflops"] / 1e12
    return result


def beside(ours, theirs, keys):
    """Ours and PyTorch's rows of the same shape: [(row, theirs, ours / theirs)]."""
    by_name = {tuple(row[key] for key in keys): row for row in theirs}
    pairs = [(row, by_name.get(tuple(row[key] for key in keys))) for row in ours]
    return [(row, other, row["tflops"] / other["tflops"]) for row, other in pairs if other]


ATTENTION_KEYS = ("head_size", "length", "pass")
GEMM_KEYS = ("layer", "pass", "dtype")


def name_of(row, keys):
    return " ".join(str(row[key]) for key in keys)


def goal(wanted, found, text):
    return dict(wanted=wanted, found=found, text=text, state="not measured" if found is None else "reached" if found >= wanted else "missed")


def worst_of(pairs, wanted, keys, what):
    if not pairs:
        return goal(wanted, None, f"{what} was not measured on both sides")
    row, other, ratio = min(pairs, key=lambda pair: pair[2])
    reached = sum(pair[2] >= wanted for pair in pairs)
    return goal(wanted, ratio, f"least: {name_of(row, keys)}: {row['tflops']:.1f} of {other['tflops']:.1f} TFLOP/s; {reached} of "
                f"{len(pairs)} shapes reach it")


def goals(step, bench, torch):
    result = {}
    if step.get("mfu") is not None:
        text = (f"{step['tokens_per_second']:.0f} tokens/s, {step['layers']} layers, {step['micro_batch_size']} x {SEQUENCE} tokens; peak "
                f"{step['peak_tflops']:.0f} TFLOP/s from {step['peak_from']}; {100 * step['mfu_causal']:.1f} % if only what a causal "
                "model needs of attention counts")
        result["mfu"] = goal(GOALS["mfu"], step["mfu"], text)
    else:
        result["mfu"] = goal(GOALS["mfu"], None, "no whole step was measured")
    theirs = [row for row in rows_of(torch, "attention") if row["kind"] == "flash"]
    result["attention"] = worst_of(beside(rows_of(bench, "attention"), theirs, ATTENTION_KEYS), GOALS["attention"], ATTENTION_KEYS,
                                   "attention")
    shares = [(row["share_of_copy"], f"{row['operation']} {row['dtype']} ({row['shape']})") for row in rows_of(bench, "memory")]
    if shares:
        share, name = min(shares)
        reached = sum(one[0] >= GOALS["memory"] for one in shares)
        result["memory"] = goal(GOALS["memory"], share, f"least: {name}; {reached} of {len(shares)} reach it")
    else:
        result["memory"] = goal(GOALS["memory"], None, "no memory-bound operation was measured")
    result["gemm"] = worst_of(beside(rows_of(bench, "gemm"), rows_of(torch, "gemm"), GEMM_KEYS), GOALS["gemm"], GEMM_KEYS,
                              "matrix products")
    return result


def table(header, rows):
    line = lambda cells: "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
    return [line(header), "|" + "---|" * len(header), *map(line, rows), ""]


TITLES = {"mfu": "MFU of a 1.3B model in bfloat16", "attention": "flash attention / PyTorch's flash attention",
          "memory": "memory-bound operations / copy bandwidth", "gemm": "matrix products / PyTorch's"}


def summary(report):
    """What is printed: goals, sections, whole steps."""
    facts, bench, torch, step = (report[key] for key in ("facts", "bench", "pytorch", "step"))
    lines = [f"# {facts.get('name', 'A GPU')}: correctness and speed", "",
             f"{facts.get('date', '')}, driver {facts.get('driver', '?')}, toolkit {facts.get('toolkit', '?')}, {facts.get('count', '?')} "
             f"GPU(s) of {facts.get('memory_gb', '?')} GB, Escalera {facts.get('commit', '?')}"
             + (f", PyTorch {torch['torch']}" if "torch" in torch else "") + ". Made by `scripts/gpu_check.sh`.", ""]
    if report["quick"]:
        lines += ["With `--quick`: shows that everything runs; the figures mean nothing.", ""]
    if report["goals"]:
        lines += table(["goal", "wanted", "found", "", "remarks"],
                       [(TITLES[name], f"{100 * one['wanted']:.0f} %", percent(one["found"]), one["state"], one["text"])
                        for name, one in report["goals"].items()])
    lines += table(["section", "result", "seconds", "remarks"],
                   [(one["name"], one["result"], one["seconds"], one["remark"]) for one in report["sections"]])
    limits = rows_of(bench, "limits")
    if limits:
        lines += table(["limit", "ours", "PyTorch"],
                       [(row["limit"], figure(row), next((figure(other) for other in rows_of(torch, "limits")
                                                          if other["limit"] == row["limit"]), "-")) for row in limits])
    if step or rows_of(torch, "step"):
        theirs = next(iter(rows_of(torch, "step")), {})
        lines += table(["whole step", "micro-batch", "step, ms", "tokens/s", "MFU"],
                       [("ours", step.get("micro_batch_size", "-"), rounded(step.get("step_ms")), rounded(step.get("tokens_per_second")),
                         percent(step.get("mfu"))),
                        ("PyTorch", theirs.get("micro_batch_size", "-"), rounded(theirs.get("step_ms")),
                         rounded(theirs.get("tokens_per_second")), percent(ratio_of(theirs, step, "tokens_per_second", step.get("mfu"))))])
    return lines


def details(report):
    """Every operation, for the file."""
    bench, torch, lines = report["bench"], report["pytorch"], []
    memory = rows_of(bench, "memory")
    if memory:
        lines += table(["memory-bound operation", "type", "shape", "us", "GB/s", "of copy"],
                       [(row["operation"], row["dtype"], row["shape"], rounded(row["us"], 1), rounded(row["gb_per_s"]),
                         percent(row["share_of_copy"])) for row in memory])
    for section, keys, title in (("attention", ATTENTION_KEYS, "flash attention"), ("gemm", GEMM_KEYS, "matrix product")):
        ours = rows_of(bench, section)
        if ours:
            theirs = [row for row in rows_of(torch, section) if row.get("kind", "flash") == "flash"]
            ratios = {id(row): (other, ratio) for row, other, ratio in beside(ours, theirs, keys)}
            lines += table([title, "us", "TFLOP/s", "PyTorch", "ratio"],
                           [(name_of(row, keys), rounded(row["us"], 1), rounded(row["tflops"], 1),
                             rounded(ratios[id(row)][0]["tflops"], 1) if id(row) in ratios else "-",
                             percent(ratios[id(row)][1]) if id(row) in ratios else "-") for row in ours])
    return lines


def figure(row):
    return f"{row['gb_per_s']:.0f} GB/s" if "gb_per_s" in row else f"{row['tflops']:.1f} TFLOP/s"


def rounded(number, digits=0):
    return "-" if number is None else f"{number:.{digits}f}"


def percent(share):
    return "-" if share is None else f"{100 * share:.1f} %"


def ratio_of(row, other, key, factor):
    return row[key] / other[key] * factor if factor and row.get(key) and other.get(key) else None


def merge(folder, target):
    facts = load(folder, "facts.json")
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    facts["commit"] = commit.stdout.strip() or "unknown"
    bench, torch = dict(sections={}), dict(sections={})
    for results, prefix in ((bench, "bench_"), (torch, "pytorch_")):
        for name in sorted(os.listdir(folder)):
            if name.startswith(prefix) and name.endswith(".json"):
                part = load(folder, name)
                results["sections"].update(part.pop("sections", {}))
                results.update(part)
    quick = bool(facts.get("quick"))
    step = whole_step(folder, {} if quick else bench, facts)
    report = dict(facts=facts, quick=quick, goals={} if quick else goals(step, bench, torch), sections=read_sections(folder), step=step,
                  bench=bench, pytorch=torch)
    with open(target + ".json", "w") as file:
        json.dump(report, file, indent=1)
    with open(target + ".md", "w") as file:
        file.write("\n".join(summary(report) + details(report)))
    print("\n".join(summary(report)))


def main(words):
    command, *rest = words or ["--help"]
    if command == "plan" and len(rest) == 1:
        print(*plan(float(rest[0])))
    elif command == "tokens" and len(rest) == 3:
        write_tokens(rest[0], int(rest[1]), int(rest[2]))
    elif command == "peak" and len(rest) == 1:
        print(peak(rest[0]) or "")
    elif command == "same-losses" and len(rest) == 2:
        return same_losses(*rest)
    elif command == "merge" and len(rest) == 2:
        merge(*rest)
    else:
        return __doc__.strip()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
