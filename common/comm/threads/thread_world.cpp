#include "common/comm/threads/thread_world.h"

#include <cstdio>

#include "common/comm/threads/thread_group.h"
#include "common/core/error.h"

namespace escalera {

void ThreadWorld::fail() {
  if (failed_.exchange(true)) return;
  std::lock_guard lock(mutex_);
  for (ThreadGroup* group : groups_) group->wake();
}

void ThreadWorld::set_phase(int rank, const std::string& phase) {
  std::lock_guard lock(mutex_);
  phases_[static_cast<std::size_t>(rank)] = phase;
}

std::string ThreadWorld::describe_rank(int rank) const {
  std::lock_guard lock(mutex_);
  const std::string& phase = phases_[static_cast<std::size_t>(rank)];
  return phase.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {}, phase \"{}\"", rank, phase);
}

void ThreadWorld::say_once(const std::string& key, const std::string& text) {
  std::lock_guard lock(mutex_);
  if (said_.insert(key).second) std::fprintf(stderr, "%s\n", text.c_str());
}

void ThreadWorld::add(ThreadGroup* group) {
  std::lock_guard lock(mutex_);
  groups_.insert(group);
}

void ThreadWorld::remove(ThreadGroup* group) {
  std::lock_guard lock(mutex_);
  groups_.erase(group);
}

}  // namespace escalera
