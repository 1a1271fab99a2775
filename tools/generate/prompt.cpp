#include "tools/generate/prompt.h"

#include <algorithm>
#include <charconv>

#include "common/data/tokenizer.h"

namespace escalera {

std::vector<std::int32_t> parse_token_list(std::string_view list, Index vocab_size) {
  std::vector<std::int32_t> ids;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view word = list.substr(begin, end - begin);
    Index id = -1;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    require<UsageError>(error != std::errc::invalid_argument && rest == word.data() + word.size(),
                        "--prompt-tokens: '{}' is no whole number; a list such as 1,2,3 is expected", word);
    require<UsageError>(error == std::errc() && id >= 0 && id < vocab_size,
                        "--prompt-tokens: {} is no token of this model, whose ids are 0 to {}", word,
                        vocab_size - 1);
    ids.push_back(static_cast<std::int32_t>(id));
    begin = end + 1;
  }
  return ids;
}

std::vector<std::int32_t> read_prompt(const std::string& text, const std::string& token_list,
                                      Index vocab_size) {
  require<UsageError>(text.empty() || token_list.empty(),
                      "--prompt and --prompt-tokens cannot both be given");
  if (!token_list.empty()) return parse_token_list(token_list, vocab_size);
  require<UsageError>(
      vocab_size == ByteTokenizer::vocab_size,
      "the model's vocabulary of {} tokens is not bytes, and this program has no other tokenizer; give "
      "the prompt as token ids, such as --prompt-tokens 1,2,3",
      vocab_size);
  return ByteTokenizer::encode(text.empty() ? "\n" : text);
}

Index tokens_to_generate(std::optional<Index> wanted, Index prompt_length, Index positions) {
  require<UsageError>(prompt_length <= positions,
                      "the prompt has {} tokens, but the model's max_position_embeddings is {}; shorten the "
                      "prompt, or give --context",
                      prompt_length, positions);
  const Index fit = positions - prompt_length + 1;  // the last token is drawn and never read
  if (!wanted) return std::min<Index>(200, fit);
  require<UsageError>(
      *wanted <= fit,
      "--tokens {} is too long: after a prompt of {} tokens and with max_position_embeddings {}, {} fit; "
      "--context has no such limit",
      *wanted, prompt_length, positions, fit);
  return *wanted;
}

}  // namespace escalera
