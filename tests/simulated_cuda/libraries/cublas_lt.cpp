// cuBLASLt, as far as matrix products need it, with the toolkit's own header. What the real library would refuse, it
// refuses; what the real one would do in silence and wrongly for us (TF32, a pointer aligned worse than was promised), it
// reports.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <new>

#include <simulated_cuda/device_pointer.h>

#include "tests/simulated_cuda/libraries/matrix_product.h"
#include "tests/simulated_cuda/runtime/counters.h"
#include "tests/simulated_cuda/runtime/device.h"
#include "tests/simulated_cuda/runtime/memory.h"

struct cublasLtContext {
  int device = 0;
};

namespace simulated_cuda {
namespace {

// The library's own structures live in the opaque ones of the header, so that these may also lie on the caller's stack.

struct MatmulDescription {
  std::int32_t compute_type, scale_type, pointer_mode, transpose_a, transpose_b;
  std::uint32_t epilogue;
};

struct Layout {
  std::uint32_t type;
  std::int32_t order;
  std::uint64_t rows, columns;
  std::int64_t leading_dimension;
  std::int32_t batch_count;
  std::int64_t batch_stride;
};

struct Preference {
  std::uint64_t workspace_bytes;
  std::uint32_t alignment[4];  // of A, B, C and D
};

/// What a heuristic result remembers in the algorithm.
struct Algorithm {
  std::uint64_t mark;
  std::uint64_t workspace_bytes;
  std::uint32_t alignment[4];
};
constexpr std::uint64_t algorithm_mark = 0x5eed0fa1901u;

static_assert(sizeof(MatmulDescription) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <class T>
cublasStatus_t set(T& member, const void* value, std::size_t bytes) {
  if (!value || bytes != sizeof member) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&member, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

MatmulDescription& of(cublasLtMatmulDesc_t description) {
  return *reinterpret_cast<MatmulDescription*>(description);
}
Layout& of(cublasLtMatrixLayout_t layout) {
  return *reinterpret_cast<Layout*>(layout);
}
Preference& of(cublasLtMatmulPreference_t preference) {
  return *reinterpret_cast<Preference*>(preference);
}

void check_compute_type(std::int32_t type) {
  switch (type) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      fail("cuBLASLt: the compute type CUBLAS_COMPUTE_32F_FAST_TF32 rounds inputs to TF32");
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      fail("cuBLASLt: the compute type %d rounds inputs to 16 bits", type);
    default:
      fail("cuBLASLt: the compute type %d is not simulated; CUBLAS_COMPUTE_32F is", type);
  }
}

std::size_t bytes_of(std::uint32_t type) {
  return type == CUDA_R_32F ? 4 : 2;
}

bool sound(const Layout& layout) {
  const std::uint64_t shortest = layout.order == CUBLASLT_ORDER_ROW ? layout.columns : layout.rows;
  return layout.rows > 0 && layout.columns > 0 && layout.batch_count > 0 && layout.leading_dimension > 0 &&
         static_cast<std::uint64_t>(layout.leading_dimension) >= shortest &&
         (layout.order == CUBLASLT_ORDER_ROW || layout.order == CUBLASLT_ORDER_COL);
}

/// The product that the descriptions mean; `status` says whether the real library would take them.
struct Product {
  std::size_t m = 0, n = 0, k = 0;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

  Product(const MatmulDescription& description, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
    check_compute_type(description.compute_type);
    if (description.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
      fail("cuBLASLt: epilogue %u is not simulated", description.epilogue);
    if (description.pointer_mode != CUBLASLT_POINTER_MODE_HOST) fail("cuBLASLt: alpha and beta have to be on the host here");
    const bool turn_a = description.transpose_a != CUBLAS_OP_N, turn_b = description.transpose_b != CUBLAS_OP_N;
    m = turn_a ? a.columns : a.rows;
    k = turn_a ? a.rows : a.columns;
    n = turn_b ? b.rows : b.columns;
    const bool sizes = (turn_b ? b.columns : b.rows) == k && c.rows == m && c.columns == n && d.rows == m &&
                       d.columns == n && a.batch_count == d.batch_count && b.batch_count == d.batch_count &&
                       c.batch_count == d.batch_count;
    if (!sound(a) || !sound(b) || !sound(c) || !sound(d) || !sizes) {
      status = CUBLAS_STATUS_INVALID_VALUE;
      return;
    }
    // The combinations for CUBLAS_COMPUTE_32F that the documentation lists, of the types that we use.
    const bool float_in = a.type == CUDA_R_32F && b.type == CUDA_R_32F, float_out = d.type == CUDA_R_32F;
    const bool bfloat16_in = a.type == CUDA_R_16BF && b.type == CUDA_R_16BF, bfloat16_out = d.type == CUDA_R_16BF;
    const bool types = (float_in && float_out) || (bfloat16_in && (float_out || bfloat16_out));
    if (!types || c.type != d.type || description.scale_type != CUDA_R_32F) status = CUBLAS_STATUS_NOT_SUPPORTED;
  }
};

Matrix matrix(const void* data, const Layout& layout, std::int64_t batch) {
  char* const begin = static_cast<char*>(const_cast<void*>(untagged(data))) +
                      batch * layout.batch_stride * static_cast<std::int64_t>(bytes_of(layout.type));
  const bool by_rows = layout.order == CUBLASLT_ORDER_ROW;
  return {begin, layout.type == CUDA_R_16BF, by_rows ? layout.leading_dimension : 1, by_rows ? 1 : layout.leading_dimension};
}

/// The addresses that a matrix, with all its batches, covers.
struct Extent {
  std::uintptr_t begin = 0, end = 0;

  Extent(const void* data, const Layout& layout) {
    const bool by_rows = layout.order == CUBLASLT_ORDER_ROW;
    const std::uint64_t lines = by_rows ? layout.rows : layout.columns, length = by_rows ? layout.columns : layout.rows;
    const std::uint64_t one = (lines - 1) * static_cast<std::uint64_t>(layout.leading_dimension) + length;
    const std::uint64_t all =
        static_cast<std::uint64_t>(layout.batch_count - 1) * static_cast<std::uint64_t>(layout.batch_stride) + one;
    begin = bits(untagged(data));
    end = begin + all * bytes_of(layout.type);
  }
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};

void check_operand(const char* name, const void* data, const Extent& extent, std::size_t element, std::uint32_t alignment,
                   int device) {
  if (!is_tagged(data)) fail("cublasLtMatmul: %s, %p, is no device pointer", name, data);
  if (device_of(data) != device)
    fail("cublasLtMatmul on device %d: %s is in memory of device %d", device, name, device_of(data));
  const auto allocation = memory_map().find(extent.begin);
  if (!allocation) fail("cublasLtMatmul: %s, %p, points to no allocation", name, data);
  if (!allocation->live) fail("cublasLtMatmul: %s, %p, was freed", name, data);
  if (extent.end > allocation->address + allocation->bytes) {
    fail("cublasLtMatmul: %s reaches %zu bytes beyond the end of its allocation", name,
         static_cast<std::size_t>(extent.end - allocation->address - allocation->bytes));
  }
  if (extent.begin % element != 0) fail("cublasLtMatmul: %s, %p, is not aligned to its elements", name, data);
  if (alignment != 0 && extent.begin % alignment != 0) {
    fail(
        "cublasLtMatmul: %s, %p, is not aligned to the %u bytes that were promised to the heuristic "
        "(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_%s_BYTES)",
        name, data, alignment, name);
  }
}

}  // namespace
}  // namespace simulated_cuda

using namespace simulated_cuda;

extern "C" {

// ---- Handles and descriptions ----

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const Device* device = current_device();
  if (!device) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext{device->ordinal()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

std::size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}
std::size_t cublasLtGetCudartVersion() {
  return CUDART_VERSION;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, std::size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  if (bytes < sizeof(cublasLtMatmulDescOpaque_t)) return CUBLAS_STATUS_ALLOC_FAILED;
  check_compute_type(compute);
  new (description)
      MatmulDescription{compute, scale, CUBLASLT_POINTER_MODE_HOST, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *description = new cublasLtMatmulDescOpaque_t{};
  return cublasLtMatmulDescInit_internal(*description, sizeof **description, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  MatmulDescription& own = of(description);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return set(own.compute_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return set(own.scale_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return set(own.pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(own.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(own.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(own.epilogue, value, bytes);
    default:
      fail("cublasLtMatmulDescSetAttribute: attribute %d is not simulated", static_cast<int>(attribute));
  }
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t bytes, cudaDataType type,
                                                 std::uint64_t rows, std::uint64_t columns, std::int64_t leading_dimension) {
  if (bytes < sizeof(cublasLtMatrixLayoutOpaque_t)) return CUBLAS_STATUS_ALLOC_FAILED;
  new (layout) Layout{static_cast<std::uint32_t>(type), CUBLASLT_ORDER_COL, rows, columns, leading_dimension, 1, 0};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading_dimension) {
  *layout = new cublasLtMatrixLayoutOpaque_t{};
  return cublasLtMatrixLayoutInit_internal(*layout, sizeof **layout, type, rows, columns, leading_dimension);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  Layout& own = of(layout);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return set(own.type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return set(own.order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return set(own.rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return set(own.columns, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return set(own.leading_dimension, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(own.batch_count, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(own.batch_stride, value, bytes);
    default:
      fail("cublasLtMatrixLayoutSetAttribute: attribute %d is not simulated", static_cast<int>(attribute));
  }
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, std::size_t bytes) {
  if (bytes < sizeof(cublasLtMatmulPreferenceOpaque_t)) return CUBLAS_STATUS_ALLOC_FAILED;
  new (preference) Preference{0, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t{};
  return cublasLtMatmulPreferenceInit_internal(*preference, sizeof **preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  Preference& own = of(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(own.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(own.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(own.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(own.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(own.alignment[3], value, bytes);
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
      return value ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    default:
      fail("cublasLtMatmulPreferenceSetAttribute: attribute %d is not simulated", static_cast<int>(attribute));
  }
}

// ---- Products ----

// One algorithm, which wants a workspace if it may have one: so tests notice where none, or one in use, is passed.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  if (requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  const Product product(of(description), of(a), of(b), of(c), of(d));
  if (product.status != CUBLAS_STATUS_SUCCESS) return product.status;
  const Preference& wishes = of(preference);
  Algorithm algorithm{algorithm_mark, std::min<std::uint64_t>(wishes.workspace_bytes, 4096), {}};
  std::ranges::copy(wishes.alignment, algorithm.alignment);
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  results[0].workspaceSize = algorithm.workspace_bytes;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1.0f;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream_handle) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Layout layouts[4] = {of(a_layout), of(b_layout), of(c_layout), of(d_layout)};
  const Product product(of(description), layouts[0], layouts[1], layouts[2], layouts[3]);
  if (product.status != CUBLAS_STATUS_SUCCESS) return product.status;
  const std::shared_ptr<Stream> stream = stream_of(stream_handle);
  if (stream->device() != handle->device) {
    fail("cublasLtMatmul: the handle is of device %d, the stream of device %d", handle->device, stream->device());
  }
  if (handle->device != current_ordinal()) {
    fail("cublasLtMatmul: the handle is of device %d, but the calling thread's current device is %d", handle->device,
         current_ordinal());
  }

  Algorithm algorithm{};
  if (algo) {
    std::memcpy(&algorithm, algo, sizeof algorithm);
    if (algorithm.mark != algorithm_mark) fail("cublasLtMatmul: the algorithm comes from no heuristic");
    if (workspace_bytes < algorithm.workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  }
  float scales[2];
  std::memcpy(&scales[0], alpha, sizeof(float));
  std::memcpy(&scales[1], beta, sizeof(float));
  if (scales[1] == 0.0f) c = d;
  const void* operands[4] = {a, b, c, d};
  const char* names[4] = {"A", "B", "C", "D"};
  const Extent result(d, layouts[3]);
  for (int i = 0; i < 4; ++i) {
    if (i == 2 && scales[1] == 0.0f) continue;
    const Extent extent(operands[i], layouts[i]);
    check_operand(names[i], operands[i], extent, bytes_of(layouts[i].type), algorithm.alignment[i], handle->device);
    if (i < 2 && extent.overlaps(result)) fail("cublasLtMatmul: D overlaps %s", names[i]);
  }
  if (scales[1] != 0.0f && c != d && Extent(c, layouts[2]).overlaps(result)) fail("cublasLtMatmul: D overlaps C in part");
  if (layouts[3].batch_count > 1 && layouts[3].batch_stride == 0)
    fail("cublasLtMatmul: all batches of D lie at one address");
  if (algorithm.workspace_bytes > 0) {
    Extent space(d, layouts[3]);
    space.begin = bits(untagged(workspace));
    space.end = space.begin + algorithm.workspace_bytes;
    check_operand("the workspace", workspace, space, 16, 0, handle->device);
  }

  count(counters().matrix_products);
  const MatmulDescription how = of(description);
  enqueue(stream, [=] {
    if (algorithm.workspace_bytes > 0) std::memset(untagged(workspace), 0xff, algorithm.workspace_bytes);
    for (std::int64_t batch = 0; batch < layouts[3].batch_count; ++batch) {
      const Matrix left = matrix(a, layouts[0], batch), right = matrix(b, layouts[1], batch);
      matrix_product(product.m, product.n, product.k, scales[0], how.transpose_a == CUBLAS_OP_N ? left : left.transposed(),
                     how.transpose_b == CUBLAS_OP_N ? right : right.transposed(), scales[1], matrix(c, layouts[2], batch),
                     matrix(d, layouts[3], batch));
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "another cuBLAS status";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return cublasLtGetStatusName(status);
}
const char* cublasGetStatusName(cublasStatus_t status) {
  return cublasLtGetStatusName(status);
}
const char* cublasGetStatusString(cublasStatus_t status) {
  return cublasLtGetStatusName(status);
}

}  // extern "C"
