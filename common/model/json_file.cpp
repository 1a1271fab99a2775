#include "common/model/json_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "common/core/error.h"

namespace escalera {
namespace {

using Json = nlohmann::json;

/// Watches the parser and throws at the second appearance of a key.
class DuplicateKeys {
 public:
  explicit DuplicateKeys(const std::string& file) : file_(file) {}

  void see(Json::parse_event_t event, const Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
        open_.push_back({{}, ""});
        break;
      case Json::parse_event_t::object_end:
        open_.pop_back();
        break;
      case Json::parse_event_t::key: {
        Level& level = open_.back();
        level.last = value.get<std::string>();
        require<UsageError>(level.keys.insert(level.last).second, "{}: the key {} appears twice", file_,
                            path());
        break;
      }
      default:
        break;
    }
  }

 private:
  struct Level {
    std::set<std::string> keys;
    std::string last;
  };

  std::string path() const {
    std::string result;
    for (const Level& level : open_) result += (result.empty() ? "" : ".") + level.last;
    return result;
  }

  const std::string& file_;
  std::vector<Level> open_;
};

/// "line 3, column 7" of the byte that the parser stopped at (counted from 1).
std::string place(const std::string& text, std::size_t byte) {
  const std::size_t end = std::min(byte > 0 ? byte - 1 : 0, text.size());
  const auto begin_of_line = text.rfind('\n', end == 0 ? 0 : end - 1);
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
  const std::size_t column = end == 0 || begin_of_line == std::string::npos ? end + 1 : end - begin_of_line;
  return fmt::format("line {}, column {}", line, column);
}

}  // namespace

Json read_json_file(const std::string& file) {
  std::error_code ignored;
  require<UsageError>(std::filesystem::exists(file, ignored), "{}: there is no such file", file);
  require<UsageError>(!std::filesystem::is_directory(file, ignored), "{}: is a folder, not a JSON file",
                      file);
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream buffer;
  buffer << stream.rdbuf();
  require<UsageError>(!stream.bad() && stream.is_open(), "{}: cannot be read", file);
  const std::string text = buffer.str();

  DuplicateKeys duplicates(file);
  try {
    Json json = Json::parse(text, [&](int, Json::parse_event_t event, Json& value) {
      duplicates.see(event, value);
      return true;
    });
    require<UsageError>(json.is_object(), "{}: a JSON object, {{...}}, is expected", file);
    return json;
  } catch (const Json::parse_error& error) {
    // The library's text is "[name] parse error at line 1, column 2: what went wrong"; only the last part is news.
    std::string what = error.what();
    if (const auto colon = what.find(": "); colon != std::string::npos) what = what.substr(colon + 2);
    fail<UsageError>("{}: not valid JSON at {}: {}", file, place(text, error.byte), what);
  } catch (const Json::exception& error) {
    fail<UsageError>("{}: not valid JSON: {}", file, error.what());
  }
}

}  // namespace escalera
