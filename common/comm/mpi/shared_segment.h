// Memory that the ranks of one host share.
// defines: SharedSegment
#pragma once

#include <mpi.h>

#include <cstddef>
#include <string>

namespace escalera {

/// A piece of /dev/shm, mapped by all ranks of a communicator and nameless from then on: the file is unlinked before anyone
/// uses it, so that nothing is left behind however the job ends. (MPI_Win_allocate_shared would give the same memory, but
/// can only be freed by all ranks together, and so not in the destructor of a communicator.)
///
/// The memory is there once it is reserved. Touching memory that /dev/shm has no room for would kill the process with
/// SIGBUS; reserve() throws instead and says what to do.
class SharedSegment {
 public:
  /// Collective over `comm`, whose ranks must be on one host. `purpose` is for messages.
  SharedSegment(MPI_Comm comm, std::size_t bytes, std::string purpose);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

  /// Makes sure that `bytes` bytes from `offset` have memory behind them; they are zero at first. Only one rank needs to.
  void reserve(std::size_t offset, std::size_t bytes);

  /// Bytes free in /dev/shm.
  static std::size_t free_space();

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::string purpose_;
  int file_ = -1;
};

}  // namespace escalera
