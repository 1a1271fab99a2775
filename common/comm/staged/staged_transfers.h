// Messages between device memories by way of the host.
// defines: StagedTransfers
#pragma once

#include <memory>
#include <vector>

#include "common/comm/communicator.h"
#include "common/comm/staged/pinned_memory.h"

namespace escalera::cuda {

/// An exchange goes through three hands: prepare() on the rank's own thread; post() on a thread that can wait for the data
/// to send, one exchange at a time in the order of the calls; complete() on the rank's own thread again, in any order. So a
/// message that waits for a late peer holds up no other.
class StagedTransfers {
 public:
  /// `host` is used by nobody else.
  StagedTransfers(std::unique_ptr<Communicator> host, CudaDevice& device)
      : host_(std::move(host)), device_(device), pool_(device) {}
  ~StagedTransfers();
  StagedTransfers(const StagedTransfers&) = delete;
  StagedTransfers& operator=(const StagedTransfers&) = delete;

  Communicator& host() { return *host_; }

  /// One exchange on this rank.
  struct Exchange {
    std::vector<PointToPoint> on_device;
    std::vector<PointToPoint> on_host;  ///< the same, between buffers in `block`
    std::unique_ptr<PinnedBlock> block;
    Event ready;  ///< on the compute stream, at the call
    Work work;    ///< of the host communicator
    Trace* trace = nullptr;
    TraceEvent span;
  };
  /// Takes the memory and marks the present end of the compute stream.
  std::shared_ptr<Exchange> prepare(const Call& call, Trace* trace);
  /// Waits for the data to send and copies it, then offers all transfers to the other ranks.
  void post(Exchange& exchange);
  /// After post(): waits for the transfers and gives the copies of what has arrived to the compute stream.
  void complete(Exchange& exchange);

 private:
  std::unique_ptr<Communicator> host_;
  CudaDevice& device_;
  Stream stream_;
  PinnedPool pool_;
};

}  // namespace escalera::cuda
