#include "common/comm/staged/staged_collectives.h"

#include <algorithm>
#include <numeric>

#include "common/comm/call_summary.h"
#include "common/comm/host_call.h"

namespace escalera::cuda {
namespace {

/// Parts of a piece, and elements of each part: a reduce_scatter or all_gather has one part for each rank.
std::pair<int, Index> shape_of(const Call& call, int size) {
  switch (call.operation) {
    case Operation::reduce_scatter:
      return {size, call.output.count};
    case Operation::all_gather:
      return {size, call.input.count};
    default:
      return {1, call.input.count};
  }
}

/// Calls piece(begin, count) until `count` elements are done, at least once: the ranks meet even if there is nothing to
/// move.
template <class Piece>
void in_pieces(Index count, Index most, Piece&& piece) {
  Index begin = 0;
  do {
    const Index length = std::min(most, count - begin);
    piece(begin, length);
    begin += length;
  } while (begin < count);
}

Index total(const std::vector<Index>& counts) {
  return std::accumulate(counts.begin(), counts.end(), Index{0});
}

}  // namespace

/// Elements of each part in a piece of `parts` equal parts.
Index StagedCollectives::most_in_piece(int parts, DType dtype) const {
  return std::max(piece_bytes_ / parts / size_of(dtype), Index{1});
}

std::byte* StagedCollectives::reserve(const Call& call) {
  Index bytes = 0;
  if (call.operation == Operation::all_to_all) {
    bytes = (total(call.send_counts) + total(call.receive_counts)) * size_of(call.input.dtype);
  } else {
    const auto [parts, count] = shape_of(call, host_->size());
    bytes = parts * std::min(count, most_in_piece(parts, call.input.dtype)) * size_of(call.input.dtype);
  }
  if (blocks_.empty() || blocks_.back().bytes() < bytes) {
    // Each is at least twice the one before, and the last of them a piece: together less than two pieces.
    const Index held = blocks_.empty() ? 0 : blocks_.back().bytes();
    const Index roomy = 2 * bytes > piece_bytes_ ? piece_bytes_ : 2 * held;
    blocks_.emplace_back(device_, std::max(bytes, roomy));
  }
  return blocks_.back().data();
}

void StagedCollectives::copy(void* destination, const void* source, Index bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return;
  CUDA_CHECK(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(bytes), kind, stream_.get()));
}

void StagedCollectives::to_host(std::byte* pinned, const BufferView& buffer, Index begin, Index count) {
  const Index element = size_of(buffer.dtype);
  copy(pinned, static_cast<const std::byte*>(buffer.data) + begin * element, count * element, cudaMemcpyDeviceToHost);
}

void StagedCollectives::from_host(const BufferView& buffer, Index begin, Index count, const std::byte* pinned) {
  const Index element = size_of(buffer.dtype);
  copy(static_cast<std::byte*>(buffer.data) + begin * element, pinned, count * element, cudaMemcpyHostToDevice);
}

// The stream is waited for even where nothing was copied to the host: what the operation before left in the pinned memory
// may still be on its way back to the device.
void StagedCollectives::run_on_host_now(const Call& call) {
  CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  run_on_host(*host_, call);
}

// all_reduce, broadcast and barrier. pinned: [count] of the piece
void StagedCollectives::run_elementwise(const Call& call, std::byte* pinned) {
  const bool is_broadcast = call.operation == Operation::broadcast;
  const bool gives = !is_broadcast || call.root == host_->rank();
  const bool takes = !is_broadcast || call.root != host_->rank();
  in_pieces(call.input.count, most_in_piece(1, call.input.dtype), [&](Index begin, Index count) {
    Call piece = call;
    piece.input = piece.output = {pinned, count, call.input.dtype};
    if (gives) to_host(pinned, call.input, begin, count);
    run_on_host_now(piece);
    if (takes) from_host(call.output, begin, count, pinned);
  });
}

// reduce_scatter and all_gather, in place on the host. pinned: [rank, count] of the piece
void StagedCollectives::run_by_parts(const Call& call, std::byte* pinned) {
  const bool gathers = call.operation == Operation::all_gather;
  const auto [parts, part] = shape_of(call, host_->size());
  const Index element = size_of(call.input.dtype);
  in_pieces(part, most_in_piece(parts, call.input.dtype), [&, whole = part](Index begin, Index count) {
    const auto place = [&](int rank) { return pinned + rank * count * element; };
    const BufferView all(pinned, host_->size() * count, call.input.dtype);
    const BufferView own(place(host_->rank()), count, call.input.dtype);
    Call piece = call;
    piece.input = gathers ? own : all;
    piece.output = gathers ? all : own;
    if (gathers) to_host(place(host_->rank()), call.input, begin, count);
    for (int rank = 0; !gathers && rank < host_->size(); ++rank)
      to_host(place(rank), call.input, rank * whole + begin, count);
    run_on_host_now(piece);
    if (!gathers) from_host(call.output, begin, count, place(host_->rank()));
    for (int rank = 0; gathers && rank < host_->size(); ++rank)
      from_host(call.output, rank * whole + begin, count, place(rank));
  });
}

// pinned: [sent], [received]
void StagedCollectives::run_all_to_all(const Call& call, std::byte* pinned) {
  const Index sent = total(call.send_counts), received = total(call.receive_counts);
  std::byte* arrived = pinned + sent * size_of(call.input.dtype);
  Call piece = call;
  piece.input = {pinned, sent, call.input.dtype};
  piece.output = {arrived, received, call.output.dtype};
  to_host(pinned, call.input, 0, sent);
  run_on_host_now(piece);
  from_host(call.output, 0, received, arrived);
}

void StagedCollectives::run(const Call& call, std::byte* pinned, const Event& ready, Event& done, Trace* trace) {
  device_.use();
  ready.order(stream_.get());
  const bool traced = trace && trace->enabled();
  // The span shall not begin while the device still computes what is to be sent, nor end before the result is back.
  if (traced) CUDA_CHECK(cudaEventSynchronize(ready.get()));
  TraceSpan span(trace, host_->name(), call.name(), call.input.bytes());
  try {
    switch (call.operation) {
      case Operation::reduce_scatter:
      case Operation::all_gather:
        run_by_parts(call, pinned);
        break;
      case Operation::all_to_all:
        run_all_to_all(call, pinned);
        break;
      default:
        run_elementwise(call, pinned);
    }
  } catch (const PeerError&) {
    throw;
  } catch (const Error& error) {
    const auto [parts, count] = shape_of(call, host_->size());
    if (count <= most_in_piece(parts, call.input.dtype)) throw;
    fail("{} (this is a piece of {})", error.what(), describe(summarize(call)));
  }
  done.record(stream_.get());
  if (traced) CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
}

}  // namespace escalera::cuda
