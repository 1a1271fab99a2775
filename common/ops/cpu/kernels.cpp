#include "common/ops/cpu/kernels.h"

namespace escalera::cpu {

bool cpu_has_v4() {
#if defined(__x86_64__)
  // All that the compiler may use in a *_v4.cpp unit.
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

const Kernels& best_kernels() {
  const Kernels* wide = cpu_has_v4() ? kernels_v4() : nullptr;
  return wide ? *wide : kernels_base();
}

}  // namespace escalera::cpu
