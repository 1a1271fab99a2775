// Token embedding: copies of rows, and sums of rows in a fixed order.
#include "common/core/cuda/launch.h"
#include "common/ops/cuda/kernels.h"
#include "common/ops/cuda/row_blocks.h"
#include "common/ops/cuda/vector.h"

namespace escalera::cuda {
namespace {

constexpr unsigned threads_per_block = 256;

/// One block per token.
template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_per_block)
    embedding_forward_kernel(const int* __restrict__ tokens, const T* __restrict__ table, int first_row, int table_rows,
                             T* __restrict__ y, int columns) {
  const long long row = static_cast<long long>(tokens[blockIdx.x]) - first_row;
  const bool held = row >= 0 && row < table_rows;
  const T* from = table + (held ? row : 0) * columns;
  T* to = y + static_cast<long long>(blockIdx.x) * columns;
  for_all_packs<WIDTH>(columns, [&](int column) {
    Pack<T, WIDTH> pack = narrow<T>(Floats<WIDTH>{});
    if (held) pack = load_pack<WIDTH>(from + column);
    store_pack(to + column, pack);
  });
}

/// One block per segment and part of its columns: the terms of `source` are added in order, onto the gradient or, where the
/// segment has a slot, onto zero. `order` may be null: then terms follow each other.
template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_per_block)
    add_segments_kernel(const T* __restrict__ source, const int* __restrict__ order,
                        const EmbeddingSegment* __restrict__ segments, float* __restrict__ d_table,
                        float* __restrict__ slots, int columns) {
  const EmbeddingSegment segment = segments[blockIdx.x];
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * WIDTH;
  if (column >= columns) return;
  float* to = (segment.slot < 0 ? d_table + static_cast<long long>(segment.row) * columns
                                : slots + static_cast<long long>(segment.slot) * columns) +
              column;
  Floats<WIDTH> sum{};
  if (segment.slot < 0) sum = load<WIDTH>(to);
  source += column;
#pragma unroll 4
  for (int i = segment.begin; i < segment.begin + segment.count; i++) {
    const Floats<WIDTH> term = load<WIDTH>(source + static_cast<long long>(order ? order[i] : i) * columns);
#pragma unroll
    for (int j = 0; j < WIDTH; j++) sum[j] += term[j];
  }
  store(to, sum);
}

template <class T>
void add_segments(const T* source, const int* order, const EmbeddingSegment* segments, int count, float* d_table,
                  float* slots, int columns, cudaStream_t stream) {
  // Most tokens are rare: what moves is the gradient, read and written in float32, so its packs have 16 bytes.
  constexpr int wide = access_bytes / sizeof(float);
  const bool is_wide = columns % wide == 0 && aligned(source, wide * sizeof(T)) && aligned(d_table) && aligned(slots);
  choose_width<wide>(is_wide, [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    const unsigned parts = blocks_for(columns, static_cast<long long>(threads_per_block) * WIDTH);
    launch(stream, dim3(static_cast<unsigned>(count), parts), threads_per_block, 0, add_segments_kernel<T, WIDTH>, source,
           order, segments, d_table, slots, columns);
  });
}

}  // namespace

template <class T>
void embedding_forward(const int* tokens, const T* table, int first_row, int table_rows, T* y, int rows, int columns,
                       cudaStream_t stream) {
  constexpr int wide = access_bytes / sizeof(T);
  choose_width<wide>(columns % wide == 0 && aligned(table) && aligned(y), [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    launch(stream, static_cast<unsigned>(rows), row_threads(columns, WIDTH, threads_per_block), 0,
           embedding_forward_kernel<T, WIDTH>, tokens, table, first_row, table_rows, y, columns);
  });
}

template <class T>
void embedding_backward(const T* dy, const int* order, const EmbeddingSegment* segments, int segment_count,
                        const EmbeddingSegment* totals, int total_count, float* d_table, float* slots, int columns,
                        cudaStream_t stream) {
  add_segments(dy, order, segments, segment_count, d_table, slots, columns, stream);
  add_segments(static_cast<const float*>(slots), nullptr, totals, total_count, d_table, nullptr, columns, stream);
}

template void embedding_forward(const int*, const float*, int, int, float*, int, int, cudaStream_t);
template void embedding_forward(const int*, const bf16*, int, int, bf16*, int, int, cudaStream_t);
template void embedding_backward(const float*, const int*, const EmbeddingSegment*, int, const EmbeddingSegment*, int,
                                 float*, float*, int, cudaStream_t);
template void embedding_backward(const bf16*, const int*, const EmbeddingSegment*, int, const EmbeddingSegment*, int,
                                 float*, float*, int, cudaStream_t);

}  // namespace escalera::cuda
