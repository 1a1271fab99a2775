// Copies from global to shared memory that a thread does not wait for (cp.async).
// defines: copy_async(), commit_copies(), wait_copies()
#pragma once

namespace simulated_cuda {

/// The first `source_bytes` come from `global`, the rest of `bytes` becomes zero. Under SIMULATED_CUDA_COPIES=late the bytes
/// move when the thread waits for their group, so that a missing wait or barrier shows old contents; under =early they move
/// at once, so that a buffer refilled too soon is overwritten under its readers. A correct kernel passes under both.
void copy_async(void* shared, const void* global, int bytes, int source_bytes);
/// Closes the group of the copies since the last call.
void commit_copies();
/// Waits until at most `pending` groups of this thread are still on their way.
void wait_copies(int pending);

}  // namespace simulated_cuda
