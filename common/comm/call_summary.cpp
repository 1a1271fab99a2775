#include "common/comm/call_summary.h"

namespace escalera {

CallSummary summarize(const Call& call) {
  CallSummary summary;
  summary.operation = call.operation;
  summary.dtype = call.input.dtype;
  summary.reduce = call.reduce;
  summary.root = call.root;
  switch (call.operation) {
    case Operation::reduce_scatter:
      summary.count = call.output.count;
      break;
    case Operation::all_to_all:
      break;  // the counts differ from rank to rank by right
    default:
      summary.count = call.input.count;
  }
  return summary;
}

std::string describe(const CallSummary& call) {
  switch (call.operation) {
    case Operation::barrier:
      return call.root == split_root ? "split" : "barrier";
    case Operation::all_to_all:
      return fmt::format("all_to_all of {}", to_string(call.dtype));
    case Operation::all_reduce:
      return fmt::format("all_reduce ({}) of {} {}", call.reduce == ReduceOp::sum ? "sum" : "max", call.count,
                         to_string(call.dtype));
    case Operation::reduce_scatter:
      return fmt::format("reduce_scatter to {} {} a rank", call.count, to_string(call.dtype));
    case Operation::all_gather:
      return fmt::format("all_gather of {} {} a rank", call.count, to_string(call.dtype));
    case Operation::broadcast:
      return fmt::format("broadcast of {} {} from rank {}", call.count, to_string(call.dtype), call.root);
    default:
      return fmt::format("{} of {} {}", to_string(call.operation), call.count, to_string(call.dtype));
  }
}

std::optional<std::string> describe_mismatch(std::span<const CallSummary> calls, const std::string& name) {
  for (std::size_t rank = 1; rank < calls.size(); ++rank) {
    if (calls[rank] != calls[0]) {
      return fmt::format("the ranks of \"{}\" disagree: rank 0 calls {}, rank {} calls {}", name,
                         describe(calls[0]), rank, describe(calls[rank]));
    }
  }
  return std::nullopt;
}

std::optional<std::string> describe_mismatch(int sender, const BufferView& sent, int receiver,
                                             const BufferView& expected, const std::string& name) {
  if (sent.count == expected.count && sent.dtype == expected.dtype) return std::nullopt;
  return fmt::format("the ranks of \"{}\" disagree: rank {} sends {} {} to rank {}, which expects {} {}",
                     name, sender, sent.count, to_string(sent.dtype), receiver, expected.count,
                     to_string(expected.dtype));
}

std::string describe_uneven_all_to_all(int sender, Index sent, int receiver, Index expected,
                                       const std::string& name) {
  return fmt::format(
      "the ranks of \"{}\" disagree in all_to_all: rank {} sends {} elements to rank {}, which expects {}",
      name, sender, sent, receiver, expected);
}

}  // namespace escalera
