#include "common/train/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace escalera {
namespace {

/// `value` in thousands, with three digits, and how often it was divided.
std::pair<std::string, std::size_t> in_thousands(double value, std::size_t most) {
  std::size_t power = 0;
  // What would be printed as 1000 belongs to the next unit.
  while (std::abs(value) >= (power == 0 ? 1000.0 : 999.5) && power < most) {
    value /= 1000.0;
    ++power;
  }
  if (power == 0) return {fmt::format("{:.0f}", value), 0};
  const double size = std::abs(value);
  return {fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0), power};
}

}  // namespace

std::string human_count(double count) {
  static constexpr std::array units{"", "K", "M", "B", "T"};
  const auto [digits, power] = in_thousands(count, units.size() - 1);
  return digits + units[power];
}

std::string human_bytes(double bytes) {
  static constexpr std::array units{" B", " KB", " MB", " GB", " TB", " PB"};
  const auto [digits, power] = in_thousands(bytes, units.size() - 1);
  return digits + units[power];
}

std::string human_time(double seconds) {
  const auto whole = static_cast<Index>(std::llround(std::clamp(seconds, 0.0, 3.6e9)));
  const Index hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string grouped(Index number) {
  std::string digits = fmt::format("{}", number);
  const std::size_t sign = number < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > sign + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string TextTable::text() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string result;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    std::string line = fmt::format("  {:<{}}", rows_[i].front(), widths.front());
    for (std::size_t column = 1; column < rows_[i].size(); ++column) {
      line += fmt::format("  {:>{}}", rows_[i][column], widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
    if (i > 0) continue;
    std::string rule = " ";
    for (const std::size_t width : widths) rule += " " + std::string(width, '-') + " ";
    rule.erase(rule.find_last_not_of(' ') + 1);
    result += rule + "\n";
  }
  return result;
}

}  // namespace escalera
