// What the symbol table of the program, or of the library that a kernel lies in, knows about the kernel: its name, for
// reports, and its static shared memory, so that every block can begin with memory that nobody has written.
// defines: SharedVariable, KernelSymbols, symbols_of(), kernel_name()
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace simulated_cuda {

struct SharedVariable {
  std::size_t offset;  // from KernelSymbols::shared_begin()
  std::size_t bytes;
};

struct KernelSymbols {
  std::string name;  // "rms_norm_kernel<256>"
  /// Of the kernel, and of device functions of its module that any kernel may call.
  std::vector<SharedVariable> shared;
  std::size_t thread_local_module = 0;  // 0: these are plain static variables
  std::size_t load_address = 0;

  /// Where the offsets count from on the calling host thread.
  char* shared_begin() const;
};

/// Found once per kernel. Without a symbol table the name is an address, and no variables are known.
const KernelSymbols& symbols_of(const void* kernel);

inline const std::string& kernel_name(const void* kernel) {
  return symbols_of(kernel).name;
}

}  // namespace simulated_cuda
