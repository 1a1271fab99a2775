#include <algorithm>
#include <cstring>

#include "common/ops/checks.h"
#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {

void CpuOps::add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check_add(a, b, out);
  dispatch(a.dtype(), [&]<class T>() {
    parallel(a.size(), 1, [&](Index begin, Index end, int) {
      table<T>().add(raw<T>(a) + begin, raw<T>(b) + begin, raw<T>(out) + begin, end - begin);
    });
  });
}

void CpuOps::scale(const Tensor& x, double factor) {
  dispatch(x.dtype(), [&]<class T>() {
    parallel(x.size(), 1, [&](Index begin, Index end, int) {
      table<T>().scale(raw<T>(x) + begin, static_cast<Accumulator<T>>(factor), end - begin);
    });
  });
}

void CpuOps::convert(const Tensor& source, const Tensor& destination) {
  check_convert(source, destination);
  const auto kernel = kernels_.convert[static_cast<int>(source.dtype())][static_cast<int>(destination.dtype())];
  const std::byte* from = static_cast<const std::byte*>(source.data());
  std::byte* to = static_cast<std::byte*>(destination.data());
  const Index from_size = size_of(source.dtype()), to_size = size_of(destination.dtype());
  parallel(source.size(), 1, [&](Index begin, Index end, int) {
    if (kernel) {
      kernel(from + begin * from_size, to + begin * to_size, end - begin);
    } else {
      std::memcpy(to + begin * to_size, from + begin * from_size, static_cast<std::size_t>((end - begin) * from_size));
    }
  });
}

void CpuOps::squared_norm(const Tensor& x, const Tensor& sum) {
  check_squared_norm(sum);
  // Blocks depend on the number of elements alone and their sums are added in order: the bits do not depend on threads.
  constexpr Index most_blocks = 256, smallest_block = 4096;
  const Index count = x.size();
  const Index block = std::max(smallest_block, (count + most_blocks - 1) / most_blocks);
  const Index blocks = (count + block - 1) / block;
  double partial[most_blocks];
  dispatch(x.dtype(), [&]<class T>() {
    parallel(blocks, block, [&](Index begin, Index end, int) {
      for (Index i = begin; i < end; i++) {
        partial[i] = table<T>().squared_norm(raw<T>(x) + i * block, std::min(block, count - i * block));
      }
    });
  });
  double total = 0;
  for (Index i = 0; i < blocks; i++) total += partial[i];
  *sum.as<double>() += total;
}

}  // namespace escalera::cpu
