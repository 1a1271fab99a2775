// Attention kernels for the processor that the whole program is built for: on x86-64, AVX2 with 8 float lanes. float64
// exists here only; it serves tests and needs no wider vectors.
#define ESCALERA_VECTOR_BYTES 32
#include "common/ops/cpu/attention_passes.h"

namespace escalera::cpu {

const AttentionTable& attention_table_base() {
  static constexpr AttentionTable table = {"8 lanes", attention_kernels<float>(), attention_kernels<double>(),
                                           attention_kernels<Bits16>()};
  return table;
}

}  // namespace escalera::cpu
