// The text to train on: a file of tokens, mapped into memory and never copied as a whole.
// defines: TokenFile
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/core/dtype.h"
#include "common/core/mapped_file.h"

namespace escalera {

/// A sequence of token ids in a file, in one of three formats, all little-endian:
///
/// - text: each byte is a token, exactly as it lies in the file. Token width 8, or 0 and no header.
/// - llm.c: int32[256] (magic, version, count, zeros), then `count` tokens: uint16 for magic 20240520,
/// version 1
///   (GPT-2), uint32 for magic 20240801, version 7 (Llama 3). Told by the magic number; a token width that
///   is given as well must agree.
/// - raw: uint16 or uint32 tokens and nothing else. Token width 16 or 32, and no header.
///
/// Reading is const and may happen on several threads at once.
class TokenFile {
 public:
  /// Maps `path`; `token_width` is in bits: 8, 16, 32, or 0 to detect. Throws UsageError, naming `--data`,
  /// the file and the numbers at odds, for a file that is missing, a directory, unreadable or empty, has a
  /// size that is no multiple of the width, a damaged or contradicting header, or contents that look like
  /// another width: text with zero bytes in it (UTF-16 with its byte order mark is let through) and 16-bit
  /// tokens of which every second one is 0 or 1.
  explicit TokenFile(const std::string& path, int token_width = 0);

  /// As it was given.
  const std::string& path() const { return file_.path(); }
  /// Tokens in the file, at least 1.
  Index size() const { return size_; }
  /// Bits per token in the file: 8, 16 or 32.
  int token_width() const { return token_width_; }
  /// "text", "llm.c header, 16-bit tokens" or "raw 16-bit tokens", for the table of the configuration.
  std::string format() const;

  /// The id at `position` of [0, size()). Throws Error outside of it.
  Index token(Index position) const;
  /// Copies tokens[position, position + out.size()) to `out`. Throws Error unless all of them are in the
  /// file. Ids beyond 2^31 - 1 do not survive; validate() refuses them.
  void read(Index position, std::span<std::int32_t> out) const;

  /// Checks every id of the file against the vocabulary, at about the speed of memory. Throws UsageError
  /// naming file, position of the first offending token, its id and `vocab_size`.
  void validate(Index vocab_size) const;

 private:
  void parse_header(int requested_width);
  void check_contents(int requested_width) const;

  MappedFile file_;
  const std::byte* tokens_ = nullptr;  // size_ * token_width_ / 8 bytes, aligned to the width
  Index size_ = 0;
  int token_width_ = 0;
  bool has_header_ = false;
};

}  // namespace escalera
