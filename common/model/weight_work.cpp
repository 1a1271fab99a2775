#include "common/model/weight_work.h"

namespace escalera {

void WeightWork::add_linear(Tensor dy, Tensor x, Tensor dw) {
  add({std::move(dy), std::move(x), std::move(dw), {}, 0});
}

void WeightWork::add_embedding(std::span<const std::int32_t> tokens, Tensor dy, Index first_row, Tensor d_table) {
  add({std::move(dy), {}, std::move(d_table), tokens, first_row});
}

void WeightWork::add(Piece piece) {
  if (defer_) {
    pieces_.push_back(std::move(piece));
  } else {
    compute(piece);
  }
}

void WeightWork::run() {
  for (const Piece& piece : pieces_) compute(piece);
  pieces_.clear();
}

void WeightWork::compute(const Piece& piece) {
  if (piece.tokens.empty()) {
    ops_->linear_backward_weight(piece.dy, piece.x, piece.gradient);
  } else {
    ops_->embedding_backward(piece.tokens, piece.dy, piece.first_row, piece.gradient);
  }
}

}  // namespace escalera
