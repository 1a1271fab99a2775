// How near the CUDA backend's operations come to what the GPU can do: memory-bound ones against a plain copy, matrix products
// against the largest one, attention in TFLOP/s; at the shapes of a model of 1.3 billion parameters.
//
//   build/cuda/bin/bench_cuda                                      everything, about a minute
//   build/cuda/bin/bench_cuda --section attention --json FILE      one section: limits, memory, gemm or attention
//   build/simulated/bin/bench_cuda --quick                         tiny shapes, each once: do all operations run?
//
// An operation that fails leaves its message in the table, and the others go on. scripts/gpu_check.sh puts the results beside
// PyTorch's (bench/peers/torch_gpu.py), which measures the same shapes under the same names.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "bench/device_timer.h"
#include "bench/floors.h"
#include "common/cuda/cuda_backend.h"
#include "common/model/config.h"
#include "common/ops/rope_table.h"
#include "common/train/text_table.h"

namespace escalera::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr Index head_chunk = 256;  // rows of logits that the model's head makes at a time

struct Options {
  std::string section = "all", json_file, model;
  bool quick = false;
};

class Bench {
 public:
  Bench(const Options& options, Ops& ops)
      : ops_(ops),
        device_(ops.device()),
        timer_(device_, options.quick),
        quick_(options.quick),
        model_(load_model_config(!options.model.empty() ? options.model
                                 : quick_               ? "tiny"
                                                        : "playbook-1.34b")),
        tokens_(quick_ ? 24 : 16384) {}

  void limits();
  void memory();
  void gemm();
  void attention();

  /// Runs a section; its rows, and what went wrong with the section or in a row, go into the result.
  void run(const std::string& name, const std::vector<std::string>& columns, void (Bench::*section)()) {
    rows_ = Json::array();
    Json result;
    try {
      (this->*section)();
    } catch (const std::exception& error) {
      result["error"] = error.what();
    }
    result["rows"] = rows_;
    print(name, columns, result);
    sections_[name] = result;
  }

  Json sections() const { return sections_; }
  bool failed() const {
    for (const Json& section : sections_) {
      if (section.contains("error")) return true;
      for (const Json& row : section["rows"]) {
        if (row.contains("error")) return true;
      }
    }
    return false;
  }
  std::string description() const {
    return fmt::format("hidden {}, ffn {}, vocabulary {}, {} tokens", model_.hidden_size,
                       model_.intermediate_size, model_.vocab_size, tokens_);
  }

 private:
  Tensor empty(Index rows, Index columns, DType dtype) {
    return device_.empty(rows, columns, dtype, MemoryCategory::workspace);
  }
  /// Random numbers, as in a model: a GPU draws less power, and is faster, where most bits are equal.
  Tensor filled(Index rows, Index columns, DType dtype, double deviation = 1);
  std::vector<std::int32_t> random_tokens(bool like_text);

  /// Measures `call` and adds a row of `names` with what `figures` makes of the time.
  void row(Json names, const std::function<void()>& call, const std::function<Json(double seconds)>& figures,
           int most_calls = 256) {
    try {
      const Timing timing = timer_.measure(call, most_calls);
      names["us"] = timing.device * 1e6;
      names["host_us"] = timing.host * 1e6;
      names.update(figures(timing.device));
    } catch (const std::exception& error) {
      names["error"] = error.what();
    }
    rows_.push_back(names);
  }
  /// A row of the section "memory": `narrow` elements have to move in `dtype`, `wide` in float32, times what the floor says.
  void bandwidth_row(std::string_view operation, const std::string& shape, DType dtype, Index narrow,
                     Index wide, const std::function<void()>& call, int most_calls = 256);
  void bandwidth_row(std::string_view operation, const std::string& shape, DType dtype, Index elements,
                     const std::function<void()>& call) {
    bandwidth_row(operation, shape, dtype, elements, elements, call);
  }
  void memory_of(DType dtype);
  void embedding_of(DType dtype);
  void cross_entropy_of(DType dtype);
  void optimizer_of(DType dtype);

  double square_product(DType dtype);
  void products_of(DType dtype);

  static void print(const std::string& name, const std::vector<std::string>& columns, const Json& result);

  Ops& ops_;
  Device& device_;
  DeviceTimer timer_;
  bool quick_;
  ModelConfig model_;
  Index tokens_;
  std::map<DType, double> peaks_;
  Json rows_, sections_ = Json::object();
};

Tensor Bench::filled(Index rows, Index columns, DType dtype, double deviation) {
  const Tensor tensor = empty(rows, columns, dtype);
  const Index first = std::min(tensor.size(), Index{1} << 20);
  std::mt19937 generator(1);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<double> values(static_cast<std::size_t>(first));
  for (double& value : values) value = normal(generator);
  from_host(device_, values, tensor.slice_flat(0, first));
  for (Index done = first; done < tensor.size(); done *= 2) {
    const Index count = std::min(done, tensor.size() - done);
    device_.copy(tensor.slice_flat(done, count).data(), tensor.data(), count * size_of(dtype));
  }
  return tensor;
}

/// Evenly spread over the vocabulary, or like text: the n-th most frequent token turns up 1/n as often as the first.
std::vector<std::int32_t> Bench::random_tokens(bool like_text) {
  std::mt19937 generator(1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(tokens_));
  if (like_text) {
    std::uniform_real_distribution<double> uniform(0, 1);
    for (auto& token : tokens) {
      token =
          static_cast<std::int32_t>(std::pow(static_cast<double>(model_.vocab_size), uniform(generator))) - 1;
    }
  } else {
    const Index stride = std::max(model_.vocab_size / tokens_, Index{1});
    for (Index i = 0; i < tokens_; i++) {
      tokens[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * stride % model_.vocab_size);
    }
    std::ranges::shuffle(tokens, generator);
  }
  return tokens;
}

// ---- limits: what the GPU does best -----------------------------------------------------------------------------------------

double Bench::square_product(DType dtype) {
  if (!peaks_.contains(dtype)) {
    const Index size = quick_ ? 32 : dtype == DType::bfloat16 ? 8192 : 4096;
    const Tensor a = filled(size, size, dtype), b = filled(size, size, dtype), c = empty(size, size, dtype);
    const Timing timing = timer_.measure([&] { ops_.linear_forward(a, b, c); });
    peaks_[dtype] = matrix_product_flops(size, size, size) / timing.device / 1e12;
  }
  return peaks_[dtype];
}

void Bench::limits() {
  rows_.push_back({{"limit", "copy"}, {"gb_per_s", timer_.copy_bandwidth() / 1e9}});
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    rows_.push_back(
        {{"limit", fmt::format("matrix product {}", to_string(dtype))}, {"tflops", square_product(dtype)}});
  }
}

// ---- memory: bytes that must move, against a copy ---------------------------------------------------------------------------

void Bench::bandwidth_row(std::string_view operation, const std::string& shape, DType dtype, Index narrow,
                          Index wide, const std::function<void()>& call, int most_calls) {
  const Floor& floor = floor_of(operation);
  const Index bytes = floor.narrow * narrow * size_of(dtype) + floor.wide * wide * size_of(DType::float32);
  row(
      {{"operation", operation},
       {"dtype", to_string(dtype)},
       {"shape", shape},
       {"moves", floor.moves},
       {"bytes", bytes}},
      call,
      [&](double seconds) {
        const double rate = static_cast<double>(bytes) / seconds;
        return Json{{"gb_per_s", rate / 1e9}, {"share_of_copy", rate / timer_.copy_bandwidth()}};
      },
      most_calls);
}

void Bench::memory() {
  timer_.copy_bandwidth();
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    memory_of(dtype);
    embedding_of(dtype);
    cross_entropy_of(dtype);
    optimizer_of(dtype);
  }
}

void Bench::memory_of(DType dtype) {
  const Index hidden = model_.hidden_size, ffn = model_.intermediate_size, elements = tokens_ * hidden;
  const std::string shape = fmt::format("{} x {}", tokens_, hidden);
  {
    const Tensor x = filled(tokens_, hidden, dtype), delta = filled(tokens_, hidden, dtype),
                 w = filled(1, hidden, dtype);
    const Tensor sum = empty(tokens_, hidden, dtype), y = empty(tokens_, hidden, dtype);
    const Tensor rstd = empty(1, tokens_, DType::float32), dw = filled(1, hidden, DType::float32);
    bandwidth_row("rms_norm_forward", shape, dtype, elements,
                  [&] { ops_.rms_norm_forward(x, w, 1e-5, y, rstd); });
    bandwidth_row("add_rms_norm_forward", shape, dtype, elements,
                  [&] { ops_.add_rms_norm_forward(x, delta, w, 1e-5, sum, y, rstd); });
    bandwidth_row("rms_norm_apply", shape, dtype, elements, [&] { ops_.rms_norm_apply(x, rstd, w, y); });
    bandwidth_row("rms_norm_backward", shape, dtype, elements,
                  [&] { ops_.rms_norm_backward(delta, x, rstd, w, sum, y, dw); });
    bandwidth_row("add", shape, dtype, elements, [&] { ops_.add(x, delta, sum); });
    bandwidth_row("scale", shape, dtype, elements, [&] { ops_.scale(x, 1.0); });
    if (dtype != DType::float32) {
      const Tensor wide = filled(tokens_, hidden, DType::float32);
      bandwidth_row("convert", shape + " from float32", dtype, elements, [&] { ops_.convert(wide, y); });
      bandwidth_row("convert", shape + " to float32", dtype, elements, [&] { ops_.convert(y, wide); });
    }
  }
  {
    const Index size = model_.head_size(), q_columns = model_.num_attention_heads * size;
    const Index k_columns = model_.num_key_value_heads * size, all = q_columns + 2 * k_columns;
    const Index length = std::min(tokens_, Index{2048});
    const Tensor table = make_rope_table(device_, length, size, model_.rope_theta, DType::float32);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(length));
    std::iota(positions.begin(), positions.end(), 0);
    const Tensor qkv = filled(tokens_, all, dtype), q = filled(tokens_, q_columns, dtype);
    const Tensor k = filled(tokens_, k_columns, dtype), v = filled(tokens_, k_columns, dtype);
    const std::string heads = fmt::format("{} x {}", tokens_, all);
    bandwidth_row("rope_split_forward", heads, dtype, qkv.size(),
                  [&] { ops_.rope_split_forward(qkv, table, positions, size, q, k, v); });
    bandwidth_row("rope_merge_backward", heads, dtype, qkv.size(),
                  [&] { ops_.rope_merge_backward(q, k, v, table, positions, size, qkv); });
  }
  const Tensor gate_up = filled(tokens_, 2 * ffn, dtype), gradient = empty(tokens_, 2 * ffn, dtype);
  const Tensor y = filled(tokens_, ffn, dtype);
  const std::string gates = fmt::format("{} x {}", tokens_, ffn);
  bandwidth_row("swiglu_forward", gates, dtype, y.size(), [&] { ops_.swiglu_forward(gate_up, y); });
  bandwidth_row("swiglu_backward", gates, dtype, y.size(),
                [&] { ops_.swiglu_backward(gate_up, y, gradient, {}); });
}

void Bench::embedding_of(DType dtype) {
  const Index hidden = model_.hidden_size, vocabulary = model_.vocab_size, elements = tokens_ * hidden;
  const Tensor table = filled(vocabulary, hidden, dtype), y = empty(tokens_, hidden, dtype);
  const Tensor d_table = filled(vocabulary, hidden, DType::float32), dy = filled(tokens_, hidden, dtype);
  for (const bool like_text : {false, true}) {
    const std::vector<std::int32_t> tokens = random_tokens(like_text);
    const std::set<std::int32_t> distinct(tokens.begin(), tokens.end());
    const std::string shape = fmt::format("{} x {} of {}, {}", tokens_, hidden, vocabulary,
                                          like_text ? "as in text" : "evenly spread");
    bandwidth_row("embedding_forward", shape, dtype, elements,
                  [&] { ops_.embedding_forward(tokens, table, 0, y); });
    // The lists that the host sorts are uploaded through a ring that holds those of a few calls; a fourth might wait.
    bandwidth_row(
        "embedding_backward", shape, dtype, elements, static_cast<Index>(distinct.size()) * hidden,
        [&] { ops_.embedding_backward(tokens, dy, 0, d_table); }, 3);
  }
}

// A chunk of rows at a time, as the model does it; all chunks together are far larger than any cache.
void Bench::cross_entropy_of(DType dtype) {
  const Index vocabulary = model_.vocab_size, rows = std::min(tokens_, Index{4096}),
              chunk = std::min(rows, head_chunk);
  const Tensor logits = filled(rows, vocabulary, dtype), row_max = empty(1, chunk, DType::float32);
  const Tensor sums = empty(2, chunk, DType::float32),
               loss = device_.zeros(1, 1, DType::float64, MemoryCategory::workspace);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(chunk), 3);
  const std::string shape = fmt::format("{} x {}, {} rows at a time", rows, vocabulary, chunk);
  const auto in_chunks = [&](const std::function<void(const Tensor&)>& part) {
    return [=, &logits] {
      for (Index first = 0; first + chunk <= rows; first += chunk) part(logits.slice_rows(first, chunk));
    };
  };
  const Index elements = rows / chunk * chunk * vocabulary;
  bandwidth_row("cross_entropy_row_max", shape, dtype, elements, in_chunks([&](const Tensor& part) {
                  ops_.cross_entropy_row_max(part, vocabulary, row_max);
                }));
  bandwidth_row("cross_entropy_row_sums", shape, dtype, elements, in_chunks([&](const Tensor& part) {
                  ops_.cross_entropy_row_sums(part, vocabulary, targets, 0, row_max, sums);
                }));
  bandwidth_row("cross_entropy_backward", shape, dtype, elements, in_chunks([&](const Tensor& part) {
                  ops_.cross_entropy_backward(part, vocabulary, targets, 0, row_max, sums, 1e-3, 1, loss);
                }));
}

void Bench::optimizer_of(DType dtype) {
  const Index count = quick_ ? 1000 : Index{1} << 26;
  const Tensor master = filled(1, count, DType::float32), gradient = filled(1, count, DType::float32, 1e-3);
  const Tensor first = device_.zeros(1, count, DType::float32, MemoryCategory::workspace);
  const Tensor second = device_.zeros(1, count, DType::float32, MemoryCategory::workspace);
  const Tensor weights = dtype == DType::float32 ? Tensor() : empty(1, count, dtype);
  const Index narrow = weights.empty() ? 0 : count;  // masters of float32 are the weights
  const std::string shape = grouped(count);
  bandwidth_row("adamw", shape, dtype, narrow, count,
                [&] { ops_.adamw(master, gradient, first, second, weights, {.learning_rate = 1e-3}); });
  bandwidth_row("sgd", shape, dtype, narrow, count,
                [&] { ops_.sgd(master, gradient, weights, 1e-3, 0.1, 1.0); });
  if (dtype == DType::float32) {
    const Tensor sum = device_.zeros(1, 1, DType::float64, MemoryCategory::workspace);
    bandwidth_row("squared_norm", shape, dtype, count, [&] { ops_.squared_norm(gradient, sum); });
  }
}

// ---- gemm: the model's matrix products --------------------------------------------------------------------------------------

void Bench::products_of(DType dtype) {
  const Index hidden = model_.hidden_size, heads = model_.num_attention_heads * model_.head_size();
  const Index kv = model_.num_key_value_heads * model_.head_size(), ffn = model_.intermediate_size;
  struct Layer {
    const char* name;
    Index rows, in, out;
    bool backward;
  };
  const Index rows = dtype == DType::float32 ? std::min(tokens_, Index{4096}) : tokens_;
  const Layer layers[] = {{"qkv", rows, hidden, heads + 2 * kv, true},
                          {"attention_output", rows, heads, hidden, true},
                          {"gate_up", rows, hidden, 2 * ffn, true},
                          {"down", rows, ffn, hidden, true},
                          {"head", rows, hidden, model_.vocab_size, true},
                          {"head_chunk", std::min(rows, head_chunk), hidden, model_.vocab_size, false}};
  for (const Layer& layer : layers) {
    const Tensor x = filled(layer.rows, layer.in, dtype), w = filled(layer.out, layer.in, dtype);
    const Tensor y = filled(layer.rows, layer.out, dtype), dx = empty(layer.rows, layer.in, dtype);
    const auto product = [&](const char* pass, Index m, Index n, Index k, const std::function<void()>& call) {
      row({{"layer", layer.name}, {"pass", pass}, {"dtype", to_string(dtype)}, {"m", m}, {"n", n}, {"k", k}},
          call, [&](double seconds) {
            const double rate = matrix_product_flops(m, n, k) / seconds / 1e12;
            return Json{{"tflops", rate}, {"share_of_peak", rate / square_product(dtype)}};
          });
    };
    product("forward", layer.rows, layer.out, layer.in, [&] { ops_.linear_forward(x, w, y); });
    if (!layer.backward) continue;
    product("input", layer.rows, layer.in, layer.out, [&] { ops_.linear_backward_input(y, w, dx); });
    const Tensor dw = filled(layer.out, layer.in, DType::float32);
    product("weight", layer.out, layer.in, layer.rows, [&] { ops_.linear_backward_weight(y, x, dw); });
  }
}

void Bench::gemm() {
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    square_product(dtype);
    products_of(dtype);
  }
}

// ---- attention --------------------------------------------------------------------------------------------------------------

void Bench::attention() {
  const std::vector<Index> lengths =
      quick_ ? std::vector<Index>{24, 40} : std::vector<Index>{2048, 8192, 32768};
  for (const Index head_size : {Index{64}, Index{128}}) {
    for (const Index length : lengths) {
      const Index heads = quick_ ? 2 : model_.hidden_size / head_size,
                  batch = std::max(tokens_ / length, Index{1});
      const AttentionShape shape = {.batch = batch,
                                    .query_length = length,
                                    .key_length = length,
                                    .heads = heads,
                                    .kv_heads = heads,
                                    .head_size = head_size};
      const auto tensor = [&] { return filled(batch * length, heads * head_size, DType::bfloat16); };
      const Tensor q = tensor(), k = tensor(), v = tensor(), out = tensor(), d_out = tensor();
      const Tensor dq = tensor(), dk = tensor(), dv = tensor(),
                   lse = empty(batch * length, heads, DType::float32);
      const auto pass = [&](const char* name, double flops, const std::function<void()>& call) {
        row({{"head_size", head_size},
             {"length", length},
             {"batch", batch},
             {"heads", heads},
             {"pass", name}},
            call, [&](double seconds) {
              const double rate = flops / seconds / 1e12;
              return Json{{"tflops", rate}, {"share_of_peak", rate / square_product(DType::bfloat16)}};
            });
      };
      pass("forward", attention_forward_flops(batch, length, heads, head_size),
           [&] { ops_.attention_forward(shape, q, k, v, out, lse); });
      pass("backward", attention_backward_flops(batch, length, heads, head_size),
           [&] { ops_.attention_backward(shape, q, k, v, out, lse, d_out, dq, dk, dv); });
    }
  }
}

// ---- results ----------------------------------------------------------------------------------------------------------------

/// A cell as a person reads it: shares in percent, other numbers with three digits or so.
std::string cell(const Json& row, const std::string& column) {
  if (!row.contains(column)) return row.contains("error") ? "failed" : "-";
  const Json& value = row[column];
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return fmt::format("{}", value.get<Index>());
  const double number = value.get<double>();
  return column.starts_with("share") ? fmt::format("{:.0f} %", 100 * number)
                                     : fmt::format("{:.{}f}", number, number < 100 ? 1 : 0);
}

void Bench::print(const std::string& name, const std::vector<std::string>& columns, const Json& result) {
  TextTable table(columns);
  for (const Json& row : result["rows"]) {
    std::vector<std::string> cells;
    for (const std::string& column : columns) cells.push_back(cell(row, column));
    table.add(cells);
  }
  fmt::print("{}\n{}", name, table.text());
  for (const Json& row : result["rows"]) {
    if (row.contains("error")) fmt::print("  failed: {}\n", row.dump());
  }
  if (result.contains("error")) fmt::print("  failed: {}\n", result["error"].get<std::string>());
  std::fflush(stdout);
}

void write(const std::string& file, const Json& result) {
  std::ofstream out(file);
  out << result.dump(1) << '\n';
  require(static_cast<bool>(out.flush()), "--json {}: the file cannot be written", file);
}

int run(const Options& options) {
  const std::unique_ptr<Ops> ops = cuda_backend().make_ops(0);
  Bench bench(options, *ops);
  fmt::print("{}\n{}\n", ops->description(), bench.description());
  const struct {
    const char* name;
    std::vector<std::string> columns;
    void (Bench::*body)();
  } sections[] = {
      {"limits", {"limit", "gb_per_s", "tflops"}, &Bench::limits},
      {"memory",
       {"operation", "dtype", "shape", "us", "gb_per_s", "share_of_copy", "host_us"},
       &Bench::memory},
      {"gemm", {"layer", "pass", "dtype", "m", "n", "k", "us", "tflops", "share_of_peak"}, &Bench::gemm},
      {"attention",
       {"head_size", "length", "batch", "heads", "pass", "us", "tflops", "share_of_peak"},
       &Bench::attention}};
  for (const auto& section : sections) {
    if (options.section != "all" && options.section != section.name) continue;
    bench.run(section.name, section.columns, section.body);
    // Written after each section, so that one that never ends leaves the others' results.
    if (options.json_file.empty()) continue;
    write(options.json_file, {{"device", ops->description()},
                              {"quick", options.quick},
                              {"shapes", bench.description()},
                              {"sections", bench.sections()}});
  }
  return bench.failed() ? 1 : 0;
}

}  // namespace
}  // namespace escalera::bench

int main(int argc, char** argv) {
  using namespace escalera;
  bench::Options options;
  CLI::App app("How near the CUDA backend's operations come to what the GPU can do.", "bench_cuda");
  app.add_option("--section", options.section, "only this one")
      ->check(CLI::IsMember({"all", "limits", "memory", "gemm", "attention"}));
  app.add_option("--json", options.json_file, "also write the results to this file");
  app.add_option("--model", options.model,
                 "preset or config.json that the shapes are taken from (default: playbook-1.34b)");
  app.add_flag("--quick", options.quick,
               "tiny shapes, each measured once: shows only whether everything runs");
  CLI11_PARSE(app, argc, argv);
  try {
    return bench::run(options);
  } catch (const UsageError& error) {
    fmt::print(stderr, "bench_cuda: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_cuda: {}\n", error.what());
    return 1;
  }
}
