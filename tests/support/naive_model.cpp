#include "tests/support/naive_model.h"

#include <cmath>

namespace escalera {
namespace {

/// Every scalar operation, in order, with its derivatives by its (at most two) arguments.
struct Tape {
  struct Node {
    std::int32_t parent[2] = {-1, -1};
    double slope[2] = {0, 0};
  };
  std::vector<Node> nodes;
  std::int32_t add(std::int32_t a = -1, double slope_a = 0, std::int32_t b = -1, double slope_b = 0) {
    nodes.push_back({{a, b}, {slope_a, slope_b}});
    return static_cast<std::int32_t>(nodes.size()) - 1;
  }
  std::vector<double> gradient_of(std::int32_t result) const {
    std::vector<double> gradient(nodes.size(), 0.0);
    gradient[static_cast<std::size_t>(result)] = 1;
    for (std::size_t i = nodes.size(); i-- > 0;) {
      for (int side = 0; side < 2; side++) {
        const auto parent = nodes[i].parent[side];
        if (parent >= 0) gradient[static_cast<std::size_t>(parent)] += nodes[i].slope[side] * gradient[i];
      }
    }
    return gradient;
  }
};

struct Scalar {
  double value = 0;
  std::int32_t node = -1;  // -1: a constant
};
using Vector = std::vector<Scalar>;

class NaiveModel {
 public:
  NaiveModel(const ModelConfig& config, const NamedTensors& weights) : config_(config) {
    for (const auto& [name, values] : weights) {
      for (const double value : values) parameters_[name].push_back({value, tape_.add()});
    }
  }

  NaiveResult run(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, Index length) {
    Scalar sum;
    double count = 0;
    for (std::size_t begin = 0; begin < tokens.size(); begin += static_cast<std::size_t>(length)) {
      const auto sequence = static_cast<std::size_t>(length);
      add_losses(tokens.subspan(begin, sequence), targets.subspan(begin, sequence), sum, count);
    }
    NaiveResult result;
    for (const auto& [name, values] : parameters_) result.gradients[name].assign(values.size(), 0.0);
    if (count == 0) return result;
    const Scalar loss = times(sum, {1 / count, -1});
    result.loss = loss.value;
    const std::vector<double> gradient = tape_.gradient_of(loss.node);
    for (const auto& [name, values] : parameters_) {
      for (std::size_t i = 0; i < values.size(); i++) {
        result.gradients[name][i] = gradient[static_cast<std::size_t>(values[i].node)];
      }
    }
    return result;
  }

 private:
  Scalar plus(Scalar a, Scalar b) { return {a.value + b.value, tape_.add(a.node, 1, b.node, 1)}; }
  Scalar times(Scalar a, Scalar b) {
    return {a.value * b.value, tape_.add(a.node, b.value, b.node, a.value)};
  }
  Scalar power(Scalar a, double e) {
    return {std::pow(a.value, e), tape_.add(a.node, e * std::pow(a.value, e - 1))};
  }
  Scalar exponential(Scalar a) { return {std::exp(a.value), tape_.add(a.node, std::exp(a.value))}; }
  Scalar logarithm(Scalar a) { return {std::log(a.value), tape_.add(a.node, 1 / a.value)}; }
  Scalar sigmoid(Scalar a) { return power(plus({1, -1}, exponential(times(a, {-1, -1}))), -1); }

  const Vector& parameter(const std::string& name) const { return parameters_.at(name); }

  Vector linear(const std::string& name, const Vector& x) {
    const Vector& w = parameter(name);
    Vector y(w.size() / x.size());
    for (std::size_t row = 0; row < y.size(); row++) {
      for (std::size_t i = 0; i < x.size(); i++) y[row] = plus(y[row], times(w[row * x.size() + i], x[i]));
    }
    return y;
  }

  Vector norm(const std::string& name, const Vector& x) {
    Scalar squares;
    for (const Scalar& value : x) squares = plus(squares, times(value, value));
    const Scalar mean = times(squares, {1 / static_cast<double>(x.size()), -1});
    const Scalar factor = power(plus(mean, {config_.rms_norm_eps, -1}), -0.5);
    Vector y;
    for (std::size_t i = 0; i < x.size(); i++) y.push_back(times(times(x[i], factor), parameter(name)[i]));
    return y;
  }

  void rotate(Vector& x, std::size_t position) {
    const auto head = static_cast<std::size_t>(config_.head_size());
    for (std::size_t begin = 0; begin < x.size(); begin += head) {
      for (std::size_t i = 0; i < head / 2; i++) {
        const double angle =
            static_cast<double>(position) *
            std::pow(config_.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(head));
        const Scalar u = x[begin + i], w = x[begin + i + head / 2];
        const Scalar cosine{std::cos(angle), -1}, sine{std::sin(angle), -1}, minus_sine{-std::sin(angle), -1};
        x[begin + i] = plus(times(u, cosine), times(w, minus_sine));
        x[begin + i + head / 2] = plus(times(w, cosine), times(u, sine));
      }
    }
  }

  // Softmax-weighted mean of values[0..n) by scores; the loss needs the logarithm of the same sum.
  Scalar sum_of_exponentials(const Vector& scores, Vector& exponentials) {
    Scalar sum;
    exponentials.clear();
    for (const Scalar& score : scores) {
      exponentials.push_back(exponential(score));
      sum = plus(sum, exponentials.back());
    }
    return sum;
  }

  Vector attend(std::size_t t, const std::vector<Vector>& q, const std::vector<Vector>& k,
                const std::vector<Vector>& v) {
    const auto head = static_cast<std::size_t>(config_.head_size());
    const auto group = static_cast<std::size_t>(config_.num_attention_heads / config_.num_key_value_heads);
    Vector out(q[t].size()), exponentials;
    for (std::size_t h = 0; h < static_cast<std::size_t>(config_.num_attention_heads); h++) {
      const std::size_t at = h * head, kv = h / group * head;
      Vector scores;
      for (std::size_t s = 0; s <= t; s++) {
        Scalar dot;
        for (std::size_t i = 0; i < head; i++) dot = plus(dot, times(q[t][at + i], k[s][kv + i]));
        scores.push_back(times(dot, {1 / std::sqrt(static_cast<double>(head)), -1}));
      }
      const Scalar inverse = power(sum_of_exponentials(scores, exponentials), -1);
      for (std::size_t s = 0; s <= t; s++) {
        const Scalar weight = times(exponentials[s], inverse);
        for (std::size_t i = 0; i < head; i++) out[at + i] = plus(out[at + i], times(weight, v[s][kv + i]));
      }
    }
    return out;
  }

  Vector sum(const Vector& a, const Vector& b) {
    Vector c;
    for (std::size_t i = 0; i < a.size(); i++) c.push_back(plus(a[i], b[i]));
    return c;
  }

  Vector feed_forward(const std::string& prefix, const Vector& x) {
    Vector gate = linear(prefix + "mlp.gate_proj.weight", x);
    const Vector up = linear(prefix + "mlp.up_proj.weight", x);
    for (std::size_t i = 0; i < gate.size(); i++) gate[i] = times(times(gate[i], sigmoid(gate[i])), up[i]);
    return linear(prefix + "mlp.down_proj.weight", gate);
  }

  void add_losses(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, Scalar& loss,
                  double& count) {
    const auto hidden = static_cast<std::size_t>(config_.hidden_size);
    const Vector& table = parameter("model.embed_tokens.weight");
    std::vector<Vector> x;
    for (const std::int32_t token : tokens) {
      const auto begin =
          table.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * hidden);
      x.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(hidden));
    }
    for (Index layer = 0; layer < config_.num_hidden_layers; layer++) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      std::vector<Vector> q, k, v;
      for (std::size_t t = 0; t < x.size(); t++) {
        const Vector normed = norm(prefix + "input_layernorm.weight", x[t]);
        q.push_back(linear(prefix + "self_attn.q_proj.weight", normed));
        k.push_back(linear(prefix + "self_attn.k_proj.weight", normed));
        v.push_back(linear(prefix + "self_attn.v_proj.weight", normed));
        rotate(q.back(), t);
        rotate(k.back(), t);
      }
      for (std::size_t t = 0; t < x.size(); t++) {
        x[t] = sum(x[t], linear(prefix + "self_attn.o_proj.weight", attend(t, q, k, v)));
        x[t] = sum(x[t], feed_forward(prefix, norm(prefix + "post_attention_layernorm.weight", x[t])));
      }
    }
    const std::string head = config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    Vector exponentials;
    for (std::size_t t = 0; t < x.size(); t++) {
      if (targets[t] < 0) continue;
      const Vector logits = linear(head, norm("model.norm.weight", x[t]));
      const Scalar log_sum = logarithm(sum_of_exponentials(logits, exponentials));
      loss = plus(loss, plus(log_sum, times(logits[static_cast<std::size_t>(targets[t])], {-1, -1})));
      count++;
    }
  }

  const ModelConfig& config_;
  Tape tape_;
  std::map<std::string, Vector> parameters_;
};

}  // namespace

NaiveResult naive_gradients(const ModelConfig& config, const NamedTensors& weights,
                            std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                            Index length) {
  return NaiveModel(config, weights).run(tokens, targets, length);
}

}  // namespace escalera
