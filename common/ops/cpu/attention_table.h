// The border between the attention kernels, compiled once per instruction set, and the code that shares out their
// work. Only plain data crosses it: what this header includes must not bring inline functions into the wide unit.
// defines: AttentionCall, AttentionKernels, AttentionTable, attention_table_base(), attention_table_v4()
#pragma once

#include <cstdint>

namespace escalera::cpu {

/// One attention call, sizes as in AttentionShape. The query heads that share a key/value head are treated together:
/// for one batch element and kv head there are query_length * group "rows", group = heads / kv_heads, and row r is
/// query r / group under head kv_head * group + r % group.
struct AttentionCall {
  std::int64_t query_length = 0;
  std::int64_t key_length = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t query_offset = 0;
  std::int64_t key_offset = 0;
  bool causal = true;

  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;  // written by forward, read by backward; so is lse
  void* lse = nullptr;
  const void* d_out = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
};

/// A rectangle of the score matrix of one batch element and kv head. row_begin and key_begin are multiples of the
/// block sizes below.
struct AttentionPart {
  std::int64_t batch = 0;
  std::int64_t kv_head = 0;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t key_begin = 0;
  std::int64_t key_end = 0;
};

/// Rows and keys are taken in blocks of this many.
inline constexpr std::int64_t attention_row_block = 128;
inline constexpr std::int64_t attention_key_block = 64;

/// The kernels for one element type. `scratch` is for the calling thread alone and aligned to 64 bytes.
struct AttentionKernels {
  /// Bytes of scratch that forward needs, and backward for a part of `keys` keys.
  std::int64_t (*forward_scratch)(std::int64_t head_size);
  std::int64_t (*backward_scratch)(std::int64_t head_size, std::int64_t keys);
  /// out and lse of the rows of a part, whose keys are all keys.
  void (*forward)(const AttentionCall& call, const AttentionPart& part, void* scratch);
  /// The gradients: dq of the part's rows if `write_dq` (its keys are then all keys), dk and dv of its keys if
  /// `write_dkv` (its rows are then all rows).
  void (*backward)(const AttentionCall& call, const AttentionPart& part, bool write_dq, bool write_dkv,
                   void* scratch);
};

/// All element types, for one instruction set. A float64 entry of null functions means: use another table's.
struct AttentionTable {
  const char* name;
  AttentionKernels float32;
  AttentionKernels float64;
  AttentionKernels bfloat16;
};

/// Kernels for the processor that the whole program is built for; on x86-64, 8 float lanes of AVX2.
const AttentionTable& attention_table_base();
/// Kernels for x86-64-v4 and avx512bf16, or null where they were not built. The caller asks the processor.
const AttentionTable* attention_table_v4();

}  // namespace escalera::cpu
