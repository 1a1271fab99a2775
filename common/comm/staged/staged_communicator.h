// Ranks that share a GPU, or have no direct way between theirs: collectives on device memory by way of the host.
// defines: StagedCommunicator, make_staged_communicator()
#pragma once

#include <memory>
#include <string>

#include "common/comm/operation_queue.h"
#include "common/comm/staged/staged_collectives.h"
#include "common/comm/staged/staged_transfers.h"

namespace escalera::cuda {

/// One rank's end of a group whose tensors are on `device`. The host waits for the device where a copy needs it, but on
/// threads of this class; the caller's thread only waits in Work::wait() until the result is on its way to the compute
/// stream. Results are bit for bit those of the host communicators: sums in rank order, bfloat16 summed in float32.
class StagedCommunicator final : public Communicator {
 public:
  /// Two communicators of the same ranks that nobody else uses: a rank may wait for a message and for a collective at the
  /// same time, on two threads. `device` and what carries the communicators must outlive this and its Works.
  StagedCommunicator(std::unique_ptr<Communicator> collectives, std::unique_ptr<Communicator> transfers, CudaDevice& device,
                     Index piece_bytes);
  ~StagedCommunicator() override;

  void abort(const std::string& reason) override { collectives_.host().abort(reason); }
  void check_peers() const override { collectives_.host().check_peers(); }
  void give_up() override { collectives_.host().give_up(); }

 protected:
  Work start(Call call) override;
  /// Control messages take their turn among the collectives, so that a rank that calls one while the others call the other
  /// is found out.
  Work start_control(Call call) override;
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name) override;
  void copy(void* destination, const void* source, Index bytes) override { device_.copy(destination, source, bytes); }
  void note_phase(const std::string& phase) override;

 private:
  CudaDevice& device_;
  StagedCollectives collectives_;
  std::shared_ptr<StagedTransfers> transfers_;  // shared with the Works, which finish the transfers
  OperationQueue collective_queue_;             // last: their threads use what is above
  OperationQueue transfer_queue_;
};

/// A communicator of all ranks of `world`, which may be of any kind, for tensors of `device`. Collective. Collectives take
/// about `piece_bytes` of page-locked memory, or twice that; tests choose less.
std::unique_ptr<Communicator> make_staged_communicator(Communicator& world, CudaDevice& device,
                                                       Index piece_bytes = usual_piece_bytes);

}  // namespace escalera::cuda
