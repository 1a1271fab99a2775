#include "common/comm/mpi/window_collectives.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/comm/reduce.h"

namespace escalera {
namespace {

std::byte* bytes_of(const BufferView& buffer) {
  return static_cast<std::byte*>(buffer.data);
}

void copy_bytes(std::byte* destination, const std::byte* source, Index bytes) {
  if (bytes > 0 && destination != source) std::memcpy(destination, source, static_cast<std::size_t>(bytes));
}

/// Calls visit(other) for the other ranks, each rank beginning with its neighbour, so that they do not all read from the
/// same one.
template <class Visit>
void for_others(const Window& window, Visit&& visit) {
  for (int i = 1; i < window.size(); ++i) visit((window.rank() + i) % window.size());
}

/// destination = this rank's `own` elements and what the others show at `offset` bytes, reduced in rank order.
void reduce_shown(const Window& window, const Call& call, const std::byte* own, Index offset,
                  std::byte* destination, Index count) {
  std::vector<const void*> sources;
  for (int rank = 0; rank < window.size(); ++rank) {
    sources.push_back(rank == window.rank() ? own : window.in(rank) + offset);
  }
  if (count > 0) reduce_in_rank_order(sources, destination, count, call.input.dtype, call.reduce);
}

// A few elements: everyone shows all of them and reduces them alone, in one step.
void all_reduce_small(Window& window, const Call& call) {
  std::byte* data = bytes_of(call.input);
  copy_bytes(window.out(), data, call.input.bytes());
  window.meet();
  reduce_shown(window, call, data, 0, data, call.input.count);
}

// Chunk by chunk: every rank shows its elements, reduces its own part of them, shows the result, and takes over the others'
// results. Showing the results of one chunk and the elements of the next is one step.
//
// out(): [size parts] elements of this chunk; [one part] result of the chunk before
void all_reduce(Window& window, const Call& call) {
  const int size = window.size(), own = window.rank();
  const Index element = size_of(call.input.dtype);
  const Index part = window.buffer_bytes() / (size + 1) / 64 * 64 / element;  // elements, whole cache lines
  const Index chunk = part * size;
  const Index count = call.input.count;
  const Index chunks = (count + chunk - 1) / chunk;
  const Index results_at = chunk * element;
  std::byte* data = bytes_of(call.input);

  // Part `rank` of chunk `number`: its first element and how many there are.
  const auto part_of = [&](Index number, int rank) {
    const Index length = std::min(chunk, count - number * chunk);
    const Index begin = part_begin(length, size, rank);
    return std::pair(number * chunk + begin, part_begin(length, size, rank + 1) - begin);
  };
  for (Index number = 0; number <= chunks; ++number) {
    std::byte* out = window.out();
    if (number < chunks) {
      for_others(window, [&](int other) {
        const auto [begin, length] = part_of(number, other);
        copy_bytes(out + part * other * element, data + begin * element, length * element);
      });
    }
    if (number > 0) {
      const auto [begin, length] = part_of(number - 1, own);
      copy_bytes(out + results_at, data + begin * element, length * element);
    }
    window.meet();
    if (number > 0) {
      for_others(window, [&](int other) {
        const auto [begin, length] = part_of(number - 1, other);
        copy_bytes(data + begin * element, window.in(other) + results_at, length * element);
      });
    }
    if (number < chunks) {
      const auto [begin, length] = part_of(number, own);
      reduce_shown(window, call, data + begin * element, part * own * element, data + begin * element,
                   length);
    }
  }
}

// out(): [size parts] the elements that go to each rank
void reduce_scatter(Window& window, const Call& call) {
  const Index element = size_of(call.input.dtype);
  const Index part = window.buffer_bytes() / window.size() / 64 * 64 / element;
  const Index count = call.output.count;
  const auto from = [&](int rank, Index begin) {
    return bytes_of(call.input) + (rank * count + begin) * element;
  };
  Index begin = 0;
  do {
    const Index length = std::min(part, count - begin);
    std::byte* out = window.out();
    for_others(window, [&](int other) {
      copy_bytes(out + part * other * element, from(other, begin), length * element);
    });
    window.meet();
    reduce_shown(window, call, from(window.rank(), begin), part * window.rank() * element,
                 bytes_of(call.output) + begin * element, length);
    begin += length;
  } while (begin < count);
}

/// Every rank shows its data (lengths[rank] bytes), a buffer's worth per step; take(rank, begin, end, shown) is called with
/// each piece of the others' data, at least one step even if there is nothing to show.
template <class Take>
void show_all(Window& window, const std::byte* data, const std::vector<Index>& lengths, Take&& take) {
  const Index buffer = window.buffer_bytes();
  const Index longest = *std::max_element(lengths.begin(), lengths.end());
  Index begin = 0;
  do {
    const auto end_of = [&](int rank) {
      return std::min(begin + buffer, lengths[static_cast<std::size_t>(rank)]);
    };
    copy_bytes(window.out(), data + begin, end_of(window.rank()) - begin);
    window.meet();
    for_others(window, [&](int other) {
      if (begin < end_of(other)) take(other, begin, end_of(other), window.in(other));
    });
    begin += buffer;
  } while (begin < longest);
}

void all_gather(Window& window, const Call& call) {
  const Index bytes = call.input.bytes();
  std::byte* output = bytes_of(call.output);
  show_all(window, bytes_of(call.input), std::vector<Index>(static_cast<std::size_t>(window.size()), bytes),
           [&](int other, Index begin, Index end, const std::byte* shown) {
             copy_bytes(output + other * bytes + begin, shown, end - begin);
           });
  copy_bytes(output + window.rank() * bytes, bytes_of(call.input), bytes);
}

void broadcast(Window& window, const Call& call) {
  std::vector<Index> lengths(static_cast<std::size_t>(window.size()), 0);
  lengths[static_cast<std::size_t>(call.root)] = call.input.bytes();
  show_all(window, bytes_of(call.input), lengths, [&](int, Index begin, Index end, const std::byte* shown) {
    copy_bytes(bytes_of(call.output) + begin, shown, end - begin);
  });
}

// All ranks first show their counts, both ways. From these everyone knows where its elements lie in each rank's input, which
// is then shown from beginning to end.
void all_to_all(Window& window, const Call& call) {
  const auto size = static_cast<std::size_t>(window.size());
  const auto own = static_cast<std::size_t>(window.rank());
  const Index element = size_of(call.input.dtype);
  const Index row_bytes = static_cast<Index>(size) * static_cast<Index>(sizeof(Index));
  copy_bytes(window.out(), reinterpret_cast<const std::byte*>(call.send_counts.data()), row_bytes);
  copy_bytes(window.out() + row_bytes, reinterpret_cast<const std::byte*>(call.receive_counts.data()),
             row_bytes);
  window.meet();
  std::vector<std::vector<Index>> sends(size, call.send_counts), receives(size, call.receive_counts);
  for_others(window, [&](int other) {
    const auto at = static_cast<std::size_t>(other);
    std::memcpy(sends[at].data(), window.in(other), static_cast<std::size_t>(row_bytes));
    std::memcpy(receives[at].data(), window.in(other) + row_bytes, static_cast<std::size_t>(row_bytes));
  });
  for (std::size_t sender = 0; sender < size; ++sender) {
    for (std::size_t receiver = 0; receiver < size; ++receiver) {
      if (sends[sender][receiver] != receives[receiver][sender]) {
        throw Error(describe_uneven_all_to_all(static_cast<int>(sender), sends[sender][receiver],
                                               static_cast<int>(receiver), receives[receiver][sender],
                                               window.name()));
      }
    }
  }

  // In bytes: how much each rank shows, where this rank's share of it begins and ends, and where that goes.
  std::vector<Index> lengths(size), first(size), last(size), destination(size);
  Index arrived = 0;
  for (std::size_t other = 0; other < size; ++other) {
    const auto row = sends[other].begin();
    lengths[other] = std::accumulate(row, row + static_cast<Index>(size), Index{0}) * element;
    first[other] = std::accumulate(row, row + window.rank(), Index{0}) * element;
    last[other] = first[other] + sends[other][own] * element;
    destination[other] = arrived;
    arrived += last[other] - first[other];
  }
  copy_bytes(bytes_of(call.output) + destination[own], bytes_of(call.input) + first[own],
             last[own] - first[own]);
  show_all(window, bytes_of(call.input), lengths,
           [&](int other, Index begin, Index end, const std::byte* shown) {
             const auto at = static_cast<std::size_t>(other);
             const Index from = std::max(begin, first[at]);
             const Index to = std::min(end, last[at]);
             if (from < to)
               copy_bytes(bytes_of(call.output) + destination[at] + from - first[at], shown + from - begin,
                          to - from);
           });
}

}  // namespace

void run_collective(Window& window, const Call& call) {
  constexpr Index small = 4096;  // bytes; one step saves more than the repeated sums cost
  window.begin(call);
  switch (call.operation) {
    case Operation::all_reduce:
      return call.input.bytes() <= small ? all_reduce_small(window, call) : all_reduce(window, call);
    case Operation::reduce_scatter:
      return reduce_scatter(window, call);
    case Operation::all_gather:
      return all_gather(window, call);
    case Operation::broadcast:
      return broadcast(window, call);
    case Operation::all_to_all:
      return all_to_all(window, call);
    default:
      return window.meet();
  }
}

}  // namespace escalera
