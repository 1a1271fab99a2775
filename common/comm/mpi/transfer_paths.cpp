#include "common/comm/mpi/transfer_paths.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/comm/mpi/mpi_check.h"

namespace escalera {

// ---- Through the window --------------------------------------------------------------------------------------------

bool WindowPath::advance(Transfer& transfer) {
  bool moved = false;
  while (!transfer.done && (transfer.what.is_send ? send_piece(transfer) : receive_piece(transfer)))
    moved = true;
  return moved;
}

bool WindowPath::send_piece(Transfer& transfer) {
  const int own = window_->rank(), peer = transfer.what.peer;
  const BufferView& buffer = transfer.what.buffer;
  Lane& lane = window_->lane(own, peer);
  if (const Index refused = lane.refused_count) {
    throw Error(
        *describe_mismatch(own, buffer, peer, {nullptr, refused - 1, lane.refused_dtype}, window_->name()));
  }
  const std::uint32_t number = lane.filled.load(std::memory_order_relaxed);  // nobody else changes it
  if (number - lane.emptied.load(std::memory_order_acquire) == Lane::depth) return false;
  if (!std::exchange(lane_reserved_[static_cast<std::size_t>(peer)], 1)) window_->reserve_lane(peer);

  // A message without elements is one empty piece.
  const Index bytes = std::min(window_->piece_bytes(), buffer.bytes() - transfer.moved);
  if (bytes > 0) {
    std::memcpy(window_->piece(own, peer, number),
                static_cast<const std::byte*>(buffer.data) + transfer.moved, static_cast<std::size_t>(bytes));
  }
  lane.pieces[number % Lane::depth] = {buffer.count, buffer.dtype, bytes};
  transfer.moved += bytes;
  transfer.done = transfer.moved == buffer.bytes();
  lane.filled.store(number + 1, std::memory_order_release);
  window_->bell(peer).advance();
  return true;
}

bool WindowPath::receive_piece(Transfer& transfer) {
  const int own = window_->rank(), peer = transfer.what.peer;
  const BufferView& buffer = transfer.what.buffer;
  Lane& lane = window_->lane(peer, own);
  const std::uint32_t number = lane.emptied.load(std::memory_order_relaxed);
  if (number == lane.filled.load(std::memory_order_acquire)) return false;

  const Lane::Piece piece = lane.pieces[number % Lane::depth];
  if (auto wrong =
          describe_mismatch(peer, {nullptr, piece.count, piece.dtype}, own, buffer, window_->name())) {
    lane.refused_dtype = buffer.dtype;
    lane.refused_count = buffer.count + 1;
    window_->bell(peer).advance();
    throw Error(*wrong);
  }
  if (piece.bytes > 0) {
    std::memcpy(static_cast<std::byte*>(buffer.data) + transfer.moved, window_->piece(peer, own, number),
                static_cast<std::size_t>(piece.bytes));
  }
  transfer.moved += piece.bytes;
  transfer.done = transfer.moved == buffer.bytes();
  lane.emptied.store(number + 1, std::memory_order_release);
  window_->bell(peer).advance();
  return true;
}

// ---- Through MPI ---------------------------------------------------------------------------------------------------

bool MpiPath::advance(Transfer& transfer) {
  constexpr Index most = Index{1} << 30;  // MPI counts in int
  const auto& [is_send, peer, buffer] = transfer.what;
  const Index bytes = std::min(most, buffer.bytes() - transfer.moved);
  bool moved = false;
  if (transfer.request == MPI_REQUEST_NULL) {
    std::byte* data = static_cast<std::byte*>(buffer.data) + transfer.moved;
    const int count = static_cast<int>(bytes);
    if (is_send) {
      MPI_CHECK(MPI_Isend(data, count, MPI_BYTE, peer, 0, comm_, &transfer.request));
    } else {
      MPI_CHECK(MPI_Irecv(data, count, MPI_BYTE, peer, 0, comm_, &transfer.request));
    }
    moved = true;
  }
  int finished = 0;
  MPI_Status status;
  const int code = MPI_Test(&transfer.request, &finished, &status);
  int arrived = static_cast<int>(bytes);
  if (code == MPI_SUCCESS && finished && !is_send) MPI_CHECK(MPI_Get_count(&status, MPI_BYTE, &arrived));
  int error_class = MPI_SUCCESS;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &error_class);
  if (error_class == MPI_ERR_TRUNCATE || arrived != bytes) {
    fail("the ranks of \"{}\" disagree: rank {} expects {} {} from rank {}, which sends {}", name_, rank_,
         buffer.count, to_string(buffer.dtype), peer,
         arrived != bytes ? fmt::format("{} bytes", arrived) : "more");
  }
  MPI_CHECK(code);
  if (!finished) return moved;
  transfer.moved += bytes;
  transfer.done = transfer.moved == buffer.bytes();
  return true;
}

bool MpiPath::sleep(std::uint32_t) {
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  return true;
}

}  // namespace escalera
