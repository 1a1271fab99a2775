// What a text begins with, and how long it may get.
// defines: read_prompt(), parse_token_list(), tokens_to_generate()
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/dtype.h"

namespace escalera {

/// "1,2,3" as token ids. Throws UsageError for anything that is no list of whole numbers from 0 to `vocab_size` - 1.
std::vector<std::int32_t> parse_token_list(std::string_view list, Index vocab_size);

/// The tokens of --prompt or --prompt-tokens. Where bytes are tokens (`vocab_size` 256), an empty prompt is a newline: the
/// model has to start from something, and after a newline anything may begin. Throws UsageError if both are given, or if the
/// vocabulary is not bytes and there are no token ids.
std::vector<std::int32_t> read_prompt(const std::string& text, const std::string& token_list,
                                      Index vocab_size);

/// How many tokens to generate where the whole text has to fit: `wanted`, or if that is empty at most 200 and at most what
/// fits. Throws UsageError, with the number that fits, if the prompt or `wanted` is longer than a model with `positions`
/// positions can read.
Index tokens_to_generate(std::optional<Index> wanted, Index prompt_length, Index positions);

}  // namespace escalera
