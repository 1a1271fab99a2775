// One NCCL communicator with its stream, and a way out when another rank is gone.
// defines: NcclLane
#pragma once

#include <cstdint>
#include <string>

#include "common/comm/communicator.h"
#include "common/comm/nccl/nccl_check.h"
#include "common/core/cuda/cuda_device.h"

namespace escalera::cuda {

/// Operations of a lane run one after another on its stream. The NCCL communicator does not block: where a call has to wait
/// for other ranks (the first ones do, while connections are made), we wait for it ourselves and notice when the job has
/// failed. NCCL alone would wait for ever.
class NcclLane {
 public:
  /// Collective over the ranks that got the same `id`. `who` names the rank in messages. `host` connects the same ranks and
  /// knows whether they are well.
  NcclLane(const ncclUniqueId& id, int rank, int size, std::string who, const Communicator& host);
  /// Collective too, since NCCL takes its leave from all ranks, unless an exception is on its way up or the job has failed.
  ~NcclLane();
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  cudaStream_t stream() const { return stream_.get(); }
  /// This rank, for messages.
  const std::string& who() const { return who_; }

  /// Runs `body(comm, stream)`, which gives NCCL the transfers and collectives of one operation; they start together.
  /// Returns when NCCL has put them on the stream. `name` and `bytes` are for messages.
  template <class Body>
  void issue(std::string_view name, Index bytes, Body&& body) {
    begin(name, bytes);
    NCCL_CHECK(who_, ncclGroupStart());
    try {
      body(comm_, stream_.get());
    } catch (...) {
      ncclGroupEnd();  // the group belongs to the thread and would swallow whatever comes next
      throw;
    }
    NCCL_CHECK(who_, ncclGroupEnd());
    settle();
  }

  /// Throws Error, naming rank and operation, if NCCL has met with an error on its own time.
  void check();
  /// Stops what is on the stream and gives up the communicator: nothing waits for other ranks any more. Later calls of
  /// issue() throw PeerError.
  void abort() noexcept;

 private:
  void begin(std::string_view name, Index bytes);
  void settle();
  void finalize();
  [[noreturn]] void report(ncclResult_t state);

  std::string who_;
  const Communicator& host_;
  Stream stream_;
  ncclComm_t comm_ = nullptr;
  std::string last_name_ = "its making";
  Index last_bytes_ = 0;
  std::uint64_t operations_ = 0;
};

}  // namespace escalera::cuda
