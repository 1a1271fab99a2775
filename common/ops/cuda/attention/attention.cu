// What is behind attention.h: the choice of a kernel, and the row dot, which backward starts with.
#include "common/ops/cuda/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "common/core/cuda/launch.h"
#include "common/ops/cuda/attention/attention_launch.h"
#include "common/ops/cuda/vector.h"

namespace escalera::cuda {
namespace attention {

// ---- row dot ------------------------------------------------------------------------------------------------------

constexpr int row_dot_threads = 128;

/// D [batch, heads, query_length]. Equivalent to
///   row_dot[b][h][i] = sum over c of d_out[b][i][h][c] * out[b][i][h][c]
/// `lanes` threads, a power of two up to 32, share a row; each reads COUNT elements at a time. Rows are taken in the order
/// of the results, so that these are written next to each other.
template <class Element, int COUNT>
__global__ void __launch_bounds__(row_dot_threads)
    row_dot_kernel(const AttentionArguments<Element> a, float* row_dot, int lanes) {
  const long long rows = static_cast<long long>(a.batch) * a.heads * a.query_length;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % lanes;
  const long long row = static_cast<long long>(blockIdx.x) * (row_dot_threads / lanes) + thread / lanes;
  float sum = 0.f;
  if (row < rows) {
    const long long head = row / a.query_length, query = row % a.query_length, batch = head / a.heads;
    const long long begin = ((batch * a.query_length + query) * a.heads + head % a.heads) * a.head_size;
    for (int column = lane * COUNT; column < a.head_size; column += lanes * COUNT) {
      const Floats<COUNT> x = load<COUNT>(a.d_out + begin + column), y = load<COUNT>(a.out + begin + column);
#pragma unroll
      for (int i = 0; i < COUNT; ++i) sum = fmaf(x[i], y[i], sum);
    }
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (row < rows && lane == 0) row_dot[row] = sum;
}

template <class Element, int COUNT>
void launch_row_dot(const AttentionArguments<Element>& a, float* row_dot, cudaStream_t stream) {
  int lanes = 1;
  while (lanes < 32 && lanes * COUNT < a.head_size) lanes *= 2;
  const long long rows = static_cast<long long>(a.batch) * a.heads * a.query_length;
  launch(stream, dim3(blocks_for(rows, row_dot_threads / lanes)), dim3(row_dot_threads), 0,
         row_dot_kernel<Element, COUNT>, a, row_dot, lanes);
}

template <class Element>
void compute_row_dot(const AttentionArguments<Element>& a, float* row_dot, cudaStream_t stream) {
  constexpr int wide = access_bytes / static_cast<int>(sizeof(Element));
  if (a.copy_bytes == access_bytes) {
    launch_row_dot<Element, wide>(a, row_dot, stream);
  } else {
    launch_row_dot<Element, 1>(a, row_dot, stream);
  }
}

// ---- arguments ----------------------------------------------------------------------------------------------------

template <class Element>
AttentionArguments<Element> make_arguments(const AttentionProblem& p, const Element* q, const Element* k,
                                           const Element* v) {
  const bool valid = attention_supports(p.head_size) && p.batch >= 0 && p.query_length >= 0 &&
                     p.key_length >= 0 && p.kv_heads > 0 && p.heads > 0 && p.heads % p.kv_heads == 0 &&
                     p.heads * static_cast<long long>(p.head_size) < (1 << 24);  // load_tile() counts on this
  CUDA_CHECK(valid ? cudaSuccess : cudaErrorInvalidValue);
  AttentionArguments<Element> a{};
  a.batch = p.batch;
  a.query_length = p.query_length;
  a.key_length = p.key_length;
  a.heads = p.heads;
  a.kv_heads = p.kv_heads;
  a.head_size = p.head_size;
  // From key_length on, every query sees every key, and from -query_length down none sees any.
  const long long diagonal = p.causal ? p.query_offset - p.key_offset : p.key_length;
  a.diagonal = static_cast<int>(
      std::clamp(diagonal, -static_cast<long long>(p.query_length), static_cast<long long>(p.key_length)));
  const double scale = 1 / std::sqrt(static_cast<double>(p.head_size));
  a.scale = static_cast<float>(scale);
  a.scale_log2 = static_cast<float>(scale / std::log(2.0));
  a.q = q;
  a.k = k;
  a.v = v;
  return a;
}

/// What all rows of `tensors` are aligned to: 16 bytes, 4 bytes or the size of an element.
template <class Element>
int common_alignment(int head_size, std::initializer_list<const Element*> tensors) {
  std::uintptr_t bits = static_cast<std::uintptr_t>(head_size) * sizeof(Element);
  for (const Element* tensor : tensors) bits |= reinterpret_cast<std::uintptr_t>(tensor);
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : static_cast<int>(sizeof(Element));
}

// ---- which kernel -------------------------------------------------------------------------------------------------

void choose_forward(const AttentionArguments<__nv_bfloat16>& a, cudaStream_t stream) {
  if (a.head_size <= 16) return launch_forward<16>(a, stream);
  if (a.head_size <= 32) return launch_forward<32>(a, stream);
  if (a.head_size <= 64) return launch_forward<64>(a, stream);
  if (a.head_size <= 96) return launch_forward<96>(a, stream);
  if (a.head_size <= 128) return launch_forward<128>(a, stream);
  launch_forward<256>(a, stream);
}

void choose_backward(const AttentionArguments<__nv_bfloat16>& a, cudaStream_t stream) {
  if (a.head_size <= 16) return launch_backward<16>(a, stream);
  if (a.head_size <= 32) return launch_backward<32>(a, stream);
  if (a.head_size <= 64) return launch_backward<64>(a, stream);
  if (a.head_size <= 96) return launch_backward<96>(a, stream);
  if (a.head_size <= 128) return launch_backward<128>(a, stream);
  launch_backward<256>(a, stream);
}

void choose_forward(const AttentionArguments<float>& a, cudaStream_t stream) {
  if (a.head_size <= 64) return launch_float_forward<64>(a, stream);
  if (a.head_size <= 128) return launch_float_forward<128>(a, stream);
  launch_float_forward<256>(a, stream);
}

void choose_backward(const AttentionArguments<float>& a, cudaStream_t stream) {
  if (a.head_size <= 64) return launch_float_backward<64>(a, stream);
  if (a.head_size <= 128) return launch_float_backward<128>(a, stream);
  launch_float_backward<256>(a, stream);
}

template <class Element>
void forward(const AttentionProblem& problem, const Element* q, const Element* k, const Element* v,
             Element* out, float* lse, cudaStream_t stream) {
  AttentionArguments<Element> a = make_arguments(problem, q, k, v);
  a.out_written = out;
  a.lse_written = lse;
  a.copy_bytes = common_alignment<Element>(problem.head_size, {q, k, v, out});
  choose_forward(a, stream);
}

template <class Element>
void backward(const AttentionProblem& problem, const Element* q, const Element* k, const Element* v,
              const Element* out, const float* lse, const Element* d_out, float* row_dot, Element* dq,
              Element* dk, Element* dv, cudaStream_t stream) {
  AttentionArguments<Element> a = make_arguments(problem, q, k, v);
  a.out = out;
  a.d_out = d_out;
  a.lse = lse;
  a.dq = dq;
  a.dk = dk;
  a.dv = dv;
  a.copy_bytes = common_alignment<Element>(problem.head_size, {q, k, v, out, d_out, dq, dk, dv});
  compute_row_dot(a, row_dot, stream);
  a.row_dot = row_dot;
  choose_backward(a, stream);
}

}  // namespace attention

bool attention_supports(int head_size) {
  return head_size >= 1 && head_size <= largest_head_size;
}

void attention_forward(const AttentionProblem& problem, const __nv_bfloat16* q, const __nv_bfloat16* k,
                       const __nv_bfloat16* v, __nv_bfloat16* out, float* lse, cudaStream_t stream) {
  attention::forward(problem, q, k, v, out, lse, stream);
}

void attention_forward(const AttentionProblem& problem, const float* q, const float* k, const float* v,
                       float* out, float* lse, cudaStream_t stream) {
  attention::forward(problem, q, k, v, out, lse, stream);
}

void attention_backward(const AttentionProblem& problem, const __nv_bfloat16* q, const __nv_bfloat16* k,
                        const __nv_bfloat16* v, const __nv_bfloat16* out, const float* lse,
                        const __nv_bfloat16* d_out, float* row_dot, __nv_bfloat16* dq, __nv_bfloat16* dk,
                        __nv_bfloat16* dv, cudaStream_t stream) {
  attention::backward(problem, q, k, v, out, lse, d_out, row_dot, dq, dk, dv, stream);
}

void attention_backward(const AttentionProblem& problem, const float* q, const float* k, const float* v,
                        const float* out, const float* lse, const float* d_out, float* row_dot, float* dq,
                        float* dk, float* dv, cudaStream_t stream) {
  attention::backward(problem, q, k, v, out, lse, d_out, row_dot, dq, dk, dv, stream);
}

}  // namespace escalera::cuda
