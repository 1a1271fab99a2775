#include "common/comm/mpi/transfer_engine.h"

#include <algorithm>

#include "common/comm/mpi/backoff.h"
#include "common/comm/mpi/mpi_job.h"

namespace escalera {

TransferEngine::TransferEngine(std::unique_ptr<TransferPath> path, std::shared_ptr<MpiJob> job, int rank,
                               std::string name)
    : path_(std::move(path)), job_(std::move(job)), rank_(rank), name_(std::move(name)) {}

TransferEngine::~TransferEngine() {
  {
    Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Transfer::Batch> TransferEngine::post(const Call& call, Trace* trace) {
  auto batch = std::make_shared<Transfer::Batch>();
  if (trace && trace->enabled()) {
    batch->trace = trace;
    batch->span = {std::string(call.name()), name_, Trace::now(), 0, 0};
    for (const PointToPoint& transfer : call.transfers) batch->span.bytes += transfer.buffer.bytes();
  }
  Lock lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
  batch->pending = static_cast<int>(call.transfers.size());
  active_ += batch->pending;
  for (const PointToPoint& transfer : call.transfers) {
    Transfer& queued = queues_[{transfer.peer, transfer.is_send}].emplace_back();
    queued.what = transfer;
    queued.batch = batch;
  }
  advance_all();
  if (active_ > 0 && !call.blocking) {
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    changed_.notify_all();
  }
  return batch;
}

// One round over all queues, under the lock. An error goes to the exchange that it happened in.
bool TransferEngine::advance_all() {
  bool moved = false;
  for (auto& [direction, queue] : queues_) {
    while (!queue.empty()) {
      Transfer& transfer = queue.front();
      const auto batch = transfer.batch;
      try {
        moved |= path_->advance(transfer);
      } catch (...) {
        batch->error = broken_ = std::current_exception();
        withdraw(*batch);
        complete(*batch);
        return true;
      }
      if (!transfer.done) break;
      queue.pop_front();
      --active_;
      --batch->pending;
      complete(*batch);
    }
  }
  return moved;
}

void TransferEngine::complete(Transfer::Batch& batch) {
  if (batch.pending > 0 && !batch.error) return;
  if (batch.trace && !batch.error) {
    batch.span.end = Trace::now();
    std::exchange(batch.trace, nullptr)->add(batch.span);
  }
  changed_.notify_all();
}

// Its buffers may vanish now. What MPI has begun stays with MPI: the job is about to end.
void TransferEngine::withdraw(const Transfer::Batch& batch) {
  for (auto& [direction, queue] : queues_) {
    active_ -= static_cast<int>(
        std::erase_if(queue, [&](const Transfer& transfer) { return transfer.batch.get() == &batch; }));
  }
}

void TransferEngine::fail_if_peer_has_left(const Transfer::Batch& batch) {
  for (const auto& [direction, queue] : queues_) {
    for (const Transfer& transfer : queue) {
      const auto& [is_send, peer, buffer] = transfer.what;
      if (transfer.batch.get() != &batch || !path_->has_left(peer)) continue;
      // It may have left after its last piece, which we would have seen in one more round.
      if (advance_all()) return;
      fail("rank {} of \"{}\" waits to {} {} {} {} rank {}, which has left the group", rank_, name_,
           is_send ? "send" : "receive", buffer.count, to_string(buffer.dtype), is_send ? "to" : "from",
           peer);
    }
  }
}

void TransferEngine::wait(Transfer::Batch& batch) {
  Lock lock(mutex_);
  ++waiting_;
  Backoff backoff;
  try {
    while (batch.pending > 0 && !batch.error) {
      const std::uint32_t seen = path_->news();
      if (advance_all()) {
        backoff.restart();
        continue;
      }
      job_->check_not_given_up();
      lock.unlock();
      const bool hopeful = !backoff.pause() || path_->sleep(seen);
      lock.lock();
      if (!hopeful) fail_if_peer_has_left(batch);
    }
  } catch (...) {
    batch.error = broken_ = std::current_exception();
    withdraw(batch);
  }
  --waiting_;
  if (active_ > 0) changed_.notify_all();  // the thread takes over again
  if (batch.error) std::rethrow_exception(batch.error);
}

void TransferEngine::serve() {
  Lock lock(mutex_);
  Backoff backoff;
  while (true) {
    changed_.wait(lock, [&] { return stop_ || (active_ > 0 && waiting_ == 0); });
    if (stop_) return;
    const std::uint32_t seen = path_->news();
    if (advance_all()) {
      backoff.restart();
      continue;
    }
    lock.unlock();
    if (backoff.pause()) path_->sleep(seen);
    lock.lock();
  }
}

}  // namespace escalera
