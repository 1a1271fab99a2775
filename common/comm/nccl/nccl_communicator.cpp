#include "common/comm/nccl/nccl_communicator.h"

#include <cstring>
#include <exception>

#include "common/comm/host_call.h"
#include "common/comm/launch.h"
#include "common/comm/local_rank.h"
#include "common/comm/nccl/nccl_lane.h"

namespace escalera::cuda {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return ncclFloat32;
    case DType::float64:
      return ncclFloat64;
    case DType::bfloat16:
      return ncclBfloat16;
  }
  fail("NCCL does not know {}", to_string(dtype));
}

std::size_t elements(Index count) {
  return static_cast<std::size_t>(count);
}

void* at(const BufferView& buffer, Index element) {
  return static_cast<std::byte*>(buffer.data) + element * size_of(buffer.dtype);
}

/// Tickets for `count` NCCL communicators, the same on all ranks. ncclCommSplit would save the tickets, but only while the
/// parent has nothing in flight, and split() promises to work at any time.
std::vector<ncclUniqueId> agree_on_ids(Communicator& host, std::size_t count) {
  std::vector<ncclUniqueId> ids(count);
  const std::size_t bytes = count * sizeof(ncclUniqueId);
  std::string text;
  if (host.rank() == 0) {
    for (ncclUniqueId& id : ids) NCCL_CHECK("the first rank of \"" + host.name() + "\"", ncclGetUniqueId(&id));
    text.assign(reinterpret_cast<const char*>(ids.data()), bytes);
  }
  const std::vector<std::string> texts = host.gather_strings(text);
  std::memcpy(ids.data(), texts[0].data(), bytes);
  host.barrier();
  return ids;
}

}  // namespace

/// What an operation shares with its Work: the ends of its parts, one on each lane that it uses.
struct NcclCommunicator::InFlight {
  std::vector<Event> done;
  std::vector<std::weak_ptr<NcclLane>> lanes;
};

NcclCommunicator::NcclCommunicator(std::unique_ptr<Communicator> host, CudaDevice& device)
    : Communicator(host->rank(), host->size(), host->name()), host_(std::move(host)), device_(device) {
  if (size() > 1) {
    const std::string who = fmt::format("rank {} of {} in \"{}\" on {}", rank(), size(), name(), device.name());
    for (const ncclUniqueId& id : agree_on_ids(*host_, lane_count)) {
      lanes_.push_back(std::make_shared<NcclLane>(id, rank(), size(), who, *host_));
    }
  }
  monitor_ = device_.add_monitor([this] { watch(); });
}

NcclCommunicator::~NcclCommunicator() {
  device_.remove_monitor(monitor_);
  if (std::uncaught_exceptions() > 0) give_up();
  lanes_.clear();
  try {
    spans_.collect();
  } catch (...) {  // a trace without its end is no reason to fail
  }
}

void NcclCommunicator::give_up() {
  host_->give_up();
  for (const auto& lane : lanes_) lane->abort();
}

// Run while the host waits for the device: what the device waits for may never come.
void NcclCommunicator::watch() {
  host_->check_peers();
  for (const auto& lane : lanes_) lane->check();
  spans_.collect();
}

// ---- Operations ----------------------------------------------------------------------------------------------------

Work NcclCommunicator::start(Call call) {
  spans_.collect();
  if (call.operation == Operation::barrier) {
    TraceSpan span(trace(), name(), call.name());
    host_->barrier();
    return {};
  }
  auto in_flight = std::make_shared<InFlight>();
  Index bytes = call.input.bytes();
  for (const PointToPoint& transfer : call.transfers) bytes += transfer.buffer.bytes();
  const StreamSpans::Span span = spans_.begin(trace(), name(), call.name(), bytes);
  ready_.record(device_.stream());
  if (!call.is_transfer()) {
    run_on_lane(collectives, call, span, *in_flight);
  } else {
    // In the same order on all ranks: first what goes up, then what goes down.
    for (const bool up : {true, false}) {
      for (const PointToPoint& transfer : call.transfers) {
        if ((transfer.is_send == (transfer.peer > rank())) != up) continue;
        run_on_lane(up ? upward : downward, call, span, *in_flight);
        break;
      }
    }
  }
  spans_.end(span);
  return Work(
      [in_flight, compute = device_.stream()] {
        for (const Event& done : in_flight->done) done.order(compute);
      },
      [in_flight] {
        for (const auto& weak : in_flight->lanes) {
          if (const auto lane = weak.lock()) lane->abort();
        }
      });
}

void NcclCommunicator::run_on_lane(LaneNumber number, const Call& call, const StreamSpans::Span& span, InFlight& in_flight) {
  NcclLane& lane = *lanes_[number];
  ready_.order(lane.stream());
  spans_.part(span, lane.stream(), [&] {
    if (number != collectives) {
      issue_transfers(lane, call, number == upward);
    } else if (call.operation == Operation::all_to_all) {
      issue_all_to_all(lane, call);
    } else {
      issue_collective(lane, call);
    }
  });
  in_flight.done.emplace_back().record(lane.stream());
  in_flight.lanes.push_back(lanes_[number]);
}

// Without elements there is nothing to do, here and on the other ranks: their counts are the same.
void NcclCommunicator::issue_collective(NcclLane& lane, const Call& call) {
  if (call.input.count == 0) return;
  const BufferView &in = call.input, &out = call.output;
  const ncclDataType_t type = nccl_type(in.dtype);
  lane.issue(call.name(), in.bytes(), [&](ncclComm_t comm, cudaStream_t stream) {
    switch (call.operation) {
      case Operation::all_reduce: {
        const ncclRedOp_t reduce = call.reduce == ReduceOp::max ? ncclMax : ncclSum;
        NCCL_CHECK(lane.who(), ncclAllReduce(in.data, out.data, elements(in.count), type, reduce, comm, stream));
        break;
      }
      case Operation::reduce_scatter:
        NCCL_CHECK(lane.who(), ncclReduceScatter(in.data, out.data, elements(out.count), type, ncclSum, comm, stream));
        break;
      case Operation::all_gather:
        NCCL_CHECK(lane.who(), ncclAllGather(in.data, out.data, elements(in.count), type, comm, stream));
        break;
      case Operation::broadcast:
        NCCL_CHECK(lane.who(), ncclBroadcast(in.data, out.data, elements(in.count), type, call.root, comm, stream));
        break;
      default:
        fail("{}: NCCL has no {}", lane.who(), call.name());
    }
  });
}

// Each pair of ranks agrees on its count, so both leave out what is empty.
void NcclCommunicator::issue_all_to_all(NcclLane& lane, const Call& call) {
  const ncclDataType_t type = nccl_type(call.input.dtype);
  const BufferView &in = call.input, &out = call.output;
  lane.issue(call.name(), in.bytes(), [&](ncclComm_t comm, cudaStream_t stream) {
    Index sent = 0, received = 0;
    for (int peer = 0; peer < size(); ++peer) {
      const Index send = call.send_counts[static_cast<std::size_t>(peer)];
      const Index receive = call.receive_counts[static_cast<std::size_t>(peer)];
      if (peer == rank()) {
        require(send == receive, "{} sends {} elements to itself in all_to_all and expects {}", lane.who(), send, receive);
        if (send > 0) {
          CUDA_CHECK(cudaMemcpyAsync(at(out, received), at(in, sent), elements(send * size_of(in.dtype)),
                                     cudaMemcpyDeviceToDevice, stream));
        }
      } else {
        if (send > 0) NCCL_CHECK(lane.who(), ncclSend(at(in, sent), elements(send), type, peer, comm, stream));
        if (receive > 0) NCCL_CHECK(lane.who(), ncclRecv(at(out, received), elements(receive), type, peer, comm, stream));
      }
      sent += send;
      received += receive;
    }
  });
}

void NcclCommunicator::issue_transfers(NcclLane& lane, const Call& call, bool up) {
  Index bytes = 0;
  for (const PointToPoint& transfer : call.transfers) bytes += transfer.buffer.bytes();
  lane.issue(call.name(), bytes, [&](ncclComm_t comm, cudaStream_t stream) {
    for (const auto& [is_send, peer, buffer] : call.transfers) {
      if ((is_send == (peer > rank())) != up || buffer.count == 0) continue;
      const ncclDataType_t type = nccl_type(buffer.dtype);
      if (is_send) {
        NCCL_CHECK(lane.who(), ncclSend(buffer.data, elements(buffer.count), type, peer, comm, stream));
      } else {
        NCCL_CHECK(lane.who(), ncclRecv(buffer.data, elements(buffer.count), type, peer, comm, stream));
      }
    }
  });
}

// ---- By the host ---------------------------------------------------------------------------------------------------

Work NcclCommunicator::start_control(Call call) {
  run_on_host(*host_, call);
  return {};
}

std::unique_ptr<Communicator> NcclCommunicator::do_split(int color, int key, const std::string& name) {
  return std::make_unique<NcclCommunicator>(host_->split(color, key, name), device_);
}

void NcclCommunicator::note_phase(const std::string& phase) {
  set_phase(*host_, phase);
}

// ---- Making one ----------------------------------------------------------------------------------------------------

namespace {

/// A device, in a form that no other of the world has. Several instances of one GPU count as several devices.
std::string device_identity(const CudaDevice& device) {
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device.ordinal()));
  std::string identity =
      fmt::format("{:04x}:{:02x}:{:02x} ", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
  for (const char byte : properties.uuid.bytes) identity += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return identity;
}

void refuse_shared_devices(Communicator& world, const CudaDevice& device) {
  const std::vector<std::string> hosts = world.gather_strings(host_identity());
  const std::vector<std::string> devices = world.gather_strings(device_identity(device));
  const std::vector<std::string> names = world.gather_strings(std::string(device.name()));
  for (std::size_t second = 0; second < devices.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      if (hosts[first] != hosts[second] || devices[first] != devices[second]) continue;
      const std::string host = hosts[first].substr(0, hosts[first].find(' '));
      fail<UsageError>(
          "ranks {} and {} share one GPU ({} of {}), and NCCL needs one for each rank; --comm mpi (--comm threads where ranks "
          "are threads) goes through host memory instead, or start no more ranks than there are GPUs",
          first, second, names[first], host);
    }
  }
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& world, CudaDevice& device) {
  refuse_shared_devices(world, device);
  return std::make_unique<NcclCommunicator>(private_copy(world), device);
}

}  // namespace escalera::cuda
