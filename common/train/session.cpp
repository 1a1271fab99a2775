#include "common/train/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/train/text_table.h"
#include "common/train/trace_file.h"

namespace escalera {
namespace {

/// Whether a progress line may be drawn. mpirun gives its ranks a terminal of their own even when its output goes to a
/// file, so under a launcher only the launcher can know, and says so in ESCALERA_TERMINAL.
bool writes_to_terminal() {
  if (const char* told = std::getenv("ESCALERA_TERMINAL")) return std::string_view(told) == "1";
  return launched_world_size() == 1 && isatty(STDOUT_FILENO) == 1;
}

std::string percent(double share) {
  return share < 0 ? "-" : fmt::format("{:.1f}%", 100.0 * share);
}

/// Whether communication that nothing hides is seen as waiting of the host's thread; a GPU's stream waits by itself.
bool waits_on_host(const TrainOptions& options) { return options.device == DeviceKind::cpu; }

const char* plural(Index count) {
  return count == 1 ? "" : "s";
}

std::string describe_model(const TrainOptions& options) {
  const ModelConfig& model = options.model;
  return fmt::format(
      "{}: {} layers, hidden {}, {} heads of {} ({} key/value), ffn {}, vocabulary {}, {} head",
      options.model_name, model.num_hidden_layers, model.hidden_size, model.num_attention_heads,
      model.head_size(), model.num_key_value_heads, model.intermediate_size, model.vocab_size,
      model.tie_word_embeddings ? "tied" : "untied");
}

std::string describe_optimizer(const TrainOptions& options) {
  std::string text(to_string(options.optimizer));
  if (options.optimizer == OptimizerKind::adamw) {
    text += fmt::format(", beta {} {}, epsilon {}", options.beta1, options.beta2, options.adam_epsilon);
  }
  return text + fmt::format(", weight decay {}, clip {}", options.weight_decay,
                            options.clip > 0 ? fmt::format("{}", options.clip) : "off");
}

std::string describe_learning_rate(const TrainOptions& options) {
  std::string text = fmt::format("{} {:.2e}", to_string(options.lr_schedule), options.learning_rate);
  if (options.lr_schedule != ScheduleKind::constant) {
    text += fmt::format(" to {:.2e} in {} steps", *options.min_learning_rate, *options.decay_steps);
  }
  return text + fmt::format(", warm-up {} steps", options.warmup_steps);
}

std::vector<ConfigurationRow> configuration(const TrainOptions& options, int ranks, std::string_view device) {
  const Index micro = *options.micro_batch_size, global = *options.global_batch_size;
  const Index dp = global / (micro * options.micro_batches());
  std::vector<ConfigurationRow> rows = {
      {"model", describe_model(options)},
      {"parameters", grouped(parameter_count(options.model))},
      {"ranks", fmt::format("{} ({}){}", ranks, options.launcher == CommKind::threads ? "threads of one process" : "mpi",
                            options.device == DeviceKind::cuda
                                ? ""
                                : fmt::format(", {} compute thread{} each", *options.threads, plural(*options.threads)))},
      {"device", fmt::format("{}, {}", device, to_string(options.dtype))},
      {"batch",
       fmt::format("{} per micro-batch x {} micro-batch{} x {} data-parallel rank{} = {} sequences", micro,
                   options.micro_batches(), plural(options.micro_batches()), dp, plural(dp), global)},
      {"tokens per step",
       fmt::format("{} sequences x {} = {}", global, options.seq_length, grouped(options.tokens_per_step()))},
      {"steps", *options.stop_after == options.steps
                    ? fmt::format("{}", options.steps)
                    : fmt::format("{} of {}", *options.stop_after, options.steps)},
      {"optimizer", describe_optimizer(options)},
      {"learning rate", describe_learning_rate(options)},
      {"recompute", std::string(to_string(options.recompute))},
      {"data", options.data},
      {"seed", fmt::format("{}", options.seed)}};
  if (options.peak_tflops > 0) {
    rows.push_back(
        {"MFU", fmt::format("of {} TFLOP/s per rank; 6 N + 12 L h s FLOPs per token, as published figures "
                            "count; in brackets with causal attention only",
                            options.peak_tflops)});
  }
  return rows;
}

/// Bytes per operation on this rank, and of control messages at the end.
std::vector<Index> traffic_so_far(const std::vector<const Communicator*>& groups) {
  std::vector<Index> bytes(operation_count + 1, 0);
  for (const Communicator* group : groups) {
    for (std::size_t i = 0; i < operation_count; ++i)
      bytes[i] += group->traffic(static_cast<Operation>(i)).bytes;
    bytes[operation_count] += group->control_traffic().bytes;
  }
  return bytes;
}

}  // namespace

void check_finite(Communicator& world, Index step, std::string_view what, double global, double local) {
  if (std::isfinite(global)) return;
  const std::vector<std::string> shares = world.gather_strings(fmt::format("{}", local));
  std::vector<int> culprits;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (!std::isfinite(std::strtod(shares[rank].c_str(), nullptr)))
      culprits.push_back(static_cast<int>(rank));
  }
  const int speaker = culprits.empty() ? 0 : culprits.front();
  std::string where;
  if (culprits.empty()) {
    where = fmt::format("every rank's own share is finite, the sum over {} ranks is not", world.size());
  } else if (culprits.size() > 1 && culprits.size() == shares.size()) {
    where = fmt::format("so it is on all {} ranks", world.size());
  } else {
    where = fmt::format("it began on rank{} {}, whose own share is {}",
                        plural(static_cast<Index>(culprits.size())), fmt::join(culprits, ", "),
                        shares[static_cast<std::size_t>(speaker)]);
  }
  const std::string message = fmt::format("step {}: the {} is {}; {}", step, what, global, where);
  if (world.rank() == speaker) throw Error(message);
  throw PeerError(message);
}

std::string log_line(const StepResult& result, double tokens_per_second, int ranks, double mfu,
                     double mfu_causal, double memory_bytes) {
  const std::string utilization =
      mfu < 0 ? "-" : fmt::format("{} ({} causal)", percent(mfu), percent(mfu_causal));
  return fmt::format(
      "step {} | loss {:.4f} | grad norm {:.3f} | lr {:.2e} | tokens/s {} | tokens/s/rank {} | MFU {} | "
      "memory {}",
      result.step, result.loss, result.gradient_norm, result.learning_rate, human_count(tokens_per_second),
      human_count(tokens_per_second / ranks), utilization, human_bytes(memory_bytes));
}

Session::Session(Communicator& world, const TrainOptions& options, const Device& device, Trace& trace)
    : world_(world),
      options_(options),
      device_(device),
      trace_(trace),
      signals_(world.rank() == 0),
      groups_{&world} {
  terminal_ = world.rank() == 0 && writes_to_terminal();
  if (!options.trace.empty()) trace.enable(true);
  if (!options.metrics.empty() && world.rank() == 0) {
    metrics_ = std::fopen(options.metrics.c_str(), "w");
    require(metrics_ != nullptr, "--metrics {}: the file cannot be opened for writing", options.metrics);
  }
}

Session::~Session() {
  clear_progress();
  if (metrics_ != nullptr) std::fclose(metrics_);
}

void Session::watch(const Communicator& group) {
  groups_.push_back(&group);
}

void Session::print(const std::string& text) {
  if (world_.rank() != 0) return;
  clear_progress();
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void Session::start(const std::vector<ConfigurationRow>& chapter, const std::vector<ConfigurationRow>& placement) {
  std::vector<ConfigurationRow> all = configuration(options_, world_.size(), device_.name());
  all.insert(all.end(), chapter.begin(), chapter.end());
  all.insert(all.end(), placement.begin(), placement.end());
  std::size_t width = 0;
  for (const auto& [name, value] : all) width = std::max(width, name.size());
  std::string text = "configuration";
  for (const auto& [name, value] : all) text += fmt::format("\n  {:<{}}  {}", name, width, value);
  print(text);
  previous_traffic_ = traffic_so_far(groups_);
  waited_before_ = seconds_waited();
  start_ = step_start_ = Clock::now();
}

bool Session::running(Index step) const {
  return !interrupted_ && step <= *options_.stop_after;
}

void Session::end_step(const StepResult& result) {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - step_start_).count();
  step_start_ = now;
  last_step_ = result.step;
  if (steps_done_++ == 0) first_seconds_ = seconds;
  seconds_done_ += seconds;
  seconds_since_log_ += seconds;
  ++steps_since_log_;
  const double waited = seconds_waited();
  waited_in_step_ = waited - waited_before_;
  waited_ += waited_in_step_;
  waited_before_ = waited;

  // One message answers two questions: the most memory that any rank has held, or infinity if one was told to stop. All
  // ranks learn the same, so all leave the loop after the same step.
  const double told = signals_.requested() ? std::numeric_limits<double>::infinity()
                                           : static_cast<double>(device_.memory().peak_total());
  const double answer = world_.max(told);
  interrupted_ = std::isinf(answer);
  if (!interrupted_) largest_memory_ = answer;

  const auto tokens = static_cast<double>(options_.tokens_per_step());
  if (!options_.metrics.empty()) write_metrics(result, seconds, tokens / std::max(seconds, 1e-9));

  const bool last = !running(result.step + 1);
  if (last || result.step % options_.log_every == 0 || steps_done_ == 1) {
    const double rate = tokens * static_cast<double>(steps_since_log_) / std::max(seconds_since_log_, 1e-9);
    const auto mfu = [&](AttentionFlops attention) {
      return model_flops_utilization(options_.model, options_.seq_length, attention, rate / world_.size(),
                                     options_.peak_tflops);
    };
    print(log_line(result, rate, world_.size(), mfu(AttentionFlops::full), mfu(AttentionFlops::causal),
                   largest_memory_));
    seconds_since_log_ = 0.0;
    steps_since_log_ = 0;
  }
  if (!last) draw_progress(result.step);
}

double Session::seconds_waited() const {
  double seconds = 0;
  for (const Communicator* group : groups_) seconds += group->seconds_waited();
  return seconds;
}

void Session::write_metrics(const StepResult& result, double seconds, double tokens_per_second) {
  // Memory is that of the fullest rank, traffic the sum of all ranks since the last step.
  const std::vector<Index> traffic = traffic_so_far(groups_);
  std::vector<Index> mine;
  for (int i = 0; i < memory_category_count; ++i) {
    mine.push_back(device_.memory().peak(static_cast<MemoryCategory>(i)));
  }
  for (std::size_t i = 0; i < traffic.size(); ++i) mine.push_back(traffic[i] - previous_traffic_[i]);
  previous_traffic_ = traffic;
  mine.push_back(static_cast<Index>(1e9 * waited_in_step_));
  const std::vector<std::string> all = world_.gather_strings(nlohmann::json(mine).dump());
  if (world_.rank() != 0) return;
  std::vector<Index> combined(mine.size(), 0);
  for (const std::string& text : all) {
    const auto theirs = nlohmann::json::parse(text).get<std::vector<Index>>();
    for (std::size_t i = 0; i < combined.size(); ++i) {
      combined[i] = i < memory_category_count ? std::max(combined[i], theirs[i]) : combined[i] + theirs[i];
    }
  }

  nlohmann::ordered_json memory, bytes_sent;
  for (std::size_t i = 0; i < memory_category_count; ++i) {
    memory[std::string(to_string(static_cast<MemoryCategory>(i)))] = combined[i];
  }
  for (std::size_t i = 0; i < operation_count; ++i) {
    bytes_sent[std::string(to_string(static_cast<Operation>(i)))] = combined[memory_category_count + i];
  }
  bytes_sent["control"] = combined[memory_category_count + operation_count];
  const double waiting = 1e-6 * static_cast<double>(combined.back()) / world_.size();
  const auto mfu = [&](AttentionFlops attention) -> nlohmann::ordered_json {
    const double share = model_flops_utilization(options_.model, options_.seq_length, attention,
                                                 tokens_per_second / world_.size(), options_.peak_tflops);
    return share < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(share);
  };
  nlohmann::ordered_json line = {{"step", result.step},
                                 {"loss", result.loss},
                                 {"grad_norm", result.gradient_norm},
                                 {"learning_rate", result.learning_rate},
                                 {"tokens", result.step * options_.tokens_per_step()},
                                 {"tokens_per_second", tokens_per_second},
                                 {"step_ms", 1e3 * seconds},
                                 {"exposed_ms", waits_on_host(options_) ? nlohmann::ordered_json(waiting) : nullptr},
                                 {"mfu", mfu(AttentionFlops::full)},
                                 {"mfu_causal", mfu(AttentionFlops::causal)},
                                 {"memory", memory},
                                 {"traffic", bytes_sent}};
  write_line(line.dump());
}

void Session::write_line(const std::string& line) {
  if (metrics_ == nullptr) return;
  const bool written = std::fputs((line + "\n").c_str(), metrics_) >= 0 && std::fflush(metrics_) == 0;
  require(written, "--metrics {}: writing failed; is the disk full?", options_.metrics);
}

void Session::validation(Index step, double loss, Index tokens) {
  print(fmt::format("step {} | validation loss {:.4f} | over {} tokens", step, loss, grouped(tokens)));
  write_line(nlohmann::ordered_json{{"step", step}, {"validation_loss", loss}, {"validation_tokens", tokens}}
                 .dump());
  step_start_ = Clock::now();  // the next step is not charged for it
  waited_before_ = seconds_waited();
}

void Session::finish() {
  if (interrupted_)
    print(fmt::format("stopped by a signal after step {} of {}", last_step_, *options_.stop_after));
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  print(fmt::format("{} steps in {:.1f} s, {} tokens/s after the first", steps_done_, seconds,
                    human_count(tokens_per_second())));
  if (world_.size() > 1 && waits_on_host(options_) && steps_done_ > 0) {
    const double waited = world_.sum(waited_) / world_.size();
    print(fmt::format("communication exposed: {:.1f} ms per step and rank, {:.1f} % of the time",
                      1e3 * waited / static_cast<double>(steps_done_), 100.0 * waited / std::max(seconds_done_, 1e-9)));
  }
  if (options_.trace.empty()) return;
  write_trace(world_, trace_, options_.trace);
  print(fmt::format("trace written to {}; open it in ui.perfetto.dev", options_.trace));
}

double Session::tokens_per_second() const {
  const auto tokens = static_cast<double>(options_.tokens_per_step());
  // A run of one step has nothing but its first.
  if (steps_done_ < 2)
    return seconds_done_ > 0 ? tokens * static_cast<double>(steps_done_) / seconds_done_ : 0.0;
  return tokens * static_cast<double>(steps_done_ - 1) / std::max(seconds_done_ - first_seconds_, 1e-9);
}

void Session::draw_progress(Index step) {
  if (!terminal_) return;
  constexpr Index width = 30;
  const Index filled = width * step / *options_.stop_after;
  const double left =
      seconds_done_ / static_cast<double>(steps_done_) * static_cast<double>(*options_.stop_after - step);
  fmt::print("\r\033[K[{:#<{}}{:.<{}}] {}/{}, {} left", "", filled, "", width - filled, step,
             *options_.stop_after, human_time(left));
  std::fflush(stdout);
  progress_drawn_ = true;
}

void Session::clear_progress() {
  if (!progress_drawn_) return;
  fmt::print("\r\033[K");
  std::fflush(stdout);
  progress_drawn_ = false;
}

}  // namespace escalera
