// The CPU backend. Each operation checks its arguments, splits rows or elements among the threads of the rank, and hands each
// part to a kernel (kernels.h), a matrix product (gemm.h) or attention (attention.h).
// defines: CpuOps, cost_of_exp
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/core/thread_pool.h"
#include "common/ops/cpu/gemm.h"
#include "common/ops/cpu/kernels.h"
#include "common/ops/ops.h"

namespace escalera::cpu {

/// For ThreadPool::for_ranges: an exponential costs about as much as loading and storing this many elements.
inline constexpr Index cost_of_exp = 8;

/// See Ops for what each operation means. The object belongs to one rank; many may live in one process. Results do not
/// depend on the number of threads, except that matrix products may round differently where they are cut differently.
class CpuOps final : public Ops {
 public:
  explicit CpuOps(const CpuSettings& settings);
  /// With kernels of a given instruction set, for tests.
  CpuOps(const CpuSettings& settings, const Kernels& kernels);

  Device& device() override { return device_; }
  std::string description() const override;

  // linear.cpp
  void linear_forward(const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) override;
  void linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate) override;
  void linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw) override;

  // embedding.cpp
  void embedding_forward(std::span<const std::int32_t> tokens, const Tensor& table, Index first_row,
                         const Tensor& y) override;
  void embedding_backward(std::span<const std::int32_t> tokens, const Tensor& dy, Index first_row,
                          const Tensor& d_table) override;

  // norm.cpp
  void rms_norm_forward(const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd) override;
  void add_rms_norm_forward(const Tensor& x, const Tensor& delta, const Tensor& w, double epsilon, const Tensor& sum,
                            const Tensor& y, const Tensor& rstd) override;
  void rms_norm_apply(const Tensor& x, const Tensor& rstd, const Tensor& w, const Tensor& y) override;
  void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& w, const Tensor& residual,
                         const Tensor& dx, const Tensor& dw) override;

  // rope.cpp
  void rope_split_forward(const Tensor& qkv, const Tensor& table, std::span<const std::int32_t> positions,
                          Index head_size, const Tensor& q, const Tensor& k, const Tensor& v) override;
  void rope_merge_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& table,
                           std::span<const std::int32_t> positions, Index head_size, const Tensor& d_qkv) override;

  // cpu_ops.cpp
  void attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& out, const Tensor& lse) override;
  void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& out, const Tensor& lse, const Tensor& d_out, const Tensor& dq, const Tensor& dk,
                          const Tensor& dv) override;

  // swiglu.cpp
  void swiglu_forward(const Tensor& gate_up, const Tensor& y) override;
  void swiglu_backward(const Tensor& gate_up, const Tensor& dy, const Tensor& d_gate_up, const Tensor& y) override;

  // loss.cpp
  void cross_entropy_row_max(const Tensor& logits, Index valid_columns, const Tensor& row_max) override;
  void cross_entropy_row_sums(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                              Index first_column, const Tensor& row_max, const Tensor& sums) override;
  void cross_entropy_backward(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                              Index first_column, const Tensor& row_max, const Tensor& sums, double scale,
                              double loss_share, const Tensor& loss) override;

  // elementwise.cpp
  void add(const Tensor& a, const Tensor& b, const Tensor& out) override;
  void scale(const Tensor& x, double factor) override;
  void convert(const Tensor& source, const Tensor& destination) override;
  void squared_norm(const Tensor& x, const Tensor& sum) override;

  // optimizer.cpp
  void adamw(const Tensor& master, const Tensor& gradient, const Tensor& first_moment, const Tensor& second_moment,
             const Tensor& weights, const AdamWSettings& settings) override;
  void sgd(const Tensor& master, const Tensor& gradient, const Tensor& weights, double learning_rate, double weight_decay,
           double gradient_scale) override;

 private:
  /// The kernels for activations of type T.
  template <class T>
  const auto& table() const {
    if constexpr (std::is_same_v<T, float>) return kernels_.float32;
    if constexpr (std::is_same_v<T, double>) return kernels_.float64;
    if constexpr (std::is_same_v<T, bfloat16>) return kernels_.bfloat16;
  }

  /// Calls body(begin, end, thread) for parts of [0, count). The reference keeps std::function from allocating.
  template <class Body>
  void parallel(Index count, Index cost_per_item, Body&& body) {
    pool_.for_ranges(count, cost_per_item, std::ref(body));
  }

  /// Splits one matrix product among the threads.
  void multiply(const Product& product);

  /// `count` elements of scratch for the operation that is running; the next call may return the same memory.
  template <class T>
  T* scratch(Index count) {
    if (scratch_.empty() || scratch_.bytes() < count * static_cast<Index>(sizeof(T))) {
      scratch_ = Tensor();  // gives the old one back first
      scratch_ = device_.empty(1, count, DTypeOf<T>::value, MemoryCategory::workspace);
    }
    return reinterpret_cast<T*>(scratch_.data());
  }

  HostDevice device_;
  ThreadPool pool_;
  const Kernels& kernels_;
  std::vector<std::unique_ptr<Gemm>> gemms_;  // one per thread
  bool onednn_;
  Tensor scratch_;
};

}  // namespace escalera::cpu
