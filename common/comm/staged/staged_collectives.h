// Collectives on device memory by way of the host, one after another.
// defines: StagedCollectives, usual_piece_bytes
#pragma once

#include <list>
#include <memory>

#include "common/comm/communicator.h"
#include "common/comm/staged/pinned_memory.h"

namespace escalera::cuda {

/// Large enough that launching copies and meeting the other ranks cost little beside the copying.
inline constexpr Index usual_piece_bytes = Index{32} << 20;

/// Copies to page-locked memory, lets a communicator of the host do the operation there, and copies back, on a stream of
/// its own. Large buffers go in pieces of `piece_bytes`, which bounds the memory; all_to_all alone goes in one, since its
/// ranks hold different amounts. Sums are those of the host communicator.
class StagedCollectives {
 public:
  /// `host` is used by nobody else.
  StagedCollectives(std::unique_ptr<Communicator> host, CudaDevice& device, Index piece_bytes)
      : host_(std::move(host)), device_(device), piece_bytes_(piece_bytes) {}
  ~StagedCollectives() { cudaStreamSynchronize(stream_.get()); }
  StagedCollectives(const StagedCollectives&) = delete;
  StagedCollectives& operator=(const StagedCollectives&) = delete;

  Communicator& host() { return *host_; }
  const Communicator& host() const { return *host_; }
  Index piece_bytes() const { return piece_bytes_; }

  /// Memory for run(call). On the rank's own thread; run() may be at work with what it returned before.
  std::byte* reserve(const Call& call);
  /// Carries out `call`, a collective on device memory, once the stream `ready` was recorded on has come there, and
  /// records `done` behind the last copy. On any one thread; waits for the other ranks.
  void run(const Call& call, std::byte* pinned, const Event& ready, Event& done, Trace* trace);

 private:
  Index most_in_piece(int parts, DType dtype) const;
  void copy(void* destination, const void* source, Index bytes, cudaMemcpyKind kind);
  void to_host(std::byte* pinned, const BufferView& buffer, Index begin, Index count);
  void from_host(const BufferView& buffer, Index begin, Index count, const std::byte* pinned);
  void run_on_host_now(const Call& call);
  void run_elementwise(const Call& call, std::byte* pinned);
  void run_by_parts(const Call& call, std::byte* pinned);
  void run_all_to_all(const Call& call, std::byte* pinned);

  std::unique_ptr<Communicator> host_;
  CudaDevice& device_;
  Index piece_bytes_;
  Stream stream_;
  // Copies may still be on their way through an old block when a larger one is needed, so the old ones stay.
  std::list<PinnedBlock> blocks_;
};

}  // namespace escalera::cuda
