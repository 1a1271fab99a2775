// From a token file to batches: what is held out, in which order the rest is seen.
// defines: TokenRange, DataSplit, split_tokens(), BatchSampler, ValidationSet
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "common/data/batch.h"
#include "common/data/token_file.h"

namespace escalera {

/// Positions [begin, end) of a token file.
struct TokenRange {
  Index begin = 0;  ///< first position
  Index end = 0;    ///< one past the last
  /// Number of tokens.
  Index size() const { return end - begin; }
};

/// What is trained on and what is held out; they share no token.
struct DataSplit {
  TokenRange training;    ///< comes first in the file
  TokenRange validation;  ///< empty if nothing is held out
};

/// Splits a file: the last `validation_fraction` of its tokens (rounded down, but seq_length + 1 at least) is
/// held out, or nothing if it is 0. Splitting by position, not at random, keeps neighbouring text from being
/// on both sides. Throws UsageError, naming file and numbers, if seq_length < 1, if the fraction is not in
/// [0, 1), or if either side would be left with fewer than seq_length + 1 tokens: one sequence and the target
/// of its last token.
DataSplit split_tokens(const TokenFile& file, double validation_fraction, Index seq_length);

/// Training samples, numbered by how many the run has consumed: sample i is a function of (file, range,
/// seq_length, seed, i) and of nothing else, so that runs with another layout, and resumed runs, see the same
/// text in the same order.
///
/// The range is cut into windows of seq_length tokens that do not overlap; each epoch visits all of them
/// once, in a pseudo-random order of its own (permute()). From 64 windows on, one is given up, and each epoch
/// starts cutting at another place, up to the room that is left: the model then does not meet the same
/// beginnings in every epoch. With fewer, only what does not fill a window serves as room.
class BatchSampler {
 public:
  /// Says whether the target at `position` of [0, seq_length) of sample `sample` counts.
  using TargetMask = std::function<bool(Index sample, Index position)>;

  /// `file` must outlive the sampler. Throws UsageError, naming both numbers, unless `range` has seq_length +
  /// 1 tokens at least.
  BatchSampler(const TokenFile& file, TokenRange range, Index seq_length, std::uint64_t seed);

  /// Windows, and so samples, per epoch.
  Index samples_per_epoch() const { return windows_; }
  /// Where in the file sample `sample` >= 0 begins: it is the seq_length + 1 tokens from there.
  Index position(Index sample) const;
  /// Overwrites `batch` with one row per entry of `samples`.
  void fill(std::span<const Index> samples, Batch& batch) const;

  /// Masks targets by sample, before any split and so alike in every layout. None (the default) counts all.
  void set_target_mask(TargetMask mask) { mask_ = std::move(mask); }

 private:
  const TokenFile& file_;
  TokenRange range_;
  Index seq_length_;
  std::uint64_t seed_;
  Index windows_;
  TargetMask mask_;
};

/// The held-out range as consecutive windows. The last may be short and there may be rows beyond it: what is
/// not there is masked, so that each token but the very first is a target exactly once. A loss summed over
/// tokens and divided by their number is therefore the same for every batch size and layout.
class ValidationSet {
 public:
  /// `file` must outlive the set. Throws UsageError, naming both numbers, unless `range` has seq_length + 1
  /// tokens at least.
  ValidationSet(const TokenFile& file, TokenRange range, Index seq_length);

  /// Windows with at least one target.
  Index windows() const { return windows_; }
  /// Overwrites `batch` with one row per entry of `windows`, all >= 0; rows of windows that do not exist are
  /// masked.
  void fill(std::span<const Index> windows, Batch& batch) const;

 private:
  const TokenFile& file_;
  TokenRange range_;
  Index seq_length_;
  Index windows_;
};

}  // namespace escalera
