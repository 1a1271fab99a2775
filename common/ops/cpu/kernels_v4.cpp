// The same kernels for x86-64-v4 (AVX-512), in 64-byte vectors. 64-byte vectors compiled for AVX2 would be several times
// slower than 32-byte ones, so one unit cannot serve both.
//
// This unit is compiled for instructions that the rest of the program may not use. If it defined an inline function that other
// units define as well, the linker would keep either, and a machine without AVX-512 could be handed this one. Hence everything
// that it includes has internal linkage, and kernels_v4() is all it exports.
#define ESCALERA_VECTOR_BYTES 64
#include "common/ops/cpu/kernels_all.h"

namespace escalera::cpu {

static constexpr Kernels v4_kernels = all_kernels("x86-64-v4");

const Kernels* kernels_v4() { return &v4_kernels; }

}  // namespace escalera::cpu
