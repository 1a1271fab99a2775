#include "common/comm/threads/thread_group.h"

#include <algorithm>
#include <cstring>

namespace escalera {

ThreadGroup::ThreadGroup(std::shared_ptr<ThreadWorld> world, std::vector<int> world_ranks, std::string name)
    : world_(std::move(world)),
      world_ranks_(std::move(world_ranks)),
      name_(std::move(name)),
      calls_(world_ranks_.size()),
      states_(world_ranks_.size()),
      split_requests_(world_ranks_.size()) {
  world_->add(this);
}

ThreadGroup::~ThreadGroup() {
  world_->remove(this);
}

namespace {

[[noreturn]] void throw_peer_error() {
  throw PeerError("another rank has failed");
}

}  // namespace

// ---- Collectives ---------------------------------------------------------------------------------------------------

std::optional<std::string> ThreadGroup::find_mismatch() const {
  std::vector<CallSummary> summaries;
  for (const Call* call : calls_) summaries.push_back(summarize(*call));
  if (auto wrong = describe_mismatch(summaries, name_)) return wrong;
  if (summaries[0].operation != Operation::all_to_all) return std::nullopt;
  for (int sender = 0; sender < size(); ++sender) {
    for (int receiver = 0; receiver < size(); ++receiver) {
      const Index sent = call(sender).send_counts[static_cast<std::size_t>(receiver)];
      const Index expected = call(receiver).receive_counts[static_cast<std::size_t>(sender)];
      if (sent != expected) return describe_uneven_all_to_all(sender, sent, receiver, expected, name_);
    }
  }
  return std::nullopt;
}

void ThreadGroup::announce(int rank) {
  std::lock_guard lock(mutex_);
  ++states_[static_cast<std::size_t>(rank)].announced;
}

void ThreadGroup::begin(int rank, const Call& call) {
  std::unique_lock lock(mutex_);
  if (broken_ || world_->failed()) {
    broken_ = true;
    throw_peer_error();
  }
  const std::uint64_t mine = generation_;
  calls_[static_cast<std::size_t>(rank)] = &call;
  RankState& own = states_[static_cast<std::size_t>(rank)];
  own.arrived_for = mine;
  --own.announced;
  std::optional<std::string> hopeless;
  if (++arrivals_ == size()) {
    // The last one looks for all: afterwards calls vanish as ranks return or throw.
    mismatch_ = find_mismatch();
    arrivals_ = 0;
    ++generation_;
    arrived_.notify_all();
  } else {
    arrived_.wait(lock, [&] {
      if (generation_ != mine || broken_ || world_->failed()) return true;
      hopeless = find_hopeless(rank, call);
      return hopeless.has_value();
    });
  }
  if (generation_ != mine) {
    if (mismatch_) throw Error(*mismatch_);
    return;
  }
  // From here on this rank's call is no longer to be read, so nobody may find the group complete.
  broken_ = true;
  arrived_.notify_all();
  if (!hopeless) throw_peer_error();
  throw Error(*hopeless);
}

// Why a rank that has not come for this generation never will.
std::optional<std::string> ThreadGroup::find_hopeless(int rank, const Call& call) const {
  for (int other = 0; other < size(); ++other) {
    const RankState& state = states_[static_cast<std::size_t>(other)];
    if (state.arrived_for == generation_) continue;
    std::string reason;
    if (state.left) reason = fmt::format("rank {} has left the group", other);
    // Its own thread waits for this rank, whose own thread is here, and nothing of it is on the way here.
    if (call.blocking && state.waits_for && state.announced == 0) {
      int peer = 0;
      const Transfer* transfer = find_queued(
          *state.waits_for, [&](int wanted) { return wanted == rank; }, peer);
      if (transfer) reason = describe(*transfer, peer);
    }
    if (!reason.empty()) {
      return fmt::format("in \"{}\" rank {} waits in {}, but {}", name_, rank,
                         escalera::describe(summarize(call)), reason);
    }
  }
  return std::nullopt;
}

void ThreadGroup::meet() {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = generation_;
  if (++arrivals_ == size()) {
    arrivals_ = 0;
    ++generation_;
    arrived_.notify_all();
  } else {
    arrived_.wait(lock, [&] { return generation_ != mine; });
  }
}

// ---- Transfers -----------------------------------------------------------------------------------------------------

std::shared_ptr<ThreadGroup::Batch> ThreadGroup::post(int rank, const Call& call, Trace* trace) {
  auto batch = std::make_shared<Batch>();
  batch->rank = rank;
  if (trace && trace->enabled()) {
    batch->trace = trace;
    batch->span = {std::string(call.name()), name_, Trace::now(), 0, 0};
    for (const PointToPoint& transfer : call.transfers) batch->span.bytes += transfer.buffer.bytes();
  }
  std::unique_lock lock(mutex_);
  batch->queued = static_cast<int>(call.transfers.size());
  for (const PointToPoint& transfer : call.transfers) {
    const Edge edge = transfer.is_send ? Edge(rank, transfer.peer) : Edge(transfer.peer, rank);
    std::deque<Transfer>& mail = mail_[edge];
    if (mail.empty() || mail.front().is_send == transfer.is_send || world_->failed()) {
      mail.push_back({batch, transfer.buffer, transfer.is_send});
      continue;
    }
    const Transfer other = mail.front();
    mail.pop_front();
    const BufferView& from = transfer.is_send ? transfer.buffer : other.buffer;
    const BufferView& to = transfer.is_send ? other.buffer : transfer.buffer;
    const auto wrong = describe_mismatch(edge.first, from, edge.second, to, name_);
    for (Batch* side : {batch.get(), other.batch.get()}) {
      --side->queued;
      ++side->copying;
      if (wrong) side->error = wrong;
    }
    if (!wrong && from.count > 0) {
      lock.unlock();
      std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
      lock.lock();
    }
    for (Batch* side : {batch.get(), other.batch.get()}) {
      --side->copying;
      complete(*side);
    }
  }
  return batch;
}

void ThreadGroup::complete(Batch& batch) {
  if (batch.copying > 0 || (batch.queued > 0 && !batch.error)) return;
  if (batch.trace && batch.queued == 0) {
    batch.span.end = Trace::now();
    std::exchange(batch.trace, nullptr)->add(batch.span);
  }
  batch.changed.notify_all();
}

// A transfer of `batch` that still lies in its queue and whose other side is a rank that is `wanted`.
const ThreadGroup::Transfer* ThreadGroup::find_queued(const Batch& batch,
                                                      const std::function<bool(int peer)>& wanted,
                                                      int& peer) const {
  for (const auto& [edge, mail] : mail_) {
    for (const Transfer& transfer : mail) {
      peer = transfer.is_send ? edge.second : edge.first;
      if (transfer.batch.get() == &batch && wanted(peer)) return &transfer;
    }
  }
  return nullptr;
}

std::string ThreadGroup::describe(const Transfer& transfer, int peer) const {
  return fmt::format("rank {} waits to {} {} {} {} rank {}", transfer.batch->rank,
                     transfer.is_send ? "send" : "receive", transfer.buffer.count,
                     to_string(transfer.buffer.dtype), transfer.is_send ? "to" : "from", peer);
}

void ThreadGroup::wait(Batch& batch) {
  std::unique_lock lock(mutex_);
  RankState& own = states_[static_cast<std::size_t>(batch.rank)];
  const auto absent = [&](int peer) { return states_[static_cast<std::size_t>(peer)].left; };
  std::optional<std::string> hopeless;
  own.waits_for = &batch;
  arrived_.notify_all();  // a rank in begin() may find that we wait for each other
  batch.changed.wait(lock, [&] {
    if ((batch.queued == 0 && batch.copying == 0) || batch.error || world_->failed()) return true;
    int peer = 0;
    const Transfer* lost = find_queued(batch, absent, peer);
    if (lost) hopeless = fmt::format("in \"{}\" {}, which has left the group", name_, describe(*lost, peer));
    return lost != nullptr;
  });
  own.waits_for = nullptr;
  if (batch.queued == 0 && batch.copying == 0 && !batch.error) return;
  withdraw(batch);
  batch.changed.wait(lock, [&] { return batch.copying == 0; });
  if (batch.error) throw Error(*batch.error);
  if (!hopeless) throw_peer_error();
  throw Error(*hopeless);
}

void ThreadGroup::withdraw(Batch& batch) {
  for (auto& [edge, mail] : mail_) {
    std::erase_if(mail, [&](const Transfer& transfer) { return transfer.batch.get() == &batch; });
  }
  batch.queued = 0;
}

// ---- The end -------------------------------------------------------------------------------------------------------

void ThreadGroup::leave(int rank) {
  {
    std::lock_guard lock(mutex_);
    states_[static_cast<std::size_t>(rank)].left = true;
  }
  wake();
}

void ThreadGroup::wake() {
  std::lock_guard lock(mutex_);
  arrived_.notify_all();
  for (auto& [edge, mail] : mail_) {
    for (Transfer& transfer : mail) transfer.batch->changed.notify_all();
  }
}

}  // namespace escalera
