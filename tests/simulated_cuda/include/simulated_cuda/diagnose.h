// How faults are reported: one line on stderr, then abort().
// defines: fail()
#pragma once

namespace simulated_cuda {

/// Prints "simulated CUDA: ", inside a kernel also its name, block and thread, then the message; then aborts.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace simulated_cuda
