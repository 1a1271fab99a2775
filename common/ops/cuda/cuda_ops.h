// The CUDA backend. Each operation checks its arguments, uploads what comes from the host, and gives kernels (kernels.h), a
// matrix product (gemm.h) or attention (attention/attention.h) to the device's compute stream. Nothing waits for the
// device, and nothing is allocated by the system once the arena has grown to what a step needs.
// defines: CudaOps, make_ops()
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/core/cuda/cuda_device.h"
#include "common/ops/cuda/embedding_plan.h"
#include "common/ops/cuda/gemm.h"
#include "common/ops/ops.h"

namespace escalera::cuda {

/// See Ops for what each operation means. Float32 and bfloat16; float64 is refused by all but convert(). The object belongs
/// to one rank, and to the thread that made it unless others call its device's use() first. Sums have the same order on
/// every device, except those of matrix products, whose order cuBLASLt chooses by shape and device.
class CudaOps final : public Ops {
 public:
  explicit CudaOps(int ordinal);

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
  void rope_split_forward(const Tensor& qkv, const Tensor& table, std::span<const std::int32_t> positions, Index head_size,
                          const Tensor& q, const Tensor& k, const Tensor& v) override;
  void rope_merge_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& table,
                           std::span<const std::int32_t> positions, Index head_size, const Tensor& d_qkv) override;

  // attention.cpp
  void attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                         const Tensor& lse) override;
  void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& lse, const Tensor& d_out, const Tensor& dq, const Tensor& dk,
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
  /// `count` elements of scratch for the operation that is being given to the stream. The next call may return the same
  /// memory: the stream runs one operation after the other.
  template <class T>
  T* scratch(Index count);

  /// A list that many calls in a row are given again, as positions are by every layer of a model: it is uploaded when it
  /// changes.
  class RepeatedList {
   public:
    /// A copy in device memory, for the work that is given to the compute stream before the next call.
    const std::int32_t* on_device(CudaDevice& device, std::span<const std::int32_t> values);

   private:
    std::vector<std::int32_t> values_;
    Tensor copy_;
  };

  cudaStream_t stream() const { return device_.stream(); }

  CudaDevice device_;
  Gemm gemm_;
  EmbeddingPlan embedding_plan_;
  RepeatedList positions_, targets_;
  Tensor scratch_;
};

/// The CUDA backend on device `ordinal`, with its own CudaDevice.
std::unique_ptr<Ops> make_ops(int ordinal);

template <class T>
T* CudaOps::scratch(Index count) {
  const Index bytes = count * static_cast<Index>(sizeof(T));
  if (scratch_.empty() || scratch_.bytes() < bytes) {
    scratch_ = Tensor();  // gives the old one back first
    scratch_ = device_.empty(1, (bytes + 3) / 4, DType::float32, MemoryCategory::workspace);
  }
  return static_cast<T*>(scratch_.data());
}

}  // namespace escalera::cuda
