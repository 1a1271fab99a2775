#include "common/comm/staged/staged_communicator.h"

#include <exception>

#include "common/comm/host_call.h"
#include "common/comm/launch.h"

namespace escalera::cuda {
StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> collectives, std::unique_ptr<Communicator> transfers,
                                       CudaDevice& device, Index piece_bytes)
    : Communicator(collectives->rank(), collectives->size(), collectives->name()),
      device_(device),
      collectives_(std::move(collectives), device, piece_bytes),
      transfers_(std::make_shared<StagedTransfers>(std::move(transfers), device)),
      collective_queue_([&host = collectives_.host()] { host.give_up(); }),
      transfer_queue_([] {}) {}

StagedCommunicator::~StagedCommunicator() {
  // Destroyed by an exception: what the threads wait for may never come.
  if (std::uncaught_exceptions() > 0) give_up();
  collective_queue_.finish();
  transfer_queue_.finish();
}

namespace {

/// What a collective in flight shares with its Work.
struct Collective {
  Event ready;  // on the compute stream, at the call
  Event done;   // on the copying stream, at the end
  Work issued;  // until the host has had its part and `done` is recorded
};

}  // namespace

Work StagedCommunicator::start(Call call) {
  const bool blocking = call.blocking;
  // The host of the transfers lives as long as any Work that may give up.
  const auto give_up_both = [transfers = transfers_] { transfers->host().give_up(); };
  if (call.is_transfer()) {
    auto exchange = transfers_->prepare(call, trace());
    auto posted = std::make_shared<Work>(
        transfer_queue_.submit([transfers = transfers_, exchange] { transfers->post(*exchange); }, blocking));
    return Work(
        [transfers = transfers_, exchange, posted] {
          posted->wait();
          transfers->complete(*exchange);
        },
        give_up_both);
  }
  auto collective = std::make_shared<Collective>();
  collective->ready.record(device_.stream());
  std::byte* pinned = collectives_.reserve(call);
  collective->issued =
      collective_queue_.submit([this, call = std::move(call), collective,
                                pinned] { collectives_.run(call, pinned, collective->ready, collective->done, trace()); },
                               blocking);
  return Work(
      [collective, compute = device_.stream()] {
        collective->issued.wait();
        collective->done.order(compute);
      },
      give_up_both);
}

Work StagedCommunicator::start_control(Call call) {
  const bool blocking = call.blocking;
  return collective_queue_.submit([this, call = std::move(call)] { run_on_host(collectives_.host(), call); }, blocking);
}

// Behind what is in flight, like any other operation of the group.
std::unique_ptr<Communicator> StagedCommunicator::do_split(int color, int key, const std::string& name) {
  std::unique_ptr<Communicator> part;
  collective_queue_.submit([&] { part = collectives_.host().split(color, key, name); }, true).wait();
  auto transfers = private_copy(*part);
  return std::make_unique<StagedCommunicator>(std::move(part), std::move(transfers), device_, collectives_.piece_bytes());
}

void StagedCommunicator::note_phase(const std::string& phase) {
  set_phase(collectives_.host(), phase);
}

std::unique_ptr<Communicator> make_staged_communicator(Communicator& world, CudaDevice& device, Index piece_bytes) {
  auto collectives = private_copy(world);
  auto transfers = private_copy(world);
  return std::make_unique<StagedCommunicator>(std::move(collectives), std::move(transfers), device, piece_bytes);
}

}  // namespace escalera::cuda
