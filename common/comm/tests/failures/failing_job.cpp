// A job that fails on demand, for failures_test.sh:
//   failing_job work SECONDS     ranks add numbers all the time, and check the sums
//   failing_job idle SECONDS     rank 0 computes, all others wait for it
//   failing_job transfer SECONDS every rank waits for a message from the next, which never comes
//   failing_job throw RANK       that rank throws while the others wait for it
//   failing_job refuse           all ranks throw UsageError
//   failing_job refuse RANK      one rank throws UsageError while the others wait for it
//   failing_job leave RANK       that rank goes home early
//   failing_job early RANK       that rank sleeps before it becomes a part of the job
// Ranks print "rank R pid P" when they are where they can be killed.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "common/comm/launch.h"

namespace escalera {
namespace {

using std::chrono::steady_clock;

void say_ready(int rank) {
  std::printf("rank %d pid %d\n", rank, static_cast<int>(getpid()));
  std::fflush(stdout);
}

void work(Communicator& world, double seconds) {
  const auto group = world.split(world.rank() % 2, world.rank(), "half");
  const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
  std::vector<float> large(100'000), small(10);
  // Rank 0 decides when it is enough, so that all do the same number of rounds.
  for (int step = 1;; ++step) {
    set_phase(world, fmt::format("step {}, all_reduce", step));
    std::fill(large.begin(), large.end(), static_cast<float>(world.rank() + step));
    std::fill(small.begin(), small.end(), 1.0F);
    Work pending = group->all_reduce_async({small.data(), 10, DType::float32});
    world.all_reduce({large.data(), 100'000, DType::float32});
    pending.wait();
    const int size = world.size();
    require(large[99'999] == static_cast<float>(size * (size - 1) / 2 + size * step), "wrong sum in step {}",
            step);
    require(small[9] == static_cast<float>(group->size()), "wrong sum of a half in step {}", step);
    if (step == 1) say_ready(world.rank());
    if (world.max(world.rank() == 0 && steady_clock::now() > end ? 1.0 : 0.0) > 0) return;
  }
}

void idle(Communicator& world, double seconds) {
  set_phase(world, world.rank() == 0 ? "step 7, forward" : "step 7, backward");
  say_ready(world.rank());
  if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  world.barrier();
}

void transfer(Communicator& world) {
  set_phase(world, "step 8, pipeline");
  say_ready(world.rank());
  float value = 0;
  world.recv({&value, 1, DType::float32}, (world.rank() + 1) % world.size());
}

int run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const double number = argc > 2 ? std::atof(argv[2]) : -1;
  const char* announced = std::getenv("OMPI_COMM_WORLD_RANK");
  if (mode == "early" && announced && std::atoi(announced) == static_cast<int>(number)) {
    say_ready(static_cast<int>(number));
    std::this_thread::sleep_for(std::chrono::seconds(60));
  }
  return launch({}, [&](Communicator& world) {
    if (mode == "work") return work(world, number);
    if (mode == "idle") return idle(world, number);
    if (mode == "transfer") return transfer(world);
    const bool chosen = number < 0 || world.rank() == static_cast<int>(number);
    set_phase(world, "step 9, update");
    if (mode == "throw" && chosen) throw Error("planted failure");
    if (mode == "refuse" && chosen) throw UsageError("planted refusal");
    if (mode == "leave" && chosen) return;
    world.barrier();
  });
}

}  // namespace
}  // namespace escalera

int main(int argc, char** argv) {
  return escalera::run(argc, argv);
}
