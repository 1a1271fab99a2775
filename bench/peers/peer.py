"""How to start the PyTorch peer: which Python, and under which environment.

What surrounds PyTorch decides its speed as much as its own code does. A training step allocates and frees some
hundred megabytes; an allocator that hands them back to the system makes the kernel clear every page again in the next
step. Each parallel operation wakes the OpenMP threads; threads that went to sleep cost tens of microseconds each time.
ENVIRONMENTS lists what we try against both, and `tune.py` measures them.
"""
import glob
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))
import quiet
PROGRAM = os.path.join(HERE, "torch_llama.py")

# Settings that choose another code path, thread count or allocator than a plain process would have: some machines carry
# them for other programs' sake, and the peer must not suffer from that.
CLEARED_PREFIXES = ("OPENBLAS_", "NVPL_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "OMP_", "GOMP_", "KMP_", "MALLOC_",
                    "GLIBC_TUNABLES", "LD_PRELOAD", "TORCH_", "BLIS_", "GOTO_", "RANK", "WORLD_SIZE", "MASTER_")

GLIBC_KEEPS = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000",
               "MALLOC_TOP_PAD_": "67108864"}
JEMALLOC = {"LD_PRELOAD": "libjemalloc.so.2",
            "MALLOC_CONF": "oversize_threshold:0,background_thread:false,dirty_decay_ms:-1,muzzy_decay_ms:-1"}
JEMALLOC_THP = {**JEMALLOC, "MALLOC_CONF": JEMALLOC["MALLOC_CONF"] + ",metadata_thp:auto,thp:always"}
TCMALLOC = {"LD_PRELOAD": "libtcmalloc_minimal.so.4", "TCMALLOC_RELEASE_RATE": "0"}
GNU_SPINS = {"OMP_WAIT_POLICY": "active"}
GLIBC_THP = {**GLIBC_KEEPS, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
INTEL_OPENMP = {"LD_PRELOAD": "libiomp5.so", "KMP_BLOCKTIME": "200", "KMP_AFFINITY": "none"}


def merged(*settings):
    """Joins dictionaries of environment variables; libraries to preload are listed one after the other."""
    result = {}
    for one in settings:
        for key, value in one.items():
            result[key] = result[key] + ":" + value if key == "LD_PRELOAD" and key in result else value
    return result


ENVIRONMENTS = {
    "plain": {},
    "glibc keeps": GLIBC_KEEPS,
    "glibc keeps, huge pages": GLIBC_THP,
    "jemalloc": JEMALLOC,
    "jemalloc, huge pages": JEMALLOC_THP,
    "tcmalloc": TCMALLOC,
    "spin": GNU_SPINS,
    "glibc keeps, spin": merged(GLIBC_KEEPS, GNU_SPINS),
    "glibc keeps, huge pages, spin": merged(GLIBC_THP, GNU_SPINS),
    "jemalloc, spin": merged(JEMALLOC, GNU_SPINS),
    "tcmalloc, spin": merged(TCMALLOC, GNU_SPINS),
    "Intel OpenMP": INTEL_OPENMP,
    "Intel OpenMP, glibc keeps": merged(INTEL_OPENMP, GLIBC_KEEPS),
    "Intel OpenMP, glibc keeps, huge pages": merged(INTEL_OPENMP, GLIBC_THP),
    "Intel OpenMP, jemalloc": merged(INTEL_OPENMP, JEMALLOC),
    "Intel OpenMP, jemalloc, huge pages": merged(INTEL_OPENMP, JEMALLOC_THP),
    "Intel OpenMP, tcmalloc": merged(INTEL_OPENMP, TCMALLOC),
    "Intel OpenMP, tcmalloc, block time 0": merged(INTEL_OPENMP, TCMALLOC, {"KMP_BLOCKTIME": "0"}),
    "Intel OpenMP, tcmalloc, bound": merged(INTEL_OPENMP, TCMALLOC, {"KMP_AFFINITY": "granularity=fine,compact,1,0"}),
}


BEST_FIRST = ["Intel OpenMP, tcmalloc", "Intel OpenMP, jemalloc", "Intel OpenMP, glibc keeps", "glibc keeps"]


class Missing(Exception):
    """Something that the peer needs is not there; the message says what, and how to get it."""


def python():
    """The Python that has torch: PEER_PYTHON, or the environment that setup.sh makes."""
    chosen = os.environ.get("PEER_PYTHON") or os.path.join(ROOT, "build", "peer-venv", "bin", "python")
    if not os.access(chosen, os.X_OK):
        raise Missing(f"no Python with PyTorch at {chosen}: run bench/peers/setup.sh, "
                      "or set PEER_PYTHON to a Python that has torch")
    return chosen


def library(name):
    """Finds a shared library to preload: beside the peer's Python first, then where the linker looks; else None."""
    beside = os.path.join(os.path.dirname(os.path.dirname(python())), "lib", name)
    if os.path.exists(beside):
        return beside
    listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    found = [line.split("=> ")[1] for line in listing.splitlines() if line.split(" ")[0].strip() == name and "=> " in line]
    return found[0] if found else next(iter(glob.glob(f"/usr/lib*/**/{name}", recursive=True)), None)


def best_environment():
    """The name of the best environment whose libraries this machine has."""
    for name in BEST_FIRST:
        needed = [one for one in ENVIRONMENTS[name].get("LD_PRELOAD", "").split(":") if one]
        missing = [one for one in needed if library(one) is None]
        if not missing:
            return name
        print(f"PyTorch runs without {', '.join(missing)}, so slower than it could; "
              "bench/peers/setup.sh installs it", file=sys.stderr)


def environment(settings):
    """The environment to run the peer in: ours, cleared of what could slow it, with `settings` added."""
    result = {key: value for key, value in os.environ.items() if not key.startswith(CLEARED_PREFIXES)}
    for key, value in settings.items():
        if key == "LD_PRELOAD":
            paths = [library(name) for name in value.split(":")]
            if None in paths:
                raise Missing(f"{value.split(':')[paths.index(None)]} was not found; bench/peers/setup.sh installs it")
            value = ":".join(paths)
        result[key] = value
    return result


def run(options, settings, **patience):
    """Runs the peer and returns what it printed, with the cores that other programs used meanwhile as "others".

    `patience` goes to quiet.run.
    """
    command = [python(), PROGRAM, *map(str, options)]
    done, others = quiet.run(command, env=environment(settings), **patience)
    if done.returncode:
        raise Missing(f"the peer failed with exit code {done.returncode}:\n  {' '.join(command)}\n{done.stderr.strip()[-2000:]}")
    if "--profile" in options:
        print(done.stderr, file=sys.stderr)
    return {**json.loads(done.stdout.splitlines()[-1]), "others": others}
