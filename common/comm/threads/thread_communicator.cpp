#include "common/comm/threads/thread_communicator.h"

#include <algorithm>
#include <exception>

#include "common/comm/threads/thread_collectives.h"

namespace escalera {

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
    : Communicator(rank, group->size(), group->name()),
      group_(std::move(group)),
      queue_([world = group_->shared_world()] { world->fail(); }) {}

ThreadCommunicator::~ThreadCommunicator() {
  // Destroyed by an exception: the others must not take this for a rank that has finished its work.
  if (std::uncaught_exceptions() > 0) group_->world().fail();
  queue_.finish();
  group_->leave(rank());
}

Work ThreadCommunicator::start(Call call) {
  if (call.is_transfer()) {
    auto batch = group_->post(rank(), call, trace());
    return Work([group = group_, batch] { group->wait(*batch); },
                [world = group_->shared_world()] { world->fail(); });
  }
  const bool blocking = call.blocking;
  group_->announce(rank());
  return queue_.submit(
      [this, call = std::move(call)] {
        TraceSpan span(trace(), name(), call.name(), call.input.bytes());
        run_collective(*group_, rank(), call);
      },
      blocking);
}

std::unique_ptr<Communicator> ThreadCommunicator::do_split(int color, int key, const std::string& name) {
  std::shared_ptr<ThreadGroup> group;
  int new_rank = 0;
  group_->announce(rank());
  queue_.submit([&] { group = find_new_group(color, key, name, new_rank); }, true).wait();
  return std::make_unique<ThreadCommunicator>(std::move(group), new_rank);
}

// All ranks lay out their requests; the lowest rank of each color makes its group.
std::shared_ptr<ThreadGroup> ThreadCommunicator::find_new_group(int color, int key, const std::string& name,
                                                                int& new_rank) {
  Call meeting;
  meeting.operation = Operation::barrier;
  meeting.root = split_root;
  meeting.blocking = true;
  group_->begin(rank(), meeting);
  auto& requests = group_->split_requests();
  auto& own = requests[static_cast<std::size_t>(rank())];
  own = {color, key, nullptr};
  group_->meet();

  std::vector<int> members;
  for (int other = 0; other < size(); ++other) {
    if (requests[static_cast<std::size_t>(other)].color == color) members.push_back(other);
  }
  const int maker = members.front();
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return requests[static_cast<std::size_t>(a)].key < requests[static_cast<std::size_t>(b)].key;
  });
  new_rank = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  if (rank() == maker) {
    std::vector<int> world_ranks;
    for (const int member : members) world_ranks.push_back(group_->world_rank(member));
    own.group = std::make_shared<ThreadGroup>(group_->shared_world(), std::move(world_ranks), name);
  }
  group_->meet();
  auto group = requests[static_cast<std::size_t>(maker)].group;
  group_->meet();
  own.group = nullptr;
  return group;
}

void ThreadCommunicator::note_phase(const std::string& phase) {
  group_->world().set_phase(group_->world_rank(rank()), phase);
}

void ThreadCommunicator::check_peers() const {
  if (group_->world().failed()) throw PeerError("another rank has failed");
}

void ThreadCommunicator::abort(const std::string& reason) {
  ThreadWorld& world = group_->world();
  world.say_once(reason, fmt::format("{}: {}", world.describe_rank(group_->world_rank(rank())), reason));
  world.fail();
}

}  // namespace escalera
