#!/usr/bin/env bash
# What becomes of a job when a rank dies, throws, refuses or leaves: failures_test.sh FAILING_JOB
# Each case must end by itself, say once and in full what happened, and leave neither processes nor shared memory behind.
set -uo pipefail

job=$1
launch=$(cd "$(dirname "$0")/../../../.." && pwd)/scripts/launch
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
out=$folder/out err=$folder/err
most_seconds=30
failed=no

complain() {
  failed=yes
  echo "FAILED: $case_name: $*"
}

# A process that has ended but that its parent has not looked at yet is not alive.
alive() { [ -e "/proc/$1/stat" ] && ! grep -qs ') [ZX] ' "/proc/$1/stat"; }

# begin NAME RANKS ARGUMENTS...: starts a job in the background. A script's background jobs ignore SIGINT, and a shell cannot
# trap what it was told to ignore, so the job is given the usual behaviour back.
begin() {
  case_name=$1
  : > "$out"  # here and now: the job empties it when it gets round to it, and the lines of the last job look like its own
  : > "$err"
  env --default-signal=INT "$launch" -n "$2" "$job" "${@:3}" > "$out" 2> "$err" &
  launched=$!
}

# wait_for_ranks N: until N ranks have said where they are
wait_for_ranks() {
  for _ in $(seq 600); do
    [ "$(grep -c '^rank .* pid ' "$out")" -ge "$1" ] && return
    sleep 0.1
  done
  complain "the ranks did not start"
}

pid_of() { sed -n "s/^rank $1 pid //p" "$out"; }

# finish CODE: the job must end in time, with CODE ("failure": anything but 0), and be gone altogether
finish() {
  local began=$SECONDS pids pid left
  pids="$launched $(sed -n 's/^rank .* pid //p' "$out" | tr '\n' ' ')"
  for pid in $pids; do
    while alive "$pid" && [ $((SECONDS - began)) -lt $most_seconds ]; do sleep 0.1; done
    if alive "$pid"; then
      complain "process $pid is still there after $most_seconds seconds"
      kill -KILL "$pid"
    fi
  done
  wait "$launched"
  local code=$?
  if [ "$1" = failure ]; then
    [ $code -ne 0 ] || complain "ended as if nothing had happened"
  else
    [ $code -eq "$1" ] || complain "exit code $code, expected $1"
  fi
  for left in /dev/shm/escalera.*; do
    # another job, running beside this test, may be between making a file and unlinking it
    [ -e "$left" ] && sleep 1 && [ -e "$left" ] && complain "left behind: $left"
  done
  echo "$case_name: exit code $code, gone after $((SECONDS - began)) s"
}

# said TEXT: stderr has one line with TEXT (a fixed string)
said() {
  local times
  times=$(grep -cF -- "$1" "$err")
  [ "$times" -eq 1 ] && return
  complain "said $times times instead of once: $1"
  sed 's/^/    /' "$err"
}

# kill_rank_2 SIGNAL PHASE
kill_rank_2() {
  local pid
  pid=$(pid_of 2)
  sleep 0.5
  kill "-$1" "$pid"
  finish failure
  said "rank 2 (pid $pid on $(hostname)) died in phase \"$2"
  said "; stopping the job"
}

for path in shared mpi; do
  export ESCALERA_COMM_PATH=$path
  begin "a rank is killed while all add ($path)" 4 work 100
  wait_for_ranks 4
  kill_rank_2 KILL "step "

  begin "a rank is killed while all wait for a message ($path)" 4 transfer 100
  wait_for_ranks 4
  kill_rank_2 KILL 'step 8, pipeline"'
done
unset ESCALERA_COMM_PATH

begin "a rank is killed while one computes and the others wait" 4 idle 100
wait_for_ranks 4
kill_rank_2 SEGV 'step 7, backward"'

begin "a rank is killed before it is part of the job" 3 early 2
for ((i = 0; i < 300; i++)); do
  [ -z "$(pid_of 2)" ] || break
  sleep 0.1
done
kill -KILL "$(pid_of 2)"
finish failure

begin "a rank throws" 4 throw 2
finish 1
said 'rank 2, phase "step 9, update": planted failure'
said 'planted failure'

begin "all ranks throw alike" 4 throw
finish 1
said 'planted failure'

begin "all ranks refuse" 4 refuse
finish 2
said 'planted refusal'

begin "one rank refuses" 4 refuse 1
finish 2
said 'planted refusal'

begin "a rank leaves while the others wait" 3 leave 2
finish 1
said 'waits in barrier, but rank 2 has left the group'

begin "the job is told to terminate" 3 idle 100
wait_for_ranks 3
kill -TERM "$launched"
finish failure

begin "the job is interrupted" 3 transfer 100
wait_for_ranks 3
kill -INT "$launched"
finish failure

# No room in /dev/shm, as in a container that was given too little; only where one may have a /dev/shm of one's own.
if unshare --mount true 2> /dev/null; then
  case_name="no room for shared memory"
  unshare --mount bash -c 'mount -t tmpfs -o size=4k tmpfs /dev/shm && exec "$@"' - \
    "$launch" -n 2 "$job" work 1 > "$out" 2> "$err" &
  launched=$!
  finish 1
  said '/dev/shm is too small'
  said '--shm-size=1g'
fi

# Two jobs at once, which must not meet: each checks its own sums.
begin "the first of two jobs at once" 3 work 2
first=$launched
mv "$out" "$out.first"
begin "the second of two jobs at once" 2 work 2
finish 0
launched=$first
case_name="the first of two jobs at once"
finish 0

[ $failed = no ] || exit 1
echo "all as it should be"
