#include "common/data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

namespace escalera {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

/// llm.c's header: 256 int32 numbers, of which three mean something.
constexpr std::size_t header_bytes = 256 * sizeof(std::int32_t);

struct HeaderKind {
  std::int32_t magic, version;
  int token_width;
};
constexpr HeaderKind header_kinds[] = {{20240520, 1, 16}, {20240801, 7, 32}};

/// Calls body with a pointer to tokens of the file's width.
template <class Body>
decltype(auto) with_tokens(const std::byte* tokens, int token_width, Body&& body) {
  switch (token_width) {
    case 8:
      return body(reinterpret_cast<const std::uint8_t*>(tokens));
    case 16:
      return body(reinterpret_cast<const std::uint16_t*>(tokens));
    default:
      return body(reinterpret_cast<const std::uint32_t*>(tokens));
  }
}

/// Position of the first id >= limit, or count. The inner loop has no exit, so that compilers turn it into
/// SIMD; only a block that holds an offender is searched one by one.
template <class T>
Index first_at_least(const T* tokens, Index count, T limit) {
  constexpr Index block = 1 << 14;
  for (Index begin = 0; begin < count; begin += block) {
    const Index end = std::min(count, begin + block);
    T highest = 0;
    for (Index i = begin; i < end; ++i) highest = std::max(highest, tokens[i]);
    if (highest >= limit)
      return std::find_if(tokens + begin, tokens + end, [&](T id) { return id >= limit; }) - tokens;
  }
  return count;
}

bool starts_with_utf16_mark(std::span<const std::byte> bytes) {
  const auto at = [&](std::size_t i) { return std::to_integer<int>(bytes[i]); };
  return bytes.size() >= 2 && ((at(0) == 0xff && at(1) == 0xfe) || (at(0) == 0xfe && at(1) == 0xff));
}

/// 32-bit ids read as 16-bit ones: each is followed by its upper half, which is 0 or 1 for every vocabulary
/// in use.
bool looks_like_32_bits(const std::uint16_t* tokens, Index count) {
  const Index pairs = std::min<Index>(count / 2, 1 << 16);
  if (pairs < 64) return false;
  bool first_vary = false;
  for (Index i = 0; i < pairs; ++i) {
    if (tokens[2 * i + 1] > 1) return false;
    first_vary |= tokens[2 * i] > 1;
  }
  return first_vary;
}

}  // namespace

TokenFile::TokenFile(const std::string& path, int token_width) : file_(path, "--data") {
  require<UsageError>(token_width == 0 || token_width == 8 || token_width == 16 || token_width == 32,
                      "--token-width {}: must be 8, 16 or 32, or 0 to detect", token_width);
  require<UsageError>(!file_.bytes().empty(), "--data {}: is empty (0 bytes), there is nothing to train on",
                      path);
  tokens_ = file_.bytes().data();
  parse_header(token_width);
  if (!has_header_) {
    token_width_ = token_width == 0 ? 8 : token_width;
    const auto bytes = static_cast<Index>(file_.bytes().size());
    require<UsageError>(
        bytes % (token_width_ / 8) == 0,
        "--data {}: {} bytes are not a whole number of {}-bit tokens; is --token-width {} right?", path,
        bytes, token_width_, token_width_);
    size_ = bytes / (token_width_ / 8);
  }
  check_contents(token_width);
}

void TokenFile::parse_header(int requested_width) {
  const auto bytes = file_.bytes();
  std::int32_t magic = 0, version = 0, count = 0;
  if (bytes.size() < sizeof magic) return;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  const auto* kind = std::find_if(std::begin(header_kinds), std::end(header_kinds),
                                  [&](const HeaderKind& k) { return k.magic == magic; });
  if (kind == std::end(header_kinds)) return;

  require<UsageError>(
      bytes.size() >= header_bytes,
      "--data {}: starts with llm.c's magic number {} but has {} bytes, fewer than the header's {}", path(),
      magic, bytes.size(), header_bytes);
  std::memcpy(&version, bytes.data() + 4, sizeof version);
  std::memcpy(&count, bytes.data() + 8, sizeof count);
  require<UsageError>(version == kind->version,
                      "--data {}: header version {} with magic number {}; version {} is expected", path(),
                      version, magic, kind->version);
  require<UsageError>(requested_width == 0 || requested_width == kind->token_width,
                      "--data {}: the header says {}-bit tokens, but --token-width is {}", path(),
                      kind->token_width, requested_width);
  require<UsageError>(count > 0, "--data {}: the header promises {} tokens", path(), count);
  const auto present = static_cast<Index>(bytes.size() - header_bytes);
  const Index promised = Index{count} * (kind->token_width / 8);
  require<UsageError>(present == promised,
                      "--data {}: the header promises {} tokens of {} bits, {} bytes, but {} bytes follow it",
                      path(), count, kind->token_width, promised, present);
  has_header_ = true;
  token_width_ = kind->token_width;
  size_ = count;
  tokens_ = bytes.data() + header_bytes;
}

// A wrong width rarely fails by itself: training would run on noise. So what can be told from the contents is
// told.
void TokenFile::check_contents(int requested_width) const {
  if (has_header_) return;
  if (requested_width == 0 && !starts_with_utf16_mark(file_.bytes())) {
    const std::size_t looked_at = std::min<std::size_t>(file_.bytes().size(), 1 << 20);
    const void* zero = std::memchr(tokens_, 0, looked_at);
    if (zero != nullptr) {
      fail<UsageError>(
          "--data {}: byte {} is 0, so this is no plain text; give --token-width 16 or 32 for a raw token "
          "file, or "
          "--token-width 8 to take its bytes as they are",
          path(), static_cast<const std::byte*>(zero) - tokens_);
    }
  }
  if (token_width_ == 16 && looks_like_32_bits(reinterpret_cast<const std::uint16_t*>(tokens_), size_)) {
    fail<UsageError>(
        "--data {}: every second 16-bit token is 0 or 1; this looks like a file for --token-width 32, not 16",
        path());
  }
}

std::string TokenFile::format() const {
  if (token_width_ == 8) return "text";
  return fmt::format("{} {}-bit tokens", has_header_ ? "llm.c header," : "raw", token_width_);
}

Index TokenFile::token(Index position) const {
  require(position >= 0 && position < size_, "{}: token {} of {}", path(), position, size_);
  return with_tokens(tokens_, token_width_,
                     [&](const auto* tokens) { return static_cast<Index>(tokens[position]); });
}

void TokenFile::read(Index position, std::span<std::int32_t> out) const {
  const auto count = static_cast<Index>(out.size());
  require(position >= 0 && position <= size_ && count <= size_ - position, "{}: tokens {} to {} of {}",
          path(), position, position + count, size_);
  with_tokens(tokens_, token_width_, [&](const auto* tokens) {
    std::transform(tokens + position, tokens + position + count, out.begin(),
                   [](auto id) { return static_cast<std::int32_t>(id); });
  });
}

void TokenFile::validate(Index vocab_size) const {
  require<UsageError>(vocab_size > 0 && vocab_size <= std::numeric_limits<std::int32_t>::max(),
                      "--vocab-size {}: must be 1 to {}", vocab_size,
                      std::numeric_limits<std::int32_t>::max());
  const Index position = with_tokens(tokens_, token_width_, [&](const auto* tokens) -> Index {
    using T = std::remove_cvref_t<decltype(*tokens)>;
    if (vocab_size > Index{std::numeric_limits<T>::max()})
      return size_;  // no id of this width can be too large
    return first_at_least(tokens, size_, static_cast<T>(vocab_size));
  });
  if (position == size_) return;
  const char* advice =
      has_header_ || token_width_ == 8
          ? "give the --vocab-size (or --model) that the file was made for"
          : "give the --vocab-size (or --model) and the --token-width that the file was made with";
  fail<UsageError>("--data {}: the token at offset {} has id {}, but the vocabulary has {} (ids 0 to {}); {}",
                   path(), position, token(position), vocab_size, vocab_size - 1, advice);
}

}  // namespace escalera
