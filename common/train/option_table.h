// Command-line flags and the keys of a JSON configuration, registered together, so that the two can never differ.
// defines: OptionTable, IntegerRange, RealRange
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/core/dtype.h"

namespace escalera {

/// Whole numbers that an option accepts, both ends included.
struct IntegerRange {
  std::int64_t least = 1;                                        ///< smallest accepted value
  std::int64_t most = std::numeric_limits<std::int64_t>::max();  ///< largest accepted value
};

/// Real numbers that an option accepts. NaN and infinity never are.
struct RealRange {
  double least = 0.0;                                ///< lower end
  double most = std::numeric_limits<double>::max();  ///< upper end
  bool open_below = false;                           ///< true: the lower end itself is refused
  bool open_above = false;                           ///< true: the upper end itself is refused
};

/// The options of a program. Each is added once, with its flag, its place in a JSON configuration, the
/// variable that it sets and the values that it accepts; --help, unknown names, clashing types and ranges
/// follow from that. The variable's value at add() is the default. A flag beats the JSON file that --config
/// names, a later flag beats an earlier one.
///
///     OptionTable table("step01_dp", "Data parallelism: every rank has the whole model and a part of the
///     batch."); add_train_options(table, options.train); table.section("Data parallelism");
///     table.add("--dp", "distributed.dp_size", options.dp, "data-parallel ranks (default: all)");
///     table.add_choice("--dp-mode", "distributed.dp_mode", options.mode, {{"naive", DpMode::naive}}, "how
///     ...");
class OptionTable {
 public:
  /// `program` and `description` open the help text.
  OptionTable(std::string program, std::string description);
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  /// Options added from now on appear under this heading in --help.
  void section(std::string heading);

  /// A whole number (std::int64_t, int or std::uint64_t), also inside a std::optional, which stays empty
  /// unless given. `key` is the path in the JSON file, "training.seed", or "" for an option that only the
  /// command line has.
  template <class T>
  requires std::is_integral_v<T>
  void add(const std::string& flag, const std::string& key, T& target, const std::string& help,
           IntegerRange range = {}) {
    add_integer(flag, key, help, narrow<T>(range), std::to_string(target),
                [&target](std::int64_t value) { target = static_cast<T>(value); });
  }
  /// As above; empty unless given.
  template <class T>
  requires std::is_integral_v<T>
  void add(const std::string& flag, const std::string& key, std::optional<T>& target, const std::string& help,
           IntegerRange range = {}) {
    add_integer(flag, key, help, narrow<T>(range), "",
                [&target](std::int64_t value) { target = static_cast<T>(value); });
  }
  /// A real number.
  void add(const std::string& flag, const std::string& key, double& target, const std::string& help,
           RealRange range = {});
  /// A real number; empty unless given.
  void add(const std::string& flag, const std::string& key, std::optional<double>& target,
           const std::string& help, RealRange range = {});
  /// A switch: `--flag`, `--flag true`, `--flag false` or `--no-flag`.
  void add(const std::string& flag, const std::string& key, bool& target, const std::string& help);
  /// A switch that remembers whether it was given.
  void add(const std::string& flag, const std::string& key, std::optional<bool>& target,
           const std::string& help);
  /// Text, such as a file name; `placeholder` stands for it in --help.
  void add(const std::string& flag, const std::string& key, std::string& target, const std::string& help,
           const std::string& placeholder = "TEXT");
  /// A number of bytes, with KB, MB, GB (powers of 1000) or KiB, MiB, GiB (powers of 1024) after it or alone.
  void add_bytes(const std::string& flag, const std::string& key, Index& target, const std::string& help);
  /// One of several words.
  template <class T>
  void add_choice(const std::string& flag, const std::string& key, T& target,
                  const std::vector<std::pair<std::string, T>>& choices, const std::string& help) {
    std::vector<std::string> words;
    std::string initial;
    for (const auto& [word, value] : choices) {
      words.push_back(word);
      if (value == target) initial = word;
    }
    add_words(flag, key, help, words, initial,
              [&target, choices](std::size_t i) { target = choices[i].second; });
  }

  /// A flag or JSON key that this program does not have but that people will try: it is refused with `reason`
  /// instead of "unknown option". add() of the same flag or key takes its place.
  void explain_missing(const std::string& flag, const std::string& key, const std::string& reason);

  /// Reads the command line and the file that its --config names and sets the variables. Returns false if
  /// --help was asked for, in which case nothing is set. Looks at nothing but its arguments and that file, so
  /// that all ranks agree. Throws UsageError: unknown flag or key (with the nearest name), wrong type, value
  /// out of range, key given twice, malformed JSON (with line and column).
  bool parse(int argc, const char* const* argv);
  /// As parse(), for tests: the arguments without the program's name.
  bool parse(const std::vector<std::string>& given);

  /// true if the option was set by the command line or the JSON file.
  bool given(const std::string& flag) const;
  /// The text of --help.
  std::string help() const;
  /// The program's name as given.
  const std::string& program() const { return program_; }

 private:
  /// What kind of JSON value, and what placeholder in --help, an option wants.
  enum class Kind { integer, real, boolean, text, bytes };
  struct Entry {
    std::string flag, key, help, heading, placeholder, initial;
    Kind kind = Kind::text;
    /// Checks `text` and sets the variable; `where` names the place for messages: "--tp" or "run.json:
    /// distributed.tp_size".
    std::function<void(const std::string& text, const std::string& where)> set;
    bool given = false;
  };
  struct Missing {
    std::string flag, key, reason;
  };

  template <class T>
  static IntegerRange narrow(IntegerRange range) {
    if constexpr (sizeof(T) < sizeof(std::int64_t)) {
      range.most = std::min<std::int64_t>(range.most, std::numeric_limits<T>::max());
      range.least = std::max<std::int64_t>(range.least, std::numeric_limits<T>::min());
    }
    return range;
  }
  void add_integer(const std::string& flag, const std::string& key, const std::string& help,
                   IntegerRange range, const std::string& initial, std::function<void(std::int64_t)> set);
  void add_words(const std::string& flag, const std::string& key, const std::string& help,
                 const std::vector<std::string>& words, const std::string& initial,
                 std::function<void(std::size_t)> set);
  void insert(Entry entry);
  bool is_flag(const std::string& text) const;
  void read_json(const std::string& path);
  static void set_from_json(Entry& entry, const nlohmann::json& value, const std::string& where);
  [[noreturn]] void refuse_flag(const std::string& flag) const;
  [[noreturn]] void refuse_key(const std::string& file, const std::string& key) const;

  std::string program_, description_, heading_, config_path_;
  std::vector<Entry> entries_;
  std::vector<Missing> missing_;
};

}  // namespace escalera
