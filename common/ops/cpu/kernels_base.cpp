// The kernels for the instruction set of the whole build: 32-byte vectors, which are AVX2's; a compiler for another processor
// makes two of its own vectors of each.
#define ESCALERA_VECTOR_BYTES 32
#include "common/ops/cpu/kernels_all.h"

namespace escalera::cpu {

static constexpr Kernels base_kernels = all_kernels("x86-64-v3 or generic");

const Kernels& kernels_base() { return base_kernels; }

}  // namespace escalera::cpu
