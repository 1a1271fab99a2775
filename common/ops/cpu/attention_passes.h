// Forward and backward of blocked attention for a part of the score matrix; see attention_kernels.h for the layout.
// defines: attention_kernels<Element>()
#pragma once

#include "common/ops/cpu/attention_kernels.h"

namespace escalera::cpu {
namespace {

// ---- forward ------------------------------------------------------------------------------------------------------

/// The softmax of a panel so far: for each row the largest score (in units of log 2) and the sum of 2^(score - largest).
template <class Real>
struct RunningSoftmax {
  Real largest[panel_rows];
  Real sum[panel_rows];
};

/// Takes another block of scores [keys, panel] into account. They become probabilities relative to the new `largest`, and
/// what was summed under the old one, in `sum` and in out_t [size, panel], shrinks to match.
template <class Real>
ESCALERA_INLINE void update_softmax(Index width, Index keys, Index size, Real* scores,
                                    RunningSoftmax<Real>& softmax, Real* out_t) {
  constexpr int count = lanes<Real>;
  for (Index lane = 0; lane < width; lane += count) {
    // Four maxima and two sums side by side: one alone would wait for its own latency at every key.
    const Vec<Real> old = load<Real>(softmax.largest + lane);
    Vec<Real> partial[4] = {old, old, old, old};
    Index j = 0;
    for (; j + 4 <= keys; j += 4) {
#pragma GCC unroll 4
      for (Index i = 0; i < 4; ++i) {
        partial[i] = larger<Real>(load<Real>(scores + (j + i) * panel_rows + lane), partial[i]);
      }
    }
    for (; j < keys; ++j) partial[0] = larger<Real>(load<Real>(scores + j * panel_rows + lane), partial[0]);
    const Vec<Real> largest =
        larger<Real>(larger<Real>(partial[0], partial[1]), larger<Real>(partial[2], partial[3]));
    store<Real>(softmax.largest + lane, largest);

    Vec<Real> sum{};
    for (j = 0; j < keys; ++j) {
      const Vec<Real> probability = exp2<Real>(load<Real>(scores + j * panel_rows + lane) - largest);
      store<Real>(scores + j * panel_rows + lane, probability);
      sum += probability;
    }
    const Vec<Real> shrink = exp2<Real>(old - largest);
    store<Real>(softmax.sum + lane, load<Real>(softmax.sum + lane) * shrink + sum);
    for (Index d = 0; d < size; ++d) {
      store<Real>(out_t + d * panel_rows + lane, load<Real>(out_t + d * panel_rows + lane) * shrink);
    }
  }
}

/// Divides out_t by the sums and writes out and lse. Rows that saw no key have sum 0.
template <class Element>
ESCALERA_INLINE void finish_panel(const AttentionCall& call, const Panel<RealOf<Element>>& panel,
                                  Index padded, const RunningSoftmax<RealOf<Element>>& softmax,
                                  RealOf<Element>* out_t, RealOf<Element>* rows) {
  using Real = RealOf<Element>;
  constexpr int count = lanes<Real>;
  for (Index lane = 0; lane < panel.width; lane += count) {
    const Vec<Real> sum = load<Real>(softmax.sum + lane);
    const Vec<Real> inverse = static_cast<Real>(1) / (sum == Real{0} ? splat(Real{1}) : sum);
    for (Index d = 0; d < call.head_size; ++d) {
      store<Real>(out_t + d * panel_rows + lane, load<Real>(out_t + d * panel_rows + lane) * inverse);
    }
  }
  store_panel<Element>(call, panel, padded, out_t, Real{1}, rows, call.out);
  for (Index r = 0; r < panel.rows; ++r) {
    const double sum = static_cast<double>(softmax.sum[r]);
    const double lse = static_cast<double>(softmax.largest[r]) * ln_2 + __builtin_log(sum);
    static_cast<Real*>(call.lse)[panel.place[r]] =
        sum == 0 ? -FloatFormat<Real>::infinity : static_cast<Real>(lse);
  }
}

template <class Element>
Index forward_scratch(Index head_size) {
  const Index padded = padded_size(head_size);
  const Index elements = 2 * row_block * padded + 2 * key_block * padded + (key_block + padded) * panel_rows;
  return elements * static_cast<Index>(sizeof(RealOf<Element>));
}

template <class Element>
void forward(const AttentionCall& call, const AttentionPart& part, void* memory) {
  using Real = RealOf<Element>;
  const Places places(call, part);
  const Index size = call.head_size;
  const Index padded = padded_size(size);
  Scratch<Real> scratch{static_cast<Real*>(memory)};
  Real* q_t = scratch.take(row_block * padded);    // by panel: [padded, panel_rows], scaled
  Real* out_t = scratch.take(row_block * padded);  // by panel: [padded, panel_rows]
  Real* k = scratch.take(key_block * padded);      // [key_block, padded]
  Real* v = scratch.take(key_block * padded);      // [key_block, padded]
  Real* scores = scratch.take(key_block * panel_rows);
  Real* rows = scratch.take(padded * panel_rows);  // [panel_rows, padded]
  Panel<Real> panels[panels_per_block];
  RunningSoftmax<Real> softmax[panels_per_block];

  for (Index block = part.row_begin; block < part.row_end; block += row_block) {
    const Index panel_count = (smaller(part.row_end - block, row_block) + panel_rows - 1) / panel_rows;
    for (Index p = 0; p < panel_count; ++p) {
      panels[p].set(call, places, block + p * panel_rows, part.row_end);
      load_panel<Element>(call, call.q, panels[p], padded, rows);
      transpose(panels[p].width, padded, rows, padded, score_factor<Real>(size),
                q_t + p * panel_rows * padded, panel_rows);
      fill(out_t + p * panel_rows * padded, panel_rows * padded, Real{0});
      fill(softmax[p].largest, panel_rows, FloatFormat<Real>::lowest);
      fill(softmax[p].sum, panel_rows, Real{0});
    }

    // Keys that the block's last row does not see are not even looked at.
    const Index key_end = panels[panel_count - 1].seen_by_any;
    for (Index key = 0; key < key_end; key += key_block) {
      const Index block_keys = smaller(key_end - key, key_block);
      load_keys<Element>(call, places, call.k, key, block_keys, padded, k);
      load_keys<Element>(call, places, call.v, key, block_keys, padded, v);
      for (Index p = 0; p < panel_count; ++p) {
        const Panel<Real>& panel = panels[p];
        const Index keys = smaller(panel.seen_by_any - key, block_keys);
        if (keys <= 0) continue;
        // S^T = K Q^T;  P^T = 2^(S^T - largest);  O^T += V^T P^T
        multiply<false, Real>(keys, panel.width, size, {k, padded, 1}, q_t + p * panel_rows * padded,
                              panel_rows, scores, panel_rows);
        mask(panel, key, keys, scores);
        update_softmax(panel.width, keys, size, scores, softmax[p], out_t + p * panel_rows * padded);
        multiply<true, Real>(size, panel.width, keys, {v, 1, padded}, scores, panel_rows,
                             out_t + p * panel_rows * padded, panel_rows);
      }
    }
    for (Index p = 0; p < panel_count; ++p) {
      finish_panel<Element>(call, panels[p], padded, softmax[p], out_t + p * panel_rows * padded, rows);
    }
  }
}

// ---- backward -----------------------------------------------------------------------------------------------------

/// A block of rows as backward wants it: q and d_out both as they are and transposed.
template <class Real>
struct RowBlock {
  Real* q;                // by panel: [panel_rows, padded]
  Real* d_out;            // by panel: [panel_rows, padded]
  Real* q_t;              // by panel: [padded, panel_rows], scaled
  Real* d_out_t;          // by panel: [padded, panel_rows]
  Real* dq_t;             // by panel: [padded, panel_rows]
  Real lse[row_block];    // in units of log 2
  Real delta[row_block];  // sum of d_out * out
  Panel<Real> panels[panels_per_block];
};

/// Fills panel p of `block`. `rows` is room for [panel_rows, padded].
template <class Element>
ESCALERA_INLINE void load_row_panel(const AttentionCall& call, Index padded, Index p, RealOf<Element>* rows,
                                    RowBlock<RealOf<Element>>& block) {
  using Real = RealOf<Element>;
  const Panel<Real>& panel = block.panels[p];
  const Index offset = p * panel_rows * padded;
  load_panel<Element>(call, call.q, panel, padded, block.q + offset);
  load_panel<Element>(call, call.d_out, panel, padded, block.d_out + offset);
  load_panel<Element>(call, call.out, panel, padded, rows);
  transpose(panel.width, padded, block.q + offset, padded, score_factor<Real>(call.head_size),
            block.q_t + offset, panel_rows);
  transpose(panel.width, padded, block.d_out + offset, padded, Real{1}, block.d_out_t + offset, panel_rows);
  fill(block.dq_t + offset, panel_rows * padded, Real{0});

  for (Index r = 0; r < panel.width; ++r) {
    Vec<Real> delta{};
    for (Index d = 0; d < padded; d += lanes<Real>) {
      delta += load<Real>(block.d_out + offset + r * padded + d) * load<Real>(rows + r * padded + d);
    }
    block.delta[p * panel_rows + r] = horizontal_sum<Real>(delta);
    // Where nothing was seen, and in padding lanes, every probability has to come out as 2^-huge = 0.
    Real lse = -FloatFormat<Real>::infinity;
    if (r < panel.rows) lse = static_cast<const Real*>(call.lse)[panel.place[r]];
    block.lse[p * panel_rows + r] =
        lse == -FloatFormat<Real>::infinity ? -FloatFormat<Real>::lowest : lse * static_cast<Real>(log2_e);
  }
}

/// scores become probabilities P, d_probabilities become P * (d_probabilities - delta); both [keys, panel].
template <class Real>
ESCALERA_INLINE void softmax_backward(Index width, Index keys, const Real* lse, const Real* delta,
                                      Real* scores, Real* d_probabilities) {
  constexpr int count = lanes<Real>;
  for (Index lane = 0; lane < width; lane += count) {
    const Vec<Real> row_lse = load<Real>(lse + lane);
    const Vec<Real> row_delta = load<Real>(delta + lane);
    for (Index j = 0; j < keys; ++j) {
      Real* score = scores + j * panel_rows + lane;
      Real* d_probability = d_probabilities + j * panel_rows + lane;
      const Vec<Real> probability = exp2<Real>(load<Real>(score) - row_lse);
      store<Real>(score, probability);
      store<Real>(d_probability, probability * (load<Real>(d_probability) - row_delta));
    }
  }
}

template <class Element>
Index backward_scratch(Index head_size, Index keys) {
  const Index padded = padded_size(head_size);
  const Index elements =
      5 * row_block * padded + 2 * (keys + key_block) * padded + (2 * key_block + padded) * panel_rows;
  return elements * static_cast<Index>(sizeof(RealOf<Element>));
}

template <class Element>
void backward(const AttentionCall& call, const AttentionPart& part, bool write_dq, bool write_dkv,
              void* memory) {
  using Real = RealOf<Element>;
  const Places places(call, part);
  const Index size = call.head_size;
  const Index padded = padded_size(size);
  const Index part_keys = part.key_end - part.key_begin;
  Scratch<Real> scratch{static_cast<Real*>(memory)};
  RowBlock<Real> block;
  block.q = scratch.take(row_block * padded);
  block.d_out = scratch.take(row_block * padded);
  block.q_t = scratch.take(row_block * padded);
  block.d_out_t = scratch.take(row_block * padded);
  block.dq_t = scratch.take(row_block * padded);
  Real* k = scratch.take(key_block * padded);  // [key_block, padded]
  Real* v = scratch.take(key_block * padded);  // [key_block, padded]
  Real* scores = scratch.take(key_block * panel_rows);
  Real* d_scores = scratch.take(key_block * panel_rows);
  Real* rows = scratch.take(padded * panel_rows);  // [panel_rows, padded]
  Real* dk = nullptr;                              // [part_keys, padded]
  Real* dv = nullptr;                              // [part_keys, padded]
  if (write_dkv) {
    dk = scratch.take(part_keys * padded);
    dv = scratch.take(part_keys * padded);
    fill(dk, part_keys * padded, Real{0});
    fill(dv, part_keys * padded, Real{0});
  }

  for (Index row = part.row_begin; row < part.row_end; row += row_block) {
    const Index row_end = smaller(row + row_block, part.row_end);
    const Index key_end = smaller(places.visible_keys(call, (row_end - 1) / places.group), part.key_end);
    if (key_end <= part.key_begin && !write_dq) continue;
    const Index panel_count = (row_end - row + panel_rows - 1) / panel_rows;
    for (Index p = 0; p < panel_count; ++p) {
      block.panels[p].set(call, places, row + p * panel_rows, row_end);
      load_row_panel<Element>(call, padded, p, rows, block);
    }

    for (Index key = part.key_begin; key < key_end; key += key_block) {
      const Index block_keys = smaller(key_end - key, key_block);
      load_keys<Element>(call, places, call.k, key, block_keys, padded, k);
      load_keys<Element>(call, places, call.v, key, block_keys, padded, v);
      for (Index p = 0; p < panel_count; ++p) {
        const Panel<Real>& panel = block.panels[p];
        const Index keys = smaller(panel.seen_by_any - key, block_keys);
        if (keys <= 0) continue;
        const Index offset = p * panel_rows * padded;
        // S^T = K Q^T;  dP^T = V dO^T;  P^T = 2^(S^T - lse);  dS^T = P^T * (dP^T - delta)
        multiply<false, Real>(keys, panel.width, size, {k, padded, 1}, block.q_t + offset, panel_rows, scores,
                              panel_rows);
        multiply<false, Real>(keys, panel.width, size, {v, padded, 1}, block.d_out_t + offset, panel_rows,
                              d_scores, panel_rows);
        mask(panel, key, keys, scores);
        softmax_backward(panel.width, keys, block.lse + p * panel_rows, block.delta + p * panel_rows, scores,
                         d_scores);
        // dQ^T += K^T dS^T;  dV += P^T dO;  dK += dS^T Q. The factor 1 / sqrt(size) comes in when they are written.
        if (write_dq) {
          multiply<true, Real>(size, panel.width, keys, {k, 1, padded}, d_scores, panel_rows,
                               block.dq_t + offset, panel_rows);
        }
        if (write_dkv) {
          const Index first = (key - part.key_begin) * padded;
          multiply<true, Real>(keys, padded, panel.width, {scores, panel_rows, 1}, block.d_out + offset,
                               padded, dv + first, padded);
          multiply<true, Real>(keys, padded, panel.width, {d_scores, panel_rows, 1}, block.q + offset, padded,
                               dk + first, padded);
        }
      }
    }
    for (Index p = 0; p < panel_count && write_dq; ++p) {
      store_panel<Element>(call, block.panels[p], padded, block.dq_t + p * panel_rows * padded,
                           score_factor<Real>(size) * static_cast<Real>(ln_2), rows, call.dq);
    }
  }

  for (Index j = 0; j < part_keys && write_dkv; ++j) {
    const Index key = places.key(part.key_begin + j);
    store_row(dk + j * padded, size, score_factor<Real>(size) * static_cast<Real>(ln_2),
              static_cast<Element*>(call.dk) + key);
    store_row(dv + j * padded, size, Real{1}, static_cast<Element*>(call.dv) + key);
  }
}

template <class Element>
ESCALERA_INLINE constexpr AttentionKernels attention_kernels() {
  return {forward_scratch<Element>, backward_scratch<Element>, forward<Element>, backward<Element>};
}

}  // namespace
}  // namespace escalera::cpu
