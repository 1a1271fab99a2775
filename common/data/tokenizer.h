// Bytes as tokens: the tokenizer that needs no vocabulary file.
// defines: ByteTokenizer
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/error.h"

namespace escalera {

/// Token id = value of the byte, 0 to 255. Any text in any encoding comes back byte for byte; the locale
/// plays no part.
class ByteTokenizer {
 public:
  /// The smallest vocabulary that fits.
  static constexpr int vocab_size = 256;

  /// One id per byte of `text`.
  static std::vector<std::int32_t> encode(std::string_view text) {
    std::vector<std::int32_t> ids(text.size());
    // By way of unsigned char: where char is signed, the bytes of an umlaut would become negative ids.
    for (std::size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }

  /// The bytes that `ids` stand for. Throws Error for an id that is no byte.
  static std::string decode(std::span<const std::int32_t> ids) {
    std::string text(ids.size(), '\0');
    for (std::size_t i = 0; i < ids.size(); ++i) {
      require(ids[i] >= 0 && ids[i] < vocab_size, "token id {} at position {} is no byte (0 to 255)", ids[i],
              i);
      text[i] = static_cast<char>(static_cast<unsigned char>(ids[i]));
    }
    return text;
  }
};

}  // namespace escalera
