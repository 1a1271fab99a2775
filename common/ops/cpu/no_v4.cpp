// Stands in for the *_v4.cpp units on processors other than x86-64.
#include "common/ops/cpu/attention_table.h"
#include "common/ops/cpu/kernels.h"

namespace escalera::cpu {

const Kernels* kernels_v4() { return nullptr; }

const AttentionTable* attention_table_v4() { return nullptr; }

}  // namespace escalera::cpu
