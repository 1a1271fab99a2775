#include "tests/simulated_cuda/libraries/nccl_operation.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include <simulated_cuda/device_pointer.h>

#include "tests/simulated_cuda/libraries/bfloat16.h"
#include "tests/simulated_cuda/runtime/memory.h"
#include "tests/simulated_cuda/runtime/sanitizers.h"

namespace simulated_cuda {
namespace {

const char* name_of(NcclKind kind) {
  switch (kind) {
    case NcclKind::all_reduce:
      return "ncclAllReduce";
    case NcclKind::reduce:
      return "ncclReduce";
    case NcclKind::reduce_scatter:
      return "ncclReduceScatter";
    case NcclKind::all_gather:
      return "ncclAllGather";
    case NcclKind::broadcast:
      return "ncclBroadcast";
    case NcclKind::send:
      return "ncclSend";
    case NcclKind::recv:
      return "ncclRecv";
  }
  return "?";
}

bool reduces(NcclKind kind) {
  return kind == NcclKind::all_reduce || kind == NcclKind::reduce || kind == NcclKind::reduce_scatter;
}
bool has_root(NcclKind kind) {
  return kind == NcclKind::reduce || kind == NcclKind::broadcast;
}

struct TypeInfo {
  const char* name;
  std::size_t bytes;
};

TypeInfo info(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return {"int8", 1};
    case ncclUint8:
      return {"uint8", 1};
    case ncclInt32:
      return {"int32", 4};
    case ncclUint32:
      return {"uint32", 4};
    case ncclInt64:
      return {"int64", 8};
    case ncclUint64:
      return {"uint64", 8};
    case ncclFloat32:
      return {"float32", 4};
    case ncclFloat64:
      return {"float64", 8};
    case ncclBfloat16:
      return {"bfloat16", 2};
    default:
      fail("NCCL: data type %d is not simulated", static_cast<int>(type));
  }
}

const char* name_of(ncclRedOp_t reduce) {
  switch (reduce) {
    case ncclSum:
      return "sum";
    case ncclProd:
      return "product";
    case ncclMax:
      return "max";
    case ncclMin:
      return "min";
    default:
      fail("NCCL: reduction %d is not simulated", static_cast<int>(reduce));
  }
}

struct Range {
  std::uintptr_t begin = 0, end = 0;
  Range(const void* pointer, std::size_t bytes) : begin(bits(untagged(pointer))), end(begin + bytes) {}
  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};

void check_buffer(const NcclOperation& operation, const char* which, const void* pointer, std::size_t bytes, int rank,
                  int device) {
  const auto reject = [&](const char* why) {
    fail("NCCL: rank %d, %s: the %s buffer %p %s", rank, describe(operation).c_str(), which, pointer, why);
  };
  if (!is_tagged(pointer)) reject("is no device memory");
  if (device_of(pointer) != device) reject("is memory of another device than the communicator's");
  const Range range(pointer, bytes);
  const auto allocation = memory_map().find(range.begin);
  if (!allocation) reject("points to no allocation");
  if (!allocation->live) reject("was freed");
  if (range.end > allocation->address + allocation->bytes) reject("reaches beyond the end of its allocation");
  if (range.begin % info(operation.type).bytes != 0) reject("is not aligned to its elements");
}

/// Elements that the rank's input and output have.
std::size_t input_elements(const NcclOperation& operation, int rank, int ranks) {
  switch (operation.kind) {
    case NcclKind::reduce_scatter:
      return operation.count * static_cast<std::size_t>(ranks);
    case NcclKind::broadcast:
      return rank == operation.root ? operation.count : 0;
    case NcclKind::recv:
      return 0;
    default:
      return operation.count;
  }
}
std::size_t output_elements(const NcclOperation& operation, int rank, int ranks) {
  switch (operation.kind) {
    case NcclKind::all_gather:
      return operation.count * static_cast<std::size_t>(ranks);
    case NcclKind::reduce:
      return rank == operation.root ? operation.count : 0;
    case NcclKind::send:
      return 0;
    default:
      return operation.count;
  }
}

// ---- Reductions ----

constexpr std::size_t chunk = 1024;  // elements that are combined at once

template <class Sum>
Sum combine(ncclRedOp_t reduce, Sum a, Sum b) {
  if constexpr (std::is_integral_v<Sum>) {  // wraps around, as on a GPU
    using Wrapping = std::make_unsigned_t<Sum>;
    if (reduce == ncclSum) return static_cast<Sum>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
    if (reduce == ncclProd) return static_cast<Sum>(std::uint64_t{static_cast<Wrapping>(a)} * static_cast<Wrapping>(b));
  } else {
    if (reduce == ncclSum) return a + b;
    if (reduce == ncclProd) return a * b;
  }
  return reduce == ncclMax ? std::max(a, b) : std::min(a, b);
}

/// In the order of the ranks, and rounded once at the end: Load and Store convert between memory and what is added.
template <class Element, class Load, class Store>
void reduce_elements(const std::vector<std::shared_ptr<NcclOperation>>& calls, std::size_t first, std::size_t count,
                     const std::vector<void*>& outputs, Load load, Store store) {
  using Sum = decltype(load(Element{}));
  const ncclRedOp_t reduce = calls[0]->reduce;
  for (const auto& call : calls)
    tsan_read(static_cast<const Element*>(untagged(call->input)) + first, count * sizeof(Element));
  for (void* output : outputs) tsan_write(output, count * sizeof(Element));
  Sum sum[chunk];
  for (std::size_t begin = 0; begin < count; begin += chunk) {
    const std::size_t length = std::min(chunk, count - begin);
    for (std::size_t rank = 0; rank < calls.size(); ++rank) {
      const Element* input = static_cast<const Element*>(untagged(calls[rank]->input)) + first + begin;
      if (rank == 0) {
        for (std::size_t i = 0; i < length; ++i) sum[i] = load(input[i]);
      } else {
        for (std::size_t i = 0; i < length; ++i) sum[i] = combine<Sum>(reduce, sum[i], load(input[i]));
      }
    }
    for (void* output : outputs) {
      for (std::size_t i = 0; i < length; ++i) static_cast<Element*>(output)[begin + i] = store(sum[i]);
    }
  }
}

void reduce_range(const std::vector<std::shared_ptr<NcclOperation>>& calls, std::size_t first, std::size_t count,
                  const std::vector<void*>& outputs) {
  const auto plainly = [&](auto zero) {
    using Element = decltype(zero);
    const auto same = [](Element value) { return value; };
    reduce_elements<Element>(calls, first, count, outputs, same, same);
  };
  switch (calls[0]->type) {
    case ncclInt8:
      return plainly(std::int8_t{});
    case ncclUint8:
      return plainly(std::uint8_t{});
    case ncclInt32:
      return plainly(std::int32_t{});
    case ncclUint32:
      return plainly(std::uint32_t{});
    case ncclInt64:
      return plainly(std::int64_t{});
    case ncclUint64:
      return plainly(std::uint64_t{});
    case ncclFloat32:
      return plainly(float{});
    case ncclFloat64:
      return plainly(double{});
    case ncclBfloat16:
      return reduce_elements<std::uint16_t>(calls, first, count, outputs, from_bfloat16, to_bfloat16);
    default:
      fail("NCCL: data type %d cannot be reduced here", static_cast<int>(calls[0]->type));
  }
}

void move(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memmove(untagged(to), untagged(from), bytes);
}

}  // namespace

std::string describe(const NcclOperation& operation) {
  std::string text =
      std::string(name_of(operation.kind)) + " of " + std::to_string(operation.count) + " " + info(operation.type).name;
  if (reduces(operation.kind)) text += std::string(" (") + name_of(operation.reduce) + ")";
  if (has_root(operation.kind)) text += " with root " + std::to_string(operation.root);
  if (operation.kind == NcclKind::send) text += " to rank " + std::to_string(operation.peer);
  if (operation.kind == NcclKind::recv) text += " from rank " + std::to_string(operation.peer);
  return text + ", its call " + std::to_string(operation.call);
}

void check_buffers(const NcclOperation& operation, int rank, int ranks, int device) {
  const std::size_t element = info(operation.type).bytes;
  if (reduces(operation.kind)) name_of(operation.reduce);
  const std::size_t in = input_elements(operation, rank, ranks) * element,
                    out = output_elements(operation, rank, ranks) * element;
  if (in > 0) check_buffer(operation, "send", operation.input, in, rank, device);
  if (out > 0) check_buffer(operation, "receive", operation.output, out, rank, device);
  if (in == 0 || out == 0) return;
  const Range input(operation.input, in), output(operation.output, out);
  // In place means: the rank's own part.
  const std::size_t own = operation.count * element * static_cast<std::size_t>(rank);
  const bool in_place = operation.kind == NcclKind::all_gather       ? input.begin == output.begin + own
                        : operation.kind == NcclKind::reduce_scatter ? output.begin == input.begin + own
                                                                     : input.begin == output.begin;
  if (!in_place && input.overlaps(output)) {
    fail("NCCL: rank %d, %s: the buffers overlap, and not as in-place operations may", rank, describe(operation).c_str());
  }
}

bool fit(const NcclOperation& one, const NcclOperation& other) {
  if (one.count != other.count || one.type != other.type) return false;
  if (one.is_transfer()) return other.is_transfer();
  return one.kind == other.kind && (!reduces(one.kind) || one.reduce == other.reduce) &&
         (!has_root(one.kind) || one.root == other.root);
}

void perform(const std::vector<std::shared_ptr<NcclOperation>>& calls) {
  const NcclOperation& first = *calls[0];
  const std::size_t count = first.count, bytes = count * info(first.type).bytes;
  if (count == 0) return;
  switch (first.kind) {
    case NcclKind::all_reduce: {
      std::vector<void*> outputs;
      for (const auto& call : calls) outputs.push_back(untagged(call->output));
      return reduce_range(calls, 0, count, outputs);
    }
    case NcclKind::reduce:
      return reduce_range(calls, 0, count, {untagged(calls[static_cast<std::size_t>(first.root)]->output)});
    case NcclKind::reduce_scatter:
      for (std::size_t rank = 0; rank < calls.size(); ++rank)
        reduce_range(calls, rank * count, count, {untagged(calls[rank]->output)});
      return;
    case NcclKind::all_gather:
      for (const auto& call : calls) {
        for (std::size_t rank = 0; rank < calls.size(); ++rank) {
          move(static_cast<char*>(call->output) + rank * bytes, calls[rank]->input, bytes);
        }
      }
      return;
    case NcclKind::broadcast:
      for (const auto& call : calls) move(call->output, calls[static_cast<std::size_t>(first.root)]->input, bytes);
      return;
    case NcclKind::send:
    case NcclKind::recv:
      move(calls[1]->output, calls[0]->input, bytes);
      return;
  }
}

}  // namespace simulated_cuda
