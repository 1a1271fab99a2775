// The program: continues a text with a model that a trainer has exported, or any Hugging Face folder of the Llama family.
//
// builds on: common/, no chapter
// run:  build/cpu/bin/generate runs/quickstart/model --prompt "In the beginning "
//       build/cpu/bin/generate runs/quickstart/model --temperature 0 --tokens 50            always the likeliest byte
//       build/cpu/bin/generate runs/quickstart/model --context 256 --tokens 2000            longer than it was trained on
//       build/cpu/bin/generate FOLDER --prompt-tokens 1,2,3                                  vocabularies other than bytes
// The text goes to standard output as it is drawn, byte for byte, with a newline at its end; everything else to standard error.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "common/checkpoint/model_folder.h"
#include "common/data/tokenizer.h"
#include "common/model/model.h"
#include "common/train/option_table.h"
#include "tools/generate/cached_attention.h"
#include "tools/generate/generation.h"
#include "tools/generate/prompt.h"
#include "tools/generate/sampler.h"

namespace escalera {
namespace {

// ---- Options --------------------------------------------------------------------------------------------------------

struct Options {
  std::string model_dir, prompt, prompt_tokens;
  SamplerSettings sampler{.temperature = 0.8, .top_k = 0, .seed = 1};
  std::optional<Index> tokens, context;
  DType dtype = DType::float32;
  int threads = 1;
};

void add_options(OptionTable& table, Options& options) {
  table.section("Model");
  table.add("--model-dir", "", options.model_dir,
            "folder with config.json and model.safetensors; may also stand first, without the flag", "DIR");
  table.add("--model", "", options.model_dir, "the same as --model-dir", "DIR");
  table.add_choice("--dtype", "", options.dtype,
                   {{"float32", DType::float32}, {"float64", DType::float64}, {"bfloat16", DType::bfloat16}},
                   "type to compute in; the weights are converted");
  table.add("--threads", "", options.threads, "compute threads; more than 1 pays for large models only",
            {1, 1024});
  table.section("Text");
  table.add("--prompt", "", options.prompt, "text to continue; empty: begin after a newline");
  table.add("--prompt-tokens", "", options.prompt_tokens,
            "the same as token ids, for models whose tokens are not bytes; then ids are printed too",
            "1,2,3");
  table.add("--tokens", "", options.tokens,
            "tokens to generate (default: 200, or what the model has positions for)", {1, Index{1} << 40});
  table.add(
      "--context", "", options.context,
      "tokens that the model sees at once; when they are full, their later half begins the next ones. Best "
      "the --seq-length of training: beyond it, text is garbled (default: all of the text)");
  table.section("Sampling");
  table.add("--temperature", "", options.sampler.temperature,
            "below 1 likely tokens become likelier, above 1 less so; 0: always the likeliest");
  table.add("--top-k", "", options.sampler.top_k, "draw from the k likeliest tokens only; 0: from all", {0});
  table.add("--seed", "", options.sampler.seed, "of the random numbers: the same seed, the same text", {0});
}

/// `generate DIR ...` is short for `generate --model-dir DIR ...`.
std::vector<std::string> with_model_flag(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (!arguments.empty() && !arguments.front().empty() && arguments.front().front() != '-') {
    arguments.insert(arguments.begin(), "--model-dir");
  }
  return arguments;
}

// ---- Output ---------------------------------------------------------------------------------------------------------

void write(const std::string& text) {
  // Flushed each time, so that the text appears as it is drawn.
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  require(written, "standard output cannot be written");
}

/// Bytes as they are: whether they form valid UTF-8 is up to the model. Other tokens as ids.
void write_token(std::int32_t token, bool bytes) {
  write(bytes ? std::string(1, static_cast<char>(static_cast<unsigned char>(token)))
              : fmt::format("{} ", token));
}

// ---- The run --------------------------------------------------------------------------------------------------------

void run(const Options& options) {
  require<UsageError>(!options.model_dir.empty(),
                      "no model: give the folder that a trainer wrote with --export, as in "
                      "generate runs/quickstart/model");
  require<UsageError>(std::filesystem::is_directory(options.model_dir), "{}: there is no such folder",
                      options.model_dir);
  const ModelConfig config = load_model_config(options.model_dir);
  const bool bytes = config.vocab_size == ByteTokenizer::vocab_size;
  const std::vector<std::int32_t> prompt =
      read_prompt(options.prompt, options.prompt_tokens, config.vocab_size);
  const auto prompt_length = static_cast<Index>(prompt.size());
  const Index positions = config.max_position_embeddings;
  const Index context = options.context.value_or(positions);
  require<UsageError>(context <= positions,
                      "--context {} is too long: the model's max_position_embeddings is {}", context,
                      positions);
  const Index count = options.context ? options.tokens.value_or(200)
                                      : tokens_to_generate(options.tokens, prompt_length, positions);
  if (!bytes) {
    fmt::print(stderr, "the model's vocabulary of {} tokens is not bytes: printing token ids\n",
               config.vocab_size);
  }

  const Index capacity = std::min(prompt_length + count - 1, context);
  const std::unique_ptr<Ops> ops = make_cpu_ops({.threads = options.threads});
  CachedAttention cache(*ops, config, options.dtype, capacity);
  Seams seams;
  seams.attention = &cache;
  Model model(*ops, config, {options.dtype, Recompute::none, capacity}, Stage::whole(config), seams);
  model.allocate();
  load_weights(model, options.model_dir, "--model-dir");

  if (!options.prompt.empty()) write(options.prompt);
  if (!options.prompt_tokens.empty()) {
    for (const std::int32_t token : prompt) write_token(token, bytes);
  }
  Sampler sampler(options.sampler);
  const auto start = std::chrono::steady_clock::now();
  const WhenFull when_full = options.context ? WhenFull::slide : WhenFull::refuse;
  generate(model, cache, prompt, count, sampler, when_full,
           [&](std::int32_t token) { write_token(token, bytes); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  write("\n");
  fmt::print(stderr, "{} tokens in {:.2f} s ({:.0f} tokens/s)\n", count, seconds,
             static_cast<double>(count) / seconds);
}

}  // namespace
}  // namespace escalera

int main(int argc, char** argv) {
  using namespace escalera;
  try {
    Options options;
    OptionTable table("generate", "Continues a text with a trained model. Use: generate DIR [options]");
    add_options(table, options);
    if (!table.parse(with_model_flag(argc, argv))) {
      fmt::print("{}", table.help());
      return 0;
    }
    run(options);
    return 0;
  } catch (const UsageError& error) {
    fmt::print(stderr, "generate: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "generate: {}\n", error.what());
    return 1;
  }
}
