// The cuBLASLt stand-in: products in all layouts and types, and what it refuses.
#include <cublasLt.h>
#include <cuda_bf16.h>

#include <cmath>
#include <cstring>
#include <optional>

#include <simulated_cuda/counters.h>

#include "tests/simulated_cuda/tests/support.h"

namespace simulated_cuda {
namespace {

template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Owned {
  ~Owned() { destroy(handle); }
  operator Handle() const { return handle; }
  Handle handle = nullptr;
};
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

#define LT_OK(call) EXPECT_EQ(call, CUBLAS_STATUS_SUCCESS)

/// One product d = alpha op(a) op(b) + beta c with everything that describes it; tests change what they want before run().
struct Product {
  std::size_t m = 5, n = 7, k = 9, batches = 1;
  bool transpose_a = false, transpose_b = false, by_rows = false;
  cudaDataType_t in = CUDA_R_32F, out = CUDA_R_32F;
  float alpha = 1.0f, beta = 0.0f;
  std::size_t extra = 3;  // of the leading dimensions
  std::uint32_t alignment = 4;
  std::size_t offset = 0;  // of a in its memory
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  std::size_t workspace = 4096;

  std::vector<float> a, b, c, d;  // as stored, converted to float
  std::size_t lda = 0, ldb = 0, ldd = 0;

  std::size_t a_rows() const { return transpose_a ? k : m; }
  std::size_t a_columns() const { return transpose_a ? m : k; }
  std::size_t b_rows() const { return transpose_b ? n : k; }
  std::size_t b_columns() const { return transpose_b ? k : n; }

  float a_at(std::size_t batch, std::size_t i, std::size_t p) const {
    return at(a, batch, transpose_a ? p : i, transpose_a ? i : p, lda, a_size());
  }
  float b_at(std::size_t batch, std::size_t p, std::size_t j) const {
    return at(b, batch, transpose_b ? j : p, transpose_b ? p : j, ldb, b_size());
  }
  float c_at(std::size_t batch, std::size_t i, std::size_t j) const { return at(c, batch, i, j, ldd, d_size()); }
  float d_at(std::size_t batch, std::size_t i, std::size_t j) const { return at(d, batch, i, j, ldd, d_size()); }
  float at(const std::vector<float>& x, std::size_t batch, std::size_t i, std::size_t j, std::size_t ld,
           std::size_t size) const {
    return x[batch * size + (by_rows ? i * ld + j : j * ld + i)];
  }
  std::size_t a_size() const { return lda * (by_rows ? a_rows() : a_columns()); }
  std::size_t b_size() const { return ldb * (by_rows ? b_rows() : b_columns()); }
  std::size_t d_size() const { return ldd * (by_rows ? m : n); }

  cublasStatus_t run() {
    lda = (by_rows ? a_columns() : a_rows()) + extra;
    ldb = (by_rows ? b_columns() : b_rows()) + extra;
    ldd = (by_rows ? n : m) + extra;
    a = random_floats(a_size() * batches, 1);
    b = random_floats(b_size() * batches, 2);
    c = random_floats(d_size() * batches, 3);
    d = c;
    cublasStatus_t status;
    if (in == CUDA_R_32F) {
      status = run_with<float, float>();
    } else if (out == CUDA_R_32F) {
      status = run_with<__nv_bfloat16, float>();
    } else {
      status = run_with<__nv_bfloat16, __nv_bfloat16>();
    }
    return status;
  }

  /// Compares with sums in double precision. The rest of d, between columns, has to be as it was.
  void check(double tolerance) const {
    for (std::size_t batch = 0; batch < batches; ++batch) {
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          double sum = 0;
          for (std::size_t p = 0; p < k; ++p)
            sum += static_cast<double>(a_at(batch, i, p)) * static_cast<double>(b_at(batch, p, j));
          const double expected =
              static_cast<double>(alpha) * sum + static_cast<double>(beta) * static_cast<double>(c_at(batch, i, j));
          EXPECT_NEAR(d_at(batch, i, j), expected, tolerance * std::max(1.0, std::abs(expected))) << i << ' ' << j;
        }
      }
    }
    const std::size_t lines = by_rows ? m : n, length = by_rows ? n : m;
    for (std::size_t line = 0; line < lines; ++line) {
      for (std::size_t i = length; i < ldd; ++i) EXPECT_EQ(d[line * ldd + i], c[line * ldd + i]);
    }
  }

 private:
  template <class T>
  static std::vector<T> to(std::vector<float>& x) {
    std::vector<T> result;
    for (float& value : x) {
      result.push_back(static_cast<T>(value));
      value = static_cast<float>(result.back());  // rounded, if T rounds
    }
    return result;
  }

  template <class In, class Out>
  cublasStatus_t run_with() {
    cublasLtHandle_t handle = nullptr;
    LT_OK(cublasLtCreate(&handle));
    Description description;
    Layout layout_a, layout_b, layout_d;
    LT_OK(cublasLtMatmulDescCreate(&description.handle, compute, CUDA_R_32F));
    const cublasOperation_t operations[2] = {transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                                             transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N};
    LT_OK(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &operations[0], sizeof operations[0]));
    LT_OK(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSB, &operations[1], sizeof operations[1]));
    make(layout_a, in, a_rows(), a_columns(), lda, a_size());
    make(layout_b, in, b_rows(), b_columns(), ldb, b_size());
    make(layout_d, out, m, n, ldd, d_size());

    std::vector<In> host_a(offset);
    const std::vector<In> values_a = to<In>(a);
    host_a.insert(host_a.end(), values_a.begin(), values_a.end());
    DeviceArray<In> device_a(host_a), device_b(to<In>(b));
    DeviceArray<Out> device_d(to<Out>(c));
    DeviceArray<char> space(4096);
    d = c;

    const std::optional<cublasLtMatmulAlgo_t> algorithm = choose(handle, description, layout_a, layout_b, layout_d);
    if (!algorithm) {
      LT_OK(cublasLtDestroy(handle));
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    const cublasStatus_t status =
        cublasLtMatmul(handle, description, &alpha, device_a.data() + offset, layout_a, device_b.data(), layout_b, &beta,
                       device_d.data(), layout_d, device_d.data(), layout_d, &*algorithm, space.data(), workspace, nullptr);
    const std::vector<Out> result = device_d.values();
    for (std::size_t i = 0; i < result.size(); ++i) d[i] = static_cast<float>(result[i]);
    LT_OK(cublasLtDestroy(handle));
    return status;
  }

  void make(Layout& layout, cudaDataType_t type, std::size_t rows, std::size_t columns, std::size_t ld,
            std::size_t size) const {
    LT_OK(cublasLtMatrixLayoutCreate(&layout.handle, type, rows, columns, static_cast<std::int64_t>(ld)));
    const cublasLtOrder_t order = by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    LT_OK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
    const auto count = static_cast<std::int32_t>(batches);
    const auto stride = static_cast<std::int64_t>(size);
    LT_OK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    LT_OK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
  }

  std::optional<cublasLtMatmulAlgo_t> choose(cublasLtHandle_t handle, const Description& description, const Layout& layout_a,
                                             const Layout& layout_b, const Layout& layout_d) const {
    Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    LT_OK(cublasLtMatmulPreferenceCreate(&preference.handle));
    const std::uint64_t space = 1 << 20;
    LT_OK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space, sizeof space));
    for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                 CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      LT_OK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof alignment));
    }
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, description, layout_a, layout_b, layout_d, layout_d,
                                                                 preference, 1, &result, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) return std::nullopt;
    return result.algo;
  }
};

TEST(MatrixProduct, IsRightInAllLayouts) {
  for (int layout = 0; layout < 8; ++layout) {
    Product product;
    product.transpose_a = layout & 1;
    product.transpose_b = layout & 2;
    product.by_rows = layout & 4;
    product.alpha = 0.5f;
    product.beta = layout & 1 ? 2.0f : 0.0f;
    product.batches = 2;
    LT_OK(product.run());
    product.check(1e-6);
  }
}

TEST(MatrixProduct, IsRightInSizesBeyondOneTile) {
  for (const std::size_t m : {1u, 16u, 33u}) {
    Product product;
    product.m = m;
    product.n = 19;
    product.k = 600;
    product.transpose_b = true;
    LT_OK(product.run());
    product.check(1e-5);
  }
}

TEST(MatrixProduct, AccumulatesBfloat16InFloat32) {
  Product product;
  product.in = CUDA_R_16BF;
  product.k = 500;
  product.alignment = 2;
  product.beta = 1.0f;
  LT_OK(product.run());
  product.check(1e-5);
  product.out = CUDA_R_16BF;
  LT_OK(product.run());
  product.check(1.0 / 256);  // rounded once
}

TEST(MatrixProduct, OverwritesWhereBetaIsZero) {
  Product product;
  LT_OK(product.run());
  for (const float value : product.d) EXPECT_FALSE(std::isnan(value));
}

TEST(MatrixProduct, IsCounted) {
  const unsigned long before = simulated_cuda_counters().matrix_products;
  LT_OK(Product().run());
  EXPECT_EQ(simulated_cuda_counters().matrix_products, before + 1);
}

TEST(MatrixProduct, RefusesWhatDoesNotFit) {
  Product mixed;
  mixed.in = CUDA_R_32F;
  mixed.out = CUDA_R_16BF;
  EXPECT_EQ(mixed.run(), CUBLAS_STATUS_NOT_SUPPORTED);
  Product cramped;
  cramped.workspace = 16;
  EXPECT_EQ(cramped.run(), CUBLAS_STATUS_INVALID_VALUE);
}

TEST(MatrixProductFault, IsReported) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  Product tensor_float;
  tensor_float.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  EXPECT_DEATH(tensor_float.run(), "CUBLAS_COMPUTE_32F_FAST_TF32 rounds inputs to TF32");
  Product misaligned;
  misaligned.alignment = 16;
  misaligned.offset = 1;
  EXPECT_DEATH(misaligned.run(), "A, .*is not aligned to the 16 bytes that were promised to the heuristic");
}

}  // namespace
}  // namespace simulated_cuda
