#include "common/ops/rope_table.h"

#include <cmath>

namespace escalera {

Tensor make_rope_table(Device& device, Index positions, Index head_size, double theta, DType wide) {
  require<UsageError>(head_size > 0 && head_size % 2 == 0, "the rotary embedding needs an even head size, not {}", head_size);
  const Index half = head_size / 2;
  std::vector<double> values(static_cast<std::size_t>(positions * head_size));
  for (Index position = 0; position < positions; position++) {
    double* row = values.data() + position * head_size;
    for (Index i = 0; i < half; i++) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_size);
      const double angle = static_cast<double>(position) * std::pow(theta, exponent);
      row[i] = std::cos(angle);
      row[half + i] = std::sin(angle);
    }
  }
  Tensor table = device.empty(positions, head_size, wide, MemoryCategory::workspace);
  from_host(device, values, table);
  return table;
}

}  // namespace escalera
