#include "common/comm/threads/thread_collectives.h"

#include <cstring>
#include <numeric>

#include "common/comm/reduce.h"

namespace escalera {
namespace {

std::byte* at(const BufferView& buffer, Index element) {
  return static_cast<std::byte*>(buffer.data) + element * size_of(buffer.dtype);
}

void copy_elements(std::byte* destination, const std::byte* source, Index count, DType dtype) {
  if (count > 0 && destination != source) {
    std::memcpy(destination, source, static_cast<std::size_t>(count * size_of(dtype)));
  }
}

/// destination = elements [begin, begin + count) of every rank's input, reduced in rank order.
void reduce_inputs(ThreadGroup& group, const Call& call, Index begin, Index count, std::byte* destination) {
  if (count == 0) return;
  std::vector<const void*> sources;
  for (int rank = 0; rank < group.size(); ++rank) sources.push_back(at(group.call(rank).input, begin));
  reduce_in_rank_order(sources, destination, count, call.input.dtype, call.reduce);
}

// Each rank reduces its own part of the elements in place, where no other rank reads, then takes over the others' parts.
void all_reduce(ThreadGroup& group, int rank, const Call& call) {
  const int size = group.size();
  const Index count = call.input.count;
  const auto begin = [&](int part) { return part_begin(count, size, part); };
  reduce_inputs(group, call, begin(rank), begin(rank + 1) - begin(rank), at(call.input, begin(rank)));
  group.meet();
  for (int other = 0; other < size; ++other) {
    copy_elements(at(call.input, begin(other)), at(group.call(other).input, begin(other)),
                  begin(other + 1) - begin(other), call.input.dtype);
  }
}

void all_gather(ThreadGroup& group, const Call& call) {
  for (int other = 0; other < group.size(); ++other) {
    const BufferView& input = group.call(other).input;
    copy_elements(at(call.output, other * input.count), at(input, 0), input.count, input.dtype);
  }
}

void all_to_all(ThreadGroup& group, int rank, const Call& call) {
  Index arrived = 0;
  for (int other = 0; other < group.size(); ++other) {
    const Call& from = group.call(other);
    const Index before = std::accumulate(from.send_counts.begin(), from.send_counts.begin() + rank, Index{0});
    const Index count = from.send_counts[static_cast<std::size_t>(rank)];
    copy_elements(at(call.output, arrived), at(from.input, before), count, call.output.dtype);
    arrived += count;
  }
}

}  // namespace

void run_collective(ThreadGroup& group, int rank, const Call& call) {
  group.begin(rank, call);
  switch (call.operation) {
    case Operation::all_reduce:
      all_reduce(group, rank, call);
      break;
    case Operation::reduce_scatter:
      reduce_inputs(group, call, rank * call.output.count, call.output.count, at(call.output, 0));
      break;
    case Operation::all_gather:
      all_gather(group, call);
      break;
    case Operation::broadcast:
      copy_elements(at(call.output, 0), at(group.call(call.root).input, 0), call.output.count,
                    call.output.dtype);
      break;
    case Operation::all_to_all:
      all_to_all(group, rank, call);
      break;
    default:
      return;  // a barrier ends where the ranks have met
  }
  group.meet();
}

}  // namespace escalera
