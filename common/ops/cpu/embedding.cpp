#include <algorithm>
#include <cstring>

#include "common/ops/checks.h"
#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {

void CpuOps::embedding_forward(std::span<const std::int32_t> tokens, const Tensor& table, Index first_row,
                               const Tensor& y) {
  const Index rows = static_cast<Index>(tokens.size());
  check_embedding_forward(tokens, table, y);
  const auto row_bytes = static_cast<std::size_t>(table.columns() * size_of(table.dtype()));
  const std::byte* from = static_cast<const std::byte*>(table.data());
  std::byte* to = static_cast<std::byte*>(y.data());
  parallel(rows, table.columns(), [&](Index begin, Index end, int) {
    for (Index t = begin; t < end; t++) {
      const Index row = tokens[static_cast<std::size_t>(t)] - first_row;
      std::byte* place = to + static_cast<std::size_t>(t) * row_bytes;
      if (row >= 0 && row < table.rows()) {
        std::memcpy(place, from + static_cast<std::size_t>(row) * row_bytes, row_bytes);
      } else {
        std::memset(place, 0, row_bytes);
      }
    }
  });
}

void CpuOps::embedding_backward(std::span<const std::int32_t> tokens, const Tensor& dy, Index first_row,
                                const Tensor& d_table) {
  const Index rows = static_cast<Index>(tokens.size()), columns = d_table.columns();
  check_embedding_backward(tokens, dy, d_table);
  dispatch(dy.dtype(), [&]<class T>() {
    const auto* source = raw<T>(dy);
    auto* gradient = raw<Accumulator<T>>(d_table);
    // A token may occur anywhere, so threads split columns, not tokens: each row of the gradient then adds up in order of t,
    // and no two threads meet. Blocks of a cache line keep them from sharing one.
    constexpr Index block = 16;
    parallel((columns + block - 1) / block, rows * block, [&](Index begin, Index end, int) {
      const Index first = begin * block, count = std::min(end * block, columns) - first;
      for (Index t = 0; t < rows; t++) {
        const Index row = tokens[static_cast<std::size_t>(t)] - first_row;
        if (row < 0 || row >= d_table.rows()) continue;
        table<T>().accumulate(source + t * columns + first, gradient + row * columns + first, count);
      }
    });
  });
}

}  // namespace escalera::cpu
