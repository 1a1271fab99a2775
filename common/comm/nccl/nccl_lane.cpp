#include "common/comm/nccl/nccl_lane.h"

#include <exception>
#include <thread>

namespace escalera::cuda {

NcclLane::NcclLane(const ncclUniqueId& id, int rank, int size, std::string who, const Communicator& host)
    : who_(std::move(who)), host_(host) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    NCCL_CHECK(who_, ncclCommInitRankConfig(&comm_, size, id, rank, &config));
    settle();
  } catch (...) {
    abort();
    throw;
  }
}

NcclLane::~NcclLane() {
  if (!comm_) return;
  try {
    if (std::uncaught_exceptions() == 0) finalize();
  } catch (...) {  // whoever failed has said why
  }
  abort();
}

void NcclLane::finalize() {
  last_name_ = "its end";
  NCCL_CHECK(who_, ncclCommFinalize(comm_));
  settle();
  NCCL_CHECK(who_, ncclCommDestroy(std::exchange(comm_, nullptr)));
}

void NcclLane::abort() noexcept {
  if (comm_) ncclCommAbort(std::exchange(comm_, nullptr));
}

void NcclLane::begin(std::string_view name, Index bytes) {
  if (!comm_) throw PeerError(fmt::format("{}: {} on a communicator that was given up", who_, name));
  last_name_ = name;
  last_bytes_ = bytes;
  ++operations_;
}

void NcclLane::settle() {
  for (;;) {
    ncclResult_t state = ncclSuccess;
    NCCL_CHECK(who_, ncclCommGetAsyncError(comm_, &state));
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) report(state);
    host_.check_peers();
    std::this_thread::yield();
  }
}

void NcclLane::check() {
  if (!comm_) return;
  ncclResult_t state = ncclSuccess;
  NCCL_CHECK(who_, ncclCommGetAsyncError(comm_, &state));
  if (state != ncclSuccess && state != ncclInProgress) report(state);
}

void NcclLane::report(ncclResult_t state) {
  const std::string reason = last_nccl_error();
  abort();
  fail("{}: NCCL met with an error: {}; the last operation was {} of {} bytes, number {} here{}", who_,
       ncclGetErrorString(state), last_name_, last_bytes_, operations_, reason);
}

}  // namespace escalera::cuda
