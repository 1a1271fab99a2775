// One NCCL call: what it is, how it is called in reports, and what it does once all its ranks are there.
// defines: NcclKind, NcclOperation, describe(), check_buffers(), mismatch(), perform()
#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace simulated_cuda {

enum class NcclKind { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, recv };

struct NcclOperation {
  NcclKind kind{};
  const void* input = nullptr;  // as the caller gave it; null where there is none
  void* output = nullptr;
  std::size_t count = 0;  // the caller's
  ncclDataType_t type{};
  ncclRedOp_t reduce = ncclSum;
  int root = 0;            // of reduce and broadcast
  int peer = -1;           // of send and recv
  std::uint64_t call = 0;  // the rank's operations on this communicator, counted from 1
  bool done = false;

  bool is_transfer() const { return kind == NcclKind::send || kind == NcclKind::recv; }
};

/// "ncclAllReduce of 10 float32 (sum), its call 3".
std::string describe(const NcclOperation& operation);

/// Reports buffers that are not in live memory of `device`, too small, or overlapping in a way that NCCL does not allow.
void check_buffers(const NcclOperation& operation, int rank, int ranks, int device);

/// Whether the calls of two ranks belong together: the two sides of a transfer, or the same collective.
bool fit(const NcclOperation& one, const NcclOperation& other);

/// Does it. Of a collective: what each rank calls, in the order of the ranks; of a transfer: sender and receiver.
void perform(const std::vector<std::shared_ptr<NcclOperation>>& calls);

}  // namespace simulated_cuda
