#include "tests/support/program_run.h"

#include <fmt/ranges.h>

#include <sstream>

#include "common/checkpoint/safetensors.h"
#include "tests/support/parity.h"

namespace escalera {

Words operator+(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Words on_threads(int ranks, const std::string& program) {
  return {ESCALERA_PROGRAM_FOLDER "/" + program, "--comm", "threads", "--ranks", fmt::format("{}", ranks)};
}

Words on_mpi(int ranks, const std::string& program) {
  return {ESCALERA_LAUNCH, "-n", fmt::format("{}", ranks), ESCALERA_PROGRAM_FOLDER "/" + program};
}

bool has_mpi() {
  return ESCALERA_WITH_MPI != 0;
}

ProcessResult run_well(const Words& command, const ProcessOptions& options) {
  ProcessResult result = run_process(command, options);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 0) << fmt::format("{}", fmt::join(command, " ")) << "\n" << result.err;
  return result;
}

Words small_model(const std::string& data) {
  return {"--num-hidden-layers",
          "2",
          "--hidden-size",
          "48",
          "--num-attention-heads",
          "6",
          "--num-key-value-heads",
          "2",
          "--intermediate-size",
          "80",
          "--seq-length",
          "24",
          "--data",
          data};
}

std::string repetitive_text(std::size_t bytes) {
  static const std::vector<std::string> climbers = {"The goat", "A child", "My aunt", "The whole band",
                                                    "Nobody"};
  static const std::vector<std::string> stairs = {"seven", "twenty", "one hundred", "no"};
  std::string text;
  for (std::size_t line = 0; text.size() < bytes; line++) {
    text += fmt::format("{} climbed {} steps and sat down to look back.\n", climbers[line % climbers.size()],
                        stairs[line * line % stairs.size()]);
  }
  text.resize(bytes);
  return text;
}

std::string raw_tokens(const std::vector<std::uint32_t>& tokens, int width) {
  std::string bytes;
  for (const std::uint32_t token : tokens) {
    for (int shift = 0; shift < width; shift += 8) bytes += static_cast<char>(token >> shift & 0xff);
  }
  return bytes;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) count++;
  return count;
}

std::vector<nlohmann::json> metrics_of(const std::string& file) {
  std::ifstream stream(file);
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(stream, line);) objects.push_back(nlohmann::json::parse(line));
  return objects;
}

std::vector<double> losses_of(const std::string& metrics_file) {
  std::vector<double> losses;
  for (const nlohmann::json& line : metrics_of(metrics_file)) {
    if (line.contains("loss")) losses.push_back(line.at("loss").get<double>());
  }
  return losses;
}

std::map<std::string, double> tensor_errors(const std::string& got, const std::string& reference) {
  const SafetensorsReader ours(got), theirs(reference);
  EXPECT_EQ(ours.tensors().size(), theirs.tensors().size());
  std::map<std::string, double> errors;
  for (const auto& [name, info] : theirs.tensors()) {
    EXPECT_EQ(ours.info(name).shape, info.shape) << name;
    errors[name] = relative_error(ours.values(name), theirs.values(name));
  }
  return errors;
}

}  // namespace escalera
