#include "tests/simulated_cuda/libraries/nccl_world.h"

#include <algorithm>

#include <simulated_cuda/diagnose.h>

namespace simulated_cuda {

NcclWorld::NcclWorld(int size)
    : size_(size),
      devices_(static_cast<std::size_t>(size), -1),
      left_(static_cast<std::size_t>(size), false),
      withdrawn_(static_cast<std::size_t>(size), false),
      collectives_(static_cast<std::size_t>(size), 0) {}

// ---- Making it -----------------------------------------------------------------------------------------------------

bool NcclWorld::join(int rank, int device) {
  std::lock_guard lock(mutex_);
  int& place = devices_[static_cast<std::size_t>(rank)];
  if (place >= 0) return false;
  place = device;
  ++joined_;
  return true;
}

ncclResult_t NcclWorld::verdict(std::string& reason) const {
  std::lock_guard lock(mutex_);
  if (joined_ < size_) return ncclInProgress;
  for (std::size_t second = 0; second < devices_.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      if (devices_[first] != devices_[second]) continue;
      reason = "Duplicate GPU detected : rank " + std::to_string(second) + " and rank " + std::to_string(first) +
               " both on CUDA device " + std::to_string(devices_[first]);
      return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

std::string NcclWorld::missing_ranks() const {
  std::lock_guard lock(mutex_);
  std::string text;
  for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
    if (devices_[rank] < 0) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

void NcclWorld::leave(int rank, bool withdraws) {
  std::lock_guard lock(mutex_);
  left_[static_cast<std::size_t>(rank)] = true;
  if (withdraws) withdrawn_[static_cast<std::size_t>(rank)] = true;
}

// ---- Calls ---------------------------------------------------------------------------------------------------------

int NcclWorld::rank_at(const NcclMeetingPlace& place, std::size_t seat) {
  if (place.sender < 0) return static_cast<int>(seat);
  return seat == 0 ? place.sender : place.receiver;
}

NcclSeat NcclWorld::announce(int rank, const std::shared_ptr<NcclOperation>& operation) {
  std::lock_guard lock(mutex_);
  NcclSeat seat;
  if (!operation->is_transfer()) {
    seat.place.number = ++collectives_[static_cast<std::size_t>(rank)];
    seat.number = static_cast<std::size_t>(rank);
  } else if (operation->kind == NcclKind::send) {
    seat.place = {rank, operation->peer, ++sends_[{rank, operation->peer}]};
    seat.number = 0;
  } else {
    seat.place = {operation->peer, rank, ++receives_[{operation->peer, rank}]};
    seat.number = 1;
  }
  Meeting& meeting = meetings_[seat.place];
  if (meeting.empty()) meeting.resize(operation->is_transfer() ? 2 : static_cast<std::size_t>(size_));
  meeting[seat.number].operation = operation;
  for (std::size_t other = 0; other < meeting.size(); ++other) {
    if (!meeting[other].operation || fit(*operation, *meeting[other].operation)) continue;
    fail("NCCL: the calls of rank %d and rank %d do not belong together: %s; and %s", rank, rank_at(seat.place, other),
         describe(*operation).c_str(), describe(*meeting[other].operation).c_str());
  }
  return seat;
}

void NcclWorld::locate(const NcclSeat& seat, const StreamPoint& point) {
  std::lock_guard lock(mutex_);
  meetings_.at(seat.place)[seat.number].point = point;
}

void NcclWorld::arrive(const NcclSeat& seat) {
  std::lock_guard lock(mutex_);
  const auto found = meetings_.find(seat.place);
  Meeting& meeting = found->second;
  meeting[seat.number].arrived = true;
  std::vector<std::shared_ptr<NcclOperation>> calls;
  for (std::size_t i = 0; i < meeting.size(); ++i) {
    // The memory of a rank that has withdrawn may be gone.
    if (!meeting[i].arrived || withdrawn_[static_cast<std::size_t>(rank_at(seat.place, i))]) return;
    calls.push_back(meeting[i].operation);
  }
  perform(calls);
  for (const auto& call : calls) call->done = true;
  meetings_.erase(found);
}

bool NcclWorld::is_done(const NcclOperation& operation) const {
  std::lock_guard lock(mutex_);
  return operation.done;
}

std::vector<StreamPoint> NcclWorld::missing(const NcclSeat& seat) const {
  std::lock_guard lock(mutex_);
  std::vector<StreamPoint> points;
  const auto found = meetings_.find(seat.place);
  if (found == meetings_.end()) return points;
  for (const Visitor& visitor : found->second) {
    if (!visitor.arrived && visitor.point.stream) points.push_back(visitor.point);
  }
  return points;
}

std::string NcclWorld::who_is_missing(const NcclSeat& seat) const {
  std::lock_guard lock(mutex_);
  std::string text;
  const auto found = meetings_.find(seat.place);
  if (found == meetings_.end()) return text;
  for (std::size_t other = 0; other < found->second.size(); ++other) {
    const Visitor& visitor = found->second[other];
    const int rank = rank_at(seat.place, other);
    if (visitor.arrived && !withdrawn_[static_cast<std::size_t>(rank)]) continue;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
    text += left_[static_cast<std::size_t>(rank)] ? " has left the communicator"
            : visitor.operation                   ? " has called it, but its stream has not come to it"
                                                  : " has not called it";
  }
  return text;
}

// ---- Splits --------------------------------------------------------------------------------------------------------

void NcclWorld::request_split(std::uint64_t number, int rank, int color, int key, int device) {
  std::lock_guard lock(mutex_);
  std::vector<SplitRequest>& requests = splits_[number];
  requests.resize(static_cast<std::size_t>(size_));
  requests[static_cast<std::size_t>(rank)] = {true, color, key, device, nullptr, 0};
  if (!std::ranges::all_of(requests, &SplitRequest::present)) return;
  std::map<int, std::vector<std::pair<int, std::size_t>>> groups;  // by color: key and parent's rank
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].color != NCCL_SPLIT_NOCOLOR) groups[requests[i].color].emplace_back(requests[i].key, i);
  }
  for (auto& [group_color, members] : groups) {
    std::ranges::sort(members);
    const auto world = std::make_shared<NcclWorld>(static_cast<int>(members.size()));
    for (std::size_t i = 0; i < members.size(); ++i) {
      SplitRequest& request = requests[members[i].second];
      request.world = world;
      request.rank = static_cast<int>(i);
      world->join(request.rank, request.device);
    }
  }
}

NcclWorld::SplitRequest NcclWorld::split_result(std::uint64_t number, int rank) const {
  std::lock_guard lock(mutex_);
  const auto found = splits_.find(number);
  if (found == splits_.end() || !std::ranges::all_of(found->second, &SplitRequest::present)) return {};
  return found->second[static_cast<std::size_t>(rank)];
}

}  // namespace simulated_cuda
