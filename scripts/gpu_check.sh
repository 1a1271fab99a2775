#!/usr/bin/env bash
# Builds and checks Escalera on a machine with one or more GPUs, and measures how fast it is there: one command, no network,
# within ten minutes. Each section has a time limit, a log and a result of its own; one that fails hides no other.
#
#   scripts/gpu_check.sh                    builds the preset cuda into build/gpu_check, then all sections
#   scripts/gpu_check.sh --prebuilt DIR     a build folder made elsewhere (bin/ and lib/ in it), used as it is
#   scripts/gpu_check.sh --quick            small sizes: shows that everything runs, measures nothing
#   scripts/gpu_check.sh --out DIR          results and logs there (default: bench/results, logs in build/gpu_check_run)
#   scripts/gpu_check.sh --budget SECONDS   instead of 600; sections that no longer fit are "not run: out of time"
#
# The report, gpu_<name>_<date>.json and .md, is also printed. Exit code: 0 if every section that ran passed, 1 if one did not,
# 2 if there is no GPU to check. Goals that are missed fail nothing: they are in the report.
#
# A build for another machine: cmake --preset cuda -B DIR -DESCALERA_MPI=OFF -DESCALERA_ONEDNN=OFF -DESCALERA_CUDA_TESTS_ONLY=ON,
# then cmake --build DIR --target cuda_checks step01_dp step02_fsdp step03_tp. Shared libraries that the other machine lacks (libfmt) may be copied into
# DIR/lib; those of the CUDA toolkit are also found in PyTorch's wheels. Where a package of the build lies in an unusual place,
# CMAKE_PREFIX_PATH says where.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

prebuilt=
quick=no
out=
budget=600
while [ $# -gt 0 ]; do
  case $1 in
    --prebuilt | --out | --budget)
      [ $# -ge 2 ] || { echo "gpu_check.sh: $1 wants a value after it" >&2; exit 2; }
      declare "${1#--}=$2"; shift 2 ;;
    --quick) quick=yes; shift ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "gpu_check.sh: unknown option $1 (scripts/gpu_check.sh --help)" >&2; exit 2 ;;
  esac
done
[[ $budget =~ ^[0-9]+$ ]] || { echo "gpu_check.sh: --budget $budget: a number of seconds" >&2; exit 2; }
if [ -n "$prebuilt" ] && [ ! -d "$prebuilt/bin" ]; then
  echo "gpu_check.sh: --prebuilt $prebuilt: there is no folder bin in it" >&2
  exit 2
fi
command -v python3 > /dev/null || { echo "gpu_check.sh: python3 is missing; it writes the report" >&2; exit 2; }

# ---- the GPU ----------------------------------------------------------------------------------------------------------------

PATH=$PATH:/usr/local/cuda/bin:/usr/lib/wsl/lib
if ! command -v nvidia-smi > /dev/null; then
  echo "gpu_check.sh: no GPU here: there is no nvidia-smi, which comes with NVIDIA's driver. Nothing was checked." >&2
  exit 2
fi
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2> /dev/null; }
if ! query name | grep -q .; then
  echo "gpu_check.sh: no GPU here: nvidia-smi finds none ($(nvidia-smi 2>&1 | head -n 1)). Nothing was checked." >&2
  exit 2
fi
gpu=$(query name | head -n 1)
gpus=$(query name | wc -l)
capability=$(query compute_cap | sort -V | head -n 1)
memory_mb=$(query memory.total | sort -n | head -n 1)
if [ "${capability%%.*}" -lt 8 ]; then
  echo "gpu_check.sh: $gpu has compute capability $capability; the kernels need 8.0 (Ampere) or newer. Nothing was checked." >&2
  exit 2
fi

# ---- where results go -------------------------------------------------------------------------------------------------------

build=$root/build/gpu_check
run=${out:+$out/logs}
run=${run:-$root/build/gpu_check_run}
results=${out:-$root/bench/results}
slug=$(tr -cs 'a-zA-Z0-9\n' _ <<< "${gpu#NVIDIA }" | tr 'A-Z' 'a-z' | sed 's/_*$//')
rm -rf "$run"
mkdir -p "$run" "$results"
run=$(cd "$run" && pwd)
[ -z "$prebuilt" ] || build=$(cd "$prebuilt" && pwd)
report() { python3 "$root/bench/gpu_report.py" "$@"; }

# The loader must find what the build machine had: libraries carried along, the toolkit's, or those inside PyTorch's wheels.
peer_python=${PEER_PYTHON:-$root/build/peer-venv/bin/python}
[ -x "$peer_python" ] || peer_python=$(command -v python3)
wheels=$("$peer_python" - 2> /dev/null << 'PYTHON'
import glob, os, sysconfig
print(":".join(glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*", "lib"))))
PYTHON
)
libraries=$build/lib:${LD_LIBRARY_PATH:-}
for folder in /usr/local/cuda/lib64 "${CONDA_PREFIX:-/nowhere}/lib"; do
  [ ! -d "$folder" ] || libraries=$libraries:$folder
done
export LD_LIBRARY_PATH=$libraries${wheels:+:$wheels}

# ---- sections ---------------------------------------------------------------------------------------------------------------

passed=0
failed=0
record() { # name result seconds remark log
  printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$(tr '\t\n' '  ' <<< "$4" | sed 's/ *$//')" "$5" >> "$run/sections.tsv"
  printf '%-28s %s%s\n' "$1" "$2" "${4:+: $4}"
}

# Runs a command in a process group of its own; 124 if it had to be ended after so many seconds.
limited() { # seconds command ...
  local limit=$1 job end
  shift
  set -m
  "$@" < /dev/null &
  job=$!
  set +m
  end=$((SECONDS + limit))
  while kill -0 "$job" 2> /dev/null; do
    if [ "$SECONDS" -ge "$end" ]; then
      kill -TERM -- "-$job" 2> /dev/null
      sleep 1
      kill -KILL -- "-$job" 2> /dev/null
      wait "$job" 2> /dev/null
      return 124
    fi
    sleep 0.1
  done
  wait "$job"
}

# A section is a command with a time limit; what it prints goes to its log. A file remark.NAME that it leaves is its remark; it
# ends with 77 if there is nothing to do here. Fewer than 15 seconds before the end of the budget, none is begun.
section() { # name limit command ...
  local name=$1 limit=$2 left begin code remark
  shift 2
  local file=${name//[^a-zA-Z0-9]/_}
  left=$((budget - SECONDS - 5))
  if [ "$left" -lt 15 ]; then
    record "$name" "not run" 0 "out of time" ""
    return 1
  fi
  [ "$limit" -le "$left" ] || limit=$left
  begin=$SECONDS
  remark_file=$run/remark.$file
  limited "$limit" "$@" > "$run/$file.log" 2>&1
  code=$?
  remark=$(cat "$remark_file" 2> /dev/null)
  rm -f "$remark_file"
  case $code in
    0) passed=$((passed + 1)); record "$name" passed $((SECONDS - begin)) "$remark" "$file.log" ;;
    77) record "$name" "not run" $((SECONDS - begin)) "$remark" "$file.log" ;;
    124)
      failed=$((failed + 1))
      record "$name" failed $((SECONDS - begin)) "ended after $limit s; ${remark:-see $file.log}" "$file.log" ;;
    *)
      failed=$((failed + 1))
      [ -n "$remark" ] || remark="exit code $code: $(grep -v '^ *$\|gpu_check.sh: line [0-9]' "$run/$file.log" | tail -n 1 | cut -c 1-300)"
      record "$name" failed $((SECONDS - begin)) "$remark" "$file.log" ;;
  esac
  return "$code"
}
remark() { echo "$*" > "$remark_file"; }
not_run() { remark "$@"; return 77; }

# ---- (a) the machine --------------------------------------------------------------------------------------------------------

facts() {
  local toolkit driver
  toolkit=$(nvcc --version 2> /dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
  nvidia-smi
  nvidia-smi topo -m
  uname -a
  driver=$(query driver_version | head -n 1)
  local values=("$gpu" "$gpus" "$driver" "${toolkit:-none}" "$capability" "$((memory_mb * 1048576 / 1000000000))"
                "$(date +%Y-%m-%d)" "$quick" "$prebuilt")
  python3 - "$run/facts.json" "${values[@]}" << 'PYTHON' || return 1
import json, sys
path, *values = sys.argv[1:]
facts = dict(zip(("name", "count", "driver", "toolkit", "capability", "memory_gb", "date", "quick", "prebuilt"), values))
facts.update(count=int(facts["count"]), memory_gb=int(facts["memory_gb"]), quick=facts["quick"] == "yes", prebuilt=bool(facts["prebuilt"]))
with open(path, "w") as file:
    json.dump(facts, file)
PYTHON
  remark "$gpus x $gpu, compute capability $capability, $memory_mb MiB, driver $driver, toolkit ${toolkit:-none}"
}

# ---- the build --------------------------------------------------------------------------------------------------------------

# Headers by where they usually lie. CMake has the last word; this only says what to look for when it finds nothing.
has_header() { # path below include/
  local folder
  for folder in /usr /usr/local "${CONDA_PREFIX:-/nowhere}" ${CMAKE_PREFIX_PATH//[:;]/ }; do
    [ ! -e "$folder/include/$1" ] || return 0
  done
  return 1
}
missing_for_build() {
  local missing=() program header
  for program in g++ nvcc cmake; do command -v "$program" > /dev/null || missing+=("$program"); done
  command -v ninja > /dev/null || command -v make > /dev/null || missing+=("ninja or make")
  for header in "fmt/core.h fmt" "CLI/CLI.hpp CLI11" "nlohmann/json.hpp nlohmann_json" "eigen3/Eigen/Core Eigen"; do
    has_header "${header% *}" || missing+=("${header#* }")
  done
  local IFS=,
  echo "${missing[*]}" | sed 's/,/, /g'
}

configure_and_build() {
  local options=() architectures missing tests=ON
  source scripts/setup.sh
  set +e
  PATH=$root/build/tools/cmake/bin:$PATH
  missing=$(missing_for_build)
  [ -z "$missing" ] || remark "not found here: $missing (scripts/setup.sh installs them; without a network use --prebuilt)"
  command -v cmake > /dev/null || return 1
  architectures=$(query compute_cap | tr -d '. ' | sort -un | sed 's/$/-real/' | paste -sd ';')
  options=(-DCMAKE_CUDA_ARCHITECTURES="$architectures" -DESCALERA_CUDA_TESTS_ONLY=ON -DESCALERA_BENCH=OFF -DESCALERA_WERROR=OFF)
  command -v ninja > /dev/null || options+=(-G "Unix Makefiles")
  command -v mpicxx > /dev/null || options+=(-DESCALERA_MPI=OFF)
  if ! has_header gtest/gtest.h; then
    tests=OFF
    options+=(-DESCALERA_TESTS=OFF)
  fi
  cmake --preset cuda -B "$build" "${options[@]}" || return 1
  rm -f "$remark_file"  # nothing was missing after all
  cmake --build "$build" -j "$(escalera_jobs)" --target cuda_checks step01_dp step02_fsdp step03_tp || return 1
  remark "for ${architectures//;/, }, $(command -v mpicxx > /dev/null && echo "with MPI" || echo "without MPI")$(
    [ $tests = ON ] || echo "; without tests: GoogleTest was not found here")"
}

# ---- (b) and (c): tests -----------------------------------------------------------------------------------------------------

program() { # name
  [ -x "$build/bin/$1" ] || { not_run "there is no program $1 in $build/bin"; return 77; }
}

# The tests of a program that need a device.
gtest() { # program
  local listed out code
  program "$1" || return
  case $1 in
    tests_tests | bench_tests)  # these start programs
      if [ -n "$prebuilt" ]; then not_run "it looks for programs in the folder that it was built in"; return 77; fi ;;
  esac
  listed=$("$build/bin/$1" --gtest_list_tests --gtest_filter='*cuda*' 2> /dev/null | grep -c '^  ')
  if [ "$listed" = 0 ]; then
    remark "no test with cuda in its name was found: $("$build/bin/bench_cuda" --quick --section limits 2>&1 | tail -n 1 | cut -c 1-300)"
    return 1
  fi
  "$build/bin/$1" --gtest_filter='*cuda*' --gtest_brief=1 | tee "$run/$1.out"
  code=${PIPESTATUS[0]}
  out=$(grep -E '^\[  (PASSED|FAILED) +\]' "$run/$1.out" | sed 's/[][]//g; s/, where GetParam.*//; s/ ([0-9]* ms)$//' |
    awk '!seen[$0]++' | head -n 4 | tr -s ' \n' ' ')
  remark "${out:-no summary: see ${remark_file##*.}.log}"
  return "$code"
}

other_test_programs() {
  local path name
  for path in "$build"/bin/*_tests; do
    name=${path##*/}
    case $name in common_ops_tests | step0[1-3]_*_tests | '*_tests') continue ;; esac
    [ -n "$("$path" --gtest_list_tests --gtest_filter='*cuda*' 2> /dev/null)" ] && echo "$name"
  done
}

# ---- (d) compute-sanitizer --------------------------------------------------------------------------------------------------

sanitizer_filter='*NormTest*cuda*:*RopeTest*cuda*:*SwigluTest*cuda*:*LossTest*cuda*:*EmbeddingTest*cuda*:*ElementwiseTest*cuda*'
sanitizer_filter+=':*OptimizerTest*cuda*:*Attention.QueriesThatSeeNothing*cuda*:*Attention.TheSameCallTwice*cuda*'
sanitize() { # tool
  command -v compute-sanitizer > /dev/null || { not_run "there is no compute-sanitizer (it comes with the CUDA toolkit)"; return 77; }
  program common_ops_tests || return
  compute-sanitizer --tool "$1" --error-exitcode 1 "$build/bin/common_ops_tests" --gtest_filter="$sanitizer_filter" --gtest_brief=1 |
    tee "$run/$1.out"
  local code=${PIPESTATUS[0]}
  remark "$(grep 'SUMMARY' "$run/$1.out" | tail -n 1 | sed 's/^=* *//')"
  return "$code"
}

# ---- (e) single operations --------------------------------------------------------------------------------------------------

bench() { # section
  program bench_cuda || return
  local options=(--model "$root/configs/models/playbook-1.34b.json")
  [ $quick = no ] || options=(--model "$root/configs/models/tiny.json" --quick)
  "$build/bin/bench_cuda" "${options[@]}" --section "$1" --json "$run/bench_$1.json"
}

# ---- (f) whole steps --------------------------------------------------------------------------------------------------------

# A run that does not fit after all is tried again with half the micro-batch.
plan=$(report plan $((memory_mb * 1048576)))
micro_batch=${plan% *}
layers=${plan#* }
sequence=2048
model=$root/configs/models/playbook-1.34b.json
if [ $quick = yes ]; then
  micro_batch=2 layers=4 sequence=64 model=$root/configs/models/tiny.json
fi
whole_step() {
  local size=$micro_batch steps=20 vocabulary peak
  program step01_dp || return
  vocabulary=$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "$model")
  peak=$(report peak "$gpu")
  [ $quick = no ] || steps=4
  report tokens "$run/tokens.bin" "$vocabulary" 2000000 || return 1
  while :; do
    printf '{"micro_batch_size": %d, "layers": %d, "sequence": %d}\n' "$size" "$layers" "$sequence" > "$run/step.json"
    if "$build/bin/step01_dp" --comm threads --ranks 1 --device cuda --dtype bfloat16 --model "$model" --num-hidden-layers "$layers" \
      --data "$run/tokens.bin" --seq-length "$sequence" --micro-batch-size "$size" --gradient-accumulation-steps 1 --steps "$steps" \
      --learning-rate 3e-4 --peak-tflops "${peak:-0}" --metrics "$run/step.jsonl" > "$run/step.out" 2>&1; then
      cat "$run/step.out"
      remark "$(grep '^step ' "$run/step.out" | tail -n 1)"
      return 0
    fi
    cat "$run/step.out"
    grep -qi 'memory' "$run/step.out" && [ "$size" -gt 1 ] || return 1
    size=$((size / 2))
  done
}

# ---- (g) several ranks ------------------------------------------------------------------------------------------------------

ranks_options=(--device cuda --model "$root/configs/models/small.json" --num-hidden-layers 2 --seq-length 128 --global-batch-size 8
               --optimizer sgd --learning-rate 0.1 --steps 5)
several_ranks() { # label command ..., of which the program is one word
  local label=$1 word
  shift
  program step01_dp || return
  for word in "$@"; do
    case $word in */bin/step*) program "${word##*/}" || return ;; esac
  done
  [ -e "$run/bytes.bin" ] || report tokens "$run/bytes.bin" 256 100000 || return 1
  if [ ! -e "$run/ranks_1.jsonl" ]; then
    "$build/bin/step01_dp" --comm threads --ranks 1 "${ranks_options[@]}" --data "$run/bytes.bin" --metrics "$run/ranks_1.jsonl" || return 1
  fi
  "$@" "${ranks_options[@]}" --data "$run/bytes.bin" --metrics "$run/ranks_$label.jsonl" || return 1
  report same-losses "$run/ranks_1.jsonl" "$run/ranks_$label.jsonl" || return 1
  remark "the losses of one rank"
}
with_mpi() { # ranks
  command -v mpirun > /dev/null || { not_run "there is no mpirun"; return 77; }
  program step01_dp || return
  if ! ldd "$build/bin/step01_dp" | grep -q libmpi; then not_run "this build is without MPI"; return 77; fi
  several_ranks "mpi_$1" scripts/launch -n "$1" --build "$build" step01_dp --comm mpi
}

# ---- (h) PyTorch ------------------------------------------------------------------------------------------------------------

pytorch() { # section options ...
  local missing
  "$peer_python" bench/peers/torch_gpu.py --section "$1" ${quick_option:+"$quick_option"} --json "$run/pytorch_$1.json" "${@:2}" || return 1
  missing=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get("missing", ""))' "$run/pytorch_$1.json")
  if [ -n "$missing" ]; then not_run "$missing"; return 77; fi
  python3 - "$run/pytorch_$1.json" << 'PYTHON'
import json, sys
errors = [section["error"] for section in json.load(open(sys.argv[1]))["sections"].values() if "error" in section]
sys.exit("; ".join(errors) or 0)
PYTHON
}
quick_option=
[ $quick = no ] || quick_option=--quick

# ---- all of it, what matters most first -------------------------------------------------------------------------------------

: > "$run/sections.tsv"
section machine 30 facts
if [ -z "$prebuilt" ]; then section build 360 configure_and_build; fi
if [ -x "$build/bin/step01_dp" ] || [ -x "$build/bin/bench_cuda" ]; then
  section "operations: parity" 120 gtest common_ops_tests
  section "step 1: parity" 90 gtest step01_dp_tests
  section "step 2: parity" 90 gtest step02_fsdp_tests
  section "step 3: parity" 90 gtest step03_tp_tests
  for part in limits memory gemm attention; do section "speed: $part" 60 bench "$part"; done
  section "speed: whole step" 240 whole_step
  for part in limits gemm attention; do section "PyTorch: $part" 60 pytorch "$part"; done
  section "PyTorch: whole step" 90 pytorch step --micro-batch-size "$micro_batch" --seq-length "$sequence" --num-hidden-layers "$layers"
  for ranks in 2 4; do
    section "ranks: $ranks threads" 40 several_ranks "threads_$ranks" "$build/bin/step01_dp" --comm threads --ranks "$ranks"
  done
  if [ "$gpus" -gt 1 ]; then
    ranks=$((gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2))
    section "ranks: $ranks by NCCL" 60 several_ranks "nccl_$ranks" "$build/bin/step01_dp" --comm nccl --ranks "$ranks"
    section "ZeRO-3: 2 by NCCL" 60 several_ranks zero_nccl "$build/bin/step02_fsdp" --comm nccl --ranks 2 --zero 3
    section "tensor parallel: 2 by NCCL" 60 several_ranks tp_nccl "$build/bin/step03_tp" --comm nccl --ranks 2 --tp 2 --sequence-parallel
  fi
  section "ZeRO-3: 4 threads" 40 several_ranks zero "$build/bin/step02_fsdp" --comm threads --ranks 4 --zero 3
  section "tensor parallel: 4 threads" 40 several_ranks tp "$build/bin/step03_tp" --comm threads --ranks 4 --tp 4 --sequence-parallel
  section "ranks: 2 by MPI" 60 with_mpi 2
  for tests in $(other_test_programs); do section "tests: ${tests%_tests}" 120 gtest "$tests"; done
  for tool in memcheck racecheck synccheck; do section "compute-sanitizer: $tool" 75 sanitize "$tool"; done
else
  failed=$((failed + 1))
  record programs failed 0 "neither step01_dp nor bench_cuda is in $build/bin, so nothing else was run" ""
fi

rm -f "$run"/*.bin
echo
target=$results/gpu_${slug}_$(date +%Y-%m-%d)
if ! report merge "$run" "$target"; then
  echo "gpu_check.sh: the report could not be made; the sections' results are in $run" >&2
  exit 1
fi
echo "gpu_check.sh: $passed sections passed, $failed failed, in $SECONDS s; report: $target.json and .md, logs: $run"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
