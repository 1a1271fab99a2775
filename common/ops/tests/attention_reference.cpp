#include "common/ops/tests/attention_reference.h"

#include <algorithm>
#include <cmath>

namespace escalera {

void forward_loops(const AttentionShape& s, const Values& q, const Values& k, const Values& v, Results& r) {
  const Index size = s.head_size, group = s.heads / s.kv_heads;
  r.out.assign(q.size(), 0);
  r.lse.assign(static_cast<std::size_t>(s.batch * s.query_length * s.heads), -infinity);
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h)
      for (Index i = 0; i < s.query_length; ++i) {
        const double* query = &q[static_cast<std::size_t>(((b * s.query_length + i) * s.heads + h) * size)];
        double* out = &r.out[static_cast<std::size_t>(((b * s.query_length + i) * s.heads + h) * size)];
        Values scores;
        double largest = -infinity, sum = 0;
        for (Index j = 0; j < s.key_length && (!s.causal || s.key_offset + j <= s.query_offset + i); ++j) {
          const auto key = static_cast<std::size_t>(((b * s.key_length + j) * s.kv_heads + h / group) * size);
          double score = 0;
          for (Index d = 0; d < size; ++d) score += query[d] * k[key + static_cast<std::size_t>(d)];
          scores.push_back(score / std::sqrt(static_cast<double>(size)));
          largest = std::max(largest, scores.back());
        }
        if (scores.empty()) continue;
        for (const double score : scores) sum += std::exp(score - largest);
        const double lse = largest + std::log(sum);
        r.lse[static_cast<std::size_t>((b * s.query_length + i) * s.heads + h)] = lse;
        for (std::size_t j = 0; j < scores.size(); ++j) {
          const auto key = static_cast<std::size_t>(
              ((b * s.key_length + static_cast<Index>(j)) * s.kv_heads + h / group) * size);
          for (Index d = 0; d < size; ++d)
            out[d] += std::exp(scores[j] - lse) * v[key + static_cast<std::size_t>(d)];
        }
      }
}

void backward_loops(const AttentionShape& s, const Values& q, const Values& k, const Values& v,
                    const Values& d_out, Results& r) {
  const auto size = static_cast<std::size_t>(s.head_size);
  const Index group = s.heads / s.kv_heads;
  const double factor = 1 / std::sqrt(static_cast<double>(size));
  r.dq.assign(q.size(), 0);
  r.dk.assign(k.size(), 0);
  r.dv.assign(v.size(), 0);
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h)
      for (Index i = 0; i < s.query_length; ++i) {
        const auto row = static_cast<std::size_t>((b * s.query_length + i) * s.heads + h);
        double delta = 0;
        for (std::size_t d = 0; d < size; ++d) delta += d_out[row * size + d] * r.out[row * size + d];
        for (Index j = 0; j < s.key_length && (!s.causal || s.key_offset + j <= s.query_offset + i); ++j) {
          const auto key = static_cast<std::size_t>((b * s.key_length + j) * s.kv_heads + h / group);
          double score = 0, d_probability = 0;
          for (std::size_t d = 0; d < size; ++d) {
            score += q[row * size + d] * k[key * size + d] * factor;
            d_probability += d_out[row * size + d] * v[key * size + d];
          }
          const double probability = std::exp(score - r.lse[row]);
          const double d_score = probability * (d_probability - delta) * factor;
          for (std::size_t d = 0; d < size; ++d) {
            r.dq[row * size + d] += d_score * k[key * size + d];
            r.dk[key * size + d] += d_score * q[row * size + d];
            r.dv[key * size + d] += probability * d_out[row * size + d];
          }
        }
      }
}

double relative_error(const Values& a, const Values& b) {
  if (a.size() != b.size()) return infinity;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(b[i]) && a[i] == b[i]) continue;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1.0));
}

double largest_error(const Results& a, const Results& b) {
  double largest = 0;
  for (const double error :
       {relative_error(a.out, b.out), relative_error(a.lse, b.lse), relative_error(a.dq, b.dq),
        relative_error(a.dk, b.dk), relative_error(a.dv, b.dv)}) {
    if (std::isnan(error)) return infinity;
    largest = std::max(largest, error);
  }
  return largest;
}

}  // namespace escalera
