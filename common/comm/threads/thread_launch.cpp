// Runs a body on ranks that are threads of this process.
#include <algorithm>
#include <exception>
#include <thread>

#include "common/comm/backends.h"
#include "common/comm/threads/thread_communicator.h"

namespace escalera {
namespace {

/// The exit code of one rank. Says what went wrong, once for all ranks, before it wakes those that wait.
int run_rank(const std::shared_ptr<ThreadGroup>& group, int rank,
             const std::function<void(Communicator& world)>& body) {
  ThreadWorld& world = group->world();
  const auto failed = [&](const std::string& message) {
    world.say_once(message, fmt::format("{}: {}", world.describe_rank(rank), message));
    world.fail();
    return 1;
  };
  try {
    ThreadCommunicator communicator(group, rank);
    body(communicator);
    return 0;
  } catch (const UsageError& error) {
    world.say_once(error.what(), error.what());
    world.fail();
    return 2;
  } catch (const PeerError&) {
    world.fail();
    return 0;  // the rank that failed has its own code
  } catch (const std::exception& error) {
    return failed(error.what());
  } catch (...) {
    return failed("unknown exception");
  }
}

}  // namespace

int run_on_threads(int ranks, const std::function<void(Communicator& world)>& body) {
  if (ranks < 1) {
    std::fprintf(stderr, "%d ranks: at least 1 is needed\n", ranks);
    return 2;
  }
  const auto world = std::make_shared<ThreadWorld>(ranks);
  std::vector<int> world_ranks;
  for (int rank = 0; rank < ranks; ++rank) world_ranks.push_back(rank);
  const auto group = std::make_shared<ThreadGroup>(world, world_ranks, "world");

  std::vector<int> codes(world_ranks.size());
  std::vector<std::thread> threads;
  for (const int rank : world_ranks) {
    if (rank == 0) continue;  // runs on this thread, so that one rank needs no other
    threads.emplace_back([&, rank] { codes[static_cast<std::size_t>(rank)] = run_rank(group, rank, body); });
  }
  codes[0] = run_rank(group, 0, body);
  for (std::thread& thread : threads) thread.join();

  // A failure while running outweighs a bad request. A lone PeerError (abort() was called) is a failure too.
  const auto has = [&](int code) { return std::find(codes.begin(), codes.end(), code) != codes.end(); };
  if (has(1)) return 1;
  if (has(2)) return 2;
  return world->failed() ? 1 : 0;
}

}  // namespace escalera
