#!/usr/bin/env python3
"""What can be known about the CUDA kernels without running them, as a table: from the compiled library and its disassembly.

    bench/kernel_table.py                              build/cuda/lib/libescalera_cuda.so, as Markdown
    bench/kernel_table.py --json FILE.so OTHER.o       any library or object files
    bench/kernel_table.py --check                      exit code 1 if a hot kernel lacks what makes it fast

For each hot kernel: registers, local memory (spills, arrays on the stack), shared memory, threads of a block and how much of a
multiprocessor they fill at the shapes of a model of 1.3 billion parameters; bytes and operations against the least that the
operation needs (bench/floors.h); and from the disassembly the width of its accesses, background copies and tensor-core
instructions. The other kernels (odd widths, unaligned slices, rows that are too long for registers) are counted together.

It needs cuobjdump: that of the CUDA toolkit or of Triton's wheel, else from PyPI (nvidia-cuda-cuobjdump), into build/tools.
"""
import argparse
import collections
import glob
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

BENCH = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(BENCH)
OPS = os.path.join(ROOT, "common", "ops", "cuda")
VENV = os.path.join(ROOT, "build", "tools", "cuda-binaries")

# What a multiprocessor has (CUDA C++ Programming Guide, table of compute capabilities), and how many of them an A100 and an H100
# have. Registers are handed out to warps, 256 at a time, and to four warps at a time; shared memory 128 bytes at a time, and the
# system takes 1 KB of each block, which for sm_90 the compiler has already added to a kernel's own.
LIMITS = {
    "sm_80": dict(multiprocessors=108, warps=64, blocks=32, registers=65536, shared=164 * 1024, system_in_static=0),
    "sm_90": dict(multiprocessors=132, warps=64, blocks=32, registers=65536, shared=228 * 1024, system_in_static=1024),
}
REGISTER_UNIT, WARP_UNIT, SHARED_UNIT, SHARED_OF_SYSTEM = 256, 4, 128, 1024

# The shapes of configs/models/playbook-1.34b, and the tokens of a step.
with open(os.path.join(ROOT, "configs", "models", "playbook-1.34b.json")) as file:
    MODEL = json.load(file)
HIDDEN, FFN, VOCABULARY = MODEL["hidden_size"], MODEL["intermediate_size"], MODEL["vocab_size"]
HEAD_SIZE, TOKENS, HEAD_CHUNK = HIDDEN // MODEL["num_attention_heads"], 16384, 256  # the head's rows of logits at a time


class Missing(Exception):
    """Something that the table needs is not there; the message says what, and how to get it."""


def source(name):
    with open(os.path.join(OPS, name)) as file:
        return file.read()


def constant(file, name):
    """The value of `constexpr ... name = 123`, so that the launchers' numbers stand in one place."""
    found = re.search(rf"constexpr [^;]*\b{name} = (\d+)", source(file))
    if not found:
        raise Missing(f"{file} has no constant {name} any more; bench/kernel_table.py has to follow")
    return int(found.group(1))


def floors():
    """{operation: (values in the activations' type, values in float32)} for each element, from floors.h."""
    with open(os.path.join(BENCH, "floors.h")) as file:
        lines = re.findall(r'\{"(\w+)", (\d+), (\d+), "', file.read())
    return {operation: (int(narrow), int(wide)) for operation, narrow, wide in lines}


# ---- how the launchers start the kernels ------------------------------------------------------------------------------------


def row_threads(columns, width, most, packs=None):
    """As row_threads() in row_blocks.h."""
    packs, threads = packs or constant("row_blocks.h", "packs_in_flight"), 32
    while threads < most and threads * width * (packs // 2 if threads < 128 else packs) < columns:
        threads *= 2
    return threads


def norm_backward_blocks():
    """As block_count() in norm_backward.cu."""
    rows = max(constant("norm_backward.cu", "fewest_rows"), -(-TOKENS // constant("norm_backward.cu", "most_blocks")))
    return -(-TOKENS // rows)


SIZES = {"__nv_bfloat16": 2, "float": 4, "double": 8}
# A memory-bound kernel: threads of a block, blocks of a launch where they are few, bytes per element beyond the floor.
Row = collections.namedtuple("Row", "operation threads grid extra", defaults=(None, 0))


def memory_bound(name, arguments):
    """What is known of a kernel that is bound by memory, or None. `arguments` are those of its template."""
    width = int(arguments[1]) if len(arguments) > 1 and arguments[1].isdigit() else None
    flat = lambda file: constant(file, "threads_per_block")
    if name == "norm_kernel":
        operation = ("rms_norm_forward", "add_rms_norm_forward", "rms_norm_apply")[int(arguments[2])]
        return Row(operation, row_threads(HIDDEN, width, constant("norm.cu", "most_threads")))
    if name == "norm_backward_kernel":
        threads = row_threads(HIDDEN, width, constant("norm_backward.cu", "most_threads"), constant("norm_backward.cu", "packs"))
        blocks = norm_backward_blocks()  # each writes a row of sums in float32, which a second kernel reads
        return Row("rms_norm_backward", threads, blocks, 2 * 4 * blocks / TOKENS)
    if name == "rope_kernel":
        x = max(HEAD_SIZE // 2 // width, 1)
        operation = "rope_merge_backward" if arguments[2] in ("1", "true") else "rope_split_forward"
        return Row(operation, x * (flat("rope.cu") // x))
    if name == "embedding_forward_kernel":
        return Row("embedding_forward", row_threads(HIDDEN, width, flat("embedding.cu")))
    if name in ("row_max_kernel", "row_sums_kernel", "gradient_kernel"):
        operation = {"gradient_kernel": "cross_entropy_backward"}.get(name, "cross_entropy_" + name.removesuffix("_kernel"))
        return Row(operation, row_threads(VOCABULARY, width, constant("loss.cu", "most_threads")), HEAD_CHUNK)
    if name == "row_dot_kernel":
        return Row("attention_row_dot", constant("attention/attention.cu", "row_dot_threads"))
    simple = {"swiglu_forward_kernel": "swiglu.cu", "swiglu_backward_kernel": "swiglu.cu", "add_segments_kernel": "embedding.cu",
              "add_kernel": "elementwise.cu", "scale_kernel": "elementwise.cu", "convert_kernel": "elementwise.cu",
              "squared_norm_kernel": "elementwise.cu", "adamw_kernel": "optimizer.cu", "sgd_kernel": "optimizer.cu"}
    if name in simple:
        operation = {"add_segments_kernel": "embedding_backward"}.get(name, name.removesuffix("_kernel"))
        return Row(operation, flat(simple[name]), constant("elementwise.cu", "most_parts") if name == "squared_norm_kernel" else None)
    return None


def width_of(name, arguments):
    return int(arguments[2 if name == "convert_kernel" else 1])


def bytes_per_element(row, name, arguments):
    """What an element of the operation must move."""
    narrow, wide = floors()[row.operation]
    if name == "convert_kernel":
        return SIZES[arguments[0]] + SIZES[arguments[1]]
    if name == "squared_norm_kernel":  # of whatever type the span has
        return SIZES[arguments[0]]
    if name in ("adamw_kernel", "sgd_kernel") and arguments[0] == "float":
        narrow = 0  # masters of float32 are the weights
    return narrow * SIZES[arguments[0]] + wide * 4


Attention = collections.namedtuple("Attention", "part products needed threads shared")


def tensor_core_attention(name, arguments):
    """A tensor-core kernel's launch, from the tiles that its header states; None for other kernels. A product is 2 d operations per
    query and key. Forward needs two, backward five; our two backward kernels compute three and four, seven together."""
    kinds = {"forward_kernel": ("ForwardTile", "forward", 2, 2), "query_gradient_kernel": ("QueryGradientTile", "backward, dq", 3, 5),
             "key_gradient_kernel": ("KeyGradientTile", "backward, dk and dv", 4, 5)}
    if name not in kinds or len(arguments) < 2 or not arguments[0].isdigit():
        return None
    tile, part, products, needed = kinds[name]
    text = source("attention/tensor_core_forward.h") + source("attention/tensor_core_backward.h")
    found = re.search(rf"struct {tile}<{arguments[0]}> \{{\s*static constexpr int M16 = (\d+), \w+ = (\d+)", text)
    if not found:
        raise Missing(f"there is no {tile}<{arguments[0]}> any more; bench/kernel_table.py has to follow")
    m16, streamed = map(int, found.groups())
    warps = constant("attention/tensor_core_tiles.h", "warps_of_block")
    own = warps * m16 * 16
    rows, floats = {"forward": (own + 2 * streamed, 0), "backward, dq": (2 * own + 2 * streamed, 0),
                    "backward, dk and dv": (2 * own + 4 * streamed, 4 * streamed)}[part]
    return Attention(part, products, needed, 32 * warps, 2 * int(arguments[0]) * rows + 4 * floats)


# ---- what the compiler made of them -----------------------------------------------------------------------------------------


def cuobjdump():
    """The program, installed into build/tools if it is nowhere else."""
    def candidates():
        yield shutil.which("cuobjdump")
        yield "/usr/local/cuda/bin/cuobjdump"
        triton = importlib.util.find_spec("triton")
        if triton and triton.origin:
            yield os.path.join(os.path.dirname(triton.origin), "backends", "nvidia", "bin", "cuobjdump")
        yield from glob.glob(os.path.join(VENV, "lib", "python*", "site-packages", "nvidia", "*", "bin", "cuobjdump"))
    for attempt in range(2):
        for path in candidates():
            if path and os.access(path, os.X_OK):
                return path
        if attempt == 0:
            print("kernel_table.py: installing cuobjdump into build/tools/cuda-binaries", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
            subprocess.run([os.path.join(VENV, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check",
                            "nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"], check=True)
    raise Missing("cuobjdump was not found and could not be installed (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")


def dump(program, option, path):
    environment = dict(os.environ, PATH=os.path.dirname(program) + os.pathsep + os.environ.get("PATH", ""))
    process = subprocess.Popen([program, option, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    yield from process.stdout
    if process.wait():
        raise Missing(f"{program} {option} {path} failed: {process.stderr.read().strip()[-500:]}")


def read(path):
    """{(architecture, mangled name): properties} of all kernels in a library or object file."""
    program = cuobjdump()
    kernels, architecture, kernel = {}, None, None
    for line in dump(program, "--dump-resource-usage", path):
        if found := re.match(r"arch = (sm_\d+)", line):
            architecture = found.group(1)
        elif found := re.match(r"\s*Function (\S+):", line):
            kernel = kernels.setdefault((architecture, found.group(1)), dict(instructions=collections.Counter()))
        elif found := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            kernel.update(zip(("registers", "stack", "shared", "local"), map(int, found.groups())))
    counter = None
    for line in dump(program, "-sass", path):
        if found := re.match(r"\s*code for (sm_\d+)", line):
            architecture = found.group(1)
        elif found := re.match(r"\s*Function : (\S+)", line):
            kernel = kernels.get((architecture, found.group(1)))
            counter = kernel["instructions"] if kernel else None
        elif counter is not None and (found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line)):
            counter[found.group(1)] += 1
    return kernels


def demangled(names):
    program = shutil.which("c++filt")
    if not program:
        raise Missing("c++filt was not found (it comes with g++'s binutils)")
    done = subprocess.run([program], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.splitlines()))


def split_name(text):
    """A demangled kernel's own name and its template arguments: enumerators as numbers, namespaces left out."""
    text = re.sub(r"\([\w:]*(?:\(anonymous namespace\)::)?[\w:]*\)(\d+)", r"\1", text)  # (escalera::cuda::Norm)1
    text = re.sub(r"\((bool|int)\)", "", text)
    found = re.search(r"(\w+)(?:<([^()]*)>)?\(", text.replace("(anonymous namespace)::", ""))
    name, arguments = found.group(1), found.group(2) or ""
    return name, [argument.strip() for argument in arguments.split(",")] if arguments else []


def count(instructions, pattern):
    return sum(number for name, number in instructions.items() if re.fullmatch(pattern, name))


def occupancy(architecture, registers, shared, threads, grid=None):
    """Blocks on a multiprocessor, and the share of its warps that they are. A small grid may not have that many."""
    limit = LIMITS[architecture]
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = limit["registers"] // per_warp // WARP_UNIT * WARP_UNIT // warps
    per_block = -(-(shared + SHARED_OF_SYSTEM) // SHARED_UNIT) * SHARED_UNIT
    blocks = min(limit["blocks"], limit["warps"] // warps, by_registers, limit["shared"] // per_block)
    if grid and blocks:
        blocks = min(blocks, grid / limit["multiprocessors"])
    return blocks, blocks * warps / limit["warps"]


def describe(architecture, mangled, text, kernel):
    """One row for the JSON: what was read, and what it means at the model's shapes if the kernel is hot."""
    name, arguments = split_name(text)
    instructions = kernel["instructions"]
    row = dict(architecture=architecture, kernel=name, arguments=arguments, registers=kernel["registers"], stack=kernel["stack"],
               local=kernel["local"], shared_static=kernel["shared"], instructions=sum(instructions.values()),
               local_accesses=count(instructions, r"(LDL|STL)\b.*"), tensor_core=count(instructions, r"[HQI]G?MMA\b.*"),
               ldmatrix=count(instructions, r"LDSM\b.*"), background_copies=count(instructions, r"LDGSTS\b.*"),
               loads=count(instructions, r"LDG\b.*"), loads_128=count(instructions, r"LDG\b.*\.128.*"),
               stores=count(instructions, r"STG\b.*"), stores_128=count(instructions, r"STG\b.*\.128.*"),
               symbol=mangled, kind="other", hot=False)
    if row["shared_static"]:
        row["shared_static"] -= LIMITS[architecture]["system_in_static"]
    threads = grid = None
    shared = 0
    if attention := tensor_core_attention(name, arguments):
        native = arguments[1] in ("1", "true")
        threads, shared = attention.threads, attention.shared
        row.update(kind="attention", hot=native, part=attention.part, head_size=int(arguments[0]), shared_dynamic=shared,
                   products=attention.products, products_needed=attention.needed)
    elif memory := memory_bound(name, arguments):
        threads, grid = memory.threads, memory.grid
        floor = bytes_per_element(memory, name, arguments)
        hot = width_of(name, arguments) > 1 and "double" not in arguments  # float64 only passes through checkpoints and tests
        row.update(kind="memory", hot=hot, operation=memory.operation, bytes_floor=floor,
                   bytes=floor + memory.extra)
    if threads:
        blocks, share = occupancy(architecture, kernel["registers"], row["shared_static"] + shared, threads, grid)
        row.update(threads=threads, blocks_per_multiprocessor=blocks, occupancy=share)
    return row


def problems(row):
    """What a hot kernel must not have, or must."""
    found = []
    if not row["hot"]:
        return found
    if row["local"] or row["stack"] or row["local_accesses"]:
        found.append(f"local memory ({row['stack']} bytes of stack, {row['local_accesses']} accesses)")
    if row["blocks_per_multiprocessor"] == 0:
        found.append("a block needs more than a multiprocessor has")
    if row["kind"] == "attention" and not row["tensor_core"]:
        found.append("no tensor-core instructions")
    if row["kind"] == "attention" and not row["background_copies"]:
        found.append("no background copies (cp.async)")
    if row["kind"] == "memory" and not row["loads_128"] + row["stores_128"]:
        found.append("no accesses of 16 bytes")
    return found


# ---- the table --------------------------------------------------------------------------------------------------------------


def short(row):
    types = {"__nv_bfloat16": "bf16"}
    return f"{row['kernel']}<{', '.join(types.get(argument, argument) for argument in row['arguments'])}>"


def aligned(header, rows):
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)] + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def occupancy_text(row):
    return f"{row['blocks_per_multiprocessor']:.3g} x {row['threads']} ({100 * row['occupancy']:.0f} %)"


def markdown(rows, about):
    lines = ["# The CUDA kernels, as compiled", "", about, ""]
    for architecture in sorted({row["architecture"] for row in rows}):
        here = [row for row in rows if row["architecture"] == architecture]
        memory = sorted((row for row in here if row["hot"] and row["kind"] == "memory"),
                        key=lambda row: (list(floors()).index(row["operation"]), short(row)))
        attention = sorted((row for row in here if row["hot"] and row["kind"] == "attention"),
                           key=lambda row: (row["head_size"], row["part"] != "forward", short(row)))
        lines += [f"## {architecture}", ""]
        if memory:
            lines += [f"Bound by memory, at {TOKENS} tokens, hidden {HIDDEN}, ffn {FFN}, vocabulary {VOCABULARY}:", ""]
            lines += aligned(
                ["operation", "kernel", "registers", "local memory", "shared", "blocks x threads (occupancy)",
                 "bytes per element", "floor", "loads, of 16 bytes", "stores, of 16 bytes"],
                [(row["operation"], f"`{short(row)}`", row["registers"], row["stack"] + row["local"], row["shared_static"],
                  occupancy_text(row), f"{row['bytes']:.3g}", row["bytes_floor"], f"{row['loads']}, {row['loads_128']}",
                  f"{row['stores']}, {row['stores_128']}") for row in memory]) + [""]
        if attention:
            lines += ["Attention on tensor cores (a product: 2 operations per query, key and column of a head):", ""]
            lines += aligned(
                ["head size", "part", "registers", "local memory", "shared", "blocks x threads (occupancy)", "products",
                 "of the operation", "tensor-core instructions", "ldmatrix", "background copies"],
                [(row["head_size"], row["part"], row["registers"], row["stack"] + row["local"], row["shared_dynamic"],
                  occupancy_text(row), row["products"], row["products_needed"], row["tensor_core"], row["ldmatrix"],
                  row["background_copies"]) for row in attention]) + [""]
        rest = [row for row in here if not row["hot"]]
        if rest:
            local = [f"`{short(row)}`" for row in rest if row["stack"] or row["local"] or row["local_accesses"]]
            lines += [f"{len(rest)} other kernels (odd widths and unaligned slices, long rows, small sums): up to "
                      f"{max(row['registers'] for row in rest)} registers; local memory: {', '.join(local) or 'none'}.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="libraries and object files (default: the library of the preset cuda)")
    parser.add_argument("--json", action="store_true", help="all that is known, instead of the table")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a hot kernel has local memory, or lacks tensor-core "
                        "instructions (attention) or accesses of 16 bytes (the others)")
    arguments = parser.parse_args()
    files = arguments.files or [os.path.join(ROOT, "build", "cuda", "lib", "libescalera_cuda.so")]
    kernels = {}
    for path in files:
        if not os.path.exists(path):
            raise Missing(f"there is no {path}; build the preset cuda first (cmake --preset cuda && cmake --build --preset cuda)")
        kernels.update(read(path))
    names = demangled(sorted({name for _, name in kernels}))
    rows = [describe(architecture, name, names[name], kernel) for (architecture, name), kernel in sorted(kernels.items())
            if "escalera" in name and architecture in LIMITS]
    if not any(row["hot"] for row in rows):
        raise Missing(f"{', '.join(files)}: no kernel of ours for {' or '.join(LIMITS)} is in there")
    bad = [f"{row['architecture']} {short(row)}: {problem}" for row in rows for problem in problems(row)]
    if arguments.json:
        print(json.dumps(dict(kernels=rows, problems=bad), indent=1))
    else:
        about = ("Made by `bench/kernel_table.py`, which explains the columns. Occupancy and bytes are for the shapes of "
                 "`configs/models/playbook-1.34b.json`; nothing here was measured.")
        print(markdown(rows, about))
        print("Nothing is wrong with the hot kernels: no local memory, tensor-core instructions in attention, accesses of 16 bytes."
              if not bad else "Wrong:\n\n" + "\n".join(f"- {line}" for line in bad))
    return 1 if arguments.check and bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Missing as error:
        sys.exit(f"kernel_table.py: {error}")
    except BrokenPipeError:
        sys.exit(1)
