#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl.hpp>
#include <omp.h>

#include <array>
#include <cstdlib>
#include <map>
#include <utility>

#include "common/ops/cpu/gemm.h"

namespace escalera::cpu {
namespace {

using dnnl::memory;

// oneDNN builds machine code for each shape of a prepared product, which takes milliseconds. Rows of activations may come in
// any number (experts get as many as are routed to them), so they are cut into a multiple of this, and a rest below it: then
// there are few shapes to build. It is also the height of the processor's matrix tiles (two of 16 rows).
constexpr Index row_quantum = 32;

// More prepared kernels than any model needs; beyond it, start over rather than grow.
constexpr std::size_t most_prepared = 2048;

struct Prepared {
  dnnl::matmul matmul;
  memory a, b, c, scratch;
};

/// Whether this processor can multiply bfloat16 in oneDNN at all (it wants AVX-512).
bool has_bfloat16(const dnnl::engine& engine) {
  try {
    const memory::desc matrix({16, 16}, memory::data_type::bf16, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc test(dnnl::matmul::desc(matrix, matrix, matrix), engine);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

class OneDnnGemm final : public Gemm {
 public:
  explicit OneDnnGemm(std::unique_ptr<Gemm> fallback)
      : fallback_(std::move(fallback)), bfloat16_(has_bfloat16(engine_)) {}

  void multiply(const Product& product) override {
    // Splitting work among threads is our business. Without this, oneDNN would start an OpenMP team inside each of our threads.
    // The setting belongs to the calling thread and costs a few nanoseconds.
    omp_set_num_threads(1);
    if (product.type == DType::float32 && !columns_collide(product)) {
      multiply_float32(product);
    } else if (product.type == DType::float32 || (product.type == DType::bfloat16 && bfloat16_)) {
      multiply_quantised(product);
    } else {
      fallback_->multiply(product);
    }
  }

 private:
  /// Whether the rows of a transposed matrix lie a multiple of 4096 bytes apart. Walking down its columns then meets the same
  /// few cache lines again and again, and the plain entry point, which does so, loses a quarter of its speed.
  static bool columns_collide(const Product& p) {
    return p.a_transposed && p.a_stride * size_of(p.type) % 4096 == 0;
  }

  /// The plain entry point needs no preparation, whatever the shape, and is as fast otherwise.
  static void multiply_float32(const Product& p) {
    const dnnl_status_t status = dnnl_sgemm(
        p.a_transposed ? 'T' : 'N', p.b_transposed ? 'T' : 'N', p.m, p.n, p.k, 1.0f, reinterpret_cast<const float*>(p.a),
        p.a_stride, reinterpret_cast<const float*>(p.b), p.b_stride, p.accumulate ? 1.0f : 0.0f,
        reinterpret_cast<float*>(p.c), p.c_stride);
    require(status == dnnl_success, "oneDNN could not multiply [{}, {}] by [{}, {}] (status {})", p.m, p.k, p.k, p.n,
            static_cast<int>(status));
  }

  void multiply_quantised(const Product& p) {
    // In a weight gradient the rows of activations are the terms of the sum, otherwise the rows of the result.
    const Index count = p.a_transposed ? p.k : p.m;
    const Index whole = count / row_quantum * row_quantum;
    const auto part = [&](Index begin, Index size) {
      return p.a_transposed ? p.terms(begin, size) : p.rows(begin, size);
    };
    if (whole > 0) multiply_prepared(part(0, whole));
    if (whole < count) multiply_prepared(part(whole, count - whole));
  }

  void multiply_prepared(const Product& p) {
    Prepared& prepared = find(p);
    prepared.a.set_data_handle(const_cast<std::byte*>(p.a));  // oneDNN only reads it
    prepared.b.set_data_handle(const_cast<std::byte*>(p.b));
    prepared.c.set_data_handle(p.c);
    prepared.scratch.set_data_handle(scratch_.get());
    const int source = DNNL_ARG_SRC, weights = DNNL_ARG_WEIGHTS, result = DNNL_ARG_DST, scratch = DNNL_ARG_SCRATCHPAD;
    prepared.matmul.execute(stream_, {{source, prepared.a},
                                      {weights, prepared.b},
                                      {result, prepared.c},
                                      {scratch, prepared.scratch}});
    stream_.wait();
  }

  Prepared& find(const Product& p) {
    const Key key{p.m, p.n, p.k, p.a_stride, p.b_stride, p.c_stride, p.a_transposed, p.b_transposed,
                  p.type == DType::float32, p.c_type == DType::float32, p.accumulate};
    const auto found = prepared_.find(key);
    if (found != prepared_.end()) return found->second;
    if (prepared_.size() >= most_prepared) prepared_.clear();

    const auto matrix = [](Index rows, Index columns, Index stride, bool transposed, DType type) {
      return memory::desc({rows, columns}, type == DType::float32 ? memory::data_type::f32 : memory::data_type::bf16,
                          transposed ? memory::dims{1, stride} : memory::dims{stride, 1});
    };
    const memory::desc a = matrix(p.m, p.k, p.a_stride, p.a_transposed, p.type);
    const memory::desc b = matrix(p.k, p.n, p.b_stride, p.b_transposed, p.type);
    const memory::desc c = matrix(p.m, p.n, p.c_stride, false, p.c_type);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // one scratch per thread instead of one per shape
    if (p.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes, engine_);
    reserve_scratch(description.scratchpad_desc().get_size());
    Prepared prepared{dnnl::matmul(description), memory(a, engine_, nullptr), memory(b, engine_, nullptr),
                      memory(c, engine_, nullptr), memory(description.scratchpad_desc(), engine_, nullptr)};
    return prepared_.emplace(key, std::move(prepared)).first->second;
  }

  void reserve_scratch(std::size_t bytes) {
    if (bytes <= scratch_bytes_) return;
    constexpr std::size_t page = 4096;
    scratch_bytes_ = (bytes + page - 1) / page * page;
    scratch_.reset(static_cast<std::byte*>(std::aligned_alloc(page, scratch_bytes_)));
    require(scratch_ != nullptr, "no memory for {} bytes of scratch", scratch_bytes_);
  }

  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };
  using Key = std::array<Index, 11>;

  std::unique_ptr<Gemm> fallback_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  bool bfloat16_;
  std::map<Key, Prepared> prepared_;
  std::unique_ptr<std::byte, Free> scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Gemm> make_onednn_gemm(std::unique_ptr<Gemm> fallback) {
  return std::make_unique<OneDnnGemm>(std::move(fallback));
}

std::string onednn_description() {
  const bool bfloat16 = has_bfloat16(dnnl::engine(dnnl::engine::kind::cpu, 0));
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("oneDNN {}.{}.{} ({})", version.major, version.minor, version.patch,
                     bfloat16 ? "float32, bfloat16" : "float32");
}

}  // namespace escalera::cpu
