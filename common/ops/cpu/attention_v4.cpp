// Attention kernels for x86-64-v4: AVX-512 with 16 float lanes.
#define ESCALERA_VECTOR_BYTES 64
#include "common/ops/cpu/attention_passes.h"

namespace escalera::cpu {

const AttentionTable* attention_table_v4() {
  static constexpr AttentionTable table = {
      "16 lanes", attention_kernels<float>(), {}, attention_kernels<Bits16>()};
  return &table;
}

}  // namespace escalera::cpu
