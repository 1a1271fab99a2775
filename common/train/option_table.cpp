#include "common/train/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/core/error.h"
#include "common/core/nearest_name.h"
#include "common/model/json_file.h"

namespace escalera {
namespace {

using Json = nlohmann::json;

// ---- From text to values --------------------------------------------------------------------------------

std::string describe(const IntegerRange& range) {
  if (range.most == std::numeric_limits<std::int64_t>::max()) return fmt::format("at least {}", range.least);
  return fmt::format("from {} to {}", range.least, range.most);
}

std::int64_t parse_integer(const std::string& text, const std::string& where, const IntegerRange& range) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  require<UsageError>(error != std::errc::invalid_argument && stop == end,
                      "{} must be a whole number, not '{}'", where, text);
  require<UsageError>(error == std::errc() && value >= range.least && value <= range.most,
                      "{} must be {}, not {}", where, describe(range), text);
  return value;
}

std::string describe(const RealRange& range) {
  const std::string lower = fmt::format("{} {}", range.open_below ? "greater than" : "at least", range.least);
  if (range.most == std::numeric_limits<double>::max()) return lower;
  return fmt::format("{} and {} {}", lower, range.open_above ? "less than" : "at most", range.most);
}

double parse_real(const std::string& text, const std::string& where, const RealRange& range) {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  require<UsageError>(error != std::errc::invalid_argument && stop == end, "{} must be a number, not '{}'",
                      where, text);
  const bool above = range.open_below ? value > range.least : value >= range.least;
  const bool below = range.open_above ? value < range.most : value <= range.most;
  require<UsageError>(error == std::errc() && std::isfinite(value) && above && below, "{} must be {}, not {}",
                      where, describe(range), text);
  return value;
}

bool parse_boolean(const std::string& text, const std::string& where) {
  if (text.empty() || text == "true") return true;  // the bare flag has no text
  require<UsageError>(text == "false", "{} must be true or false, not '{}'", where, text);
  return false;
}

Index parse_bytes(const std::string& text, const std::string& where) {
  static const std::vector<std::pair<std::string, double>> units = {
      {"", 1.0},   {"B", 1.0},      {"KB", 1e3},        {"MB", 1e6},
      {"GB", 1e9}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
  double number = 0.0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(stop, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size() : unit.find_first_not_of(' '));
  for (const auto& [name, factor] : units) {
    const double bytes = number * factor;
    if (error == std::errc() && unit == name && bytes >= 0 && bytes < 9e18) return static_cast<Index>(bytes);
  }
  fail<UsageError>("{} must be a number of bytes such as 500000000, 512MiB or 1.5GB, not '{}'", where, text);
}

/// Breaks `text` into lines of at most `width` columns, each after the first indented.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width) {
  std::string result;
  std::size_t column = indent;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (column + 1 + end - begin > width && column > indent) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (begin > 0) {
      result += ' ';
      ++column;
    }
    result += text.substr(begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return result;
}

}  // namespace

// ---- Registration ---------------------------------------------------------------------------------------

OptionTable::OptionTable(std::string program, std::string description)
    : program_(std::move(program)), description_(std::move(description)) {
  section("General");
  add("--config", "", config_path_, "JSON file with any of the options below (keys in brackets)", "FILE");
}

void OptionTable::section(std::string heading) {
  heading_ = std::move(heading);
}

void OptionTable::insert(Entry entry) {
  entry.heading = heading_;
  for (const Entry& other : entries_) {
    require(other.flag != entry.flag && (entry.key.empty() || other.key != entry.key),
            "the option {} ({}) was added twice", entry.flag, entry.key);
  }
  std::erase_if(missing_, [&](const Missing& missing) {
    return missing.flag == entry.flag || (!entry.key.empty() && missing.key == entry.key);
  });
  entries_.push_back(std::move(entry));
}

void OptionTable::add_integer(const std::string& flag, const std::string& key, const std::string& help,
                              IntegerRange range, const std::string& initial,
                              std::function<void(std::int64_t)> set) {
  Entry entry{flag, key, help, "", "N", initial, Kind::integer, {}};
  entry.set = [range, set = std::move(set)](const std::string& text, const std::string& where) {
    set(parse_integer(text, where, range));
  };
  insert(std::move(entry));
}

void OptionTable::add(const std::string& flag, const std::string& key, double& target,
                      const std::string& help, RealRange range) {
  Entry entry{flag, key, help, "", "X", fmt::format("{}", target), Kind::real, {}};
  entry.set = [&target, range](const std::string& text, const std::string& where) {
    target = parse_real(text, where, range);
  };
  insert(std::move(entry));
}

void OptionTable::add(const std::string& flag, const std::string& key, std::optional<double>& target,
                      const std::string& help, RealRange range) {
  Entry entry{flag, key, help, "", "X", "", Kind::real, {}};
  entry.set = [&target, range](const std::string& text, const std::string& where) {
    target = parse_real(text, where, range);
  };
  insert(std::move(entry));
}

void OptionTable::add(const std::string& flag, const std::string& key, bool& target,
                      const std::string& help) {
  Entry entry{flag, key, help, "", "[true|false]", target ? "true" : "false", Kind::boolean, {}};
  entry.set = [&target](const std::string& text, const std::string& where) {
    target = parse_boolean(text, where);
  };
  insert(std::move(entry));
}

void OptionTable::add(const std::string& flag, const std::string& key, std::optional<bool>& target,
                      const std::string& help) {
  Entry entry{flag, key, help, "", "[true|false]", "", Kind::boolean, {}};
  entry.set = [&target](const std::string& text, const std::string& where) {
    target = parse_boolean(text, where);
  };
  insert(std::move(entry));
}

void OptionTable::add(const std::string& flag, const std::string& key, std::string& target,
                      const std::string& help, const std::string& placeholder) {
  Entry entry{flag, key, help, "", placeholder, target, Kind::text, {}};
  // An empty name is a shell variable that was not set: taken for "not given", it would lose what was to be written.
  const bool is_path = placeholder == "FILE" || placeholder == "DIR";
  entry.set = [&target, is_path](const std::string& text, const std::string& where) {
    require<UsageError>(!is_path || !text.empty(), "{}: the name is empty; leave the option out if it is not wanted", where);
    target = text;
  };
  insert(std::move(entry));
}

void OptionTable::add_bytes(const std::string& flag, const std::string& key, Index& target,
                            const std::string& help) {
  Entry entry{flag, key, help, "", "BYTES", fmt::format("{}", target), Kind::bytes, {}};
  entry.set = [&target](const std::string& text, const std::string& where) {
    target = parse_bytes(text, where);
  };
  insert(std::move(entry));
}

void OptionTable::add_words(const std::string& flag, const std::string& key, const std::string& help,
                            const std::vector<std::string>& words, const std::string& initial,
                            std::function<void(std::size_t)> set) {
  Entry entry{flag, key, help, "", fmt::format("{}", fmt::join(words, "|")), initial, Kind::text, {}};
  entry.set = [words, set = std::move(set)](const std::string& text, const std::string& where) {
    const auto word = std::find(words.begin(), words.end(), text);
    if (word == words.end()) {
      const std::string nearest = nearest_name(text, words);
      fail<UsageError>("{} must be one of {}, not '{}'{}", where, fmt::join(words, ", "), text,
                       nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
    }
    set(static_cast<std::size_t>(word - words.begin()));
  };
  insert(std::move(entry));
}

void OptionTable::explain_missing(const std::string& flag, const std::string& key,
                                  const std::string& reason) {
  for (const Entry& entry : entries_) {
    if (entry.flag == flag) return;
  }
  missing_.push_back({flag, key, reason});
}

// ---- Parsing --------------------------------------------------------------------------------------------

bool OptionTable::parse(int argc, const char* const* argv) {
  return parse(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
}

bool OptionTable::parse(const std::vector<std::string>& given) {
  // Every switch has a form that says no: --no-switch is short for --switch=false.
  std::vector<std::string> arguments = given;
  for (std::string& argument : arguments) {
    for (const Entry& entry : entries_) {
      if (entry.kind == Kind::boolean && argument == "--no-" + entry.flag.substr(2)) argument = entry.flag + "=false";
    }
  }
  // CLI11 splits the command line into flags and values; what the values mean is decided here, by the same
  // code that reads the JSON file.
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  CLI::Option* help = app.add_flag("-h,--help");
  std::vector<CLI::Option*> flags;
  for (const Entry& entry : entries_) {
    CLI::Option* option = app.add_option(entry.flag);
    option->take_last();
    if (entry.kind == Kind::boolean) option->expected(0, 1);
    flags.push_back(option);
  }
  // A flag without a value: at the end, before another flag (which CLI11 would take for the value), or "--flag=".
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    for (const Entry& entry : entries_) {
      if (entry.kind == Kind::boolean) continue;
      const bool alone =
          arguments[i] == entry.flag && (i + 1 == arguments.size() || is_flag(arguments[i + 1]));
      require<UsageError>(!alone && arguments[i] != entry.flag + "=", "{} needs a value: {} {}", entry.flag,
                          entry.flag, entry.placeholder);
    }
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    fail<UsageError>("{} ({} --help lists all options)", error.what(), program_);
  }
  if (help->count() > 0) return false;
  for (const std::string& extra : app.remaining()) refuse_flag(extra);

  std::vector<std::string> values(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (flags[i]->count() > 0) values[i] = flags[i]->as<std::string>();
  }

  // The file first, so that flags replace what it says. --config itself is the first entry.
  if (flags[0]->count() > 0) read_json(values[0]);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (flags[i]->count() == 0) continue;
    entries_[i].set(values[i], entries_[i].flag);
    entries_[i].given = true;
  }
  return true;
}

bool OptionTable::is_flag(const std::string& text) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return entry.flag == text; });
}

void OptionTable::read_json(const std::string& path) {
  const Json file = read_json_file(path);
  const auto visit = [&](const auto& self, const Json& object, const std::string& prefix) -> void {
    for (const auto& [name, value] : object.items()) {
      const std::string key = prefix.empty() ? name : prefix + "." + name;
      const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                      [&](const Entry& candidate) { return candidate.key == key; });
      if (entry != entries_.end()) {
        if (!value.is_null()) set_from_json(*entry, value, path + ": " + key);
      } else if (value.is_object()) {
        self(self, value, key);
      } else {
        refuse_key(path, key);
      }
    }
  };
  visit(visit, file, "");
}

void OptionTable::set_from_json(Entry& entry, const Json& value, const std::string& where) {
  const auto wrong = [&](const char* wanted) {
    fail<UsageError>("{} must be {}, not {} (a {})", where, wanted, value.dump(), value.type_name());
  };
  switch (entry.kind) {
    case Kind::integer:
      if (!value.is_number_integer()) wrong("a whole number");
      break;
    case Kind::real:
      if (!value.is_number()) wrong("a number");
      break;
    case Kind::boolean:
      if (!value.is_boolean()) wrong("true or false");
      break;
    case Kind::text:
      if (!value.is_string()) wrong("text in quotes");
      break;
    case Kind::bytes:
      if (!value.is_string() && !value.is_number_integer()) wrong("a number of bytes");
      break;
  }
  entry.set(value.is_string() ? value.get<std::string>() : value.dump(), where);
  entry.given = true;
}

void OptionTable::refuse_flag(const std::string& text) const {
  const std::string flag = text.substr(0, text.find('='));
  require<UsageError>(flag.starts_with("-"),
                      "unexpected '{}': every value belongs to an option ({} --help lists them)", text,
                      program_);
  std::vector<std::string> names = {"--help"};
  for (const Entry& entry : entries_) names.push_back(entry.flag);
  for (const Missing& missing : missing_) {
    require<UsageError>(missing.flag != flag, "{} is not available in {}: {}", flag, program_,
                        missing.reason);
  }
  const std::string nearest = nearest_name(flag, names);
  fail<UsageError>("unknown option {}{} ({} --help lists all options)", flag,
                   nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest), program_);
}

void OptionTable::refuse_key(const std::string& file, const std::string& key) const {
  std::vector<std::string> names, last_names;
  const std::string last = key.substr(key.rfind('.') + 1);
  for (const Entry& entry : entries_) {
    if (entry.key.empty()) continue;
    require<UsageError>(!entry.key.starts_with(key + "."), "{}: {} must be an object, {{...}}", file, key);
    names.push_back(entry.key);
    // The right name in the wrong section is no near miss by letters, but as near as can be by meaning.
    if (entry.key.substr(entry.key.rfind('.') + 1) == last) last_names.push_back(entry.key);
  }
  for (const Missing& missing : missing_) {
    require<UsageError>(missing.key != key, "{}: {} is not available in {}: {}", file, key, program_,
                        missing.reason);
  }
  const std::string nearest = !last_names.empty() ? last_names.front() : nearest_name(key, names);
  fail<UsageError>("{}: unknown key {}{}", file, key,
                   nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

// ---- Questions ------------------------------------------------------------------------------------------

bool OptionTable::given(const std::string& flag) const {
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& candidate) { return candidate.flag == flag; });
  require(entry != entries_.end(), "no option {} was added", flag);
  return entry->given;
}

std::string OptionTable::help() const {
  constexpr std::size_t indent = 30, width = 100;
  std::string text = fmt::format("{}\n\nusage: {} [options]\n", wrapped(description_, 0, width), program_);
  std::string heading;
  for (const Entry& entry : entries_) {
    if (entry.heading != heading) {
      text += fmt::format("\n{}:\n", entry.heading);
      heading = entry.heading;
      if (&entry == &entries_.front()) text += fmt::format("{:<{}}this text\n", "  -h, --help", indent);
    }
    const std::string left = fmt::format("  {} {}", entry.flag, entry.placeholder);
    std::string right = entry.help;
    if (!entry.initial.empty()) right += fmt::format(" (default {})", entry.initial);
    if (!entry.key.empty()) right += fmt::format(" [{}]", entry.key);
    text += left.size() + 1 < indent ? fmt::format("{:<{}}", left, indent)
                                     : left + "\n" + std::string(indent, ' ');
    text += wrapped(right, indent, width) + "\n";
  }
  return text;
}

}  // namespace escalera
