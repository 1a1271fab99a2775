// Ranks with a GPU each: collectives by NCCL, in order with the compute stream and beside the host.
// defines: NcclCommunicator, make_nccl_communicator()
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/core/cuda/cuda_device.h"

namespace escalera::cuda {

class NcclLane;

/// One rank's end of a group whose tensors are on `device`. Operations begin when the compute stream has come to the point
/// of the call, and Work::wait() makes the compute stream wait for the result; the host waits for neither. What differs
/// from the communicators of the host:
///
/// - All ranks of the job issue the operations of different communicators in one order, as NCCL demands: each occupies a
///   part of the GPU while it waits for the other ranks, and two that wait for each other's place would wait for ever.
/// - Sums are NCCL's: the same on all ranks and in every run of the same layout, but not in rank order, and partial sums of
///   bfloat16 may be rounded on their way. A maximum may pass over a NaN.
/// - Messages to higher ranks go in the order of the calls, whoever they are for, and so do those to lower ranks; the two
///   directions do not wait for each other, nor for the collectives. The first message between two ranks in a direction,
///   and the first collective, hold up the caller until all those concerned have come.
/// - Where calls differ between ranks NCCL waits for ever; only some mistakes are found.
/// - Construction, split() and destruction are collective. barrier() and control messages go through `host`; they say
///   nothing about what is still on the streams.
class NcclCommunicator final : public Communicator {
 public:
  /// `host` connects the same ranks and is used by nobody else. `device` and what carries `host` must outlive this.
  NcclCommunicator(std::unique_ptr<Communicator> host, CudaDevice& device);
  ~NcclCommunicator() override;

  void abort(const std::string& reason) override { host_->abort(reason); }
  void check_peers() const override { host_->check_peers(); }
  void give_up() override;

 protected:
  Work start(Call call) override;
  Work start_control(Call call) override;
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name) override;
  void copy(void* destination, const void* source, Index bytes) override { device_.copy(destination, source, bytes); }
  void note_phase(const std::string& phase) override;

 private:
  enum LaneNumber : std::size_t { collectives, upward, downward, lane_count };
  struct InFlight;

  void watch();
  void run_on_lane(LaneNumber number, const Call& call, const StreamSpans::Span& span, InFlight& in_flight);
  void issue_collective(NcclLane& lane, const Call& call);
  void issue_all_to_all(NcclLane& lane, const Call& call);
  void issue_transfers(NcclLane& lane, const Call& call, bool up);

  std::unique_ptr<Communicator> host_;
  CudaDevice& device_;
  std::vector<std::shared_ptr<NcclLane>> lanes_;  // none if there is one rank
  Event ready_;                                   // the end of the compute stream at a call
  StreamSpans spans_;
  CudaDevice::Monitor monitor_;
};

/// A communicator of all ranks of `world` for tensors of `device`. Collective. Throws UsageError, on all ranks, if two
/// ranks share a device.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& world, CudaDevice& device);

}  // namespace escalera::cuda
