// What the .cpp files start on the device: one function per kernel or chain of kernels. They check nothing and wait for
// nothing.
// defines: rms_norm_*(), rope_*(), swiglu_*(), embedding_*(), cross_entropy_*(), add(), scale(), convert(), squared_norm(),
//          add_sum(), adamw(), sgd()
//
// T is float or __nv_bfloat16. All pointers are device memory; matrices are row-major without gaps between rows; formulas
// and rules about overlap are those of ops.h. Aligned operands are moved 16 bytes at a time; any alignment is right. The
// order of every sum follows from sizes and alignment alone, so it is the same on every device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "common/ops/adamw_factors.h"

namespace escalera::cuda {

// ---- norm.cu, norm_backward.cu ------------------------------------------------------------------------------------------

/// With `delta`: sum = x + delta is stored, and what was stored is normalised; without (null), x is, and sum is not
/// touched.
template <class T>
void rms_norm_forward(const T* x, const T* delta, const T* w, float epsilon, T* sum, T* y, float* rstd, int rows,
                      int columns, cudaStream_t stream);
template <class T>
void rms_norm_apply(const T* x, const float* rstd, const T* w, T* y, int rows, int columns, cudaStream_t stream);

/// Floats of scratch that rms_norm_backward wants.
long long rms_norm_backward_scratch(int rows, int columns);
/// `residual` may be null.
template <class T>
void rms_norm_backward(const T* dy, const T* x, const float* rstd, const T* w, const T* residual, T* dx, float* dw,
                       int rows, int columns, float* scratch, cudaStream_t stream);

// ---- rope.cu ------------------------------------------------------------------------------------------------------------

/// How the columns of qkv are divided, and where each row stands: at positions[row % position_count] of the table.
struct RopeCall {
  int rows, heads, kv_heads, head_size;
  const float* table;
  const int* positions;
  int position_count;
};
template <class T>
void rope_split_forward(const RopeCall& call, const T* qkv, T* q, T* k, T* v, cudaStream_t stream);
template <class T>
void rope_merge_backward(const RopeCall& call, const T* dq, const T* dk, const T* dv, T* d_qkv, cudaStream_t stream);

// ---- swiglu.cu ----------------------------------------------------------------------------------------------------------

/// `columns` are those of y.
template <class T>
void swiglu_forward(const T* gate_up, T* y, int rows, int columns, cudaStream_t stream);
/// `y` may be null.
template <class T>
void swiglu_backward(const T* gate_up, const T* dy, T* d_gate_up, T* y, int rows, int columns, cudaStream_t stream);

// ---- embedding.cu -------------------------------------------------------------------------------------------------------

/// The table holds `table_rows` rows from `first_row` on.
template <class T>
void embedding_forward(const int* tokens, const T* table, int first_row, int table_rows, T* y, int rows, int columns,
                       cudaStream_t stream);

/// Consecutive terms of one row's sum, aligned so that it is read at once. Where a row has several segments, each puts its
/// sum into a slot of scratch (a row of floats), and the row has a total that adds the slots; otherwise `slot` is -1 and
/// the segment adds to the gradient itself.
struct alignas(16) EmbeddingSegment {
  int row;    ///< of the gradient
  int begin;  ///< of a segment: its first term in `order`; of a total: its first slot
  int count;  ///< terms or slots
  int slot;   ///< for the sum of a segment, or -1
};
/// d_table[segment.row] += dy[order[i]] for all i of each segment, in this order; then the totals. See embedding.cpp.
template <class T>
void embedding_backward(const T* dy, const int* order, const EmbeddingSegment* segments, int segment_count,
                        const EmbeddingSegment* totals, int total_count, float* d_table, float* slots, int columns,
                        cudaStream_t stream);

// ---- loss.cu ------------------------------------------------------------------------------------------------------------

/// A slice of the logits; its columns stand for vocabulary entries first, first + 1, ..., of which `valid` are real.
struct LogitShape {
  int rows, columns, valid, first;
};
template <class T>
void cross_entropy_row_max(const LogitShape& shape, const T* logits, float* row_max, cudaStream_t stream);
template <class T>
void cross_entropy_row_sums(const LogitShape& shape, const T* logits, const int* targets, const float* row_max, float* sums,
                            cudaStream_t stream);
template <class T>
void cross_entropy_gradient(const LogitShape& shape, T* logits, const int* targets, const float* row_max, const float* sums,
                            float scale, cudaStream_t stream);
/// loss += factor * (sum of token losses). Scratch: cross_entropy_loss_scratch() doubles.
void cross_entropy_loss(const int* targets, const float* sums, int rows, double factor, double* loss, double* scratch,
                        cudaStream_t stream);
long long cross_entropy_loss_scratch(int rows);

// ---- elementwise.cu -----------------------------------------------------------------------------------------------------

template <class T>
void add(const T* a, const T* b, T* out, long long count, cudaStream_t stream);
template <class T>
void scale(T* x, float factor, long long count, cudaStream_t stream);
/// Between any two of float, double and __nv_bfloat16 that differ.
template <class From, class To>
void convert(const From* source, To* destination, long long count, cudaStream_t stream);
/// sum += sum of x^2, in double throughout. Scratch: squared_norm_scratch() doubles.
template <class T>
void squared_norm(const T* x, long long count, double* sum, double* scratch, cudaStream_t stream);
long long squared_norm_scratch(long long count);
/// result += factor * (sum of terms), on one block.
void add_sum(const double* terms, long long count, double factor, double* result, cudaStream_t stream);

// ---- optimizer.cu -------------------------------------------------------------------------------------------------------

/// T is the type of `weights`, which may be null.
template <class T>
void adamw(float* master, const float* gradient, float* first_moment, float* second_moment, T* weights, long long count,
           const AdamWFactors<float>& factors, cudaStream_t stream);
template <class T>
void sgd(float* master, const float* gradient, T* weights, long long count, float decay, float step_size,
         cudaStream_t stream);

}  // namespace escalera::cuda
