#include "common/data/sampler.h"

#include <algorithm>

#include "common/core/philox.h"
#include "common/data/permutation.h"

namespace escalera {
namespace {

/// From this many windows on, giving one up costs little text, and buys an epoch that may begin anywhere.
constexpr Index windows_worth_a_shift = 64;

void require_window(const TokenFile& file, TokenRange range, Index seq_length) {
  require<UsageError>(seq_length >= 1, "--seq-length {}: must be at least 1", seq_length);
  require(range.begin >= 0 && range.end <= file.size(), "tokens {} to {} of {}", range.begin, range.end,
          file.size());
  require<UsageError>(
      range.size() >= seq_length + 1,
      "--data {}: {} tokens are too few for --seq-length {}, which takes {} (a sequence and its last target)",
      file.path(), range.size(), seq_length, seq_length + 1);
}

/// Row `row` of a batch as a span of its tokens or targets.
std::span<std::int32_t> row_of(std::vector<std::int32_t>& values, std::size_t row, Index seq_length) {
  const auto length = static_cast<std::size_t>(seq_length);
  return std::span(values).subspan(row * length, length);
}

}  // namespace

DataSplit split_tokens(const TokenFile& file, double validation_fraction, Index seq_length) {
  const Index tokens = file.size();
  require<UsageError>(seq_length >= 1, "--seq-length {}: must be at least 1", seq_length);
  require<UsageError>(validation_fraction >= 0 && validation_fraction < 1,
                      "validation fraction {}: must be at least 0 and less than 1", validation_fraction);
  Index held_out = 0;
  if (validation_fraction > 0) {
    held_out =
        std::max(static_cast<Index>(validation_fraction * static_cast<double>(tokens)), seq_length + 1);
  }
  const Index least = (held_out > 0 ? 2 : 1) * (seq_length + 1);
  require<UsageError>(
      tokens - held_out >= seq_length + 1,
      "--data {}: has {} tokens, of which {} are held out for validation; with --seq-length {} "
      "training takes at least {}, the file at least {}",
      file.path(), tokens, held_out, seq_length, seq_length + 1, least);
  return {{0, tokens - held_out}, {tokens - held_out, tokens}};
}

BatchSampler::BatchSampler(const TokenFile& file, TokenRange range, Index seq_length, std::uint64_t seed)
    : file_(file), range_(range), seq_length_(seq_length), seed_(seed) {
  require_window(file, range, seq_length);
  windows_ = (range.size() - 1) / seq_length;
  if (windows_ >= windows_worth_a_shift) windows_ -= 1;
}

Index BatchSampler::position(Index sample) const {
  require(sample >= 0, "sample {}: must be at least 0", sample);
  // Streams of their own, so that the order of an epoch says nothing about its shift, nor either about any
  // weight.
  static const std::uint64_t order_stream = hash_name("sampler order");
  static const std::uint64_t shift_stream = hash_name("sampler shift");
  const Index epoch = sample / windows_;
  const Index window =
      permute(sample % windows_, windows_, seed_, order_stream + static_cast<std::uint64_t>(epoch));
  const auto shifts = static_cast<double>(range_.size() - 1 - windows_ * seq_length_ + 1);
  const auto shift =
      static_cast<Index>(shifts * uniform(seed_, shift_stream, static_cast<std::uint64_t>(epoch)));
  return range_.begin + shift + window * seq_length_;
}

void BatchSampler::fill(std::span<const Index> samples, Batch& batch) const {
  batch.resize(static_cast<Index>(samples.size()), seq_length_);
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const Index begin = position(samples[row]);
    const auto targets = row_of(batch.targets, row, seq_length_);
    file_.read(begin, row_of(batch.tokens, row, seq_length_));
    file_.read(begin + 1, targets);
    for (Index i = 0; mask_ && i < seq_length_; ++i) {
      if (!mask_(samples[row], i)) targets[static_cast<std::size_t>(i)] = masked_target;
    }
  }
}

ValidationSet::ValidationSet(const TokenFile& file, TokenRange range, Index seq_length)
    : file_(file), range_(range), seq_length_(seq_length) {
  require_window(file, range, seq_length);
  windows_ = (range.size() - 1 + seq_length - 1) / seq_length;
}

void ValidationSet::fill(std::span<const Index> windows, Batch& batch) const {
  batch.resize(static_cast<Index>(windows.size()), seq_length_);
  // Token 0 where nothing is: an id that every vocabulary has. Causal attention keeps it from what comes
  // before it.
  std::fill(batch.tokens.begin(), batch.tokens.end(), 0);
  std::fill(batch.targets.begin(), batch.targets.end(), masked_target);
  for (std::size_t row = 0; row < windows.size(); ++row) {
    require(windows[row] >= 0, "validation window {}: must be at least 0", windows[row]);
    if (windows[row] >= windows_) continue;
    const Index begin = range_.begin + windows[row] * seq_length_;
    const auto count = static_cast<std::size_t>(std::min(seq_length_, range_.end - 1 - begin));
    file_.read(begin, row_of(batch.tokens, row, seq_length_).first(count));
    file_.read(begin + 1, row_of(batch.targets, row, seq_length_).first(count));
  }
}

}  // namespace escalera
