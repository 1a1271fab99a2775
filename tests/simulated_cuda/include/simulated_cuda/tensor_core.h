// Tensor-core instructions for one warp.
// defines: tensor_core_product(), load_matrix_fragments()
#pragma once

#include <cstdint>
#include <source_location>

namespace simulated_cuda {

/// mma.sync.m16n8k16 of bfloat16 pairs with float32 accumulation: d += a b.
void tensor_core_product(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                         std::source_location where);

/// ldmatrix.x4, with .trans if `transposed`: lane 8 m + i names row i of the 8x8 matrix m.
void load_matrix_fragments(std::uint32_t (&r)[4], const void* row, bool transposed, std::source_location where);

}  // namespace simulated_cuda
