// Blocked attention (Dao et al. 2022) for one processor: included by attention_base.cpp and attention_v4.cpp.
//
// Rows of the score matrix lie in vector lanes. A panel of 32 rows owns the transposed scores S^T [keys, 32]: maxima,
// exponentials and sums over keys are then plain vertical vector operations, the causal mask is one comparison, and all
// seven products have one form, C += A B, where an element of A (a key, a value, a probability) is broadcast to the
// lanes of B. Of the tensors only q and d_out are ever transposed, once per block of rows.
// defines: attention_kernels<Element>()
#pragma once

#include "common/ops/cpu/attention_lanes.h"
#include "common/ops/cpu/attention_table.h"

namespace escalera::cpu {
namespace {

/// The type that elements of type T are computed in: float for bfloat16, else T itself.
template <class T>
struct RealFor {
  using type = T;
};
template <>
struct RealFor<Bits16> {
  using type = float;
};
template <class T>
using RealOf = typename RealFor<T>::type;

constexpr Index round_up(Index value, Index multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr Index smaller(Index a, Index b) {
  return a < b ? a : b;
}

constexpr Index panel_rows = 32;
constexpr Index row_block = attention_row_block;
constexpr Index key_block = attention_key_block;
constexpr Index panels_per_block = row_block / panel_rows;

// ---- the one product ----------------------------------------------------------------------------------------------

/// Element (i, k) of the left factor is data[i * row + k * column], so that a transposed factor costs nothing.
template <class Real>
struct LeftFactor {
  const Real* data;
  Index row;
  Index column;
};

/// C [rows, vectors * lanes] (+)= A B, held in registers.
template <Index rows, Index vectors, bool add, class Real>
ESCALERA_INLINE void multiply_tile(Index depth, LeftFactor<Real> a, const Real* b, Index b_row, Real* c,
                                   Index c_row) {
  constexpr int count = lanes<Real>;
  Vec<Real> sum[rows][vectors];
#pragma GCC unroll 16
  for (Index i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (Index j = 0; j < vectors; ++j) sum[i][j] = add ? load<Real>(c + i * c_row + j * count) : Vec<Real>{};
  }
  for (Index k = 0; k < depth; ++k) {
    Vec<Real> right[vectors];
#pragma GCC unroll 4
    for (Index j = 0; j < vectors; ++j) right[j] = load<Real>(b + k * b_row + j * count);
#pragma GCC unroll 16
    for (Index i = 0; i < rows; ++i) {
      const Real left = a.data[i * a.row + k * a.column];  // scalar times vector: one broadcasting load
#pragma GCC unroll 4
      for (Index j = 0; j < vectors; ++j) sum[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 16
  for (Index i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (Index j = 0; j < vectors; ++j) store<Real>(c + i * c_row + j * count, sum[i][j]);
  }
}

/// Rows from `row` on: as many tiles of tile_rows as fit, then the rest in smaller tiles.
template <Index tile_rows, Index vectors, bool add, class Real>
ESCALERA_INLINE void multiply_rows(Index row, Index rows, Index depth, LeftFactor<Real> a, const Real* b,
                                   Index b_row, Real* c, Index c_row) {
  for (; row + tile_rows <= rows; row += tile_rows) {
    multiply_tile<tile_rows, vectors, add>(depth, {a.data + row * a.row, a.row, a.column}, b, b_row,
                                           c + row * c_row, c_row);
  }
  if constexpr (tile_rows > 1) {
    if (row < rows)
      multiply_rows<tile_rows == 6 ? 4 : tile_rows / 2, vectors, add>(row, rows, depth, a, b, b_row, c,
                                                                      c_row);
  }
}

/// C [rows, columns] = A [rows, depth] B [depth, columns], or C += with `add`. columns is a multiple of the lane count.
/// Each element of C is summed in order of k, whatever tile it falls into.
template <bool add, class Real>
__attribute__((noinline)) void multiply(Index rows, Index columns, Index depth, LeftFactor<Real> a,
                                        const Real* b, Index b_row, Real* c, Index c_row) {
  constexpr int count = lanes<Real>;
  // As many sums as registers hold beside the two vectors of B and the element of A: 16 of 32 with AVX-512 (more gain
  // nothing), 12 of 16 with AVX2.
  constexpr Index tile_rows = ESCALERA_VECTOR_BYTES == 64 ? 8 : 6;
  Index column = 0;
  for (; column + 2 * count <= columns; column += 2 * count) {
    multiply_rows<tile_rows, 2, add>(0, rows, depth, a, b + column, b_row, c + column, c_row);
  }
  if (column < columns)
    multiply_rows<tile_rows, 1, add>(0, rows, depth, a, b + column, b_row, c + column, c_row);
}

// ---- where things are ---------------------------------------------------------------------------------------------

/// Head sizes are padded to this in the scratch: the widest vector has 16 lanes.
ESCALERA_INLINE Index padded_size(Index head_size) {
  return round_up(head_size, 16);
}

/// Where one kv head's rows and keys lie in the tensors of a call.
struct Places {
  Index group, first_query, first_head, first_key, key_stride;

  Places(const AttentionCall& call, const AttentionPart& part)
      : group(call.heads / call.kv_heads),
        first_query(part.batch * call.query_length),
        first_head(part.kv_head * group),
        first_key((part.batch * call.key_length * call.kv_heads + part.kv_head) * call.head_size),
        key_stride(call.kv_heads * call.head_size) {}

  /// Of key j in k, v, dk and dv.
  Index key(Index j) const { return first_key + j * key_stride; }
  /// How many keys a query sees: they are the first ones.
  Index visible_keys(const AttentionCall& call, Index query) const {
    if (!call.causal) return call.key_length;
    const Index seen = call.query_offset + query + 1 - call.key_offset;
    return smaller(seen > 0 ? seen : 0, call.key_length);
  }
};

/// A panel of rows: what forward and backward both need to know about it.
template <class Real>
struct Panel {
  Index rows;         // real ones; lanes beyond are padding
  Index width;        // rows, rounded up to whole vectors
  Index seen_by_all;  // keys
  Index seen_by_any;
  Index place[panel_rows];   // of each row in lse, which has one element per query and head
  Real visible[panel_rows];  // keys, by lane; padding lanes see all. In float exact up to 16 million keys

  void set(const AttentionCall& call, const Places& places, Index first, Index row_end) {
    rows = smaller(row_end - first, panel_rows);
    width = round_up(rows, lanes<Real>);
    Index query = first / places.group;
    Index head = first % places.group;
    seen_by_all = places.visible_keys(call, query);
    for (Index r = 0; r < width; ++r) {
      if (r >= rows) {
        visible[r] = static_cast<Real>(call.key_length);
        continue;
      }
      seen_by_any = places.visible_keys(call, query);
      visible[r] = static_cast<Real>(seen_by_any);
      place[r] = (places.first_query + query) * call.heads + places.first_head + head;
      if (++head == places.group) {
        head = 0;
        ++query;
      }
    }
  }
};

/// scores [keys, panel] of keys from `key` on: -infinity where the row does not see the key.
template <class Real>
ESCALERA_INLINE void mask(const Panel<Real>& panel, Index key, Index keys, Real* scores) {
  constexpr int count = lanes<Real>;
  if (key + keys <= panel.seen_by_all) return;
  for (Index lane = 0; lane < panel.width; lane += count) {
    const Vec<Real> visible = load<Real>(panel.visible + lane);
    Vec<Real> position = splat(static_cast<Real>(key));
    for (Index j = 0; j < keys; ++j) {
      Real* score = scores + j * panel_rows + lane;
      store<Real>(score, position < visible ? load<Real>(score) : splat(-FloatFormat<Real>::infinity));
      position += static_cast<Real>(1);
    }
  }
}

/// Hands out the parts of a thread's scratch.
template <class Real>
struct Scratch {
  Real* next;
  Real* take(Index size) {
    Real* block = next;
    next += round_up(size, 16);
    return block;
  }
};

/// Rows `begin`, `begin` + 1, ... of a key or value tensor, as Real [count, padded].
template <class Element>
ESCALERA_INLINE void load_keys(const AttentionCall& call, const Places& places, const void* tensor,
                               Index begin, Index count, Index padded, RealOf<Element>* rows) {
  const auto* elements = static_cast<const Element*>(tensor);
  for (Index j = 0; j < count; ++j) {
    load_row(elements + places.key(begin + j), call.head_size, padded, rows + j * padded);
  }
}

/// The panel's rows of q, out or d_out, as Real [panel, padded]; padding rows are zero.
template <class Element>
ESCALERA_INLINE void load_panel(const AttentionCall& call, const void* tensor,
                                const Panel<RealOf<Element>>& panel, Index padded, RealOf<Element>* rows) {
  const auto* elements = static_cast<const Element*>(tensor);
  for (Index r = 0; r < panel.rows; ++r) {
    load_row(elements + panel.place[r] * call.head_size, call.head_size, padded, rows + r * padded);
  }
  for (Index r = panel.rows; r < panel.width; ++r) load_row(elements, 0, padded, rows + r * padded);
}

/// The reverse for out or dq: `transposed` is [padded, panel]; `rows` is room for [panel, padded].
template <class Element>
ESCALERA_INLINE void store_panel(const AttentionCall& call, const Panel<RealOf<Element>>& panel, Index padded,
                                 const RealOf<Element>* transposed, RealOf<Element> factor,
                                 RealOf<Element>* rows, void* tensor) {
  auto* elements = static_cast<Element*>(tensor);
  transpose(padded, panel.width, transposed, panel_rows, factor, rows, padded);
  for (Index r = 0; r < panel.rows; ++r) {
    store_row(rows + r * padded, call.head_size, RealOf<Element>{1},
              elements + panel.place[r] * call.head_size);
  }
}

template <class Real>
ESCALERA_INLINE void fill(Real* values, Index size, Real value) {
  for (Index i = 0; i < size; ++i) values[i] = value;
}

/// What turns q k^T into an exponent of 2.
template <class Real>
ESCALERA_INLINE Real score_factor(Index head_size) {
  return static_cast<Real>(log2_e / __builtin_sqrt(static_cast<double>(head_size)));
}

}  // namespace
}  // namespace escalera::cpu
