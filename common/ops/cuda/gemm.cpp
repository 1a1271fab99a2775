#include "common/ops/cuda/gemm.h"

#include <algorithm>
#include <bit>
#include <initializer_list>

namespace escalera::cuda {
namespace {

[[noreturn]] void throw_cublas_error(cublasStatus_t status, const char* expression, const std::string& what,
                                     const char* file, int line) {
  int ordinal = -1;
  cudaGetDevice(&ordinal);
  fail("CUDA device {}: cuBLASLt says {} for {}, from {} at {}:{}", ordinal, cublasLtGetStatusString(status), what,
       expression, file, line);
}

/// Evaluates `expression` once and throws Error unless it succeeds. `what`, a string, is worked out only then.
#define CUBLAS_CHECK(expression, what)                                                               \
  do {                                                                                               \
    if (const cublasStatus_t status_of_call = (expression); status_of_call != CUBLAS_STATUS_SUCCESS) \
      throw_cublas_error(status_of_call, #expression, what, __FILE__, __LINE__);                     \
  } while (false)

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::float32: return CUDA_R_32F;
    case DType::bfloat16: return CUDA_R_16BF;
    case DType::float64: break;
  }
  fail("linear layers: the CUDA backend computes in float32 and bfloat16, not in {}", to_string(dtype));
}

/// The largest power of two that divides an address, up to the 256 bytes that cuBLASLt asks about.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return 1u << std::min(address == 0 ? 8 : std::countr_zero(address), 8);
}

/// cuBLASLt's recommendation: Hopper's algorithms want more.
Index workspace_bytes(int ordinal) {
  int major = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
  return Index{major >= 9 ? 64 : 32} << 20;
}

}  // namespace

std::string MatrixProduct::description() const {
  const auto shape = [](Index rows, Index columns, bool transposed, Index stride) {
    const std::string stored = fmt::format("[{}, {}]", transposed ? columns : rows, transposed ? rows : columns);
    return stored + (transposed ? "^T" : "") +
           (stride == (transposed ? rows : columns) ? "" : fmt::format(" of rows {} apart", stride));
  };
  return fmt::format("{} x {}, {} to {}{}", shape(m, k, a_transposed, a_stride), shape(k, n, b_transposed, b_stride),
                     to_string(type), to_string(c_type), accumulate ? ", accumulated" : "");
}

/// What cuBLASLt is given for every product of one kind. It speaks of matrices whose columns are contiguous. A row-major
/// matrix, read so, is its own transpose; and c^T = b^T a^T: so what it calls A is our b, its B is our a, and its m and n
/// change places.
struct Gemm::Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (c) cublasLtMatrixLayoutDestroy(c);
    if (b) cublasLtMatrixLayoutDestroy(b);
    if (a) cublasLtMatrixLayoutDestroy(a);
    if (operation) cublasLtMatmulDescDestroy(operation);
  }
};

std::size_t Gemm::Hash::operator()(const Key& key) const {
  std::size_t hash = 0;
  const auto add = [&](auto value) {
    hash = (std::rotl(hash, 13) ^ static_cast<std::size_t>(value)) * 0x9e3779b97f4a7c15u;
  };
  for (const Index number : {key.m, key.n, key.k, key.a_stride, key.b_stride, key.c_stride}) add(number);
  for (const DType type : {key.type, key.c_type}) add(type);
  for (const bool flag : {key.a_transposed, key.b_transposed, key.accumulate}) add(flag);
  for (const std::uint32_t alignment : {key.a_alignment, key.b_alignment, key.c_alignment}) add(alignment);
  return hash;
}

Gemm::Gemm(CudaDevice& device)
    : device_(device),
      workspace_(device.empty(1, workspace_bytes(device.ordinal()) / size_of(DType::float32), DType::float32,
                              MemoryCategory::workspace)) {
  CUBLAS_CHECK(cublasLtCreate(&handle_), std::string("its start on ") + std::string(device.name()));
}

Gemm::~Gemm() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

void Gemm::multiply(const MatrixProduct& product) {
  if (product.m == 0 || product.n == 0) return;
  if (product.k == 0) {
    require(product.c_stride == product.n, "an empty sum into rows that do not follow each other");
    if (!product.accumulate) device_.zero(product.c, product.m * product.n * size_of(product.c_type));
    return;
  }
  const Plan& plan = plan_for(product);
  const float one = 1, beta = product.accumulate ? 1 : 0;
  CUBLAS_CHECK(cublasLtMatmul(handle_, plan.operation, &one, product.b, plan.b, product.a, plan.a, &beta, product.c, plan.c,
                              product.c, plan.c, &plan.algorithm, workspace_.data(),
                              static_cast<std::size_t>(workspace_.bytes()), device_.stream()),
               product.description());
}

const Gemm::Plan& Gemm::plan_for(const MatrixProduct& p) {
  const Key key{.m = p.m,
                .n = p.n,
                .k = p.k,
                .a_stride = p.a_stride,
                .b_stride = p.b_stride,
                .c_stride = p.c_stride,
                .type = p.type,
                .c_type = p.c_type,
                .a_transposed = p.a_transposed,
                .b_transposed = p.b_transposed,
                .accumulate = p.accumulate,
                .a_alignment = alignment_of(p.a),
                .b_alignment = alignment_of(p.b),
                .c_alignment = alignment_of(p.c)};
  std::unique_ptr<Plan>& place = plans_[key];
  if (place) return *place;
  auto plan = std::make_unique<Plan>();

  // Float32 throughout, also between float32 operands: TF32 would drop 13 of the 23 digits of each factor.
  CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), p.description());
  const auto set_operation = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan->operation, attribute, &value, sizeof value), p.description());
  };
  set_operation(CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed);
  set_operation(CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed);
  const auto make_layout = [&](cublasLtMatrixLayout_t& layout, DType type, Index rows, Index columns, bool transposed,
                               Index stride) {
    if (transposed) std::swap(rows, columns);
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, cuda_type(type), static_cast<std::uint64_t>(columns),
                                            static_cast<std::uint64_t>(rows), stride),
                 p.description());
  };
  make_layout(plan->a, p.type, p.m, p.k, p.a_transposed, p.a_stride);
  make_layout(plan->b, p.type, p.k, p.n, p.b_transposed, p.b_stride);
  make_layout(plan->c, p.c_type, p.m, p.n, false, p.c_stride);

  cublasLtMatmulPreference_t preference = nullptr;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference), p.description());
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, decltype(&cublasLtMatmulPreferenceDestroy)>
      owner(preference, cublasLtMatmulPreferenceDestroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), p.description());
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_.bytes()));
  // A long sum may be split among blocks, but its parts have to meet in float32 and in order, not in the bfloat16 of the
  // result.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  // Left to itself cuBLASLt takes every pointer for aligned to 256 bytes; slices are not, and odd widths of bfloat16 are
  // not either.
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment);

  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle_, plan->operation, plan->b, plan->a, plan->c, plan->c, preference, 1,
                                              &best, &found),
               p.description());
  require(found > 0, "cuBLASLt has no algorithm for {}", p.description());
  plan->algorithm = best.algo;
  place = std::move(plan);
  return *place;
}

}  // namespace escalera::cuda
