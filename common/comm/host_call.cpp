#include "common/comm/host_call.h"

namespace escalera {

std::unique_ptr<Communicator> private_copy(Communicator& host) {
  auto copy = host.split(0, host.rank(), host.name());
  copy->set_trace(nullptr);
  return copy;
}

void run_on_host(Communicator& host, const Call& call) {
  switch (call.operation) {
    case Operation::all_reduce:
      return host.all_reduce(call.input, call.reduce);
    case Operation::reduce_scatter:
      return host.reduce_scatter(call.input, call.output);
    case Operation::all_gather:
      return host.all_gather(call.input, call.output);
    case Operation::broadcast:
      return host.broadcast(call.input, call.root);
    case Operation::all_to_all:
      return host.all_to_all(call.input, call.send_counts, call.output, call.receive_counts);
    case Operation::barrier:
      return host.barrier();
    case Operation::send:
    case Operation::recv:
      return host.exchange(call.transfers);
  }
}

}  // namespace escalera
