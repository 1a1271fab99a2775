// What carries messages between two ranks.
// defines: WindowPath, MpiPath
#pragma once

#include "common/comm/mpi/transfer_engine.h"
#include "common/comm/mpi/window.h"

namespace escalera {

/// The lanes of a shared window: a message goes piece by piece through a ring that both sides see.
class WindowPath final : public TransferPath {
 public:
  explicit WindowPath(std::shared_ptr<Window> window)
      : window_(std::move(window)), lane_reserved_(static_cast<std::size_t>(window_->size())) {}

  bool advance(Transfer& transfer) override;
  std::uint32_t news() override { return window_->bell(window_->rank()).value(); }
  bool sleep(std::uint32_t seen) override { return window_->bell(window_->rank()).sleep(seen); }
  bool has_left(int peer) override { return window_->has_left(peer); }

 private:
  bool send_piece(Transfer& transfer);
  bool receive_piece(Transfer& transfer);

  std::shared_ptr<Window> window_;
  std::vector<char> lane_reserved_;
};

/// Messages of MPI.
class MpiPath final : public TransferPath {
 public:
  MpiPath(MPI_Comm comm, int rank, std::string name) : comm_(comm), rank_(rank), name_(std::move(name)) {}

  bool advance(Transfer& transfer) override;
  std::uint32_t news() override { return 0; }
  bool sleep(std::uint32_t seen) override;
  bool has_left(int) override { return false; }

 private:
  MPI_Comm comm_;
  int rank_;
  std::string name_;
};

}  // namespace escalera
